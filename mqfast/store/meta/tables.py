"""ConfigTables: the tables of ``config/`` in the hands of who opens a store, a broker for one.

A store that is opened with ``tables=`` uses these objects and neither reads nor writes their files; whoever loaded them
calls ``persist``. This module must never persist by itself.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from mqfast.config import StoreConfig
from mqfast.errors import MqfastError
from mqfast.store.base import paths as _paths
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.metadata import ConsumerFilterTable, DelayOffsetTable, SubscriptionGroupTable, TopicTable
from mqfast.store.meta.offsets import ConsumerOffsets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConfigTables"]


class ConfigTables:
    """Topics, consumer offsets, groups, delay offsets and filters of one store directory.

    Attributes: ``topics``, ``offsets``, ``groups``, ``delays``, ``filters``; each persists by itself, too.
    Thread: any.
    """

    def __init__(self, path: str | os.PathLike[str], config: StoreConfig, os_api: OsApi) -> None:
        self.path: Final = _paths.root_of(path, os_api)
        paths = _paths.StorePaths(self.path, config.commit_log_dirs)
        step = config.consumer_offset_update_version_step
        self.topics: Final = TopicTable.load(os_api, paths.topics)
        self.offsets: Final = ConsumerOffsets.of_store(os_api, paths, lmq=config.enable_lmq, version_step=step)
        self.groups: Final = SubscriptionGroupTable.load(os_api, paths.subscription_group)
        self.delays: Final = DelayOffsetTable.load(os_api, paths.delay_offset)
        self.filters: Final = ConsumerFilterTable.load(os_api, paths.consumer_filter)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], config: StoreConfig | None = None, *, os_api: OsApi | None = None
    ) -> Self:
        """Read the tables of the store at ``path``; what is not there is empty. Nothing is made on the disk.

        Args: config: that of the store.
        Raises: CorruptFile for a file that cannot be read, nor its backup; StorageError.
        """
        return cls(path, config or StoreConfig(), os_api or OsApi())

    @property
    def warnings(self) -> list[str]:
        """What loading found wrong, one sentence each."""
        tables = (self.topics, self.offsets, self.groups, self.delays, self.filters)
        return [text for table in tables for text in table.warnings]

    def persist(self, before_offsets: Callable[[], object] | None = None) -> bool:
        """Put every table on disk that changed; one that cannot be written holds up no other.

        Args: before_offsets: called when consumer offsets are to be written; makes the messages durable that they
        pass (``store.log.flush``), so that a group never skips a message after a power cut.
        Returns: whether anything was written. Raises: StorageError of the first table that failed, once all were tried;
        what ``before_offsets`` raises.
        Durability: after it returns the tables survive power loss.
        """
        persists: list[Callable[[], bool]] = [
            self.topics.persist,
            self.groups.persist,
            self.delays.persist,
            self.filters.persist,
            partial(self.offsets.persist, before_offsets),
        ]
        written = False
        failures: list[MqfastError] = []
        for persist in persists:
            try:
                written = persist() or written
            except MqfastError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return written
