"""The reference model against Java itself: the same puts give the same files, the same questions the same answers.

Room: tests/compat. Java's clock decides the store times; the model is given them. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases
from java_oracle import JavaOracle
from reference import ModelStore, Record, encode_properties
from test_reference import put_copy

SIZES = {"mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16, "maxIndexNum": 40}
TOPICS = ["TopicA", "TopicB", "%RETRY%" + "r" * 140, SCHEDULE := "SCHEDULE_TOPIC_XXXX"]


def random_step(rng: random.Random, number: int, topics: Sequence[str] = TOPICS) -> dict[str, Any]:
    properties: dict[str, str] = {}
    if rng.random() < 0.6:
        properties["KEYS"] = " ".join(f"k{rng.randrange(40)}" for _ in range(rng.randrange(1, 4)))
    if rng.random() < 0.7:
        properties["TAGS"] = rng.choice(["A", "B", "标签", "\U0001f600", "A || B"])
    if rng.random() < 0.5:
        properties["UNIQ_KEY"] = f"U{number:06}"
    topic = rng.choice(topics)
    if topic == SCHEDULE:
        properties["DELAY"] = str(rng.choice([0, 1, 5, 18, 99]))
    return {
        "topic": topic,
        "queueId": rng.randrange(2),
        "body": rng.randbytes(rng.choice([0, 1, 30, 400, 3000])),
        "propertiesString": encode_properties(properties).decode()[: -1 if rng.random() < 0.1 else None],
        "flag": rng.randrange(-5, 5),
        "sysFlag": rng.choice([0, 0, 0, 1, 4, 8, 12]),
        "bornTimestamp": 1_700_000_000_000 + number,
        "bornHost": rng.choice(["10.1.2.3|5555", "2001:db8::1|77"]),
        "storeHost": rng.choice(["127.0.0.1|10911", "127.0.0.1|10911", "fe80::2|1"]),
        "reconsumeTimes": rng.randrange(3),
        "preparedTransactionOffset": rng.choice([0, 1 << 40]),
    }


def host(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition("|")
    return address, int(port)


def record(step: dict[str, Any], store_timestamp: int, **other: Any) -> Record:
    return Record(
        step["topic"],
        other.get("body", step.get("body", b"")),
        step["queueId"],
        other.get("properties", step.get("propertiesString", "").encode()),
        other.get("flag", step["flag"]),
        step["sysFlag"],
        step["bornTimestamp"],
        host(step["bornHost"]),
        host(step["storeHost"]),
        step["reconsumeTimes"],
        step.get("preparedTransactionOffset", 0),
        store_timestamp=store_timestamp,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("with_crc", [False, True], ids=["plain", "prop-crc"])
def test_the_same_puts_give_the_same_files(each_oracle: JavaOracle, tmp_path: Path, with_crc: bool) -> None:
    release = each_oracle.release
    if with_crc and release < "5":
        pytest.skip(f"{release} has no CRC of a whole record")
    seed = 20 + with_crc
    rng = random.Random(seed)
    steps: list[dict[str, Any]] = []
    # 4.x has no version 2 of the record, for long topics, and its store parks a message with DELAY by itself.
    topics = TOPICS if release > "5" else TOPICS[:2]
    for number in range(400):
        step = random_step(rng, number, topics)
        if number % 40 == 13:
            elements = [{"body": rng.randbytes(200), "flag": i, "tags": f"t{i}"} for i in range(rng.randrange(1, 9))]
            step |= {
                "op": "batch",
                "topic": "Batch",
                "sysFlag": 0,
                "messages": elements,
                "preparedTransactionOffset": 0,
            }
            step["propertiesString"] = rng.choice(["", "p\x01q\x02"])
        steps.append(step)
        if number % 5 == 0:
            steps.append({"op": "tick"})
    settings = SIZES | ({"enabledAppendPropCRC": True} if with_crc else {})
    store = tmp_path / "store"
    answers = each_oracle.put(store, settings, [*steps, {"op": "dispatched"}, {"op": "flush"}], stop="halt")

    def end(properties: bytes) -> bytes:
        """4.x writes no separator behind the last property of a batch and of its elements."""
        return properties if release > "5" else properties.removesuffix(b"\x02")

    model = ModelStore(
        commit_log_bytes=16384, consume_queue_bytes=400, slots=16, entries=40, with_crc=with_crc, release=release
    )
    puts = [step for step in steps if step.get("op") != "tick"]
    for step, answer in zip(puts, answers, strict=True):
        assert answer["appendStatus"] == "PUT_OK", (seed, step, answer)
        if step.get("op") == "batch":
            batch = [
                record(step, answer["storeTimestamp"], body=e["body"], flag=e["flag"],
                       properties=end(encode_properties({"TAGS": e["tags"]})))
                for e in step["messages"]
            ]  # fmt: skip
            done = model.put_batch(batch, end(step["propertiesString"].encode()))
        else:
            done = [model.put(record(step, answer["storeTimestamp"]))]
        assert done[0].physical_offset == answer["physicalOffset"], (seed, step)
        assert done[0].queue_offset == answer["queueOffset"]
        assert ",".join(one.message_id for one in done) == answer["msgId"]
    assert model.differences(store) == [], f"seed {seed}"


ASKED = [case for case in golden_cases(names=("normal-clean", "ha-slave", "lmq")) if case.release > "5"]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("case", ASKED, ids=str)
def test_gets_and_queries_have_the_results_of_java(
    oracle_of: Callable[[str], JavaOracle], case: Case, tmp_path: Path
) -> None:
    rng = random.Random(5)
    model = put_copy(case)
    records = [record for record, _ in model.records.values()]
    gets: list[list[Any]] = []
    times: dict[tuple[str, int], list[int]] = {}
    for topic, queue_id in model.queues:
        top = model.max_offset(topic, queue_id)
        for offset in {0, top - 1, top, top + 1, *(rng.randrange(-1, top + 2) for _ in range(4))}:
            tags = rng.choice([None, "*", "TagA", "TagA || TagB", "a || b", "nothing"])
            gets.append([topic, queue_id, offset, rng.choice([1, 3, 32, 40]), tags])
        times[topic, queue_id] = sorted(rng.choice(records).store_timestamp + rng.randrange(-2, 3) for _ in range(20))
    index: list[list[Any]] = []
    for _ in range(200):
        one = rng.choice(records)
        keys = [one.property_map.get("UNIQ_KEY", "?"), *one.property_map.get("KEYS", "?").split(" ")]
        begin, end = sorted(one.store_timestamp + rng.randrange(-3000, 3000) for _ in range(2))
        index.append([one.topic, rng.choice(keys), rng.choice([1, 2, 64, 100]), rng.choice([0, begin]), end])
    answer = oracle_of(case.release).dump(copy_of(case, tmp_path), case.settings, index=index, times=times, gets=gets)

    for question, *rest in zip(index, answer["index"], strict=True):
        assert rest[0][5] == model.query_offsets(*question), question
    for queue in answer["queues"]:
        for time_ms, boundary, offset in queue["offsetByTime"]:
            where = queue["topic"], queue["queueId"]
            assert offset == model.offset_by_time(*where, time_ms, boundary), (where, time_ms, boundary)
    for row in answer["gets"]:
        topic, queue_id, offset, count, tags = row["query"]
        got = model.get(topic, queue_id, offset, count, tags)
        found = (row["status"], row["nextBeginOffset"], row["minOffset"], row["maxOffset"], row["physicalOffsets"])
        ours = [one.physical_offset for one in got.records]
        assert found == (got.status, got.next_offset, got.min_offset, got.max_offset, ours), row["query"]
