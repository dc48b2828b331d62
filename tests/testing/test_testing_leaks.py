"""What a test broker leaves behind: nothing. Many of them, forks, killed processes, whole clusters."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from asking import call, send
from sampling import WHOLE

from mqfast.errors import StoreForked, StoreNotFound
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker
from mqfast.testing.scratch_directories import _parent

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def held() -> dict[str, set[str]]:
    """Threads, descriptors, mappings and directories of test brokers that this process has."""
    gc.collect()
    descriptors = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            descriptors.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:
            continue  # that of the listing
    mappings = {
        line.split(maxsplit=5)[5] for line in Path("/proc/self/maps").read_text().splitlines() if "mqfast-test-" in line
    }
    return {
        "threads": {thread.name for thread in threading.enumerate()},
        "descriptors": descriptors,
        "mappings": mappings,
        "directories": {name for name in os.listdir(_parent()) if name.startswith("mqfast-test-")},
    }


@LINUX
def test_many_brokers_leave_nothing() -> None:
    with Broker(topics=["orders"]) as broker:  # what is made once in a process
        broker.send("orders", "42")
    before = held()
    for _ in range(500 if WHOLE else 20):
        with Broker(topics=["orders"]) as broker:
            address = broker.addresses["broker-a"]
            broker.send("orders", "42")
            broker.send("later", "43", delay_s=60)
            send(address, "orders", b"44")
            broker.prepare_reset()
            broker.reset()
            broker.send("orders", "42")
    # A directory of another process may have come or gone.
    after = held()
    for kind in ("threads", "descriptors", "mappings"):
        assert after[kind] - before[kind] == set(), kind
    ours = {name for name in after["directories"] - before["directories"] if _is_ours(name)}
    assert ours == set()


def _is_ours(name: str) -> bool:
    return not os.path.exists(os.path.join(_parent(), name, "in-use"))


@LINUX
def test_a_broker_that_was_killed_or_failed_leaves_nothing() -> None:
    logging.disable(logging.CRITICAL)  # records that pytest keeps hold the errors, and those the stores
    with Broker() as broker:
        broker.send("orders", "42")
    before = held()
    with Broker(topics=["orders"]) as broker:
        broker.send("orders", "42")
        broker.kill(power_loss=True)
        broker.restart()
        with broker.faults.failing_flush():
            assert send(broker.addresses["broker-a"], "orders", b"43").code != 0
        broker.kill()
    with Broker(topics=["orders"]) as broker:
        broker.stop()
    with pytest.raises(StoreNotFound), Broker(store="/dev/null"):
        pass
    after = held()
    for kind in ("threads", "descriptors", "mappings"):
        assert after[kind] - before[kind] == set(), kind


def test_brokers_beside_each_other() -> None:
    brokers = [Broker(topics=["orders"]).start() for _ in range(4)]
    for number, broker in enumerate(brokers):
        broker.send("orders", str(number))
    for number, broker in enumerate(brokers):
        broker.assert_sent("orders", body=str(number), times=1)
        assert len(broker.messages("orders")) == 1
        broker.close()


def test_a_cluster_serves_without_one_name_server_and_one_broker() -> None:
    with Broker(brokers=2, name_servers=2, topics={"orders": 2}) as cluster:
        results = cluster.send("orders", *map(str, range(8)))
        assert {result.message_queue.broker_name for result in results} == {"broker-a", "broker-b"}
        first, second = cluster.namesrv_addr.split(";")
        cluster.kill("namesrv-1")
        route = call(second, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").body
        assert all(address.encode() in route for address in cluster.addresses.values())
        cluster.kill("broker-a")
        cluster.wait_until(
            lambda: (
                cluster.addresses["broker-a"].encode()
                not in call(second, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").body
            )
        )
        assert send(cluster.addresses["broker-b"], "orders", b"9").code == 0
        assert {one.queue.broker_name for one in cluster.messages("orders")} == {"broker-b"}
        cluster.restart("namesrv-1")
        cluster.restart("broker-a")
        cluster.wait_for("orders", 9, timeout_s=60)
        cluster.reset()
        assert cluster.messages("orders") == []
        assert len(call(first, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").body) > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_gets_an_error_and_the_parent_is_unaffected() -> None:
    with Broker(topics=["orders"]) as broker:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                broker.send("orders", "43")
            except StoreForked:
                os.write(writer, broker.namesrv_addr.encode())  # for clients of its own
            broker.close()
            os._exit(0)
        os.close(writer)
        assert os.read(reader, 100) == broker.namesrv_addr.encode()
        os.close(reader)
        assert os.waitpid(pid, 0)[1] == 0
        broker.send("orders", "42")
        broker.assert_sent("orders", body="42", times=1)


def child(text: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_that_ends_without_a_close_leaves_no_directory() -> None:
    text = (
        "from mqfast.testing import Broker\n"
        "broker = Broker(topics=['orders']).start(); broker.send('orders', '42')\n"
        "print(broker._place.path)\n"
    )
    with child(text) as process:
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0
    assert err == ""
    assert out.startswith(_parent())
    assert not os.path.exists(out.strip())


def test_directories_of_killed_processes_are_removed_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import time\n"
        "from mqfast.testing import Broker\n"
        "broker = Broker().start(); print(broker._place.path, flush=True)\n"
        "time.sleep(60)\n"
    )
    with child(text) as process:
        assert process.stdout is not None
        path = process.stdout.readline().strip()
        old = time.time() - 3600
        os.utime(path, (old, old))
        monkeypatch.setattr("mqfast.testing.scratch_directories._swept", set())
        with Broker():
            assert os.path.exists(path)  # its process lives
        process.send_signal(signal.SIGKILL)
        process.wait()
    monkeypatch.setattr("mqfast.testing.scratch_directories._swept", set())
    os.utime(path, (old, old))
    with Broker():
        assert not os.path.exists(path)
