"""Topics by admin requests to a running broker: made, changed, listed, deleted, with RocketMQ's codes and texts."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

import mqfast

LEGAL = "allowing only ^[%|a-zA-Z0-9_-]+$"


def topic(name: str, **more: Any) -> dict[str, Any]:
    return {
        "topic": name, "defaultTopic": "TBW102", "readQueueNums": 2, "writeQueueNums": 3, "perm": 6,
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false", **more,
    }  # fmt: skip


def test_a_topic_is_made_changed_and_asked_for(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(17, **topic("T", attributes="+message.type=FIFO"))).code == 0
        found = json.loads((await one.call(351, topic="T", lo="true")).body)
        assert found == {
            "attributes": {"message.type": "FIFO"}, "order": False, "perm": 6, "readQueueNums": 2,
            "topicFilterType": "SINGLE_TAG", "topicName": "T", "topicSysFlag": 0, "writeQueueNums": 3,
        }  # fmt: skip
        version = one.context.topics.table.data_version["counter"]
        assert (await one.call(17, **topic("T", perm=4, order="true"))).code == 0
        found = json.loads((await one.call(351, topic="T")).body)
        assert (found["perm"], found["order"], found["attributes"]) == (4, True, {"message.type": "FIFO"})
        assert (await one.call(17, **topic("T", perm=4, order="true"))).code == 0
        assert one.context.topics.table.data_version["counter"] == version + 1, "the same again changes nothing"
        missing = await one.call(351, topic="no")
        assert (missing.code, missing.remark) == (17, "No topic in this broker. topic: no")

    serve(tmp_path, flow)
    text = (tmp_path / "config" / "topics.json").read_text()
    assert json.loads(text)["topicConfigTable"]["T"]["perm"] == 4


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified topic is blank."),
        ("  ", "The specified topic is blank."),
        ("../../etc/passwd", f"The specified topic: ../../etc/passwd, contains illegal characters, {LEGAL}"),
        ("a/b", f"The specified topic: a/b, contains illegal characters, {LEGAL}"),
        (".", f"The specified topic: ., contains illegal characters, {LEGAL}"),
        ("a\0b", f"The specified topic: a\0b, contains illegal characters, {LEGAL}"),
        ("t" * 128, f"The specified topic: {'t' * 128}, is longer than topic max length: 127"),
        ("TBW102", "The topic[TBW102] is conflict with system topic."),
        ("rmq_sys_any", "The topic[rmq_sys_any] is conflict with system topic."),
        ("broker-a", "The topic[broker-a] is conflict with system topic."),
        ("DefaultCluster", "The topic[DefaultCluster] is conflict with system topic."),
    ],
)
def test_a_name_that_may_not_be_is_refused(tmp_path: Path, name: str, remark: str) -> None:
    async def flow(one: Running) -> None:
        before = set(one.context.topics.table)
        answer = await one.call(17, **topic(name))
        assert (answer.code, answer.remark) == (29, remark)
        body = json.dumps({"topicConfigList": [{"topicName": "good"}, {"topicName": name}]}).encode()
        answer = await one.call(18, body)
        assert (answer.code, answer.remark) == (29, remark)
        assert set(one.context.topics.table) == before, "none of a list is made where one is illegal"

    serve(tmp_path, flow)
    outside = [path for path in tmp_path.parent.rglob("*") if path.name == "passwd"]
    assert outside == []


@pytest.mark.parametrize(
    ("attributes", "code", "remark"),
    [
        (
            "+message.type=NOPE",
            1,
            "value is not in set: [UNSPECIFIED, MIXED, TRANSACTION, PRIORITY, FIFO, DELAY",
        ),
        ("+bogus=1", 1, "unsupported key: bogus"),
        ("-message.type", 1, "only add attribute is supported while creating topic. key: message.type"),
        ("message.type=FIFO", 1, "add/alter attribute format is wrong: message.type"),
        ("+reserve.time=x", 1, 'For input string: "x"'),
        ("+reserve.time=-2", 1, "value is not in range(-1, 9223372036854775807)"),
        ("+message.type=MIXED", 29, "MIXED message type is not supported."),
        ("+queue.type=SimpleCQ,+queue.type=BatchCQ", 1, "key duplication: +queue.type"),
    ],
)
def test_attributes_that_may_not_be_are_refused(tmp_path: Path, attributes: str, code: int, remark: str) -> None:
    async def flow(one: Running) -> None:
        answer = await one.call(17, **topic("T", attributes=attributes))
        assert answer.code == code
        assert answer.remark is not None
        assert answer.remark.startswith(remark)
        assert one.context.topics.get("T") is None

    serve(tmp_path, flow)


def test_attributes_of_an_existing_topic(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(17, **topic("T", attributes="+queue.type=BatchCQ"))).code == 0
        answer = await one.call(17, **topic("T", attributes="+queue.type=SimpleCQ"))
        assert (answer.code, answer.remark) == (1, "attempt to update an unchangeable attribute. key: queue.type")
        answer = await one.call(17, **topic("T", attributes="-message.type"))
        assert (answer.code, answer.remark) == (1, "attempt to delete a nonexistent key: message.type")
        assert (await one.call(17, **topic("T", attributes="+message.type=DELAY"))).code == 0
        assert (await one.call(17, **topic("T", attributes="-message.type"))).code == 0
        assert one.context.topics.get("T").attributes == {"queue.type": "BatchCQ"}  # type: ignore[union-attr]

    serve(tmp_path, flow)


def test_numbers_that_no_file_could_hold_are_refused(tmp_path: Path) -> None:
    """One such topic, and no table would be written any more."""

    async def flow(one: Running) -> None:
        for name in ("perm", "topicSysFlag"):
            for many in (2**31, -(2**63) - 1):
                answer = await one.call(17, **topic("T", **{name: many}))
                assert answer.code == 1
                assert name in str(answer.remark)
        answer = await one.call(18, b'{"topicConfigList":[{"topicName":"T","topicSysFlag":9223372036854775808}]}')
        assert answer.code == 1
        group = b'{"groupName":"g","unknown":9223372036854775808}'
        answer = await one.call(200, group)
        assert (answer.code, "64-bit numbers" in str(answer.remark)) == (1, True)
        assert one.context.topics.get("T") is None
        assert "g" not in one.context.groups.table
        one.context.tables.persist()

    serve(tmp_path, flow)


def test_a_name_that_no_directory_has_is_not_deleted(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(215, topic="x" * 256)).code == 29
        assert (await one.call(215, topic="a/b")).code == 1
        assert (await one.call(215, topic="x" * 255)).code == 0

    serve(tmp_path, flow)


def test_numbers_of_queues_have_limits(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for name in ("readQueueNums", "writeQueueNums"):
            for many in (-1, 2**31, 100_001):
                answer = await one.call(17, **topic("T", **{name: many}))
                assert answer.code == 29
                assert name in str(answer.remark)
        answer = await one.call(17, **topic("T", readQueueNums="x"))
        assert answer.code == 1
        assert "readQueueNums" in str(answer.remark)

    serve(tmp_path, flow)


def test_several_topics_at_once_and_all_topics(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        topics = [{"topicName": name, "readQueueNums": 5, "writeQueueNums": 5, "perm": 6} for name in ("A", "B")]
        assert (await one.call(18, json.dumps({"topicConfigList": topics}).encode())).code == 0
        answer = await one.call(21)
        found = json.loads(answer.body)
        table = found["topicConfigTable"]
        assert answer.ext_fields["totalTopicNum"] == str(len(table))
        assert {"A", "B", "TBW102", "SELF_TEST_TOPIC"} <= set(table)
        assert table["A"]["readQueueNums"] == 5
        assert found["dataVersion"] == one.context.topics.table.data_version
        system = json.loads((await one.call(305)).body)["topicList"]
        assert {"TBW102", "broker-a", "DefaultCluster", "SCHEDULE_TOPIC_XXXX"} <= set(system)
        assert "A" not in system

    serve(tmp_path, flow)


def test_a_deleted_topic_has_no_messages_offsets_or_counts(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await one.send("T", b"one")
        await one.send("keep", b"two")
        await one.call(17, **topic("%RETRY%g+T"))
        one.context.offsets.commit("g", "T", 0, 1)
        for name, remark in (("", "The specified topic is blank."), ("TBW102", "The topic[TBW102] is conflict with")):
            answer = await one.call(215, topic=name)
            assert answer.code == 29
            assert str(answer.remark).startswith(remark)
        assert (await one.call(215, topic="T")).code == 0
        assert (await one.call(215, topic="unknown")).code == 0
        context = one.context
        assert context.topics.get("T") is None
        assert context.topics.get("%RETRY%g+T") is None
        assert context.offsets.get("g", "T", 0) == -1
        assert "T" not in context.stats.puts
        assert context.store.max_offset("T", 0) == 0
        assert context.store.max_offset("keep", 0) == 1
        again = await one.send("T", b"new")
        assert again.ext_fields["queueOffset"] == "0"

    serve(tmp_path, flow)
    with mqfast.open(tmp_path) as store:
        assert [bytes(message.body) for message in store.get("T", 0, 0)] == [b"new"]
        assert "T" in store.topic_table
        assert "%RETRY%g+T" not in store.topic_table


def test_the_offsets_of_a_deleted_topic_are_gone_from_the_disk(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        file = tmp_path / "config" / "consumerOffset.json"
        for name in ("T", "keep"):
            await one.send(name, b"one")
            one.context.offsets.commit("g", name, 0, 1)
        one.context.tables.persist()
        assert '"T@g"' in file.read_text()
        assert (await one.call(215, topic="T")).code == 0
        # A kill now, and a topic T made anew: the group is to begin with its first message.
        assert '"T@g"' not in file.read_text()
        assert '"keep@g"' in file.read_text()

    serve(tmp_path, flow, flushConsumerOffsetInterval=3_600_000)


def test_cleaning_removes_no_message(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await one.send("T", b"one")
        one.context.topics.table.delete("T")  # as a broker that lost its topics.json
        for code in (306, 316, 329):
            assert (await one.call(code)).code == 0
        assert one.context.store.max_offset("T", 0) == 1
        assert [bytes(m.body) for m in one.context.store.get("T", 0, 0)] == [b"one"]

    serve(tmp_path, flow)


def test_codes_of_name_servers_are_not_served(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for code in (311, 312, 313, 901):
            answer = await one.call(code)
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")

    serve(tmp_path, flow)


def test_no_message_is_stored_in_a_topic_while_it_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would lie in a queue of a topic that is in no table: acknowledged, and seen by nobody."""

    async def flow(one: Running) -> None:
        for _ in range(2):  # the second send takes the short way, which knows the topic
            assert (await one.send("T", b"before", properties="UNIQ_KEY\x01U")).code == 0
        real = one.context.store.delete_topic
        dropped, go_on = threading.Event(), threading.Event()

        def delete_and_wait(name: str) -> int:
            count = real(name)
            dropped.set()
            assert go_on.wait(30)
            return count

        monkeypatch.setattr(one.context.store, "delete_topic", delete_and_wait)
        deletion = asyncio.ensure_future(one.call(215, topic="T"))
        await asyncio.to_thread(dropped.wait, 30)
        refused = await one.send("T", b"meanwhile", properties="UNIQ_KEY\x01U")
        assert (refused.code, refused.remark) == (17, "topic[T] not exist, apply first please!")
        go_on.set()
        assert (await deletion).code == 0
        assert one.context.store.topics() == [name for name in one.context.store.topics() if name != "T"]
        again = await one.send("T", b"after", properties="UNIQ_KEY\x01U")
        assert (again.code, again.ext_fields["queueOffset"]) == (0, "0")
        assert one.context.topics.get("T") is not None

    serve(tmp_path, flow)


def test_a_topic_whose_deletion_fails_is_there_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow(one: Running) -> None:
        assert (await one.send("T", b"before")).code == 0

        def fail(_name: str) -> int:
            raise mqfast.errors.DiskFull(28, "no space", "notes")

        monkeypatch.setattr(one.context.store, "delete_topic", fail)
        assert (await one.call(215, topic="T")).code == 1
        assert one.context.topics.get("T") is not None
        assert (await one.send("T", b"after")).ext_fields["queueOffset"] == "1"

    serve(tmp_path, flow)
