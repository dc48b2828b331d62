"""PushConsumer beside a real broker: handlers in threads, retries, dead letters, members that share a topic."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from push_tools import QUICK, Hand, Seen, a_cluster, fill, queue_of, until
from running import BrokerProcess

from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push.outcome import verdict
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.values import ConsumeStatus, Retry
from mqfast.errors import ClientClosed, ConfigError, ConnectError, SubscriptionError, UsageError


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with a_cluster(tmp_path_factory.mktemp("push"), enablePropertyFilter=True, **QUICK) as one:
        yield one


@pytest.fixture
def hand(cluster: BrokerProcess) -> Hand:
    return Hand(cluster)


def committed(hand: Hand, group: str, topic: str) -> int:
    return sum(max(0, hand.offset(group, queue_of(topic, queue_id))) for queue_id in range(4))


def test_every_message_comes_once_and_its_offset_is_kept(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "once", 200)
    seen = Seen()
    consumer = PushConsumer("once-group", cluster.namesrv)
    assert consumer.on("once")(seen) is seen
    with consumer:
        seen.wait(200)
        sent += fill(hand, "once", 100, first=200)
        seen.wait(300)
        until(lambda: not any(consumer.lag().values()), "no lag")
        assert sum(consumer.assignment().values()) == 300
    assert seen.counts == dict.fromkeys(sent, 1)
    assert committed(hand, "once-group", "once") == 300
    assert {one.queue for one in seen.messages} == {queue_of("once", i) for i in range(4)}


def test_a_new_member_continues_at_the_committed_offset_of_the_group(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "on", 40)
    first, second = Seen(), Seen()
    for seen, count in ((first, 40), (second, 20)):
        consumer = PushConsumer("on-group", cluster.namesrv)
        consumer.subscribe("on", seen)
        with consumer:
            seen.wait(count)
        if seen is first:
            sent += fill(hand, "on", 20, first=40)
    assert first.counts + second.counts == dict.fromkeys(sent, 1)


def raises_on(name: bytes, error: BaseException | None, until_attempt: int) -> Any:
    seen = Seen()

    def handler(message: Delivery) -> Any:
        seen(message)
        if message.body == name and message.attempt < until_attempt:
            if error is None:
                return False
            raise error
        return None

    return seen, handler


@pytest.mark.parametrize(
    "error", [None, ValueError("bad"), Retry(5), SystemExit(3), KeyboardInterrupt(), Retry(99)], ids=repr
)
def test_a_failed_message_is_retried_until_its_handler_succeeds(
    cluster: BrokerProcess, hand: Hand, error: BaseException | None
) -> None:
    topic = f"again-{abs(hash(repr(error)))}"
    fill(hand, topic, 8)
    seen, handler = raises_on(b"000003", error, 3)
    consumer = PushConsumer(f"{topic}-group", cluster.namesrv)
    consumer.subscribe(topic, handler)
    with consumer:
        seen.wait(10)
    assert {body: count for body, count in seen.counts.items() if count > 1} == {b"000003": 3}
    tries = [one for one in seen.messages if one.body == b"000003"]
    assert [one.attempt for one in tries] == [1, 2, 3]
    assert {one.topic for one in tries} == {topic}
    assert len({one.msg_id for one in tries}) == 1 or "UNIQ_KEY" not in tries[0].properties


def test_a_message_above_max_reconsume_times_goes_to_the_dead_letter_queue(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("dead", b"poison")
    hand.send("dead", b"now", queue_id=1)
    seen = Seen()

    def handler(message: Delivery) -> None:
        seen(message)
        raise Retry(-1) if message.body == b"now" else ValueError

    consumer = PushConsumer("dead-group", cluster.namesrv, max_reconsume_times=1)
    consumer.subscribe("dead", handler)
    letters = Seen()
    with consumer:
        seen.wait(3)
        reader = PushConsumer("letters", cluster.namesrv, from_where="first")
        reader.subscribe("%DLQ%dead-group", letters)
        with reader:
            letters.wait(2)
    assert seen.counts == {b"poison": 2, b"now": 1}
    assert letters.counts == {b"poison": 1, b"now": 1}


@pytest.mark.parametrize(
    ("outcome", "again"),
    [
        (None, set()),
        (True, set()),
        (ConsumeStatus.CONSUME_SUCCESS, set()),
        ("done", set()),
        (False, {0, 1, 2, 3}),
        (ConsumeStatus.RECONSUME_LATER, {0, 1, 2, 3}),
        (1, {2, 3}),
        (-1, {0, 1, 2, 3}),
        ({1, 3}, {1, 3}),
        (set(), set()),
        ({1, 77}, {1}),
    ],
    ids=repr,
)
def test_results_of_a_batch_handler(cluster: BrokerProcess, hand: Hand, outcome: Any, again: set[int]) -> None:
    topic = f"batch-{abs(hash(repr(outcome)))}"
    bodies = [b"%d" % i for i in range(4)]
    hand.send(topic, *bodies)
    calls: list[list[bytes]] = []

    def handler(messages: Sequence[Delivery]) -> Any:
        calls.append([one.body for one in messages])
        return outcome if len(calls) == 1 else None

    consumer = PushConsumer(f"{topic}-group", cluster.namesrv)
    consumer.subscribe(topic, handler, batch=16)
    with consumer:
        until(lambda: sum(map(len, calls)) >= 4 + len(again), "all calls")
    assert calls[0] == bodies
    assert sorted(body for call in calls[1:] for body in call) == [bodies[i] for i in sorted(again)]


def test_tags_and_sql_choose_messages(cluster: BrokerProcess, hand: Hand) -> None:
    for i in range(12):
        tags = ["Aa", "BB", "other"][i % 3]  # Aa and BB have one hash
        hand.send("tagged", b"%d" % i, properties=f"TAGS\x01{tags}\x02price\x01{i}\x02")
    by_tag, by_sql = Seen(), Seen()
    tagged = PushConsumer("tag-group", cluster.namesrv)
    tagged.subscribe("tagged", by_tag, "Aa || other")
    priced = PushConsumer("sql-group", cluster.namesrv)
    priced.subscribe("tagged", by_sql, sql="price > 8")
    with tagged, priced:
        by_tag.wait(8)
        by_sql.wait(3)
    assert sorted(map(int, by_tag.bodies)) == [0, 2, 3, 5, 6, 8, 9, 11]
    assert sorted(map(int, by_sql.bodies)) == [9, 10, 11]
    assert hand.offset("tag-group", queue_of("tagged", 0)) == 12


def test_sql_that_a_broker_refuses_is_an_error_at_the_start(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("refused", b"x")
    consumer = PushConsumer("refused-group", cluster.namesrv)
    consumer.subscribe("refused", print, sql="price >>> 3")
    with pytest.raises(SubscriptionError, match="price >>> 3"):
        consumer.start()


def test_each_topic_has_its_own_handler_also_for_retries(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "left-topic", 8)
    fill(hand, "right-topic", 8)
    left, right = Seen(), Seen()
    consumer = PushConsumer("two-group", cluster.namesrv)

    @consumer.on("left-topic")
    def on_left(message: Delivery) -> bool:
        left(message)
        return message.attempt > 1

    consumer.subscribe("right-topic", right)
    with consumer:
        left.wait(16)
        right.wait(8)
    assert {one.topic for one in left.messages} == {"left-topic"}
    assert {one.topic for one in right.messages} == {"right-topic"}
    assert set(left.counts.values()) == {2}


def test_two_members_share_the_queues_and_each_message_comes_once(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "shared", 40)
    seen = [Seen(), Seen()]
    members = [PushConsumer("shared-group", cluster.namesrv) for _ in seen]
    for member, one in zip(members, seen, strict=True):
        member.subscribe("shared", one)
    with members[0]:
        seen[0].wait(40)
        with members[1]:
            until(lambda: [_own(one, "shared") for one in members] == [2, 2], "two queues each")
            sent += fill(hand, "shared", 40, first=40)
            until(lambda: sum(len(one.messages) for one in seen) >= 80, "all messages")
            assert len(seen[1].messages) == 20
        until(lambda: _own(members[0], "shared") == 4, "four queues again")
        sent += fill(hand, "shared", 40, first=80)
        until(lambda: sum(len(one.messages) for one in seen) >= 120, "all messages")
    assert seen[0].counts + seen[1].counts == dict.fromkeys(sent, 1)


def _own(consumer: PushConsumer, topic: str) -> int:
    return sum(queue.topic == topic for queue in consumer.assignment())


def test_slow_handlers_run_side_by_side_up_to_the_number_of_threads(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "slow", 24)
    running, most, lock = 0, 0, threading.Lock()
    seen = Seen()

    def handler(message: Delivery) -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        time.sleep(0.05)
        with lock:
            running -= 1
        seen(message)

    consumer = PushConsumer("slow-group", cluster.namesrv, threads=6)
    consumer.subscribe("slow", handler)
    with consumer:
        seen.wait(24)
    assert most == 6


def test_an_executor_of_the_user_runs_the_handlers(cluster: BrokerProcess, hand: Hand) -> None:
    sent = fill(hand, "executed", 40)
    names: set[str] = set()
    seen = Seen()

    def handler(message: Delivery) -> bool:
        names.add(threading.current_thread().name.partition("_")[0])
        seen(message)
        return message.body != b"000005" or message.attempt > 1

    with ThreadPoolExecutor(3, thread_name_prefix="mine") as executor:
        consumer = PushConsumer("executor-group", cluster.namesrv, executor=executor)
        consumer.subscribe("executed", handler)
        with consumer:
            seen.wait(41)
    assert names == {"mine"}
    assert set(seen.bodies) == set(sent)


def test_a_topic_that_does_not_exist_yet_is_found(cluster: BrokerProcess, hand: Hand) -> None:
    seen = Seen()
    consumer = PushConsumer("early-group", cluster.namesrv, from_where="first")
    consumer.subscribe("comes-later", seen)
    with consumer:
        assert not _own(consumer, "comes-later")
        fill(hand, "comes-later", 8)
        seen.wait(8)


def test_pause_stops_and_resume_goes_on(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "paused", 4)
    seen = Seen()
    consumer = PushConsumer("pause-group", cluster.namesrv)
    consumer.subscribe("paused", seen)
    consumer.pause()
    with consumer:
        until(lambda: _own(consumer, "paused") == 4, "queues")
        assert sum(n for queue, n in consumer.lag().items() if queue.topic == "paused") == 4
        assert not seen.messages
        consumer.resume()
        seen.wait(4)


def starts(consumer: PushConsumer) -> bool:
    try:
        consumer.assignment()
    except ClientClosed:
        return False
    return True


def test_run_beside_a_loop_of_another_thread(
    cluster: BrokerProcess, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a handler the messages wait for a loop; none is lost, and a warning says so."""
    sent = fill(hand, "looped", 8)
    consumer = PushConsumer("run-loop-group", cluster.namesrv, topics="looped", from_where="first")
    running = threading.Thread(target=consumer.run)
    running.start()
    until(lambda: starts(consumer), "its start by that thread")  # this thread's close may come before it otherwise
    bodies = []
    for message in consumer:
        bodies.append(message.body)
        if len(bodies) == 8:
            break
    consumer.close()
    running.join(30)
    assert not running.is_alive()
    assert set(bodies) == set(sent)
    assert "no handler for looped" in caplog.text


