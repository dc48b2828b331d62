"""The plug-in for pytest: its fixtures, marker and option, in runs of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import NoReturn

import pytest
from sampling import WHOLE

from mqfast.testing import Broker
from mqfast.testing.remote import RemoteBroker

FOUND = any(one.value == "mqfast.testing.plugin" for one in entry_points(group="pytest11"))


def run(folder: Path, text: str, *options: str, expected: int = 0) -> str:
    """Run tests in a process of their own. Returns: what pytest printed."""
    (folder / "test_it.py").write_text(text)
    plugin = [] if FOUND else ["-p", "mqfast.testing.plugin"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options, "test_it.py"]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=400, env={**os.environ, "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout


def test_fixtures_give_brokers(tmp_path: Path) -> None:
    text = """
import os
import pytest

seen = []

def test_sent(rocketmq_broker):
    rocketmq_broker.send("orders", "42")
    rocketmq_broker.assert_sent("orders", body="42", times=1)
    seen.append(rocketmq_broker)

def test_the_next_one_is_empty(rocketmq_broker):
    assert rocketmq_broker is seen[0]
    rocketmq_broker.assert_nothing_sent("orders")

@pytest.mark.rocketmq(topics={"marked": 7})
def test_marked(rocketmq_broker):
    assert rocketmq_broker is seen[0]
    with pytest.raises(Exception, match="from 0 to 6"):
        rocketmq_broker.send("marked", "42", queue_id=7)

@pytest.mark.rocketmq(config={"autoCreateTopicEnable": "false"})
def test_marked_by_settings(rocketmq_broker):
    assert rocketmq_broker is not seen[0]
    with pytest.raises(Exception, match="not exist"):
        rocketmq_broker.send("orders", "42")

def test_own(rocketmq_broker_per_test):
    assert rocketmq_broker_per_test is not seen[0]
    rocketmq_broker_per_test.kill(power_loss=True)
    rocketmq_broker_per_test.restart()

def test_virtual_time(rocketmq_virtual_time):
    rocketmq_virtual_time.send("orders", "42", delay_level=18)
    assert rocketmq_virtual_time.clock.advance(7200) == 1

def test_cluster(rocketmq_cluster):
    assert len(rocketmq_cluster.namesrv_addr.split(";")) == 2
    assert sorted(rocketmq_cluster.addresses) == ["broker-a", "broker-b"]

def test_address(rocketmq_namesrv_addr):
    assert os.environ["NAMESRV_ADDR"] == rocketmq_namesrv_addr == seen[0].namesrv_addr

def test_producer(rocketmq_producer, rocketmq_broker):
    producer = rocketmq_producer("order-service")
    producer.send("orders", b"42")
    rocketmq_broker.wait_for("orders", body=b"42", timeout_s=60)
"""
    assert "9 passed" in run(tmp_path, text, "--strict-markers")


def test_a_test_may_remove_the_variable_of_the_address(tmp_path: Path) -> None:
    text = """
import os

def test_removed(rocketmq_namesrv_addr):
    assert os.environ.pop("NAMESRV_ADDR") == rocketmq_namesrv_addr
