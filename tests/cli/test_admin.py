"""``mqfast admin`` against a running broker: tables, JSON lines, plans that change nothing, exit codes.

Room: tests of the command line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from admin_cluster import address_of, filled
from members import ask, until
from running import BrokerProcess

from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main
from mqfast.client.admin.admin_client import AdminClient
from mqfast.remoting.codes import RequestCode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cli")) as process:
        yield process


@pytest.fixture(scope="module")
def admin(cluster: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv) as client:
        yield client


@pytest.fixture(autouse=True)
def _environment(cluster: BrokerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: object) -> tuple[int, str, str]:
        code = main(["admin", *map(str, arguments)])
        said = capsys.readouterr()
        return int(code), said.out, said.err

    return call


MARKS = {"KEYS": "k", "TAGS": "t", "UNIQ_KEY": "CD" * 16}


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_cluster_and_topics(run: Any, admin: AdminClient, cluster: BrokerProcess) -> None:
    code, text, _ = run("cluster", "--json")
    assert code == ExitCode.OK
    (row,) = rows(text)
    assert (row["cluster"], row["id"], row["address"]) == ("DefaultCluster", 0, address_of(admin))
    code, text, _ = run("topic", "create", "cli-a", "--queues", 3, "-n", cluster.namesrv)
    assert (code, text.split()[-3:]) == (ExitCode.OK, ["3", "3", "6"])
    assert {"topic": "cli-a"} in rows(run("topics", "--json")[1])
    assert {"topic": "TBW102"} not in rows(run("topics", "--json")[1])
    assert {"topic": "TBW102"} in rows(run("topics", "--json", "--all")[1])
    code, text, said = run("topic", "stats", "cli-a")
    assert (code, len(text.splitlines())) == (ExitCode.OK, 4)
    assert "groups: none" in said
    code, _, said = run("topic", "delete", "cli-a")
    assert (code, "nothing was deleted; --yes" in said) == (ExitCode.OK, True)
    assert "cli-a" in admin.topics()
    assert run("topic", "delete", "cli-a", "--yes")[0] == ExitCode.OK
    assert "cli-a" not in admin.topics()


def test_lag_and_reset(run: Any, admin: AdminClient) -> None:
    filled(admin, "cli-lag", 9, **MARKS)
    admin.create_group("cli-crew")
    assert {"group": "cli-crew"} in rows(run("groups", "--json")[1])
    code, text, said = run("reset", "cli-crew", "cli-lag", "--to-latest", "--json")
    (row,) = rows(text)
    assert (code, row["to"], row["skipped"], "nothing was changed; --yes" in said) == (ExitCode.OK, 9, 9, True)
    assert admin.reset_offset("cli-crew", "cli-lag", "last")[0].now != 9
    code, _, said = run("reset", "cli-crew", "cli-lag", "--to-offset", 4, "--queue", 0, "--yes")
    assert (code, "done" in said) == (ExitCode.OK, True)
    code, text, said = run("lag", "cli-crew")
    assert code == ExitCode.OK
    assert text.splitlines()[0].split() == ["topic", "broker", "queue", "committed", "behind", "age", "beyond"]
    assert text.splitlines()[1].split()[2:5] == ["0", "4", "5"]
    assert "5 behind; members: 0" in said
    (row,) = rows(run("lag", "cli-crew", "cli-lag", "--json")[1])
    assert (row["committed"], row["behind"]) == (4, 5)
    assert row["age"] > 0
    (row,) = rows(run("reset", "cli-crew", "cli-lag", "--to-time", (1 << 63) - 1, "--json")[1])
    assert row["to"] == 9
    code, _, said = run("reset", "cli-crew", "cli-lag", "--to-offset", 4)
    assert (code, "--to-offset: expected with --queue" in said) == (ExitCode.USAGE, True)


def test_messages(run: Any, admin: AdminClient) -> None:
    filled(admin, "cli-read", 5, **MARKS)
    until(lambda: len(admin.find("cli-read", key="k")) == 5, "the index")
    code, text, _ = run("find", "cli-read", "--key", "k", "--json")
    assert (code, [row["queueOffset"] for row in rows(text)]) == (ExitCode.OK, [0, 1, 2, 3, 4])
    code, text, said = run("browse", "cli-read", "--max", 2)
    assert (code, text.count("cli-read/0@")) == (ExitCode.OK, 2)
    assert "there are more than 2" in said
    code, text, said = run("browse", "cli-read", "--max", 5)
    assert (code, text.count("cli-read/0@"), said) == (ExitCode.OK, 5, "")
    assert run("browse", "cli-read", "--end", "2001-01-01")[0] == ExitCode.NOTHING_FOUND
    assert run("browse", "cli-read", "--end", (1 << 63) - 1)[1].count("cli-read/0@") == 5
    assert run("browse", "cli-read", "--begin", (1 << 63) - 1)[0] == ExitCode.NOTHING_FOUND
    assert run("find", "cli-read", "--id", "CD" * 16)[0] == ExitCode.OK
    assert run("find", "cli-read", "--key", "x")[0] == ExitCode.NOTHING_FOUND


def test_dead_letters(run: Any, admin: AdminClient) -> None:
    filled(admin, "cli-dead", 1, **MARKS)
    admin.create_group("cli-grave")
    (message,) = admin.browse("cli-dead")
    ask(
        address_of(admin), RequestCode.CONSUMER_SEND_MSG_BACK, group="cli-grave", offset=message.physical_offset,
        delayLevel=-1, originMsgId=message.offset_msg_id, originTopic="cli-dead", unitMode="false",
    )  # fmt: skip
    until(lambda: list(admin.dead_letters("cli-grave")), "the letter")
    assert run("dlq", "list", "cli-grave")[1].count("%DLQ%cli-grave/0@0") == 1
    code, text, said = run("dlq", "resend", "cli-grave")
    assert (code, text.strip()) == (ExitCode.OK, f"{'CD' * 16} -> cli-dead")
    assert "1 letters; nothing was sent; --yes does it" in said
    assert run("dlq", "resend", "cli-grave", "--id", "nobody")[0] == ExitCode.NOTHING_FOUND
    code, text, _ = run("dlq", "resend", "cli-grave", "--yes", "--json", "--id", "CD" * 16)
    (row,) = rows(text)
    assert (code, row["topic"], row["sent"], row["queueOffset"]) == (ExitCode.OK, "cli-dead", True, 1)
    admin.create_group("cli-living")
    assert run("dlq", "list", "cli-living")[0] == ExitCode.NOTHING_FOUND


def test_settings_of_a_broker(run: Any, admin: AdminClient) -> None:
    broker = address_of(admin)
    assert "transactionCheckMax" in [row["name"] for row in rows(run("broker", "config", broker, "--json")[1])]
    code, text, said = run("broker", "config", broker, "transactionCheckMax=11")
    assert (code, text.split()[-1], "--yes" in said) == (ExitCode.OK, "11", True)
    assert admin.broker_config(broker)["transactionCheckMax"] != "11"
    assert run("broker", "config", broker, "transactionCheckMax=11", "--yes")[0] == ExitCode.OK
    assert admin.broker_config(broker)["transactionCheckMax"] == "11"
    assert any(row["name"] == "putTps" for row in rows(run("broker", "runtime", broker, "--json")[1]))


def test_errors_are_one_line_and_a_code(run: Any, admin: AdminClient) -> None:
    filled(admin, "cli-known", 1, **MARKS)
    for arguments, code, text in (
        (("topic", "stats", "cli-knwon"), ExitCode.NOTHING_FOUND, "nearest name is 'cli-known'"),
        (("lag", "nobody"), ExitCode.NOTHING_FOUND, "group: expected"),
        (("topics", "-n", "127.0.0.1:1"), ExitCode.NO_ANSWER, "127.0.0.1:1"),
        (("topics", "-n", "a:b"), ExitCode.USAGE, "namesrv_addr"),
        (("browse", "cli-known", "--max", "0"), ExitCode.USAGE, "--max: expected at least 1"),
        (("browse", "cli-known", "--max", "9" * 20), ExitCode.USAGE, "argument --max: "),
        (("top", "--rounds", "-1"), ExitCode.USAGE, "argument --rounds: "),
        (("top", "--rows", "-1"), ExitCode.USAGE, "argument --rows: "),
        (("broker", "config", "cli-none"), ExitCode.NOTHING_FOUND, "broker: expected one of"),
    ):
        ended, out, said = run(*arguments)
        assert (ended, out) == (code, ""), arguments
        assert text in said
        assert said.count("\n") == 1
