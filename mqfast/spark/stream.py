"""The streaming source: first offset, end of the next batch, and partitions of a batch.

Spark keeps a ``StreamReader`` in a Python process beside the driver while a query runs; tasks get copies that only
read. Offsets are replayable: a batch is [start, end), and its rows follow from these two alone. In log order an offset
is a byte of the log; along queues an offset is a number for each queue (see ``offsets.py``). An end is always readable
and never before the start.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
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

from mqfast.errors import ConfigError
from mqfast.spark.backend import Backend, LogAccess, ReadSettings, log_of
from mqfast.spark.backends import open_backend
from mqfast.spark.identity import (
    Loss,
    anchor_of,
    log_marks,
    moved,
    numbered,
    refuse,
    resume_log,
    resume_queues,
    still_there,
)
from mqfast.spark.offsets import (
    Anchor,
    Lost,
    Offsets,
    Place,
    Spark,
    StreamOffset,
    advance,
    backlog,
    decode,
    encode,
    limit_bytes,
    limit_rows,
)
from mqfast.spark.options import Bound, Options
from mqfast.spark.partitions import ScanPartition, freeze_loaded, partitions_of, read_part, read_settings
from mqfast.spark.plan import OffsetRange, ScanRange, Selection, Snapshot, Split, plan, scan_pieces
from mqfast.spark.schema import VIEWS, Column
from mqfast.spark.selection import check_pattern, present, readable, selected_queues, starting_offsets, wants_queue
from mqfast.store.reader.gather import ANY_QUEUE
from mqfast.util.atomic_file import replace_file

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamReader", "reads_along_log"]

_COUNTED: Final = tuple(column for column in VIEWS["messages"] if column.name in ("physicalOffset", "msgSize"))
_EVERYTHING: Final = (0, (1 << 63) - 1)
_STATE: Final = "first-offsets.json"
# How long a stream over many queues without new messages waits for the log to grow: offsets of many queues are much
# JSON to exchange with Spark.
_WAIT_S_PER_QUEUE: Final = 20e-6
_MOST_WAIT_S: Final = 0.2
_POLL_S: Final = 0.005
_MOST_NAMES: Final = 5

_log = logging.getLogger("mqfast.spark")


def reads_along_log(options: Options) -> bool:
    """Return whether offsets of this stream are positions in the log; the options alone decide, so a restart agrees.

    Raises: ConfigError if the options require the log and a start that exists by queue only.
    """
    if options.namesrv is not None:
        return False
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
    """A stream over one store. Raises: ConfigError."""

    def __init__(self, options: Options, columns: tuple[Column, ...], *, one_of_many: bool = False) -> None:
        self.options: Final = options
        self._one_of_many: Final = one_of_many  # named topics may be in another store
        self.columns: Final = columns
        self.along_log: Final = reads_along_log(options)
        self._access: Backend | None = None
        self._snapshot: Snapshot | None = None
        self._first: Spark | None = None
        self._target: Snapshot | None = None
        self.share: tuple[int | None, int | None] | None = None
        """Row and byte limit of a batch, which replaces the options; for one of several stores."""
        self._checked = False  # all queues were compared with the offsets of an earlier run
        self._begins = False  # the batch being planned is the first; the end offset holds its start
        self._idle: tuple[Snapshot, Spark] | None = None  # the snapshot and start without new messages
        self._unread: list[Place] = []  # queues that a broker does not return, as logged
        self._last_batch = time.monotonic()

    # --- the store ---

    def _open(self) -> Backend:
        if self._access is None:
            self._access = open_backend(self.options)
        return self._access

    def _log(self) -> LogAccess:
        return log_of(self._open())

    def _refresh(self, *, wait: bool = True) -> Snapshot:
        self._snapshot = self._open().refresh(wait=wait)
        return self._snapshot

    def _known_snapshot(self) -> Snapshot:
        return self._snapshot or self._refresh()

    def stop(self) -> None:
        """Close the store, and release the lease of this stream."""
        if self._access is not None:
            self._access.close()
            self._access = self._snapshot = None

    # --- first offset ---

    def initialOffset(self) -> Spark:
        """Return the first offset of a new stream.

        Spark calls this twice in a start, and again until a batch has finished. So the offset is kept, under
        ``stateDir`` for another process as well.

        Raises: ConfigError, DataLoss, StorageError.
        """
        if self._first is None:
            directory = self.options.state_dir
            if directory is None:
                self._first = self._begin()
            elif os.path.exists(os.path.join(directory, _STATE)):
                self._first = _load(os.path.join(directory, _STATE), self.along_log)
            else:
                self._first = self._begin()
                _save(os.path.join(directory, _STATE), self._first)
        return self._first

    def _begin(self) -> Spark:
        access, snapshot = self._open(), self._refresh()
        options = present(snapshot, self.options) if self._one_of_many else self.options
        if not self._one_of_many:
            check_pattern(snapshot, options)
        queues = selected_queues(snapshot, options)
        if self.along_log:
            return self._log_offset(snapshot, self._first_position(self._log(), snapshot))
        first = starting_offsets(snapshot, queues, options, access, "latest")
        if options.starting_offsets is not None and options.starting_offsets.of_archive:
            first |= self._archived(options.starting_offsets, set(first), snapshot)
        read = snapshot.dispatched if all(first[q.topic, q.queue_id] == q.max_offset for q in queues) else -1
        return encode(StreamOffset(
            queues=first, read=read, marks=log_marks(snapshot, access),
            anchors=self._anchors(first, StreamOffset({}), snapshot),
        ))  # fmt: skip

    def _archived(self, bound: Bound, there: set[Place], snapshot: Snapshot) -> Offsets:
        """Return the ends in the archive of queues that the broker lacks now. Raises: DataLoss for deleted topics."""
        missing = {place: int(end) for place, end in (bound.by_queue or {}).items() if place not in there}
        kept = {place: end for place, end in missing.items() if place[0] in snapshot.topics or snapshot.may_lag}
        gone = sorted(missing.keys() - kept.keys())
        text = "queue {}/{}: the archive has it up to {}, and the queue is gone: was its topic deleted?"
        self._accept_losses([Loss(text.format(*place, missing[place])) for place in gone])
        return kept

    def joined(self, *, wait: bool) -> Spark:
        """Return the offset of a store that joins a stream: all messages are new. ``wait``: see Backend.refresh."""
        snapshot = self._snapshot or self._refresh(wait=wait)
        if self.along_log:
            return encode(StreamOffset(position=snapshot.log_start))
        return encode(StreamOffset(queues={}, read=snapshot.log_start))

    def _first_position(self, access: LogAccess, snapshot: Snapshot) -> int:
        bound, moment = self.options.starting_offsets, self.options.starting_timestamp
        if bound is not None and bound.back_ms is not None:
            moment = snapshot.taken_ms - bound.back_ms
        if moment is None:
            earliest = bound is not None and bound.word == "earliest"
            return snapshot.log_start if earliest else snapshot.log_end
        first = snapshot.log_end
        for q in snapshot.queues:  # all queues: store times grow along the log
            offset = access.offset_by_time(q.topic, q.queue_id, moment)
            if not q.is_light and q.min_offset <= offset < q.max_offset:
                first = min(first, access.physical_span([OffsetRange(q.topic, q.queue_id, offset, offset + 1)])[0])
        return first

    # --- end of a batch ---

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first of the limits in the options; latestOffset applies all of them."""
        o = self.options
        if o.max_offsets_per_trigger is not None:
            return ReadMaxRows(o.max_offsets_per_trigger)
        if o.max_bytes_per_trigger is not None:
            return ReadMaxBytes(o.max_bytes_per_trigger)
        if o.min_offsets_per_trigger is not None:
            return ReadMinRows(o.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the present end of the store."""
        self._target = self._refresh()

    @property
    def has_target(self) -> bool:
        """Return whether this run ends at the store's end of the run's start."""
        return self._target is not None

    def reportLatestOffset(self) -> Spark | None:
        """Return the end of the store, for the lag in the query's progress."""
        snapshot = self._known_snapshot()
        if self.along_log:
            return encode(StreamOffset(position=self._dispatched(snapshot)))
        return encode(StreamOffset(queues=self._ends(snapshot)))

    def latestOffset(self, start: Spark, limit: ReadLimit) -> Spark:
        """Return the end of the next batch; ``start`` if there is no new batch.

        Raises: DataLoss if messages after ``start`` are lost or the store is another one, unless failOnDataLoss=false.
        """
        snapshot = self._refresh(wait=False) if self._target is None else self._target
        if self._idle is not None and self._idle[0] is snapshot and self._idle[1] == start:
            if self._target is not None or not self._wait_for_growth(snapshot):
                return start
            snapshot = self._known_snapshot()
        offset = decode(start, along_log=self.along_log)
        self._begins = start == self._first
        end = self._log_end(offset, snapshot, limit) if self.along_log else self._queue_ends(offset, snapshot, limit)
        if end is None:
            idle = self.options.min_offsets_per_trigger is None
            self._idle = (snapshot, start) if idle else None
            return start
        self._last_batch = time.monotonic()
        return end

    def _wait_for_growth(self, snapshot: Snapshot) -> bool:
        """Wait for a change of the store, for a short time and with many queues only. Returns: whether the store
        changed.
        """
        until = time.monotonic() + min(len(snapshot.queues) * _WAIT_S_PER_QUEUE, _MOST_WAIT_S)
        while self._refresh(wait=False) is snapshot:
            if time.monotonic() + _POLL_S > until:
                return False
            time.sleep(_POLL_S)
        return True

    def _accept_losses(self, losses: Sequence[Loss]) -> None:
        """Log the losses. Raises: DataLoss, unless the options allow losses."""
        if self.options.fail_on_data_loss:
            refuse(losses)
        for loss in losses:
            _log.warning("%s; goes on with what is there", loss.what)

    def _ends(self, snapshot: Snapshot) -> Offsets:
        queues = readable(selected_queues(snapshot, present(snapshot, self.options)))
        return {(q.topic, q.queue_id): q.max_offset for q in queues}

    def _dispatched(self, snapshot: Snapshot) -> int:
        """Return the end of the log; for selected topics, the end of the records whose queues are known."""
        return snapshot.log_end if self._whole() else min(snapshot.log_end, snapshot.dispatched)

    def _whole(self) -> bool:
        o = self.options
        return o.subscribe is None and o.assign is None and o.subscribe_pattern is None

    def _waits(self, rows: int, limit: ReadLimit) -> bool:
        """Return whether to wait for more rows than these."""
        min_rows = limit.min_rows if isinstance(limit, ReadMinRows) else self.options.min_offsets_per_trigger
        if min_rows is None or self._target is not None or isinstance(limit, ReadAllAvailable):
            return False
        return rows < min_rows and (time.monotonic() - self._last_batch) * 1000 < self.options.max_trigger_delay

    def _limits(self, limit: ReadLimit) -> tuple[int | None, int | None]:
        """Return the row limit and the byte limit of a batch."""
        if self.share is not None:
            return self.share
        if isinstance(limit, ReadAllAvailable):
            return None, None
        rows, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        return (
            limit.max_rows if isinstance(limit, ReadMaxRows) else rows,
            limit.max_bytes if isinstance(limit, ReadMaxBytes) else size,
        )

    def _queue_ends(self, start: StreamOffset, snapshot: Snapshot, limit: ReadLimit) -> Spark | None:
        access = self._open()
        selected = readable(selected_queues(snapshot, present(snapshot, self.options)))
        o, every = self.options, not self._checked
        resumed = resume_queues(
            start, snapshot, selected, access, every=every, wanted=lambda place: wants_queue(o, *place),
            named=every and (o.subscribe is not None or o.assign is not None),
        )  # fmt: skip
        self._accept_losses(resumed.losses)
        self._log_unread(resumed.unread)
        self._checked = not resumed.losses  # if this batch is not planned, the losses are found again
        first = resumed.first
        ends = {(q.topic, q.queue_id): q.max_offset for q in selected}
        last = advance(first, ends)
        rows = backlog(first, last)
        if not resumed.losses and (rows == 0 or self._waits(rows, limit)):
            return None
        most_rows, most_bytes = self._limits(limit)
        if most_rows is not None:
            last = limit_rows(first, last, most_rows)
        if most_bytes is not None:
            last = limit_bytes(first, last, most_bytes, self._sizes)
        done = all(last[place] == end for place, end in ends.items())
        return encode(StreamOffset(
            queues=last, first=first if self._begins else moved(first, start),
            read=snapshot.dispatched if done else start.read,
            marks=log_marks(snapshot, access, before=() if resumed.losses else start.marks),
            anchors={
                **self._anchors(last, start, snapshot, anew=bool(resumed.losses)),
                **{place: start.anchors[place] for place in resumed.gone},
            },
            lost=numbered(resumed.losses, start.lost), gone=resumed.gone,
        ))  # fmt: skip

    def _log_unread(self, places: list[Place]) -> None:
        """Log queues that the broker does not return, after each change of this set."""
        if places and places != self._unread:
            names = ", ".join(f"{topic}/{queue_id}" for topic, queue_id in places[:_MOST_NAMES])
            more = f" and {len(places) - _MOST_NAMES} more" if len(places) > _MOST_NAMES else ""
            _log.warning(
                "%s: queues %s%s are not read now: their topics have fewer queues for reading, or no permission to "
                "read; the stream keeps their offsets", self._known_snapshot().root, names, more,
            )  # fmt: skip
        self._unread = places

    def _anchors(
        self, offsets: Offsets, before: StreamOffset, snapshot: Snapshot, *, anew: bool = False
    ) -> dict[Place, Anchor]:
        """Return an anchor message for each queue; unread and unchanged queues keep the previous anchor.

        Args: anew: unchanged queues may be other queues now.
        """
        there = {(q.topic, q.queue_id): q.max_offset > q.min_offset for q in readable(snapshot.queues)}
        anchors: dict[Place, Anchor] = {}
        assert before.queues is not None
        for place, at in offsets.items():
            anchor = before.anchors.get(place)
            stays = anchor is not None and before.queues.get(place) == at and not anew
            if not stays and place in there and wants_queue(self.options, *place):
                anchor = anchor_of(place, at, self._open()) if there[place] else None
            if anchor is not None:
                anchors[place] = anchor
        return anchors

    def _sizes(self, place: Place, first: int, last: int) -> Sequence[int]:
        sizes = self._open().unit_sizes(OffsetRange(*place, first, last))
        if len(sizes) < last - first:  # units of a batch queue hold several messages
            return [sum(sizes) // (last - first)] * (last - first)
        return sizes

    def _log_end(self, start: StreamOffset, snapshot: Snapshot, limit: ReadLimit) -> Spark | None:
        first, losses = resume_log(start, snapshot, self._log())
        self._accept_losses(losses)
        last = self._dispatched(snapshot)
        if last <= first:  # the queues of the last records may not be written yet
            return self._log_offset(snapshot, first, first, start, losses) if losses else None
        most_rows, most_bytes = self._limits(limit)
        if most_bytes is not None and first + most_bytes < last:
            last = self._log().boundary(first + most_bytes, last)
        min_rows = self.options.min_offsets_per_trigger
        if (
            not losses
            and min_rows is not None
            and self._waits(0, limit)
            and self._cut_at_rows(first, last, min_rows) is None
        ):
            return None
        if most_rows is not None:
            cut = self._cut_at_rows(first, last, most_rows)
            if cut is not None:
                last = self._log().boundary(cut, last)
        return self._log_offset(snapshot, last, first, start, losses)

    def _log_offset(
        self,
        snapshot: Snapshot,
        position: int,
        first: int | None = None,
        start: StreamOffset | None = None,
        losses: Sequence[Loss] = (),
    ) -> Spark:
        moved = start is not None and (self._begins or start.position != first)
        lost = numbered(losses, start.lost) if start is not None else Lost()
        return encode(StreamOffset(
            position=position, first_position=first if moved else None, topics=self._topics(snapshot, start), lost=lost,
            marks=log_marks(snapshot, self._open(), position, () if losses or start is None else start.marks),
        ))  # fmt: skip

    def _topics(self, snapshot: Snapshot, *known: StreamOffset | None) -> tuple[str, ...]:
        """Return the topics that a pattern has matched so far: messages of deleted topics are still in the log."""
        if self.options.subscribe_pattern is None:
            return ()
        topics = {q.topic for q in selected_queues(snapshot, self.options)}
        return tuple(sorted(topics.union(*(offset.topics for offset in known if offset is not None))))

    def _cut_at_rows(self, first: int, last: int, rows: int) -> int | None:
        """Return the physical offset after the given number of rows of [first, last); None for fewer rows."""
        start = max(first, self._known_snapshot().log_start)
        settings = dataclasses.replace(self._wanted(), fail_on_data_loss=False)
        for batch in self._log().scan(ScanRange(start, last), _COUNTED, settings):
            if batch.num_rows >= rows:
                return int(batch.column(0)[rows - 1].as_py() + batch.column(1)[rows - 1].as_py())
            rows -= batch.num_rows
        return None

    def count(self, start: Spark, end: Spark, limit: int) -> int:
        """Return the number of messages between two offsets, at most ``limit``."""
        since, until = (decode(spark, along_log=self.along_log) for spark in (start, end))
        if since.queues is not None and until.queues is not None:
            return min(limit, backlog({**since.queues, **until.first}, until.queues))
        assert since.position is not None
        assert until.position is not None
        first = since.position if until.first_position is None else until.first_position
        rows = 0
        settings = dataclasses.replace(self._wanted(since, until), fail_on_data_loss=False)
        for batch in self._log().scan(ScanRange(first, max(first, until.position)), _COUNTED, settings):
            rows += batch.num_rows
            if rows >= limit:
                return limit
        return rows

    # --- partitions of a batch ---

    def _wanted(self, *known: StreamOffset) -> ReadSettings:
        """Return the settings of reads along the log."""
        o, settings = self.options, read_settings(self.options, Selection((), whole=True))
        if o.assign is not None:
            return dataclasses.replace(settings, queues=dict.fromkeys(o.assign, _EVERYTHING))
        if self._whole():
            return settings
        topics = self._topics(self._known_snapshot(), *known) if o.subscribe is None else o.subscribe
        return dataclasses.replace(settings, queues={(topic, ANY_QUEUE): _EVERYTHING for topic in topics})

    def partitions(self, start: Spark, end: Spark) -> list[InputPartition]:
        """Return the partitions of a batch; the same for the same offsets, as long as the store has the messages.

        Raises: DataLoss.
        """
        since, until = (decode(spark, along_log=self.along_log) for spark in (start, end))
        if since == until:
            return []
        snapshot = self._refresh()
        pieces = self._log_pieces(since, until) if self.along_log else self._queue_pieces(since, until)
        if not pieces:
            return []
        lease = self._open().keep(pieces, self.options.lease_ttl)
        settings = self._wanted(since, until) if self.along_log else read_settings(self.options, Selection(()))
        parts = partitions_of(self.options, self.columns, snapshot, pieces, settings)
        for part in parts:
            part.lease, part.may_be_gone = lease, not self.options.fail_on_data_loss
        return list(parts)

    def _log_pieces(self, start: StreamOffset, end: StreamOffset) -> list[Split]:
        access, snapshot, o = self._log(), self._known_snapshot(), self.options
        assert start.position is not None
        assert end.position is not None
        first = start.position if end.first_position is None else end.first_position
        last = end.position
        if first >= last:
            return []
        wanted = first
        self._accept_losses(still_there(end, snapshot, access, ()))
        first = self._clamp_start("physical offsets", first, last, snapshot.log_start)
        last = self._clamp_end("physical offsets", first, last, snapshot.log_end)
        if first == snapshot.log_start != wanted:
            first = access.boundary(first, last)
        if first >= last:
            return []
        parts = max(1, round((last - first) / o.partition_bytes), o.min_partitions or 1)
        return [Split(scan=piece) for piece in scan_pieces(first, last, min(parts, o.max_partitions or parts), access)]

    def _queue_pieces(self, start: StreamOffset, end: StreamOffset) -> list[Split]:
        access, o, snapshot = self._open(), self.options, self._known_snapshot()
        assert start.queues is not None
        assert end.queues is not None
        bounds = {(q.topic, q.queue_id): (q.min_offset, q.max_offset) for q in snapshot.queues}
        wanted: dict[Place, tuple[int, int]] = {}
        for place, until in end.queues.items():
            born = 0 if end.version > 1 else bounds.get(place, (0, 0))[0]
            since = end.first.get(place, start.queues.get(place, born))
            if since < until:
                wanted[place] = (since, until)
        if wanted:
            self._accept_losses(still_there(end, snapshot, access, wanted))
        ranges = []
        for place, (since, until) in wanted.items():
            unknown = place[0] in snapshot.topics or not wants_queue(o, *place)
            if place not in bounds and access.log is None and unknown:
                ranges.append(
                    OffsetRange(*place, since, until)
                )  # missing in the broker's answer: the task pulls from the broker
                continue
            what = f"offsets of queue {place[0]}/{place[1]}"
            low, high = bounds.get(place, (0, 0))
            since = self._clamp_start(what, since, until, low)
            until = self._clamp_end(what, since, until, high)
            if since < until:
                ranges.append(OffsetRange(*place, since, until))
        return plan(
            snapshot, Selection(tuple(ranges)), access.log, order="queue", partition_bytes=o.partition_bytes,
            min_partitions=o.min_partitions, max_partitions=o.max_partitions,
        )  # fmt: skip

    def _clamp_start(self, what: str, first: int, last: int, store_start: int) -> int:
        """Return where [first, last) begins after retention."""
        if first < store_start and self._known_snapshot().may_lag:
            return first  # the tasks wait for the master
        if first < store_start:
            self._accept_losses(
                [Loss(f"{what}: the stream wants {first} to {last}, and the store begins at {store_start}")]
            )
        return max(first, min(store_start, last))

    def _clamp_end(self, what: str, first: int, last: int, store_end: int) -> int:
        """Return where [first, last) ends in the present store."""
        if last > store_end and self._known_snapshot().may_lag:
            return last  # the tasks wait for the master
        if last > store_end:
            self._accept_losses(
                [Loss(f"{what}: the stream wants {first} to {last}, and the store ends at {store_end}")]
            )
        return max(first, min(last, store_end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in Arrow batches."""
        freeze_loaded()
        if isinstance(partition, ScanPartition):
            yield from read_part(partition)

    # --- committed offsets ---

    def commit(self, end: Spark) -> None:
        """Commit ``end`` as the offsets of ``commitGroup``.

        Spark calls this while planning the next batch, so the last batch of a run is never committed.
        ``mqfast.spark.listener`` commits every batch.
        """
        if self.options.commit_group is not None:
            self._open().commit_group(self.options.commit_group, end)


def _load(path: str, along_log: bool) -> Spark:
    with open(path, encoding="utf-8") as file:
        try:
            offsets: Spark = json.load(file)
            decode(offsets, along_log=along_log)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"option stateDir: {path} is damaged ({error}); remove it to begin anew") from None
    return offsets


def _save(path: str, offsets: Spark) -> None:
    """Write the offsets atomically; durable on return."""
    replace_file(path, json.dumps(offsets).encode(), mode=None)
