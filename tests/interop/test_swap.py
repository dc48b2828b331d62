"""A Java broker 5.5.0 and ours take turns on one store; stock Java clients with signatures and TLS on ours."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, NEWEST, STEP_S, Machine, OurNamesrv, certificate, compile_java

import mqfast

pytestmark = NEEDS_JAVA
SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


def a_port() -> int:
    """A free port with the ports around it that a broker takes; not from the range that other runs count up from."""
    while True:
        port = random.randrange(33_000, 60_000)
        with contextlib.ExitStack() as taken:
            try:
                for number in (port - 2, port, port + 1):
                    taken.enter_context(socket.socket()).bind(("127.0.0.1", number))
            except OSError:
                continue
            return port


class OurBroker:
    """``mqfast broker`` as a process."""

    def __init__(self, work: Path, *arguments: str) -> None:
        self.log = work / f"mqfast-broker-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mqfast.cli", "broker", *arguments],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.banner = ""
        while "access control" not in self.banner:
            line = self.process.stdout.readline()
            assert line, self.log.read_text()
            self.banner += line

    def stop(self, how: int = signal.SIGTERM) -> float:
        began = time.monotonic()
        self.process.send_signal(how)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return time.monotonic() - began


class Setup:
    def __init__(self, work: Path) -> None:
        self.work = work
        self.machine = Machine(NEWEST, work, HERE / "Flow.java")
        compile_java(self.machine.home, HERE / "Swap.java")
        self.names: OurNamesrv | None = None
        self.brokers: list[OurBroker] = []

    def start_names(self, *settings: str) -> str:
        self.names = OurNamesrv(self.work, *settings)
        self.machine.namesrv = self.names.address
        return self.names.address

    def broker(self, *arguments: str) -> OurBroker:
        self.brokers.append(OurBroker(self.work, *arguments))
        return self.brokers[-1]

    def swap(self, prefix: str, count: int, level: int = 0, wanted: int | None = None, **more: str) -> list[str]:
        """What a Java client sends and receives; the words behind ``failed`` where it cannot."""
        expected = count if wanted is None else wanted
        process = self.machine.java(
            self.machine.namesrv, "SwapTopic", "swap-group", prefix, str(count), str(level), str(expected),
            main="Swap", **more,
        )  # fmt: skip
        out, _ = process.communicate(timeout=STEP_S)
        found = re.search(r"^(?:received|failed) (.*)", out, re.MULTILINE)
        assert found, out
        return sorted(filter(None, found[1].split(","))) if found[0].startswith("received") else [found[0]]

    def end(self) -> None:
        self.machine.end_all()
        for one in self.brokers:
            if one.process.poll() is None:
                one.stop()
        if self.names is not None and self.names.process.poll() is None:
            self.names.stop()


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.end()


def numbered(prefix: str, count: int) -> list[str]:
    return sorted(f"{prefix}{n}" for n in range(count))


def test_a_java_broker_and_ours_take_turns_on_one_store(setup: Setup) -> None:
    """Each consumer goes on where the one before it stopped, and a message that waits comes from the next broker."""
    names = setup.start_names()
    store, port = setup.work / "store", a_port()
    more = {**SIZES, "flushConsumerOffsetInterval": 1000, "timerWheelEnable": "true", "mappedFileSizeTimerLog": 10_400}
    java = setup.machine.start_broker(store, more, port)
    conf = str(setup.work / "store.properties")
    until(lambda: "brk" in registered(names))
    # Delayed by 30 s, timed to 40 s, and half messages that stay undecided until their producer is asked by ours.
    first = setup.swap("a", 10, level=4, wanted=10, transactions="true", timed="40000")
    assert first == numbered("a", 10)
    setup.machine.stop(java)

    checked = subprocess.run(
        [sys.executable, "-m", "mqfast.cli", "broker", "-c", conf, "--check-store", str(store)],
        capture_output=True, text=True, timeout=STEP_S, check=False,
    )  # fmt: skip
    assert "note  10 delayed messages wait, and go on here" in checked.stdout
    assert "note  10 timed messages are parked, and go on here" in checked.stdout
    assert "half messages" in checked.stdout
    assert "STOP" not in checked.stdout, checked.stdout
    ours = setup.broker("-c", conf)
    at_least = {name for kind in ("b", "alater", "atimed", "ahalf", "bhalf") for name in numbered(kind, 10)}
    second = setup.swap("b", 10, level=5, wanted=50, transactions="true", commits="true", timed="70000")
    assert at_least <= set(second)
    assert ours.stop() < 2

    java = setup.machine.start_broker(store, more, port)
    until(lambda: "brk" in registered(names))
    left = {*numbered("blater", 10), *numbered("btimed", 10)} - set(second)
    third = setup.swap("c", 10, wanted=10 + len(left))
    assert third == sorted({*numbered("c", 10), *left})
    everything = {*first, *at_least, *numbered("blater", 10), *numbered("btimed", 10), *third}
    setup.machine.stop(java)
    with mqfast.StoreReader(store) as reader:
        queues = [one for one in reader.queues() if one.topic == "SwapTopic"]
        bodies = [bytes(m.body).decode() for one in queues for m in reader.messages("SwapTopic", one.queue_id)]
    assert sorted(bodies) == sorted(everything), "each message once"


def registered(names: str) -> str:
    import asyncio

    from mqfast.remoting.client import RemotingClient

    async def ask() -> str:
        client = RemotingClient()
        try:
            return bytes((await client.call(names, 106)).body).decode()
        finally:
            await client.close()

    return asyncio.run(ask())


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + STEP_S
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_java_clients_sign_and_encrypt(setup: Setup) -> None:
    tls = certificate(setup.work)
    if not tls:
        pytest.skip("there is no openssl")
    names = setup.start_names(*tls)
    account = {
        "accessKey": "swapper1",
        "secretKey": "12345678",
        "defaultTopicPerm": "PUB|SUB",
        "defaultGroupPerm": "SUB",
    }
    (setup.work / "plain_acl.yml").write_text(yaml.safe_dump({"accounts": [account]}))
    setup.broker(
        "-n", names, f"storePathRootDir={setup.work}/ours", f"listenPort={a_port()}", "brokerName=brk",
        *(f"{name}={value}" for name, value in SIZES.items()), *tls, "tls.server.mode=enforcing",
        "aclEnable=true", f"aclFile={setup.work}/plain_acl.yml",
    )  # fmt: skip
    (setup.work / "tls.properties").write_text(
        f"tls.client.authServer=true\ntls.client.trustCertPath={setup.work}/certificate.pem\n"
    )
    secured = {"tls": "true", "tls.test.mode.enable": "false", "tls.config.file": f"{setup.work}/tls.properties"}
    user = {"user": "swapper1", "secret": "12345678"}
    assert setup.swap("t", 10, **secured, **user) == numbered("t", 10)
    (refused,) = setup.swap("u", 1, **secured, user="swapper1", secret="wrong-secret")
    assert "Check signature failed for accessKey=swapper1" in refused
    (unsigned,) = setup.swap("v", 1, **secured)
    assert "No accessKey is configured" in unsigned


def test_java_users_have_rules_and_mqadmin_makes_them(setup: Setup) -> None:
    names = setup.start_names()
    port = a_port()
    setup.broker(
        "-n", names, f"storePathRootDir={setup.work}/ours", f"listenPort={port}", "brokerName=brk",
        *(f"{name}={value}" for name, value in SIZES.items()), "authenticationEnabled=true",
        "authorizationEnabled=true", 'initAuthenticationUser={"username":"root","password":"root-secret"}',
    )  # fmt: skip
    (setup.work / "conf").mkdir()
    (setup.work / "conf" / "tools.yml").write_text("accessKey: root\nsecretKey: root-secret\n")
    compile_java(setup.machine.home, HERE / "Admin.java")
    at = ["-b", f"127.0.0.1:{port}"]

    def admin(*lines: list[str]) -> list[str]:
        words = [word for line in lines for word in (*line, *at, "-n", names, "--")]
        process = setup.machine.java(*words, main="Admin", **{"rocketmq.home.dir": str(setup.work)})
        out, _ = process.communicate(timeout=STEP_S)
        return out.split("==\n")[:-1]

    user = {"user": "swapper", "secret": "user-secret"}
    made = admin(
        ["createUser", "-u", "swapper", "-p", "user-secret"],
        ["createAcl", "-s", "User:swapper", "-r", "Topic:SwapTopic", "-a", "Pub,Sub", "-d", "Allow"],
        ["listUser"],
        ["listAcl"],
        ["getUser", "-u", "swapper"],
    )
    assert "success" in made[0], made
    assert re.search(r"swapper\s+user-secret\s+Normal\s+enable", made[2]), made
    assert re.search(r"root\s+root-secret\s+Super\s+enable", made[2]), made
    assert re.search(r"User:swapper\s+Custom\s+Topic:SwapTopic\s+\[?Pub, ?Sub", made[3]), made
    assert setup.swap("w", 1, wanted=0, **user) == [], "the group needs a rule as well"
    changed = admin(["createAcl", "-s", "User:swapper", "-r", "Group:*", "-a", "Sub", "-d", "Allow"])
    assert "success" in changed[0], changed
    assert "x0" in setup.swap("x", 1, **user)
