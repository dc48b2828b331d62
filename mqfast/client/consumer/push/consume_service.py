"""From a message that waits to one that is settled: hands out jobs, judges their end, gives messages back.

Room: client. It must never call a handler (workers do), and never settle a message whose handler has not said so.
Source: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqfast.client.consumer.group_requests import send_message_back
from mqfast.client.consumer.push.outcome import verdict
from mqfast.client.consumer.push.publish_back import publish_back
from mqfast.client.consumer.push.state import Assigned, Handler, Job
from mqfast.client.decompression import MissingPackage
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ConsumeContext, tell
from mqfast.client.net.guard import Guard
from mqfast.client.values import ConsumeStatus, Retry
from mqfast.errors import MqfastError

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["ConsumeCounts", "ConsumeService", "Workers"]

_log = logging.getLogger("mqfast.client.consumer")
AGAIN_S: Final = 5.0
"""How long a message waits that could not be given back, or read."""
NOT_LOCKED_S: Final = 0.1
TIMED_OUT_LEVEL: Final = 3
TIMED_OUT_AT_ONCE: Final = 16
GIVE_BACK_AT_ONCE: Final = 64
ORDERLY_WARNING: Final = 100


class Workers(Protocol):
    """Who runs handlers."""

    def offer(self, assigned: Assigned) -> None:
        """A queue has a message. Thread: any."""

    @property
    def busy(self) -> int:
        """Handlers that run now."""

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, outside of all queues. Raises: what it raises."""

    def stop(self) -> None:
        """Begin no handler any more."""

    async def end(self, *, cancel: bool) -> None:
        """All is over. Args: cancel: end what still runs, where that is possible."""


class ConsumeCounts:
    """What happened to messages since the start."""

    __slots__ = ("done", "failed", "given_back", "seconds", "timed_out")

    def __init__(self) -> None:
        self.done = self.failed = self.given_back = self.timed_out = 0
        self.seconds = 0.0


