"""What admins ask of a push consumer through its broker, why nothing comes, and consumers in a child or at the exit."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from push_tools import QUICK, Hand, Seen, a_cluster, fill, queue_of, until
from running import BrokerProcess

from mqfast.broker.admin.bodies import QueueBody, queue_offsets
from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.push import diagnostics as why
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery, Source, decode_deliveries
from mqfast.errors import ClientForked
from mqfast.message import encode_message_id
from mqfast.remoting.codes import RequestCode
from mqfast.util.fastjson import standard


@pytest.fixture(scope="module", params=["true", "false"], ids=["reset at the broker", "reset at clients"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with a_cluster(tmp_path_factory.mktemp("asked"), useServerSideResetOffset=request.param, **QUICK) as one:
        yield one


@pytest.fixture
def hand(cluster: BrokerProcess) -> Hand:
    return Hand(cluster)


def client_id(consumer: PushConsumer) -> str:
    return consumer.stats()["members"]["asked"][0]


@pytest.fixture
def running(cluster: BrokerProcess, hand: Hand) -> Iterator[tuple[PushConsumer, Seen]]:
    group = f"asked-group-{time.monotonic_ns()}"
    consumer, seen = PushConsumer(group, cluster.namesrv, from_where="first", threads=7), Seen()

    @consumer.on("asked")
    def handle(message: Delivery) -> bool:
        seen(message)
        if message.properties.get("mood") == "bad":
            raise ZeroDivisionError("by mood")
        return True

    hand.send("asked", b"first")
    consumer.start()
    seen.wait(1)
    yield consumer, seen
    consumer.close()


def test_an_admin_sees_the_running_info_of_a_consumer(hand: Hand, running: Any) -> None:
    consumer, _ = running
    until(lambda: not any(consumer.lag().values()), "no lag")
    answer = hand.ask(
        RequestCode.GET_CONSUMER_RUNNING_INFO,
        consumerGroup=consumer.group, clientId=client_id(consumer), jstackEnable="true",
    )  # fmt: skip
    assert answer.code == 0, answer.remark
    info = json.loads(standard(bytes(answer.body)))
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert info["properties"]["PROP_THREADPOOL_CORE_SIZE"] == "7"
    assert int(info["properties"]["PROP_CONSUMER_START_TIMESTAMP"]) > 1_700_000_000_000
    assert {one["topic"] for one in info["subscriptionSet"]} == {"asked", f"%RETRY%{consumer.group}"}
    rows = {json.loads(key)["queueId"]: row for key, row in info["mqTable"].items() if '"asked"' in key}
    end = hand.ask(RequestCode.GET_MAX_OFFSET, topic="asked", queueId=0).ext_fields["offset"]
    assert rows[0]["commitOffset"] == int(end)
    assert rows[0]["cachedMsgCount"] == 0
    assert info["statusTable"]["asked"]["consumeOKTPS"] > 0
    assert "mqfast-io" in info["jstack"]
    assert "mqTable" in info


def test_an_admin_sees_the_offsets_of_a_consumer(hand: Hand, running: Any) -> None:
    consumer, _ = running
    until(lambda: not any(consumer.lag().values()), "no lag")
    answer = hand.ask(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="asked", group=consumer.group)
    assert answer.code == 0, answer.remark
    table = json.loads(standard(bytes(answer.body)))["consumerTable"][client_id(consumer)]
    offsets = queue_offsets(json.dumps({"messageQueueTable": table}).encode())
    assert offsets[QueueBody("broker-a", 0, "asked")] == consumer.assignment()[queue_of("asked", 0)]


def test_an_admin_can_consume_a_message_directly(cluster: BrokerProcess, hand: Hand, running: Any) -> None:
    consumer, seen = running
    until(lambda: not any(consumer.lag().values()), "no lag")
    for mood, expected in (("good", "CR_SUCCESS"), ("bad", "CR_THROW_EXCEPTION")):
        before = len(seen.messages)
        hand.send("other", b"now", properties=f"mood\x01{mood}\x02")
        records = hand.ask(
            RequestCode.PULL_MESSAGE, consumerGroup="TOOLS_CONSUMER", topic="other", queueId=0, queueOffset=0,
            maxMsgNums=32, sysFlag=4, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=0,
        )  # fmt: skip
        message = decode_deliveries(records.body, Source("broker-a"))[-1]
        assert message.offset_msg_id == encode_message_id(message.store_host, message.physical_offset)
        answer = hand.ask(
            RequestCode.CONSUME_MESSAGE_DIRECTLY,
            consumerGroup=consumer.group, clientId=client_id(consumer), msgId=message.offset_msg_id, topic="other",
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        found = json.loads(bytes(answer.body))
        assert (found["consumeResult"], found["order"], found["autoCommit"]) == (expected, False, True)
        assert len(seen.messages) == before + 1
    assert "by mood" in found["remark"]


def test_an_admin_resets_the_offsets_of_a_running_group(hand: Hand, running: Any) -> None:
    consumer, seen = running
    sent = 1 + len(fill(hand, "asked", 8))
    until(lambda: not any(consumer.lag().values()), "no lag")
    until(lambda: hand.offset(consumer.group, queue_of("asked", 0)) > 0, "an offset at the broker")
    answer = hand.ask(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="asked", group=consumer.group, timestamp=0, isForce="true"
    )
    assert answer.code in (0, 1), answer.remark
    if answer.code:
        pytest.skip(f"a queue of the topic has no offset yet: {answer.remark}")
    hand.send("asked", b"wake")  # a pull that waits is answered
    until(lambda: max(seen.counts.values()) >= 2, "messages again")
    assert seen.counts[b"first"] >= 1
    assert sent


def test_a_reset_of_a_group_that_is_not_here_is_refused(hand: Hand) -> None:
    answer = hand.ask(RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="nobody", clientId="x", jstackEnable="false")
    assert answer.code != 0


# --- why nothing comes ---


def test_why_nothing_names_the_reasons(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "whyless", 8, properties="TAGS\x01other\x02")
    consumer = PushConsumer("why-group", cluster.namesrv)
    consumer.subscribe("whyless", print, "mine")
    consumer.subscribe("never-made", print)
    with consumer:
        until(lambda: any("did not match 'mine'" in one for one in consumer.stats()["why_nothing"]), "the filter")
        assert any("never-made: no name server knows it" in one for one in consumer.stats()["why_nothing"])
        consumer.pause()
        until(lambda: "the consumer is paused" in consumer.stats()["why_nothing"], "the pause")
        behind = consumer.stats()["queues"][queue_of("whyless", 0)]
        assert (behind["behind"], behind["filtered"]) == (0, 2)


class NoSharing:
    """A strategy with a fault."""

    name = "MINE"

    def __call__(self, *given: object) -> list[Any]:
        raise ZeroDivisionError("mine")


def test_why_nothing_names_a_subscription_that_was_refused_at_run_time(cluster: BrokerProcess) -> None:
    """The call cannot wait for the broker's answer: it is no coroutine."""

    async def flow() -> None:
        consumer = AsyncPushConsumer("refused-group", cluster.namesrv)
        consumer.subscribe("refused", print)
        async with asyncio.timeout(300), consumer:
            consumer.subscribe("refused", print, sql="price >")
            while not (found := [one for one in consumer.stats()["why_nothing"] if "was refused" in one]):
                await asyncio.sleep(0.01)
            assert found[0].startswith("topic refused: the last subscription was refused: ")
            consumer.subscribe("refused", print, "*")
            while [one for one in consumer.stats()["why_nothing"] if "was refused" in one]:
                await asyncio.sleep(0.01)

    Hand(cluster).send("refused", b"x")
    asyncio.run(flow())


