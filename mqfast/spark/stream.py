"""The streaming source: where a stream is, how far the next batch goes, and what its tasks read.

Room: the Spark adapter. Spark keeps one ``StreamReader`` in a Python process beside the driver for as long as a query
runs; tasks get copies that only read. Offsets are replayable: a batch is [start, end) and nothing else decides what is
in it. In log order an offset is one place in the log; along queues it is one number a queue (see ``offsets.py``).
It must never hand out an end that it could not read, and never go behind a start.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from mqfast.errors import ConfigError, DataLoss
from mqfast.spark.access import Access, ReadSettings, open_access
from mqfast.spark.groups import GroupProgress
from mqfast.spark.offsets import (
    Offsets,
    Place,
    Spark,
    advance,
    backlog,
    decode,
    encode,
    encode_log,
    limit_bytes,
    limit_rows,
    log_position,
    with_new_queues,
)
from mqfast.spark.options import Options
from mqfast.spark.plan import Piece, QueueRange, ScanRange, Selection, Snapshot, plan, scan_pieces
from mqfast.spark.schema import VIEWS, Column
from mqfast.spark.selection import selected_queues, starting_offsets
from mqfast.spark.source import Part, least_physical_offset, parts_of, read_part, read_settings, settle

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader", "reads_along_log"]

_COUNTED: Final = tuple(column for column in VIEWS["messages"] if column.name in ("physicalOffset", "msgSize"))
_EVERYTHING: Final = (0, (1 << 63) - 1)
_STATE: Final = "first-offsets.json"


def reads_along_log(options: Options) -> bool:
    """Is an offset of this stream a place in the log? It follows from the options alone, so that a restart agrees.

    Raises: ConfigError, when the log is asked for and the start can only be told by queue.
    """
    bound = options.starting_offsets
    by_queue = (
        options.starting_offsets_by_timestamp is not None
        or (bound is not None and (bound.by_queue is not None or bound.back_count is not None or bound.word == "group"))
    )  # fmt: skip
    if options.order == "commitlog":
        if by_queue:
            raise ConfigError(
                "option order: along the log a stream starts at earliest, latest or a time; offsets by queue and of "
                "groups need order=queue"
            )
        return True
    narrow = (options.subscribe, options.assign, options.subscribe_pattern)
    return options.order == "auto" and not by_queue and all(value is None for value in narrow)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One stream. Raises: ConfigError."""

    def __init__(self, options: Options, columns: tuple[Column, ...]) -> None:
        self.options: Final = options
        self.columns: Final = columns
        self.along_log: Final = reads_along_log(options)
        self._access: Access | None = None
        self._snapshot: Snapshot | None = None
        self._first: Spark | None = None
        self._target: Spark | None = None
        self._last_batch = time.monotonic()
        self._leased: float | None = None
        self._group: GroupProgress | None = None

    # --- the store ---

    def _open(self) -> Access:
        if self._access is None:
            self._access = open_access(self.options)
        return self._access

    def _look(self) -> Snapshot:
        self._snapshot = self._open().snapshot()
        return self._snapshot

    def _seen(self) -> Snapshot:
        return self._snapshot or self._look()

    def stop(self) -> None:
        """Let go of the store."""
        if self._access is not None:
            self._access.close()
            self._access = None

    # --- where the stream begins ---

    def initialOffset(self) -> dict[str, int]:
        """Where a new stream begins.

        Spark asks twice in one start, and again where no batch was ever finished: the answer is kept, under
        ``stateDir`` for another process as well.

        Raises: ConfigError, DataLoss, StorageError.
        """
        if self._first is None:
            directory = self.options.state_dir
            if directory is None:
                self._first = self._begin()
            elif os.path.exists(os.path.join(directory, _STATE)):
                self._first = _load(os.path.join(directory, _STATE))
            else:
                self._first = self._begin()
                _save(os.path.join(directory, _STATE), self._first)
        return self._first

    def _begin(self) -> Spark:
        access, snapshot = self._open(), self._look()
        queues = selected_queues(snapshot, self.options)
        if not self.along_log:
            return encode(starting_offsets(snapshot, queues, self.options, access, "latest"))
        bound, moment = self.options.starting_offsets, self.options.starting_timestamp
        if bound is not None and bound.back_ms is not None:
            moment = snapshot.taken_ms - bound.back_ms
        if moment is None:
            earliest = bound is not None and bound.word == "earliest"
            return encode_log(snapshot.log_start if earliest else snapshot.log_end)
        first = snapshot.log_end
        for q in snapshot.queues:  # all of them: store times grow along the log, whatever is subscribed
            offset = access.offset_by_time(q.topic, q.queue_id, moment)
            if not q.is_light and q.min_offset <= offset < q.max_offset:
                first = min(first, access.physical_span([QueueRange(q.topic, q.queue_id, offset, offset + 1)])[0])
        return encode_log(first)

    # --- how far it goes ---

    def getDefaultReadLimit(self) -> ReadLimit:
        """The first of the limits in the options; latestOffset keeps to all of them."""
        o = self.options
        if o.max_offsets_per_trigger is not None:
            return ReadMaxRows(o.max_offsets_per_trigger)
        if o.max_bytes_per_trigger is not None:
            return ReadMaxBytes(o.max_bytes_per_trigger)
        if o.min_offsets_per_trigger is not None:
            return ReadMinRows(o.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """This run ends where the store ends now."""
        self._target = self._latest(self._look())

    def reportLatestOffset(self) -> dict[str, int] | None:
        """The end of the store, for the lag in the query's progress."""
        return self._latest(self._seen())

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """The end of the next batch; ``start`` when there is none yet.

        Raises: DataLoss, when the store ends before ``start``.
        """
        end = self._latest(self._look()) if self._target is None else self._target
        found = self._log_end(start, end, limit) if self.along_log else self._queue_ends(start, end, limit)
        if found != start:
            self._last_batch = time.monotonic()
        return found

    def _latest(self, snapshot: Snapshot) -> Spark:
        if self.along_log:
            return encode_log(self._dispatched(snapshot))
        return encode({(q.topic, q.queue_id): q.max_offset for q in selected_queues(snapshot, self._here(snapshot))})

    def _here(self, snapshot: Snapshot) -> Options:
        """The options without what is not in the store any more: a topic that was deleted ends no stream."""
        o, known = self.options, {(q.topic, q.queue_id) for q in snapshot.queues}
        topics = {topic for topic, _ in known}
        if o.subscribe is not None:
            return dataclasses.replace(o, subscribe=tuple(topic for topic in o.subscribe if topic in topics))
        if o.assign is not None:
            return dataclasses.replace(o, assign=tuple(place for place in o.assign if place in known))
        return o

    def _dispatched(self, snapshot: Snapshot) -> int:
        """The end of the log; when only some queues are wanted, up to where every record's queue is known."""
        if self._whole():
            return snapshot.log_end
        ends = [QueueRange(q.topic, q.queue_id, q.max_offset - 1, q.max_offset) for q in snapshot.queues if q.messages]
        return min(snapshot.log_end, self._open().physical_span(ends)[1]) if ends else snapshot.log_start

    def _whole(self) -> bool:
        o = self.options
        return o.subscribe is None and o.assign is None and o.subscribe_pattern is None

    def _waits(self, rows: int, limit: ReadLimit) -> bool:
        """Is it too early for so few rows?"""
        least = limit.min_rows if isinstance(limit, ReadMinRows) else self.options.min_offsets_per_trigger
        if least is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return rows < least and (time.monotonic() - self._last_batch) * 1000 < self.options.max_trigger_delay

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Most rows and most bytes of a batch."""
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        return (
            limit.max_rows if isinstance(limit, ReadMaxRows) else rows,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else size,
        )

    def _queue_ends(self, start: Mapping[str, int], end: Spark, limit: ReadLimit) -> Spark:
        known = decode(end)
        first = with_new_queues(decode(start), self._lowest(known))
        self._check_went_back(first, known)
        last = advance(first, known)
        rows = backlog(first, last)
        if rows == 0 or self._waits(rows, limit):
            return dict(start)
        most_rows, most_bytes = self._limits(limit)
        if most_rows is not None:
            last = limit_rows(first, last, most_rows)
        if most_bytes is not None:
            last = limit_bytes(first, last, most_bytes, self._sizes)
        return encode(last)

    def _lowest(self, known: Offsets) -> dict[Place, tuple[int, int]]:
        """Where queues begin that a stream has not seen before."""
        return {place: bounds for place, bounds in _bounds(self._seen()).items() if place in known}

    def _check_went_back(self, first: Offsets, known: Offsets) -> None:
        for (topic, queue_id), offset in first.items():
            if self._target is None and self.options.fail_on_data_loss and known.get((topic, queue_id), 0) < offset:
                raise DataLoss(
                    f"queue {topic}/{queue_id}: the stream is at {offset}, and the store ends at "
                    f"{known.get((topic, queue_id), 0)}; failOnDataLoss=false waits until it gets there again"
                )

    def _sizes(self, place: Place, first: int, last: int) -> Sequence[int]:
        sizes = self._open().unit_sizes(QueueRange(*place, first, last))
        if len(sizes) < last - first:  # units of a batch queue hold several messages
            return [sum(sizes) // (last - first)] * (last - first)
        return sizes

    def _log_end(self, start: Mapping[str, int], end: Spark, limit: ReadLimit) -> Spark:
        first, last = log_position(start), log_position(end)
        if last < first:
            if self._target is None and self.options.fail_on_data_loss and not self._whole_is_behind(first):
                raise DataLoss(
                    f"the stream is at physical offset {first}, and the log ends at {last}; "
                    "failOnDataLoss=false waits until it gets there again"
                )
            return dict(start)
        if last == first:
            return dict(start)
        most_rows, most_bytes = self._limits(limit)
        if most_bytes is not None and first + most_bytes < last:
            last = self._open().boundary(first + most_bytes, last)
        least = self.options.min_offsets_per_trigger
        if least is not None and self._waits(0, limit) and self._behind_rows(first, last, least) is None:
            return dict(start)
        if most_rows is not None:
            cut = self._behind_rows(first, last, most_rows)
            if cut is not None:
                last = self._open().boundary(cut, last)
        return encode_log(last)

    def _whole_is_behind(self, first: int) -> bool:
        """May the end be lower only because the queues of the last records are not written yet?"""
        return self._seen().log_end >= first

    def _behind_rows(self, first: int, last: int, rows: int) -> int | None:
        """The place behind so many rows of [first, last); None where there are fewer."""
        start = max(first, self._seen().log_start)
        settings = ReadSettings(queues=self._wanted(), fail_on_data_loss=False)
        for batch in self._open().scan(ScanRange(start, last), _COUNTED, settings):
            if batch.num_rows >= rows:
                return int(batch.column(0)[rows - 1].as_py() + batch.column(1)[rows - 1].as_py())
            rows -= batch.num_rows
        return None

    # --- what tasks read ---

    def _wanted(self) -> dict[Place, tuple[int, int]] | None:
        """The queues that a read along the log is for; None for all."""
        if self._whole():
            return None
        snapshot = self._seen()
        return {(q.topic, q.queue_id): _EVERYTHING for q in selected_queues(snapshot, self._here(snapshot))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """What the tasks of one batch read; the same for the same offsets, as long as the store has them.

        Raises: DataLoss.
        """
        snapshot = self._seen()
        if self.along_log and snapshot.log_end < log_position(end):
            snapshot = self._look()
        pieces = self._log_pieces(start, end) if self.along_log else self._queue_pieces(start, end)
        if not pieces:
            return []
        self._lease(pieces)
        settings = read_settings(self.options, Selection((), whole=True))
        if self.along_log:
            settings = dataclasses.replace(settings, queues=self._wanted())
        return parts_of(self.options, self.columns, snapshot, pieces, settings)

    def _lease(self, pieces: list[Piece]) -> None:
        """One lease for many batches: places only grow, so that an older one keeps more."""
        now, ttl_ms = time.monotonic(), self.options.lease_ttl
        if ttl_ms and (self._leased is None or (now - self._leased) * 4000 > ttl_ms):
            access = self._open()
            access.lease(least_physical_offset(pieces, access), ttl_ms)
            self._leased = now

    def _log_pieces(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Piece]:
        access, snapshot, o = self._open(), self._seen(), self.options
        first, last = log_position(start), log_position(end)
        if first >= last:
            return []
        first = self._there("physical offsets", first, last, snapshot.log_start)
        last = self._ends("physical offsets", first, last, snapshot.log_end)
        if first == snapshot.log_start != log_position(start):
            first = access.boundary(first, last)
        if first >= last:
            return []
        parts = max(1, round((last - first) / o.partition_bytes), o.min_partitions or 1)
        return [Piece(scan=piece) for piece in scan_pieces(first, last, min(parts, o.max_partitions or parts), access)]

    def _queue_pieces(self, start: Mapping[str, int], end: Mapping[str, int]) -> list[Piece]:
        access, o, last = self._open(), self.options, decode(end)
        snapshot = self._seen()
        bounds = _bounds(snapshot)
        if any(bounds.get(place, (0, 0))[1] < offset for place, offset in last.items()):
            snapshot = self._look()
            bounds = _bounds(snapshot)
        first = with_new_queues(decode(start), {place: bounds.get(place, (0, 0)) for place in last})
        ranges = []
        for place, until in last.items():
            since = first[place]
            if since < until:
                what = f"offsets of queue {place[0]}/{place[1]}"
                low, high = bounds.get(place, (0, 0))
                since = self._there(what, since, until, low)
                until = self._ends(what, since, until, high)
            if since < until:
                ranges.append(QueueRange(*place, since, until))
        return plan(
            snapshot, Selection(tuple(ranges)), access, order="queue", partition_bytes=o.partition_bytes,
            min_partitions=o.min_partitions, max_partitions=o.max_partitions,
        )  # fmt: skip

    def _there(self, what: str, first: int, last: int, least: int) -> int:
        """Where [first, last) begins, of what retention has left."""
        if first < least and self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: the stream wants {first} to {last}, and the store begins at {least}; "
                "failOnDataLoss=false goes on with what is there"
            )
        return max(first, min(least, last))

    def _ends(self, what: str, first: int, last: int, most: int) -> int:
        """Where [first, last) ends, of what was planned before and is still there."""
        if last > most and self.options.fail_on_data_loss:
            raise DataLoss(
                f"{what}: the stream wants {first} to {last}, and the store ends at {most}; "
                "failOnDataLoss=false goes on with what is there"
            )
        return max(first, min(last, most))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition, in Arrow batches."""
        settle()
        if isinstance(partition, Part):
            yield from read_part(partition)

    # --- what others are told ---

    def commit(self, end: dict[str, int]) -> None:
        """Everything before ``end`` is done; with ``commitGroup`` the store is told. Spark says so while it plans the
        batch after: the last one of a run is never said. ``mqfast.spark.listener`` is exact.
        """
        if self.options.commit_group is not None and self.options.path is not None:
            if self._group is None:
                self._group = GroupProgress(self.options.path, self.options.commit_group)
            self._group.commit(end)


def _bounds(snapshot: Snapshot) -> dict[Place, tuple[int, int]]:
    return {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in snapshot.queues}


def _load(path: str) -> Spark:
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
        except ValueError as error:
            raise ConfigError(f"option stateDir: {path} is damaged ({error}); remove it to begin anew") from None
    if set(found) != {"phy"}:
        return encode(decode(found))
    return encode_log(log_position(found))


def _save(path: str, offsets: Spark) -> None:
    """Durable on return, and never half."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = f"{path}.{uuid.uuid4().hex}.tmp"
    with open(temporary, "x", encoding="utf-8") as file:
        json.dump(offsets, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, path)
    fd = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
