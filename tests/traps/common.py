"""What the tests of the traps share: a store with small files, its bytes, a kill, the passing of time.

Room: tests/traps. It must never hold an expectation of a single trap.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from conftest import GOLDEN, copy_of_open
from laboratory import lab
from reference import ModelStore

ENGINE = GOLDEN / "golden-engine"
SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 200,
    "maxHashSlotNum": 16,
    "maxIndexNum": 12,
    "retention": "rocketmq",
}
T0 = 1_700_000_000_000
EVER = 2**63 - 1


def model_of_small(**more: Any) -> ModelStore:
    return ModelStore(commit_log_bytes=4096, consume_queue_bytes=200, slots=16, entries=12, **more)


def as_killed(directory: Path, target: Path) -> Path:
    """Copy an open store as a kill of its process would leave it."""
    copy_of_open(directory, target)
    assert (target / "abort").exists()
    return target


def log_bytes(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((directory / "commitlog").iterdir()))


def queue_bytes(directory: Path, topic: str, queue_id: int = 0) -> bytes:
    folder = directory / "consumequeue" / topic / str(queue_id)
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def rest_of_record(record: bytes) -> bytes:
    """A record without the two offsets that depend on where it was put."""
    return record[:20] + record[36:]


def units_of(store: Any, topic: str, queue_id: int = 0) -> list[Any]:
    store.max_offset(topic, queue_id)  # whatever is dispatched when somebody asks is there now
    queue = lab(store).queues.get(topic, queue_id)
    return [queue.unit(offset) for offset in range(queue.min_offset, queue.max_offset)]


def fill(store: Any, count: int, **more: Any) -> list[Any]:
    return [store.put("T", b"%03d" % i + b"x" * 400, keys=f"k{i}", **more) for i in range(count)]


def clean(store: Any) -> int:
    """Delete what is old enough, whatever the hour; returns how many log files went."""
    store.flush()
    store.log.reap()
    assert store.max_offset("T", 0)  # dispatched
    lab(store).retention_at_any_hour()
    return int(store.retention.run_once(store.os_api.now_ms()))


def age(directory: Path, hours: float, only: int | None = None) -> None:
    for path in sorted((directory / "commitlog").iterdir())[:only]:
        at = time.time() - hours * 3600
        os.utime(path, (at, at))
