"""``mqfast namesrv`` as a process: what it prints, where it listens, how it ends, and what a wrong setting does."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mqfast.errors import ConnectionLost
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand

COMMAND = [sys.executable, "-m", "mqfast.cli", "namesrv"]


class Process:
    def __init__(self, work: Path, *arguments: str) -> None:
        command = [*COMMAND, *arguments, f"kvConfigPath={work}/kv.json", f"configStorePath={work}/namesrv.properties"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.banner = self.process.stdout.readline()
        found = re.search(r"NAMESRV_ADDR=(\S+)", self.banner)
        if not found:
            raise AssertionError(self.process.communicate()[1])
        self.address = found[1]

    def ask(self, *requests: tuple[int, dict[str, str], bytes]) -> list[RemotingCommand]:
        async def main() -> list[RemotingCommand]:
            client = RemotingClient()
            try:
                return [await client.call(self.address, *request, timeout_ms=20_000) for request in requests]
            finally:
                await client.close()

        return asyncio.run(main())

    def end(self, how: int = signal.SIGTERM) -> tuple[int, str, float]:
        began = time.monotonic()
        self.process.send_signal(how)
        _, err = self.process.communicate(timeout=200)
        return self.process.returncode, err, time.monotonic() - began


@pytest.fixture
def started(tmp_path: Path) -> Iterator[type[Process]]:
    running: list[Process] = []

    class Started(Process):
        def __init__(self, *arguments: str) -> None:
            super().__init__(tmp_path, *arguments)
            running.append(self)

    yield Started  # type: ignore[misc]
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


BODY = json.dumps(
    {
        "topicConfigSerializeWrapper": {
            "dataVersion": {"counter": 1, "timestamp": 1},
            "topicConfigTable": {name: {"topicName": name, "perm": 6} for name in ("T1", "T2")},
        }
    }
).encode()
HEADER = {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "haServerAddr": "h:2", "brokerId": "0"}


def test_a_server_serves_the_loopback_interface_and_prints_a_banner(started: type[Process]) -> None:
    server = started("-p", "0")  # type: ignore[call-arg, arg-type]
    assert re.fullmatch(
        r"mqfast namesrv \S+ listens on 127\.0\.0\.1:\d+ \(this machine only; --host 0\.0\.0\.0 opens it; TLS: off\): "
        r"NAMESRV_ADDR=127\.0\.0\.1:\d+\n",
        server.banner,
    )
    answers = server.ask((103, HEADER, BODY), (105, {"topic": "T1"}, b""), (105, {"topic": "none"}, b""))
    assert [answer.code for answer in answers] == [0, 0, 17]
    assert json.loads(answers[1].body)["brokerDatas"][0]["brokerAddrs"] == {"0": "h:1"}


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_shutdown_is_prompt_with_connected_clients(started: type[Process], how: int) -> None:
    server = started("-p", "0")  # type: ignore[call-arg, arg-type]
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port))) as idle:
        idle.sendall(b"\0\0")
        server.ask((103, HEADER, BODY))
        code, err, took_s = server.end(how)
    assert code == 0
    assert took_s < 20, "a busy machine takes longer than two seconds; an idle client would hold it for ever"
    assert "Traceback" not in err
    with pytest.raises(ConnectionLost):
        server.ask((106, {}, b""))


def test_memory_and_start(started: type[Process]) -> None:
    server = started("-p", "0")  # type: ignore[call-arg, arg-type]
    server.ask((106, {}, b""))
    assert psutil.Process(server.process.pid).memory_info().rss < 45 * 1024 * 1024


def test_values_and_settings_outlive_a_kill(started: type[Process], tmp_path: Path) -> None:
    server = started("-p", "0")  # type: ignore[call-arg, arg-type]
    changed = b"orderMessageEnable=true\nenableTopicList=false"
    answers = server.ask(
        (100, {"namespace": "n", "key": "k", "value": "v"}, b""),
        (318, {}, changed),
        (318, {}, b"kvConfigPath=/x"),
        (318, {}, b"tls.server.keyPath=/x"),
        (318, {}, b"listenPort=1"),
        (318, {}, b"enableTopicList=maybe"),
        (319, {}, b""),
    )
    assert [answer.code for answer in answers] == [0, 0, 16, 16, 16, 1, 0]
    assert answers[2].remark == "Can not update config in black list."
    assert answers[5].remark == "request 318: enableTopicList: expected true or false, found 'maybe'"
    assert b"orderMessageEnable=true\n" in answers[6].body
    assert b"keyPassword" not in answers[6].body
    server.end(signal.SIGKILL)
    again = started("-p", "0", "-c", str(tmp_path / "namesrv.properties"))  # type: ignore[call-arg, arg-type]
    answers = again.ask((101, {"namespace": "n", "key": "k"}, b""), (224, {"cluster": "c"}, b""))
    assert answers[0].ext_fields == {"value": "v"}
    assert (answers[1].code, answers[1].remark) == (1, "disable")


def test_settings_of_the_file_and_of_the_command_line(started: type[Process], tmp_path: Path) -> None:
    conf = tmp_path / "ns.properties"
    conf.write_text("listenPort=1\nbindAddress=nowhere\nserverSelectorThreads=5\norderMesageEnable=true\n")
    server = started("-c", str(conf), "--port", "0", "--host", "127.0.0.1", "enableTopicList=false")  # type: ignore[call-arg, arg-type]
    assert server.ask((311, {}, b""))[0].remark == "disable"
    _, err, _ = server.end()
    assert f"{conf}: without effect here: serverSelectorThreads" in err
    assert (
        f"{conf}: expected a setting of the name server, found orderMesageEnable; did you mean orderMessageEnable"
        in err
    )


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize(
    "arguments, code, said",
    [
        (["-p", "x"], 2, "command line: listenPort: expected a whole number from 0 to 65535, found 'x'"),
        (["-p", "70000"], 2, "found '70000'"),
        (["-c", "missing.properties"], 3, "missing.properties"),
        (["--strict", "listnPort=1"], 2, "unknown settings: listnPort"),
        (["tls.server.mode=maybe"], 2, "tls.server.mode: expected disabled, permissive or enforcing, found 'maybe'"),
        (["tls.server.certPath=missing.pem"], 2, "certificate missing.pem"),
        (["nothing"], 2, "invalid NAME=VALUE value"),
        (["--host", "192.0.2.1", "-p", "0"], 3, "192.0.2.1"),
    ],
)
def test_wrong_settings_are_one_line_and_an_exit_code(arguments: list[str], code: int, said: str) -> None:
    done = run(*arguments)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_an_error_with_the_port() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run("-p", str(taken.getsockname()[1]))
    assert done.returncode == 3
    assert "address already in use" in done.stderr


def test_the_settings_can_be_printed() -> None:
    done = run("--print-config", "orderMessageEnable=true")
    assert done.returncode == 0
    assert "orderMessageEnable=true\n" in done.stdout
    assert "bindAddress=127.0.0.1\n" in done.stdout
    assert "listenPort=9876\n" in done.stdout


def test_without_the_extra_the_error_names_the_package_to_install() -> None:
    script = "import sys; sys.modules['msgspec'] = None; from mqfast.cli.main import main; sys.exit(main(['namesrv']))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 2
    assert done.stderr == "mqfast: mqfast namesrv needs msgspec: pip install 'mqfast[broker]'\n"


def test_the_help_of_other_commands_pays_nothing_for_it() -> None:
    script = (
        "import sys, mqfast.cli.main as m; m.build_parser(); print(*{'asyncio', 'msgspec', 'ssl'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=True)
    assert done.stdout == "\n"
