"""One group with a member in Java and members of ours: at rest each queue has one owner, for each strategy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[1] / "client" / "consumer"))

from consumer_cluster import Hand, a_cluster, until
from real_programs import HERE, NEEDS_JAVA, STEP_S, Machine

from mqfast.client import PullConsumer

pytestmark = NEEDS_JAVA
QUEUES = 8


class JavaMember:
    """A lite pull consumer of Java; ``owned`` is what it last said."""

    def __init__(self, machine: Machine, *arguments: str) -> None:
        # Its input stays open until it is to end.
        self._end, mine = os.pipe()
        self._mine = mine
        classes = f"{machine.home / 'classes'}:{machine.home / 'jars'}/*"
        command = ["java", "-Xmx256m", "-XX:TieredStopAtLevel=1", f"-Duser.home={machine.work}"]
        command += [f"-Drocketmq.client.logRoot={machine.work}", "-cp", classes, "Share", *arguments]
        with (machine.work / "Share.log").open("a") as log:
            self.process = subprocess.Popen(command, stdin=self._end, stdout=subprocess.PIPE, stderr=log, text=True)
        self.owned: set[int] = set()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("queues"):
                self.owned = {int(number) for number in re.findall(r"\d+", line)}

    def end(self) -> None:
        os.write(self._mine, b"\n")
        assert self.process.wait(STEP_S) == 0
        self._thread.join(STEP_S)
        for descriptor in (self._end, self._mine):
            os.close(descriptor)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("strategy", ["AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH"])
def test_java_and_our_members_agree_on_the_shares(strategy: str, tmp_path: Path) -> None:
    machine = Machine("5.5.0", tmp_path, HERE / "Share.java")
    with a_cluster(tmp_path) as cluster:
        hand = Hand(cluster)
        hand.send("shared", b"x", queues=QUEUES)
        everything = list(range(QUEUES))

        def owned(*consumers: PullConsumer) -> list[int]:
            return sorted(queue.queue_id for one in consumers for queue in one.assignment())

        def ours() -> PullConsumer:
            return PullConsumer("sharing", hand.namesrv, topics="shared", allocation=strategy)

        with ours() as one:
            until(lambda: owned(one) == everything, "alone")
            java = JavaMember(machine, hand.namesrv, "shared", "sharing", strategy)
            try:
                until(lambda: hand.members("sharing") == 2, "Java is a member", STEP_S)
                until(lambda: sorted([*owned(one), *java.owned]) == everything, "two members", STEP_S)
                with ours() as two:
                    until(lambda: hand.members("sharing") == 3, "three members")
                    until(lambda: sorted([*owned(one, two), *java.owned]) == everything, "shares of three", STEP_S)
                until(lambda: sorted([*owned(one), *java.owned]) == everything, "two members again", STEP_S)
            finally:
                java.end()
            until(lambda: owned(one) == everything, "alone again")
