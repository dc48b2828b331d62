"""Ctrl-C in a call of a sync client: the caller goes on at once, and nothing of the call runs on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from mqfast.client import AsyncProducer, AsyncPushConsumer, Message, MessageQueue, Producer, PullConsumer, PushConsumer
from mqfast.client.net import io_thread
from mqfast.errors import ClientClosed
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}) as one:
        yield one


@contextlib.contextmanager
def interrupted(when: object) -> Iterator[None]:
    """SIGINT for this thread as soon as the condition holds; it is expected to end the block soon after that."""
    main, done = threading.get_ident(), threading.Event()
    at: list[float] = []

    def watch() -> None:
        while not when() and not done.wait(0.005):  # type: ignore[operator]
            pass
        at.append(time.monotonic())
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=watch)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            try:
                yield
            finally:
                done.set()
                thread.join()
        assert time.monotonic() - at[0] < 15  # the waits take 20 s and more
    finally:
        signal.signal(signal.SIGINT, before)


def names_of_tasks() -> list[str]:
    async def look() -> list[str]:
        return [repr(task.get_coro()) for task in asyncio.all_tasks() if task is not asyncio.current_task()]

    return io_thread.shared().call(look(), 10)


def test_the_work_of_a_call_ends_with_its_caller() -> None:
    io = io_thread.shared()
    ended: list[str] = []
    begun = threading.Event()

    async def work() -> None:
        try:
            begun.set()
            await asyncio.sleep(60)
            ended.append("ran on")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with interrupted(begun.is_set):
        io.call(work(), 30)
    io.call(asyncio.sleep(0), 10)
    assert ended == ["cancelled"]


def test_a_request_that_nobody_answers(broker: Broker) -> None:
    producer = broker.producer("askers")
    producer.send("orders", b"the route is known")
    sends = len(broker.requests(RequestCode.SEND_MESSAGE_V2))
    with interrupted(lambda: len(broker.requests(RequestCode.SEND_MESSAGE_V2)) > sends):
        producer.request(Message("orders", b"ping"), timeout_s=60)
    broker.wait_until(lambda: not any("request" in name for name in names_of_tasks()))
    assert producer.send("orders", b"the producer lives").ok


def test_a_consumer_whose_start_was_interrupted_can_be_started(broker: Broker) -> None:
    consumer = broker.consumer("late", topics="orders")
    with broker.faults.lose_answers(only=[RequestCode.GET_ROUTEINFO_BY_TOPIC]):
        with interrupted(lambda: broker.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC)):
            consumer.start()
    broker.wait_until(lambda: not any("_begin" in name for name in names_of_tasks()))
    assert broker.requests(RequestCode.PULL_MESSAGE) == []
    with consumer:
        broker.wait_members("late", 1)


def test_a_consumer_whose_end_was_interrupted_has_left_its_group(broker: Broker) -> None:
    has_it, may_end = threading.Event(), threading.Event()
    consumer = PushConsumer("slow", broker.namesrv_addr, from_where="first", close_timeout_s=60)

    @consumer.on("orders")
    def handle(message: object) -> None:
        has_it.set()
        may_end.wait(60)

    broker.send("orders", b"1")
    consumer.start()
    try:
        assert has_it.wait(20)
        broker.wait_members("slow", 1)
        begun = time.monotonic()
        with interrupted(lambda: time.monotonic() - begun > 0.2):
            consumer.close()
        broker.wait_members("slow", 0)
    finally:
        may_end.set()


def test_a_consumer_whose_end_was_cancelled_as_it_began_has_left_its_group(broker: Broker) -> None:
    async def main() -> None:
        consumer = AsyncPushConsumer("hasty", broker.namesrv_addr, topics="orders")
        await consumer.start()
        await asyncio.to_thread(broker.wait_members, "hasty", 1)
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await asyncio.to_thread(broker.wait_members, "hasty", 0)

    asyncio.run(main())


def test_a_handler_that_fails_after_the_end_of_its_consumer_sends_nothing(broker: Broker) -> None:
    """The message comes again anyway, since no offset behind it was kept: given back it would come twice."""
    has_it, may_end = threading.Event(), threading.Event()
    consumer = PushConsumer("failing-late", broker.namesrv_addr, from_where="first", close_timeout_s=1)

    @consumer.on("orders")
    def handle(message: object) -> None:
        has_it.set()
        may_end.wait(60)
        raise ValueError

    broker.send("orders", b"1")
    consumer.start()
    try:
        assert has_it.wait(20)
        consumer.close()
    finally:
        may_end.set()
    mine = "mqfast-failing-late-"
    broker.wait_until(lambda: not any(one.name.startswith(mine) for one in threading.enumerate()))
    io_thread.shared().call(asyncio.sleep(0), 10)
    assert not any("send_message_back" in name for name in names_of_tasks())
    assert broker.requests(RequestCode.CONSUMER_SEND_MSG_BACK) == []


def test_a_commit_that_was_interrupted_comes_later(broker: Broker) -> None:
    with PullConsumer("committers", broker.namesrv_addr, topics="orders", from_where="first") as consumer:
        broker.send("orders", b"1", queue_id=0)
        assert consumer.poll(timeout_s=20)
        with broker.faults.lose_answers(only=[RequestCode.UPDATE_CONSUMER_OFFSET], times=1):
            with interrupted(lambda: broker.requests(RequestCode.UPDATE_CONSUMER_OFFSET)):
                consumer.commit()
        consumer.commit()
    assert broker.offset("committers", "orders")[MessageQueue("orders", "broker-a", 0)] == 1


def test_interrupted_close_with_messages_in_flight_still_closes(broker: Broker) -> None:
    producer = Producer("closers", broker.namesrv_addr, send_timeout_s=600)
    producer.send("orders", b"1")
    with broker.faults.lose_answers(only=[RequestCode.SEND_MESSAGE_V2]):
        future = producer.send_future(Message("orders", b"2"))
        begun = time.monotonic()
        with interrupted(lambda: time.monotonic() - begun > 0.2):
            producer.close(60)
        broker.wait_until(lambda: not any("repeat" in name for name in names_of_tasks()))
        with pytest.raises(ClientClosed):
            future.result(20)


def test_cancelled_close_with_messages_in_flight_still_closes(broker: Broker) -> None:
    async def main() -> None:
        ends: list[object] = []
        producer = AsyncProducer("closers", broker.namesrv_addr, send_timeout_s=600)
        await producer.send("orders", b"1")
        with broker.faults.lose_answers(only=[RequestCode.SEND_MESSAGE_V2]):
            producer.send_nowait(Message("orders", b"2"), on_done=ends.append)
            closing = asyncio.create_task(producer.close(60))
            await asyncio.sleep(0.05)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            async with asyncio.timeout(300):
                while not ends or len(asyncio.all_tasks()) > 1:
                    await asyncio.sleep(0.01)
        assert isinstance(ends[0], ClientClosed)

    asyncio.run(main())


def test_a_close_that_was_interrupted_lets_go_of_the_connections(broker: Broker) -> None:
    producer = Producer("closers", broker.namesrv_addr)
    producer.send("orders", b"1")
    broker.wait_until(lambda: broker.requests(RequestCode.HEART_BEAT))
    with broker.faults.lose_answers(only=[RequestCode.UNREGISTER_CLIENT]):
        with interrupted(lambda: broker.requests(RequestCode.UNREGISTER_CLIENT)):
            producer.close(30)
    broker.wait_until(lambda: not any("repeat" in name for name in names_of_tasks()))
