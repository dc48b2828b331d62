"""Several stores as a single stream: directories, or the brokers of a cluster.

Each store has a reader with offsets, losses and lease. The offset of the stream holds the offsets of all readers:
``{"stores": {"broker-a": {...}, "broker-b": {...}}, "version": 2}``. A store that joins is read from the first message
on, as a new queue is. A store that is no longer named keeps the last offset. An unavailable broker keeps the offset
while the other stores continue, within the options' limits. A store never takes the share of another store in a batch,
and a run never ends without an error if a broker could not be read.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mqfast.errors import UsageError
from mqfast.spark.backends import forget_cluster, is_unavailable, known_topics, open_backend, stores_of
from mqfast.spark.offsets import LOG_KEY, STORES_KEY, VERSION, Spark
from mqfast.spark.options import Options, of_broker
from mqfast.spark.partitions import ScanPartition, freeze_loaded, read_part
from mqfast.spark.schema import Column
from mqfast.spark.selection import check_names
from mqfast.spark.stream import StreamReader

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamOfStores"]

_NO_LIMIT: Final = 2**62
_log = logging.getLogger("mqfast.spark")


class StreamOfStores(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over several stores. Raises: ConfigError."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self.options: Final = options
        self.columns: Final = columns
        self._stores: Final[dict[str, StreamReader]] = {}
        self._away: Final[dict[str, float]] = {}  # monotonic time of the first error
        if options.namesrv is None:
            self._open_readers()
        self._checked = False
        self._available_now = False
        self._turn = 0
        self._last_batch = time.monotonic()

    def stop(self) -> None:
        """Close all stores."""
        for store in self._stores.values():
            store.stop()

    # --- stores ---

    def _open_readers(self, *, begins: bool = False) -> None:
        """Create a reader for every present store; ``begins``: the stream begins here."""
        for name, given in stores_of(self.options, begins=begins):
            if name not in self._stores:
                self._stores[name] = StreamReader(_options_of_store(given, name), self.columns, one_of_many=True)

    def _open_named_readers(self, names: Iterable[str]) -> None:
        """Create a reader for each of these brokers, available or not."""
        for name in names if self.options.namesrv is not None else ():
            if name not in self._stores:
                given = _options_of_store(of_broker(self.options, name), name)
                self._stores[name] = StreamReader(given, self.columns, one_of_many=True)

    def _is_away(self, name: str, error: Exception) -> bool:
        """Return whether the stream can continue without a broker for now; False for other errors, and after the
        time-out.
        """
        if not is_unavailable(self.options, error):
            return False
        now = time.monotonic()
        if name not in self._away:
            _log.warning("broker %s is away, the others go on: %s", name, error)
        since = self._away.setdefault(name, now)
        return self.options.broker_away == "wait" or (now - since) * 1000 < self.options.broker_timeout

    # --- offsets ---

    def _all(self, offset_of: Callable[[str, StreamReader], Spark]) -> Spark:
        return _join_offsets({name: offset_of(name, store) for name, store in self._stores.items()})

    def _check_names(self) -> None:
        if not self._checked:
            snapshots = []
            for _, given in stores_of(self.options, begins=True):
                access = open_backend(given)
                snapshots.append(access.snapshot())
                access.close()
            check_names(snapshots, self.options, known_topics)
            self._checked = True

    def initialOffset(self) -> Spark:
        """Return the first offset of each store. Raises: as StreamReader.initialOffset."""
        self._check_names()
        self._open_readers(begins=True)
        return self._all(lambda _, store: store.initialOffset())

    def _starts(self, start: Spark, names: Iterable[str], *, wait: bool) -> dict[str, Spark]:
        """Return the offsets of these stores, of joined stores from the first message on, and of all stores in
        ``start``.

        Args: wait: for an unavailable store, which is left out otherwise.
        """
        starts = _split_offset(start)
        for name in names:
            if name not in starts:
                try:
                    starts[name] = self._stores[name].joined(wait=wait)
                except Exception as error:
                    if wait or not self._is_away(name, error):
                        raise
        return starts

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the options, or a very high limit; each store gets a share."""
        o = self.options
        if o.max_offsets_per_trigger is not None:
            return ReadMaxRows(o.max_offsets_per_trigger)
        if o.max_bytes_per_trigger is not None:
            return ReadMaxBytes(o.max_bytes_per_trigger)
        return ReadMaxRows(_NO_LIMIT)  # not ReadAllAvailable, which overrides minOffsetsPerTrigger

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the present ends of the stores."""
        self._available_now = True
        forget_cluster(self.options)
        self._open_readers()
        for store in self._stores.values():
            store.prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> Spark | None:
        """Return the ends of the stores, for the lag in the query's progress."""
        ends = {}
        for name, store in self._stores.items():
            try:
                ends[name] = store.reportLatestOffset() or {}
            except Exception as error:
                if not is_unavailable(self.options, error):
                    raise
        return _join_offsets(ends)

    def latestOffset(self, start: Spark, limit: ReadLimit) -> Spark:
        """Return the end of the next batch; ``start`` if there is no new batch.

        Raises: as StreamReader.latestOffset.
        """
        if not self._available_now and self.options.namesrv is not None:
            self._open_readers()
        chosen = self.options.brokers
        self._open_named_readers(name for name in _split_offset(start) if chosen is None or name in chosen)
        before = self._starts(start, self._stores, wait=False)
        ends = {name: self._end(name, before[name], None) for name in self._stores if name in before}
        news = [name for name in ends if ends[name] != before[name]]
        if not news or self._waits({name: before[name] for name in news}, ends, limit):
            return start
        if not isinstance(limit, ReadAllAvailable):
            self._share_out(before, ends, news, limit)
        self._last_batch = time.monotonic()
        begun = _split_offset(start)
        for name in news:
            if name not in begun and LOG_KEY in ends[name]:  # start of the log of a joined store
                ends[name] = {"from": before[name][LOG_KEY], **ends[name]}
        return _join_offsets({**before, **ends})

    def _end(self, name: str, start: Spark, share: tuple[int | None, int | None] | None) -> Spark:
        store = self._stores[name]
        store.share = share if share is not None else (None, None)
        if self._available_now and not store.has_target:
            store.prepareForTriggerAvailableNow()
        try:
            end = store.latestOffset(start, ReadAllAvailable())
        except Exception as error:
            if self._available_now or not self._is_away(name, error):
                raise
            return start
        self._away.pop(name, None)
        return end

    def _waits(self, before: dict[str, Spark], ends: dict[str, Spark], limit: ReadLimit) -> bool:
        """Return whether to wait for more rows."""
        min_rows = self.options.min_offsets_per_trigger
        if min_rows is None or self._available_now or isinstance(limit, ReadAllAvailable):
            return False
        if (time.monotonic() - self._last_batch) * 1000 >= self.options.max_trigger_delay:
            return False
        return sum(self._stores[name].count(before[name], ends[name], min_rows) for name in before) < min_rows

    def _share_out(self, before: dict[str, Spark], ends: dict[str, Spark], news: list[str], limit: ReadLimit) -> None:
        """Cut the ends of stores with new messages to shares; with fewer rows than stores, round-robin."""
        rows, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows) and limit.max_rows < _NO_LIMIT:
            rows = min(rows or limit.max_rows, limit.max_rows)
        if isinstance(limit, ReadMaxBytes):
            size = min(size or limit.max_bytes, limit.max_bytes)
        if rows is None and size is None:
            return
        self._turn += 1
        turn = self._turn % len(news)
        rows_left, left_bytes = rows, size
        for number, name in enumerate([*news[turn:], *news[:turn]]):
            others = len(news) - number
            if rows_left == 0:
                ends[name] = before[name]
                continue
            share = None if rows_left is None else max(1, rows_left // others)
            share_bytes = None if left_bytes is None else max(1, left_bytes // others)
            ends[name] = self._end(name, before[name], (share, share_bytes))
            if rows_left is not None and share is not None:
                rows_left -= self._stores[name].count(before[name], ends[name], share)
            if left_bytes is not None and share_bytes is not None:
                left_bytes = max(0, left_bytes - share_bytes)

    # --- partitions of a batch ---

    def partitions(self, start: Spark, end: Spark) -> list[InputPartition]:
        """Return the partitions of a batch. Raises: DataLoss; UsageError for a store that is no longer named."""
        ends, begun = _split_offset(end), _split_offset(start)
        moved = [name for name in ends if ends[name] != begun.get(name)]
        self._open_named_readers(moved)
        for name in moved:
            if name not in self._stores:
                raise UsageError(f"store {name}: a batch that was planned reads it, and it is not among the paths now")
        starts = self._starts(start, moved, wait=True)
        partitions: list[InputPartition] = []
        for name in moved:
            for part in self._stores[name].partitions(starts[name], ends[name]) if ends[name] != starts[name] else ():
                assert isinstance(part, ScanPartition)
                part.store = name
                partitions.append(part)
        return partitions

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in Arrow batches."""
        freeze_loaded()
        if isinstance(partition, ScanPartition):
            yield from read_part(partition)

    def commit(self, end: Spark) -> None:
        """Commit ``end`` in each store; see StreamReader.commit."""
        for name, offset in _split_offset(end).items():
            if name in self._stores:
                self._stores[name].commit(offset)


def _options_of_store(options: Options, name: str) -> Options:
    """Return the options of a store: a subdirectory of the state directory, and no waiting for rows."""
    state = options.state_dir
    return dataclasses.replace(
        options, state_dir=os.path.join(state, quote(name, safe="")) if state is not None else None,
        min_offsets_per_trigger=None,
    )  # fmt: skip


def _join_offsets(offsets: dict[str, Spark]) -> Spark:
    return {STORES_KEY: dict(sorted(offsets.items())), "version": VERSION}


def _split_offset(offset: Spark) -> dict[str, Spark]:
    stores = offset.get(STORES_KEY)
    if not isinstance(stores, dict):
        raise UsageError(
            f"offset of a stream over several stores: expected {STORES_KEY!r}, found {sorted(offset)!r:.80}; a "
            "checkpoint of one store goes on with path, not paths"
        )
    return dict(stores)
