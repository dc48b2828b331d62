"""Long polling: pulls without a message are held until a message arrives or the time is over.

The store reports queues with new messages once per batch of messages (``engine.arrivals``); sends of this broker report
at once (``notify_arrival``). A pull with a filter ends at a matching message; after messages that do not match, the
pull is answered within ``PROGRESS_S``, so that the group makes progress. Many pulls are checked in slices of
``TURN_S``, between which the event loop serves other requests.

A pull is answered once, and dropped if the connection closes. Each pull stores the offset up to which messages were
checked, so that no message is read twice. Source: PullRequestHoldService, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from mqfast.errors import MqfastError, StoreClosed
from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand
from mqfast.store.base.results import GetMessageStatus

if TYPE_CHECKING:
    from mqfast.broker.filter.queue_unit_filter import WantedUnits
    from mqfast.broker.pull.get_limits import Limits
    from mqfast.store.engine import Engine
    from mqfast.store.message_store import MessageStore

__all__ = ["HeldPull", "LongPolling"]

PROGRESS_S: Final = 5.0
TURN_S: Final = 0.003
SUSPEND_MS_MAX: Final = 24 * 3600 * 1000
_DUE_SPARE: Final = 64

Queue = tuple[str, int]
ServeAgain = Callable[[Channel, RemotingCommand], None]


class HeldPull:
    """A pull that waits, or a watch of a queue.

    Attributes: checked: the offset up to which messages were checked by the filter; due_s: the latest time of the
        response; wake: answers the pull; channel: None for a watch.
    """

    __slots__ = ("channel", "checked", "due_s", "is_over", "queue", "wake", "wanted")

    def __init__(
        self,
        channel: Channel | None,
        queue: Queue,
        offset: int,
        wanted: WantedUnits,
        due_s: float,
        wake: Callable[[], object],
    ) -> None:
        self.channel = channel
        self.queue = queue
        self.checked = offset
        self.wanted = wanted
        self.due_s = due_s
        self.wake = wake
        self.is_over = False


class LongPolling:
    """All held pulls.

    Args: held_max: the most held pulls.
    Attributes: ``is_stopped``: no pull is held any more; ``waiting``: queue -> held pulls, always the same object.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        store: MessageStore,
        engine: Engine,
        limits: Limits,
        *,
        held_max: int = 100_000,
    ) -> None:
        self._store: Final = store
        self._engine: Final = engine
        self._limits: Final = limits
        self._held_max: Final = held_max
        self._loop = asyncio.get_running_loop()
        self.waiting: Final[dict[Queue, dict[HeldPull, None]]] = {}  # pulls in order of arrival
        self._watched: dict[Queue, int] = {}
        self._fresh: dict[Queue, None] = {}
        self._passes: dict[Queue, bool] = {}  # queues being checked now; True: check once more
        self._channels: dict[Channel, dict[HeldPull, None]] = {}
        self._due: list[tuple[float, int, HeldPull]] = []
        self._numbers = itertools.count()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._ahead_s = 0.0  # of the loop's clock
        self._arrivals = engine.arrivals()
        self._fd = self._arrivals.fileno()
        self.is_stopped = False
        self._loop.add_reader(self._fd, self._poll_store)

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        channel: Channel,
        request: RemotingCommand,
        topic: str,
        queue_id: int,
        offset: int,
        wanted: WantedUnits,
        suspend_ms: int,
        serve_again: ServeAgain,
    ) -> bool:
        """Hold a pull without messages at an offset. Returns: False if too many pulls are held, or the broker stops.

        Args: serve_again: answers the pull when the wait ends.
        """
        if self.is_stopped or self._count >= self._held_max:
            return False
        queue = topic, queue_id
        due_s = self._now_s() + min(max(suspend_ms, 0), SUSPEND_MS_MAX) / 1000
        request.was_held = True
        held = HeldPull(channel, queue, offset, wanted, due_s, partial(serve_again, channel, request))
        self._channels.setdefault(channel, {})[held] = None
        self._count += 1
        self._note_due(held, due_s)
        self._enter(held)
        return True

    def watch(self, queue: Queue, offset: int, wake: Callable[[], object]) -> HeldPull:
        """Call ``wake`` once the queue has a message at or above the offset, never in this call; see ``release``."""
        held = HeldPull(None, queue, offset, None, math.inf, wake)
        self._enter(held)
        return held

    def release(self, held: HeldPull) -> None:
        """End a watch that is not over yet."""
        if not held.is_over:
            self._forget(held)

    def _enter(self, held: HeldPull) -> None:
        queue = held.queue
        self.waiting.setdefault(queue, {})[held] = None
        watched = self._watched.get(queue)
        if queue not in self._passes and (watched is None or held.checked < watched):
            self._watch(queue)

    # --- arrival ---

    def notify_arrival(self, queue: Queue) -> None:
        """Check the pulls of a queue with a new message in the next loop iteration, after the sender's response.

        The store's own signal comes from the dispatcher's thread, some 0.3 ms later.
        """
        if not self._fresh:
            self._loop.call_soon(self._poll_notified)
        self._fresh[queue] = None

    def _poll_notified(self) -> None:
        fresh = list(self._fresh)
        self._fresh.clear()
        for queue in fresh:
            if queue in self.waiting:
                self._arrived(queue)

    def _poll_store(self) -> None:
        with contextlib.suppress(MqfastError):  # the pull itself gets the error
            self._store.catch_up()  # a reactor reports a queue before the dispatcher has put the unit
        try:
            queues = self._arrivals.drain()
        except StoreClosed:
            self._loop.remove_reader(self._fd)
            self.is_stopped = True
            return
        for queue in queues:
            self._watched.pop(queue, None)
            self._arrived(queue)

    def _watch(self, queue: Queue) -> None:
        """Watch for the next message that some pull of the queue has not checked."""
        offset = min(held.checked for held in self.waiting[queue])
        try:
            is_there = self._arrivals.watch(queue[0], queue[1], offset)
        except StoreClosed:
            self.is_stopped = True
            return
        if is_there:
            self._watched.pop(queue, None)
            self._loop.call_soon(self._arrived, queue)
        else:
            self._watched[queue] = offset

    def _arrived(self, queue: Queue) -> None:
        """Check the pulls of a queue in slices of a few milliseconds, so that other requests are served."""
        if queue in self._passes:
            self._passes[queue] = True
            return
        self._passes[queue] = False
        self._go_through(queue, iter(list(self.waiting.get(queue, ()))))

    def _go_through(self, queue: Queue, pulls: Iterator[HeldPull]) -> None:
        until_s = time.monotonic() + TURN_S
        for held in pulls:
            if not held.is_over and self._is_wanted(held):
                self._wake(held)
            if time.monotonic() > until_s:
                self._loop.call_soon(self._go_through, queue, pulls)
                return
        is_more = self._passes.pop(queue)
        if queue not in self.waiting:
            return
        if is_more:
            self._loop.call_soon(self._arrived, queue)
        elif queue not in self._watched:
            self._watch(queue)

    def _is_wanted(self, held: HeldPull) -> bool:
        """Return True if a pull can be answered now. Messages that do not match are not checked again."""
        topic, queue_id = held.queue
        try:
            end = self._store.max_offset(topic, queue_id)
            if held.wanted is None or end < held.checked:
                return end != held.checked  # below: the queue was created again, and the pull gets the new bounds
            if end == held.checked:
                return False
            limits = self._limits.get(held.wanted)
            with self._engine.get_records(topic, queue_id, held.checked, 1, filter=held.wanted, limits=limits) as got:
                if got.status is not GetMessageStatus.NO_MATCHED_MESSAGE or got.next_offset <= held.checked:
                    return True
                held.checked = got.next_offset
        except MqfastError:
            return True  # the pull itself gets the error
        self._note_due(held, self._now_s() + PROGRESS_S)
        return False

    def _wake(self, held: HeldPull) -> None:
        self._forget(held)
        held.wake()

    def answer_held(self, queue: Queue) -> None:
        """Answer the held pulls of a queue now, with or without messages."""
        for held in list(self.waiting.get(queue, ())):
            self._wake(held)

    # --- time ---

    def _now_s(self) -> float:
        return self._loop.time() + self._ahead_s

    def pass_time(self, seconds: float) -> None:
        """Advance the clock: pulls whose time is over then are answered."""
        self._ahead_s += seconds
        self._set_timer()

    def _note_due(self, held: HeldPull, due_s: float) -> None:
        if due_s > held.due_s:
            return  # answered earlier
        held.due_s = due_s
        if len(self._due) > _DUE_SPARE + 2 * self._count:  # most entries are of answered pulls
            self._due = [entry for entry in self._due if not entry[2].is_over]
            heapq.heapify(self._due)
        heapq.heappush(self._due, (due_s, next(self._numbers), held))
        if self._timer is None or due_s < self._timer_s:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._due and self._due[0][2].is_over:
            heapq.heappop(self._due)
        if self._due:
            self._timer_s = self._due[0][0]
            self._timer = self._loop.call_at(self._timer_s - self._ahead_s, self._time_is_over)

    def _time_is_over(self) -> None:
        self._timer = None
        now, until_s = self._now_s(), time.monotonic() + TURN_S
        while self._due and self._due[0][0] <= now:
            held = heapq.heappop(self._due)[2]
            if not held.is_over:
                self._wake(held)
            if time.monotonic() > until_s:
                break  # the rest in the next loop iteration
        self._set_timer()

    # --- the end ---

    def _forget(self, held: HeldPull) -> None:
        held.is_over = True
        waiting = self.waiting[held.queue]
        del waiting[held]
        if not waiting:
            del self.waiting[held.queue]
            if self._watched.pop(held.queue, None) is not None:
                self._arrivals.unwatch(*held.queue)
        if held.channel is None:
            return
        self._count -= 1
        of_channel = self._channels[held.channel]
        of_channel.pop(held, None)
        if not of_channel:
            del self._channels[held.channel]

    def channel_closed(self, channel: Channel) -> None:
        """Forget the pulls of a closed connection."""
        for held in list(self._channels.get(channel, ())):
            self._forget(held)

    def stop(self) -> None:
        """Answer all held pulls, and hold no more."""
        if not self.is_stopped:
            self._loop.remove_reader(self._fd)
        self.is_stopped = True
        for waiting in list(self.waiting.values()):
            for held in list(waiting):
                if not held.is_over:
                    self._wake(held)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._due.clear()