def test_topics_come_and_go_while_it_runs(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "stays", 4)
    fill(hand, "comes", 4)
    stays, comes = Seen(), Seen()
    consumer = PushConsumer("change-group", cluster.namesrv)
    consumer.subscribe("stays", stays)
    with consumer:
        stays.wait(4)
        consumer.subscribe("comes", comes)
        comes.wait(4)
        consumer.unsubscribe("comes")
        until(lambda: _own(consumer, "comes") == 0, "no queue of it")
        fill(hand, "comes", 4, first=4)
        fill(hand, "stays", 4, first=4)
        stays.wait(8)
        assert len(comes.messages) == 4


def test_close_lets_running_handlers_end_and_keeps_what_they_have_done(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("closing", b"a")
    begun, seen = threading.Event(), Seen()

    def handler(message: Delivery) -> None:
        begun.set()
        time.sleep(0.3)
        seen(message)

    consumer = PushConsumer("closing-group", cluster.namesrv)
    consumer.subscribe("closing", handler)
    consumer.start()
    assert begun.wait(10)
    consumer.close()
    assert seen.bodies == [b"a"]
    assert hand.offset("closing-group", queue_of("closing", 0)) == 1


def test_close_does_not_wait_for_ever_and_the_message_comes_again(
    cluster: BrokerProcess, hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    hand.send("stuck", b"a", b"b")
    begun, go = threading.Event(), threading.Event()
    consumer = PushConsumer("stuck-group", cluster.namesrv, threads=1, close_timeout_s=1.5)

    @consumer.on("stuck")
    def handler(message: Delivery) -> None:
        begun.set()
        go.wait(300)

    consumer.start()
    assert begun.wait(60)
    start = time.monotonic()
    consumer.close()
    assert time.monotonic() - start < 100
    assert "1 messages have handlers that did not end in time" in caplog.text
    go.set()
    seen = Seen()
    again = PushConsumer("stuck-group", cluster.namesrv)
    again.subscribe("stuck", seen)
    with again:
        seen.wait(2)
    assert seen.counts == {b"a": 1, b"b": 1}


def test_a_handler_may_close_its_consumer(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("last", b"a")
    consumer = PushConsumer("last-group", cluster.namesrv)
    consumer.subscribe("last", lambda message: consumer.close())
    consumer.run()
    assert hand.offset("last-group", queue_of("last", 0)) == 1
    with pytest.raises(ClientClosed):
        consumer.start()


PROGRAM = """
import signal, sys, time
from mqfast.client.consumer.push_consumer import PushConsumer

def mine(number, frame): ...
signal.signal(signal.SIGTERM, mine)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that runs in the background has none
consumer = PushConsumer("signal-group", sys.argv[1])

@consumer.on("signals")
def handle(message):
    print("got", message.body.decode(), flush=True)
    if sys.argv[2] == "slow":
        time.sleep(20)

consumer.run()
assert signal.getsignal(signal.SIGTERM) is mine
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
print("closed", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_ends_by_a_signal_and_gives_the_handlers_back(cluster: BrokerProcess, hand: Hand, number: int) -> None:
    hand.send("signals", b"one")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.namesrv, "quick"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "got one\n"
    process.send_signal(number)
    out, _ = process.communicate(timeout=200)
    assert (out, process.returncode) == ("closed\n", 0)


def test_a_second_signal_ends_at_once(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("signals", b"two")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, cluster.namesrv, "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "got two\n"
    start = time.monotonic()
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.3)
    assert time.monotonic() - start < 100
    assert process.returncode != 0
    process.stdout.close()


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: PushConsumer("g", "a:1", model="all"), ConfigError, "model"),
        (lambda: PushConsumer("g", "a:1", allocation="AVGG"), ConfigError, "AVG"),
        (lambda: PushConsumer("g", "a:1", from_where="middle"), ConfigError, "from_where"),
        (lambda: PushConsumer("g", "a:b"), ConfigError, "namesrv_addr"),
        (lambda: PushConsumer("g", "a:1", **{"thread": 3}), ConfigError, "did you mean threads?"),  # type: ignore[arg-type]
        (lambda: PushConsumer("g", "a:1", offset_store=3), ConfigError, "offset_store"),  # type: ignore[arg-type]
        (lambda: PushConsumer("g", "a:1", hooks=[3]), ConfigError, "hooks"),  # type: ignore[list-item]
        (lambda: PushConsumer("g", "a:1", topics=["t"]), ConfigError, "topics: .* found list"),  # type: ignore[arg-type]
        (lambda: PushConsumer("g", "a:1", topics="a b"), ConfigError, "topic: expected 1 to 127"),
        (lambda: PushConsumer("g", "a:1", namespace="a b"), ConfigError, "namespace"),
        (lambda: PushConsumer("g", "a:1").on(print), ConfigError, "topic: expected a name"),  # type: ignore[arg-type]
        (lambda: PullConsumer("g", "a:1", offset_store=3), ConfigError, "offset_store"),  # type: ignore[arg-type]
        (lambda: PullConsumer("g", "a:1", hooks=[3]), ConfigError, "hooks"),  # type: ignore[list-item]
        (lambda: PullConsumer("g", "a:1", topics="a b"), ConfigError, "topic: expected 1 to 127"),
        (lambda: PushConsumer("g", "a:1").subscribe("t", 7), UsageError, "function as handler"),
        (lambda: PushConsumer("g", "a:1").subscribe("t", print, batch=0), UsageError, "batch"),
        (lambda: PushConsumer("g", "a:1").subscribe("", print), UsageError, "topic"),
        (lambda: PushConsumer("g", "a:1").subscribe("t", print, "||"), UsageError, "tag"),
        (lambda: PushConsumer("g", "a:1", topics="t").subscribe("u", print), UsageError, "found both"),
        (lambda: PushConsumer("g", "a:1").start(), UsageError, "expected a topic"),
        (lambda: PushConsumer("g", "a:1").assignment(), ClientClosed, "start"),
    ],
)
def test_invalid_arguments_are_an_error_before_anything_is_sent(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_a_coroutine_function_is_for_the_other_class() -> None:
    async def handler(message: Delivery) -> None: ...

    class Handler:
        async def __call__(self, message: Delivery) -> None: ...

    for one in (handler, Handler()):
        with pytest.raises(UsageError, match="AsyncPushConsumer"):
            PushConsumer("g", "a:1").subscribe("t", one)


def test_a_handler_that_returns_a_coroutine_has_not_done_its_message() -> None:
    async def handler() -> None: ...

    messages: list[Any] = ["a message"]
    found = verdict(messages, handler(), None, is_batch=False)
    assert not found.done
    assert found.later == [("a message", 0)]
    assert "nothing of it ran" in found.odd


def test_a_handler_that_no_other_process_can_import_is_an_error() -> None:
    with ProcessPoolExecutor(1) as executor:
        consumer = PushConsumer("g", "a:1", executor=executor)
        consumer.subscribe("t", lambda message: None)
        with pytest.raises(UsageError, match="topic t: expected a handler that another process can import"):
            consumer.start()


def test_two_handlers_of_one_topic_are_an_error() -> None:
    consumer = PushConsumer("g", "a:1")
    consumer.subscribe("t", print)
    with pytest.raises(UsageError, match="one handler"):
        consumer.subscribe("t", repr)


def test_no_name_server_is_an_error_that_names_them() -> None:
    consumer = PushConsumer("g", "127.0.0.1:1", topics="t")
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        consumer.start()
