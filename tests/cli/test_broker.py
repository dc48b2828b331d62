"""``mqfast broker``, ``up``, ``health`` as processes: what they print, where they listen, how they end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

import mqfast
from mqfast.cli.main import main
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand

COMMAND = [sys.executable, "-m", "mqfast.cli"]
SMALL = [
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=20000",
    "maxHashSlotNum=1000",
    "maxIndexNum=4000",
]
STEP_S = 60


class Process:
    """One server; ``address``: where its broker listens."""

    def __init__(self, *arguments: str, environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})},
        )  # fmt: skip
        self.banner = ""

    def wait_for_banner(self, last: str = "access control") -> str:
        assert self.process.stdout is not None
        while last not in self.banner:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            self.banner += line
        return self.banner

    @property
    def address(self) -> str:
        found = re.search(r"announced: (\S+)", self.banner)
        assert found, self.banner
        return found[1]

    def ask(self, *requests: tuple[Any, ...], at: str = "") -> list[RemotingCommand]:
        async def main() -> list[RemotingCommand]:
            client = RemotingClient()
            try:
                return [await client.call(at or self.address, *request, timeout_ms=20_000) for request in requests]
            finally:
                await client.close()

        return asyncio.run(main())

    def end(self, how: int = signal.SIGTERM) -> tuple[int, str, float]:
        began = time.monotonic()
        self.process.send_signal(how)
        _, err = self.process.communicate(timeout=STEP_S)
        return self.process.returncode, err, time.monotonic() - began


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    running: list[Process] = []

    def started(*arguments: str, environment: dict[str, str] | None = None, ready: bool = True) -> Process:
        running.append(Process(*arguments, environment=environment))
        if ready:
            running[-1].wait_for_banner()
        return running[-1]

    yield started
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def broker(path: Path, *more: str) -> list[str]:
    return ["broker", f"storePathRootDir={path}", "brokerName=broker-a", "listenPort=0", *SMALL, *more]


def sent(body: bytes, topic: str = "TopicTest") -> tuple[int, dict[str, Any], bytes]:
    letters = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}
    return 310, letters, body


def test_up_is_a_whole_rocketmq_for_this_machine(start: Callable[..., Process], tmp_path: Path) -> None:
    one = start(
        "up", "--namesrv-port", "0", "--broker-port", "0", "--store", str(tmp_path / "s"), "brokerName=broker-a"
    )
    found = re.match(r"NAMESRV_ADDR=(127\.0\.0\.1:\d+)\n", one.banner)
    assert found, one.banner
    assert re.search(
        r"mqfast broker \S+, broker-a of DefaultCluster, listens on 127\.0\.0\.1:\d+ "
        r"\(this machine only; bindAddress=0\.0\.0\.0 opens it\)\n"
        rf"  announced: 127\.0\.0\.1:\d+ \(bindAddress\); name servers: {re.escape(found[1])}\n"
        r"  store: \S+; ASYNC_FLUSH; messages: kept for ever\n"
        r"  TLS: off; replication: 127\.0\.0\.1:\d+, lets in slaves that the name servers name\n"
        r"  automatic topics: on, groups: on; access control: none: everybody who connects may do everything\n",
        one.banner,
    ), one.banner  # fmt: skip
    # Idle: the first put also maps and fills the log ahead of it.
    assert psutil.Process(one.process.pid).memory_info().rss < 70 * 1024 * 1024
    answers = one.ask(sent(b"hello"), sent(b"again"))
    assert [(answer.code, answer.ext_fields["queueOffset"]) for answer in answers] == [(0, "0"), (0, "1")]
    deadline = time.monotonic() + STEP_S
    while (route := one.ask((105, {"topic": "TopicTest"}), at=found[1])[0]).code and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads(route.body)["brokerDatas"][0]["brokerAddrs"] == {"0": one.address}
    code, err, took_s = one.end()
    assert (code, "Traceback" in err, took_s < 20) == (0, False, True)
    with mqfast.StoreReader(tmp_path / "s") as reader:
        assert [bytes(m.body) for m in reader.messages("TopicTest", 0)] == [b"hello", b"again"]


@pytest.mark.parametrize("ports", [("TAKEN", "0"), ("0", "TAKEN")], ids=["name server", "broker"])
def test_a_second_up_is_an_error_with_the_options_for_other_ports(ports: tuple[str, str], tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        namesrv, own = (port if one == "TAKEN" else one for one in ports)
        command = [*COMMAND, "up", "--namesrv-port", namesrv, "--broker-port", own, "--store", str(tmp_path / "s")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, check=False)
    last = done.stderr.splitlines()[-1]
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr
    assert f"('127.0.0.1', {port}): address already in use" in last
    assert "--namesrv-port and --broker-port choose others (0: a free one)" in last


def test_a_second_server_of_a_store_is_an_error_with_the_option_for_another_directory(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    one = start("up", *ports, "--store", str(tmp_path / "s"))
    for command, option in (
        (["up", *ports, "--store", str(tmp_path / "s")], "--store DIR"),
        (broker(tmp_path / "s"), "storePathRootDir=DIR"),
    ):
        done = subprocess.run([*COMMAND, *command], capture_output=True, text=True, timeout=STEP_S, check=False)
        last = done.stderr.splitlines()[-1]
        assert (done.returncode, "Traceback" in done.stderr) == (4, False), done.stderr
        assert f"the store is open for writing in process {one.process.pid}" in last
        assert f"stop it first, or choose another store: {option}" in last


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_the_end_is_clean_and_quick_though_clients_hold_connections(
    start: Callable[..., Process], tmp_path: Path, how: int
) -> None:
    with socket.socket() as silent:  # a name server that takes connections and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        one = start(*broker(tmp_path / "s", "-n", f"127.0.0.1:{silent.getsockname()[1]}"))
        assert "(not registered)" in one.banner
        host, _, port = one.address.rpartition(":")
        with socket.create_connection((host, int(port))) as idle:
            idle.sendall(b"\0\0")
            one.ask(sent(b"kept"))
            code, err, took_s = one.end(how)
    assert (code, "Traceback" in err, took_s < 20) == (0, False, True), err
    assert not (tmp_path / "s" / "abort").exists()
    assert "TopicTest" in (tmp_path / "s" / "config" / "topics.json").read_text()


def test_a_pull_that_waits_is_answered_at_the_end(start: Callable[..., Process], tmp_path: Path) -> None:
    one = start(*broker(tmp_path / "s"))
    one.ask(sent(b"first"))
    fields = {
        "consumerGroup": "g", "topic": "TopicTest", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 60_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip

    async def hold() -> int:
        client = RemotingClient()
        try:
            held = asyncio.ensure_future(
                client.call(one.address, 11, {name: str(value) for name, value in fields.items()}, timeout_ms=60_000)
            )
            for _ in range(3):  # what is asked later is answered meanwhile
                assert (await client.call(one.address, 28)).code == 0
            assert not held.done()
            one.process.send_signal(signal.SIGTERM)
            return (await held).code
        finally:
            await client.close()

    began = time.monotonic()
    assert asyncio.run(hold()) == 19
    assert one.process.wait(STEP_S) == 0
    assert time.monotonic() - began < 30  # of the minute that the pull would wait


def test_answered_sends_survive_a_kill(start: Callable[..., Process], tmp_path: Path) -> None:
    one = start(*broker(tmp_path / "s"))
    answers = one.ask(*[sent(b"%04d" % n) for n in range(500)])
    assert {answer.code for answer in answers} == {0}
    one.end(signal.SIGKILL)
    assert (tmp_path / "s" / "abort").exists()
    again = start(*broker(tmp_path / "s"))
    assert again.ask(sent(b"next"))[0].ext_fields["queueOffset"] == "500"
    again.end()
    with mqfast.StoreReader(tmp_path / "s") as reader:
        assert [bytes(m.body) for m in reader.messages("TopicTest", 0)] == [b"%04d" % n for n in range(500)] + [b"next"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux changes the limit of another process")
def test_a_broker_out_of_descriptors_serves_its_connections_and_recovers(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    """New connections and new topics need descriptors: each failure is one line, and nothing acknowledged is lost."""
    server = start(*broker(tmp_path / "s"))
    host, _, port = server.address.rpartition(":")
    process = psutil.Process(server.process.pid)
    acknowledged: dict[str, list[bytes]] = {}

    async def send(client: RemotingClient, topic: str, body: bytes) -> RemotingCommand:
        answer = await client.call(server.address, *sent(body, topic), timeout_ms=20_000)
        if answer.code == 0:
            acknowledged.setdefault(topic, []).append(body)
        return answer

    async def flow() -> None:
        client = RemotingClient()
        crowd: list[socket.socket] = []
        try:
            assert (await send(client, "known", b"first")).code == 0
            limits = process.rlimit(psutil.RLIMIT_NOFILE)
            process.rlimit(psutil.RLIMIT_NOFILE, (process.num_fds(), limits[1]))
            crowd += [socket.create_connection((host, int(port))) for _ in range(100)]
            for number in range(10):
                assert (await send(client, "known", b"%d" % number)).code == 0
                await send(client, f"new-{number}", b"x")  # an error, or a message whose queue waits for its file
            process.rlimit(psutil.RLIMIT_NOFILE, limits)
            for peer in crowd:
                peer.close()
            assert (await send(client, "later", b"x")).code == 0
        finally:
            await client.close()

    asyncio.run(flow())
    assert server.ask(sent(b"last", "known"))[0].code == 0  # by a new connection
    code, err, _ = server.end()
    assert (code, "Traceback" in err) == (0, False), err
    assert "Too many open files" in err
    assert len(err.splitlines()) < 30, err
    with mqfast.StoreReader(tmp_path / "s") as reader:
        for topic, bodies in acknowledged.items():
            stored = [bytes(m.body) for m in reader.messages(topic, 0)]
            assert stored[: len(bodies)] == bodies, topic


def test_systemd_is_notified_of_ready_watchdog_and_stopping(start: Callable[..., Process], tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        environment = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}

        def heard(wanted: str) -> list[str]:
            found: list[str] = []
            deadline = time.monotonic() + STEP_S
            while wanted not in found:
                assert select.select([listener], [], [], max(0.0, deadline - time.monotonic()))[0], found
                found.append(listener.recv(100).decode())
            return found

        one = start(*broker(tmp_path / "s"), environment=environment, ready=False)
        assert heard("READY=1") == ["READY=1"]
        assert heard("WATCHDOG=1") == ["WATCHDOG=1"]
        assert heard("WATCHDOG=1") == ["WATCHDOG=1"], "it goes on"
        one.end()
        assert heard("STOPPING=1")[-1] == "STOPPING=1"
        names = start("namesrv", "-p", "0", f"kvConfigPath={tmp_path}/kv.json", environment=environment, ready=False)
        assert heard("WATCHDOG=1")[0] == "READY=1"
        names.end()


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **(environment or {})}
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=STEP_S, env=env)


def test_settings_of_all_sources_are_printed(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=file\nlistenPort=11\nregionId=file\nflushDiskType=SYNC_FLUSH\nnamesrvAddr=file:1\n")
    done = run(
        "broker", "-c", str(conf), "-p", "regionId=line",
        environment={"NAMESRV_ADDR": "env:1", "ROCKETMQ_LISTEN_PORT": "22", "ROCKETMQ_HOME": "/opt/rmq"},
    )  # fmt: skip
    assert done.returncode == 0
    lines = dict(line.split("=", 1) for line in done.stdout.splitlines())
    names = ("brokerName", "listenPort", "regionId", "flushDiskType", "namesrvAddr", "rocketmqHome", "fileReservedTime")
    assert [lines[name] for name in names] == ["file", "22", "line", "SYNC_FLUSH", "file:1", "/opt/rmq", "72"]
    assert run("broker", "-p", "-n", "a:1;b:2", "namesrvAddr=c:3").stdout.count("namesrvAddr=a:1;b:2\n") == 1


@pytest.fixture
def root_logger() -> Iterator[None]:
    """Restore the handlers and the level of the root logger, which ``mqfast broker`` sets for its process."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
    root.setLevel(level)


