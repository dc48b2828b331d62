"""Real programs of Apache RocketMQ beside ours: Java name servers, brokers, clients and the admin tool.

Room: tests/interop. Jars come from Maven Central by name, as for the golden stores. Every process that is started is
ended. Without Java all of it is skipped.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "golden" / "make"), str(HERE.parent / "compat")]

from java_oracle import NEWEST, JavaOracle  # noqa: E402
from make import STEP_S, Machine, compile_java, free_port, wait_for  # noqa: E402

from mqfast.client.admin.admin_client import AdminClient  # noqa: E402
from mqfast.errors import MqfastError  # noqa: E402

_there, _why = JavaOracle.available()
NEEDS_JAVA = [pytest.mark.interop, pytest.mark.skipif(not _there, reason=_why or "Java is there")]


def wait_for_offsets(namesrv: str, topic: str, group: str) -> None:
    """Wait until the broker has the offset of the group in each queue of the topic and of its retry topic."""

    def are_committed() -> bool:
        try:
            ends = {queue: stats.max_offset for queue, stats in admin.topic_stats(topic).items()}
            return (
                admin.committed(group, topic) == ends
                and min(admin.committed(group, f"%RETRY%{group}").values(), default=-1) >= 0
            )
        except MqfastError:  # the retry topic is not there yet
            return False

    with AdminClient(namesrv) as admin:
        wait_for(are_committed, f"offsets of group {group}")


class OurNamesrv:
    """``mqfast namesrv`` as a process."""

    def __init__(self, work: Path, *settings: str, port: int = 0) -> None:
        self.log = work / f"mqfast-namesrv-{time.monotonic_ns()}.log"
        command = [sys.executable, "-m", "mqfast.cli", "namesrv", "-p", str(port)]
        paths = [f"kvConfigPath={work}/kvConfig.json", f"configStorePath={work}/namesrv.properties"]
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*command, *paths, *settings], stdout=subprocess.PIPE, stderr=log, text=True
            )
        assert self.process.stdout is not None
        self.banner = self.process.stdout.readline()
        found = re.search(r"NAMESRV_ADDR=(\S+)", self.banner)
        assert found, f"{self.banner!r}\n{self.log.read_text()}"
        self.address = found[1]

    def stop(self, how: int = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        code = self.process.wait(200)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def certificate(work: Path) -> list[str]:
    """Settings of TLS with a certificate made now; none where there is no openssl."""
    if shutil.which("openssl") is None:
        return []
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=namesrv"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        [*command, "-keyout", "key.pem", "-out", "certificate.pem"], cwd=work, check=True, capture_output=True
    )
    return [f"tls.server.certPath={work}/certificate.pem", f"tls.server.keyPath={work}/key.pem"]


class Cluster:
    """A Java name server, ours, and a Java broker that registers with both."""

    def __init__(self, work: Path) -> None:
        self.machine = Machine(NEWEST, work, HERE / "Flow.java")
        self.ours = OurNamesrv(work, *certificate(work))
        try:
            self.machine.start_namesrv()
            self.java = self.machine.namesrv
            self.machine.namesrv = f"{self.java};{self.ours.address}"
            self.port = free_port()
            self.broker = self.machine.start_broker(work / "store", {"registerNameServerPeriod": 10_000}, self.port)
            compile_java(self.machine.home, HERE / "Admin.java")
            for address in (self.java, self.ours.address):
                wait_for(lambda a=address: "brk" in self.admin_lines(a, [["clusterList"]])[0], "registration")
        except BaseException:
            self.end()
            raise

    def admin_lines(self, namesrv: str, lines: list[list[str]]) -> list[str]:
        """What stock mqadmin prints for each of several command lines, all in one JVM."""
        words = [word for line in lines for word in (*line, "-n", namesrv, "--")]
        process = self.machine.java(*words, main="Admin")
        out, _ = process.communicate(timeout=STEP_S)
        found = out.split("==\n")[:-1]
        assert len(found) == len(lines), out
        return found

    def end(self) -> None:
        self.machine.end_all()
        if self.ours.process.poll() is None:
            self.ours.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.end()


@pytest.fixture
def our_namesrv(tmp_path: Path) -> Iterator[Callable[..., OurNamesrv]]:
    started: list[OurNamesrv] = []

    def start(*settings: str, port: int = 0) -> OurNamesrv:
        started.append(OurNamesrv(tmp_path, *settings, port=port))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.stop()


@pytest.fixture(scope="session")
def older_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Machine]]:
    machines: dict[str, Machine] = {}

    def machine(release: str) -> Machine:
        if release not in machines:
            machines[release] = Machine(release, tmp_path_factory.mktemp(f"client-{release}"), HERE / "Flow.java")
        return machines[release]

    yield machine
    for one in machines.values():
        one.end_all()
