"""Clients of a simulated cluster, each in a process of a machine of its own, with a history of sends and deliveries.

The objects of a scenario run their methods in the process of the client; a crash of the machine ends these calls.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.message import Message
from mqfast.sim.history import Delivery, Place
from mqfast.sim.process import Process
from mqfast.sim.servers import name_servers
from mqfast.sim.world import World

if TYPE_CHECKING:
    from mqfast.client.values import SendResult

__all__ = ["Consumer", "Producer"]


class _Client:
    """A client in a process."""

    def __init__(self, world: World, process: Process) -> None:
        self._world: Final = world
        self.process: Final = process

    async def _run(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Run a method in the process of the client. Raises: ProcessEnded."""

        async def work() -> Any:
            result = function(*arguments, **named)
            return await result if inspect.isawaitable(result) else result

        task = self._world.loop.create_task(work(), context=self.process.context)
        return await self._world.finished(self.process, task)


class Producer(_Client):
    """The product's AsyncProducer.

    Attributes: ``client``: the AsyncProducer itself, whose calls belong into the process of the client.
    """

    client: AsyncProducer

    async def start(self, group: str, **options: Any) -> None:
        """Make and start the producer."""

        async def begin() -> None:
            self.client = AsyncProducer(group, ";".join(name_servers(self._world)), **options)
            await self.client.start()

        await self._run(begin)

    async def send(self, topic: str | Message, body: bytes | None = None, **options: Any) -> SendResult:
        """Send a message as ``AsyncProducer.send``, noted in the history."""
        name = topic.topic if isinstance(topic, Message) else topic
        given = topic.body if isinstance(topic, Message) else body or b""
        content = given.encode() if isinstance(given, str) else bytes(given)
        history = self._world.history
        history.attempt(name, content)
        arguments = (topic,) if isinstance(topic, Message) else (topic, content)
        result: SendResult = await self._run(self.client.send, *arguments, **options)
        queue = result.message_queue
        if not {"delay_s", "delay_level", "deliver_at"} & set(options):
            place = Place(queue.broker_name, name, queue.queue_id, result.queue_offset)
            history.answered(name, content, place, result.ok)
        return result

    async def try_send(self, topic: str, body: bytes, **options: Any) -> SendResult | None:
        """Send a message. Returns: None after an error of the client, whose outcome is unknown."""
        from mqfast.errors import MqfastError

        try:
            return await self.send(topic, body, **options)
        except MqfastError as error:
            self._world.history.note(self.process, "unsent", f"{topic} {type(error).__name__}")
            return None

    async def close(self) -> None:
        """Close the producer."""
        await self._run(self.client.close)


class Consumer(_Client):
    """The product's AsyncPushConsumer with the handler of the user. ``client``: the AsyncPushConsumer itself."""

    client: AsyncPushConsumer

    async def start(self, group: str, topic: str, handler: Callable[..., Any], tags: str, **options: Any) -> None:
        """Make and start the consumer."""
        world, member = self._world, self.process.name

        async def handle(message: Any) -> Any:
            delivery = Delivery(
                world.loop.now_s, group, member, topic, message.queue_id, message.queue_offset, bytes(message.body)
            )
            world.history.begun.append(delivery)
            world.history.note(self.process, "deliver", f"{group} {message.queue_id} {message.queue_offset}")
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    result = await result
            finally:
                world.history.ended.append(delivery)
            if result is None or str(result) == "ConsumeStatus.CONSUME_SUCCESS" or result is True:
                world.history.deliveries.append(delivery._replace(at_s=world.loop.now_s))
            return result

        async def begin() -> None:
            self.client = AsyncPushConsumer(group, ";".join(name_servers(world)), **options)
            self.client.subscribe(topic, handle, tags)
            await self.client.start()

        await self._run(begin)

    async def close(self) -> None:
        """Close the consumer."""
        await self._run(self.client.close)