@pytest.mark.usefixtures("root_logger")
def test_wrong_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"storePathRootDir={tmp_path}/s"

    def refusal(*arguments: str) -> tuple[int, str]:
        """The exit code and the errors of a command that ends before it serves."""
        return int(main(["broker", path, *arguments])), capsys.readouterr().err

    code, text = refusal("--strict", "brokerIp1=x", "pullMessageThreadPoolNums=3")
    assert code == 2
    assert "command line: without effect here: pullMessageThreadPoolNums\n" in text
    assert "found brokerIp1; did you mean brokerIP1" in text
    assert "unknown settings: brokerIp1" in text
    for setting, says in {
        "listenPort=70000": "listenPort: expected a whole number from 0 to 65535",
        "aclEnable=true": "aclEnable: expected aclFile or rocketmqHome",
        "authenticationEnabled=true": "expected a user, found none",
        "tls.server.mode=x": "tls.server.mode: expected disabled, permissive or enforcing",
        "brokerIP1=no such host": "brokerIP1: expected an address or a name with one",
    }.items():
        code, text = refusal("listenPort=0", setting, *SMALL)
        assert (code, says in text, "Traceback" in text) == (2, True, False), text
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("broker", path, f"listenPort={taken.getsockname()[1]}", *SMALL)
    assert (done.returncode, "Traceback" in done.stderr) == (3, False), done.stderr


