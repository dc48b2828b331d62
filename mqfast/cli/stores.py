"""The store that a command names: opened for reading, and the topics that are in it.

It must never open a store for writing, nor create one.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mqfast.errors import OffsetError

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.reader import StoreReader

__all__ = ["config_of", "known_topic", "reader_of"]


def config_of(arguments: argparse.Namespace) -> StoreConfig | None:
    if arguments.conf is None:
        return None
    from mqfast.config import StoreConfig
    from mqfast.store._os import OsDoor

    return StoreConfig.from_broker_conf(arguments.conf, door=OsDoor())


def reader_of(arguments: argparse.Namespace) -> StoreReader:
    from mqfast.store.reader import StoreReader

    config = config_of(arguments)
    if config is None:
        return StoreReader(arguments.path)
    # Only what the file says: its silence about a size must not contradict the store.
    sizes = {name: getattr(config, name) for name in ("max_hash_slot_num", "max_index_num") if name in config.explicit}
    directories = (*config.commit_log_dirs, *config.read_only_commit_log_dirs)
    return StoreReader(arguments.path, commit_log=directories or None, **sizes)


def known_topic(reader: StoreReader, topic: str) -> list[tuple[int, int, int]]:
    """(queue id, min offset, max offset) of the topic's queues. Raises: OffsetError when it has none."""
    found = [(q.queue_id, q.min_offset, q.max_offset) for q in reader.queues() if q.topic == topic]
    if not found:
        raise OffsetError(f"topic {topic}: expected one that has a queue in {reader.paths.root}, found none")
    return found
