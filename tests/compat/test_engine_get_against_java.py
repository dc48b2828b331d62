"""The get for a broker and RocketMQ's getMessage on the same store: the same answers.

Room: tests/compat. The plain model of these rules: ``tests/store/test_engine_get.py``.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from java_oracle import JavaOracle

import mqfast
from mqfast.properties import jhash
from mqfast.store.engine import GetLimits, TagCodes

SIZES = {"mappedFileSizeCommitLog": 16384, "mappedFileSizeConsumeQueue": 400, "maxHashSlotNum": 16, "maxIndexNum": 40}
TAGS = ["A", "B", "AaAa", "BBBB", None]
FILTERS = [None, "A", "A || BBBB", "none"]
# By settings: what the limits are called there, and what total memory makes the same estimate.
LIMITS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"accessMessageInMemoryMaxRatio": 0}, {"access_message_in_memory_max_ratio": 0}),
    (
        {
            "accessMessageInMemoryMaxRatio": 0,
            "maxTransferBytesOnMessageInDisk": 3000,
            "maxTransferCountOnMessageInDisk": 5,
            "maxFilterMessageCount": 16000,
        },
        {
            "access_message_in_memory_max_ratio": 0,
            "max_transfer_bytes_on_message_in_disk": 3000,
            "max_transfer_count_on_message_in_disk": 5,
        },
    ),
    (
        {"maxTransferBytesOnMessageInMemory": 2000, "maxTransferCountOnMessageInMemory": 4},
        {"max_transfer_bytes_on_message_in_memory": 2000, "max_transfer_count_on_message_in_memory": 4},
    ),
]


def known(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name != "maxFilterMessageCount"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", range(len(LIMITS)))
def test_every_answer_is_javas(java_oracle: JavaOracle, tmp_path: Path, case: int) -> None:
    settings, named = LIMITS[case]
    rng = random.Random(case)
    path = tmp_path / "store"
    with mqfast.open(path, **SIZES) as store:
        for _ in range(150):
            store.put("T", rng.randbytes(rng.choice([0, 10, 500, 3000])), rng.randrange(2), rng.choice(TAGS))
    questions: list[list[Any]] = [["T", 0, 0, 32, None], ["Unknown", 0, 3, 32, None], ["T", 7, 0, 32, None]]
    questions += [
        ["T", rng.randrange(2), rng.randrange(-2, 90), rng.choice([0, 1, 3, 32, 100]), rng.choice(FILTERS)]
        for _ in range(200)
    ]
    answers = java_oracle.dump(path, SIZES | known(settings), gets=questions)["gets"]
    with mqfast.open(path, **SIZES) as store:
        limits = GetLimits(**named)
        for (topic, queue_id, offset, count, tags), java in zip(questions, answers, strict=True):
            wanted = None if tags is None else TagCodes([jhash(tag.strip()) for tag in tags.split("||")])
            with store.engine.get_records(topic, queue_id, offset, count, filter=wanted, limits=limits) as found:
                ours = {
                    "query": java["query"],
                    "status": found.status.name,
                    "nextBeginOffset": found.next_offset,
                    "minOffset": found.min_offset,
                    "maxOffset": found.max_offset,
                    "physicalOffsets": [message.physical_offset for message in found.messages],
                    "suggestPullingFromSlave": found.suggest_pulling_from_slave,
                }
            assert ours == java, (settings, java["query"])


def test_the_bound_on_units_is_javas(java_oracle: JavaOracle, tmp_path: Path) -> None:
    """16,000 bytes of units, or those of as many messages as are asked for."""
    sizes = SIZES | {"mappedFileSizeConsumeQueue": 20 * 3000, "mappedFileSizeCommitLog": 1 << 20}
    path = tmp_path / "store"
    with mqfast.open(path, **sizes) as store:
        store.put_many("T", [b""] * 2500, tags="A")
    questions = [["T", 0, offset, count, "none"] for offset in (0, 1, 1500) for count in (1, 32, 799, 800, 801, 1000)]
    answers = java_oracle.dump(path, sizes, gets=questions)["gets"]
    with mqfast.open(path, **sizes) as store:
        for (topic, queue_id, offset, count, tags), java in zip(questions, answers, strict=True):
            found = store.engine.get_records(topic, queue_id, offset, count, filter=TagCodes([jhash(tags)]))
            assert (found.status.name, found.next_offset) == (java["status"], java["nextBeginOffset"]), java["query"]
