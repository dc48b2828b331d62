"""Garbage in requests of every code: each is answered, nothing escapes the store, and a client that behaves is served.

What must hold for each request is in ``fuzz/broker_requests.py``; ``make fuzz`` goes on from here.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import psutil
import pytest
from fuzz.broker_requests import VALUES, FuzzedBroker, Request, pack, unpack
from fuzz.fuzz import CORPUS

SEEDS = [one for path in sorted((CORPUS / "requests").iterdir()) for one in unpack(path.read_bytes())]
BODIES = [
    b"", b"{", b"null", b"[]", b'"text"', b"{}", b"\xff\xfe\x00", b'{"groupConfigList":null}', b'{"topicConfigList":5}',
    b'{"topicConfigList":[null]}', b'{"groupConfigList":[[]]}', b"[" * 2000, b'{"a":' * 2000, b'{"groupName":{}}',
    b'{"groupName":"g","attributes":{"+a":"b"},"brokerId":1e400}', b"{{{{}:1}:2}:3}",
    b'{"groupName":"g","unknown":9223372036854775808}', b'{"clientID":null,"consumerDataSet":[null]}',
]  # fmt: skip
AT_ONCE = 20


@pytest.fixture
def broker(tmp_path: Path) -> FuzzedBroker:
    return FuzzedBroker(str(tmp_path / "store"))


def damaged(one: Request, rng: random.Random) -> list[Request]:
    """Each field with values that are none of its kind, or missing; and bodies that are none."""
    found = [one, one._replace(fields={})]
    for name in one.fields:
        found += [one._replace(fields={**one.fields, name: value}) for value in rng.sample(VALUES, 12)]
        found.append(one._replace(fields={key: value for key, value in one.fields.items() if key != name}))
    return found + [one._replace(body=body) for body in BODIES]


def test_every_code_has_a_first_input(broker: FuzzedBroker) -> None:
    try:
        assert {one.code for one in SEEDS} == set(broker.served)
    finally:
        broker.end()


def test_an_input_is_what_its_requests_are() -> None:
    for one in SEEDS:
        assert unpack(pack([one, one])) == [one, one]


@pytest.mark.parametrize("part", range(4))
def test_garbage_in_every_code_is_answered_and_harms_nobody(broker: FuzzedBroker, tmp_path: Path, part: int) -> None:
    rng = random.Random(part)
    inputs = [case for one in SEEDS[part::4] if one.code != 25 for case in damaged(one, rng)]
    rng.shuffle(inputs)
    process = psutil.Process(os.getpid())
    topics, before = set(broker.broker.context.topics.table), process.memory_info().rss
    try:
        for at in range(0, len(inputs), AT_ONCE):
            broker.take(inputs[at : at + AT_ONCE])
        made = set(broker.broker.context.topics.table) - topics
        assert all(name == name.strip() and "/" not in name and "." not in name for name in made)
        assert process.memory_info().rss - before < 128 << 20
    finally:
        broker.end()
    assert not [path for path in tmp_path.parent.rglob("x") if path.is_dir() and tmp_path / "store" not in path.parents]


def test_settings_from_garbage(tmp_path: Path) -> None:
    """25 changes settings, so that each broker takes one input."""
    texts = [
        b"x",
        b"=",
        b"\\u12",
        b"transactionCheckMax=x\n",
        b"fileReservedTime=-1",
        b"listenPort=1",
        b"brokerPermission=9",
    ]
    for text in texts:
        broker = FuzzedBroker(str(tmp_path / "store"))
        broker.take([Request(25, {}, text)])
        broker.end()
