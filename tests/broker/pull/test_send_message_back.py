"""36: levels, retry and dead letter topics, properties as Java writes them, codes and texts of refusals.

The broker is real; messages are put into its store directly where a send adds nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from clocked import golden_records
from conftest import golden_cases
from event_loop import run
from running import Running, running_broker

import mqfast
from mqfast import properties as names
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import StoredMessage

SCHEDULE = "SCHEDULE_TOPIC_XXXX"


async def send_message_back(one: Running, offset: int, level: int = 0, **fields: Any) -> RemotingCommand:
    given = {"offset": offset, "group": "g", "delayLevel": level, "originTopic": "T", "unitMode": "false", **fields}
    return await one.call(RequestCode.CONSUMER_SEND_MSG_BACK, **given)


def put(one: Running, body: bytes = b"body", topic: str = "T", reconsume_times: int = 0, **pairs: Any) -> int:
    """Put a message. Returns: its physical offset."""
    result = one.context.engine.put_encoded(
        topic.encode(), 0, body, names.encode(pairs), 7, 1, 1_700_000_000_001, None, one.context.store_host,
        reconsume_times, wait=False,
    )  # fmt: skip
    return result.physical_offset


def last(one: Running, topic: str, queue_id: int = 0) -> StoredMessage:
    store = one.context.store
    return store.get(topic, queue_id, store.max_offset(topic, queue_id) - 1)[0]


@pytest.mark.parametrize("times", range(16))
def test_the_level_grows_with_the_times_a_message_was_consumed(tmp_path: Path, times: int) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            answer = await send_message_back(one, put(one, reconsume_times=times))
            assert (answer.code, answer.remark) == (0, None)
            message = last(one, SCHEDULE, min(3 + times, 18) - 1)
            assert message.reconsume_times == times + 1
            assert message.properties[names.DELAY] == str(min(3 + times, 18))
            assert message.properties[names.REAL_TOPIC] == "%RETRY%g"
            assert message.properties[names.REAL_QID] == "0"

    run(flow())


def test_message_sent_back_is_stored_in_the_retry_topic_with_its_properties(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            body = bytes(range(256)) * 40
            offset = put(one, body, TAGS="A", KEYS="k", mine="1", UNIQ_KEY="U")
            original = one.context.store.get_by_offset(offset)
            assert (await send_message_back(one, offset, 5)).code == 0
            message = last(one, SCHEDULE, 4)
            assert bytes(message.body) == body
            assert (message.flag, message.sys_flag) == (7, 1)
            assert message.born_timestamp == 1_700_000_000_001
            assert message.born_host == original.born_host
            assert message.properties == {
                "TAGS": "A", "KEYS": "k", "mine": "1", "UNIQ_KEY": "U", "RETRY_TOPIC": "T", "WAIT": "false",
                "DELAY": "5", "ORIGIN_MESSAGE_ID": original.message_id, "REAL_TOPIC": "%RETRY%g", "REAL_QID": "0",
            }  # fmt: skip
            topic = one.context.topics.get("%RETRY%g")
            assert topic is not None
            assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)

    run(flow())


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_send_backs_have_javas_bytes(tmp_path: Path, release: str) -> None:
    """Every golden record that a consumer gave back, made here of the record that it gave back."""

    async def flow() -> None:
        (case,) = golden_cases(release, ("normal-clean",))
        records = list(golden_records(case))
        compared = 0
        async with running_broker(tmp_path) as one:
            for topic, their in records:
                if topic != SCHEDULE or not their.properties[names.REAL_TOPIC].startswith("%RETRY%"):
                    continue
                unique, times = their.properties[names.UNIQ_KEY], their.reconsume_times - 1
                given = next(
                    (t, m) for t, m in records
                    if t != SCHEDULE and m.properties.get(names.UNIQ_KEY) == unique and m.reconsume_times == times
                )  # fmt: skip
                source = given[1]
                offset = one.context.engine.put_encoded(
                    given[0].encode(), 0, bytes(source.body), source.properties_bytes, source.flag, source.sys_flag,
                    source.born_timestamp, None, one.context.store_host, source.reconsume_times, wait=False,
                ).physical_offset  # fmt: skip
                group = their.properties[names.REAL_TOPIC].removeprefix("%RETRY%")
                level = int(their.properties[names.DELAY])
                assert (await send_message_back(one, offset, 0 if level == 3 + times else level, group=group)).code == 0
                ours = last(one, SCHEDULE, their.queue_id)
                expected = their.properties_bytes
                if names.ORIGIN_MESSAGE_ID not in source.properties:
                    theirs, mine = (m.properties[names.ORIGIN_MESSAGE_ID].encode() for m in (their, ours))
                    expected = expected.replace(theirs, mine)  # an offset of the log
                assert ours.properties_bytes == expected
                for field in ("flag", "sys_flag", "born_timestamp", "reconsume_times", "body_crc", "queue_id",
                              "prepared_transaction_offset", "magic"):  # fmt: skip
                    assert getattr(ours, field) == getattr(their, field), field
                compared += 1
        assert compared >= 2

    run(flow())


def test_message_sent_back_after_the_last_retry_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            offset = put(one, b"dead", "%RETRY%g", 16, RETRY_TOPIC="first", ORIGIN_MESSAGE_ID="ID", DELAY="18")
            assert (await send_message_back(one, offset)).code == 0
            message = last(one, "%DLQ%g")
            assert bytes(message.body) == b"dead"
            assert message.reconsume_times == 17
            assert message.properties == {
                "RETRY_TOPIC": "first", "ORIGIN_MESSAGE_ID": "ID", "DELAY": "0", "WAIT": "false",
            }  # fmt: skip
            topic = one.context.topics.get("%DLQ%g")
            assert topic is not None
            assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)

    run(flow())


def test_message_sent_back_has_the_real_topic_whatever_its_producer_set(tmp_path: Path) -> None:
    """Clients take RETRY_TOPIC for the topic of a message of %RETRY%."""

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert (await send_message_back(one, put(one, RETRY_TOPIC="orders"), level=-1)).code == 0
            assert last(one, "%DLQ%g").properties[names.RETRY_TOPIC] == "T"

    run(flow())


@pytest.mark.parametrize(
    ("times", "fields", "is_dead"),
    [
        (0, {"level": -1}, True),
        (2, {"maxReconsumeTimes": 2}, True),
        (1, {"maxReconsumeTimes": 2}, False),
        (30, {"maxReconsumeTimes": 40}, False),
        (0, {"maxReconsumeTimes": 0}, True),
    ],
)
def test_conditions_of_dead_letters(tmp_path: Path, times: int, fields: dict[str, int], is_dead: bool) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert (await send_message_back(one, put(one, reconsume_times=times), **fields)).code == 0
            assert one.context.store.max_offset("%DLQ%g", 0) == int(is_dead)

    run(flow())


@pytest.mark.parametrize(("version", "is_dead"), [(120, False), (121, True)])
def test_maximum_of_retries_of_an_old_client_is_ignored(tmp_path: Path, version: int, is_dead: bool) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            fields = {"offset": str(put(one)), "group": "g", "delayLevel": "0", "maxReconsumeTimes": "0"}
            answer = await one.client.call(
                one.address, RequestCode.CONSUMER_SEND_MSG_BACK, fields, version=version, timeout_ms=10_000
            )
            assert answer.code == 0
            assert one.context.store.max_offset("%DLQ%g", 0) == int(is_dead)

    run(flow())


def test_the_group_says_how_often_and_into_how_many_queues(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            groups = one.context.groups
            rules = groups.get("g")
            assert rules is not None
            groups.put({**rules, "retryMaxTimes": 1, "retryQueueNums": 3})
            for _ in range(40):
                assert (await send_message_back(one, put(one))).code == 0
            topic = one.context.topics.get("%RETRY%g")
            assert topic is not None
            assert topic.write_queue_nums == 3
            store = one.context.store
            queues = {m.properties[names.REAL_QID] for m in store.get(SCHEDULE, 2, 0, max_count=40)}
            assert queues == {"0", "1", "2"}
            assert (await send_message_back(one, put(one, reconsume_times=1))).code == 0
            assert store.max_offset("%DLQ%g", 0) == 1
            groups.put({**rules, "retryQueueNums": 0})
            before = store.max_physical_offset
            assert (await send_message_back(one, 10**9)).code == 0  # such a group wants no retries
            assert store.max_physical_offset == before

    run(flow())


def test_refusals_have_rocketmqs_codes_and_words(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, autoCreateSubscriptionGroup=False) as one:
            offset = put(one)
            answer = await send_message_back(one, offset, group="nobody")
            assert answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            assert str(answer.remark).startswith("subscription group not exist, nobody ")
            one.context.groups.put({"groupName": "g", "retryQueueNums": 1, "retryMaxTimes": 16})
            for wrong in (offset + 3, 10**9, -1):
                answer = await send_message_back(one, wrong)
                assert (answer.code, answer.remark) == (1, f"look message by offset failed, {wrong}")
            raw = one.context.topics.raw("%RETRY%g", 1, 4)
            one.context.topics.put(raw)
            answer = await send_message_back(one, offset)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the topic[%RETRY%g] sending message is forbidden"
            one.context.config.update({"brokerPermission": "4"}, "test")
            answer = await send_message_back(one, offset)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] sending message is forbidden"
            for missing in ("offset", "group", "delayLevel"):
                fields: dict[str, Any] = {"offset": 0, "group": "g", "delayLevel": 0}
                del fields[missing]
                answer = await one.call(RequestCode.CONSUMER_SEND_MSG_BACK, **fields)
                assert answer.code == 1
                assert missing in str(answer.remark)

    run(flow())


def test_a_message_that_grew_too_long_is_refused_with_the_status(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            answer = await send_message_back(one, put(one, big="x" * 32_700))
            assert answer.code == 1
            assert answer.remark == "PROPERTIES_SIZE_EXCEEDED"

    run(flow())


def test_with_sync_flush_a_message_given_back_is_durable_when_it_is_answered(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as one:
            sent = await one.send("T", b"x")
            offset = int(sent.ext_fields["msgId"][16:], 16)
            assert (await send_message_back(one, offset)).code == 0
            assert bytes(last(one, SCHEDULE, 2).body) == b"x"  # readers see what is durable

    run(flow())


def test_with_a_sync_master_a_message_given_back_is_at_the_slave_when_it_is_answered(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 60_000}
        async with running_broker(tmp_path, **settings) as one:
            offset, raw, acks = put(one), one.context.engine.raw, one.parts.replicas.ha.acks
            assert acks is not None
            acks.report("slave", raw.end)
            end = raw.end
            answer = asyncio.ensure_future(send_message_back(one, offset))
            while raw.end == end:
                await asyncio.sleep(0.01)
            for _ in range(5):  # each is answered behind it, were it not held back
                await one.call(RequestCode.GET_BROKER_RUNTIME_INFO)
            assert not answer.done()
            acks.report("slave", raw.end)
            assert (await answer).code == 0

    run(flow())


def test_without_a_slave_a_message_given_back_is_stored_once(tmp_path: Path) -> None:
    """A consumer that hears of an error stores the message a second time."""

    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "flushDiskType": "SYNC_FLUSH"}
        async with running_broker(tmp_path, **settings) as one:
            offset = put(one)
            await asyncio.to_thread(one.context.store.flush)  # it is looked up by its offset
            assert (await send_message_back(one, offset)).code == 0
            assert one.context.store.max_offset(SCHEDULE, 2) == 1

    run(flow())


def test_a_message_sent_back_is_delivered_and_in_time(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, messageDelayLevel="1s 5s") as one:
            sent = await one.send("T", b"x", properties="TAGS\x01A")
            offset = int(sent.ext_fields["msgId"][16:], 16)
            assert (await send_message_back(one, offset, 1)).code == 0
            store = one.context.store
            while store.max_offset("%RETRY%g", 0) == 0:
                await asyncio.sleep(0.01)
            parked, delivered = store.get(SCHEDULE, 0, 0)[0], store.get("%RETRY%g", 0, 0)[0]
            assert delivered.store_timestamp >= parked.store_timestamp + 1000
            assert delivered.tags == "A"
            assert (await send_message_back(one, delivered.physical_offset, 1)).code == 0
            while store.max_offset("%RETRY%g", 0) == 1:
                await asyncio.sleep(0.01)
            second = store.get("%RETRY%g", 0, 1)[0]
            assert second.reconsume_times == 2
            assert second.properties[names.RETRY_TOPIC] == "T"
            assert second.properties[names.ORIGIN_MESSAGE_ID] == sent.ext_fields["msgId"]

    run(flow())
    with mqfast.open(tmp_path) as store:
        assert [bytes(m.body) for m in store.get("%RETRY%g", 0, 0)] == [b"x", b"x"]
