"""Pulls that reactors serve: the answers, the offsets and the counters are those of Python."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from raw_frames import Raw, json_frame, letters, pull_fields, strange_pull
from running import Running, running_broker
from sampling import LONG
from waiting import until_async as until

from mqfast.remoting.bodies import encode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.heartbeat import ConsumerData, Heartbeat, SubscriptionData

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 120))


def served(running: Running) -> int:
    result = running.broker.reactor_counts()
    return -1 if result is None else result["served"]


async def same_stores(path: Path, flow: Any, **settings: Any) -> list[Path]:
    """Run a flow with a broker without reactors, and with one with two, on copies of a store with messages and groups.

    Returns: the paths of the copies.
    """
    async with running_broker(path / "first", **settings) as running:
        raw = await Raw.to(running.address)
        await fill(running, raw, 240)
        for name in (b"readers", b"subscribers", b"broadcasters"):
            await running.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"%s"}' % name)
        raw.close()
    paths = [path / "python", path / "reactors"]
    for each, threads in zip(paths, (0, 2), strict=True):
        shutil.copytree(path / "first", each)
        async with running_broker(each, serverSelectorThreads=threads, **settings) as running:
            await flow(running, each)
    return paths


async def fill(running: Running, raw: Raw, count: int, *, body: int = 100, queues: int = 3) -> None:
    """Store messages with tags in queues, the same in each broker, and wait until all of them are in their queues."""
    for number in range(count):
        tag = ("A", "B", "C", "AaBB")[number % 4]
        properties = f"TAGS\x01{tag}\x02UNIQ_KEY\x01id{number:06}\x02"
        frame = json_frame(letters(number, queue_id=number % queues, properties=properties), b"%06d" % number * body)
        assert b'"code":0' in await raw.ask(frame)
    await until(lambda: running.context.engine.dispatch_behind_bytes == 0)


async def beat(raw: Raw, group: str, *, version: int, tags: str = "*", model: str = "CLUSTERING") -> None:
    """Register a consumer with a subscription."""
    codes = [] if tags == "*" else [ord(tags)]
    subscription = SubscriptionData(topic="T", sub_string=tags, code_set=codes, sub_version=version)
    consumer = ConsumerData(group_name=group, message_model=model, subscription_data_set=[subscription])
    body = encode_body(Heartbeat(client_id=f"client of {group}", consumer_data_set=[consumer]))
    answer = await raw.ask(json_frame({}, body, code=34))
    while b'"flag":1' not in answer:  # a notice to the members
        answer = await raw.receive()
    assert b'"code":0' in answer


async def pull(raw: Raw, offset: int, **more: Any) -> RemotingCommand:
    (answer,) = FrameDecoder().feed(await raw.ask(json_frame(pull_fields(offset, **more), b"", code=11)))
    return answer


async def pull_in_reactor(running: Running, raw: Raw, offset: int, **more: Any) -> RemotingCommand:
    """Pull until a reactor has served: the first pulls of a kind are those of Python."""
    for _ in range(3):
        before = served(running)
        answer = await pull(raw, offset, **more)
        if served(running) > before:
            return answer
    raise AssertionError(f"no reactor has served: {answer.code} {answer.remark}")


def bodies(answer: RemotingCommand) -> bytes:
    return bytes(answer.body) if isinstance(answer.body, bytes | memoryview) else b"".join(map(bytes, answer.body))


def state(running: Running) -> Any:
    """What pulls change: offsets of groups, and counters."""
    context = running.context
    gets = {key: (each.count, each.size, each.times) for key, each in context.stats.gets.items()}
    pulled = {
        (group, queue_id): context.pull_offsets.get(group, "T", queue_id)
        for group in ("readers", "subscribers", "broadcasters")
        for queue_id in range(4)
    }
    totals = [(each.count, each.size, each.times) for each in (context.stats.get_totals, context.stats.get_totals_all)]
    return context.offsets.as_file()["offsetTable"], gets, pulled, totals


@pytest.mark.parametrize("seed", range(20 if LONG else 3))
def test_answers_offsets_and_counters_are_those_of_python(tmp_path: Path, seed: int) -> None:
    answers: dict[Path, list[bytes]] = {}
    result: dict[Path, Any] = {}
    counts: list[int] = []

    async def flow(running: Running, path: Path) -> None:
        chance = random.Random(seed)
        raw = await Raw.to(running.address)
        members = await Raw.to(running.address)
        await beat(members, "subscribers", version=7, tags="A")
        await beat(members, "broadcasters", version=7, model="BROADCASTING")
        host, port = raw.writer.get_extra_info("sockname")[:2]
        before = served(running)
        answers[path] = []
        for number in range(3000 if LONG else 500):
            frame = await raw.ask(strange_pull(chance, number, 80))
            answers[path].append(frame.replace(f"{host}:{port}".encode(), b"?")[8:])
        result[path] = state(running)
        counts.append(served(running) - before)
        raw.close()
        members.close()

    python, reactors = run(same_stores(tmp_path, flow, autoCreateSubscriptionGroup=False))
    assert answers[reactors] == answers[python]
    assert result[reactors] == result[python]
    assert counts[1] > 60


async def readers(running: Running, count: int = 24, **more: Any) -> Raw:
    """A connection to a broker with a group and messages in the queues 0 to 2."""
    raw = await Raw.to(running.address)
    await fill(running, raw, count, **more)
    await running.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"readers"}')
    return raw


async def query(raw: Raw, queue_id: int = 0) -> str:
    fields = {"consumerGroup": "readers", "topic": "T", "queueId": str(queue_id)}
    (answer,) = FrameDecoder().feed(await raw.ask(json_frame(fields, b"", code=14)))
    return str(answer.ext_fields["offset"])


def test_a_commit_of_a_pull_counts_for_the_next_request_of_any_connection(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw, other = await readers(running), await Raw.to(running.address)
            for offset in (5, 3, 6, 0, 7):
                await pull_in_reactor(running, raw, 1, sysFlag=5, commitOffset=offset)
                assert await query(other) == str(offset)
            await pull_in_reactor(running, raw, 1, sysFlag=5, commitOffset=-1)
            await pull_in_reactor(running, raw, 1, commitOffset=2)  # without the bit
            assert await query(other) == "7"
            update = {"consumerGroup": "readers", "topic": "T", "queueId": "0"}
            for offset in range(0, 40, 2):  # a commit and a pull in one packet: the later one wins
                fields = pull_fields(1, sysFlag=5, commitOffset=offset + 1)
                raw.send(
                    json_frame({**update, "commitOffset": str(offset)}, b"", code=15) + json_frame(fields, b"", code=11)
                )
                await raw.receive()
                await raw.receive()
                assert await query(other) == str(offset + 1)
            await pull_in_reactor(running, raw, 1, sysFlag=5, commitOffset=4)
            raw.close()
            other.close()
        async with running_broker(tmp_path) as running:  # the broker persisted the offset at its end
            assert running.context.offsets.get("readers", "T", 0) == 4

    run(flow())


def test_a_reset_counts_at_once_and_survives_later_commits_of_pulls(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"serverSelectorThreads": 2, "useServerSideResetOffset": True}
        async with running_broker(tmp_path, **settings) as running:
            raw = await readers(running)
            await pull_in_reactor(running, raw, 1, sysFlag=5, commitOffset=6)
            reset = await running.call(
                RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, topic="T", group="readers", timestamp=0, isForce="true",
                queueId=0, offset=2,
            )  # fmt: skip
            assert reset.code == 0, reset.remark
            moved = await pull(raw, 7, sysFlag=5, commitOffset=7)
            assert (moved.code, moved.ext_fields["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
            assert await query(raw) == "2"
            await pull_in_reactor(running, raw, 2, sysFlag=5, commitOffset=2)
            raw.close()

    run(flow())


def test_changes_of_rights_topics_groups_and_settings_count_at_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw = await readers(running)

            async def refused(code: int, **fields: Any) -> None:
                assert (await pull(raw, 1, **fields)).code == code

            async def group(text: bytes) -> None:
                await running.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"readers"%s}' % text)

            async def topic(**fields: Any) -> None:
                await running.call(
                    RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", defaultTopic="TBW102", writeQueueNums=4,
                    topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false", **fields,
                )  # fmt: skip

            await pull_in_reactor(running, raw, 1, queue_id=2)
            await group(b',"consumeEnable":false')
            await refused(ResponseCode.NO_PERMISSION)
            await group(b',"groupSysFlag":77')
            assert (await pull_in_reactor(running, raw, 1)).ext_fields["groupSysFlag"] == "77"
            await topic(perm=2, readQueueNums=4)
            await refused(ResponseCode.NO_PERMISSION)
            await topic(perm=6, readQueueNums=2)
            await refused(ResponseCode.INVALID_PARAMETER, queue_id=2)
            await pull_in_reactor(running, raw, 1)
            for setting, code in ((b"brokerPermission=2", 16), (b"brokerPermission=6", 0)):
                await running.call(RequestCode.UPDATE_BROKER_CONFIG, setting)
                await refused(code)
            await pull_in_reactor(running, raw, 1)
            await running.call(RequestCode.UPDATE_BROKER_CONFIG, b"maxTransferCountOnMessageInMemory=3")
            assert (await pull_in_reactor(running, raw, 1)).ext_fields["nextBeginOffset"] == "4"
            await running.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, groupName="readers", cleanOffset="true")
            await running.call(RequestCode.UPDATE_BROKER_CONFIG, b"autoCreateSubscriptionGroup=false")
            await refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST)
            await group(b"")
            await pull_in_reactor(running, raw, 1, sysFlag=5, commitOffset=3)
            await running.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            await refused(ResponseCode.TOPIC_NOT_EXIST)
            assert "T@readers" not in running.context.offsets.as_file()["offsetTable"]
            raw.close()

    run(flow())


def test_another_subscription_of_the_group_counts_at_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw, member = await readers(running), await Raw.to(running.address)
            await beat(member, "readers", version=1, tags="A")
            fields = {"sysFlag": 0, "subscription": None, "expressionType": None, "maxMsgNums": 1}
            assert b"TAGS\x01A\x02" in bodies(await pull_in_reactor(running, raw, 0, subVersion=1, **fields))
            await beat(member, "readers", version=2, tags="B")
            assert b"TAGS\x01B\x02" in bodies(await pull(raw, 0, subVersion=1, **fields))
            assert b"TAGS\x01B\x02" in bodies(await pull_in_reactor(running, raw, 0, subVersion=2, **fields))
            assert (await pull(raw, 0, subVersion=3, **fields)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
            await beat(member, "readers", version=2, tags="B", model="BROADCASTING")
            before = served(running)
            for _ in range(3):
                assert (await pull(raw, 0, subVersion=2, **fields)).code == 0
            assert served(running) == before
            member.close()
            await until(lambda: running.context.consumers.group("readers") is None)
            assert (await pull(raw, 0, subVersion=2, **fields)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            raw.close()

    run(flow())


def test_a_consumer_gets_each_message_across_many_files_of_log_and_queue(tmp_path: Path) -> None:
    async def flow() -> None:
        small = {"mappedFileSizeCommitLog": 64 << 10, "mappedFileSizeConsumeQueue": 2000}
        async with running_broker(tmp_path, serverSelectorThreads=2, **small) as running:
            raw = await readers(running, 600, body=20, queues=1)
            before, offset, number = served(running), 0, 0
            while offset < 600:
                answer = await pull(raw, offset, maxMsgNums=7)
                if answer.code == 0:
                    following = int(answer.ext_fields["nextBeginOffset"])
                    messages = running.context.store.get("T", 0, offset, following - offset)
                    assert bodies(answer) == b"".join(message.to_bytes() for message in messages)
                    number += following - offset
                offset = int(answer.ext_fields["nextBeginOffset"])
            assert number == 600
            assert served(running) - before > 30
            raw.close()

    run(flow())


def test_removed_files_are_not_read_and_are_unmapped(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2, fileReservedTime=1) as running:
            raw = await readers(running, 60, body=10_000, queues=1)
            await pull_in_reactor(running, raw, 0, maxMsgNums=2)
            running.context.store.flush()
            retention, removed = running.context.store.retention, 0

            def remove() -> bool:
                nonlocal removed
                retention.clean_now()
                removed += retention.run_once(running.context.now_ms() + 3 * 3_600_000)
                return removed >= 2

            await until(remove)
            assert (await pull(raw, 0)).code == ResponseCode.PULL_OFFSET_MOVED
            await until(lambda: retention.held_count == 0)
            assert (await pull_in_reactor(running, raw, 59)).ext_fields["nextBeginOffset"] == "60"
            raw.close()

    run(flow())


def test_long_answers_wait_for_a_client_that_does_not_read(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw, other = await readers(running, 24, body=8000, queues=1), await Raw.to(running.address)
            await pull_in_reactor(running, raw, 0)
            whole = bodies(await pull(raw, 0))
            assert len(whole) > 200_000
            before = served(running)
            for opaque in range(200):
                raw.send(json_frame(pull_fields(0), b"", code=11, opaque=opaque))
            await until(lambda: served(running) > before)
            for _ in range(50):
                assert (await pull(other, 23)).code == 0  # another client does not wait
            assert served(running) - before < 200  # the buffers of the sockets have room for some 50 answers
            decoder = FrameDecoder()
            for opaque in range(200):
                (answer,) = decoder.feed(await raw.receive())
                assert answer.opaque == opaque
                assert bodies(answer) == whole
            raw.close()
            other.close()

    run(flow())


def test_a_pull_without_messages_is_held_and_gets_the_next_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw, sender = await readers(running, 24, queues=1), await Raw.to(running.address)
            await pull_in_reactor(running, raw, 20)
            for number in range(24, 34):
                raw.send(json_frame(pull_fields(number, sysFlag=6), b"", code=11))
                await until(lambda: len(running.parts.long_polling) == 1)
                assert b'"code":0' in await sender.ask(json_frame(letters(number), b"%06d" % number))
                (answer,) = FrameDecoder().feed(await raw.receive())
                assert answer.code == 0
                assert b"%06d" % number in bodies(answer)
            raw.close()
            sender.close()

    run(flow())


def test_latencies_of_pulls_are_counted(tmp_path: Path) -> None:
    async def flow() -> None:
        metrics = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
        async with running_broker(tmp_path, serverSelectorThreads=2, **metrics) as running:
            raw = await readers(running)
            for _ in range(20):
                assert (await pull(raw, 0)).code == 0
            latencies = running.context.latencies
            assert latencies is not None
            rows = {(row.request_code, row.response_code): sum(each.counts) for row, each in latencies.rows()}
            assert rows["pull_message", "success"] == 20
            raw.close()

    run(flow())
