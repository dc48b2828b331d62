"""Pull consumers beside a broker of ours: arguments, brokers that go, moved offsets, forks, ends of all kinds."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from consumer_cluster import BROKER_NAME, Hand, a_cluster, in_loop, until

from mqfast.client import AsyncPullConsumer, PullConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.hooks import ClientHook, ConsumeContext
from mqfast.client.values import MessageQueue
from mqfast.errors import (
    ClientClosed,
    ClientError,
    ClientForked,
    ConfigError,
    ConnectError,
    FieldError,
    NoRoute,
    OffsetMoved,
    Refused,
    SubscriptionError,
    UsageError,
)
from mqfast.remoting.command import RemotingCommand
from mqfast.util.fastjson import standard

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hand]:
    with a_cluster(tmp_path_factory.mktemp("pull"), enablePropertyFilter=True) as one:
        yield Hand(one)


def first(consumer: PullConsumer, count: int = 1) -> list[bytes]:
    """So many bodies, or what came in 20 s."""
    found: list[bytes] = []
    end = time.monotonic() + 20
    while len(found) < count and time.monotonic() < end:
        found += [message.body for message in consumer.poll(timeout_s=1, max_count=count - len(found))]
    return found


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"group": ""}, "group: expected 1 to 120"),
        ({"group": "a b"}, "group: expected 1 to 120"),
        ({"group": 7}, "group: expected str"),
        ({"namesrv_addr": "host:port"}, "host:port"),
        ({"topics": 7}, "topics: expected a name or a mapping"),
        ({"topics": {"": "*"}}, "topic: expected 1 to 127"),
        ({"topics": {"t": "||"}}, "t"),
        ({"topics": {"t": 7}}, "tag"),
        ({"model": "broadcast"}, "model: expected clustering or broadcasting.*did you mean broadcasting"),
        ({"from_where": "LAST"}, "from_where"),
        ({"allocation": "AVERAGE"}, "allocation: expected one of AVG"),
        ({"offset_reset": "newest"}, "offset_reset: expected"),
        ({"auto_commit_s": 0}, "auto_commit_s: expected 0.1 to 86400 seconds, found 0"),
        ({"auto_commit_s": "5"}, "auto_commit_s"),
        ({"pull_batch": 0}, "pull_batch: expected 1 to 1024 messages, found 0"),
        ({"max_cached_messages": True}, "max_cached_messages"),
        ({"close_timeout_s": -1}, "close_timeout_s"),
        ({"credentials": ("a", "b")}, "credentials"),
        ({"tls": "yes"}, "tls"),
        ({"pull_bach": 3}, "no setting is named 'pull_bach'; did you mean pull_batch"),
        ({"threads": 3}, "no setting is named 'threads'"),
    ],
)
def test_arguments_that_are_none_are_refused_before_anything_is_sent(arguments: dict[str, Any], words: str) -> None:
    for kind in (PullConsumer, AsyncPullConsumer):
        with pytest.raises((ConfigError, UsageError), match=words):
            kind(**{"group": "g", "namesrv_addr": "127.0.0.1:1", **arguments})


def test_java_s_settings_are_taken_by_name() -> None:
    settings: dict[str, str | int | bool] = {
        "consumerGroup": "g", "namesrvAddr": "a:1;b:2", "pullBatchSize": "20", "pullThresholdForQueue": 9,
        "autoCommitIntervalMillis": 2500, "messageModel": "BROADCASTING", "pullThresholdForAll": 77,
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
    }  # fmt: skip
    made = PullConsumer.from_java(settings)._settings
    assert made.instance.name_servers == ("a:1", "b:2")
    assert (made.group, made.pull_batch, made.auto_commit_s, made.is_broadcasting) == ("g", 20, 2.5, True)
    assert (made.from_where, made.limits.messages, made.limits.total) == ("earliest", 9, 77)
    assert PullConsumer.from_java({"consumerGroup": "g", "namesrvAddr": "a:1", "autoCommit": "false"})._settings
    for name, value in (("pullBatchSiez", 3), ("autoCommit", "maybe"), ("consumeThreadMax", 3)):
        with pytest.raises(ConfigError, match="threads" if name == "consumeThreadMax" else name):
            PullConsumer.from_java({"consumerGroup": "g", "namesrvAddr": "a:1", name: value})


@pytest.mark.parametrize("wrong", [("t", "b"), ("t", "b", -1), ("t", "b", "0"), "t", None])
def test_a_queue_that_is_none_is_refused(wrong: Any) -> None:
    consumer = PullConsumer("g", "127.0.0.1:1")
    for call in (
        lambda: consumer.seek(wrong, 0),
        lambda: consumer.pull(wrong, 0),
        lambda: consumer.committed(wrong),
        lambda: consumer.assign([wrong]),
        lambda: consumer.commit({wrong: 0}),
    ):
        with pytest.raises(UsageError, match=r"queue: expected a MessageQueue\(topic, broker_name, queue_id"):
            call()


def test_numbers_that_are_none_are_refused() -> None:
    consumer, queue = PullConsumer("g", "127.0.0.1:1"), MessageQueue("t", "b", 0)
    for call, words in (
        (lambda: consumer.poll(-1), "timeout_s: expected seconds from 0 on, found -1"),
        (lambda: consumer.poll(1e30), "timeout_s: expected at most 2678400 seconds"),
        (lambda: consumer.queues([]), r"topic: expected a name, found \[\]"),
        (lambda: consumer.unsubscribe("a b"), "topic: expected 1 to 127 of the characters"),
        (lambda: consumer.poll(1, 0), "max_count: expected a whole number from 1 on, found 0"),
        (lambda: consumer.pull(queue, -1), "offset: expected a whole number from 0 on, found -1"),
        (lambda: consumer.pull(queue, 0, wait_s=100), "wait_s: expected seconds from 0 to 60"),
        (lambda: consumer.seek(queue, "begin"), "seek: expected an offset, 'earliest', 'latest' or a datetime"),
        (lambda: consumer.offset_at(queue, "now"), "moment: expected a datetime"),
        (lambda: consumer.commit({queue: "3"}), "expected an offset, found '3'"),
        (lambda: consumer.commit({queue: True}), "expected an offset, found True"),
        (lambda: consumer.commit([queue]), "commit: expected a mapping from MessageQueue to offset, found"),
        (lambda: consumer.assign(3), "queues: expected several MessageQueues, found 3"),
        (lambda: consumer.assign(queue), "queues: expected several MessageQueues, found MessageQueue"),
        (lambda: consumer.pause(3), "queues: expected several MessageQueues, found 3"),
        (lambda: consumer.resume("t"), "queues: expected several MessageQueues, found 't'"),
    ):
        with pytest.raises(UsageError, match=words):
            call()  # type: ignore[no-untyped-call]


def test_no_name_server_is_an_error_that_names_it() -> None:
    begin = time.monotonic()
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1"):
        PullConsumer("g", "127.0.0.1:1", topics="t").start()
    assert time.monotonic() - begin < 20


def test_a_topic_that_is_made_later_is_read_then(hand: Hand) -> None:
    with PullConsumer("early", hand.namesrv, topics="late", from_where="first") as consumer:
        assert consumer.poll(timeout_s=0.05) == []
        hand.send("late", b"x")
        assert first(consumer) == [b"x"]


def test_a_topic_may_be_subscribed_and_left_while_it_runs(hand: Hand) -> None:
    hand.send("later", b"x", properties="TAGS\x01a\x02")
    with PullConsumer("changing", hand.namesrv, from_where="first") as consumer:
        assert consumer.poll(timeout_s=0) == []
        consumer.subscribe("later", "b")
        until(lambda: consumer.assignment().get(hand.queue("later")) == 1, "what is not wanted is passed")
        consumer.seek(hand.queue("later"), "first")
        consumer.subscribe("later", "a || b")
        consumer.seek(hand.queue("later"), "first")
        assert first(consumer) == [b"x"]
        consumer.unsubscribe("later")
        assert consumer.assignment() == {}
        with pytest.raises(UsageError, match="found both"):
            consumer.subscribe("later", "a", sql="x > 1")


def test_sql_filters_and_a_refused_expression_is_an_error_at_the_start(hand: Hand) -> None:
    for price in range(5):
        hand.send("priced", b"%d" % price, properties=f"price\x01{price}\x02")
    with PullConsumer("sql", hand.namesrv, from_where="first") as consumer:
        consumer.subscribe("priced", sql="price BETWEEN 2 AND 3")
        assert first(consumer, 2) == [b"2", b"3"]
        with pytest.raises(SubscriptionError, match=r"topic priced, sql 'price = = 3': .* answered code 23"):
            consumer.subscribe("priced", sql="price = = 3")
        assert consumer.pull(hand.queue("priced"), 0, sql="price = 4").messages[0].body == b"4"


def test_poll_raises_for_a_group_without_read_permission(hand: Hand) -> None:
    hand.send("closed", b"x")
    body = b'{"groupName":"shut","consumeEnable":false}'
    assert hand.ask(200, body).code == 0
    with PullConsumer("shut", hand.namesrv, topics="closed") as consumer:
        until(lambda: all(one["error"] for one in consumer.stats()["queues"].values()), "a refusal of every queue")
        with pytest.raises(Refused, match="shut"):
            consumer.poll(timeout_s=0)
        assert "no permission" in next(iter(consumer.stats()["queues"].values()))["error"]


def test_offset_moved_is_raised_until_a_seek(hand: Hand) -> None:
    hand.send("moved", b"0", b"1", b"2")
    hand.make_group("movers")
    queue = hand.queue("moved")
    assert hand.ask(15, consumerGroup="movers", topic="moved", queueId=0, commitOffset=50).code == 0
    with PullConsumer("movers", hand.namesrv, topics="moved") as consumer:
        for _ in range(2):
            with pytest.raises(OffsetMoved, match="the queue ends before it") as moved:
                first(consumer)
            assert (moved.value.queue, moved.value.offset, moved.value.max_offset) == (queue, 50, 3)
        assert consumer.committed(queue) == 50, "nothing was moved"
        consumer.seek(queue, moved.value.max_offset - 1)
        assert first(consumer) == [b"2"]
    assert hand.ask(15, consumerGroup="movers", topic="moved", queueId=0, commitOffset=50).code == 0
    with PullConsumer("movers", hand.namesrv, topics="moved", offset_reset="earliest") as consumer:
        assert first(consumer, 3) == [b"0", b"1", b"2"]


def test_a_reset_by_an_admin_is_followed(hand: Hand) -> None:
    hand.send("again", b"0", b"1", b"2")
    with PullConsumer("resetting", hand.namesrv, topics="again", from_where="first") as consumer:
        assert first(consumer, 3) == [b"0", b"1", b"2"]
        consumer.commit()
        with AdminClient(hand.namesrv) as admin:
            admin.reset_offset("resetting", "again", "first", dry_run=False)
        hand.send("again", b"3")  # wakes the pull that waits
        assert first(consumer, 4)[-4:] == [b"0", b"1", b"2", b"3"]


def test_admins_see_a_pull_consumer_and_move_it_through_the_broker(hand: Hand) -> None:
    hand.send("seen", b"0", b"1", b"2")
    queue = hand.queue("seen")
    with PullConsumer("seeing", hand.namesrv, topics={"seen": "*"}, from_where="first") as consumer:
        assert first(consumer, 3) == [b"0", b"1", b"2"]
        consumer.commit()
        client_id = consumer.stats()["client_id"]
        info = hand.ask(307, consumerGroup="seeing", clientId=client_id, jstackEnable="false")
        assert info.code == 0, info.remark
        found = json.loads(standard(bytes(info.body)))
        assert found["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert [one["topic"] for one in found["subscriptionSet"]] == ["seen"]
        offsets = {json.loads(key)["queueId"]: one["commitOffset"] for key, one in found["mqTable"].items()}
        assert offsets == {0: 3, 1: 0, 2: 0, 3: 0}
        status = hand.ask(223, topic="seen", group="seeing", clientAddr="")
        assert status.code == 0, status.remark
        assert f'"queueId":{queue.queue_id}'.encode() in bytes(status.body).replace(b"\\", b"")
        body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"seen"}:1}}'
        requests = consumer._engine.parts.requests
        request = RemotingCommand(220, {"topic": "seen", "group": "seeing"}, body)
        consumer._io.call(requests.reset(None, request), 10)  # type: ignore[arg-type]
        assert first(consumer, 2) == [b"1", b"2"]
        with pytest.raises(FieldError, match="field body: expected JSON"):
            consumer._io.call(requests.reset(None, RemotingCommand(220, {}, b"{]")), 10)  # type: ignore[arg-type]


def test_a_broker_restart_loses_and_repeats_nothing(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        hand = Hand(cluster)
        hand.send("kept", b"0", b"1")
        with PullConsumer("staying", hand.namesrv, topics="kept", from_where="first", auto_commit_s=None) as consumer:
            assert first(consumer, 2) == [b"0", b"1"]
            consumer.commit()
            cluster.end(signal.SIGKILL)
            with pytest.raises((ClientError, ConnectionError)):
                consumer.commit({hand.queue("kept"): 1})
            assert consumer.poll(timeout_s=0.1) == []
            cluster.start()
            hand = Hand(cluster)
            hand.send("kept", b"2")
            assert first(consumer)[-1:] == [b"2"]
            consumer.commit()
            assert hand.offset("staying", hand.queue("kept")) == 3


def test_a_start_that_failed_may_be_tried_again(tmp_path: Path) -> None:
    with a_cluster(tmp_path) as cluster:
        hand = Hand(cluster)
        hand.send("retried", b"0")
        consumer = PullConsumer("retrying", hand.namesrv, topics="retried", from_where="first")
        cluster.end()
        with pytest.raises(ConnectError):
            consumer.start()
        cluster.start()
        until(lambda: Hand(cluster).broker_name == BROKER_NAME, "the broker is back")
        with consumer:
            assert first(consumer) == [b"0"]
            consumer.seek(hand.queue("retried"), "first")
            assert first(consumer) == [b"0"], "a seek begins another pull"
            consumer.commit()
        assert hand.offset("retrying", hand.queue("retried")) == 1
        assert hand.members("retrying") == 0


class Table:
    """An offset store of a user's."""

    def __init__(self) -> None:
        self.rows: dict[MessageQueue, int] = {}

    def load(self, queue: MessageQueue) -> int | None:
        return self.rows.get(queue)

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        self.rows.update(offsets)


