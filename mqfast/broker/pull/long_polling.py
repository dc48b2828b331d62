"""Long polling: pulls that found nothing wait here for a message, until their time is over.

The store says in which queues something came, once for a batch of messages (``engine.arrivals``); sends of this broker
say so at once (``notify_arrival``). A pull with a filter is woken by a message that the filter wants; after messages
that it does not want it is answered within ``PROGRESS_S``, so that its group gets ahead. Many pulls are woken in steps
of ``TURN_S``, between which the event loop serves others.

Room: broker/pull. It must never answer a pull twice, keep one whose connection is gone, or read a message twice in
vain: each pull remembers up to where it has looked. Source: PullRequestHoldService, NotifyMessageArrivingListener.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterator
from time import monotonic
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
    """One pull that waits.

    Attributes: checked: the offset up to which its filter has seen the queue; due_s: when it is answered at the latest.
    """

    __slots__ = ("channel", "checked", "due_s", "is_over", "queue", "request", "serve_again", "wanted")

    def __init__(
        self,
        channel: Channel,
        request: RemotingCommand,
        queue: Queue,
        offset: int,
        wanted: WantedUnits,
        due_s: float,
        serve_again: ServeAgain,
    ) -> None:
        self.channel = channel
        self.request = request
        self.queue = queue
        self.checked = offset
        self.wanted = wanted
        self.due_s = due_s
        self.serve_again = serve_again
        self.is_over = False


class LongPolling:
    """All pulls that wait.

    Args: held_max: how many may wait.
    Attributes: ``is_stopped``: no pull may wait any more; ``waiting``: queue -> its pulls, always the same object.
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
        self.waiting: Final[dict[Queue, dict[HeldPull, None]]] = {}  # pulls in the order in which they came
        self._watched: dict[Queue, int] = {}
        self._fresh: dict[Queue, None] = {}
        self._passes: dict[Queue, bool] = {}  # queues that are gone through now, and whether to begin once more
        self._channels: dict[Channel, set[HeldPull]] = {}
        self._due: list[tuple[float, int, HeldPull]] = []
        self._numbers = itertools.count()
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0
        self._ahead_s = 0.0  # of the loop's clock
        self._arrivals = engine.arrivals()
        self._fd = self._arrivals.fileno()
        self.is_stopped = False
        self._loop.add_reader(self._fd, self._take)

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
        """Let a pull wait that found nothing at an offset. False: there are too many, or the broker stops.

        Args: serve_again: answers the pull when it is not to wait any more.
        """
        if self.is_stopped or self._count >= self._held_max:
            return False
        queue = topic, queue_id
        due_s = self._now_s() + min(max(suspend_ms, 0), SUSPEND_MS_MAX) / 1000
        request.was_held = True
        held = HeldPull(channel, request, queue, offset, wanted, due_s, serve_again)
        self.waiting.setdefault(queue, {})[held] = None
        self._channels.setdefault(channel, set()).add(held)
        self._count += 1
        self._note_due(held, due_s)
        watched = self._watched.get(queue)
        if queue not in self._passes and (watched is None or offset < watched):
            self._watch(queue)
        return True

    # --- arrival ---

    def notify_arrival(self, queue: Queue) -> None:
        """A message was put into a queue in this turn of the loop: look in the next one, behind the sender's answer.

        The store's own signal comes from the dispatcher's thread, some 0.3 ms later.
        """
        if not self._fresh:
            self._loop.call_soon(self._look)
        self._fresh[queue] = None

    def _look(self) -> None:
        fresh = list(self._fresh)
        self._fresh.clear()
        for queue in fresh:
            if queue in self.waiting:
                self._arrived(queue)

    def _take(self) -> None:
        try:
            queues = self._arrivals.take()
        except StoreClosed:
            self._loop.remove_reader(self._fd)
            self.is_stopped = True
            return
        for queue in queues:
            self._watched.pop(queue, None)
            self._arrived(queue)

    def _watch(self, queue: Queue) -> None:
        """Hear of the next message that any pull of the queue has not seen."""
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
        """Go through the pulls of a queue, a few milliseconds in each turn of the loop, so that others are served."""
        if queue in self._passes:
            self._passes[queue] = True
            return
        self._passes[queue] = False
        self._go_through(queue, iter(list(self.waiting.get(queue, ()))))

    def _go_through(self, queue: Queue, pulls: Iterator[HeldPull]) -> None:
        until_s = monotonic() + TURN_S
        for held in pulls:
            if not held.is_over and self._is_wanted(held):
                self._wake(held)
            if monotonic() > until_s:
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
        """Is there something to say to a pull now? What its filter does not want is not looked at again."""
        topic, queue_id = held.queue
        try:
            end = self._store.max_offset(topic, queue_id)
            if held.wanted is None or end < held.checked:
                return end != held.checked  # below: the queue is a new one, and the pull is to be told
            if end == held.checked:
                return False
            limits = self._limits.get(held.wanted)
            with self._engine.get_records(topic, queue_id, held.checked, 1, filter=held.wanted, limits=limits) as found:
                if found.status is not GetMessageStatus.NO_MATCHED_MESSAGE or found.next_offset <= held.checked:
                    return True
                held.checked = found.next_offset
        except MqfastError:
            return True  # the pull itself finds out, and says what is wrong
        self._note_due(held, self._now_s() + PROGRESS_S)
        return False

    def _wake(self, held: HeldPull) -> None:
        self._forget(held)
        held.serve_again(held.channel, held.request)

    def end(self, queue: Queue) -> None:
        """Answer the pulls that wait for a queue now, whatever is in it."""
        for held in list(self.waiting.get(queue, ())):
            self._wake(held)

    # --- time ---

    def _now_s(self) -> float:
        return self._loop.time() + self._ahead_s

    def pass_time(self, seconds: float) -> None:
        """So much time passes at once: pulls whose time is over then are answered."""
        self._ahead_s += seconds
        self._set_timer()

    def _note_due(self, held: HeldPull, due_s: float) -> None:
        if due_s > held.due_s:
            return  # it is answered before
        held.due_s = due_s
        if len(self._due) > _DUE_SPARE + 2 * self._count:  # most of them were answered
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
        now, until_s = self._now_s(), monotonic() + TURN_S
        while self._due and self._due[0][0] <= now:
            held = heapq.heappop(self._due)[2]
            if not held.is_over:
                self._wake(held)
            if monotonic() > until_s:
                break  # the rest in the next turn of the loop
        self._set_timer()

    # --- the end ---

    def _forget(self, held: HeldPull) -> None:
        held.is_over = True
        self._count -= 1
        waiting = self.waiting[held.queue]
        del waiting[held]
        if not waiting:
            del self.waiting[held.queue]
            if self._watched.pop(held.queue, None) is not None:
                self._arrivals.unwatch(*held.queue)
        of_channel = self._channels[held.channel]
        of_channel.discard(held)
        if not of_channel:
            del self._channels[held.channel]

    def channel_closed(self, channel: Channel) -> None:
        """A connection is gone: its pulls are forgotten."""
        for held in list(self._channels.get(channel, ())):
            self._forget(held)

    def stop(self) -> None:
        """Answer all pulls that wait, and let none wait any more."""
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