def test_health(start: Callable[..., Process], tmp_path: Path) -> None:
    names = start("namesrv", "-p", "0", f"kvConfigPath={tmp_path}/kv.json", ready=False)
    port = names.wait_for_banner("NAMESRV_ADDR").strip().rpartition(":")[2]
    done = run("health", "--port", port)
    assert (done.returncode, done.stdout) == (0, f"127.0.0.1:{port} answers\n")
    names.end()
    assert run("health", "--port", port).returncode == 8
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        done = run("health", "--port", str(silent.getsockname()[1]), "--timeout", "0.2")
        assert (done.returncode, done.stdout) == (8, "no answer: timed out\n")


def test_what_the_image_runs_runs_here(start: Callable[..., Process], tmp_path: Path) -> None:
    """The commands and variables of the Dockerfile, with a store and a port of the test."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "service" / "Dockerfile").read_text()
    variables = dict(re.findall(r"(ROCKETMQ_\w+)=(\S+)", text))
    (entry,) = (json.loads(found) for found in re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE))
    (command,) = (json.loads(found) for found in re.findall(r"^CMD (\[.*\])$", text, re.MULTILINE))
    (health,) = (json.loads(found) for found in re.findall(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE))
    (signal_name,) = re.findall(r"^STOPSIGNAL (\w+)$", text, re.MULTILINE)
    assert (entry, health[0]) == (["mqfast"], "mqfast")
    ours = {"ROCKETMQ_STORE_PATH_ROOT_DIR": str(tmp_path), "MQFAST_ADVERTISE": "127.0.0.1"}
    assert ours.keys() & variables.keys()
    image = start(*command, "listenPort=0", *SMALL, environment={**variables, **ours})
    assert "(every interface)" in image.banner
    assert f"store: {tmp_path}" in image.banner
    (answer,) = image.ask(sent(b"x"))
    assert answer.code == 0
    port = image.address.rpartition(":")[2]
    done = run(*[port if word == "10911" else word for word in health[1:]])
    assert done.returncode == 0, done.stdout
    assert image.end(signal.Signals[signal_name])[0] == 0


@pytest.mark.parametrize("status", [200, 503])
def test_health_by_http(status: int) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.handle_request).start()
        done = run("health", "--url", f"http://127.0.0.1:{server.server_address[1]}/health")
    assert (done.returncode, done.stdout) == (0 if status == 200 else 8, f"{status}\n")
    assert run("health", "--url", "ftp://x").returncode == 2


def test_check_store_reports_about_a_store_of_a_java_broker(tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(Path(__file__).parents[1] / "golden" / "golden-5.3.3" / "normal-clean" / "store", store)
    done = run("broker", "--check-store", str(store))
    assert done.returncode == 0, done.stderr
    assert "note  2 delayed messages wait, and go on here\n" in done.stdout
    (store / "dledger-n0").mkdir()
    done = run("broker", "--check-store", str(store))
    assert (done.returncode, done.stdout.splitlines()[0][:18]) == (1, "STOP  dledger-n0/:")