def test_offsets_may_be_kept_by_the_user(hand: Hand) -> None:
    hand.send("owned", b"0", b"1", b"2")
    queue, table = hand.queue("owned"), Table()
    table.rows[queue] = 1
    with PullConsumer("owners", hand.namesrv, topics="owned", offset_store=table) as consumer:
        assert first(consumer) == [b"1"]
        consumer.commit()
        assert table.rows[queue] == 2
        assert consumer.committed(queue) == 2
    assert hand.offset("owners", queue) == -1


def test_hooks_are_called_for_messages_that_are_handed_out(hand: Hand) -> None:
    heard: list[tuple[str, list[bytes]]] = []

    class Hook(ClientHook):
        def before_consume(self, context: ConsumeContext) -> None:
            heard.append(("before", [message.body for message in context.messages]))

        def after_consume(self, context: ConsumeContext) -> None:
            heard.append(("after", [message.body for message in context.messages]))
            raise RuntimeError("in a hook")

    hand.send("heard", b"0", b"1")
    with PullConsumer("hearing", hand.namesrv, topics="heard", from_where="first", hooks=[Hook()]) as consumer:
        assert first(consumer) == [b"0"]
        assert next(iter(consumer)).body == b"0"
    assert heard == [("before", [b"0"]), ("after", [b"0"])] * 2


