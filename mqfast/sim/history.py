"""The history of a run: a hash of all events, the last events of each machine, sends and deliveries.

The hash has times, machines and sizes, but no contents: contents have process ids. Runs of a seed agree in the hash.
"""

from __future__ import annotations

import itertools
import logging
import math
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from mqfast.sim.process import PROCESS, Process

if TYPE_CHECKING:
    from mqfast.sim.loop import SimLoop

__all__ = ["POP_MARGIN_S", "Broken", "Delivery", "History", "Place", "Pop", "Sent"]

_KEPT: Final = 60


class Broken(AssertionError):
    """A promise does not hold. ``name``: of the invariant."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name


class Place(NamedTuple):
    """Where a message was stored: broker name, topic, queue, queue offset."""

    broker: str
    topic: str
    queue_id: int
    offset: int


class Sent(NamedTuple):
    """A send with the answer. ``is_promised``: the answer was SEND_OK."""

    at_s: float
    topic: str
    body: bytes
    place: Place
    is_promised: bool


class Delivery(NamedTuple):
    """A message given to a handler. ``topic``: of the subscription; ``broker``, ``queue_topic``, ``queue_id``: the
    queue of the pull, for a retried message of the retry topic.
    """

    at_s: float
    group: str
    member: str
    topic: str
    broker: str
    queue_topic: str
    queue_id: int
    offset: int
    body: bytes


LOCK_HELD_S: Final = 19.0
"""How long a member that has lost a queue waits for a handler before the lock is released."""
POP_MARGIN_S: Final = 1.5
"""What clocks of different rates, and whole seconds, add to an invisible time."""


@dataclass
class Pop:
    """A message given to a simple consumer.

    Attributes: ``begin_s``, ``got_s``: begin and end of the request; ``hidden_until_s``: until when no other consumer
    gets the message, by all answers; infinite behind an ack in time; ``visible_s``: the earliest of all such times;
    ``is_given_back``: whether an ack was tried; ``is_orderly``: whether messages come in order.
    """

    group: str
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    begin_s: float
    got_s: float
    hidden_until_s: float
    visible_s: float
    is_orderly: bool
    is_acked: bool = False
    is_given_back: bool = False

    def changed(self, until_s: float, *, is_answered: bool) -> None:
        """Note a new end of the invisible time."""
        self.hidden_until_s = until_s if is_answered else min(self.hidden_until_s, until_s)
        self.visible_s = min(self.visible_s, until_s)

    def acked(self, now_s: float) -> None:
        """Note an ack that the broker has answered with success."""
        if now_s < self.hidden_until_s - POP_MARGIN_S:
            self.hidden_until_s = math.inf
            self.is_acked = True

    def hides(self, other: Pop) -> bool:
        """Return whether the other delivery of the message came while this one, an earlier one, hides the message."""
        if self.is_orderly and self.is_given_back:  # the batch comes again as a whole, if a message of it has no ack
            return False
        if other.is_orderly and other.is_given_back and other.got_s <= self.got_s:
            return False
        can_be_before = self.got_s >= other.visible_s - POP_MARGIN_S
        return other.got_s < self.hidden_until_s - POP_MARGIN_S and not can_be_before


class OrderlyHandlers:
    """The handlers of orderly consumers. A queue has one handler at a time, and a message comes behind the success of
    all messages before.

    Attributes: ``broken``: the first broken promise.
    """

    def __init__(self) -> None:
        self.broken: Broken | None = None
        self._next: Final[dict[tuple[str, str, str, int], int]] = {}
        self._running: Final[dict[tuple[str, str, str, int], tuple[Delivery, int]]] = {}

    def begin(self, delivery: Delivery, ends: int) -> None:
        """Note the begin of a handler. Args: ends: processes that have ended so far; locks end with a broker."""
        queue = _queue(delivery)
        expected = self._next.setdefault(queue, delivery.offset)
        if delivery.offset > expected:
            self._break("in order", f"{delivery} came before a success of offset {expected}")
        other, ends_then = self._running.get(queue, (delivery, ends))
        if other is not delivery and ends_then == ends and delivery.at_s - other.at_s < LOCK_HELD_S:
            self._break("one owner of a queue", f"{delivery} came during the handler of {other}")
        self._running[queue] = delivery, ends

    def end(self, delivery: Delivery, *, is_success: bool) -> None:
        """Note the end of a handler."""
        queue = _queue(delivery)
        if is_success and self._next[queue] == delivery.offset:
            self._next[queue] += 1
        if queue in self._running and self._running[queue][0] is delivery:
            del self._running[queue]

    def _break(self, name: str, text: str) -> None:
        self.broken = self.broken or Broken(name, text)


def _queue(delivery: Delivery) -> tuple[str, str, str, int]:
    return delivery.group, delivery.broker, delivery.queue_topic, delivery.queue_id


class History(logging.Handler):
    """All that happened.

    Args: base: the directory of all disks, whose name differs in each run.
    Attributes: ``attempts``: bodies that a producer tried to send, by topic; ``sent``: answered sends; ``deliveries``:
    of handlers that returned success; ``begun``, ``ended``: of all handlers; ``pops``: of simple consumers;
    ``kills_s``: ends of servers without a stop; ``ends``: number of processes that have ended; ``expected``: (topic,
    body) that will be visible later; ``withdrawn``: bodies that never are; ``due_s``: earliest delivery of a body;
    ``once``: bodies that are stored once at most; ``orderly``: handlers of orderly consumers; ``deliveries_max``:
    deliveries of a group before a message is a dead letter; ``hash``: of all events.
    """

    def __init__(self, base: str) -> None:
        super().__init__(logging.INFO)
        self._base: Final = base
        self.loop: SimLoop | None = None
        self.attempts: Final[dict[str, set[bytes]]] = {}
        self.withdrawn: Final[set[bytes]] = set()
        self.expected: Final[list[tuple[str, bytes]]] = []
        self.due_s: Final[dict[bytes, float]] = {}
        self.once: Final[set[bytes]] = set()
        self.orderly: Final = OrderlyHandlers()
        self.deliveries_max: Final[dict[str, int]] = {}
        self.sent: Final[list[Sent]] = []
        self.deliveries: Final[list[Delivery]] = []
        self.begun: Final[list[Delivery]] = []
        self.ended: Final[list[Delivery]] = []
        self.pops: Final[list[Pop]] = []
        self.kills_s: Final[list[float]] = []
        self.ends = 0
        self.has_clock_jumped = False
        self.hash = 0
        self.events = 0
        self._last: Final[dict[str, deque[str]]] = {}
        self._trace: list[str] | None = None

    @property
    def now_s(self) -> float:
        """Return the virtual time."""
        return 0.0 if self.loop is None else self.loop.now_s

    def trace(self) -> list[str]:
        """Keep all events from now on. Returns: the list that grows."""
        self._trace = []
        return self._trace

    def note(self, process: Process | None, kind: str, text: str) -> None:
        """Note an event."""
        name = "-" if process is None else process.name
        line = f"{self.now_s:.6f} {name} {kind} {text}"
        self.hash = zlib.crc32(line.encode(), self.hash)
        self.events += 1
        if self._trace is not None:
            self._trace.append(line)
        if kind != "data":
            self._keep(name, f"{self.now_s:10.3f} {kind} {text}")

    def _keep(self, name: str, line: str) -> None:
        lines = self._last.get(name)
        if lines is None:
            lines = self._last[name] = deque(maxlen=_KEPT)
        lines.append(line)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line of the product's log with the machine; the hash leaves the line out."""
        process = PROCESS.get()
        if process is not None:
            text = record.getMessage().replace(self._base, "")
            self._keep(process.name, f"{self.now_s:10.3f} log {text}")
            if record.exc_info and record.exc_info[1] is not None:
                self._keep(process.name, f"{self.now_s:10.3f} log {record.exc_info[1]!r}")

    def last(self, count: int = 12) -> str:
        """Return the last events of each machine as text."""
        parts = []
        for name, lines in sorted(self._last.items()):
            parts.append(f"-- {name}")
            parts += [f"   {line}" for line in list(lines)[-count:]]
        return "\n".join(parts)

    # -- messages ------------------------------------------------------------------------------------------------------

    def attempt(self, topic: str, body: bytes) -> None:
        """Note that a producer begins to send a message."""
        self.attempts.setdefault(topic, set()).add(body)

    def answered(self, topic: str, body: bytes, place: Place, is_promised: bool) -> None:
        """Note the answer of a send."""
        self.sent.append(Sent(self.now_s, topic, body, place, is_promised))
        self.note(PROCESS.get(), "sent", f"{place} {is_promised}")

    def check_pop_order(self) -> None:
        """Check orderly deliveries: the messages of a queue in order, each behind an ack of the one before.

        Raises: Broken.
        """
        acked: dict[tuple[str, str, int], set[int]] = {}
        for _, batch in itertools.groupby(self.pops, key=lambda pop: (pop.begin_s, pop.got_s, pop.queue_id)):
            pops = list(batch)
            done = acked.setdefault((pops[0].group, pops[0].topic, pops[0].queue_id), set())
            begin = pops[0].queue_offset
            missing = [offset for offset in range(begin) if offset not in done]
            if missing:
                raise Broken("in order", f"{pops[0]} came before an ack of {missing[0]}")
            for number, pop in enumerate(pops):
                if pop.queue_offset != begin + number:
                    raise Broken("in order", f"expected offset {begin + number}, found {pop}")
                if pop.is_given_back:
                    done.add(pop.queue_offset)

    @property
    def promised(self) -> list[Sent]:
        """Return the sends with the answer SEND_OK."""
        return [sent for sent in self.sent if sent.is_promised]
