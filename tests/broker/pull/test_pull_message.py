"""Pulls (11, 361) through a running broker: what is found, what each refusal says, filters, offsets, limits."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from running import Running, running_broker
from waiting import until_async as until

sys.path.append(str(Path(__file__).resolve().parent))

from pulling import (
    COMMIT,
    SUBSCRIPTION,
    SUSPEND,
    bodies,
    heartbeat,
    offsets,
    pull,
    pull_fields,
    run,
    subscription,
)

from mqfast.properties import jhash
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode

SEE = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."


async def fill(one: Running, count: int = 6, topic: str = "T") -> None:
    """Messages with tags A, B, A, ... and a number as property."""
    for i in range(count):
        answer = await one.send(topic, b"m%d" % i, properties=f"TAGS\x01{'AB'[i % 2]}\x02n\x01{i}\x02")
        assert answer.code == 0


def test_messages_are_found_with_all_that_clients_read(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            answer = await pull(one, maxMsgNums=4)
            assert (answer.code, answer.remark) == (0, "FOUND")
            assert answer.ext_fields == {
                "suggestWhichBrokerId": "0", "nextBeginOffset": "4", "minOffset": "0", "maxOffset": "6",
                "topicSysFlag": "0", "groupSysFlag": "0",
            }  # fmt: skip
            assert bodies(answer) == [b"m0", b"m1", b"m2", b"m3"]
            assert bodies(await pull(one, code=361, queueOffset=4, sysFlag=22)) == [b"m4", b"m5"]
            assert one.context.stats.get_totals.count == 6
            assert one.context.pull_offsets.get("g", "T", 0) == 6

    run(flow())


@pytest.mark.parametrize(
    ("offset", "code", "status", "moved_to"),
    [
        (6, ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", 6),
        (7, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 6),
        (-1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
        (2**63 - 1, ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", 6),
        (-(2**63), ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", 0),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    tmp_path: Path, offset: int, code: int, status: str, moved_to: int
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            answer = await pull(one, queueOffset=offset)
            assert (answer.code, answer.remark, answer.body) == (code, status, b"")
            assert offsets(answer) == (moved_to, 0, 6)

    run(flow())


def test_an_empty_queue_is_not_found_at_its_beginning_and_moved_elsewhere(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one, 1)
            first = await pull(one, queueId=1)
            assert (first.code, first.remark) == (ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE")
            later = await pull(one, queueId=1, queueOffset=9)
            assert (later.code, offsets(later)) == (ResponseCode.PULL_OFFSET_MOVED, (0, 0, 0))

    run(flow())


def test_tags_are_filtered_by_their_codes(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            assert bodies(await pull(one, subscription="B")) == [b"m1", b"m3", b"m5"]
            assert len(bodies(await pull(one, subscription=" A || B "))) == 6
            assert len(bodies(await pull(one, subscription=None))) == 6
            assert len(bodies(await pull(one, subscription=None, expressionType=None))) == 6
            none = await pull(one, subscription="C")
            assert (none.code, none.remark) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "NO_MATCHED_MESSAGE")
            assert (offsets(none), none.body) == ((6, 0, 6), b"")
            assert (await pull(one, subscription="||")).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
            # The same hash is handed out: the client compares the texts.
            assert jhash("Aa") == jhash("BB")
            assert (await one.send("T", b"same hash", properties="TAGS\x01BB\x02")).code == 0
            assert bodies(await pull(one, subscription="Aa")) == [b"same hash"]

    run(flow())


def test_the_filter_of_the_heartbeat_counts_where_the_pull_names_none(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            plain = {"sysFlag": 0, "subscription": None}
            assert (await heartbeat(one, subscription("B", codes=(jhash("B"),)))).code == 0
            assert bodies(await pull(one, **plain, subVersion=100)) == [b"m1", b"m3", b"m5"]
            assert (await heartbeat(one, subscription("*", version=101))).code == 0
            assert len(bodies(await pull(one, **plain, subVersion=99))) == 6
            # A client that sends no codes.
            assert (await heartbeat(one, subscription("A", version=102))).code == 0
            assert bodies(await pull(one, **plain)) == [b"m0", b"m2", b"m4"]
            late = await pull(one, **plain, subVersion=103)
            assert (late.code, late.remark) == (
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest",
            )  # fmt: skip
            other = await pull(one, **plain, topic="TBW102")
            assert (other.code, other.remark) == (
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist{SEE}",
            )  # fmt: skip
            nobody = await pull(one, **plain, consumerGroup="nobody")
            assert (nobody.code, nobody.remark) == (
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist{SEE}",
            )  # fmt: skip

    run(flow())


def test_pull_without_permission_gets_the_reason(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, autoCreateSubscriptionGroup=False) as one:
            context = one.context
            await fill(one, 1)
            host = "127.0.0.1"

            async def refused(expected: int, remark: str, forbidden: str | None = None, **changed: Any) -> None:
                answer = await pull(one, **changed)
                assert (answer.code, answer.remark) == (expected, remark)
                assert answer.ext_fields.get("forbiddenType") == forbidden
                assert "nextBeginOffset" not in answer.ext_fields

            missing = f"subscription group [g] does not exist, {SEE}"
            await refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, missing)
            group = context.groups.table.ensure("g")
            no_topic = f"topic[none] not exist, apply first please! {SEE}"
            await refused(ResponseCode.TOPIC_NOT_EXIST, no_topic, topic="none")
            answer = await pull(one, queueId=4)
            assert answer.code == ResponseCode.INVALID_PARAMETER
            assert str(answer.remark).startswith(
                "queueId[4] is illegal, topic:[T] topicConfig.readQueueNums:[4] consumer:[/127.0.0.1:"
            )
            assert (await pull(one, queueId=-1)).code == ResponseCode.INVALID_PARAMETER
            no = ResponseCode.NO_PERMISSION
            context.groups.put({**group, "consumeEnable": False})
            await refused(no, "subscription group no permission, g", "2")
            context.groups.put({**group, "consumeBroadcastEnable": False})
            await heartbeat(one, subscription(), model="BROADCASTING")
            await refused(no, "the consumer group[g] can not consume by broadcast way", "4", sysFlag=0)
            context.groups.put(group)
            context.topics.put(context.topics.raw("T", 4, 2))
            await refused(no, "the topic[T] pulling message is forbidden", "3")
            context.config.update({"litePullMessageEnable": "false"}, "test")
            await refused(no, f"the broker[{host}] for lite pull consumer is forbidden", "1", code=361)
            context.config.update({"brokerPermission": "2"}, "test")
            await refused(no, f"the broker[{host}] pulling message is forbidden", "1")

    run(flow())


def test_a_group_that_is_forbidden_for_a_topic(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir(parents=True)
    table = {"forbiddenTable": {"g": {"T": 4}}, "subscriptionGroupTable": {"g": {"groupName": "g"}}}
    (tmp_path / "config" / "subscriptionGroup.json").write_text(json.dumps(table))

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one, 1)
            await heartbeat(one, subscription())
            answer = await pull(one, sysFlag=0)
            assert answer.remark == "the consumer group[g] is forbidden for topic[T]"
            assert answer.ext_fields == {"forbiddenType": "5"}
            assert (await pull(one)).code == 0  # a pull with its own subscription is not asked, as in RocketMQ

    run(flow())


def test_groups_are_made_by_their_first_pull(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one, 1)
            assert "fresh" not in one.context.groups.table
            assert (await pull(one, consumerGroup="fresh")).code == 0
            assert "fresh" in one.context.groups.table
            assert (await pull(one, consumerGroup="../x")).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST

    run(flow())


def test_pull_consumers_can_be_refused(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, rejectPullConsumerEnable=True) as one:
            await fill(one, 1)
            assert (await pull(one)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            assert (await pull(one, consumerGroup="CID_RMQ_SYS_x")).code == 0
            await heartbeat(one, subscription(), kind="CONSUME_ACTIVELY")
            assert (await pull(one)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST
            await heartbeat(one, subscription())
            assert (await pull(one)).code == 0

    run(flow())


def test_limits_of_one_answer_are_those_of_the_settings(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, maxTransferCountOnMessageInMemory=5) as one:
            for i in range(12):
                await one.send("T", b"%03d" % i * 100)
            assert len(bodies(await pull(one))) == 5
            one.context.config.update({"maxTransferCountOnMessageInMemory": "32"}, "test")
            assert len(bodies(await pull(one))) == 12
            assert len(bodies(await pull(one, maxMsgNums=0))) == 1
            assert len(bodies(await pull(one, maxMsgBytes=1200))) == 2
            one.context.config.update({"maxTransferBytesOnMessageInMemory": "100"}, "test")
            assert len(bodies(await pull(one))) == 1  # the first one goes out whatever its size
            assert len(bodies(await pull(one, maxMsgNums=1024))) == 1
            assert len(bodies(await pull(one, maxMsgNums=1025))) == 12  # somebody who reads much at once
            assert len(bodies(await pull(one, maxMsgNums=1025, maxMsgBytes=1200))) == 2
            # Nothing counts as in memory: the limits of the disk.
            one.context.config.update({"accessMessageInMemoryMaxRatio": "0"}, "test")
            found = await pull(one)
            assert (len(bodies(found)), offsets(found)) == (8, (8, 0, 12))

    run(flow())


def test_slow_readers_are_sent_to_the_slave_where_slaves_are_read(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, accessMessageInMemoryMaxRatio=0) as one:
            await fill(one)
            assert (await pull(one)).ext_fields["suggestWhichBrokerId"] == "0"
            one.context.config.update({"slaveReadEnable": "true"}, "test")
            assert (await pull(one)).ext_fields["suggestWhichBrokerId"] == "1"
            one.context.config.update({"accessMessageInMemoryMaxRatio": "40"}, "test")
            assert (await pull(one)).ext_fields["suggestWhichBrokerId"] == "0"

    run(flow())


def test_a_pull_commits_the_offset_that_it_names_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            stored = one.context.offsets
            await pull(one, commitOffset=3)
            assert stored.get("g", "T", 0) == -1  # without the flag it says nothing
            await pull(one, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=3)
            assert stored.get("g", "T", 0) == 3
            await pull(one, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=-1)
            assert stored.get("g", "T", 0) == 3
            waiting = await pull(
                one, sysFlag=COMMIT | SUSPEND | SUBSCRIPTION, commitOffset=6, queueOffset=6, suspendTimeoutMillis=1
            )
            assert waiting.code == ResponseCode.PULL_NOT_FOUND
            assert stored.get("g", "T", 0) == 6

    run(flow())


def test_reset_offset_is_returned_by_one_pull(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            one.context.reset_offsets.assign("g", "T", 0, 2)
            answer = await pull(one, queueOffset=5)
            assert (answer.code, answer.remark) == (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET")
            assert offsets(answer) == (2, 0, 6)
            assert bodies(await pull(one, queueOffset=5)) == [b"m5"]
            one.context.config.update({"useServerSideResetOffset": "false"}, "test")
            one.context.reset_offsets.assign("g", "T", 0, 2)
            assert bodies(await pull(one, queueOffset=5)) == [b"m5"]

    run(flow())


def test_pull_that_returns_a_reset_offset_commits_nothing(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await fill(one)
            one.context.reset_offsets.assign("g", "T", 0, 2)
            answer = await pull(one, queueOffset=5, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=5)
            assert offsets(answer) == (2, 0, 6)
            # The client may end before it commits: the next one goes on where the admin said.
            assert one.context.offsets.get("g", "T", 0) == 2
            await pull(one, queueOffset=2, sysFlag=SUBSCRIPTION | COMMIT, commitOffset=3)
            assert one.context.offsets.get("g", "T", 0) == 3

    run(flow())


@pytest.mark.parametrize("change", ["reset", "topic deleted", "group deleted"])
def test_reset_or_deletion_during_a_read_in_a_thread_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, accessMessageInMemoryMaxRatio=0) as one:
            await fill(one)
            began, goes_on = threading.Event(), threading.Event()
            read = one.context.engine.get_records

            def slowly(*arguments: Any, **named: Any) -> Any:
                began.set()
                assert goes_on.wait(20)
                return read(*arguments, **named)

            monkeypatch.setattr(one.context.engine, "get_records", slowly)
            pulling = asyncio.ensure_future(pull(one, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=3))
            await until(began.is_set)
            expected = -1
            if change == "reset":
                one.context.reset_offsets.assign("g", "T", 0, expected := 1)
            elif change == "topic deleted":
                assert (await one.client.call(one.address, 215, {"topic": "T"})).code == 0
            else:
                fields = {"groupName": "g", "cleanOffset": "true"}
                assert (await one.client.call(one.address, 207, fields)).code == 0
            goes_on.set()
            answer = await pulling
            assert (answer.code == ResponseCode.TOPIC_NOT_EXIST) is (change == "topic deleted")
            assert one.context.offsets.get("g", "T", 0) == expected

    run(flow())


def test_fields_that_are_missing_or_no_numbers_are_named(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for changed in ({"queueOffset": None}, {"sysFlag": "x"}, {"topic": None}, {"maxMsgNums": 2**40}):
                answer = await pull(one, **changed)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert next(iter(changed)) in str(answer.remark)
            assert (await pull(one, maxMsgNums=-5)).code == ResponseCode.TOPIC_NOT_EXIST

    run(flow())


def test_records_go_out_whole_whatever_their_size_and_number(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"L" * 700_000)
            for i in range(40):
                await one.send("T", bytes([i]) * 30_000)  # over several log files
            assert bodies(await pull(one)) == [b"L" * 700_000]
            found: list[bytes] = []
            while len(found) < 40:
                found += bodies(await pull(one, queueOffset=1 + len(found)))
            assert found == [bytes([i]) * 30_000 for i in range(40)]

    run(flow())


def test_client_that_does_not_read_delays_no_other_and_loses_no_message(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for i in range(8):
                await one.send("T", bytes([i]) * 30_000)
            host, port = one.broker.address
            reader, writer = await asyncio.open_connection(host, port)
            count = 300  # 70 MB of answers
            for opaque in range(count):
                writer.write(encode(RemotingCommand(11, pull_fields(), opaque=opaque)))
            await until(lambda: unsent(one) > 1_000_000, "answers that wait")
            for _ in range(20):
                assert len(bodies(await pull(one))) == 8
            assert unsent(one) < 8_000_000  # the connection is not read any more
            decoder, answers = FrameDecoder(), []
            while len(answers) < count:
                answers += decoder.feed(await reader.read(1 << 20))
            assert sorted(answer.opaque for answer in answers) == list(range(count))  # the first one made the group
            assert all(bodies(answer) == [bytes([i]) * 30_000 for i in range(8)] for answer in answers)
            writer.close()

    run(flow())


def unsent(one: Running) -> int:
    """Bytes that wait for clients to read them."""
    return max(channel.unsent_bytes for channel in one.broker._servers[0].channels)


def test_response_is_complete_after_retention_deleted_its_file_which_is_unmapped_afterwards(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, fileReservedTime=1) as one:
            for i in range(60):
                await one.send("T", bytes([i]) * 60_000)  # four log files of 1 MiB
            one.context.store.flush()
            host, port = one.broker.address
            reader, writer = await asyncio.open_connection(host, port)
            for opaque in range(100):
                writer.write(encode(RemotingCommand(11, pull_fields(), opaque=opaque)))
            await until(lambda: unsent(one) > 1_000_000, "answers that wait")
            retention = one.context.store.retention
            removed = 0

            def remove() -> bool:
                nonlocal removed
                retention.clean_now()
                removed += retention.run_once(one.context.now_ms() + 3 * 3_600_000)
                return removed >= 2

            await until(remove, "the removal")  # once the files are dispatched
            assert (await pull(one)).code == ResponseCode.PULL_OFFSET_MOVED
            decoder, answers = FrameDecoder(), []
            while len(answers) < 100:
                answers += decoder.feed(await reader.read(1 << 20))
            found = [answer for answer in answers if answer.code == 0]
            assert len(found) > 4  # those that were answered before
            assert all(bodies(answer) == [bytes([i]) * 60_000 for i in range(4)] for answer in found)
            await until(lambda: retention.held_count == 0, "the end of the files")
            writer.close()

    run(flow())


@pytest.mark.parametrize("seed", [1, 2])
def test_whatever_a_request_says_it_is_answered_and_nothing_breaks(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    """Random values in the fields of all requests of consumers: a code, a remark, and no failure in the log."""
    chosen = random.Random(seed)
    values = [
        "0", "1", "-1", str(2**31 - 1), str(-(2**31)), str(2**31), str(2**63 - 1), str(-(2**63)), str(2**63), "x", "",
        "*", "T", "g", "a@b", "../x", "%RETRY%g", "TAG", "SQL92", "n > 1", "true", "null", "\u0661", "1_0", " 1", "1e3",
        "4", "5", "7", "\u00e9" * 100, "UPPER",
    ]  # fmt: skip
    others = ["setZeroIfNotFound", "maxMsgBytes", "requestSource", "proxyFrowardClientId", "boundaryType",
              "filterGroups", "compareGroup"]  # fmt: skip

    async def flow() -> None:
        async with running_broker(tmp_path, enablePropertyFilter=True) as one:
            await fill(one)
            await heartbeat(one, subscription())
            for _ in range(1500):
                fields = pull_fields(suspendTimeoutMillis=1) | {"commitOffset": "1", "timestamp": "0"}
                for name in chosen.sample([*fields, *others], chosen.randint(0, 3)):
                    if name != "suspendTimeoutMillis":
                        fields[name] = chosen.choice(values)
                    if chosen.random() < 0.15:
                        fields.pop(name, None)
                code = chosen.choice([11, 361, 14, 15, 29, 30, 31, 32, 46, 43, 308])
                body = b"" if code != 46 else chosen.choice([b"", b"{}", b"null", b"[]", b"\xff", b'{"group":1}'])
                answer = await one.client.call(one.address, code, fields, body, timeout_ms=20_000)
                if answer.code == ResponseCode.SYSTEM_ERROR:
                    assert "FieldError" in str(answer.remark)
            assert len(bodies(await pull(one))) == 6

    run(flow())
    assert "failed" not in caplog.text
