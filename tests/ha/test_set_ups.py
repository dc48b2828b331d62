"""The set-ups of docs/ha.md and docs/failover.md run with addresses, directories and sizes of files of their own.

Room: tests/ha. It must never start what the page does not say, but for addresses, directories and sizes of files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from ha.etcd_members import NEEDS_ETCD
from ha.processes import assert_equal_logs
from running import SMALL
from sampling import WHOLE
from waiting import until

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.cli.main import main
from mqfast.client import Producer, PushConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.config import StoreConfig
from mqfast.errors import MqfastError
from mqfast.ha.failover.etcd import Etcd
from mqfast.ha.failover.etcd_state import State
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

T = TypeVar("T")
_DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((_DOCS / name).read_text(encoding="utf-8") for name in ("ha.md", "failover.md"))
SIZES = [f"{name}={size}" for name, size in SMALL.items()]
LOOPBACK = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")


def section(heading: str) -> str:
    return PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def blocks(heading: str) -> list[str]:
    """The code blocks below a heading, those of list items as well."""
    found = re.findall(r"^ *```\n(.*?)^ *```$", section(heading), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(one) for one in found]


def commands(block: str) -> list[list[str]]:
    """The words of each command line of a block."""
    return [shlex.split(line) for line in block.replace("\\\n", " ").splitlines() if line.strip()]


class Machines:
    """The machines of the page: each has an address of one loopback network, and a home directory."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._running: list[subprocess.Popen[bytes]] = []
        self.network = f"127.{random.randrange(16, 250)}.{random.randrange(1, 250)}."

    def home(self, name: str) -> Path:
        place = self._work / name
        place.mkdir(exist_ok=True)
        return place

    def start(self, name: str, words: list[str], listens: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command in the home of a machine, and wait until it listens."""
        home = self.home(name)
        program = [sys.executable, "-m", "mqfast.cli", *words[1:]] if words[0] == "mqfast" else words
        with (home / "log").open("ab") as log:
            one = subprocess.Popen(
                program, stdout=log, stderr=log, cwd=home, env={**os.environ, "HOME": str(home), **environment}
            )
        self._running.append(one)
        host, _, port = listens.rpartition(":")

        def is_there() -> bool:
            assert one.poll() is None, (home / "log").read_text()[-3000:]
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return True
            return False

        until(is_there, f"{words} at {listens}")
        return one

    def end(self, one: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
        one.send_signal(how)
        one.wait(60)

    def end_all(self) -> None:
        for one in self._running:
            if one.poll() is None:
                one.kill()
                one.wait(30)


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    yield made
    made.end_all()


@pytest.fixture
def status(machines: Machines, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What the page's command says of the replication."""
    found = re.search(r"`(mqfast ha status -n [^`]+)`", PAGE)
    assert found

    def ask(*more: str) -> str:
        words = found[1].replace("127.0.0.1", f"{machines.network}1").split()
        capsys.readouterr()
        main([*words[1:], *more])
        return capsys.readouterr().out

    return ask


def is_level(status: Callable[..., str]) -> int:
    """Where both logs end, once master and slave say that they are equal; else 0."""
    rows: dict[str, Any] = {}
    for line in status("--json").splitlines():
        row = json.loads(line)
        rows[row["toldBy"]] = row
    if {name: row["state"] for name, row in rows.items()} != {"master": "IN_SYNC", "slave": "TRANSFER"}:
        return 0
    ends = {row["offset"] for row in rows.values() if row["behind"] == 0}
    return int(ends.pop()) if len(ends) == 1 and all(row["behind"] == 0 for row in rows.values()) else 0


def send(namesrv: str, prefix: str, count: int = 10) -> set[str]:
    """Each of these messages is stored, on every broker that the settings ask for."""
    bodies = [f"{prefix}{number}" for number in range(count)]
    with Producer("makers", namesrv) as producer:
        for body in bodies:
            deadline, found = time.monotonic() + 60, ""
            while found != "SEND_OK":
                assert time.monotonic() < deadline, f"{body}: {found}"
                try:
                    found = producer.send("T", body.encode()).status.name
                except MqfastError as error:
                    found = repr(error)
                    time.sleep(0.1)
    return set(bodies)


def knows_topic(address: str) -> bool:
    async def ask() -> bool:
        client = RemotingClient()
        try:
            return b'"T"' in bytes((await client.call(address, RequestCode.GET_ALL_TOPIC_CONFIG)).body)
        finally:
            await client.close()

    return asyncio.run(ask())


@LOOPBACK
@pytest.mark.slow
def test_master_and_slave_then_a_promotion_by_hand(
    tmp_path: Path, machines: Machines, status: Callable[..., str]
) -> None:
    host = f"{machines.network}1"
    namesrv = f"{host}:9876"
    lines = commands(blocks("Set-up")[0].replace("127.0.0.1", host).replace("/var/lib/mqfast", str(tmp_path)))
    of_names, of_master, of_slave = lines
    more = [f"bindAddress={host}", *SIZES]
    machines.start("n", [*of_names, "--host", host], namesrv)
    master = machines.start("m", [*of_master, *more], f"{host}:10911")
    slave = machines.start("s", [*of_slave, *more], f"{host}:10921")
    sent = send(namesrv, "first")
    until(lambda: is_level(status), "a slave that has everything")
    heads, *rows = status().splitlines()
    assert re.split(r"  +", heads.strip()) == re.split(r"  +", blocks("Watching")[0].splitlines()[0])
    assert ["in sync" in rows[0], "follows" in rows[1]] == [True, True]

    until(lambda: knows_topic(f"{host}:10921"), "the topics at the slave")
    machines.end(master)
    received: set[str] = set()
    consumer = PushConsumer("readers", namesrv, from_where="first")
    consumer.subscribe("T", lambda message: received.add(bytes(message.body).decode()))
    with consumer:
        until(lambda: received == sent, "all messages from the slave")

    machines.end(slave)
    settings = [word for word in of_slave if "=" in word] + [*more, f"namesrvAddr={namesrv}"]
    conf = machines.home("s") / "broker.conf"
    conf.write_text("\n".join(settings))
    ((plan,), (promote,)) = (commands(block) for block in blocks("Promotion by hand"))
    done = subprocess.run(
        [sys.executable, "-m", "mqfast.cli", *plan[1:]],
        cwd=conf.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "3. start as master" in done.stderr
    assert (tmp_path / "b" / "epochFileCheckpoint").read_text().endswith("\n0-0\n"), "a plan begins no epoch"
    promoted = machines.start("s", promote, f"{host}:10921")
    send(namesrv, "second")
    machines.end(promoted)
    own = [line for line in settings if not line.startswith(("brokerRole=", "brokerId="))]
    conf.write_text("\n".join([*own, "brokerRole=ASYNC_MASTER", "brokerId=0"]))
    promoted = machines.start("s", ["mqfast", "broker", "-c", "broker.conf"], f"{host}:10921")
    back = machines.start("m", [*of_master, *more, "brokerRole=SLAVE", "brokerId=1"], f"{host}:10911")
    send(namesrv, "third")
    end = until(lambda: is_level(status), "the old master as a slave")
    for one in (back, promoted):
        machines.end(one)
    assert_equal_logs(tmp_path / "a", tmp_path / "b", end)


@LOOPBACK
@NEEDS_ETCD
@pytest.mark.skipif(not WHOLE, reason="half a minute: make ha")
def test_fail_over_with_three_members_of_etcd(machines: Machines, status: Callable[..., str]) -> None:
    of_etcd, of_broker = (block.replace("10.0.0.", machines.network) for block in blocks("Fail-over by leases")[:2])
    first = f"{machines.network}11"
    for number in (1, 2, 3):
        own = f"{machines.network}1{number}"
        name, cluster, *addresses = of_etcd.splitlines()
        lines = [name.replace("e1", f"e{number}"), cluster, *(line.replace(first, own) for line in addresses)]
        assert len(addresses) == 4
        environment = dict(line.split("=", 1) for line in lines)
        data = str(machines.home(f"e{number}") / "data")
        machines.start(f"e{number}", ["etcd"], f"{own}:2379", **environment, ETCD_DATA_DIR=data)
    namesrv = f"{machines.network}1:9876"
    machines.start("n", ["mqfast", "namesrv", "--host", f"{machines.network}1"], namesrv)
    brokers = {}

    def start(number: int) -> None:
        host = f"{machines.network}2{number}"
        text = of_broker.replace("bindAddress=0.0.0.0", f"bindAddress={host}")
        text = text.replace("brokerId=1", f"brokerId={number}") + "\n".join(SIZES)
        (machines.home(f"b{number}") / "broker.conf").write_text(text)
        brokers[number] = machines.start(f"b{number}", ["mqfast", "broker", "-c", "broker.conf"], f"{host}:10911")

    def master() -> str | None:
        with contextlib.suppress(MqfastError), AdminClient(namesrv) as admin:
            return dict(admin.clusters()["DefaultCluster"]["broker-a"]).get(0)
        return None

    def in_sync() -> set[int]:
        etcd = Etcd([f"{first}:2379"], 5.0)
        try:
            (found,) = etcd.read("/mqfast/DefaultCluster/broker-a/state")
            return set() if found is None else set(State.decoded(found).in_sync)
        finally:
            etcd.close()

    start(1)
    start(2)
    until(lambda: in_sync() == {1, 2}, "both brokers in sync")
    assert master() == f"{machines.network}21:10911", "the first master has brokerId=1"
    send(namesrv, "first")
    machines.end(brokers[1], signal.SIGKILL)
    send(namesrv, "second")
    assert master() == f"{machines.network}22:10911"
    start(1)
    until(lambda: in_sync() == {1, 2}, "the old master in sync again")
    send(namesrv, "third")
    end = until(lambda: is_level(status), "both logs equal")
    for number in (1, 2):
        machines.end(brokers[number])
    assert_equal_logs(machines.home("b1") / "store", machines.home("b2") / "store", end)


def test_the_settings_of_the_page_are_those_of_the_broker() -> None:
    """Each has an effect, and the default that the page says; no setting of replication is left out."""
    config = BrokerConfig()
    known: dict[str, object] = {name: config[name] for name in config.names()}
    known["brokerRole"] = StoreConfig().broker_role
    computed = {
        "haListenPort": "`listenPort` + 1",
        "haMasterAddress": "from the name servers",
        "haBindAddress": "as `bindAddress`",
        "haAllowedAddresses": "by the rules [above](#who-may-follow)",
    }
    shown: set[str] = set()
    for names, default in re.findall(r"^\| (`\w.*?) \| (.+?) \| ", section("Settings"), re.MULTILINE):
        cells = re.findall(r"`(\w+)`", names)
        values = default.split(", ") if ", " in default else [default] * len(cells)
        assert len(values) == len(cells), names
        for name, value in zip(cells, values, strict=True):
            shown.add(name)
            assert config.acts(name), name
            if name in computed:
                assert value == computed[name]
                continue
            expected = "" if value == "none" else value.strip("`")
            found = known[name]
            assert (str(found).lower() if isinstance(found, bool) else str(found)) == expected, name
    assert {name for name in config.names() if name.startswith("ha") and config.acts(name)} <= shown
    assert len(shown) > 20
