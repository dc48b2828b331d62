"""What the unmodified Java client does when it meets each fault of mqfast.testing, and that it goes on afterwards."""

from __future__ import annotations

import contextlib
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import NEEDS_JAVA, STEP_S, Machine, compile_java, older_clients

from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

__all__ = ["older_clients"]  # a fixture

pytestmark = NEEDS_JAVA
HERE = Path(__file__).resolve().parent
SEND = RequestCode.SEND_MESSAGE_V2
TOPIC = "met"


class Java:
    """A producer and a consumer of Java beside a broker of a test."""

    def __init__(self, machine: Machine, broker: Broker) -> None:
        self.broker = broker
        self._answers: queue.Queue[str] = queue.Queue()
        self.got: list[str] = []
        self._number = 0
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.settimeout(STEP_S)
            port = str(listener.getsockname()[1])
            self._process = machine.java(broker.namesrv_addr, TOPIC, port, main="Meets")
            self._socket, _ = listener.accept()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._answers.get(timeout=STEP_S) == "started"

    def _read(self) -> None:
        with self._socket.makefile(encoding="utf-8") as lines:
            for line in lines:
                kind, _, body = line.strip().partition(" ")
                self.got.append(body) if kind == "got" else self._answers.put(line.strip())

    def send(self) -> tuple[str, str, int]:
        """One more message. Returns: its body, what became of it, and how long that took in ms."""
        self._number += 1
        body = f"m{self._number}"
        self._socket.sendall(f"{body}\n".encode())
        outcome, _, took = self._answers.get(timeout=STEP_S).rpartition(" ")
        return body, outcome, int(took)

    def stored(self, body: str) -> int:
        return sum(one.text() == body for one in self.broker.messages(TOPIC))

    def end(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)
        self._process.wait(STEP_S)
        self._socket.close()


@pytest.fixture(scope="module")
def java(older_clients: Callable[[str], Machine]) -> Iterator[Java]:
    machine = older_clients("5.5.0")
    compile_java(machine.home, HERE / "Meets.java")
    with Broker(topics={TOPIC: 2}) as broker:
        one = Java(machine, broker)
        body, outcome, _ = one.send()
        assert outcome == "SEND_OK"
        broker.wait_until(lambda: body in one.got, timeout_s=STEP_S)
        yield one
        one.end()


# The fault, what a send comes to, and how many copies of its message are stored. After a time-out this client closes
# its connection, so a request that waits in the broker is not served.
TIMED_OUT = ("RemotingTooMuchRequestException -1", "MQClientException 10002")  # the second one after a second attempt
FAULTS: dict[str, tuple[Callable[[Broker], Any], str | tuple[str, ...], int]] = {
    "slow": (lambda b: b.faults.slow(0.3, only=[SEND]), "SEND_OK", 1),
    "too slow": (lambda b: b.faults.slow(4, only=[SEND]), TIMED_OUT, 0),
    "lost answer": (lambda b: b.faults.lose_answers(only=[SEND]), TIMED_OUT, 1),
    "lost request": (lambda b: b.faults.lose_requests(only=[SEND]), TIMED_OUT, 0),
    "busy once": (lambda b: b.faults.busy(1, only=[SEND]), "SEND_OK", 1),
    "busy": (lambda b: b.faults.busy(only=[SEND]), "MQClientException 2", 0),
    "refused": (lambda b: b.faults.answer(13, "CODE: 13", only=[SEND]), "MQBrokerException 13", 0),
    "full disk": (lambda b: b.faults.disk_full(), "MQClientException 14", 0),
    "slow disk": (lambda b: b.faults.slow_disk(0.3), "SEND_OK", 1),
    "duplicates": (lambda b: b.faults.duplicate_deliveries(), "SEND_OK", 1),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_a_send_that_meets_a_fault(java: Java, name: str) -> None:
    fault, expected, stored = FAULTS[name]
    with fault(java.broker):
        body, outcome, took = java.send()
        if name == "duplicates":
            java.broker.wait_until(lambda: java.got.count(body) >= 2, timeout_s=STEP_S)
    assert outcome in ((expected,) if isinstance(expected, str) else expected)
    assert outcome == "SEND_OK" or took < 10_000
    if "slow" in name:
        assert took >= 300
    with contextlib.suppress(AssertionError):
        java.broker.wait_for(TOPIC, stored, body=body, timeout_s=0.2)
    assert java.stored(body) == stored
    goes_on(java)
    if stored:
        java.broker.wait_until(lambda: body in java.got, timeout_s=STEP_S)


def goes_on(java: Java) -> None:
    body, outcome, _ = java.send()
    assert outcome == "SEND_OK"
    java.broker.wait_until(lambda: body in java.got, timeout_s=STEP_S)


@pytest.mark.slow
def test_connections_that_are_cut_and_refused(java: Java) -> None:
    assert java.broker.faults.drop_connections() > 0
    goes_on(java)
    with java.broker.faults.refuse_connections():
        java.broker.faults.drop_connections()
        body, outcome, _ = java.send()
        assert outcome != "SEND_OK"
    assert java.stored(body) == 0
    java.broker.wait_until(lambda: java.send()[1] == "SEND_OK", timeout_s=STEP_S)
    goes_on(java)


@pytest.mark.slow
def test_members_that_are_shuffled_and_a_broker_that_dies(java: Java) -> None:
    java.broker.faults.trigger_rebalance()
    goes_on(java)
    java.broker.kill(power_loss=True)
    _, outcome, _ = java.send()
    assert outcome != "SEND_OK"
    java.broker.restart()
    java.broker.wait_until(lambda: java.send()[1] == "SEND_OK", timeout_s=STEP_S)
    goes_on(java)


@pytest.mark.slow
def test_a_sync_that_fails_until_the_restart(java: Java) -> None:
    with java.broker.faults.failing_flush():
        _, outcome, _ = java.send()
        assert outcome != "SEND_OK"
    java.broker.restart()
    java.broker.wait_until(lambda: java.send()[1] == "SEND_OK", timeout_s=STEP_S)
    goes_on(java)
