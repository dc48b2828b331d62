"""The engine of pull consumers, for the sync and the asyncio consumer: owns the parts, starts and closes them.

No offset beyond those of the prefetch buffer is committed, and every wait has a deadline.
Source: DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal, NamedTuple, TypeVar

from mqfast.client.consumer.loop_calls import call_in_loop
from mqfast.client.consumer.offsets import GroupOffsets, offsets_of
from mqfast.client.consumer.pull.assignment import Assignment
from mqfast.client.consumer.pull.fetcher import PullFetcher
from mqfast.client.consumer.pull.prefetch_buffer import PrefetchBuffer
from mqfast.client.consumer.pull.requests import PullRequests
from mqfast.client.consumer.pull.settings import PullSettings
from mqfast.client.consumer.pull.state import PullState
from mqfast.client.consumer.pull_request import PullAnswer, pull
from mqfast.client.consumer.queue_bounds import max_offset, min_offset, offset_at, read_place
from mqfast.client.consumer.subscription import Subscription, new_version
from mqfast.client.delivery import Source
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps
from mqfast.client.route.namespace import plain_queue, unwrap, wrap, wrap_queue
from mqfast.client.values import MessageQueue, When, milliseconds
from mqfast.errors import ClientUsageError, MqfastError, Refused, SubscriptionError
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_whole

__all__ = ["PullEngine", "SeekTo"]

SeekTo = int | Literal["earliest", "latest", "first", "last"] | Any
T = TypeVar("T")
_TRACE_S: Final = 1.0  # for the trace records that are left at the end
_log = logging.getLogger("mqfast.client.consumer")


class PullParts(NamedTuple):
    """The parts of a started engine."""

    instance: ClientInstance
    offsets: GroupOffsets
    fetcher: PullFetcher
    assignment: Assignment
    requests: PullRequests


class PullEngine:
    """One pull consumer in one event loop.

    Attributes: cache; subscriptions: topic on the wire -> subscription.
    Thread: that of the event loop, except ``cache``: any.
    """

    def __init__(self, settings: PullSettings, subscriptions: Mapping[str, Subscription]) -> None:
        self.cache: Final = PrefetchBuffer(settings.group, settings.offset_reset, settings.limits, self._queue_changed)
        self.subscriptions: Final = dict(subscriptions)
        self._settings: Final = settings
        self._state: Final = PullState(
            settings, wrap(settings.namespace, settings.group), self.cache, self.subscriptions
        )
        self._group: Final = self._state.group
        self._parts: PullParts | None = None
        self._is_closed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._arrived: Final = asyncio.Event()
        self.cache.asynchronous = self._arrived.set

    # --- start and close ---

    @property
    def parts(self) -> PullParts:
        """Return the parts; the engine must have been started."""
        assert self._parts is not None, "the engine was not started"
        return self._parts

    async def start(self, is_closed: Callable[[], bool] = lambda: False) -> None:
        """Join the group and begin to pull. Args: is_closed: tells whether the consumer was closed meanwhile.

        Raises: ConnectError, SubscriptionError, ClientError.
        """
        settings = self._settings
        self._is_closed = False
        instance = ClientInstance.shared(settings.instance, loop_of_caller(), consumer_group=self._group)
        await instance.acquire(may_wait=settings.start_timeout_s != 0)
        parts = self._parts = self._make_parts(instance)
        try:
            since_ms = await instance.begin_with_name_server(
                settings.start_timeout_s, is_closed, partial(self._find_topics, parts)
            )
            parts.requests.register()
            await parts.assignment.join(since_ms)
        except BaseException:
            parts.fetcher.stop()
            for cached in self.cache.all():  # the next start assigns queues anew
                self.cache.remove(cached.queue)
            await self._release(parts)
            raise
        if settings.tracer is not None:
            settings.tracer.begin(instance)
        self._tasks.append(instance.spawn(parts.assignment.keep_balanced(), f"mqfast rebalance {self._group}"))
        if settings.auto_commit_s is not None:
            self._tasks.append(instance.every(settings.auto_commit_s, self.auto_commit, f"commit {self._group}"))

    async def _find_topics(self, parts: PullParts) -> None:
        parts.instance.add_consumer(self._group, parts.assignment)
        await parts.assignment.find_topics()

    def _make_parts(self, instance: ClientInstance) -> PullParts:
        settings, state = self._settings, self._state
        offsets = offsets_of(instance, self._group, broadcasting=settings.is_broadcasting, own=settings.offset_store)
        fetcher = PullFetcher(state, instance, offsets)
        assignment = Assignment(state, instance, fetcher)
        requests = PullRequests(state, instance, assignment.wake, self.commit)
        return PullParts(instance, offsets, fetcher, assignment, requests)

    async def close(self, *, all_handed_out: bool) -> None:
        """Stop, commit if auto commit is on, and leave the group.

        Args: all_handed_out: commit all messages that were handed out; else only the acknowledged ones.
        """
        if self._is_closed:
            return
        self._is_closed = True
        parts, group = self.parts, self._settings.group
        self.cache.close(f"group {group}: the pull consumer is closed")
        for task in self._tasks:
            task.cancel()
        parts.fetcher.stop()
        try:
            if self._settings.auto_commit_s is not None:
                self._note(self.cache.positions(handed_out=all_handed_out))
                await parts.offsets.persist()
        except (MqfastError, OSError) as error:
            _log.warning("group %s: the offsets were not committed at the end: %s", group, error)
        finally:
            await self._release(parts)

    async def _release(self, parts: PullParts) -> None:
        self._is_closed = True
        parts.assignment.stop()
        parts.requests.unregister()
        try:
            if self._settings.tracer is not None:
                await self._settings.tracer.close(_TRACE_S)
            await parts.instance.remove_consumer(self._group, parts.assignment)
        finally:
            await parts.instance.release()

    async def _run(self, steps: RequestSteps[T]) -> T:
        return await self.parts.instance.driver.run(steps)

    def _queue_changed(self, queue: MessageQueue, has_new_position: bool) -> None:
        """Pass a change of the prefetch buffer to the fetcher. Thread: any."""
        parts = self._parts
        if parts is not None:
            call_in_loop(parts.instance.loop, parts.fetcher.queue_changed, queue, has_new_position)

    # --- calls of the application ---

    async def wait(self, timeout_s: float) -> bool:
        """Wait until a message may be in the prefetch buffer. Returns: False after ``timeout_s``."""
        self._arrived.clear()
        if self.cache.count:
            return True
        try:
            async with asyncio.timeout(timeout_s):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    def refusal(self, *, has_waited: bool = True) -> Exception | None:
        """Return the error that keeps all queues from being read, for a poll without a message; None: there is ncached.

        Args: has_waited: False for a poll without a timeout, which may precede the first subscription.
        """
        queues, assignment = self.cache.all(), self.parts.assignment
        if has_waited and not queues and assignment.lacks_topics:
            group = self._settings.group
            return ClientUsageError(
                f"group {group}: expected a topic or queues: topics=, subscribe() or assign(), found none"
            )
        if not queues:
            return assignment.refusal
        errors = [cached.error for cached in queues]
        refused = [error for error in errors if isinstance(error, (Refused, SubscriptionError))]
        return refused[0] if refused and len(refused) == len(queues) else None

    async def subscribe(self, wanted: Subscription) -> None:
        """Add or replace a subscription. Raises: UsageError, SubscriptionError, ConnectError."""
        await self.parts.assignment.subscribe(wanted)

    async def unsubscribe(self, topic: str) -> None:
        """Remove the subscription of a topic."""
        await self.parts.assignment.unsubscribe(topic)

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues. Raises: UsageError, NoRoute, ConnectError."""
        await self.parts.assignment.assign(queues)

    async def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return all readable queues of a topic. Raises: NoRoute, ConnectError."""
        route = await self._run(self.parts.instance.route(topic, timeout_s=5.0))
        return [plain_queue(self._settings.namespace, queue) for queue in route.subscribe_queues()]

    async def seek(self, queue: MessageQueue, to: SeekTo) -> None:
        """Set the position of a queue. Raises: UsageError: not assigned, or outside of the queue."""
        if self.cache.get(queue) is None:
            raise ClientUsageError(
                f"seek: {queue} is not assigned to this consumer; expected one of {sorted(self.positions())}"
            )
        instance = self.parts.instance
        to = end_word(to)
        if to == "earliest":
            offset = await self._run(min_offset(instance, queue))
        elif to == "latest":
            offset = await self._run(max_offset(instance, queue))
        elif not is_whole(to):
            offset = await self._run(offset_at(instance, queue, milliseconds(to)))
        else:
            offset = to
            start, end = await self._run(min_offset(instance, queue)), await self._run(max_offset(instance, queue))
            if not start <= offset <= end:
                raise ClientUsageError(f"seek of {queue}: expected an offset from {start} to {end}, found {offset}")
        self.cache.seek(queue, offset, is_new=not isinstance(to, int))

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int, tags: str, sql: str | None, wait_s: float
    ) -> PullAnswer:
        """Pull once from any queue; the state of this consumer does not change."""
        wanted = Subscription(queue.topic, tags, sql=sql, version=new_version())
        plain = plain_queue(self._settings.namespace, queue)
        source = Source(
            queue.broker_name, plain, namespace=self._settings.namespace or "",
            body_bytes_max=self._settings.max_body_bytes,
        )  # fmt: skip
        _, address = await self._run(read_place(self.parts.instance, queue))
        steps = pull(
            address, self._group, queue, offset, wanted, source, max_count=max_count, suspend_s=wait_s,
            post_subscription=True, timeout_s=wait_s + 10.0,
        )  # fmt: skip
        return await self._run(steps)

    async def offset_at(self, queue: MessageQueue, when: When) -> int:
        """Return the offset of the first message that was stored at this time or later."""
        return await self._run(offset_at(self.parts.instance, queue, milliseconds(when)))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the committed offset of the group; None: there is ncached."""
        return await self.parts.offsets.kept(queue)

    def _note(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            self.parts.offsets.update(queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit these offsets, or those after all messages that were handed out, and wait for the end of the commit.

        Raises: UsageError: beyond the messages that were handed out, or a queue that is not assigned; the errors of
        the store.
        """
        if offsets is None:
            self.cache.acknowledge()
            offsets = self.cache.positions(handed_out=True)
        else:
            self.cache.check(offsets)
        self._note(offsets)
        await self.parts.offsets.persist(offsets)

    async def auto_commit(self) -> None:
        """Commit the acknowledged offsets."""
        self._note(self.cache.positions(handed_out=False))
        await self.parts.offsets.persist()

    async def pause(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> None:
        """Stop or resume the pulls of these queues, or of all; cached messages are still handed out."""
        wanted = None if queues is None else set(queues)
        for cached in self.cache.all():
            if wanted is None or cached.queue in wanted:
                cached.is_paused = paused
                self.parts.fetcher.queue_changed(cached.queue, False)

    def positions(self) -> dict[MessageQueue, int]:
        """Return queue without namespace -> offset of the next message that is handed out; -1: not known yet."""
        offsets = {cached.plain: cached.handed_out for cached in self.cache.all()}
        return {queue: offset if offset is not None else -1 for queue, offset in offsets.items()}

    def stats(self) -> dict[str, Any]:
        """Return queues, offsets, counts of cached messages, and the errors that keep messages from arriving."""
        queues = self.cache.all()
        return {
            "group": self._settings.group,
            "client_id": self.parts.instance.client_id,
            "topics": sorted(unwrap(self._settings.namespace, topic) for topic in list(self.subscriptions)),
            "queues": {
                cached.plain: {
                    "next_offset": cached.handed_out,
                    "acknowledged": cached.acknowledged,
                    "cached": len(cached.ahead),
                    "cached_bytes": cached.bytes,
                    "paused": cached.is_paused,
                    "error": None if cached.error is None else str(cached.error),
                    "moved": None if cached.moved is None else str(cached.moved),
                }
                for cached in queues
            },
            "unbalanced": self.parts.assignment.trouble or None,
        }


def wire(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """Return the queue on the wire. Raises: UsageError for a value that is no queue."""
    checked: object = queue
    if not isinstance(checked, tuple) or len(checked) != 3:
        raise ClientUsageError(f"queue: expected a MessageQueue(topic, broker_name, queue_id), found {queue!r}")
    topic, broker_name, queue_id = checked
    if not isinstance(topic, str) or not isinstance(broker_name, str) or type(queue_id) is not int or queue_id < 0:
        raise ClientUsageError(f"queue: expected a MessageQueue(topic, broker_name, queue_id from 0), found {queue!r}")
    return wrap_queue(namespace, MessageQueue(topic, broker_name, queue_id))
