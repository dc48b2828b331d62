"""Members of ours join and leave a group of Java's and Go's: each queue has one owner at rest, and no message is lost.

200 changes, in the long form (MQFAST_WHOLE=1) only; test_shared_push_group.py has a group at rest in every run.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, Machine, compile_java, older_clients
from sampling import WHOLE
from test_other_languages import build, cache
from test_shared_push_group import HERE, PATIENCE_S, QUEUES, Got, listen, names, probe_until_at_rest

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.delivery import Delivery
from mqfast.client.producer.producer import Producer

__all__ = ["names", "older_clients"]  # fixtures

pytestmark = [*NEEDS_JAVA, pytest.mark.skipif(not WHOLE, reason="minutes long: make interop runs it")]
CHANGES = 200
EACH = 20  # changes until the group is looked at
MOST = 4


@pytest.mark.slow
def test_ours_join_and_leave(names: str, older_clients: Callable[[str], Machine], tmp_path: Path, seed: int) -> None:
    topic, group, chance = "changing", "changing-group", random.Random(seed)
    with AdminClient(names) as admin:
        admin.create_topic(topic, queues=QUEUES)
    machine = older_clients("5.5.0")
    compile_java(machine.home, HERE / "Member.java")
    end, got = tmp_path / "end", Got()
    quick = {"rocketmq.client.rebalance.waitInterval": "1000"}
    others = {"java": machine.java(names, topic, group, "AVG", str(end), main="Member", **quick)}
    if shutil.which("go") is not None:
        program = cache() / "go-flows"
        build(["go", "build", "-o", str(program), "."], HERE / "go_client")
        command = [str(program), names, "member", topic, group, "AVG", str(end)]
        others["go"] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    readers = [threading.Thread(target=listen, args=(one, who, got), daemon=True) for who, one in others.items()]
    for reader in readers:
        reader.start()
    sent: list[str] = []
    stop = threading.Event()
    ours: dict[str, PushConsumer] = {}
    try:
        with Producer("probes", names) as producer:
            broker = producer.queues(topic)[0].broker_name
            probe_until_at_rest(producer, topic, broker, got, set(others))

            def always() -> None:
                while not stop.wait(0.01):
                    body = f"always-{len(sent)}"
                    if producer.send(topic, body).ok:
                        sent.append(body)

            sending = threading.Thread(target=always)
            sending.start()
            try:
                for number in range(CHANGES):
                    change(ours, number, chance, names, topic, group, got)
                    time.sleep(chance.random() * 0.2)
                    if (number + 1) % EACH == 0:
                        owners = probe_until_at_rest(producer, topic, broker, got, {*others, *ours})
                        shares = Counter(owners.values())
                        assert sorted(owners) == list(range(QUEUES))
                        assert max(shares.values()) - min(shares.values()) <= 1, shares
            finally:
                stop.set()
                sending.join()
            limit = time.monotonic() + PATIENCE_S
            while (missing := set(sent) - {body for _, _, body in got.of("always-")}) and time.monotonic() < limit:
                time.sleep(0.1)
            assert not missing, f"{len(missing)} of {len(sent)} messages did not come"
    finally:
        for consumer in ours.values():
            consumer.close()
        end.touch()
        for one in others.values():
            try:
                one.wait(30)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait(10)


def change(
    ours: dict[str, PushConsumer], number: int, chance: random.Random, names: str, topic: str, group: str, got: Got
) -> None:
    """One of ours joins or leaves; at most MOST are there, so that every member has a queue."""
    if len(ours) == MOST or (ours and chance.random() < 0.4):
        ours.pop(chance.choice(sorted(ours))).close()
        return
    who = f"ours-{number}"
    ours[who] = PushConsumer(group, names, from_where="first")

    @ours[who].on(topic)
    def take(message: Delivery) -> None:
        got.add(who, message.queue_id, message.text())

    ours[who].start()