def test_pause_stops_the_pulls_and_resume_goes_on(hand: Hand) -> None:
    hand.send("paused", b"0")
    with PullConsumer("pausing", hand.namesrv, topics="paused", from_where="first") as consumer:
        assert first(consumer) == [b"0"]
        consumer.pause()
        hand.send("paused", b"1", b"2")  # the pull under way may still bring one
        assert all(one["paused"] for one in consumer.stats()["queues"].values())
        got = first(consumer) if consumer.stats()["queues"][hand.queue("paused")]["cached"] else []
        consumer.resume([hand.queue("paused")])
        assert got + first(consumer, 2 - len(got)) == [b"1", b"2"]


def test_auto_commit_commits_messages_acknowledged_by_a_later_poll(hand: Hand) -> None:
    hand.send("auto", b"0", b"1", b"2")
    queue = hand.queue("auto")
    with PullConsumer("automatic", hand.namesrv, topics="auto", from_where="first", auto_commit_s=0.1) as consumer:
        assert first(consumer, 2) == [b"0", b"1"]
        acknowledged = consumer.stats()["queues"][queue]["acknowledged"]
        assert acknowledged < 2, "the last batch is with the application"
        assert first(consumer) == [b"2"]
        until(lambda: hand.offset("automatic", queue) == 2, "the batches before are committed")
        assert consumer.stats()["queues"][queue]["acknowledged"] == 2


