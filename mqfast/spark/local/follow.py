"""Snapshots of a growing store, at the cost of the appended records.

A stream requests a snapshot at every trigger, and a store may have ten thousand queues of which few change. Only the
log is read, and the queues of the new records. All queues are listed again when a log file was removed, when the log
was replaced, and once a minute, which finds deleted topics. A queue counts as up to date only after dispatch of the
log's records. Imports neither Spark nor Arrow.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING, Final

from mqfast.spark.identity import log_marks
from mqfast.spark.offsets import Mark, Place
from mqfast.spark.plan import Queue, Snapshot
from mqfast.store.reader.scan import LogTally

if TYPE_CHECKING:
    from mqfast.spark.local.file_backend import FileBackend

__all__ = ["StoreTailer"]

_ALL_AGAIN_S: Final = 60.0
# One of this many parts of the time goes to undispatched records.
_BUSY: Final = 10.0
# Reading single queues costs more per queue than listing all.
_FEW: Final = 64
_SHARE: Final = 4


class StoreTailer:
    """Snapshots of a store, each derived from the previous. Thread: one."""

    def __init__(self, access: FileBackend) -> None:
        self._access: Final = access
        self._snapshot: Snapshot | None = None
        self._marks: tuple[Mark, ...] = ()
        self._queues: dict[Place, Queue] = {}
        self._at = 0  # every record below this physical offset is dispatched
        self._all_s = 0.0
        self._next_s = 0.0

    def refresh(self) -> Snapshot:
        """Return the present snapshot; the previous object if nothing has changed.

        Raises: StoreNotFound, StorageError.
        """
        before, now = self._snapshot, time.monotonic()
        starts = self._access.reader.list_log()
        again = before is None or now - self._all_s > _ALL_AGAIN_S or self._is_replaced()
        if again or before is None or (starts[0][0] if starts else 0) != before.log_start:
            return self._apply_appended(self._list_all(), just_now=True)
        return before if now < self._next_s else self._apply_appended(before)

    def _apply_appended(self, before: Snapshot, just_now: bool = False) -> Snapshot:
        """Return ``before`` with the appended records. ``just_now``: all queues were listed for ``before``."""
        now = time.monotonic()
        tally = LogTally()
        end = self._access.reader.whole_until(self._at, tally)
        if end == before.log_end and self._at == end:
            return before
        touched = tally.queues()
        if not just_now and len(touched) > max(_FEW, len(self._queues) // _SHARE):
            return self._apply_appended(self._list_all(), just_now=True)
        newest, at, changed = before.newest, end, end != before.log_end
        for (topic, queue_id), counted in touched.items():
            first, behind = counted[3], counted[4]
            queue_end = self._access.reader.queue_end(topic, queue_id)
            has = queue_end[1] if queue_end is not None else 0
            if has < behind:  # some records are not dispatched yet
                at = min(at, max(first, min(has, end)))
            if queue_end is not None:
                newest = max(newest, self._last(queue_end[0].max_offset, topic, queue_id))
                queue = Queue(*queue_end[0])
                changed |= self._queues.get((topic, queue_id)) != queue
                self._queues[topic, queue_id] = queue
        self._at, changed = at, changed or at != before.dispatched
        self._next_s = now + (time.monotonic() - now) * _BUSY if at < end else 0.0
        return self._keep(before, end, newest) if changed else before

    def _last(self, end: int, topic: str, queue_id: int) -> int:
        place = self._access.unit_place(topic, queue_id, end - 1)
        return -1 if place is None else place

    def _is_replaced(self) -> bool:
        """Return whether a known record, not removed by retention, has changed."""
        starts = self._access.reader.log_starts()
        begin = starts[0][0] if starts else 0
        return any(place >= begin and self._access.mark(place) != crc for place, crc in self._marks)

    def _list_all(self) -> Snapshot:
        if self._is_replaced():
            self._access.reopen()
        snapshot = self._access.snapshot()
        self._all_s, self._next_s = time.monotonic(), 0.0
        # A store without queues is read from the newest file on: queues may appear.
        self._at = (
            snapshot.dispatched if snapshot.newest >= 0 else max(self._access.file_start(snapshot.log_end - 1), 0)
        )
        self._queues = {(q.topic, q.queue_id): q for q in snapshot.queues}
        if (
            self._snapshot is not None
            and dataclasses.replace(snapshot, taken_ms=self._snapshot.taken_ms) == self._snapshot
        ):
            return self._snapshot
        self._snapshot, self._marks = snapshot, log_marks(snapshot, self._access)
        return snapshot

    def _keep(self, before: Snapshot, end: int, newest: int) -> Snapshot:
        keys = sorted(self._queues) if len(self._queues) != len(before.queues) else list(self._queues)
        self._queues = {key: self._queues[key] for key in keys}
        self._snapshot = dataclasses.replace(
            before, taken_ms=time.time_ns() // 1_000_000, log_end=end, queues=tuple(self._queues.values()),
            dispatched=self._at, newest=newest,
        )  # fmt: skip
        self._marks = log_marks(self._snapshot, self._access)
        return self._snapshot
