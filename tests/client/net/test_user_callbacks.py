"""Every function of the user's raises, all kinds of exceptions: the client says so, goes on, and loses no message."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest

from mqfast.client import (
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ClientHook,
    Message,
    MessageQueue,
    TransactionProducer,
)
from mqfast.client.delivery import Delivery
from mqfast.errors import ClientError
from mqfast.testing import Broker

KINDS: list[BaseException] = [ValueError("user"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]


@pytest.fixture
def broker() -> Iterator[Broker]:
    config = {"transactionTimeOut": "300", "transactionCheckInterval": "300"}
    with Broker(topics={"orders": 2}, config=config) as one:
        yield one


class Once:
    """A function that raises the first time. Attributes: calls."""

    def __init__(self, error: BaseException, then: Callable[..., Any] = lambda *args, **more: None) -> None:
        self.calls = 0
        self._error, self._then = error, then

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        if self.calls == 1:
            raise self._error
        return self._then(*args, **more)


def consumed(
    broker: Broker, consumer: Any, handle: Callable[[Delivery], Any], bodies: Sequence[str], **more: Any
) -> None:
    """All bodies come through a handler; each at least once, and in the end none is left."""
    seen: Counter[str] = Counter()

    def handler(given: Any) -> Any:
        for message in given if isinstance(given, list) else [given]:
            seen[message.text()] += 1
        return handle(given)

    consumer.subscribe("orders", handler, **more)
    with consumer:
        broker.send("orders", *bodies)
        broker.wait_until(lambda: set(seen) >= set(bodies), timeout_s=30)
        broker.wait_consumed(consumer.group, timeout_s=30)


@pytest.mark.parametrize("error", KINDS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("kind", ["one", "batch", "orderly", "executor"])
def test_handlers(broker: Broker, kind: str, error: BaseException) -> None:
    once = Once(error)
    with ThreadPoolExecutor(2) as pool:
        arguments = {"orderly": {"orderly": True, "suspend_s": 0.05}, "executor": {"executor": pool}}.get(kind, {})
        consumer = broker.consumer(f"handlers-{kind}", **arguments)
        consumed(broker, consumer, once, ["1", "2", "3"], **({"batch": 4} if kind == "batch" else {}))
    assert once.calls >= 2


@pytest.mark.parametrize("error", KINDS[:1] + KINDS[3:], ids=lambda one: type(one).__name__)
def test_handlers_that_are_coroutines(broker: Broker, error: BaseException) -> None:
    async def flow() -> None:
        once, done, seen = Once(error), asyncio.Event(), []
        consumer = AsyncPushConsumer("coroutines", broker.namesrv_addr, from_where="first")

        @consumer.on("orders")
        async def handle(message: Delivery) -> None:
            once()
            seen.append(message.text())
            if set(seen) == {"1", "2", "3"}:
                done.set()

        async with consumer, asyncio.timeout(300):
            await asyncio.to_thread(broker.send, "orders", "1", "2", "3")
            await done.wait()

    asyncio.run(flow())


class Wrong(ClientHook):
    """A hook whose every method raises."""

    def __init__(self, error: BaseException) -> None:
        self.called: Counter[str] = Counter()
        self._error = error

    def before_send(self, context: object) -> None:
        self._raise("before_send")

    def after_send(self, context: object) -> None:
        self._raise("after_send")

    def before_consume(self, context: object) -> None:
        self._raise("before_consume")

    def after_consume(self, context: object) -> None:
        self._raise("after_consume")

    def _raise(self, name: str) -> None:
        self.called[name] += 1
        raise self._error


@pytest.mark.parametrize("error", [KINDS[0], KINDS[1], KINDS[3]], ids=lambda one: type(one).__name__)
def test_hooks(broker: Broker, error: BaseException) -> None:
    hook = Wrong(error)
    with broker.producer("hooked", hooks=[hook]) as producer:
        assert producer.send("orders", b"0").ok
        assert producer.send_future(Message("orders", b"00")).result(20).ok
    consumed(broker, broker.consumer("hooked", hooks=[hook]), lambda message: None, ["1", "2"])
    with broker.puller("hooked-pull", topics="orders", hooks=[hook]) as puller:
        assert puller.poll(timeout_s=20)
    assert hook.called.keys() == {"before_send", "after_send", "before_consume", "after_consume"}


@pytest.mark.parametrize("error", [KINDS[0], KINDS[1], KINDS[3]], ids=lambda one: type(one).__name__)
def test_callbacks_and_selectors_of_sends(broker: Broker, error: BaseException) -> None:
    with broker.producer("senders") as producer:
        called = threading.Event()

        def on_done(future: object) -> None:
            called.set()
            raise error

        assert producer.send_future(Message("orders", b"1"), on_done=on_done).result(20).ok
        assert called.wait(20)
        with pytest.raises(type(error)):
            producer.send("orders", b"2", selector=Once(error))
        assert producer.send("orders", b"3").ok
    with broker.producer("choosers", selector=Once(error, lambda queues, message: queues[0])) as producer:
        with pytest.raises(type(error)):
            producer.send("orders", b"4")
        assert producer.send("orders", b"5").ok
    with broker.producer("late-choosers", selector=Once(error, lambda queues, message: queues[0])) as producer:
        with pytest.raises(type(error) if isinstance(error, Exception) else ClientError):
            producer.send_future(Message("orders", b"10")).result(20)
        assert producer.send_future(Message("orders", b"11")).result(20).ok

    async def flow() -> None:
        async with AsyncProducer("senders", broker.namesrv_addr) as one:
            await one.send("orders", b"6")
            one.send_nowait(Message("orders", b"7"), on_done=Once(ValueError("user")))
            assert await one.flush() == 0
            with pytest.raises(type(error) if isinstance(error, Exception) else ClientError, match=r"user|send: "):
                await one.send("orders", b"8", selector=Once(error))
            assert one.stats()["in_flight"] == 0
            assert (await one.send("orders", b"9")).ok

    asyncio.run(flow())
    assert sorted(one.text() for one in broker.messages("orders")) == ["1", "11", "3", "5", "6", "7", "9"]


@pytest.mark.parametrize("error", KINDS[:2], ids=lambda one: type(one).__name__)
def test_transactions(broker: Broker, error: BaseException) -> None:
    check = Once(error, lambda message: True)
    with TransactionProducer("payers", broker.namesrv_addr, check=check) as producer:
        if isinstance(error, Exception):
            producer.send_in_transaction(Message("orders", b"1"), Once(error))
        else:
            with pytest.raises(type(error)):
                producer.send_in_transaction(Message("orders", b"1"), Once(error))
        broker.wait_for("orders", 1, body=b"1", timeout_s=30)  # the second check commits it
    assert check.calls >= 2

    async def flow() -> None:
        checks = Once(ValueError("user"), lambda message: True)

        async def check_async(message: Delivery) -> Any:
            return checks(message)

        async with AsyncTransactionProducer("async-payers", broker.namesrv_addr, check=check_async) as one:
            async with one.transaction(Message("orders", b"2")) as transaction:
                transaction.leave_open()
            await asyncio.to_thread(broker.wait_for, "orders", 1, body=b"2", timeout_s=30)

    asyncio.run(flow())


class Store:
    """An offset store of the user's, each of whose calls fails first."""

    def __init__(self, error: BaseException) -> None:
        self.kept: dict[MessageQueue, int] = {}
        self.load_ = Once(error, self.kept.get)
        self.save_ = Once(error, self.kept.update)

    def load(self, queue: MessageQueue) -> int | None:
        return self.load_(queue)  # type: ignore[no-any-return]

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.save_(offsets)


