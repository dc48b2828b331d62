"""The stock client of Go while servers of ours are killed, come back, or stay away: what was acknowledged is consumed.

Room: tests/interop. The client is one process that sends and consumes the whole time.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from free_ports import free_port
from our_broker import OurBroker
from real_programs import OurNamesrv
from running import SMALL, BrokerProcess
from test_other_languages import FLOWS_S, HERE, build, cache

pytestmark = [
    pytest.mark.interop,
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("go") is None, reason="no Go"),
]


@pytest.fixture(scope="module")
def flows() -> str:
    program = cache() / "go-flows-of-servers-that-end"
    build(["go", "build", "-o", str(program), "."], HERE / "go_client")
    return str(program)


class Client:
    """The client's process, which has sent a hundred messages when this returns."""

    def __init__(self, program: str, namesrv: str) -> None:
        self.process = subprocess.Popen(
            [program, namesrv, "steady"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line == "running\n", (line, self.process.communicate(timeout=200))

    def ends_well(self) -> None:
        out, said = self.process.communicate(timeout=FLOWS_S)
        assert self.process.returncode == 0, f"{out}\n{said[-3000:]}"
        assert out.splitlines()[-1] == "ok steady"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


@pytest.fixture
def clients() -> Iterator[list[Client]]:
    started: list[Client] = []
    yield started
    for one in started:
        one.end()


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_broker_that_ends_and_comes_back(tmp_path: Path, flows: str, clients: list[Client], how: int) -> None:
    with BrokerProcess(tmp_path) as one:
        clients.append(Client(flows, one.namesrv))
        one.end(how)
        one.start()
        clients[0].ends_well()


def test_two_brokers_and_two_name_servers_of_which_one_ends(tmp_path: Path, flows: str, clients: list[Client]) -> None:
    """The producer goes on with the other broker; what the dead one has acknowledged comes when it is back."""
    names = [OurNamesrv(tmp_path), OurNamesrv(tmp_path)]
    addresses = ";".join(one.address for one in names)

    def broker(name: str, port: int) -> OurBroker:
        settings = {"brokerName": name, "listenPort": port, "storePathRootDir": tmp_path / name, **SMALL}
        return OurBroker(tmp_path, "-n", addresses, *(f"{key}={value}" for key, value in settings.items()))

    ports = {"a": free_port(), "b": free_port()}
    brokers = {name: broker(name, port) for name, port in ports.items()}
    try:
        clients.append(Client(flows, addresses))
        brokers["b"].stop(signal.SIGKILL)
        names[0].stop()
        brokers["b"] = broker("b", ports["b"])
        clients[0].ends_well()
    finally:
        for one in brokers.values():
            if one.process.poll() is None:
                one.stop()
        for server in names:
            if server.process.poll() is None:
                server.stop()


def test_consumers_of_a_group_that_join_and_leave(tmp_path: Path, flows: str) -> None:
    with BrokerProcess(tmp_path) as one:
        done = subprocess.run(
            [flows, one.namesrv, "rebalance"], capture_output=True, text=True, timeout=FLOWS_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
