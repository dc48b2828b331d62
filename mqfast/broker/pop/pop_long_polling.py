"""Long polling of POP: requests without a message wait for an arrival in any queue that the request reads.

A group watches each queue once, however many requests wait. An arrival wakes the request that has waited longest, of
each filter; a request that leaves messages behind wakes the next. So no message waits beside a held request, and no
arrival wakes all. Source: PopLongPollingService.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from mqfast.broker.pull.long_polling import HeldPull, LongPolling

__all__ = ["PopLongPolling", "QueueToWatch", "Waiter"]


class QueueToWatch(NamedTuple):
    """A queue that a group reads, and the offset of its next message."""

    topic: str
    queue_id: int
    offset: int


_Kind = tuple[int, bool, str]


class Waiter:
    """A request that waits.

    Args: queue_id: -1 for any; is_orderly: the request reads no retry topic.
    Attributes: ``key``: topic and group; ``kind``: requests of the same kind find the same messages; ``woken``: done
        when the request tries again: True, or False at the end of the wait.
    """

    __slots__ = ("due_s", "key", "kind", "timer", "woken")

    def __init__(
        self, key: tuple[str, str], queue_id: int, filter_text: str, due_s: float, *, is_orderly: bool = False
    ) -> None:
        self.key = key
        self.kind: _Kind = queue_id, is_orderly, filter_text
        self.due_s = due_s
        self.woken: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.timer: asyncio.TimerHandle | None = None


class _Held:
    """The waiting requests of a topic and a group, oldest first in each kind, and the watches of the queues."""

    __slots__ = ("kinds", "watches")

    def __init__(self) -> None:
        self.kinds: dict[_Kind, dict[Waiter, None]] = {}
        self.watches: dict[tuple[str, int], HeldPull] = {}


class PopLongPolling:
    """All waiting POP requests.

    Args: queues: returns the queues to watch for a topic, a group, a queue id and True for orderly requests; blocked
        queues are left out, and are announced by ``wake_group``.
    Thread: that of the event loop.
    """

    def __init__(
        self, long_polling: LongPolling, queues: Callable[[str, str, int, bool], Iterable[QueueToWatch]]
    ) -> None:
        self._long_polling: Final = long_polling
        self._queues: Final = queues
        self._loop = asyncio.get_running_loop()
        self._held: dict[tuple[str, str], _Held] = {}
        self._later: dict[tuple[str, str], tuple[float, asyncio.TimerHandle]] = {}
        self._ahead_s = 0.0
        self._count = 0
        self.is_stopped = False

    def __len__(self) -> int:
        return self._count

    def count(self, topic: str, group: str) -> int:
        """Return the number of waiting requests of a topic and a group."""
        held = self._held.get((topic, group))
        return 0 if held is None else sum(map(len, held.kinds.values()))

    def due_in(self, wait_ms: int) -> float:
        """Return the end of a wait that begins now, for ``Waiter``."""
        return self._loop.time() + self._ahead_s + wait_ms / 1000

    async def wait(self, waiter: Waiter) -> bool:
        """Wait until the request may find messages. Returns: False at the end of the wait, or when the broker stops."""
        remaining_s = waiter.due_s - self._loop.time() - self._ahead_s
        if self.is_stopped or remaining_s <= 0:
            return False
        waiter.woken = self._loop.create_future()
        waiter.timer = self._loop.call_later(remaining_s, self._end, waiter)
        held = self._held.setdefault(waiter.key, _Held())
        held.kinds.setdefault(waiter.kind, {})[waiter] = None
        self._count += 1
        self._watch(waiter.key, *waiter.kind[:2])
        try:
            return await waiter.woken
        except asyncio.CancelledError:
            if waiter.woken.done() and not waiter.woken.cancelled() and waiter.woken.result():
                self._loop.call_soon(self.wake_group, *waiter.key)  # another request gets the messages
            raise
        finally:
            self._remove(waiter)

    def _watch(self, key: tuple[str, str], queue_id: int, is_orderly: bool) -> None:
        held = self._held.get(key)
        if held is None:
            return
        for topic, number, offset in self._queues(*key, queue_id, is_orderly):
            queue = topic, number
            watch = held.watches.get(queue)
            if watch is None or watch.is_over:
                held.watches[queue] = self._long_polling.watch(queue, offset, partial(self._arrived, key, queue))

    def _arrived(self, key: tuple[str, str], queue: tuple[str, int]) -> None:
        held = self._held.get(key)
        if held is not None:
            held.watches.pop(queue, None)
            self._wake_first(held, queue[1] if queue[0] == key[0] else -1)

    def _wake_first(self, held: _Held, queue_id: int) -> None:
        for (wanted, _, _), waiters in held.kinds.items():
            if wanted < 0 or queue_id < 0 or wanted == queue_id:
                for waiter in waiters:
                    if not waiter.woken.done():
                        waiter.woken.set_result(True)
                        break

    def wake_group(self, topic: str, group: str) -> None:
        """Wake the oldest request of each kind: a blocked queue of the group is free, or messages were left."""
        held = self._held.get((topic, group))
        if held is not None:
            self._wake_first(held, -1)

    def tried(self, topic: str, group: str) -> None:
        """Watch the queues again for the other requests of the group: an awakened request has read."""
        held = self._held.get((topic, group))
        if held is not None:
            for queue_id, is_orderly in {kind[:2] for kind in held.kinds}:
                self._watch((topic, group), queue_id, is_orderly)

    def wake_at(self, seconds: float, topic: str, group: str) -> None:
        """Wake a group later: a blocked queue becomes free by time."""
        key, due_s = (topic, group), self._loop.time() + self._ahead_s + max(0.0, seconds)
        entry = self._later.get(key)
        if entry is not None:
            if entry[0] <= due_s:
                return
            entry[1].cancel()
        self._later[key] = due_s, self._loop.call_later(max(0.0, seconds), self._wake_later, key)

    def _wake_later(self, key: tuple[str, str]) -> None:
        del self._later[key]
        self.wake_group(*key)

    def wake_topic(self, topic: str) -> None:
        """Wake all requests of a topic that is deleted."""
        for key, held in list(self._held.items()):
            if key[0] == topic:
                for waiters in held.kinds.values():
                    for waiter in waiters:
                        if not waiter.woken.done():
                            waiter.woken.set_result(True)

    # --- time ---

    def pass_time(self, seconds: float) -> None:
        """Advance the clock: the waits that are over then end."""
        self._ahead_s += seconds
        for key, (due_s, timer) in list(self._later.items()):
            timer.cancel()
            remaining_s = max(0.0, due_s - self._loop.time() - self._ahead_s)
            self._later[key] = due_s, self._loop.call_later(remaining_s, self._wake_later, key)
        for held in self._held.values():
            for waiters in held.kinds.values():
                for waiter in waiters:
                    if waiter.timer is not None:
                        waiter.timer.cancel()
                    remaining_s = waiter.due_s - self._loop.time() - self._ahead_s
                    waiter.timer = self._loop.call_later(max(0.0, remaining_s), self._end, waiter)

    @staticmethod
    def _end(waiter: Waiter) -> None:
        if not waiter.woken.done():
            waiter.woken.set_result(False)

    # --- the end ---

    def _remove(self, waiter: Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._count -= 1
        held = self._held[waiter.key]
        waiters = held.kinds[waiter.kind]
        del waiters[waiter]
        if not waiters:
            del held.kinds[waiter.kind]
        if not held.kinds:
            del self._held[waiter.key]
            for watch in held.watches.values():
                self._long_polling.release(watch)

    def stop(self) -> None:
        """End all waits, and hold no more."""
        self.is_stopped = True
        for _, timer in self._later.values():
            timer.cancel()
        self._later.clear()
        for held in self._held.values():
            for waiters in held.kinds.values():
                for waiter in waiters:
                    self._end(waiter)
