"""The offset file of broadcasting consumers: Java's client reads what ours wrote, and ours what Java's wrote."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from java_oracle import RELEASES

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, STEP_S, Machine

from mqfast.client.consumer.offset_file import LocalFileOffsetStore
from mqfast.client.values import MessageQueue

pytestmark = NEEDS_JAVA
ID = "10.0.0.1@DEFAULT"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", RELEASES)
def test_java_and_we_share_an_offset_file(release: str, tmp_path: Path) -> None:
    machine = Machine(release, tmp_path, HERE / "LocalOffsets.java")
    root = tmp_path / "offsets"

    def java(*words: str) -> list[str]:
        where = {"rocketmq.client.localOffsetStoreDir": str(root)}
        process = machine.java(ID, "billing", *words, main="LocalOffsets", **where)
        out, _ = process.communicate(timeout=STEP_S)
        assert out.endswith("done\n"), (out, [path.read_text()[-2000:] for path in tmp_path.glob("*.log")])
        return out.split()[:-1]

    file = LocalFileOffsetStore(ID, "billing", root)
    ours = {MessageQueue("orders", "broker-a", number): number * 10 for number in range(4)}
    ours |= {MessageQueue("größe", 'a"b', 7): 2**63 - 1}
    file.save(ours)
    assert java(*(word for queue in ours for word in (*map(str, queue), "?"))) == [str(at) for at in ours.values()]
    # 4.9.7 keeps only the queues that are named.
    kept = [word for queue in ours if queue.queue_id != 1 for word in (*map(str, queue), "?")]
    java(*kept, "orders", "broker-a", "1", "99", "paid", "broker-b", "0", "5")
    theirs = {**ours, MessageQueue("orders", "broker-a", 1): 99, MessageQueue("paid", "broker-b", 0): 5}
    assert file.load() == theirs, file.path.read_bytes()
    file.save({MessageQueue("paid", "broker-b", 0): 6})
    assert java("paid", "broker-b", "0", "?", "orders", "broker-a", "1", "?") == ["6", "99"]
    machine.end_all()
