"""The engine of pull consumers, one for the sync and the asyncio face: pulls ahead, rebalances, keeps offsets.

It must never commit beyond what the cache says, never pull a queue that it was not given, and never wait without a
deadline. What is handed out is decided by ``cache.py``. Source: DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from mqfast.client.consumer.group_requests import check_sql
from mqfast.client.consumer.offsets import GroupOffsets, offsets_of
from mqfast.client.consumer.pull.assignment import Assignment
from mqfast.client.consumer.pull.prefetch_buffer import CachedQueue, PrefetchBuffer
from mqfast.client.consumer.pull.requests import PullRequests
from mqfast.client.consumer.pull.settings import PullSettings
from mqfast.client.consumer.pull_request import PullAnswer, TopicGone, pull
from mqfast.client.consumer.queue_bounds import (
    end_before,
    first_offset,
    max_offset,
    min_offset,
    offset_at,
    read_place,
    where_of_new,
)
from mqfast.client.consumer.subscription import SQL92, Subscription, new_version
from mqfast.client.delivery import Source
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.instance import ClientInstance
from mqfast.client.route.namespace import plain_queue, retry_topic, unwrap, wrap, wrap_queue
from mqfast.client.values import MessageQueue, When, milliseconds
from mqfast.errors import (
    BrokerError,
    ClientError,
    ClientUsageError,
    ConnectError,
    MqfastError,
    NoRoute,
    Refused,
    SubscriptionError,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_whole

__all__ = ["PullEngine", "SeekTo"]

SeekTo = int | Literal["earliest", "latest", "first", "last"] | Any
HELD_S: Final = 20.0
_AFTER_ERROR_S: Final = 1.0
PLACES_S: Final = 3.0
"""How long the start of a broadcasting consumer waits at most until it is known where each queue begins."""
_TRACE_S: Final = 1.0  # for what was not yet traced, at the end
_AFTER_FLOW_CONTROL_S: Final = 0.02
_FLOW_CONTROL: Final = 215
_log = logging.getLogger("mqfast.client.consumer")


class PullEngine:
    """One pull consumer in one event loop.

    Thread: that of the event loop, but for ``cache``: any.
    """

    def __init__(self, settings: PullSettings, subscriptions: Mapping[str, Subscription]) -> None:
        self.settings: Final = settings
        self.group: Final = wrap(settings.namespace, settings.group)
        self.cache: Final = PrefetchBuffer(settings.group, settings.offset_reset, settings.limits, self._queue_changed)
        self.subscriptions: Final = dict(subscriptions)
        self.is_closed = False
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._room: dict[MessageQueue, asyncio.Event] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._sources: dict[MessageQueue, Source] = {}
        self.shares: Final = Assignment(self)
        self._requests: Final = PullRequests(self)
        self._without_lite: set[str] = set()
        self._since_ms: dict[str, int] = {}  # broadcasting: topic -> since when it is read, once it has begun
        self._arrived = asyncio.Event()
        self.cache.asynchronous = self._arrived.set

    # --- life ---

    async def start(self, is_gone: Callable[[], bool] = lambda: False) -> None:
        """Make the consumer known and give it its queues. Args: is_gone: was the consumer closed meanwhile?

        Raises: ConnectError, SubscriptionError, ClientError.
        """
        settings = self.settings
        self.is_closed = False
        self._loop = loop_of_caller()
        self.instance = ClientInstance.shared(settings.instance, self._loop, consumer_group=self.group)
        await self.instance.acquire(may_wait=settings.start_timeout_s != 0)
        try:
            await self.instance.wait_for_name_server(settings.start_timeout_s, is_gone)
            since_ms = int(time.time() * 1000)
            self.instance.add_consumer(self.group, self)
            self.offsets: GroupOffsets = offsets_of(
                self.instance, self.group, broadcasting=settings.is_broadcasting, own=settings.offset_store
            )
            for topic in list(self.subscriptions):
                await self.look_up(topic)
            self._requests.register()
            self.instance.routes.on_change.append(self._route_changed)
            await self.instance.heartbeat()
            await self.shares.rebalance_all()
            await self.wait_for_places(self.subscriptions, since_ms)
        except BaseException:
            await self._leave()
            raise
        if settings.tracer is not None:
            settings.tracer.begin(self.instance)
        spawn = self.instance.spawn
        self._tasks.append(spawn(self.shares.keep_balanced(), f"mqfast rebalance {self.group}"))
        if settings.auto_commit_s is not None:
            self._tasks.append(self.instance.every(settings.auto_commit_s, self.auto_commit, f"commit {self.group}"))

    async def close(self, *, all_handed_out: bool) -> None:
        """Stop, commit where auto commit is on, and let brokers and members know.

        Args: all_handed_out: commit the messages of the last poll as well; else only those that were acknowledged.
        """
        if self.is_closed:
            return
        self.is_closed = True
        group = self.settings.group
        self.cache.close(f"group {group}: the pull consumer is closed")
        for task in [*self._tasks, *self._pulls.values()]:
            task.cancel()
        try:
            if self.settings.auto_commit_s is not None:
                self._note(self.cache.positions(handed_out=all_handed_out))
                await self.offsets.persist()
        except (MqfastError, OSError) as error:
            _log.warning("group %s: the offsets were not committed at the end: %s", group, error)
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self.is_closed = True
        with contextlib.suppress(ValueError):
            self.instance.routes.on_change.remove(self._route_changed)
        self._requests.unregister()
        try:
            if self.settings.tracer is not None:
                await self.settings.tracer.close(_TRACE_S)
            await self.instance.remove_consumer(self.group, self)
        finally:
            await self.instance.release()

    async def look_up(self, topic: str) -> None:
        """Ask for the route of a topic, and let a broker check its SQL."""
        try:
            await self.run(self.instance.route(topic, timeout_s=5.0, refresh=True))
        except NoRoute as error:
            _log.warning("group %s: %s; it is asked for again", self.settings.group, error)
            return
        wanted = self.subscriptions.get(topic)
        if wanted is not None and wanted.kind == SQL92:
            await self.run(check_sql(self.instance, self.group, wanted))

    async def run(self, steps: Any) -> Any:
        return await self.instance.driver.run(steps)

    # --- the instance's view ---

    def heartbeat(self) -> Mapping[str, Any]:
        """Its part of a heartbeat."""
        settings = self.settings
        where = {"latest": "CONSUME_FROM_LAST_OFFSET", "earliest": "CONSUME_FROM_FIRST_OFFSET"}
        return {
            "consumeFromWhere": where.get(str(settings.from_where), "CONSUME_FROM_TIMESTAMP"),
            "consumeType": "CONSUME_ACTIVELY",
            "groupName": self.group,
            "messageModel": "BROADCASTING" if settings.is_broadcasting else "CLUSTERING",
            "subscriptionDataSet": [one.as_json() for one in list(self.subscriptions.values())],
            "unitMode": False,
        }

    def topics(self) -> Iterable[str]:
        """The topics whose routes are kept fresh."""
        return {*list(self.subscriptions), *(one.queue.topic for one in self.cache.all())}

    def _route_changed(self, topic: str, route: object) -> None:
        if topic in self.subscriptions:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.shares.wake.set)

    # --- which queues ---

    def take(self, queue: MessageQueue) -> None:
        plain = plain_queue(self.settings.namespace, queue)
        self._sources[queue] = Source(
            queue.broker_name,
            plain,
            retry_topic=retry_topic(self.settings.namespace, self.settings.group),
            namespace=self.settings.namespace or "",
            body_bytes_max=self.settings.max_body_bytes,
        )
        self._room[queue] = asyncio.Event()
        one = self.cache.add(queue, plain)
        self._pulls[queue] = self.instance.spawn(self._pull_always(one), f"mqfast pull {queue}")

    async def give_up(self, queue: MessageQueue) -> None:
        one = self.cache.remove(queue)
        task = self._pulls.pop(queue, None)
        if task is not None:
            task.cancel()
        if one is not None and one.acknowledged is not None and self.settings.auto_commit_s is not None:
            self.offsets.update(queue, one.acknowledged)
            try:
                await self.offsets.persist([queue])
            except (MqfastError, OSError) as error:
                _log.warning("group %s: the offset of %s was not committed: %s", self.group, queue, error)
        self.offsets.remove(queue)
        self._sources.pop(queue, None)
        self._room.pop(queue, None)

    # --- pulling ---

    def _queue_changed(self, queue: MessageQueue, is_new_place: bool) -> None:
        """Of the cache, from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._pull_again, queue, is_new_place)

    def _pull_again(self, queue: MessageQueue, is_new_place: bool) -> None:
        room, one = self._room.get(queue), self.cache.get(queue)
        if room is None or one is None or self.is_closed:
            return
        room.set()
        if is_new_place:  # what is under way is of the place before
            self._pulls[queue].cancel()
            self._pulls[queue] = self.instance.spawn(self._pull_always(one), f"mqfast pull {queue}")

    async def _pull_always(self, one: CachedQueue) -> None:
        """Pull a queue until it is given up or begins elsewhere."""
        broker_id = 0
        while not one.is_dropped:
            try:
                if one.handed_out is None:
                    await self._find_place(one)
                await self._wait_for_room(one)
                wanted = self.subscriptions.get(one.queue.topic)
                asked = await self.run(read_place(self.instance, one.queue, broker_id))
                answer = await self._pull(one, asked[1])
                if self.subscriptions.get(one.queue.topic) is not wanted:
                    continue  # another expression is asked from the same offset
            except (MqfastError, OSError) as error:
                after = _AFTER_ERROR_S
                if isinstance(error, BrokerError) and error.code == _FLOW_CONTROL:
                    after = _AFTER_FLOW_CONTROL_S
                elif self.cache.fail(one, error):
                    _log.warning("group %s: %s", self.settings.group, error)
                if not isinstance(error, BrokerError):
                    self.instance.route_failed(one.queue.topic)
                broker_id = 0
                if isinstance(error, TopicGone) and one.handed_out is not None:
                    self.cache.lose(one)
                    self.offsets.remove(one.queue)
                await asyncio.sleep(after)
            except Exception as error:  # an offset store of the user's
                if self.cache.fail(one, error):
                    _log.exception("group %s, %s", self.settings.group, one.plain)
                await asyncio.sleep(_AFTER_ERROR_S)
            else:
                broker_id = answer.broker_id
                words = self.cache.put(one, answer)
                if words:
                    _log.warning("group %s: %s", self.settings.group, words)
                if (
                    answer.leads_nowhere
                    and self.instance.routes.read_address(one.queue.broker_name, broker_id) == asked
                ):
                    self.instance.route_failed(one.queue.topic)
                    await asyncio.sleep(_AFTER_ERROR_S)
                if self.settings.pull_interval_s:
                    await asyncio.sleep(self.settings.pull_interval_s)

    async def _find_place(self, one: CachedQueue) -> None:
        since_ms = self._since_ms.get(one.queue.topic)
        where = where_of_new(self.settings.from_where, was_lost=one.was_lost, since_ms=since_ms)
        end = await self.run(end_before(self.instance, one.queue, where))
        kept = await self.offsets.read(one.queue)
        start = kept if kept is not None else end
        if start is None:
            start = await self.run(first_offset(self.instance, one.queue, where))
        if one.handed_out is None:  # a seek meanwhile decides
            one.begin(start, is_new=kept is None)

    async def wait_for_places(self, topics: Iterable[str], since_ms: int | None = None) -> None:
        """Broadcasting: until it is known where each queue of these topics begins; what is sent from then on is read.

        Args: since_ms: when the topics were subscribed.
        """
        if not self.settings.is_broadcasting:
            return
        topics, until = set(topics), time.monotonic() + PLACES_S
        while not self.is_closed and time.monotonic() < until and self._lacks_places(topics):
            await asyncio.sleep(0.002)
        if since_ms is not None:
            self._since_ms.update(dict.fromkeys(topics, since_ms))

    def _lacks_places(self, topics: set[str]) -> bool:
        mine = (one for one in self.cache.all() if one.queue.topic in topics)
        return any(one.handed_out is None and one.error is None for one in mine)

    def forget_topic(self, topic: str) -> None:
        """The topic was unsubscribed."""
        self._since_ms.pop(topic, None)

    async def _wait_for_room(self, one: CachedQueue) -> None:
        room = self._room[one.queue]
        while True:
            room.clear()
            with self.cache.arrival:
                one.waits = one.is_paused or one.moved is not None or self.cache.is_full(one)
            if not one.waits:
                return
            await room.wait()

    async def _pull(self, one: CachedQueue, address: str) -> PullAnswer:
        queue = one.queue
        wanted = self.subscriptions.get(queue.topic) or Subscription(queue.topic)
        for is_lite in (True, False) if address not in self._without_lite else (False,):
            steps = pull(
                address,
                self.group,
                queue,
                one.next_pull,
                wanted,
                self._sources[queue],
                max_count=self.settings.pull_batch,
                suspend_s=HELD_S,
                post_subscription=True,
                is_lite=is_lite,
                timeout_s=HELD_S + 10.0,
            )
            try:
                return await self.run(steps)  # type: ignore[no-any-return]
            except (BrokerError, ConnectError, NoRoute) as error:
                is_unknown = isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if not (is_lite and is_unknown):
                    raise
                self._without_lite.add(address)  # a broker before 5.0
            except ClientError:  # nonsense: who knows what else is on its way
                self.instance.remoting.drain(address)
                raise
        raise AssertionError("the last attempt returns or raises")

    # --- what the application asks ---

    async def wait(self, timeout_s: float) -> bool:
        """Wait until something may have arrived. Returns: False at the end of the time."""
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
        """Why no queue can be read, where waiting does not help: told at the end of a poll without a message.

        Args: has_waited: False for a poll that only looks, which may come before the first topic.
        """
        queues = self.cache.all()
        if has_waited and not queues and self.shares.lacks_topics:
            return ClientUsageError(
                f"group {self.settings.group}: expected a topic or queues: topics=, subscribe() or assign(), found none"
            )
        if not queues:
            return self.shares.refusal
        refused = [one.error for one in queues if isinstance(one.error, (Refused, SubscriptionError))]
        return refused[0] if refused and len(refused) == len(queues) else None

    async def queues(self, topic: str) -> list[MessageQueue]:
        """All readable queues of a topic. Raises: NoRoute, ConnectError."""
        route = await self.run(self.instance.route(topic, timeout_s=5.0))
        return list(route.subscribe_queues())

    async def seek(self, queue: MessageQueue, to: SeekTo) -> None:
        """Go on elsewhere. Raises: UsageError: not assigned, or no place in the queue."""
        if self.cache.get(queue) is None:
            raise ClientUsageError(
                f"seek: {queue} is not assigned to this consumer; expected one of {sorted(self.positions())}"
            )
        instance = self.instance
        to = end_word(to)
        if to == "earliest":
            offset = await self.run(min_offset(instance, queue))
        elif to == "latest":
            offset = await self.run(max_offset(instance, queue))
        elif not is_whole(to):
            offset = await self.run(offset_at(instance, queue, milliseconds(to)))
        else:
            offset = to
            low, high = await self.run(min_offset(instance, queue)), await self.run(max_offset(instance, queue))
            if not low <= offset <= high:
                raise ClientUsageError(f"seek of {queue}: expected an offset from {low} to {high}, found {offset}")
        self.cache.seek(queue, offset, is_new=not isinstance(to, int))

    async def pull(
        self, queue: MessageQueue, offset: int, *, max_count: int, tags: str, sql: str | None, wait_s: float
    ) -> PullAnswer:
        """One pull of any queue; nothing of this consumer changes."""
        wanted = Subscription(queue.topic, tags, sql=sql, version=new_version())
        plain = plain_queue(self.settings.namespace, queue)
        source = Source(
            queue.broker_name, plain, namespace=self.settings.namespace or "",
            body_bytes_max=self.settings.max_body_bytes,
        )  # fmt: skip
        _, address = await self.run(read_place(self.instance, queue))
        steps = pull(
            address, self.group, queue, offset, wanted, source, max_count=max_count, suspend_s=wait_s,
            post_subscription=True, timeout_s=wait_s + 10.0,
        )  # fmt: skip
        return await self.run(steps)  # type: ignore[no-any-return]

    async def offset_at(self, queue: MessageQueue, when: When) -> int:
        """The first message of a time or later."""
        return await self.run(offset_at(self.instance, queue, milliseconds(when)))  # type: ignore[no-any-return]

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is kept for the group, None where there is none."""
        return await self.offsets.kept(queue)

    def _note(self, offsets: Mapping[MessageQueue, int]) -> None:
        for queue, offset in offsets.items():
            self.offsets.update(queue, offset)

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep these offsets, or those behind everything that was handed out, and wait until they are kept.

        Raises: UsageError: beyond what was handed out, or of a queue of somebody else; what the store raises.
        """
        if offsets is None:
            self.cache.acknowledge()
            offsets = self.cache.positions(handed_out=True)
        else:
            self.cache.check(offsets)
        self._note(offsets)
        await self.offsets.persist(offsets)

    async def auto_commit(self) -> None:
        """Keep what was acknowledged."""
        self._note(self.cache.positions(handed_out=False))
        await self.offsets.persist()

    async def pause(self, queues: Iterable[MessageQueue] | None, *, paused: bool) -> None:
        """Stop pulling these queues, or all, or go on; what is cached is handed out."""
        wanted = None if queues is None else set(queues)
        for one in self.cache.all():
            if wanted is None or one.queue in wanted:
                one.is_paused = paused
                self._pull_again(one.queue, False)

    def positions(self) -> dict[MessageQueue, int]:
        """By queue as users see it: the offset of the next message that is handed out."""
        found = {one.plain: one.handed_out for one in self.cache.all()}
        return {queue: at if at is not None else -1 for queue, at in found.items()}

    def stats(self) -> dict[str, Any]:
        """What this consumer does, and why nothing comes."""
        queues = self.cache.all()
        return {
            "group": self.settings.group,
            "client_id": self.instance.client_id,
            "topics": sorted(unwrap(self.settings.namespace, topic) for topic in list(self.subscriptions)),
            "queues": {
                one.plain: {
                    "next_offset": one.handed_out,
                    "acknowledged": one.acknowledged,
                    "cached": len(one.ahead),
                    "cached_bytes": one.bytes,
                    "paused": one.is_paused,
                    "error": None if one.error is None else str(one.error),
                    "moved": None if one.moved is None else str(one.moved),
                }
                for one in queues
            },
            "unbalanced": self.shares.trouble or None,
        }


def wire(namespace: str | None, queue: MessageQueue) -> MessageQueue:
    """A user's queue as it goes over the wire. Raises: UsageError for what is none."""
    checked: object = queue
    if not isinstance(checked, tuple) or len(checked) != 3:
        raise ClientUsageError(f"queue: expected a MessageQueue(topic, broker_name, queue_id), found {queue!r}")
    topic, broker_name, queue_id = checked
    if not isinstance(topic, str) or not isinstance(broker_name, str) or type(queue_id) is not int or queue_id < 0:
        raise ClientUsageError(f"queue: expected a MessageQueue(topic, broker_name, queue_id from 0), found {queue!r}")
    return wrap_queue(namespace, MessageQueue(topic, broker_name, queue_id))
