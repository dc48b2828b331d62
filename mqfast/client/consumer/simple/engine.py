"""The engine of simple consumers: POP requests to the brokers of the subscribed topics.

Nothing is read ahead: messages are requested by ``receive`` only. With several brokers or topics, ``receive`` asks each
for messages at once, then waits for all by notifications, which take no message.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from mqfast import properties as names
from mqfast.client.consumer.group_requests import check_sql
from mqfast.client.consumer.simple.pop_request import (
    BrokerReceiptHandle,
    ack,
    ack_all,
    change_invisible_time,
    handle_of,
    has_messages,
    pop,
)
from mqfast.client.consumer.subscription import SQL92, Subscription
from mqfast.client.delivery import Delivery, Source
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.net.request_steps import RequestSteps
from mqfast.client.route.namespace import wrap
from mqfast.errors import ClientError, ClientUsageError, NoRoute, Refused

__all__ = ["SimpleEngine", "SimpleSettings"]

T = TypeVar("T")
_ROUTE_S: Final = 5.0
_log = logging.getLogger("mqfast.client.consumer")


class SimpleSettings(NamedTuple):
    """The checked arguments of a simple consumer; ``group``: without namespace."""

    group: str
    instance: InstanceSettings
    namespace: str | None
    is_orderly: bool
    from_max: bool
    max_body_bytes: int
    start_timeout_s: float | None
    close_timeout_s: float


class _Place(NamedTuple):
    """A broker of a subscribed topic."""

    subscription: Subscription
    broker_name: str
    address: str


class SimpleEngine:
    """A simple consumer in an event loop.

    Attributes: ``subscriptions``: topic on the wire -> subscription.
    Thread: that of the event loop.
    """

    def __init__(self, settings: SimpleSettings, subscriptions: Mapping[str, Subscription]) -> None:
        self.subscriptions: Final = dict(subscriptions)
        self._settings: Final = settings
        self._group: Final = wrap(settings.namespace, settings.group)
        self._instance: ClientInstance | None = None
        self._turn = 0

    @property
    def instance(self) -> ClientInstance:
        """Return the instance; the engine must have been started."""
        assert self._instance is not None, "the engine was not started"
        return self._instance

    async def start(self, is_closed: Callable[[], bool] = lambda: False) -> None:
        """Join the group. Args: is_closed: tells whether the consumer was closed meanwhile.

        Raises: ConnectError, SubscriptionError, ClientError.
        """
        settings = self._settings
        instance = ClientInstance.shared(settings.instance, loop_of_caller(), consumer_group=self._group)
        await instance.acquire(may_wait=settings.start_timeout_s != 0)
        self._instance = instance
        try:
            await instance.wait_for_name_server(settings.start_timeout_s, is_closed)
            instance.add_consumer(self._group, self)
            for subscription in list(self.subscriptions.values()):
                await self._check(subscription)
            await instance.heartbeat()
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Leave the group. Messages without an ack come again after their invisible time."""
        try:
            await self.instance.remove_consumer(self._group, self)
        finally:
            await self.instance.release()

    async def _run(self, steps: RequestSteps[T]) -> T:
        return await self.instance.driver.run(steps)

    # --- requests of the instance ---

    def heartbeat(self) -> Mapping[str, Any]:
        """Return RocketMQ's ConsumerData."""
        return {
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET" if self._settings.from_max else "CONSUME_FROM_FIRST_OFFSET",
            "consumeType": "CONSUME_POP",
            "groupName": self._group,
            "messageModel": "CLUSTERING",
            "subscriptionDataSet": [wanted.as_json() for wanted in list(self.subscriptions.values())],
            "unitMode": False,
        }

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes are refreshed periodically."""
        return list(self.subscriptions)

    # --- subscriptions ---

    async def _check(self, wanted: Subscription) -> None:
        if wanted.kind == SQL92:
            await self._run(self.instance.route(wanted.topic, timeout_s=_ROUTE_S))
            await self._run(check_sql(self.instance, self._group, wanted))

    async def subscribe(self, wanted: Subscription) -> None:
        """Add or replace a subscription. Raises: SubscriptionError, ConnectError."""
        await self._check(wanted)
        self.subscriptions[wanted.topic] = wanted
        self.instance.heartbeat_soon()

    async def unsubscribe(self, topic: str) -> None:
        """Remove a subscription."""
        self.subscriptions.pop(topic, None)
        self.instance.heartbeat_soon()

    # --- messages ---

    async def receive(self, max_count: int, invisible_s: float, wait_s: float) -> list[Delivery]:
        """Return messages, or an empty list after the wait. Raises: NoRoute, BrokerError, ClientError."""
        deadline_s = self.instance.loop.time() + wait_s
        while True:
            places = await self._places()
            self._turn += 1
            at = self._turn % len(places)
            places = places[at:] + places[:at]
            remaining_s = max(0.0, deadline_s - self.instance.loop.time())
            if len(places) == 1:
                return await self._pop(places[0], max_count, invisible_s, remaining_s)
            failure: ClientError | None = None
            for place in places:
                try:
                    messages = await self._pop(place, max_count, invisible_s, 0.0)
                except Refused:
                    raise
                except ClientError as error:  # another broker may have messages
                    failure = error
                    continue
                if messages:
                    return messages
            remaining_s = deadline_s - self.instance.loop.time()
            if remaining_s <= 0:
                if failure is not None:
                    raise failure
                return []
            await self._wait(places, remaining_s)

    async def _places(self) -> list[_Place]:
        if not self.subscriptions:
            raise ClientUsageError(
                f"group {self._settings.group}: expected a topic: topics= or subscribe(), found none"
            )
        places, missing = [], ""
        for subscription in list(self.subscriptions.values()):
            route = await self._run(self.instance.route(subscription.topic, timeout_s=_ROUTE_S))
            for broker in dict.fromkeys(queue.broker_name for queue in route.subscribe_queues()):
                address = self.instance.routes.address(broker)
                if address is not None:
                    places.append(_Place(subscription, broker, address))
                else:
                    missing = f"topic {subscription.topic}: no address of the master of {broker} is known"
        if not places:
            raise NoRoute(missing or f"group {self._settings.group}: no broker has a readable queue of the topics")
        return places

    async def _pop(self, place: _Place, max_count: int, invisible_s: float, wait_s: float) -> list[Delivery]:
        settings = self._settings
        source = Source(place.broker_name, namespace=settings.namespace or "", body_bytes_max=settings.max_body_bytes)
        steps = pop(
            place.address, self._group, place.subscription, source, max_count=max_count, invisible_s=invisible_s,
            wait_s=wait_s, from_max=settings.from_max, is_orderly=settings.is_orderly,
        )  # fmt: skip
        try:
            messages = await self._run(steps)
        except Refused:
            raise
        except ClientError:
            self.instance.route_failed(place.subscription.topic)
            raise
        unwanted = [message for message in messages if not place.subscription.wants(message)]
        if unwanted:  # other tags with the same hash
            await self.ack(unwanted)
        return [message for message in messages if place.subscription.wants(message)] if unwanted else messages

    async def _wait(self, places: Sequence[_Place], wait_s: float) -> None:
        """Wait until any broker has messages for the group."""
        tasks = [
            asyncio.ensure_future(
                self._run(
                    has_messages(
                        place.address, self._group, place.subscription.topic, wait_s,
                        is_orderly=self._settings.is_orderly,
                    )
                )
            )
            for place in places
        ]  # fmt: skip
        try:
            pending = set(tasks)
            async with asyncio.timeout(wait_s):
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        if task.exception() is None and task.result():
                            return
                await asyncio.sleep(wait_s)  # no broker waits for us: not a request after the other
        except TimeoutError:
            return
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # --- acknowledgements ---

    async def ack(self, messages: Sequence[Delivery]) -> None:
        """Acknowledge messages, by a request for each broker. Raises: BrokerError, UsageError."""
        by_broker: dict[str, list[tuple[str, BrokerReceiptHandle]]] = {}
        for message in messages:
            handle = handle_of(message)
            by_broker.setdefault(handle.broker_name, []).append((message.record_topic, handle))
        for broker, handles in by_broker.items():
            address = self._address(broker)
            if len(handles) == 1:
                await self._run(ack(address, self._group, *handles[0]))
            else:
                await self._run(ack_all(address, self._group, handles))

    async def change_invisible_time(self, message: Delivery, invisible_s: float) -> None:
        """Set another invisible time; the message gets the new handle. Raises: BrokerError, UsageError."""
        handle = handle_of(message)
        changed = await self._run(
            change_invisible_time(
                self._address(handle.broker_name), self._group, message.record_topic, handle, invisible_s
            )
        )
        message.properties[names.POP_CK] = changed.encode()

    def _address(self, broker: str) -> str:
        address = self.instance.routes.address(broker)
        if address is None:
            raise NoRoute(f"group {self._settings.group}: no address of the master of {broker} is known")
        return address