def test_a_waiting_poll_raises_when_the_consumer_is_closed(hand: Hand) -> None:
    hand.send("ending", b"x")
    consumer = PullConsumer("ending", hand.namesrv, topics="ending", from_where="first").start()
    assert first(consumer) == [b"x"]
    consumer.commit()
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            consumer.poll(timeout_s=60)
        except BaseException as error:
            errors.append(error)

    def loop() -> None:
        errors.extend([] for _ in consumer)  # type: ignore[misc]

    threads = [threading.Thread(target=one) for one in (wait, loop)]
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    consumer.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert time.monotonic() - begin < 20
    assert [type(error) for error in errors] == [ClientClosed]
    consumer.close()
    for call in (consumer.poll, consumer.start, consumer.commit, lambda: consumer.queues("ending")):
        with pytest.raises(ClientClosed, match="group ending"):
            call()


def test_a_child_of_a_fork_has_no_running_consumer_and_may_start_its_own(hand: Hand) -> None:
    hand.send("forked", b"0")
    fresh = PullConsumer("forked-child", hand.namesrv, topics="forked", from_where="first")
    with PullConsumer("forked", hand.namesrv, topics="forked", from_where="first") as consumer:
        assert first(consumer) == [b"0"]
        child = os.fork()
        if child == 0:
            code = 1
            try:
                for call in (consumer.poll, consumer.commit, consumer.stats, lambda: next(iter(consumer))):
                    try:
                        call()  # type: ignore[operator]
                    except ClientForked:
                        continue
                    os._exit(2)
                consumer.close()
                with fresh:
                    code = 0 if first(fresh) == [b"0"] else 3
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hand.send("forked", b"1")
        assert first(consumer) == [b"1"], "the parent goes on"


