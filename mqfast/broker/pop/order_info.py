"""Orderly POP: the current batch of each queue and group, which blocks the queue until acked or due.

The state is in ``config/consumerOrderInfo.json``. After a crash a batch may be delivered again, since the
group's offset stays at the first message without ack. Source: ConsumerOrderInfoManager, QueueLevelConsumerManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final

from mqfast.broker.pop.receipt_handle import order_counts
from mqfast.store.meta.json_table import JsonTable

__all__ = ["ILLEGAL", "STALE", "OrderInfo", "OrderInfos"]

_log = logging.getLogger("mqfast.broker")
ILLEGAL, STALE = -1, -2
"""Outcomes of an ack instead of the next offset: an offset outside the batch; a batch that is not the current one."""
_UNUSED_MS: Final = 24 * 3600 * 1000
_COUNT_MAX: Final = 63


class OrderInfo:
    """The current batch of a queue and a group.

    Attributes: ``offsets``: of the messages; ``acked``: those with an ack; ``due``: a later due time by offset;
        ``counts``: earlier deliveries by offset, above 0; ``used_ms``: the time of the last POP.
    """

    __slots__ = ("acked", "attempt_id", "counts", "due", "invisible_ms", "offsets", "pop_time", "used_ms")

    def __init__(
        self, offsets: list[int], pop_time: int, invisible_ms: int, attempt_id: str | None, used_ms: int
    ) -> None:
        self.offsets = offsets
        self.pop_time = pop_time
        self.invisible_ms = invisible_ms
        self.attempt_id = attempt_id
        self.used_ms = used_ms
        self.acked: set[int] = set()
        self.due: dict[int, int] = {}
        self.counts: dict[int, int] = {}

    def blocked_until(self, now_ms: int, attempt_id: str | None) -> int | None:
        """Return the due time of the first message that blocks the queue; None: the queue is free."""
        if self.attempt_id is not None and self.attempt_id == attempt_id:
            return None
        for offset in self.offsets:
            if offset not in self.acked:
                due_ms = self.due.get(offset, self.pop_time + self.invisible_ms)
                if now_ms < due_ms:
                    return due_ms
        return None

    @property
    def next_offset(self) -> int:
        """Return the first offset without ack, or the offset after the batch."""
        for offset in self.offsets:
            if offset not in self.acked:
                return offset
        return self.offsets[-1] + 1

    def to_file(self) -> dict[str, Any]:
        """Return the entry of the file."""
        first, bits = self.offsets[0], 0
        for position, offset in enumerate(self.offsets):
            bits |= (offset in self.acked) << position
        entry: dict[str, Any] = {} if self.attempt_id is None else {"a": self.attempt_id}
        entry |= {"cm": bits, "i": self.invisible_ms, "l": self.used_ms}
        entry["o"] = [first, *(offset - first for offset in self.offsets[1:])]
        if self.counts:
            entry["oc"] = dict(self.counts)
        if self.due:
            entry["ot"] = dict(self.due)
        entry["popTime"] = self.pop_time
        return entry

    @classmethod
    def of_file(cls, entry: dict[Any, Any]) -> OrderInfo | None:
        """Parse an entry of the file; None for an entry without a batch."""
        listed = entry.get("o")
        if not isinstance(listed, list) or not listed or len(listed) > _COUNT_MAX:
            return None
        numbers = [entry.get(name) or 0 for name in ("popTime", "i", "l", "cm")]
        if any(type(number) is not int for number in [*numbers, *listed]):
            return None
        pop_time, invisible_ms, used_ms, bits = numbers
        attempt = entry.get("a")
        offsets = [listed[0], *(listed[0] + distance for distance in listed[1:])]
        info = cls(offsets, pop_time, invisible_ms, attempt if isinstance(attempt, str) else None, used_ms)
        info.acked = {offset for position, offset in enumerate(offsets) if bits >> position & 1}
        info.due = _numbers(entry.get("ot"))
        info.counts = _numbers(entry.get("oc"))
        return info


def _numbers(raw: object) -> dict[int, int]:
    if not isinstance(raw, dict):
        return {}
    return {int(key): value for key, value in raw.items() if str(key).isdigit() and type(value) is int}


class OrderInfos:
    """The batches of all queues and groups. Thread: that of the event loop."""

    def __init__(self, table: JsonTable, now_ms: Callable[[], int]) -> None:
        self._table: Final = table
        self._now_ms: Final = now_ms
        self._infos: dict[tuple[str, str], dict[int, OrderInfo]] = {}
        raw = table.root.get("table")
        for key, queues in raw.items() if isinstance(raw, dict) else ():
            topic, _, group = str(key).partition("@")
            for queue_id, entry in queues.items() if isinstance(queues, dict) else ():
                info = OrderInfo.of_file(entry) if isinstance(entry, dict) else None
                if info is not None and str(queue_id).isdigit():
                    self._infos.setdefault((topic, group), {})[int(queue_id)] = info

    def get(self, topic: str, group: str, queue_id: int) -> OrderInfo | None:
        """Return the batch of a queue; None without one."""
        return self._infos.get((topic, group), {}).get(queue_id)

    def blocked_until(self, topic: str, group: str, queue_id: int, attempt_id: str | None) -> int | None:
        """Return the time until which a queue is blocked for the attempt; None: free."""
        info = self.get(topic, group, queue_id)
        return None if info is None else info.blocked_until(self._now_ms(), attempt_id)

    def update(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offsets: list[int],
        pop_time: int,
        invisible_ms: int,
        attempt_id: str | None,
    ) -> tuple[dict[int, int], str]:
        """Replace the batch of a queue; return the earlier deliveries by offset, and the queue's ``orderCountInfo``."""
        info = OrderInfo(offsets, pop_time, invisible_ms, attempt_id, self._now_ms())
        before = self.get(topic, group, queue_id)
        if before is not None:
            if before.attempt_id is not None and before.attempt_id == attempt_id:
                info.counts = before.counts
            else:
                delivered = set(before.offsets)
                info.counts = {offset: before.counts.get(offset, 0) + 1 for offset in offsets if offset in delivered}
        self._infos.setdefault((topic, group), {})[queue_id] = info
        self._changed()
        return info.counts, order_counts(queue_id, info.counts, len(offsets))

    def ack(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, committed: int) -> int:
        """Note an ack; return the next offset of the group, ILLEGAL, or STALE.

        Without a batch, as after a fail-over, only an ack at ``committed``, the group's offset, counts. RocketMQ takes
        the offset after any ack, and the messages before that one are lost.
        """
        info = self.get(topic, group, queue_id)
        if info is None:
            return offset + 1 if offset == committed else STALE
        if info.pop_time != pop_time:
            return STALE
        if offset not in info.offsets:
            return ILLEGAL
        info.acked.add(offset)
        self._changed()
        return info.next_offset

    def set_due(self, topic: str, group: str, queue_id: int, offset: int, pop_time: int, due_ms: int) -> None:
        """Set another due time of a message; nothing for a batch that is not the current one."""
        info = self.get(topic, group, queue_id)
        if info is not None and info.pop_time == pop_time and offset in info.offsets:
            info.due[offset] = due_ms
            self._changed()

    def clear(self, topic: str, group: str, queue_id: int) -> None:
        """Forget the batch of a queue: the group's offset was reset."""
        if self._infos.get((topic, group), {}).pop(queue_id, None) is not None:
            self._changed()

    def forget_topic(self, topic: str) -> None:
        """Forget a deleted topic."""
        for key in [key for key in self._infos if key[0] == topic]:
            del self._infos[key]
            self._changed()

    def forget_all(self) -> None:
        """Forget all batches."""
        if self._infos:
            self._infos.clear()
            self._changed()

    def clean(self, has_queue: Callable[[str, str, int], bool]) -> None:
        """Forget queues that are gone or unused for a day. Args: has_queue: of a topic, a group and a queue id."""
        now_ms = self._now_ms()
        for (topic, group), queues in list(self._infos.items()):
            for queue_id, info in list(queues.items()):
                if not has_queue(topic, group, queue_id) or now_ms - info.used_ms > _UNUSED_MS:
                    del queues[queue_id]
                    self._changed()
            if not queues:
                del self._infos[topic, group]

    def counts(self) -> Iterator[tuple[str, str, int, int]]:
        """Yield topic, group, queue id and the messages in flight of that queue."""
        now_ms = self._now_ms()
        for (topic, group), queues in self._infos.items():
            for queue_id, info in queues.items():
                if info.blocked_until(now_ms, None) is not None:
                    yield topic, group, queue_id, len(info.offsets) - len(info.acked)

    def persistable(self) -> dict[str, Any]:
        """Return the content of the file."""
        table = {
            f"{topic}@{group}": {queue_id: info.to_file() for queue_id, info in queues.items()}
            for (topic, group), queues in self._infos.items()
        }
        return {"table": table}

    def _changed(self) -> None:
        self._is_changed = True

    def store(self) -> None:
        """Hand the content to the table of the file if anything changed; the broker persists the table."""
        if self._is_changed:
            self._is_changed = False
            self._table.changed(self.persistable())

    _is_changed = False
