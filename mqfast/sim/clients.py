"""Clients of a simulated cluster, each in a process of a machine of its own, with a history of sends and deliveries.

The objects of a scenario run their methods in the process of the client; a crash of the machine ends these calls.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.async_simple_consumer import AsyncSimpleConsumer
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.transaction import AsyncTransactionProducer
from mqfast.message import Message
from mqfast.sim.history import Delivery, Place, Pop
from mqfast.sim.process import Process
from mqfast.sim.servers import name_servers
from mqfast.sim.world import World

if TYPE_CHECKING:
    from mqfast.client.values import SendResult

__all__ = ["Consumer", "Producer", "PullConsumer", "SimpleConsumer", "TransactionalProducer"]

_RETRIES: Final = 16  # of a group without a setting of its own


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
        if "delay_s" in options:
            history.due_s[content] = self._world.loop.now_s + float(options["delay_s"])
        arguments = (topic,) if isinstance(topic, Message) else (topic, content)
        result: SendResult = await self._run(self.client.send, *arguments, **options)
        queue = result.message_queue
        if "delay_s" in options:
            if result.ok:
                history.expected.append((name, content))
        elif not {"delay_level", "deliver_at"} & set(options):
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

    async def send_unpromised(self, topic: str, body: bytes) -> None:
        """Try to send a message that no check expects later."""
        from mqfast.errors import MqfastError

        self._world.history.attempt(topic, body)
        with contextlib.suppress(MqfastError):
            await self._run(self.client.send, topic, body)

    async def close(self) -> None:
        """Close the producer."""
        await self._run(self.client.close)


class TransactionalProducer(Producer):
    """The product's AsyncTransactionProducer: transactions whose outcome the scenario decides."""

    client: AsyncTransactionProducer

    async def start(self, group: str, **options: Any) -> None:
        """Make and start the producer."""
        self._outcomes: dict[bytes, bool] = {}

        def check(message: Any) -> bool:
            return self._outcomes[bytes(message.body)]

        async def begin() -> None:
            servers = ";".join(name_servers(self._world))
            self.client = AsyncTransactionProducer(group, servers, check=check, **options)
            await self.client.start()

        await self._run(begin)

    async def send_in_transaction(self, topic: str, body: bytes, *, commits: bool, answers: bool = True) -> None:
        """Send a half message, and end the transaction.

        Args: commits: the outcome; answers: False leaves the outcome to a check of the broker.
        """
        history = self._world.history
        self._outcomes[body] = commits
        history.attempt(topic, body)
        history.once.add(body)
        if not commits:
            history.withdrawn.add(body)
        result = await self._run(
            self.client.send_in_transaction, Message(topic, body), lambda *_: commits if answers else None
        )
        if commits and result.ok:
            history.expected.append((topic, body))


class PullConsumer(_Client):
    """The product's AsyncPullConsumer. ``client``: the AsyncPullConsumer itself."""

    client: AsyncPullConsumer

    async def start(self, group: str, topic: str, **options: Any) -> None:
        """Make and start the consumer."""
        self._group = group

        async def begin() -> None:
            servers = ";".join(name_servers(self._world))
            self.client = AsyncPullConsumer(group, servers, topics=topic, **options)
            await self.client.start()

        await self._run(begin)

    async def poll(self, timeout_s: float = 5.0, max_count: int = 32) -> Sequence[Any]:
        """Poll as the client, noted in the history."""
        messages: Sequence[Any] = await self._run(self.client.poll, timeout_s, max_count)
        history = self._world.history
        for message in messages:
            queue = message.queue
            delivery = Delivery(
                self._world.loop.now_s, self._group, self.process.name, message.topic, queue.broker_name, queue.topic,
                queue.queue_id, message.queue_offset, bytes(message.body),
            )  # fmt: skip
            history.begun.append(delivery)
            history.ended.append(delivery)
            history.deliveries.append(delivery)
        return messages

    async def close(self) -> None:
        """Close the consumer."""
        await self._run(self.client.close)


