"""What producers and clients chose is printed without a control character: ids, groups, keys, properties, bodies.

Room: tests of the command line.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator

import pytest
from members import send
from running import BrokerProcess
from waiting import until

from mqfast.cli.main import main
from mqfast.client.admin.admin_client import AdminClient

EVIL = "\x1b]0;title\x07\x1b[2J\u202e:bomb:"
GROUP = "evil\x1b[2Jgroup"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    work = tmp_path_factory.mktemp("hostile")
    config = work / "store" / "config"
    config.mkdir(parents=True)  # a broker of 4.x takes any name of a group
    table = {"subscriptionGroupTable": {GROUP: {"groupName": GROUP}}, "dataVersion": {}}
    (config / "subscriptionGroup.json").write_text(json.dumps(table))
    (config / "consumerOffset.json").write_text(json.dumps({"offsetTable": {f"orders@{GROUP}": {"0": 0}}}))
    with BrokerProcess(work) as running, AdminClient(running.namesrv) as admin:
        admin.create_topic("orders", queues=1)
        send(running.broker, "orders", EVIL.encode(), UNIQ_KEY=EVIL, KEYS="key", TAGS=EVIL, other=EVIL)
        until(lambda: admin.find("orders", key="key"), "the index")
        yield running


def on_terminal(*words: str) -> str:
    """The output of a command on a terminal, where rich is used."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "mqfast.cli", *words]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"}
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    except OSError:  # the other side has ended
        pass
    os.close(ours)
    assert process.wait(200) == 0
    return b"".join(parts).decode("utf-8", "replace")


@pytest.mark.parametrize(
    "words",
    [["admin", "message", "find", "orders", "--key", "key"], ["admin", "message", "cat", "orders", "--body", "text"],
     ["explain", EVIL, "--topic", "orders"], ["admin", "top", "--rounds", "1"], ["admin", "group", "ls"],
     ["admin", "topic", "show", "orders"]],
)  # fmt: skip
def test_nothing_printed_moves_the_terminal(
    cluster: BrokerProcess, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "-n", cluster.namesrv]) == 0
    printed = capsys.readouterr()
    assert [letter for letter in printed.out + printed.err if not letter.isprintable() and letter != "\n"] == []


def test_a_terminal_gets_what_was_written(cluster: BrokerProcess) -> None:
    top = on_terminal("admin", "top", "--rounds", "1", "-n", cluster.namesrv)
    assert ("\\x1b[2J" in top, "\x1b[2J" in top) == (True, False)
    message = on_terminal("admin", "message", "cat", "orders", "--body", "text", "-n", cluster.namesrv)
    assert (":bomb:" in message, "\x1b]0" in message) == (True, False)