@pytest.mark.parametrize("tags", ["new && paid", "new,paid", "new|paid", "new paid"])
def test_why_nothing_names_tags_that_are_joined_by_another_sign(cluster: BrokerProcess, hand: Hand, tags: str) -> None:
    topic = f"joined-{'-'.join(str(ord(sign)) for sign in tags if not sign.isalpha())}"
    fill(hand, topic, 4, properties="TAGS\x01new\x02")
    consumer = PushConsumer(f"{topic}-group", cluster.namesrv, from_where="first", topics={topic: tags})
    with consumer:
        words = f"did not match {tags!r}, and none did (this is one tag; several are joined by ||)"
        until(lambda: any(words in one for one in consumer.stats()["why_nothing"]), "the tags")


def test_why_nothing_names_an_error_of_the_allocation_strategy(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "unshared", 4)
    consumer = PushConsumer("unshared-group", cluster.namesrv, allocation=NoSharing())
    consumer.subscribe("unshared", print)
    with consumer:
        why_nothing = "topic unshared: allocation MINE failed: ZeroDivisionError('mine')"
        until(lambda: why_nothing in consumer.stats()["why_nothing"], "the strategy")


def test_why_nothing_names_an_executor_that_refuses_work(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "shut", 4)
    executor = ThreadPoolExecutor(1)
    executor.shutdown()
    consumer = PushConsumer("shut-group", cluster.namesrv, from_where="first", executor=executor)
    consumer.subscribe("shut", print)
    with consumer:
        until(lambda: any("executor takes no work" in one for one in consumer.stats()["why_nothing"]), "the executor")


