"""A Java broker, stock clients and stock tools on our name server: the same output and results as on Java's."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import (
    NEEDS_JAVA,
    STEP_S,
    Cluster,
    Machine,
    OurNamesrv,
    cluster,
    free_port,
    older_clients,
    our_namesrv,
    wait_for,
)

__all__ = ["cluster", "older_clients", "our_namesrv"]  # fixtures

pytestmark = NEEDS_JAVA

LINES = [
    ["clusterList"],
    ["topicList"],
    ["topicList", "-c"],
    ["topicRoute", "-t", "TBW102"],
    ["topicRoute", "-t", "BenchmarkTest"],
    ["topicClusterList", "-t", "TBW102"],
    ["topicStatus", "-t", "TBW102"],
    ["updateKvConfig", "-s", "ns", "-k", "key", "-v", "value"],
    ["deleteKvConfig", "-s", "ns", "-k", "key"],
    ["updateOrderConf", "-t", "Ordered", "-v", "brk:4", "-m", "put"],
    ["updateOrderConf", "-t", "Ordered", "-m", "get"],
    ["updateOrderConf", "-t", "Ordered", "-m", "delete"],
    ["wipeWritePerm", "-b", "brk"],
    ["topicRoute", "-t", "TBW102"],
    ["addWritePerm", "-b", "brk"],
    ["topicRoute", "-t", "TBW102"],
    ["wipeWritePerm", "-b", "nobody"],
    ["updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false"],
]


def flow(machine: Machine, namesrv: str, topic: str, count: int = 20, **properties: str) -> None:
    """Send through this name server and receive each message. Raises: AssertionError where the client did not."""
    process = machine.java(namesrv, topic, f"group-{topic}", str(count), main="Flow", **properties)
    out, _ = process.communicate(timeout=STEP_S)
    logs = "\n".join(path.read_text()[-2000:] for path in sorted(machine.work.glob("Flow*.log"))[-1:])
    assert process.returncode == 0, f"{out}\n{logs}"
    assert "done" in out.splitlines(), f"{out}\n{logs}"  # older clients log to the same stream, also behind it


def said(text: str, address: str) -> list[str]:
    """Without the address, and without the order of topics, which Java's sets do not have."""
    lines = text.replace(address, "NAMESRV").splitlines()
    return sorted(lines)


@pytest.mark.slow
def test_mqadmin_prints_what_it_prints_on_java(cluster: Cluster) -> None:
    java = cluster.admin_lines(cluster.java, LINES)
    ours = cluster.admin_lines(cluster.ours.address, LINES)
    for line, theirs, mine in zip(LINES, java, ours, strict=True):
        if line[0] in ("clusterList",):  # rates and hours of the moment
            columns = (
                [text.split()[:5] for text in mine.splitlines()],
                [text.split()[:5] for text in theirs.splitlines()],
            )
            assert columns[0] == columns[1]
            assert ["golden", "brk", "0", f"127.0.0.1:{cluster.port}"] == columns[0][1][:4]
        else:
            assert said(mine, cluster.ours.address) == said(theirs, cluster.java), line
    assert "TBW102" in ours[1]
    assert "success" in ours[7]
    assert '"perm":5' in ours[13]


@pytest.mark.slow
@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_producers_and_consumers_work_through_it(
    cluster: Cluster, older_clients: Callable[[str], Machine], release: str
) -> None:
    machine = cluster.machine if release == "5.5.0" else older_clients(release)
    flow(machine, cluster.ours.address, f"Flow-{release.replace('.', '-')}")


@pytest.mark.slow
@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "4.9.7"])
def test_clients_with_binary_headers_work_through_it(
    cluster: Cluster, older_clients: Callable[[str], Machine], release: str
) -> None:
    machine = cluster.machine if release == "5.5.0" else older_clients(release)
    topic = f"Binary-{release.replace('.', '-')}"
    binary = {"rocketmq.serialize.type": "ROCKETMQ"}
    flow(machine, cluster.ours.address, topic, **binary)


@pytest.mark.slow
def test_clients_with_tls_work_through_it(cluster: Cluster) -> None:
    if not (cluster.machine.work / "certificate.pem").exists():
        pytest.skip("openssl is not here to make a certificate")
    flow(cluster.machine, cluster.ours.address, "Secret", **{"tls.enable": "true"})


@pytest.mark.slow
def test_a_broker_comes_back_after_its_name_server_was_killed_and_leaves_when_it_stops(
    cluster: Cluster, our_namesrv: Callable[..., OurNamesrv], tmp_path: Path
) -> None:
    first = our_namesrv()
    port = int(first.address.rpartition(":")[2])
    machine = cluster.machine
    before, machine.namesrv = machine.namesrv, first.address
    try:
        settings = {"brokerName": "other", "registerNameServerPeriod": 10_000}
        broker = machine.start_broker(tmp_path / "other", settings, free_port())
        wait_for(lambda: "other" in first.log.read_text() and "registered" in first.log.read_text(), "registration")
        first.stop(signal.SIGKILL)
        second = our_namesrv(port=port)
        assert second.address == first.address
        wait_for(lambda: "name='other', broker_id=0" in second.log.read_text(), "the registration after the restart")
        flow(machine, second.address, "AfterRestart")
        machine.stop(broker)
        wait_for(lambda: "unregistered" in second.log.read_text(), "the end of the broker")
    finally:
        machine.namesrv = before


@pytest.mark.slow
def test_a_killed_broker_is_forgotten_at_once(
    cluster: Cluster, our_namesrv: Callable[..., OurNamesrv], tmp_path: Path
) -> None:
    server = our_namesrv()
    machine = cluster.machine
    before, machine.namesrv = machine.namesrv, server.address
    try:
        broker = machine.start_broker(tmp_path / "killed", {"brokerName": "killed"}, free_port())
        wait_for(lambda: "registered" in server.log.read_text(), "registration")
        broker.kill()
        began = time.monotonic()
        wait_for(lambda: "unregistered" in server.log.read_text(), "the end of the broker")
        assert time.monotonic() - began < 60, "by its connection, not after two minutes of silence"
    finally:
        machine.namesrv = before
