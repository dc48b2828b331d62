"""Which queues a pull consumer reads: subscribed topics, shared with the group's members, or queues given by hand.

It must never change anything where it does not know the group's members, and never take a queue before the queues that
it gives up are committed. Source: RebalanceLitePullImpl, DefaultLitePullConsumerImpl.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mqfast.client.consumer.members import group_members
from mqfast.client.consumer.queue_bounds import read_place
from mqfast.client.consumer.rebalance import NOTHING, RebalanceResult, rebalance, rebalance_broadcast
from mqfast.client.consumer.subscription import Subscription
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.values import MessageQueue
from mqfast.errors import (
    CallTimeout,
    ClientError,
    ClientUsageError,
    ConnectionLost,
    MqfastError,
    Refused,
)

if TYPE_CHECKING:
    from mqfast.client.consumer.pull.engine import PullEngine

__all__ = ["Assignment"]

REBALANCE_S: Final = 20.0
_AFTER_TROUBLE_S: Final = 1.0
_log = logging.getLogger("mqfast.client.consumer")


class Assignment:
    """The queues of one pull consumer.

    Attributes: wake: set it for a rebalance at once; trouble: why the last one was not possible, or nothing;
        refusal: the error of a broker that does not let this client into the group.
    Thread: that of the event loop.
    """

    def __init__(self, engine: PullEngine) -> None:
        self.wake: Final = asyncio.Event()
        self.trouble = ""
        self.refusal: Refused | None = None
        self._engine: Final = engine
        self._is_by_hand = False
        self._has_left = False  # a topic, on purpose
        self._rounds = 0
        self._one_at_a_time: Final = asyncio.Lock()

    @property
    def lacks_topics(self) -> bool:
        """Was there never a subscribed topic, nor were queues given by hand?"""
        return not self._engine.subscriptions and not self._is_by_hand and not self._has_left

    async def subscribe(self, wanted: Subscription) -> None:
        """Read a topic with the group. Raises: UsageError after ``assign``; SubscriptionError, ConnectError."""
        engine = self._engine
        if self._is_by_hand:
            raise ClientUsageError("subscribe: expected no queues given by assign(), found some; use one of both")
        since_ms = int(time.time() * 1000)
        before = engine.subscriptions.get(wanted.topic)
        engine.subscriptions[wanted.topic] = wanted
        try:
            await engine.look_up(wanted.topic)
        except BaseException:
            if before is None:
                del engine.subscriptions[wanted.topic]
            else:
                engine.subscriptions[wanted.topic] = before
            raise
        if before is not None:  # what was cached was chosen by the expression before
            engine.cache.reread(wanted.topic)
        await engine.instance.heartbeat()
        await self.rebalance_all()
        await engine.wait_for_places([wanted.topic], since_ms)

    async def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        engine = self._engine
        if engine.subscriptions.pop(topic, None) is None:
            return
        self._has_left = True
        engine.forget_topic(topic)
        owned = [one.queue for one in engine.cache.all() if one.queue.topic == topic]
        async with self._one_at_a_time:
            await self._apply(RebalanceResult(give_up=tuple(owned)))
        await engine.instance.heartbeat()

    async def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read just these queues, whoever else is in the group. Raises: UsageError after ``subscribe``."""
        engine = self._engine
        if engine.subscriptions:
            raise ClientUsageError("assign: expected no subscribed topic, found some; use one of both")
        self._is_by_hand = True
        wanted = set(queues)
        owned = {one.queue for one in engine.cache.all()}
        for queue in sorted(wanted - owned):
            await engine.run(read_place(engine.instance, queue))
        async with self._one_at_a_time:
            await self._apply(RebalanceResult(tuple(sorted(wanted - owned)), tuple(sorted(owned - wanted))))
        await engine.wait_for_places({queue.topic for queue in wanted})

    async def keep_balanced(self) -> None:
        """Rebalance each 20 s, and when members, routes or trouble ask for it; until it is cancelled."""
        engine = self._engine
        while True:
            after = _AFTER_TROUBLE_S if self.trouble else REBALANCE_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(after):
                    await self.wake.wait()
            self.wake.clear()
            try:
                await self.rebalance_all()
            except (MqfastError, OSError) as error:
                _log.warning("group %s: rebalance: %s", engine.settings.group, error)
            except Exception:
                _log.exception("group %s: rebalance failed", engine.settings.group)

    async def rebalance_all(self) -> None:
        """Rebalance every topic; where that is not possible the queues stay as they are."""
        engine = self._engine
        trouble, refusal = "", None
        async with self._one_at_a_time:
            for topic in list(engine.subscriptions):
                try:
                    await self._apply(await self._change_of(topic))
                except (ClientError, ConnectionLost, CallTimeout) as error:
                    trouble = str(error)
                    refusal = error if isinstance(error, Refused) else None
                except Exception as error:  # of a strategy or an offset store of the user's
                    trouble = f"{type(error).__name__}: {error}"
        self._rounds = self._rounds + 1 if trouble else 0
        if self._rounds == 2:  # once it is no heartbeat that is still on its way
            _log.warning("group %s: the queues stay as they are: %s", engine.settings.group, trouble)
        self.trouble, self.refusal = trouble, refusal

    async def _change_of(self, topic: str) -> RebalanceResult:
        engine = self._engine
        settings, instance = engine.settings, engine.instance
        if instance.routes.get(topic) is None:
            await engine.run(instance.route(topic, refresh=True))
        queues = instance.routes.subscribe_queues(topic)
        owned = [one.queue for one in engine.cache.all()]
        if not queues:
            return NOTHING
        if settings.is_broadcasting:
            return rebalance_broadcast(topic, queues, owned)
        members = await engine.run(group_members(instance, engine.group, topic))
        try:
            change = rebalance(engine.group, instance.client_id, topic, queues, members, settings.allocation, owned)
        except BaseException as error:  # of a strategy of the user's
            if isinstance(error, Exception) or is_passed_on(error):
                raise
            raise ClientError(f"allocation: {error!r}") from error
        if change.unknown:
            _log.warning("group %s: the strategy names queues that are not there: %s", engine.group, change.unknown)
        return change

    async def _apply(self, change: RebalanceResult) -> None:
        engine = self._engine
        for queue in change.give_up:
            await engine.give_up(queue)
        for queue in change.take:
            engine.take(queue)
        if change:
            _log.info("group %s: takes %s, gives up %s", engine.group, list(change.take), list(change.give_up))