def test_the_end_of_a_process_commits_what_was_acknowledged_and_does_not_hang(hand: Hand) -> None:
    hand.send("exiting", *(b"%d" % number for number in range(6)))
    script = f"""
from mqfast.client import PullConsumer
consumer = PullConsumer("exiting", {hand.namesrv!r}, topics="exiting", from_where="first").start()
taken = 0
while taken < 4:
    taken += len(consumer.poll(max_count=2))
print(taken)
"""
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=200, cwd=ROOT, check=True
    )
    assert done.stdout == "4\n"
    assert time.monotonic() - begin < 40
    assert hand.offset("exiting", hand.queue("exiting")) == 2, "the last batch is for the next one"


def test_a_consumer_that_is_dropped_open_warns_and_leaves_the_group(hand: Hand) -> None:
    hand.send("dropped", b"0")
    consumer: Any = PullConsumer("dropping", hand.namesrv, topics="dropped").start()
    assert hand.members("dropping") == 1
    with pytest.warns(ResourceWarning, match="pull consumer of group dropping was not closed"):
        del consumer
    gc.collect()
    until(lambda: hand.members("dropping") == 0, "the group is left")


def test_two_consumers_of_one_group_in_one_process_are_two_members(hand: Hand) -> None:
    hand.send("twice", b"0")
    arguments: dict[str, Any] = {"topics": "twice"}
    with PullConsumer("two", hand.namesrv, **arguments) as one, PullConsumer("two", hand.namesrv, **arguments) as two:
        assert one.stats()["client_id"] != two.stats()["client_id"]
        until(lambda: len(one.assignment()) == len(two.assignment()) == 2, "two queues each")


def test_the_asynchronous_face_is_bound_to_its_loop_and_cancelled_safely(hand: Hand) -> None:
    hand.send("looped", b"0")

    async def flow() -> None:
        consumer = AsyncPullConsumer("loops", hand.namesrv, topics="looped")
        threads = threading.active_count()
        async with consumer:
            assert threading.active_count() == threads, "no thread is started"
            waiting = asyncio.create_task(consumer.poll(timeout_s=60))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await consumer.seek(hand.queue("looped"), "first")
            async with asyncio.timeout(300):
                assert [message.body for message in await consumer.poll(timeout_s=20)] == [b"0"]
            await consumer.commit()

            def elsewhere() -> None:
                with pytest.raises(UsageError, match="another event loop"):
                    asyncio.run(consumer.poll())

            await asyncio.to_thread(elsewhere)
            ended = asyncio.create_task(consumer.poll(timeout_s=60))
            await asyncio.sleep(0)
            await consumer.close()
            with pytest.raises(ClientClosed):
                await ended
            assert [message async for message in _closed(consumer)] == []
            await consumer.close()

    async def _closed(consumer: AsyncPullConsumer) -> Any:
        try:
            async for message in consumer:
                yield message
        except ClientClosed:
            return

    in_loop(flow)


