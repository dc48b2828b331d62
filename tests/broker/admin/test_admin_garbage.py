"""Garbage in admin requests: each is answered with a code and words, nothing is changed, and the broker serves on."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from running import Running, serve

CODES = [
    12, 17, 18, 21, 25, 26, 28, 33, 45, 200, 201, 202, 207, 208, 215, 222, 223, 225, 300, 303, 305, 306, 307, 309, 314,
    315, 316, 317, 321, 328, 329, 343, 345, 351, 352, 353, 400, 401, 402, 2001, 2002, 2003, 2004,
]  # fmt: skip
BODIES = [
    b"", b"{", b"null", b"[]", b'"text"', b"{}", b"\xff\xfe\x00", b'{"groupConfigList":null}', b'{"topicConfigList":5}',
    b'{"topicConfigList":[null]}', b'{"groupConfigList":[[]]}', b"[" * 2000, b'{"a":' * 2000, b'{"groupName":{}}',
    b"{{{{}:1}:2}:3}",
]  # fmt: skip
NAMES = [
    "topic", "group", "consumerGroup", "producerGroup", "groupName", "srcGroup", "destGroup", "clientId", "msgId",
    "key", "statsName", "statsKey", "queueId", "index", "count", "offset", "timestamp", "maxNum", "beginTimestamp",
    "isForce",
    "endTimestamp", "readQueueNums", "writeQueueNums", "perm", "attributes", "topicList", "readable", "isOrder",
]  # fmt: skip
VALUES = [
    "", " ", "-1", "x", "1e9", "9223372036854775808", "-9223372036854775809", "true", "..", "../../x", "a@b", "@", "\0",
    "\ud800", "é", "T", "g", "%RETRY%", "null", "0", "2147483647", "x" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("code", CODES)
def test_garbage_is_answered_and_harms_nobody(tmp_path: Path, code: int) -> None:
    rng = random.Random(code)

    async def flow(one: Running) -> None:
        await one.send("T", b"x", properties="KEYS\x01k\x02")
        one.context.offsets.commit("g", "T", 0, 1)
        topics = set(one.context.topics.table)
        cases: list[tuple[dict[str, Any], bytes]] = [({}, body) for body in BODIES]
        for _ in range(60):
            fields = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.randrange(1, len(NAMES)))}
            cases.append((fields, rng.choice(BODIES)))
        for fields, body in cases:
            answer = await one.call(code, body, **fields)
            assert isinstance(answer.code, int)
            assert answer.code == 0 or answer.remark, (fields, body)
            assert "Traceback" not in str(answer.remark)
        made = set(one.context.topics.table) - topics
        assert all(name == name.strip() and "/" not in name and "." not in name for name in made)
        assert (await one.send("after", b"x")).code == 0
        table = json.loads((await one.call(21)).body)["topicConfigTable"]
        assert "after" in table

    serve(tmp_path, flow)
    assert not [path for path in tmp_path.parent.rglob("x") if path.is_dir()]
