"""The store of a command: opened for reading, the topics in the store, and scans."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import CorruptFile, DataLoss, OffsetError, UsageError
from mqfast.util.near_names import did_you_mean

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.reader.gather import Gather, RecordColumns
    from mqfast.store.reader.store_reader import QueueRange, StoreReader

__all__ = [
    "check_times",
    "config_of",
    "gather_of",
    "known_queues",
    "lists_of",
    "missing_topic",
    "near",
    "ranges",
    "reader_of",
    "tags_of",
]

_SOME: Final = 8


def config_of(arguments: argparse.Namespace) -> StoreConfig | None:
    if arguments.conf is None:
        return None
    from mqfast.config import StoreConfig
    from mqfast.store.base.os_api import OsApi

    return StoreConfig.from_broker_conf(arguments.conf, os_api=OsApi())


def reader_of(arguments: argparse.Namespace) -> StoreReader:
    from mqfast.store.reader.store_reader import StoreReader

    config = config_of(arguments)
    if config is None:
        return StoreReader(arguments.path)
    # Only settings of the file: a missing size must not contradict the store.
    sizes = {name: getattr(config, name) for name in ("max_hash_slot_num", "max_index_num") if name in config.explicit}
    directories = (*config.commit_log_dirs, *config.read_only_commit_log_dirs)
    return StoreReader(arguments.path, commit_log=directories or None, **sizes)


def near(name: str, names: Iterable[str], *, others: bool = True) -> str:
    """Return a hint for an unknown name: the nearest names, else some of the names (unless not ``others``)."""
    every = sorted(set(names))
    hint = did_you_mean(name, every, count=3, ignore_case=True)
    if hint or not others:
        return hint
    if not every:
        return "; the store has none"
    rest = f" and {len(every) - _SOME} more" if len(every) > _SOME else ""
    return f"; there are {', '.join(every[:_SOME])}{rest}"


def missing_topic(reader: StoreReader, topic: str) -> str | None:
    """Return an error text for a topic without a queue; None for a topic with queues."""
    queues = reader.queues()
    if any(queue.topic == topic for queue in queues):
        return None
    return f"topic {topic}: no such topic in {reader.paths.root}{near(topic, (queue.topic for queue in queues))}"


def known_queues(reader: StoreReader, topics: Sequence[str], queue_id: int | None = None) -> list[QueueRange]:
    """Return the queues of the topics, in the order of the topics; only those with this id.

    Raises: OffsetError when there is no such topic or queue.
    """
    queues = reader.queues()
    queue_ids = []
    for topic in dict.fromkeys(topics):
        mine = [queue for queue in queues if queue.topic == topic]
        if not mine:
            raise OffsetError(str(missing_topic(reader, topic)))
        chosen = [queue for queue in mine if queue_id in (None, queue.queue_id)]
        if not chosen:
            ids = [queue.queue_id for queue in mine]
            raise OffsetError(f"topic {topic}: expected a queue of {ranges(ids)}, found {queue_id}")
        queue_ids += chosen
    return queue_ids


def ranges(numbers: Sequence[int]) -> str:
    """Return sorted numbers as text: ``0 to 3, 8``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in parts)


def tags_of(expression: str | None) -> list[str] | None:
    """Return the tags of ``A || B``; None for every message."""
    if expression is None or expression.strip() in ("", "*"):
        return None
    return [tag.strip() for tag in expression.split("||") if tag.strip()]


def check_times(arguments: argparse.Namespace) -> None:
    """Check that --end is not before --begin. Raises: UsageError."""
    begin, end = arguments.begin, arguments.end
    if begin is not None and end is not None and end < begin:
        raise UsageError(f"--end: expected a time not before --begin, {begin}; found {end}")


def gather_of(columns: Iterable[str], arguments: argparse.Namespace, **more: Any) -> Gather:
    """Return a gather of columns, for the messages within the store times of the command line."""
    from mqfast.store.reader.gather import Gather

    check_times(arguments)
    end = arguments.end
    return Gather(
        [(name, name, False) for name in columns],
        check_crc=True,
        stored_from=arguments.begin,
        stored_before=None if end is None else end + 1,
        **{"batch_rows": 1 << 14, **more},
    )


def lists_of(run: Iterable[RecordColumns], gather: Gather, json_maps: bool) -> Iterator[dict[str, list[Any]]]:
    """Yield the batches of a scan as lists. Rows before damage are yielded before the error is raised."""
    from mqfast.store.reader.record_lists import to_lists

    try:
        for batch in run:
            yield to_lists(batch, json_maps)
    except (CorruptFile, DataLoss):
        if gather.rows:
            yield to_lists(gather.finish(), json_maps)
        raise
