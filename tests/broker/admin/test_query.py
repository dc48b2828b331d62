"""Finding messages by admin requests to a running broker: by key, unique key, tag and place; the units of a queue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

from mqfast.remoting.command import RemotingCommand

EVER = 2**63 - 1


def bodies(answer: RemotingCommand) -> list[bytes]:
    """The bodies of the records of an answer."""
    data, found = bytes(answer.body), []
    while data:
        size = int.from_bytes(data[:4], "big")
        length = int.from_bytes(data[84:88], "big")  # behind the fixed fields of a record with IPv4 hosts
        found.append(data[88 : 88 + length])
        data = data[size:]
    return found


async def query(one: Running, topic: str, key: str, **more: Any) -> RemotingCommand:
    fields = {"topic": topic, "key": key, "maxNum": 64, "beginTimestamp": 0, "endTimestamp": EVER, **more}
    return await one.call(12, **fields)


async def send_some(one: Running) -> list[int]:
    places = []
    for body, keys, tag in ((b"one", "k1 k2", "A"), (b"two", "k2", "B"), (b"three", "", "A")):
        unique = f"U-{body.decode()}"
        answer = await one.send("T", body, properties=f"KEYS\x01{keys}\x02TAGS\x01{tag}\x02UNIQ_KEY\x01{unique}\x02")
        places.append(int(answer.ext_fields["msgId"][16:], 16))
    return places


def test_messages_are_found_by_key_unique_key_and_tag(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        places = await send_some(one)
        assert bodies(await query(one, "T", "k2")) == [b"one", b"two"], "oldest first"
        assert bodies(await query(one, "T", "k2", maxNum=1)) == [b"two"], "the newest of them"
        assert bodies(await query(one, "T", "U-three", _UNIQUE_KEY_QUERY="true", maxNum=0)) == [b"three"]
        assert bodies(await query(one, "T", "A", indexType="T")) == [b"one", b"three"]
        answer = await query(one, "T", "k1", _UNIQUE_KEY_QUERY="false", lastKey="x")
        assert bodies(answer) == [b"one"]
        assert answer.ext_fields["indexLastUpdatePhyoffset"] == str(places[0])
        assert int(answer.ext_fields["indexLastUpdateTimestamp"]) > 0

    serve(tmp_path, flow)


def test_an_answer_has_at_most_maxmsgsnumbatch_messages(tmp_path: Path) -> None:
    """RocketMQ's DefaultMessageStore limits a query by key, whatever the client asks for: the newest messages come."""

    async def flow(one: Running) -> None:
        for number in range(70):
            await one.send("T", b"%d" % number, properties=f"KEYS\x01k\x02UNIQ_KEY\x01U{number}\x02")
        newest = [b"%d" % number for number in range(6, 70)]
        assert bodies(await query(one, "T", "k", maxNum=1000)) == newest

    serve(tmp_path, flow)


@pytest.mark.parametrize(
    ("topic", "key", "more"),
    [
        ("T", "no", {}),
        ("other", "k1", {}),
        ("T", "k1", {"endTimestamp": 1}),
        ("T", "k1", {"beginTimestamp": EVER}),
        ("T", "k1", {"maxNum": 0}),
        ("T", "k1", {"maxNum": -5}),
        ("T", "k", {}),
        ("../T", "k1", {}),
    ],
)
def test_what_is_not_there_is_answered_22_with_the_header(
    tmp_path: Path, topic: str, key: str, more: dict[str, Any]
) -> None:
    async def flow(one: Running) -> None:
        await send_some(one)
        answer = await query(one, topic, key, **more)
        assert (answer.code, answer.remark) == (22, "can not find message, maybe time range not correct")
        assert answer.ext_fields == {"indexLastUpdatePhyoffset": "0", "indexLastUpdateTimestamp": "0"}

    serve(tmp_path, flow)


def test_without_an_index_nothing_is_found(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        await send_some(one)
        assert (await query(one, "T", "k1")).code == 22

    serve(tmp_path, flow, messageIndexEnable=False)


def test_a_message_is_viewed_by_its_place_and_nothing_else_is(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        places = await send_some(one)
        for place, body in zip(places, (b"one", b"two", b"three"), strict=True):
            assert bodies(await one.call(33, offset=place)) == [body]
        for place in (places[1] + 1, 10**9, -1, EVER):
            answer = await one.call(33, offset=place)
            assert (answer.code, answer.remark) == (1, f"can not find message by the offset, {place}")
        for fields in ({}, {"offset": "x"}, {"offset": 2**63}):
            answer = await one.call(33, **fields)
            assert answer.code == 1
            assert "offset" in str(answer.remark)

    serve(tmp_path, flow)


def test_a_body_that_looks_like_a_record_is_no_message(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        first = await one.send("T", b"secret")
        record = bytes((await one.call(33, offset=int(first.ext_fields["msgId"][16:], 16))).body)
        second = await one.send("U", record)
        start = int(second.ext_fields["msgId"][16:], 16)
        whole = bytes((await one.call(33, offset=start)).body)
        assert (await one.call(33, offset=start + whole.index(record))).code == 1

    serve(tmp_path, flow)


def test_units_of_a_queue(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        places = await send_some(one)
        found = json.loads((await one.call(321, topic="T", queueId=0, index=1, count=9)).body)
        assert (found["minQueueIndex"], found["maxQueueIndex"]) == (0, 3)
        assert [(row["physicOffset"], row["tagsCode"]) for row in found["queueData"]] == [
            (places[1], ord("B")), (places[2], ord("A")),
        ]  # fmt: skip
        found = json.loads((await one.call(321, topic="T", queueId=0, index=0, count=1, consumerGroup="g")).body)
        assert len(found["queueData"]) == 1
        assert found["filterData"] == "g@T is not online!"
        missing = await one.call(321, topic="T", queueId=3, index=0, count=1)
        assert (missing.code, missing.remark) == (1, "3@T is not exist!")
        behind = await one.call(321, topic="T", queueId=0, index=3, count=1)
        assert (behind.code, behind.remark, bytes(behind.body)) == (0, "Index 3 of 0@T is not exist!", b"")

    serve(tmp_path, flow)
