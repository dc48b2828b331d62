"""The fetcher of a pull consumer: positions of the assigned queues, and one pull loop per queue.

The pulled messages go into the prefetch buffer. Only assigned queues are pulled.
Source: DefaultLitePullConsumerImpl.PullTaskImpl.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from typing import Final

from mqfast.client.consumer.offsets import GroupOffsets
from mqfast.client.consumer.pull.prefetch_buffer import CachedQueue
from mqfast.client.consumer.pull.state import PullState
from mqfast.client.consumer.pull_request import PullAnswer, TopicGone, pull
from mqfast.client.consumer.queue_bounds import end_before, first_offset, read_place, where_of_new
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.delivery import Source
from mqfast.client.net.instance import ClientInstance
from mqfast.client.route.namespace import plain_queue, retry_topic
from mqfast.client.values import MessageQueue
from mqfast.errors import BrokerError, ClientError, ConnectError, MqfastError, NoRoute
from mqfast.remoting.codes import ResponseCode

__all__ = ["PullFetcher"]

HELD_S: Final = 20.0
POSITIONS_S: Final = 3.0
"""Longest wait of the start of a broadcasting consumer for the positions of its queues."""
_AFTER_ERROR_S: Final = 1.0
_AFTER_FLOW_CONTROL_S: Final = 0.02
_log = logging.getLogger("mqfast.client.consumer")


class PullFetcher:
    """Pulls for one consumer. Thread: that of the event loop."""

    def __init__(self, state: PullState, instance: ClientInstance, offsets: GroupOffsets) -> None:
        self._settings: Final = state.settings
        self._group: Final = state.group
        self._cache: Final = state.cache
        self._subscriptions: Final = state.subscriptions
        self._instance: Final = instance
        self._offsets: Final = offsets
        self._tasks: dict[MessageQueue, asyncio.Task[None]] = {}
        self._room: dict[MessageQueue, asyncio.Event] = {}
        self._sources: dict[MessageQueue, Source] = {}
        self._without_lite: set[str] = set()
        self._since_ms: dict[str, int] = {}  # broadcasting: topic -> ms of its subscription, once the start is over
        self._has_stopped = False

    # --- queues ---

    def assign(self, queue: MessageQueue) -> None:
        """Begin to pull a queue."""
        namespace = self._settings.namespace
        plain = plain_queue(namespace, queue)
        self._sources[queue] = Source(
            queue.broker_name,
            plain,
            retry_topic=retry_topic(namespace, self._settings.group),
            namespace=namespace or "",
            body_bytes_max=self._settings.max_body_bytes,
        )
        self._room[queue] = asyncio.Event()
        self._begin(self._cache.add(queue, plain))

    def _begin(self, cached: CachedQueue) -> None:
        queue = cached.queue
        self._tasks[queue] = self._instance.spawn(self._pull_always(cached), f"mqfast pull {queue}")

    async def revoke(self, queue: MessageQueue) -> None:
        """Stop pulling a queue and discard its cached messages; with auto commit, commit the acknowledged offset."""
        cached = self._cache.remove(queue)
        task = self._tasks.pop(queue, None)
        if task is not None:
            task.cancel()
        if cached is not None and cached.acknowledged is not None and self._settings.auto_commit_s is not None:
            self._offsets.update(queue, cached.acknowledged)
            try:
                await self._offsets.persist([queue])
            except (MqfastError, OSError) as error:
                _log.warning("group %s: the offset of %s was not committed: %s", self._settings.group, queue, error)
        self._offsets.remove(queue)
        self._sources.pop(queue, None)
        self._room.pop(queue, None)

    def queue_changed(self, queue: MessageQueue, has_new_position: bool) -> None:
        """Continue to pull a queue that has room again, or restart the pull at a new position."""
        room, cached = self._room.get(queue), self._cache.get(queue)
        if room is None or cached is None or self._has_stopped:
            return
        room.set()
        if has_new_position:  # the pull that is under way has the old position
            self._tasks[queue].cancel()
            self._begin(cached)

    def stop(self) -> None:
        """Stop all pull loops."""
        self._has_stopped = True
        for task in self._tasks.values():
            task.cancel()

    # --- positions ---

    async def _find_position(self, cached: CachedQueue) -> None:
        run = self._instance.driver.run
        since_ms = self._since_ms.get(cached.queue.topic)
        where = where_of_new(self._settings.from_where, was_lost=cached.was_lost, since_ms=since_ms)
        end = await run(end_before(self._instance, cached.queue, where))
        kept = await self._offsets.read(cached.queue)
        start = kept if kept is not None else end
        if start is None:
            start = await run(first_offset(self._instance, cached.queue, where))
        if cached.handed_out is None:  # else a seek has set the position meanwhile
            cached.begin(start, is_new=kept is None)

    async def wait_for_positions(self, topics: Iterable[str], since_ms: int | None = None) -> None:
        """Broadcasting: wait until the queues of these topics have positions, so that later messages are consumed.

        Args: since_ms: time of the subscriptions.
        """
        if not self._settings.is_broadcasting:
            return
        topics, until = set(topics), time.monotonic() + POSITIONS_S
        while not self._has_stopped and time.monotonic() < until and self._lacks_positions(topics):
            await asyncio.sleep(0.002)
        if since_ms is not None:
            self._since_ms.update(dict.fromkeys(topics, since_ms))

    def _lacks_positions(self, topics: set[str]) -> bool:
        mine = (cached for cached in self._cache.all() if cached.queue.topic in topics)
        return any(cached.handed_out is None and cached.error is None for cached in mine)

    def forget_topic(self, topic: str) -> None:
        """Discard the time of a subscription that has ended."""
        self._since_ms.pop(topic, None)

    # --- pull loop ---

    async def _pull_always(self, cached: CachedQueue) -> None:
        """Pull a queue until the queue is revoked or gets a new position."""
        broker_id, run, instance = 0, self._instance.driver.run, self._instance
        while not cached.is_dropped:
            try:
                if cached.handed_out is None:
                    await self._find_position(cached)
                await self._wait_for_room(cached)
                wanted = self._subscriptions.get(cached.queue.topic)
                broker = await run(read_place(instance, cached.queue, broker_id))
                answer = await self._pull(cached, broker[1])
                if self._subscriptions.get(cached.queue.topic) is not wanted:
                    continue  # pull from the same offset with the new subscription
            except (MqfastError, OSError) as error:
                broker_id = 0
                await asyncio.sleep(self._pull_failed(cached, error))
            except Exception as error:  # of an offset store of the user
                if self._cache.fail(cached, error):
                    _log.exception("group %s, %s", self._settings.group, cached.plain)
                await asyncio.sleep(_AFTER_ERROR_S)
            else:
                broker_id = answer.broker_id
                warning = self._cache.put(cached, answer)
                if warning:
                    _log.warning("group %s: %s", self._settings.group, warning)
                if answer.leads_nowhere and instance.routes.read_address(cached.queue.broker_name, broker_id) == broker:
                    instance.route_failed(cached.queue.topic)
                    await asyncio.sleep(_AFTER_ERROR_S)
                if self._settings.pull_interval_s:
                    await asyncio.sleep(self._settings.pull_interval_s)

    def _pull_failed(self, cached: CachedQueue, error: MqfastError | OSError) -> float:
        """Note the failure of a pull. Returns: the pause until the next pull, seconds."""
        pause_s = _AFTER_ERROR_S
        if isinstance(error, BrokerError) and error.code == ResponseCode.FLOW_CONTROL:
            pause_s = _AFTER_FLOW_CONTROL_S
        elif self._cache.fail(cached, error):
            _log.warning("group %s: %s", self._settings.group, error)
        if not isinstance(error, BrokerError):
            self._instance.route_failed(cached.queue.topic)
        if isinstance(error, TopicGone) and cached.handed_out is not None:
            self._cache.reset_position(cached)
            self._offsets.remove(cached.queue)
        return pause_s

    async def _wait_for_room(self, cached: CachedQueue) -> None:
        room = self._room[cached.queue]
        while True:
            room.clear()
            with self._cache.arrival:
                cached.waits = cached.is_paused or cached.moved is not None or self._cache.is_full(cached)
            if not cached.waits:
                return
            await room.wait()

    async def _pull(self, cached: CachedQueue, address: str) -> PullAnswer:
        queue = cached.queue
        wanted = self._subscriptions.get(queue.topic) or Subscription(queue.topic)
        for is_lite in (True, False) if address not in self._without_lite else (False,):
            steps = pull(
                address,
                self._group,
                queue,
                cached.next_pull,
                wanted,
                self._sources[queue],
                max_count=self._settings.pull_batch,
                suspend_s=HELD_S,
                post_subscription=True,
                is_lite=is_lite,
                timeout_s=HELD_S + 10.0,
            )
            try:
                return await self._instance.driver.run(steps)
            except (BrokerError, ConnectError, NoRoute) as error:
                is_unknown = isinstance(error, BrokerError) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
                if not (is_lite and is_unknown):
                    raise
                self._without_lite.add(address)  # a broker before 5.0
            except ClientError:  # an answer that cannot be decoded: later answers on the connection may be wrong too
                self._instance.remoting.drain(address)
                raise
        raise AssertionError("the last attempt returns or raises")
