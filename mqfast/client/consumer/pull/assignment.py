"""The coordinator of a pull consumer: subscriptions, heartbeats and rebalance, or queues assigned by the user.

While the members of the group are unknown the assignment does not change. A queue is assigned after the revoked queues
have committed. Source: RebalanceLitePullImpl, DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from mqfast.client.consumer.group_requests import check_sql
from mqfast.client.consumer.loop_calls import call_in_loop
from mqfast.client.consumer.members import group_members
from mqfast.client.consumer.pull.fetcher import PullFetcher
from mqfast.client.consumer.pull.state import PullState
from mqfast.client.consumer.queue_bounds import read_place
from mqfast.client.consumer.rebalance import NOTHING, RebalanceResult, rebalance, rebalance_broadcast
from mqfast.client.consumer.subscription import SQL92, Subscription
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.values import MessageQueue
from mqfast.errors import (
    CallTimeout,
    ClientError,
    ClientUsageError,
    ConnectionLost,
    MqfastError,
    NoRoute,
    Refused,
)

__all__ = ["Assignment"]

REBALANCE_S: Final = 20.0
_AFTER_TROUBLE_S: Final = 1.0
_FROM_WHERE: Final = {"latest": "CONSUME_FROM_LAST_OFFSET", "earliest": "CONSUME_FROM_FIRST_OFFSET"}
_log = logging.getLogger("mqfast.client.consumer")


class Assignment:
    """The queues of one pull consumer.

    Attributes: wake: set the event for a rebalance at once; trouble: why the last rebalance failed, or empty;
        refusal: the error of a broker that does not accept this client in the group.
    Thread: that of the event loop.
    """

    def __init__(self, state: PullState, instance: ClientInstance, fetcher: PullFetcher) -> None:
        self.wake: Final = asyncio.Event()
        self.trouble = ""
        self.refusal: Refused | None = None
        self._settings: Final = state.settings
        self._group: Final = state.group
        self._cache: Final = state.cache
        self._subscriptions: Final = state.subscriptions
        self._instance: Final = instance
        self._fetcher: Final = fetcher
        self._is_by_hand = False
        self._has_unsubscribed = False
        self._rounds = 0
        self._rebalancing: Final = asyncio.Lock()

    @property
    def lacks_topics(self) -> bool:
        """Return whether there was never a subscription, nor a call of ``assign``."""
        return not self._subscriptions and not self._is_by_hand and not self._has_unsubscribed

    # --- requests of the instance ---

    def heartbeat(self) -> Mapping[str, Any]:
        """Return RocketMQ's ConsumerData."""
        settings = self._settings
        return {
            "consumeFromWhere": _FROM_WHERE.get(str(settings.from_where), "CONSUME_FROM_TIMESTAMP"),
            "consumeType": "CONSUME_ACTIVELY",
            "groupName": self._group,
            "messageModel": "BROADCASTING" if settings.is_broadcasting else "CLUSTERING",
            "subscriptionDataSet": [wanted.as_json() for wanted in list(self._subscriptions.values())],
            "unitMode": False,
        }

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes are refreshed periodically."""
        return {*list(self._subscriptions), *(cached.queue.topic for cached in self._cache.all())}

    def _route_changed(self, topic: str, route: object) -> None:
        if topic in self._subscriptions:
            call_in_loop(self._instance.loop, self.wake.set)

    # --- join and leave ---

    async def find_topics(self) -> None:
        """Request the routes of all topics; brokers check SQL expressions. Raises: SubscriptionError, ClientError."""
        for topic in list(self._subscriptions):
            await self._find_topic(topic)

    async def join(self, since_ms: int) -> None:
        """Join the group and begin to pull. Args: since_ms: time of the subscriptions. Raises: ClientError."""
        self._instance.routes.on_change.append(self._route_changed)
        await self._instance.heartbeat()
        await self.rebalance_all()
        await self._fetcher.wait_for_positions(self._subscriptions, since_ms)

    def stop(self) -> None:
        """End the reactions to changes of routes."""
        with contextlib.suppress(ValueError):
            self._instance.routes.on_change.remove(self._route_changed)

    # --- subscriptions ---

    async def subscribe(self, wanted: Subscription) -> None:
        """Add or replace the subscription of a topic.

        Raises: UsageError after ``assign``; SubscriptionError, ConnectError.
        """
        if self._is_by_hand:
            raise ClientUsageError("subscribe: expected no queues given by assign(), found some; use one of both")
        since_ms = int(time.time() * 1000)
        before = self._subscriptions.get(wanted.topic)
        self._subscriptions[wanted.topic] = wanted
        try:
            await self._find_topic(wanted.topic)
        except BaseException:
            if before is None:
                del self._subscriptions[wanted.topic]
            else:
                self._subscriptions[wanted.topic] = before
            raise
        if before is not None:  # the cached messages were filtered by the old expression
            self._cache.reread(wanted.topic)
        await self._instance.heartbeat()
        await self.rebalance_all()
        await self._fetcher.wait_for_positions([wanted.topic], since_ms)

    async def unsubscribe(self, topic: str) -> None:
        """Remove the subscription of a topic and revoke its queues."""
        if self._subscriptions.pop(topic, None) is None:
            return
        self._has_unsubscribed = True
        self._fetcher.forget_topic(topic)
        owned = [cached.queue for cached in self._cache.all() if cached.queue.topic == topic]
        async with self._rebalancing:
            await self._apply(RebalanceResult(give_up=tuple(owned)))
        await self._instance.heartbeat()

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, without rebalance. Raises: UsageError after ``subscribe``."""
        if self._subscriptions:
            raise ClientUsageError("assign: expected no subscribed topic, found some; use one of both")
        self._is_by_hand = True
        wanted = set(queues)
        owned = {cached.queue for cached in self._cache.all()}
        for queue in sorted(wanted - owned):
            await self._instance.driver.run(read_place(self._instance, queue))
        if not all(self._is_registered(queue.broker_name) for queue in wanted):
            await self._instance.heartbeat()  # a broker refuses offsets of a group without a heartbeat
        async with self._rebalancing:
            await self._apply(RebalanceResult(tuple(sorted(wanted - owned)), tuple(sorted(owned - wanted))))
        await self._fetcher.wait_for_positions({queue.topic for queue in wanted})

    def _is_registered(self, broker_name: str) -> bool:
        place = self._instance.routes.brokers.get(broker_name)
        return place is not None and all(map(self._instance.is_registered_at, place.addresses.values()))

    async def _find_topic(self, topic: str) -> None:
        """Request the route of a topic; a broker checks its SQL expression."""
        run, instance = self._instance.driver.run, self._instance
        try:
            await run(instance.route(topic, timeout_s=5.0, refresh=True))
        except NoRoute as error:
            _log.warning("group %s: %s; it is asked for again", self._settings.group, error)
            return
        wanted = self._subscriptions.get(topic)
        if wanted is not None and wanted.kind == SQL92:
            await run(check_sql(instance, self._group, wanted))

    # --- rebalance ---

    async def keep_balanced(self) -> None:
        """Rebalance every 20 s and when ``wake`` is set, until the task is cancelled."""
        while True:
            after = _AFTER_TROUBLE_S if self.trouble else REBALANCE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(after):
                    await self.wake.wait()
            self.wake.clear()
            try:
                await self.rebalance_all()
            except (MqfastError, OSError) as error:
                _log.warning("group %s: rebalance: %s", self._settings.group, error)
            except Exception:
                _log.exception("group %s: rebalance failed", self._settings.group)

    async def rebalance_all(self) -> None:
        """Rebalance every topic; after an error the queues of the topic stay assigned as before."""
        trouble, refusal = "", None
        async with self._rebalancing:
            for topic in list(self._subscriptions):
                try:
                    await self._apply(await self._change_of(topic))
                except (ClientError, ConnectionLost, CallTimeout) as error:
                    trouble = str(error)
                    refusal = error if isinstance(error, Refused) else None
                except Exception as error:  # of a strategy or an offset store of the user
                    trouble = f"{type(error).__name__}: {error}"
        self._rounds = self._rounds + 1 if trouble else 0
        if self._rounds == 2:  # the first time, the heartbeat may still be on its way
            _log.warning("group %s: the queues stay as they are: %s", self._settings.group, trouble)
        self.trouble, self.refusal = trouble, refusal

    async def _change_of(self, topic: str) -> RebalanceResult:
        instance, group = self._instance, self._group
        if instance.routes.get(topic) is None:
            await instance.driver.run(instance.route(topic, refresh=True))
        queues = instance.routes.subscribe_queues(topic)
        owned = [cached.queue for cached in self._cache.all()]
        if not queues:
            return NOTHING
        if self._settings.is_broadcasting:
            return rebalance_broadcast(topic, queues, owned)
        members = await instance.driver.run(group_members(instance, group, topic))
        try:
            change = rebalance(group, instance.client_id, topic, queues, members, self._settings.allocation, owned)
        except BaseException as error:  # of a strategy of the user
            if isinstance(error, Exception) or is_passed_on(error):
                raise
            raise ClientError(f"allocation: {error!r}") from error
        if change.unknown:
            _log.warning("group %s: the strategy names queues that are not there: %s", group, change.unknown)
        return change

    async def _apply(self, change: RebalanceResult) -> None:
        for queue in change.give_up:
            await self._fetcher.revoke(queue)
        for queue in change.take:
            self._fetcher.assign(queue)
        if change:
            _log.info("group %s: takes %s, gives up %s", self._group, list(change.take), list(change.give_up))