def test_why_nothing_of_a_member_without_a_queue_names_the_members(cluster: BrokerProcess, hand: Hand) -> None:
    fill(hand, "crowded", 4)
    members = [PushConsumer("crowd-group", cluster.namesrv) for _ in range(5)]
    for member in members:
        member.subscribe("crowded", Seen())
        member.start()
    try:
        until(
            lambda: (
                sum("none of 4 queues, which 5 members share" in str(one.stats()["why_nothing"]) for one in members)
                == 1
            ),
            "one member without a queue",
        )
    finally:
        for member in members:
            member.close()


def test_why_nothing_names_members_with_another_subscription(
    cluster: BrokerProcess, hand: Hand, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mqfast.client.consumer.push.engine.LOOK_S", 0.5)
    hand.send("unlike", b"a", properties="TAGS\x01c\x02")
    first, second = (PushConsumer("unlike-group", cluster.namesrv) for _ in range(2))
    first.subscribe("unlike", Seen(), "a")
    second.subscribe("unlike", Seen(), "b")
    with caplog.at_level(logging.WARNING), first:
        time.sleep(0.01)  # the second subscription is the newer one
        with second:
            until(lambda: "all members of a group must subscribe alike" in caplog.text, "the warning")
    assert why.LOOK_S == 30


def test_why_nothing_names_flow_control_and_a_stuck_handler(
    cluster: BrokerProcess, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(why, "STUCK_S", 0.2)
    hand.send("fullness", *[b"x"] * 40)
    go = threading.Event()
    consumer = PushConsumer("full-group", cluster.namesrv, threads=1, max_cached_messages=8, pull_batch=8)
    consumer.subscribe("fullness", lambda message: go.wait(20) and None)
    with consumer:
        until(lambda: "flow control" in str(consumer.stats()["why_nothing"]), "flow control")
        until(lambda: "a handler has message" in str(consumer.stats()["why_nothing"]), "the handler")
        assert consumer.stats()["cached_messages"] <= 16
        go.set()
        until(lambda: consumer.stats()["done"] == 40, "all messages")


def test_after_the_consume_timeout_the_message_is_delivered_again(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("too-long", b"slow")
    go, seen = threading.Event(), Seen()
    consumer = PushConsumer("long-group", cluster.namesrv, consume_timeout_s=0.4)

    @consumer.on("too-long")
    def handle(message: Delivery) -> None:
        seen(message)
        if message.attempt == 1:
            go.wait(20)

    with consumer:
        seen.wait(2)
        assert [one.attempt for one in seen.messages] == [1, 2]
        until(lambda: consumer.assignment()[queue_of("too-long", 0)] == 1, "the offset")
        go.set()
        assert consumer.stats()["timed_out"] == 1


# --- fork and exit ---


def test_a_started_consumer_is_closed_in_a_child(cluster: BrokerProcess, hand: Hand) -> None:
    hand.send("forked", b"a")
    seen = Seen()
    consumer = PushConsumer("fork-group", cluster.namesrv)
    consumer.subscribe("forked", seen)
    with consumer:
        seen.wait(1)
        reads, writes = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            code = 1
            try:
                consumer.assignment()
            except ClientForked:
                own = PushConsumer("fork-child-group", cluster.namesrv, from_where="first")
                mine = Seen()
                own.subscribe("forked", mine)
                with own:
                    mine.wait(1)
                consumer.close()
                code = 0
            finally:
                os.write(writes, b"%d" % code)
                os._exit(code)
        os.close(writes)
        assert os.read(reads, 1) == b"0"
        os.close(reads)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        hand.send("forked", b"b")
        seen.wait(2)


@pytest.mark.parametrize("how", ["consumer.start(); wait()", "consumer.start(); wait(); del consumer"])
def test_a_consumer_that_nobody_closes_does_not_hold_the_exit_and_keeps_its_offset(
    cluster: BrokerProcess, hand: Hand, how: str
) -> None:
    topic = f"exits-{len(how)}"
    hand.send(topic, b"a")
    program = f"""
import sys, threading, time
from mqfast.client.consumer.push_consumer import PushConsumer
consumer = PushConsumer("{topic}-group", sys.argv[1])
got = threading.Event()
consumer.subscribe("{topic}", lambda message: got.set())
def wait():
    assert got.wait(20)
    time.sleep(0.1)
{how}
"""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", program, cluster.namesrv], capture_output=True, timeout=40, check=False
    )
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - start < 20
    if "del" not in how:
        assert hand.offset(f"{topic}-group", queue_of(topic, 0)) == 1