@pytest.mark.parametrize("error", KINDS, ids=lambda one: type(one).__name__)
def test_offset_stores(broker: Broker, error: BaseException) -> None:
    store = Store(error)
    consumer = broker.consumer("stored", offset_store=store)
    seen: set[str] = set()
    consumer.subscribe("orders", lambda message: seen.add(message.text()))
    with consumer:
        broker.send("orders", "1", "2", "3")
        broker.wait_until(lambda: len(seen) == 3, timeout_s=30)
    assert store.load_.calls > 1
    assert store.save_.calls >= 1
    pulled = Store(error)
    with broker.puller("stored-pull", topics="orders", offset_store=pulled, auto_commit_s=0.2) as puller:
        found: list[str] = []
        broker.wait_until(
            lambda: found.extend(one.text() for one in puller.poll(timeout_s=0.2)) or len(found) == 3, timeout_s=30
        )
        broker.wait_until(lambda: sum(pulled.kept.values()) == 3 or puller.poll(timeout_s=0), timeout_s=30)


class Strategy:
    """An allocation of the user's that fails first."""

    name = "MINE"

    def __init__(self, error: BaseException) -> None:
        self.once = Once(error, lambda group, me, queues, members: list(queues))

    def __call__(self, *args: Any) -> Any:
        return self.once(*args)


