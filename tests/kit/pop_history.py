"""The history of POP consumers through kills of the broker, and the check of what no order of events permits.

Rules for each message of each group: delivered until an answer ends the message; after that answer never again, unless
the group's offset of the message was not on the disk at a kill; not before the invisible time is over; in order for an
orderly group. Nothing here knows a broker: events come from the clients, offsets from the file of the killed broker.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

__all__ = ["Delivery", "History"]

Queue = tuple[int, int]


@dataclass(eq=False)
class Delivery:
    """A message in an answer. Times are those of ``time.monotonic``, except ``popped_ms`` and ``due_ms``.

    Attributes: ``asked``, ``came``: when the call began and the answer came; ``queue``: kind of the topic and queue id;
        ``together``: the messages of the same answer; ``ends``: when the client began to end the message; ``ended``:
        when the answer to that came; ``due_ms``: None: the client has asked for another time, and there is no answer.
    """

    body: str
    asked: float
    came: float
    life: int
    popped_ms: int
    due_ms: int | None
    queue: Queue
    offset: int
    together: frozenset[str] = frozenset()
    ends: float | None = None
    ended: float | None = None

    @classmethod
    def of(cls, body: str, handle: str, times: tuple[float, float], life: int, together: frozenset[str]) -> Delivery:
        """Return the delivery of a message with this handle. Args: times: begin of the call, and its answer."""
        fields = handle.split(" ")
        popped_ms, invisible_ms, kind, queue_id, offset = (int(fields[place]) for place in (1, 2, 4, 6, 7))
        return cls(body, *times, life, popped_ms, popped_ms + invisible_ms, (kind, queue_id), offset, together)


@dataclass
class _Group:
    deliveries: list[Delivery] = field(default_factory=list)
    lost_calls: list[tuple[float, float]] = field(default_factory=list)


class History:
    """Events of all clients. Args: orderly: groups whose messages have an order, by the number behind their last ``-``.

    Thread: any.
    """

    def __init__(self, groups: dict[str, str], orderly: frozenset[str] = frozenset()) -> None:
        self.topic_of = groups
        self.orderly = orderly
        self.life = 0
        self.events = 0
        self.sent: dict[str, dict[str, float]] = {topic: {} for topic in groups.values()}
        self.unanswered: dict[str, dict[str, float]] = {topic: {} for topic in groups.values()}
        self.changed = threading.Condition()
        self._groups = {group: _Group() for group in groups}
        self._offsets: list[dict[str, dict[Queue, int]]] = []

    # --- events ---

    def note_send(self, topic: str, body: str, asked: float, *, is_answered: bool) -> None:
        """Note a send."""
        with self.changed:
            (self.sent if is_answered else self.unanswered)[topic][body] = asked
            self._changed()

    def note_delivery(self, group: str, *deliveries: Delivery) -> None:
        """Note the messages of an answer."""
        with self.changed:
            self._groups[group].deliveries += deliveries
            self._changed()

    def note_lost(self, group: str, asked: float, ended: float) -> None:
        """Note a call whose answer the client did not get: messages may be in flight that nobody knows."""
        with self.changed:
            self._groups[group].lost_calls.append((asked, ended))
            self._changed()

    def note_end(self, delivery: Delivery, at: float) -> None:
        """Note the answer that ended a message."""
        with self.changed:
            delivery.ended = at
            self._changed()

    def note_kill(self, offsets: dict[str, dict[Queue, int]]) -> None:
        """Note a kill. Args: offsets: of each group by queue, as the disk has them."""
        with self.changed:
            self.life += 1
            self._offsets.append(offsets)
            self._changed()

    def _changed(self) -> None:
        self.events += 1
        self.changed.notify_all()

    def deliveries(self, group: str) -> list[Delivery]:
        """Return the deliveries so far, in the order of their answers."""
        with self.changed:
            return list(self._groups[group].deliveries)

    def open_messages(self, group: str) -> set[str]:
        """Return the messages that are stored, and not known to be ended."""
        with self.changed:
            deliveries = self._groups[group].deliveries
            known = {*self.sent[self.topic_of[group]], *(delivery.body for delivery in deliveries)}
            return known - {delivery.body for delivery in deliveries if delivery.ends is not None}

    # --- the check ---

    def faults(self) -> list[str]:
        """Return what is wrong, at the end of the history."""
        return [fault for group in self._groups for fault in self._faults(group)]

    def _faults(self, group: str) -> Iterator[str]:
        known = self.sent[self.topic_of[group]]
        for body in sorted(self.open_messages(group)):
            yield f"{group}: lost: {body}"
        earlier: dict[str, list[Delivery]] = {}
        for delivery in sorted(self._groups[group].deliveries, key=lambda one: one.popped_ms):
            before = earlier.setdefault(delivery.body, [])
            if before and self._is_repeated(group, before, delivery):
                yield f"{group}: ended, and delivered again: {before} {delivery}"
            if before and self._is_early(group, before, delivery):
                yield f"{group}: delivered before its time: {before[-1]} {delivery}"
            if group in self.orderly and (missing := self._skipped(known, earlier, delivery)):
                yield f"{group}: delivered before {missing}: {delivery}"
            before.append(delivery)

    def _is_repeated(self, group: str, before: list[Delivery], delivery: Delivery) -> bool:
        """Return True if the message was ended, and neither a kill nor an unknown delivery explains another one."""
        still_open = [one for one in before if one.ended is None or one.ended >= delivery.asked]
        if before[-1] in still_open or any(one.life != delivery.life for one in still_open):
            return False
        if self._may_be_unseen(group, delivery.body, before) or self._is_forgotten(group, before, delivery):
            return False
        return group not in self.orderly or not self._is_behind_open(group, delivery)

    def _may_be_unseen(self, group: str, body: str, before: list[Delivery]) -> bool:
        """Return True if a lost answer may have had the message."""
        sent = self.sent[self.topic_of[group]].get(body, 0.0)
        ended = min((one.ended for one in before if one.ended is not None), default=float("inf"))
        return any(asked < ended and sent < until for asked, until in self._groups[group].lost_calls)

    def _is_forgotten(self, group: str, before: list[Delivery], delivery: Delivery) -> bool:
        """Return True if the disk had an offset before the message at a kill since the first delivery."""
        return any(
            self._offsets[life].get(group, {}).get(one.queue, 0) <= one.offset
            for one in before
            for life in range(one.life, delivery.life)
        )

    def _is_behind_open(self, group: str, delivery: Delivery) -> bool:
        """Return True if an earlier message of the queue is open: a batch begins with it, ended messages included."""
        ended = {
            one.offset for one in self._groups[group].deliveries
            if one.queue == delivery.queue and one.ended is not None and one.ended < delivery.asked
        }  # fmt: skip
        return any(
            one.queue == delivery.queue and one.offset < delivery.offset and one.offset not in ended
            for one in self._groups[group].deliveries
        )

    def _is_early(self, group: str, before: list[Delivery], delivery: Delivery) -> bool:
        """Return True if the last delivery of this life was still in force."""
        last = before[-1]
        if last.due_ms is None or last.ended is not None or last.life != delivery.life or group in self.orderly:
            return False
        if len(before) > 1 or self._may_be_unseen(group, delivery.body, before):
            return False  # there may be two copies
        return delivery.popped_ms < last.due_ms

    def _skipped(self, known: dict[str, float], earlier: dict[str, list[Delivery]], delivery: Delivery) -> list[str]:
        """Return messages that an orderly group should have ended before this one."""
        prefix, _, number = delivery.body.rpartition("-")
        return [
            body
            for place in range(int(number))
            if (body := f"{prefix}-{place}") in known
            and body not in delivery.together
            and not any(one.ends is not None and one.ends < delivery.came for one in earlier.get(body, ()))
        ]

    def counts(self) -> dict[str, Counter[str]]:
        """Return figures of each group, for the report of a run."""
        figures = {}
        for name, group in self._groups.items():
            bodies = Counter(one.body for one in group.deliveries)
            figures[name] = Counter(
                messages=len(bodies), deliveries=len(group.deliveries), repeated=sum(n > 1 for n in bodies.values()),
                lost_calls=len(group.lost_calls), ended=sum(one.ended is not None for one in group.deliveries),
                without_answer=sum(one.ends is not None and one.ended is None for one in group.deliveries),
            )  # fmt: skip
        return figures
