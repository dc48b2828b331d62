"""One group with members of Java, Go and ours that push: each queue has one owner at rest, for each common strategy."""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, Machine, compile_java, older_clients
from running import BrokerProcess
from test_other_languages import build, cache

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.producer.producer import Producer
from mqfast.client.values import MessageQueue

__all__ = ["older_clients"]  # a fixture

pytestmark = NEEDS_JAVA

HERE = Path(__file__).resolve().parent
QUEUES = 8
PATIENCE_S = 120


class Got:
    """Who received which message from which queue. Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.rows: list[tuple[str, int, str]] = []

    def add(self, who: str, queue_id: int, body: str) -> None:
        with self._lock:
            self.rows.append((who, queue_id, body))

    def of(self, start: str) -> list[tuple[str, int, str]]:
        with self._lock:
            return [row for row in self.rows if row[2].startswith(start)]


def listen(process: subprocess.Popen[str], who: str, got: Got) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        queue_id, _, body = line.strip().partition(" ")
        if queue_id.isdigit():
            got.add(who, int(queue_id), body)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with BrokerProcess(tmp_path_factory.mktemp("broker"), brokerIP1="127.0.0.1") as one:
        yield one.namesrv


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_every_queue_has_one_owner(
    names: str, older_clients: Callable[[str], Machine], tmp_path: Path, strategy: str
) -> None:
    topic = f"shared-{strategy}"
    group = f"{topic}-group"
    with AdminClient(names) as admin:
        admin.create_topic(topic, queues=QUEUES)
    machine = older_clients("5.5.0")
    compile_java(machine.home, HERE / "Member.java")
    end, got = tmp_path / "end", Got()
    quick = {"rocketmq.client.rebalance.waitInterval": "1000"}
    others = {"java": machine.java(names, topic, group, strategy, str(end), main="Member", **quick)}
    if strategy != "CONSISTENT_HASH" and shutil.which("go") is not None:  # Go's ring has another hash
        program = cache() / "go-flows"
        build(["go", "build", "-o", str(program), "."], HERE / "go_client")
        command = [str(program), names, "member", topic, group, strategy, str(end)]
        others["go"] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    readers = [threading.Thread(target=listen, args=(one, who, got), daemon=True) for who, one in others.items()]
    for reader in readers:
        reader.start()
    ours = {}
    for who in ("ours-1", "ours-2"):
        ours[who] = PushConsumer(group, names, from_where="first", allocation=strategy)

        @ours[who].on(topic)
        def take(message: Delivery, who: str = who) -> None:
            got.add(who, message.queue_id, message.text())

    try:
        with Producer("probes", names) as producer, ours["ours-1"], ours["ours-2"]:
            broker = producer.queues(topic)[0].broker_name
            expected = {*others, *ours} if strategy != "CONSISTENT_HASH" else set()
            owners = probe_until_at_rest(producer, topic, broker, got, expected)
            assert sorted(owners) == list(range(QUEUES))
            if strategy == "AVG":
                shares = Counter(owners.values())
                assert max(shares.values()) - min(shares.values()) <= 1, shares
            for who, consumer in ours.items():
                mine = {queue.queue_id for queue in consumer.assignment() if queue.topic == topic}
                assert mine == {queue_id for queue_id, owner in owners.items() if owner == who}
    finally:
        end.touch()
        for one in others.values():
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait(10)
        for reader in readers:
            reader.join(10)


def probe_until_at_rest(producer: Producer, topic: str, broker: str, got: Got, expected: set[str]) -> dict[int, str]:
    """Messages to every queue, in rounds, until three rounds in a row have the same one owner for each queue, and every
    member of ``expected`` owns one. Returns: queue id -> owner.
    """
    limit = time.monotonic() + PATIENCE_S
    same, before, number = 0, dict[int, str](), 0
    while time.monotonic() < limit:
        name = f"round-{number:04d}-"
        number += 1
        for queue_id in range(QUEUES):
            producer.send(topic, f"{name}{queue_id}", queue=MessageQueue(topic, broker, queue_id))
        while len({body for _, _, body in got.of(name)}) < QUEUES and time.monotonic() < limit:
            time.sleep(0.02)
        rows = got.of(name)
        owners: dict[int, set[str]] = defaultdict(set)
        for who, queue_id, body in rows:
            assert body == f"{name}{queue_id}"
            owners[queue_id].add(who)
        now = {queue_id: next(iter(whos)) for queue_id, whos in owners.items() if len(whos) == 1}
        is_once = len(rows) == QUEUES and len(now) == QUEUES
        same = same + 1 if is_once and now == before and expected <= set(now.values()) else 0
        before = now
        if same == 3:
            return now
        time.sleep(0.3)
    raise AssertionError(f"not at rest in {PATIENCE_S} s: {before}, expected {expected}")
