"""The stock clients of Go and Node against our broker, unmodified, each in one process for all of its flows.

Modules come by name from the Go module proxy and the npm registry. Without the language, or without the registry, all
of it is skipped.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import BrokerProcess

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

HERE = Path(__file__).resolve().parent
BUILD_S, FLOWS_S = 600, 300
DELAYS = "1s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s"  # retries begin with level 3


def cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mqfast-interop"
    base.mkdir(parents=True, exist_ok=True)
    return base


def build(command: list[str], folder: Path) -> None:
    """Raises: pytest.skip where the registry cannot be reached."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S)
    if done.returncode != 0:
        if any(word in done.stderr for word in ("dial tcp", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "no such host")):
            pytest.skip(f"{command[0]}: its registry cannot be reached")
        pytest.fail(f"{' '.join(command)}:\n{done.stderr[-3000:]}")


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    settings = {"messageDelayLevel": DELAYS, "transactionCheckInterval": 1000, "transactionTimeOut": 1000}
    with BrokerProcess(tmp_path_factory.mktemp("broker"), **settings) as running:
        yield running.namesrv


async def _make_topics(namesrv: str, topics: list[str]) -> None:
    client = RemotingClient()
    route = json.loads((await client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})).body)
    broker = route["brokerDatas"][0]["brokerAddrs"]["0"]
    for topic in topics:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "topicSysFlag": 0, "order": "false",
        }  # fmt: skip
        answer = await client.call(broker, RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
        assert answer.code == 0, answer.remark
    await client.close()


def run(command: list[str], flows: list[str], cwd: Path) -> None:
    done = subprocess.run([*command, *flows], cwd=cwd, capture_output=True, text=True, timeout=FLOWS_S)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    assert done.stdout.splitlines()[-len(flows) :] == [f"ok {name}" for name in flows]


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("go") is None, reason="no Go")
def test_the_client_for_go(namesrv: str) -> None:
    program = cache() / "go-flows"
    build(["go", "build", "-o", str(program), "."], HERE / "go_client")
    run([str(program), namesrv], ["send", "tags", "retry", "delay", "order", "transaction"], HERE)


@pytest.mark.interop
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="no npm")
def test_the_client_for_node(namesrv: str) -> None:
    folder = cache() / "node"
    shutil.copytree(HERE / "node_client", folder, dirs_exist_ok=True)
    # This client never asks for a topic to be made.
    asyncio.run(_make_topics(namesrv, ["NodeSend", "NodeTags", "NodeRetry", "NodeDelay"]))
    build(["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"], folder)
    run(["node", "flows.js", namesrv], ["send", "tags", "retry", "delay"], folder)