@pytest.mark.parametrize("turns", range(8))
def test_a_poll_that_is_cancelled_while_something_wakes_it_ends(hand: Hand, turns: int) -> None:
    async def flow() -> None:
        async with AsyncPullConsumer("cancelled", hand.namesrv) as consumer:
            await consumer.assign([hand.queue("awake")])
            waiting = asyncio.create_task(consumer.poll(timeout_s=60))
            for _ in range(20):
                await asyncio.sleep(0)
            wake = consumer._engine.cache.asynchronous  # as an answer does whose messages another poll has taken
            assert wake is not None
            wake()
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            async with asyncio.timeout(300):
                await asyncio.wait([waiting])
            assert waiting.cancelled()

    hand.send("awake", b"0", queue_id=1)
    in_loop(flow)


def test_a_poll_without_a_topic_or_a_queue_says_so(hand: Hand) -> None:
    words = r"group aimless: expected a topic or queues: topics=, subscribe\(\) or assign\(\), found none"

    async def flow() -> None:
        async with AsyncPullConsumer("aimless", hand.namesrv) as consumer:
            with pytest.raises(UsageError, match=words):
                await consumer.poll(timeout_s=0.01)

    with PullConsumer("aimless", hand.namesrv) as consumer:
        with pytest.raises(UsageError, match=words):
            consumer.poll(timeout_s=0.01)
        with pytest.raises(UsageError, match=words):
            next(iter(consumer))
        consumer.assign([])  # on purpose
        assert consumer.poll(timeout_s=0.01) == []
    in_loop(flow)


def test_no_route_names_the_missing_broker(hand: Hand) -> None:
    with PullConsumer("routes", hand.namesrv) as consumer:
        with pytest.raises(NoRoute, match="unheard"):
            consumer.queues("unheard")
        hand.send("there", b"x")
        with pytest.raises(NoRoute, match=f"expected a broker gone in the route of its topic, found.*{BROKER_NAME}"):
            consumer.pull(MessageQueue("there", "gone", 0), 0)


@pytest.mark.parametrize("number", range(2))
def test_no_order_of_calls_skips_a_message_that_was_not_handed_out(hand: Hand, number: int, seed: int) -> None:
    """Polls, loops, commits, ends with and without an error, against the set of what was seen."""
    dice = random.Random(seed)
    topic, group = f"any-{number}", f"any-{number}"
    count = 30
    for at in range(count):
        hand.send(topic, b"%d" % at, queue_id=at % 3)
    seen: dict[int, set[int]] = {one: set() for one in range(4)}

    def see(messages: Any) -> None:
        for message in messages:
            seen[message.queue_id].add(message.queue_offset)

    def check() -> None:
        for queue_id, offsets in seen.items():
            kept = max(0, hand.offset(group, hand.queue(topic, queue_id)))
            assert set(range(kept)) <= offsets, f"queue {queue_id}: {kept} passes what nobody saw"

    while sum(map(len, seen.values())) < count:
        auto = dice.choice([None, 0.1])
        try:
            with PullConsumer(group, hand.namesrv, topics=topic, from_where="first", auto_commit_s=auto) as consumer:
                for _ in range(dice.randrange(1, 6)):
                    what = dice.randrange(5)
                    if what == 0:
                        see(consumer.poll(timeout_s=0.3, max_count=dice.randrange(1, 9)))
                    elif what == 1:
                        left = dice.randrange(1, 6)
                        if any(one["cached"] > left for one in consumer.stats()["queues"].values()):
                            for message in consumer:
                                see([message])
                                left -= 1
                                if not left:
                                    break
                    elif what == 2:
                        consumer.commit()
                    elif what == 3:
                        consumer.poll(timeout_s=0)[:0]
                        raise ZeroDivisionError
                    check()
        except ZeroDivisionError:
            if auto is None:
                check()
            # what was polled and not looked at was not seen, and its exception keeps it from being committed
        check()