class SimpleConsumer(_Client):
    """The product's AsyncSimpleConsumer, which reads by POP. ``client``: the AsyncSimpleConsumer itself."""

    client: AsyncSimpleConsumer

    async def start(self, group: str, topic: str, **options: Any) -> None:
        """Make and start the consumer."""
        self._group = group
        self._is_orderly = bool(options.get("orderly"))
        self._pops: dict[str, Pop] = {}

        async def begin() -> None:
            servers = ";".join(name_servers(self._world))
            self.client = AsyncSimpleConsumer(group, servers, topics=topic, **options)
            await self.client.start()

        await self._run(begin)

    async def receive(self, max_count: int = 16, *, invisible_s: float = 10.0, timeout_s: float = 1.0) -> Sequence[Any]:
        """Receive messages as the client, noted in the history."""
        world = self._world
        begin_s = world.loop.now_s
        messages: Sequence[Any] = await self._run(
            self.client.receive, max_count, invisible_s=invisible_s, timeout_s=timeout_s
        )
        for message in messages:
            pop = Pop(
                self._group, message.topic, message.queue_id, message.queue_offset, bytes(message.body), begin_s,
                world.loop.now_s, begin_s + invisible_s, begin_s + invisible_s, self._is_orderly,
            )  # fmt: skip
            world.history.pops.append(pop)
            self._pops[message.properties["POP_CK"]] = pop
        return messages

    async def ack(self, messages: Sequence[Any]) -> None:
        """Acknowledge messages as the client, noted in the history."""
        for message in messages:
            self._pops[message.properties["POP_CK"]].is_given_back = True
        await self._run(self.client.ack, messages)
        now_s = self._world.loop.now_s
        for message in messages:
            self._pops[message.properties["POP_CK"]].acked(now_s)

    async def change_invisible_time(self, message: Any, invisible_s: float) -> None:
        """Set another invisible time as the client, noted in the history."""
        begin_s = self._world.loop.now_s
        pop = self._pops[message.properties["POP_CK"]]
        pop.changed(begin_s + invisible_s, is_answered=False)
        await self._run(self.client.change_invisible_time, message, invisible_s)
        pop.changed(begin_s + invisible_s, is_answered=True)
        self._pops[message.properties["POP_CK"]] = pop

    async def close(self) -> None:
        """Close the consumer."""
        await self._run(self.client.close)


class Consumer(_Client):
    """The product's AsyncPushConsumer with the handler of the user. ``client``: the AsyncPushConsumer itself."""

    client: AsyncPushConsumer

    async def start(self, group: str, topic: str, handler: Callable[..., Any], tags: str, **options: Any) -> None:
        """Make and start the consumer."""
        world, member = self._world, self.process.name
        retries, is_orderly = options.get("max_reconsume_times", -1), bool(options.get("orderly"))
        if not is_orderly:
            world.history.deliveries_max[group] = 1 + (_RETRIES if retries < 0 else retries)
        is_orderly = is_orderly and retries < 0  # else a dead letter lets the next message pass

        async def handle(message: Any) -> Any:
            queue, history, is_success = message.queue, world.history, False
            delivery = Delivery(
                world.loop.now_s, group, member, topic, queue.broker_name, queue.topic, queue.queue_id,
                message.queue_offset, bytes(message.body),
            )  # fmt: skip
            history.begun.append(delivery)
            history.note(self.process, "deliver", f"{group} {message.queue_id} {message.queue_offset}")
            if is_orderly:
                history.orderly.begin(delivery, history.ends)
            try:
                result = handler(message)
                if inspect.isawaitable(result):
                    result = await result
                is_success = result is None or str(result) == "ConsumeStatus.CONSUME_SUCCESS" or result is True
            finally:
                history.ended.append(delivery)
                if is_orderly:
                    history.orderly.end(delivery, is_success=is_success)
            if is_success:
                history.deliveries.append(delivery._replace(at_s=world.loop.now_s))
            return result

        async def begin() -> None:
            self.client = AsyncPushConsumer(group, ";".join(name_servers(world)), **options)
            self.client.subscribe(topic, handle, tags)
            await self.client.start()

        await self._run(begin)

    async def close(self) -> None:
        """Close the consumer."""
        await self._run(self.client.close)
