"""The dispatcher of a push consumer: jobs for handlers, results of handlers, retries of messages.

The workers call the handlers. A message is acknowledged only by a result of its handler.
Source: ConsumeMessageConcurrentlyService, ConsumeMessageOrderlyService.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from mqfast.client.consumer.group_requests import send_message_back
from mqfast.client.consumer.loop_calls import call_in_loop
from mqfast.client.consumer.push.outcome import verdict
from mqfast.client.consumer.push.publish_back import publish_back
from mqfast.client.consumer.push.state import Assigned, ConsumerState, Handler, Job
from mqfast.client.decompression import MissingPackage
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook, ConsumeContext, call_hooks
from mqfast.client.net.guard import Guard
from mqfast.client.net.instance import ClientInstance
from mqfast.client.values import ConsumeStatus, Retry
from mqfast.errors import MqfastError

__all__ = ["ConsumeCounts", "Dispatcher", "Workers"]

_log = logging.getLogger("mqfast.client.consumer")
AGAIN_S: Final = 5.0
"""Pause before a message is sent back, or decoded, again after a failure."""
NOT_LOCKED_S: Final = 0.1
TIMED_OUT_LEVEL: Final = 3
TIMED_OUT_AT_ONCE: Final = 16
GIVE_BACK_AT_ONCE: Final = 64
ORDERLY_WARNING: Final = 100


class Workers(Protocol):
    """The runner of handlers."""

    def offer(self, assigned: Assigned) -> None:
        """Add a queue with a waiting message. Thread: any."""

    @property
    def busy(self) -> int:
        """Return the number of running handlers."""

    async def call(self, handler: Handler, argument: Any) -> Any:
        """Call a handler once, for a message outside of all queues. Raises: the exception of the handler."""

    def stop(self) -> None:
        """Begin no further handler."""

    async def shutdown(self, *, cancel: bool) -> None:
        """Release the workers. Args: cancel: cancel running handlers, where that is possible."""


class ConsumeCounts:
    """Counts of results since the start."""

    __slots__ = ("done", "failed", "given_back", "seconds", "timed_out")

    def __init__(self) -> None:
        self.done = self.failed = self.given_back = self.timed_out = 0
        self.seconds = 0.0


class Dispatcher:
    """Hands the messages of one consumer to workers and processes the results.

    Args: make_workers: creates the workers for this dispatcher.
    Attributes:
        workers: run the handlers.
        counts: by topic without namespace.
        refusal: why the workers accept no job, or cannot decode a message; empty while neither applies.
    Thread: ``begin``, ``process_result`` and ``release``: any; the rest: that of the loop.
    """

    def __init__(
        self,
        state: ConsumerState,
        instance: ClientInstance,
        make_workers: Callable[[Dispatcher], Workers],
        hooks: Sequence[ClientHook] = (),
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._settings: Final = state.settings
        self._hooks: Final = hooks
        self._clock = clock or time.monotonic
        self.loop: Final = instance.loop
        self._sending_back: dict[asyncio.Task[None], None] = {}  # in order of their start
        self._gate = asyncio.Semaphore(GIVE_BACK_AT_ONCE)
        self._logged: set[tuple[str, str, str]] = set()
        self._lock = Guard()
        self.counts: dict[str, ConsumeCounts] = {}
        self.refusal = ""
        self._unread: Delivery | None = None  # the last message that cannot be decoded here
        self._has_stopped = False
        self.workers: Final = make_workers(self)

    # --- delivery ---

    def offer(self, assigned: Assigned, new: int) -> None:
        """Offer ``new`` waiting messages of a queue to the workers."""
        if not new:
            return
        workers = self.workers
        if self._settings.orderly:
            if self._acquire_queue(assigned):
                workers.offer(assigned)
            return
        handler = assigned.wanted.handler
        each = 1 if handler is None or assigned.is_retry else handler.batch
        for _ in range(0, new, each):
            workers.offer(assigned)

    def begin(self, assigned: Assigned) -> Job | None:
        """Take the next messages of a queue for a handler; None: there is no message, or no lock."""
        pq = assigned.pq
        handler = assigned.wanted.handler
        if self._state.needs_locks and not self._has_lock(assigned):
            return None
        messages = pq.take_messages(1 if handler is None or assigned.is_retry else handler.batch)
        if not messages:
            if self._settings.orderly:
                self._release_queue(assigned)
            return None
        if assigned.is_retry:
            handler = self._state.handler_of_retried(messages[0])
        now = self._clock()
        for message in messages:
            message.begun_s = now
        assigned.last_consumed_s = now
        context = None
        if self._hooks:
            context = ConsumeContext(messages, self._state.group)
            call_hooks(self._hooks, "before_consume", context)
        return Job(assigned, pq, messages, handler, now, context)

    def _has_lock(self, assigned: Assigned) -> bool:
        if assigned.pq.dropped:
            return True  # a dropped queue has no message
        if self._clock() < assigned.locked_until_s:
            return True
        call_in_loop(self.loop, self.loop.call_later, NOT_LOCKED_S, self._offer_again, assigned)
        return False

    def _offer_again(self, assigned: Assigned) -> None:
        if not self._state.is_closing:
            self.workers.offer(assigned)

    def _release_queue(self, assigned: Assigned) -> None:
        """Orderly: end the consumption of a queue, or offer the queue again if messages wait."""
        assigned.held = False
        if assigned.pq.waiting and self._acquire_queue(assigned):
            self.workers.offer(assigned)

    def _acquire_queue(self, assigned: Assigned) -> bool:
        with self._lock:
            held, assigned.held = assigned.held, True
            return not held

    # --- results ---

    def process_result(self, job: Job, result: Any, error: BaseException | None) -> None:
        """Process the result of a handler."""
        if isinstance(error, MissingPackage):
            self._wait_for_package(job, error)
            return
        if self._unread is not None and self._unread in job.messages:
            self._unread, self.refusal = None, ""
        handler, assigned = job.handler, job.assigned
        seconds = self._clock() - job.begun_s
        if error is None and (result is None or result is True) and job.context is None and not assigned.is_retry:
            counts = self.counts_of(assigned.wanted.plain_topic)  # the fast path of most messages
            counts.done += len(job.messages)
            counts.seconds += seconds
            self._ack(assigned, job.pq, job.messages)
            if self._settings.orderly:
                self._release_queue(assigned)
            return
        judged = verdict(job.messages, result, error, is_batch=handler is not None and handler.batch > 1)
        if judged.odd:
            self._log_odd_result(job, "odd", "returned", judged.odd)
        if error is not None and judged.later:
            self._log_handler_error(job, error)
        if job.context is not None:
            job.context.status, job.context.seconds = judged.status, seconds
            job.context.error = error if isinstance(error, Exception) else None
            call_hooks(self._hooks, "after_consume", job.context)
        counts = self.counts_of(job.messages[0].topic)
        counts.done += len(judged.done)
        counts.failed += len(judged.later)
        counts.seconds += seconds
        if judged.done:
            self._ack(job.assigned, job.pq, judged.done)
        if self._settings.orderly:
            self._end_orderly(job, judged.later)
        elif judged.later:
            call_in_loop(self.loop, self._send_all_back, job.assigned, job.pq, judged.later)

    def release(self, job: Job, *, after_s: float = 0.0) -> None:
        """Put the messages of a job without a result back at the head of the queue. Args: after_s: delay, seconds."""
        for message in job.messages:
            message.begun_s = 0.0
        if job.context is not None and not after_s:
            job.context.status, job.context.seconds = ConsumeStatus.RECONSUME_LATER, self._clock() - job.begun_s
            call_hooks(self._hooks, "after_consume", job.context)
        if after_s:
            call_in_loop(self.loop, self.loop.call_later, after_s, self.release, job)
            return
        job.pq.requeue(job.messages)
        if self._settings.orderly:
            self._release_queue(job.assigned)
        else:
            self.offer(job.assigned, len(job.messages))

    def release_soon(self, job: Job) -> None:
        """Schedule ``release`` in the loop. Thread: any, also within a call that holds a lock of the consumer."""
        call_in_loop(self.loop, self.release, job)

    def _wait_for_package(self, job: Job, error: MissingPackage) -> None:
        """Deliver the messages again later: a missing package must not send a message to the dead-letter queue."""
        self._unread = job.messages[0]
        text = f"message {self._unread.msg_id} of {self._unread.topic} waits: {error}"
        if self.refusal != text:
            self.refusal = text
            _log.error("group %s: %s", self._state.group, text)
        self.release(job, after_s=AGAIN_S)

    def _ack(self, assigned: Assigned, pq: Any, messages: Any) -> None:
        pq.ack(messages)
        if assigned.is_full and not self._state.is_full(assigned):
            assigned.is_full = False
            call_in_loop(self.loop, assigned.wake.set)

    def counts_of(self, topic: str) -> ConsumeCounts:
        """Return the counts of a topic without namespace."""
        counts = self.counts.get(topic)
        if counts is None:
            counts = self.counts.setdefault(topic, ConsumeCounts())
        return counts

    def _log_handler_error(self, job: Job, error: BaseException) -> None:
        first = job.messages[0]
        if isinstance(error, Retry):  # on purpose, not an error of the handler
            _log.info("group %s, topic %s: %s: %r", self._state.group, first.topic, first.msg_id, error)
            return
        name = "the loop" if job.handler is None else f"handler {job.handler.name}"
        key = (first.msg_id, type(error).__qualname__, "error")
        if key in self._logged:
            return
        self._remember(key)
        ids = ", ".join(message.msg_id for message in job.messages[:3]) + (" ..." if len(job.messages) > 3 else "")
        _log.warning(
            "group %s, topic %s: %s raised %r for %s (attempt %d): the messages come again",
            self._state.group, first.topic, name, error, ids, first.attempt,
            exc_info=(type(error), error, error.__traceback__),
        )  # fmt: skip

    def _log_odd_result(self, job: Job, kind: str, verb: str, what: str) -> None:
        name = "the loop" if job.handler is None else f"handler {job.handler.name}"
        key = (name, kind, what[:40])
        if key not in self._logged:
            self._remember(key)
            _log.warning("group %s: %s %s %s", self._state.group, name, verb, what)

    def log_error(self, what: str) -> None:
        """Log an error that cannot be raised to a caller."""
        _log.error("group %s: %s", self._state.group, what)

    def _remember(self, key: tuple[str, str, str]) -> None:
        if len(self._logged) > 10_000:
            self._logged.clear()
        self._logged.add(key)

    # --- orderly ---

    def _end_orderly(self, job: Job, later: Any) -> None:
        if not later:
            self._release_queue(job.assigned)
            return
        call_in_loop(self.loop, self._suspend, job.assigned, job.pq, list(later))

    def _suspend(self, assigned: Assigned, pq: Any, later: list[tuple[Delivery, int]]) -> None:
        """Suspend a queue; messages that reached the limit of deliveries go to the dead-letter queue."""
        max_times = self._settings.max_reconsume_times
        dead = [failed for failed, level in later if level < 0 or 0 <= max_times <= failed.reconsume_times]
        kept = [failed for failed, _ in later if failed not in dead]
        for message in kept:
            message.again += 1
            message.begun_s = 0.0
            if message.again % ORDERLY_WARNING == 0:
                _log.warning(
                    "group %s: message %s stops queue %s: it failed %d times",
                    self._state.group, message.msg_id, assigned.queue, message.again,
                )  # fmt: skip
        if not self._state.is_clustering:
            for message in dead:
                self._drop_broadcast(message)
            self._ack(assigned, pq, dead)
            dead = []
        if dead:
            self._spawn(self._send_to_dlq(assigned, pq, dead, kept))
        else:
            self._resume_later(assigned, pq, kept)

    async def _send_to_dlq(self, assigned: Assigned, pq: Any, dead: list[Delivery], kept: list[Delivery]) -> None:
        for message in dead:
            if await self._send_to_broker(message, -1):
                self._ack(assigned, pq, [message])
            else:
                message.again += 1
                kept.append(message)
        kept.sort(key=lambda failed: failed.queue_offset)
        self._resume_later(assigned, pq, kept)

    def _resume_later(self, assigned: Assigned, pq: Any, kept: list[Delivery]) -> None:
        pq.requeue(kept)
        assigned.state = "suspended"
        self.loop.call_later(self._settings.suspend_s if kept else 0.0, self._release_queue, assigned)

    # --- retries ---

    def _send_all_back(self, assigned: Assigned, pq: Any, later: Any) -> None:
        if not self._state.is_clustering:
            for message, _ in later:
                self._drop_broadcast(message)
            self._ack(assigned, pq, [message for message, _ in later])
            return
        for message, level in later:
            if pq.is_open(message):  # else the message has timed out and was sent back before
                self._spawn(self._send_back(assigned, pq, message, level))

    def stop(self) -> None:
        """Cancel all requests to brokers; messages that are not sent back are delivered again."""
        self._has_stopped = True
        for task in self._sending_back:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        if self._has_stopped:
            work.close()
            return
        task: asyncio.Task[None] = self.loop.create_task(work, name="mqfast give back")
        self._sending_back[task] = None
        task.add_done_callback(lambda done: self._sending_back.pop(done, None))

    def _drop_broadcast(self, message: Delivery) -> None:
        _log.warning(
            "group %s: message %s of %s failed and is dropped: broadcasting has no retry",
            self._state.group, message.msg_id, message.topic,
        )  # fmt: skip

    async def _send_back(self, assigned: Assigned, pq: Any, message: Delivery, level: int) -> None:
        if await self._send_to_broker(message, level):
            self.counts_of(message.topic).given_back += 1
            self._ack(assigned, pq, [message])
            return
        message.again += 1
        message.begun_s = 0.0
        self.loop.call_later(AGAIN_S, self._requeue, assigned, pq, message)

    async def _send_to_broker(self, message: Delivery, level: int) -> bool:
        instance, group, max_times = self._instance, self._state.group, self._settings.max_reconsume_times
        refusal: MqfastError | None = None
        async with self._gate:
            if not message.is_part:  # the broker has no record of this message alone
                steps = send_message_back(instance, group, message, delay_level=level, max_reconsume_times=max_times)
                try:
                    await instance.driver.run(steps)
                    return True
                except MqfastError as error:
                    refusal = error
            try:
                steps = publish_back(instance, group, message, delay_level=level, max_reconsume_times=max_times)
                await instance.driver.run(steps)
            except MqfastError as error:
                _log.warning(
                    "group %s: message %s could not be given back and is tried again here in %g s: %s",
                    group, message.msg_id, AGAIN_S, error,
                )  # fmt: skip
                return False
        if refusal is not None:
            _log.warning(
                "group %s: message %s was not taken back, so it was published to the retry topic: %s",
                group, message.msg_id, refusal,
            )  # fmt: skip
        return True

    def _requeue(self, assigned: Assigned, pq: Any, message: Delivery) -> None:
        if not pq.dropped and not self._state.is_closing:
            pq.requeue([message])
            self.offer(assigned, 1)

    # --- timeouts ---

    async def expire(self) -> None:
        """Send back messages whose handlers exceed the timeout; later results of these handlers are ignored."""
        if self._settings.orderly:
            return
        limit = self._clock() - self._settings.consume_timeout_s
        for assigned in self._state.assigned.values():
            late: list[tuple[Delivery, int]] = []
            for message in assigned.pq.open_messages()[:TIMED_OUT_AT_ONCE]:
                if not message.begun_s or message.begun_s > limit:
                    break
                late.append((message, TIMED_OUT_LEVEL))
            for message, _ in late:
                self.counts_of(message.topic).timed_out += 1
                _log.warning(
                    "group %s: message %s of %s has its handler for more than %g s: it comes again",
                    self._state.group, message.msg_id, message.topic, self._settings.consume_timeout_s,
                )  # fmt: skip
                message.begun_s = self._clock()
            self._send_all_back(assigned, assigned.pq, late)

    def longest_s(self) -> tuple[float, Delivery | None]:
        """Return seconds and message of the handler that runs longest."""
        now, slowest, longest = self._clock(), None, 0.0
        for assigned in list(self._state.assigned.values()):
            for message in assigned.pq.open_messages():
                if message.begun_s and now - message.begun_s > longest:
                    longest, slowest = now - message.begun_s, message
        return longest, slowest

    @property
    def sending_back(self) -> int:
        """Return the number of messages that are being sent back to brokers."""
        return len(self._sending_back)