@pytest.mark.parametrize("error", KINDS, ids=lambda one: type(one).__name__)
def test_allocations(broker: Broker, error: BaseException) -> None:
    strategy = Strategy(error)
    consumer = broker.consumer("shared", allocation=strategy)
    seen: set[str] = set()
    consumer.subscribe("orders", lambda message: seen.add(message.text()))
    with consumer:
        broker.send("orders", "1", "2")
        broker.faults.trigger_rebalance()
        broker.wait_until(lambda: len(seen) == 2, timeout_s=40)
    assert strategy.once.calls > 1
    strategy = Strategy(error)
    with broker.puller("shared-pull", topics="orders", allocation=strategy) as puller:
        found: list[str] = []
        broker.wait_until(
            lambda: found.extend(one.text() for one in puller.poll(timeout_s=0.2)) or len(found) == 2, timeout_s=40
        )
    assert strategy.once.calls > 1


class Full(Executor):
    """An executor that takes no work at first."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.once = Once(RuntimeError("full"), pool.submit)

    def submit(self, *args: Any, **more: Any) -> Any:
        return self.once(*args, **more)


def test_executors(broker: Broker) -> None:
    with ThreadPoolExecutor(2) as pool:
        executor = Full(pool)
        consumed(broker, broker.consumer("full", executor=executor), lambda message: None, ["1", "2", "3"])
    assert executor.once.calls > 3


def test_answers_to_requests(broker: Broker) -> None:
    consumer = broker.consumer("answering")
    once = Once(ValueError("user"), lambda message: message.reply_sync(b"pong"))
    consumer.subscribe("orders", once)
    with consumer, broker.producer("asking") as producer:
        producer.send("orders", b"0")
        broker.wait_until(lambda: once.calls >= 1, timeout_s=20)
        once.calls = 1
        assert producer.request(Message("orders", b"ping"), timeout_s=30).body == b"pong"


@pytest.mark.parametrize("error", KINDS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("face", ["threads", "loop"])
def test_a_handler_that_an_admin_asked_for(broker: Broker, face: str, error: BaseException) -> None:
    """Code 309: the admin is told, and the loop that serves all clients lives on."""
    if face == "loop" and isinstance(error, KeyboardInterrupt):
        pytest.skip("in the main thread it is Ctrl-C")
    asked = threading.Event()

    def handle(message: Delivery) -> None:
        if asked.is_set():
            raise error

    def ask(consumer: Any) -> str:
        (sent,) = broker.send("orders", "1")
        broker.wait_consumed("asked", "orders", timeout_s=30)
        asked.set()
        with broker.admin() as admin:
            (client,) = {str(one["client_id"]) for one in admin.connections("asked")}
            (message,) = admin.find("orders", msg_id=sent.offset_msg_id)
            return str(admin.consume_directly(message, "asked", client)["result"])

    async def flow() -> str:
        consumer = AsyncPushConsumer("asked", broker.namesrv_addr, from_where="first")
        consumer.subscribe("orders", handle)
        async with consumer:
            found = await asyncio.to_thread(ask, consumer)
            assert consumer.stats()["why_nothing"] == []
        return found

    if face == "loop":
        assert asyncio.run(flow()) == "CR_THROW_EXCEPTION"
        return
    consumer = broker.consumer("asked")
    consumer.subscribe("orders", handle)
    with consumer:
        assert ask(consumer) == "CR_THROW_EXCEPTION"
        assert consumer.lag()