"""
    assert "1 passed" in run(tmp_path, text)


def test_the_tests_of_the_documents_pass(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
    names = []
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL)):
        names.append(f"test_block_{number}.py")  # a file of its own: each block runs as it is printed
        (tmp_path / names[-1]).write_text(block)
    assert "7 passed" in run(tmp_path, "", *names, "--strict-markers")


def test_the_same_tests_run_against_a_real_cluster(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.rocketmq(topics={"orders": 4})
@pytest.mark.parametrize("number", range(2))
def test_sent(rocketmq_broker, rocketmq_producer, number):
    rocketmq_broker.assert_nothing_sent("orders")
    rocketmq_broker.send("orders", "42", tags="new", queue_id=3)
    rocketmq_producer("order-service").send("orders", b"43", keys="k")
    rocketmq_broker.wait_for("orders", 2, timeout_s=60)
    rocketmq_broker.assert_sent("orders", body="42", tags="new", times=1)
    rocketmq_broker.assert_sent("orders", body="43", key="k", times=1)
    with pytest.raises(AssertionError, match="expected 3 messages in orders"):
        rocketmq_broker.assert_sent("orders", times=3)

def test_consumed(rocketmq_broker, rocketmq_consumer):
    seen = []
    consumer = rocketmq_consumer("billing", from_where="last")
    consumer.subscribe("bills", lambda message: seen.append(message.body))
    rocketmq_broker.send("bills", "42")
    with consumer:
        rocketmq_broker.wait_members("billing", 1, timeout_s=60)
        rocketmq_broker.send("bills", "43")
        rocketmq_broker.wait_until(lambda: b"43" in seen, timeout_s=60)
        rocketmq_broker.wait_consumed("billing", "bills", timeout_s=30)

def test_faults(rocketmq_broker):
    with rocketmq_broker.faults.lose_answers():
        raise AssertionError("not skipped")

def test_time(rocketmq_virtual_time):
    raise AssertionError("not skipped")

def test_cluster(rocketmq_cluster):
    raise AssertionError("not skipped")
"""
    with Broker() as broker:
        broker.send("orders", "41", "43", "42")
        printed = run(tmp_path, text, "-rs", f"--rocketmq={broker.namesrv_addr}")
        assert "3 passed, 3 skipped" in printed
        assert "--rocketmq: a real cluster has no faults" in printed
        assert "--rocketmq: a real cluster has no virtual time" in printed
        assert len(broker.messages("orders")) == 7


def test_on_a_real_cluster_queries_begin_with_the_test_and_consumers_at_their_offsets() -> None:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(name)

    with Broker() as broker:
        broker.send("orders", "before")
        face = RemoteBroker(broker.namesrv_addr, refuse)
        try:
            face.reset()
            face.send("orders", "now")
            assert [message.body for message in face.messages("orders")] == [b"now"]
            seen: list[bytes] = []
            consumer = face.consumer("billing")
            consumer.on("orders")(lambda message: seen.append(message.body))
            with consumer:
                face.wait_until(lambda: len(seen) == 2, timeout_s=60)
            assert sorted(seen) == [b"before", b"now"]
        finally:
            face.close()


def test_a_wrong_marker_is_an_error(tmp_path: Path) -> None:
    text = """
import pytest

@pytest.mark.rocketmq(topic="orders")
def test_it(rocketmq_broker):
    pass
"""
    assert "marker rocketmq: expected topics=, groups= or config=, found topic" in run(tmp_path, text, expected=1)


def test_a_handler_that_raises_fails_the_test(tmp_path: Path) -> None:
    text = """
import threading

def test_handler(rocketmq_broker, rocketmq_consumer):
    called = threading.Event()
    consumer = rocketmq_consumer("billing")

    @consumer.on("orders")
    def bill(message):
        called.set()
        raise ZeroDivisionError("a fault of the application")

    consumer.start()
    rocketmq_broker.send("orders", "42")
    assert called.wait(30)
"""
    out = run(tmp_path, text, expected=1)
    assert "a handler raised" in out
    assert "a fault of the application" in out
    assert "1 passed, 1 error" in out


def test_the_plugin_loads_no_broker_without_a_fixture(tmp_path: Path) -> None:
    text = """
import sys

def test_it():
    assert "mqfast.testing.plugin" in sys.modules
    assert "mqfast.testing.broker" not in sys.modules
    assert "asyncio" not in sys.modules
"""
    run(tmp_path, text, "-p", "no:asyncio", "-p", "no:anyio")


def test_brokers_of_several_processes_do_not_meet(tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    text = """
import pytest

@pytest.mark.parametrize("number", range(COUNT))
def test_it(rocketmq_broker, number):
    rocketmq_broker.assert_nothing_sent("orders")
    rocketmq_broker.send("orders", str(number))
    rocketmq_broker.assert_sent("orders", body=str(number), times=1)
"""
    count, processes = (128, "16") if WHOLE else (8, "2")
    assert f"{count} passed" in run(tmp_path, text.replace("COUNT", str(count)), "-n", processes)
