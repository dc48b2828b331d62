"""Loops over a push consumer, AsyncPushConsumer, orderly and broadcasting consumers, beside a real broker."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from push_tools import QUICK, Hand, Seen, a_cluster, fill, queue_of, until
from running import BrokerProcess
from waiting import until_async as eventually

from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook
from mqfast.client.values import ConsumeStatus, Retry
from mqfast.errors import ClientClosed, UsageError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with a_cluster(tmp_path_factory.mktemp("loops"), **QUICK) as one:
        yield one


@pytest.fixture
def hand(cluster: BrokerProcess) -> Hand:
    return Hand(cluster)


def in_loop(flow: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(300):
            await flow()

    asyncio.run(run())


def committed(hand: Hand, group: str, topic: str) -> int:
    return sum(max(0, hand.offset(group, queue_of(topic, queue_id))) for queue_id in range(4))


# --- loops of threads ---


def test_the_request_for_the_next_message_acknowledges_the_message_of_a_loop(
    cluster: BrokerProcess, hand: Hand
) -> None:
    hand.send("asked", *[b"%d" % i for i in range(10)])
    bodies = []
    with PushConsumer("asked-group", cluster.namesrv, topics="asked") as consumer:
        for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 4:
                break
    assert bodies == [b"0", b"1", b"2", b"3"]
    assert hand.offset("asked-group", queue_of("asked", 0)) == 3
    with PushConsumer("asked-group", cluster.namesrv, topics="asked") as consumer:
        for message in consumer:
            bodies.append(message.body)
            if message.body == b"9":
                message.ack()
                break
    assert bodies[4:] == [b"%d" % i for i in range(3, 10)]
    assert hand.offset("asked-group", queue_of("asked", 0)) == 10


def test_after_a_break_the_next_loop_begins_with_the_same_message(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("broken", b"a", b"b")
    with PushConsumer("broken-group", cluster.namesrv, topics="broken") as consumer:
        for message in consumer:
            assert message.body == b"a"
            break
        assert [next(iter(consumer)).body for _ in range(2)] == [b"a", b"a"]


def test_an_exception_that_leaves_the_block_sends_the_message_back(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("raised", b"a", b"b")
    with pytest.raises(ZeroDivisionError), PushConsumer("raised-group", cluster.namesrv, topics="raised") as consumer:
        for message in consumer:
            raise ZeroDivisionError(message)
    assert hand.offset("raised-group", queue_of("raised", 0)) == 1
    found = []
    with PushConsumer("raised-group", cluster.namesrv, topics="raised") as consumer:
        for message in consumer:
            found.append((message.body, message.attempt))
            if len(found) == 2:
                message.ack()
                break
    assert sorted(found) == [(b"a", 2), (b"b", 1)]


def test_a_loop_may_acknowledge_or_retry_a_message_once(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("said", b"later", b"dead", b"done")
    found: list[tuple[bytes, int]] = []
    with PushConsumer("said-group", cluster.namesrv, topics="said") as consumer:
        for message in consumer:
            found.append((message.body, message.attempt))
            if message.body == b"later" and message.attempt == 1:
                message.retry()
            elif message.body == b"dead":
                message.retry(delay_level=-1)
            elif message.body == b"done":
                message.ack()
                with pytest.raises(UsageError, match="settled before"):
                    message.ack()
            if message.attempt == 2:
                message.ack()
                break
    assert found == [(b"later", 1), (b"dead", 1), (b"done", 1), (b"later", 2)]
    letters = Seen()
    reader = PushConsumer("said-letters", cluster.namesrv)
    reader.subscribe("%DLQ%said-group", letters)
    with reader:
        letters.wait(1)
    assert letters.bodies == [b"dead"]


def test_ack_and_retry_of_a_message_of_a_handler_are_refused(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("quiet", b"a")
    errors: list[Exception] = []

    def handler(message: Delivery) -> None:
        try:
            message.ack()
        except UsageError as error:
            errors.append(error)

    consumer = PushConsumer("quiet-group", cluster.namesrv)
    consumer.subscribe("quiet", handler)
    with consumer:
        until(lambda: errors, "the error")
    assert "whose end decides" in str(errors[0])


def test_several_threads_share_one_consumer(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "threads", 60)
    seen = Seen()
    with PushConsumer("threads-group", cluster.namesrv, topics="threads") as consumer:

        def take() -> None:
            for message in consumer:
                seen(message)

        threads = [threading.Thread(target=take, daemon=True) for _ in range(3)]
        for thread in threads:
            thread.start()
        seen.wait(60)
        until(lambda: sum(consumer.assignment().values()) >= 57, "all but the last ones")
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert seen.counts == dict.fromkeys(sent, 1)


def test_close_ends_a_loop_that_waits(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "ending", 4)
    consumer = PushConsumer("ending-group", cluster.namesrv, topics="ending").start()
    threading.Timer(0.3, consumer.close).start()
    assert len(list(consumer)) <= 4
    with pytest.raises(ClientClosed):
        iter(consumer)


# --- asyncio ---


def test_async_for_takes_every_message_once(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "afor", 200)
    bodies: list[bytes] = []

    async def flow() -> None:
        async with AsyncPushConsumer("afor-group", cluster.namesrv, topics={"afor": "*"}) as consumer:
            async for message in consumer:
                bodies.append(message.body)
                if len(bodies) == 200:
                    message.ack()
                    break

    threads = threading.active_count()
    in_loop(flow)
    assert threading.active_count() == threads
    assert Counter(bodies) == dict.fromkeys(sent, 1)
    assert committed(hand, "afor-group", "afor") == 200


def test_an_exception_that_leaves_the_async_block_sends_the_message_back(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("araised", b"a")
    found = []

    async def flow() -> None:
        with pytest.raises(ZeroDivisionError):
            async with AsyncPushConsumer("araised-group", cluster.namesrv, topics="araised") as consumer:
                async for message in consumer:
                    raise ZeroDivisionError(message)
        async with AsyncPushConsumer("araised-group", cluster.namesrv, topics="araised") as consumer:
            async for message in consumer:
                found.append((message.body, message.attempt))
                break

    in_loop(flow)
    assert found == [(b"a", 2)]


def test_async_handlers_run_side_by_side_and_fail_alone(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "atasks", 100)
    tries: Counter[bytes] = Counter()
    running = most = 0

    async def flow() -> None:
        consumer = AsyncPushConsumer("atasks-group", cluster.namesrv, threads=30)

        @consumer.on("atasks")
        async def handle(message: Delivery) -> None:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            tries[message.body] += 1
            if message.body == b"000007" and message.attempt == 1:
                raise Retry(3)
            if message.body == b"000008" and message.attempt == 1:
                raise asyncio.CancelledError

        async with consumer:
            await eventually(lambda: sum(tries.values()) >= 102, "all messages")

    in_loop(flow)
    assert most == 30
    assert tries == {**dict.fromkeys(sent, 1), b"000007": 2, b"000008": 2}


def test_async_run_ends_by_a_signal_and_gives_the_handlers_back(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("asignal", b"a")
    seen = Seen()

    async def flow() -> None:
        consumer = AsyncPushConsumer("asignal-group", cluster.namesrv)

        @consumer.on("asignal")
        async def handle(message: Delivery) -> None:
            seen(message)
            os.kill(os.getpid(), signal.SIGTERM)

        before = signal.signal(signal.SIGTERM, mine)
        try:
            await consumer.run()
            assert signal.getsignal(signal.SIGTERM) is mine
        finally:
            signal.signal(signal.SIGTERM, before)

    def mine(number: int, frame: Any) -> None: ...

    in_loop(flow)
    assert seen.bodies == [b"a"]
    assert hand.offset("asignal-group", queue_of("asignal", 0)) == 1


def test_a_slow_async_handler_is_cancelled_at_close_and_its_message_comes_again(
    cluster: BrokerProcess, hand: Hand
) -> None:
    hand.send("acancel", b"a")
    cancelled = []

    async def flow() -> None:
        consumer = AsyncPushConsumer("acancel-group", cluster.namesrv, close_timeout_s=1.2)
        begun = asyncio.Event()

        @consumer.on("acancel")
        async def handle(message: Delivery) -> None:
            begun.set()
            try:
                await asyncio.sleep(300)
            except asyncio.CancelledError:
                cancelled.append(message.body)
                raise

        await consumer.start()
        await begun.wait()
        start = time.monotonic()
        await consumer.close()
        assert time.monotonic() - start < 100

    in_loop(flow)
    assert cancelled == [b"a"]
    assert hand.offset("acancel-group", queue_of("acancel", 0)) in (-1, 0)


def test_a_handler_that_blocks_the_loop_is_named(
    cluster: BrokerProcess, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    hand.send("blocking", b"a")

    async def flow() -> None:
        consumer = AsyncPushConsumer("blocking-group", cluster.namesrv)

        @consumer.on("blocking")
        async def sleeps(message: Delivery) -> None:
            time.sleep(1.7)

        async with consumer:
            await eventually(lambda: "the event loop stood still" in caplog.text, "the warning")

    in_loop(flow)
    assert "sleeps: it should await" in caplog.text


def test_a_consumer_that_nobody_closes_is_a_warning_and_ends(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("unclosed", b"a")
    consumer = PushConsumer("unclosed-group", cluster.namesrv)
    seen = Seen()
    consumer.subscribe("unclosed", seen)
    consumer.start()
    seen.wait(1)
    with pytest.warns(ResourceWarning, match="unclosed-group was not closed"):
        del consumer
    until(lambda: hand.offset("unclosed-group", queue_of("unclosed", 0)) == 1, "the offset")


# --- orderly ---


def test_orderly_keeps_the_order_of_a_queue_also_when_a_message_fails(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "ordered", 80)
    seen = Seen()
    running: Counter[int] = Counter()
    overlaps, tries = [], []

    def handler(message: Delivery) -> bool:
        running[message.queue_id] += 1
        if running[message.queue_id] > 1:
            overlaps.append(message)
        time.sleep(0.001)
        running[message.queue_id] -= 1
        seen(message)
        tries.append((message.body, message.attempt))
        return message.body not in (b"000010", b"000011") or message.attempt == 3

    consumer = PushConsumer("ordered-group", cluster.namesrv, orderly=True, suspend_s=0.05)
    consumer.subscribe("ordered", handler)
    with consumer:
        seen.wait(84)
        until(lambda: not any(consumer.lag().values()), "no lag")
    assert not overlaps
    for queue_id in range(4):
        mine = [int(one.body) for one in seen.messages if one.queue_id == queue_id]
        assert sorted(mine) == mine
    assert sorted(one for one in tries if one[0] in (b"000010", b"000011")) == [
        (b"%06d" % name, attempt) for name in (10, 11) for attempt in (1, 2, 3)
    ]
    assert committed(hand, "ordered-group", "ordered") == 80


def test_an_orderly_queue_continues_after_a_dead_letter(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("odead", b"poison", b"next")
    seen = Seen()

    def handler(message: Delivery) -> bool:
        seen(message)
        return message.body != b"poison"

    consumer = PushConsumer("odead-group", cluster.namesrv, orderly=True, suspend_s=0.02, max_reconsume_times=2)
    consumer.subscribe("odead", handler)
    letters = Seen()
    reader = PushConsumer("odead-letters", cluster.namesrv)
    reader.subscribe("%DLQ%odead-group", letters)
    with consumer:
        seen.wait(4)
        with reader:
            letters.wait(1)
    assert seen.bodies == [b"poison"] * 3 + [b"next"]
    assert letters.bodies == [b"poison"]


def test_rebalance_of_orderly_members_never_gives_a_queue_to_two(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "relay", 40)
    seen = Seen()

    def handler(message: Delivery) -> None:
        seen(message)
        time.sleep(0.002)

    members = [PushConsumer("relay-group", cluster.namesrv, orderly=True) for _ in range(2)]
    for member in members:
        member.subscribe("relay", handler)
    with members[0]:
        seen.wait(10)
        with members[1]:
            until(lambda: all(_own(one, "relay") == 2 for one in members), "two queues each")
            fill(hand, "relay", 40, first=40)
            seen.wait(80)
    assert set(seen.counts.values()) == {1}
    for queue_id in range(4):
        mine = [int(one.body) for one in seen.messages if one.queue_id == queue_id]
        assert sorted(mine) == mine


def _own(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment())


# --- broadcasting ---


def test_broadcasting_delivers_everything_to_every_member_and_keeps_the_offsets(
    cluster: BrokerProcess, hand: Hand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", str(tmp_path))
    sent = fill(hand, "cast", 20)
    seen = {"a": Seen(), "b": Seen()}

    def members() -> dict[str, PushConsumer]:
        found = {}
        for name, one in seen.items():
            found[name] = PushConsumer(
                "cast-group", cluster.namesrv, model="broadcasting", from_where="first", instance_name=name
            )
            found[name].subscribe("cast", one)
        return found

    first = members()
    with first["a"], first["b"]:
        for one in seen.values():
            one.wait(20)
    sent += fill(hand, "cast", 20, first=20)
    second = members()
    with second["a"], second["b"]:
        for one in seen.values():
            one.wait(40)
    for one in seen.values():
        assert one.counts == dict.fromkeys(sent, 1)


# --- executor, hooks ---


def double(message: Delivery) -> bool:
    """In another process."""
    assert message.body.isdigit()
    return os.getpid() != int(message.properties["parent"]) and message.attempt > int(message.body == b"000003")


def test_handlers_in_other_processes_get_plain_copies(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "processes", 12, properties=f"parent\x01{os.getpid()}\x02")
    with ProcessPoolExecutor(2) as executor:
        consumer = PushConsumer("processes-group", cluster.namesrv, executor=executor)
        consumer.subscribe("processes", double)
        with consumer:
            until(lambda: consumer.stats()["done"] >= 12, "all")
            assert consumer.stats()["failed"] == 1
            until(lambda: not any(consumer.lag().values()), "no lag")


def test_hooks_are_called_for_every_handler_and_their_errors_are_logged(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("hooked", b"good", b"bad")
    heard: list[Any] = []

    class Hook(ClientHook):
        def before_consume(self, context: Any) -> None:
            heard.append(("before", context.messages[0].body, context.group))
            raise RuntimeError("a hook of no use")

        def after_consume(self, context: Any) -> None:
            heard.append(("after", context.messages[0].body, context.status, type(context.error)))

    consumer = PushConsumer("hooked-group", cluster.namesrv, hooks=[Hook()], orderly=True, max_reconsume_times=0)
    seen = Seen()

    @consumer.on("hooked")
    def handle(message: Delivery) -> None:
        seen(message)
        if message.body == b"bad":
            raise ZeroDivisionError

    with consumer:
        seen.wait(2)
        until(lambda: len(heard) == 4, "all")
    assert heard == [
        ("before", b"good", "hooked-group"),
        ("after", b"good", ConsumeStatus.CONSUME_SUCCESS, type(None)),
        ("before", b"bad", "hooked-group"),
        ("after", b"bad", ConsumeStatus.RECONSUME_LATER, ZeroDivisionError),
    ]