class ConsumeService:
    """The messages of one consumer on their way through handlers.

    Attributes: refusal: why the workers take no job, or cannot read one, empty while they do.
    Thread: ``begin``, ``end`` and ``leave``: any; the rest: that of the loop.
    """

    def __init__(self, engine: PushEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._settings = engine.settings
        self._clock = clock
        self._given_back: set[asyncio.Task[None]] = set()
        self._gate = asyncio.Semaphore(GIVE_BACK_AT_ONCE)
        self._told: set[tuple[str, str, str]] = set()
        self._lock = Guard()
        self.counts: dict[str, ConsumeCounts] = {}
        self.refusal = ""
        self._unread: Delivery | None = None  # the last message that cannot be read here
        self._has_stopped = False

    # --- hand out ---

    def offer(self, assigned: Assigned, new: int) -> None:
        """So many messages of a queue wait."""
        if not new:
            return
        workers = self._engine.workers
        if self._settings.orderly:
            if self._hold(assigned):
                workers.offer(assigned)
            return
        handler = assigned.wanted.handler
        each = 1 if handler is None or assigned.is_retry else handler.batch
        for _ in range(0, new, each):
            workers.offer(assigned)

    def begin(self, assigned: Assigned) -> Job | None:
        """The next messages of a queue, for its handler; None: there is nothing to do now."""
        pq = assigned.pq
        handler = assigned.wanted.handler
        if self._settings.orderly and self._engine.is_clustering and not self._has_lock(assigned):
            return None
        messages = pq.take(1 if handler is None or assigned.is_retry else handler.batch)
        if not messages:
            if self._settings.orderly:
                self._release(assigned)
            return None
        if assigned.is_retry:
            handler = self._engine.handler_of_retried(messages[0])
        now = self._clock()
        for message in messages:
            message.begun_s = now
        assigned.last_consumed_s = now
        context = None
        if self._engine.hooks:
            context = ConsumeContext(messages, self._engine.group)
            tell(self._engine.hooks, "before_consume", context)
        return Job(assigned, pq, messages, handler, now, context)

    def _has_lock(self, assigned: Assigned) -> bool:
        if assigned.pq.dropped:
            return True  # nothing is taken from it
        if self._clock() < assigned.locked_until_s:
            return True
        self._engine.soon(lambda: self._engine.loop.call_later(NOT_LOCKED_S, self._again, assigned))
        return False

    def _again(self, assigned: Assigned) -> None:
        if not self._engine.is_closing:
            self._engine.workers.offer(assigned)

    def _release(self, assigned: Assigned) -> None:
        """Orderly: nobody runs the queue, unless a message came meanwhile."""
        assigned.held = False
        if assigned.pq.waiting and self._hold(assigned):
            self._engine.workers.offer(assigned)

    def _hold(self, assigned: Assigned) -> bool:
        with self._lock:
            held, assigned.held = assigned.held, True
            return not held

    # --- judge ---

    def end(self, job: Job, result: Any, error: BaseException | None) -> None:
        """A handler has ended."""
        if isinstance(error, MissingPackage):
            self._wait_for_package(job, error)
            return
        if self._unread is not None and self._unread in job.messages:
            self._unread, self.refusal = None, ""
        handler, assigned = job.handler, job.assigned
        seconds = self._clock() - job.begun_s
        if error is None and (result is None or result is True) and job.context is None and not assigned.is_retry:
            counts = self.counts_of(assigned.wanted.plain_topic)  # the short way of most messages
            counts.done += len(job.messages)
            counts.seconds += seconds
            self._settle(assigned, job.pq, job.messages)
            if self._settings.orderly:
                self._release(assigned)
            return
        found = verdict(job.messages, result, error, is_batch=handler is not None and handler.batch > 1)
        if found.odd:
            self._tell(job, "odd", "returned", found.odd)
        if error is not None and found.later:
            self._tell_error(job, error)
        if job.context is not None:
            job.context.status, job.context.seconds = found.status, seconds
            job.context.error = error if isinstance(error, Exception) else None
            tell(self._engine.hooks, "after_consume", job.context)
        counts = self.counts_of(job.messages[0].topic)
        counts.done += len(found.done)
        counts.failed += len(found.later)
        counts.seconds += seconds
        if found.done:
            self._settle(job.assigned, job.pq, found.done)
        if self._settings.orderly:
            self._end_orderly(job, found.later)
        elif found.later:
            self._engine.soon(lambda: self._give_back_all(job.assigned, job.pq, found.later))

    def leave(self, job: Job, *, after_s: float = 0.0) -> None:
        """Nobody has said anything: the messages wait again, in front. Args: after_s: nobody gets them until then."""
        for message in job.messages:
            message.begun_s = 0.0
        if job.context is not None and not after_s:
            job.context.status, job.context.seconds = ConsumeStatus.RECONSUME_LATER, self._clock() - job.begun_s
            tell(self._engine.hooks, "after_consume", job.context)
        if after_s:
            self._engine.soon(lambda: self._engine.loop.call_later(after_s, self.leave, job))
            return
        job.pq.requeue(job.messages)
        if self._settings.orderly:
            self._release(job.assigned)
        else:
            self.offer(job.assigned, len(job.messages))

    def leave_soon(self, job: Job) -> None:
        """``leave``, in the loop. Thread: any, also within a call that has a lock of the consumer."""
        self._engine.soon(lambda: self.leave(job))

    def _wait_for_package(self, job: Job, error: MissingPackage) -> None:
        """No message is to blame for a package that is not installed: none goes to the dead letters for it."""
        self._unread = job.messages[0]
        text = f"message {self._unread.msg_id} of {self._unread.topic} waits: {error}"
        if self.refusal != text:
            self.refusal = text
            _log.error("group %s: %s", self._engine.group, text)
        self.leave(job, after_s=AGAIN_S)

    def _settle(self, assigned: Assigned, pq: Any, messages: Any) -> None:
        pq.ack(messages)
        if assigned.is_full and not self._engine.pulls.is_full(assigned):
            assigned.is_full = False
            self._engine.soon(assigned.wake.set)

    def counts_of(self, topic: str) -> ConsumeCounts:
        """The counts of a topic, as users see it."""
        counts = self.counts.get(topic)
        if counts is None:
            counts = self.counts.setdefault(topic, ConsumeCounts())
        return counts

    def _tell_error(self, job: Job, error: BaseException) -> None:
        first = job.messages[0]
        if isinstance(error, Retry):  # asked for: no fault of the handler
            _log.info("group %s, topic %s: %s: %r", self._engine.group, first.topic, first.msg_id, error)
            return
        name = "the loop" if job.handler is None else f"handler {job.handler.name}"
        key = (first.msg_id, type(error).__qualname__, "error")
        if key in self._told:
            return
        self._remember(key)
        ids = ", ".join(one.msg_id for one in job.messages[:3]) + (" ..." if len(job.messages) > 3 else "")
        _log.warning(
            "group %s, topic %s: %s raised %r for %s (attempt %d): the messages come again",
            self._engine.group, first.topic, name, error, ids, first.attempt,
            exc_info=(type(error), error, error.__traceback__),
        )  # fmt: skip

    def _tell(self, job: Job, kind: str, verb: str, what: str) -> None:
        name = "the loop" if job.handler is None else f"handler {job.handler.name}"
        key = (name, kind, what[:40])
        if key not in self._told:
            self._remember(key)
            _log.warning("group %s: %s %s %s", self._engine.group, name, verb, what)

    def log_error(self, what: str) -> None:
        """For what nobody can be told otherwise."""
        _log.error("group %s: %s", self._engine.group, what)

    def _remember(self, key: tuple[str, str, str]) -> None:
        if len(self._told) > 10_000:
            self._told.clear()
        self._told.add(key)

    # --- orderly ---

    def _end_orderly(self, job: Job, later: Any) -> None:
        if not later:
            self._release(job.assigned)
            return
        self._engine.soon(lambda: self._suspend(job.assigned, job.pq, list(later)))

    def _suspend(self, assigned: Assigned, pq: Any, later: list[tuple[Delivery, int]]) -> None:
        """The queue stands still for a while; messages that came too often go to the dead letters."""
        most = self._settings.max_reconsume_times
        dead = [one for one, level in later if level < 0 or 0 <= most <= one.reconsume_times]
        kept = [one for one, _ in later if one not in dead]
        for message in kept:
            message.again += 1
            message.begun_s = 0.0
            if message.again % ORDERLY_WARNING == 0:
                _log.warning(
                    "group %s: message %s stops queue %s: it failed %d times",
                    self._engine.group, message.msg_id, assigned.queue, message.again,
                )  # fmt: skip
        if not self._engine.is_clustering:
            for message in dead:
                self._drop_broadcast(message)
            self._settle(assigned, pq, dead)
            dead = []
        if dead:
            self._spawn(self._bury(assigned, pq, dead, kept))
        else:
            self._resume_later(assigned, pq, kept)

    async def _bury(self, assigned: Assigned, pq: Any, dead: list[Delivery], kept: list[Delivery]) -> None:
        for message in dead:
            if await self._tell_broker(message, -1):
                self._settle(assigned, pq, [message])
            else:
                message.again += 1
                kept.append(message)
        kept.sort(key=lambda one: one.queue_offset)
        self._resume_later(assigned, pq, kept)

    def _resume_later(self, assigned: Assigned, pq: Any, kept: list[Delivery]) -> None:
        pq.requeue(kept)
        assigned.state = "suspended"
        self._engine.loop.call_later(self._settings.suspend_s if kept else 0.0, self._release, assigned)

    # --- give back ---

    def _give_back_all(self, assigned: Assigned, pq: Any, later: Any) -> None:
        if not self._engine.is_clustering:
            for message, _ in later:
                self._drop_broadcast(message)
            self._settle(assigned, pq, [message for message, _ in later])
            return
        for message, level in later:
            if pq.is_open(message):  # else it timed out, and was given back then
                self._spawn(self._give_back(assigned, pq, message, level))

    def stop(self) -> None:
        """The consumer leaves: brokers are told nothing any more, and what they were not told comes again."""
        self._has_stopped = True
        for task in self._given_back:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._has_stopped:
            work.close()
            return
        task: asyncio.Task[None] = self._engine.loop.create_task(work, name="mqfast give back")
        self._given_back.add(task)
        task.add_done_callback(self._given_back.discard)

    def _drop_broadcast(self, message: Delivery) -> None:
        _log.warning(
            "group %s: message %s of %s failed and is dropped: broadcasting has no retry",
            self._engine.group, message.msg_id, message.topic,
        )  # fmt: skip

    async def _give_back(self, assigned: Assigned, pq: Any, message: Delivery, level: int) -> None:
        if await self._tell_broker(message, level):
            self.counts_of(message.topic).given_back += 1
            self._settle(assigned, pq, [message])
            return
        message.again += 1
        message.begun_s = 0.0
        self._engine.loop.call_later(AGAIN_S, self._put_back, assigned, pq, message)

    async def _tell_broker(self, message: Delivery, level: int) -> bool:
        engine, most = self._engine, self._settings.max_reconsume_times
        refusal: MqfastError | None = None
        async with self._gate:
            if not message.is_part:  # the broker has no record of it alone
                steps = send_message_back(
                    engine.instance, engine.group, message, delay_level=level, max_reconsume_times=most
                )
                try:
                    await engine.instance.driver.run(steps)
                    return True
                except MqfastError as error:
                    refusal = error
            try:
                steps = publish_back(
                    engine.instance, engine.group, message, delay_level=level, max_reconsume_times=most
                )
                await engine.instance.driver.run(steps)
            except MqfastError as error:
                _log.warning(
                    "group %s: message %s could not be given back and is tried again here in %g s: %s",
                    engine.group, message.msg_id, AGAIN_S, error,
                )  # fmt: skip
                return False
        if refusal is not None:
            _log.warning(
                "group %s: message %s was not taken back, so it was published to the retry topic: %s",
                engine.group, message.msg_id, refusal,
            )  # fmt: skip
        return True

    def _put_back(self, assigned: Assigned, pq: Any, message: Delivery) -> None:
        if not pq.dropped and not self._engine.is_closing:
            pq.requeue([message])
            self.offer(assigned, 1)

    # --- time ---

    async def expire(self) -> None:
        """Handlers that run for too long: their messages come again, whatever the handlers say later."""
        if self._settings.orderly:
            return
        limit = self._clock() - self._settings.consume_timeout_s
        for assigned in self._engine.assigned.values():
            late: list[tuple[Delivery, int]] = []
            for message in assigned.pq.open_messages()[:TIMED_OUT_AT_ONCE]:
                if not message.begun_s or message.begun_s > limit:
                    break
                late.append((message, TIMED_OUT_LEVEL))
            for message, _ in late:
                self.counts_of(message.topic).timed_out += 1
                _log.warning(
                    "group %s: message %s of %s has its handler for more than %g s: it comes again",
                    self._engine.group, message.msg_id, message.topic, self._settings.consume_timeout_s,
                )  # fmt: skip
                message.begun_s = self._clock()
            self._give_back_all(assigned, assigned.pq, late)

    def longest_s(self) -> tuple[float, Delivery | None]:
        """How long the longest handler runs now, and its message."""
        now, found, longest = self._clock(), None, 0.0
        for assigned in list(self._engine.assigned.values()):
            for message in assigned.pq.open_messages():
                if message.begun_s and now - message.begun_s > longest:
                    longest, found = now - message.begun_s, message
        return longest, found

    @property
    def being_given_back(self) -> int:
        """Messages that brokers are told of now."""
        return len(self._given_back)
