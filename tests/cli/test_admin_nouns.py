"""The nouns of ``mqfast admin``, and RocketMQ's command names, against a running broker: plans, changes, exit codes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from members import ask, send, until
from running import BrokerProcess

from mqfast.cli.admin.old_names import ABSENT, OLD
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main
from mqfast.client.admin.admin_client import AdminClient
from mqfast.remoting.codes import RequestCode

UNIQUE = "AC" * 16


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("nouns"), brokerName="broker-a", traceTopicEnable=True) as process:
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
    def call(line: str, *more: object) -> tuple[int, list[dict[str, Any]], str]:
        """Run a line with --json. Returns: exit code, rows, stderr."""
        words = ["admin", *line.split(), *map(str, more), "--json"]
        code = main(words)
        said = capsys.readouterr()
        return int(code), [json.loads(text) for text in said.out.splitlines()], said.err

    return call


def filled(cluster: BrokerProcess, admin: AdminClient, topic: str, *bodies: bytes, queues: int = 1) -> None:
    admin.create_topic(topic, queues=queues)
    address = "{}:{}".format(*cluster.address)
    for number, body in enumerate(bodies):
        send(address, topic, body, queue_id=number % queues, UNIQ_KEY=f"{UNIQUE[:-2]}{number:02X}", KEYS="k")
    until(lambda: sum(s.max_offset for s in admin.topic_stats(topic).values()) == len(bodies), "the messages")


def test_topics(run: Any, admin: AdminClient) -> None:
    code, rows, said = run("topic create n-topic --queues 2 --dry-run")
    assert (code, {row["name"]: row["after"] for row in rows}["readQueueNums"]) == (0, 2)
    assert "nothing was changed; --yes does it" in said
    assert "n-topic" not in admin.topics()
    assert run("topic create n-topic --queues 2")[0] == 0
    code, rows, _ = run("topic set n-topic --perm r")
    assert [(row["before"], row["after"]) for row in rows] == [("rw", "r")]
    assert admin.topic_config("n-topic")["broker-a"]["perm"] == 6
    assert run("topic set n-topic --perm r --yes")[0] == 0
    settings = admin.topic_config("n-topic")["broker-a"]
    assert (settings["perm"], settings["readQueueNums"]) == (4, 2)
    assert "so already" in run("topic set n-topic --perm r --yes")[2]
    (row,) = [row for row in run("topic ls")[1] if row["topic"] == "n-topic"]
    assert row == {"topic": "n-topic", "kind": "NORMAL", "perm": "r", "queues": 2, "brokers": "broker-a"}
    (row,) = run("topic route n-topic")[1]
    assert (row["broker"], row["id"], row["perm"]) == ("broker-a", 0, "r")


def test_groups(run: Any, admin: AdminClient) -> None:
    assert run("group set n-none retryMaxTimes=3 --yes")[0] == ExitCode.NOTHING_FOUND
    assert run("group create n-group --retry-max 3")[0] == 0
    rows = run("group set n-group retryMaxTimes=5 consumeEnable=true")[1]
    assert [(row["name"], row["before"], row["after"]) for row in rows] == [("retryMaxTimes", 3, 5)]
    assert run("group set n-group retryMaxTimes=5 --yes")[0] == 0
    assert admin.group_config("n-group")["broker-a"]["retryMaxTimes"] == 5
    assert "the group is so already" in run("group set n-group retryMaxTimes=5 --yes")[2]
    assert run("group members n-group")[0] == ExitCode.NOTHING_FOUND
    assert run("group delete n-group --offsets")[0] == 0
    assert "n-group" in admin.groups()
    assert run("group delete n-group --offsets --yes")[0] == 0
    assert "n-group" not in admin.groups()


@pytest.mark.parametrize(
    ("to", "more", "offsets"),
    [
        ("earliest", (), (0, 0)), ("latest", (), (4, 4)), ("-1", (), (1, 1)), ("+1", (), (3, 3)), ("-99", (), (0, 0)),
        ("+99", (), (4, 4)), ("3", (), (3, 3)), ("3", ("--queue", 0), (3, 2)), ("-1", ("--queue", 1), (2, 1)),
        ("-1h", (), (0, 0)), ("2040-01-01", (), (4, 4)),
    ],
)  # fmt: skip
def test_a_group_is_reset_in_all_directions(
    run: Any, cluster: BrokerProcess, admin: AdminClient, to: str, more: tuple[object, ...], offsets: tuple[int, int]
) -> None:
    if "n-reset" not in admin.topics():
        filled(cluster, admin, "n-reset", *(b"%d" % number for number in range(8)), queues=2)
        admin.create_group("n-mover")
    queues = list(admin.topic_stats("n-reset"))
    admin.set_offsets("n-mover", dict.fromkeys(queues, 2), dry_run=False)
    code, rows, said = run("group reset n-mover n-reset --to", to, *more)
    planned = {row["queue"]: row["to"] for row in rows}
    assert (code, "nothing was changed" in said) == (0, True)
    assert set(admin.committed("n-mover", "n-reset").values()) == {2}
    code, rows, said = run("group reset n-mover n-reset --to", to, *more, "--yes")
    assert (code, "done" in said) == (0, True)
    assert {row["queue"]: row["to"] for row in rows} == planned
    assert all(row["after"] == row["to"] for row in rows)
    assert tuple(admin.committed("n-mover", "n-reset").values()) == offsets


def test_offsets_are_copied_and_lag_has_a_limit(run: Any, cluster: BrokerProcess, admin: AdminClient) -> None:
    filled(cluster, admin, "n-copy", b"1", b"2", b"3")
    for group in ("n-from", "n-to"):
        admin.create_group(group)
    assert run("group reset n-from n-copy --to 1 --yes")[0] == 0
    assert run("group copy n-from n-to")[0] == 0
    assert set(admin.committed("n-to", "n-copy").values()) == {-1}
    code, (row,), _ = run("group copy n-from n-to --yes")
    assert (code, row["after"]) == (0, 1)
    assert run("group show n-to --max-lag 2")[0] == ExitCode.OK
    assert run("group show n-to --max-lag 1")[0] == ExitCode.DAMAGE
    assert {"group": "n-to", "behind": 2, "topics": 1} in run("group ls")[1]
    assert run("group ls --max-lag 1")[0] == ExitCode.DAMAGE
    assert run("group reset n-to n-copy --to 99 --queue 0 --yes")[0] == ExitCode.USAGE
    assert run("group reset n-to n-copy --to tomorrow")[0] == ExitCode.USAGE


def test_messages_are_sent_and_read(run: Any, admin: AdminClient, monkeypatch: pytest.MonkeyPatch) -> None:
    admin.create_topic("n-messages", queues=2)
    code, (sent,), _ = run("message send n-messages hello --keys k1 --tags t --property colour=red --trace")
    assert (code, sent["status"], sent["broker"]) == (0, "SEND_OK", "broker-a")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\x00\xff")))
    code, (binary,), _ = run("message send n-messages --broker broker-a --queue 1")
    assert (code, binary["queueId"]) == (0, 1)
    assert run("message send n-mesages hello")[0] == ExitCode.NOTHING_FOUND
    until(lambda: admin.find("n-messages", key="k1"), "the index")
    for line in ("find n-messages --key k1", f"find n-messages --id {sent['msgId']}",
                 f"show n-messages broker-a {sent['queueId']} {sent['queueOffset']}", "cat n-messages --tags t",
                 "tail n-messages --begin -1h --max 1 --tags t"):  # fmt: skip
        code, (row,), _ = run(f"message {line}")
        assert (code, row["body"], row["properties"]["colour"]) == (0, "hello", "red"), line
    (row,) = [row for row in run("message cat n-messages --queue 1")[1] if "bodyBase64" in row]
    assert row["queueOffset"] == binary["queueOffset"]
    until(lambda: admin.trace(sent["msgId"]), "the trace")
    assert run("message trace", sent["msgId"])[1][0]["type"] == "Pub"
    assert run("message show n-messages broker-a 0 77")[0] == ExitCode.NOTHING_FOUND


def test_dead_letters_are_listed_exported_and_explained(
    run: Any, cluster: BrokerProcess, admin: AdminClient, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filled(cluster, admin, "n-dead", b"x")
    admin.create_group("n-grave")
    (message,) = admin.browse("n-dead")
    ask(
        "{}:{}".format(*cluster.address), RequestCode.CONSUMER_SEND_MSG_BACK, group="n-grave", delayLevel=-1,
        offset=message.physical_offset, originMsgId=message.offset_msg_id, originTopic="n-dead", unitMode="false",
    )  # fmt: skip
    until(lambda: list(admin.dead_letters("n-grave")), "the letter")
    code, (row,), _ = run("dlq ls n-grave")
    assert (code, row["id"], row["topic"], row["resends"]) == (0, message.msg_id, "n-dead", 0)
    lines, table = tmp_path / "letters.jsonl", tmp_path / "letters.parquet"
    assert run("dlq export n-grave", lines)[0] == 0
    assert json.loads(lines.read_text())["body"] == "x"
    assert run("dlq export n-grave", lines)[0] == ExitCode.USAGE  # never over a file
    assert run("dlq export n-grave", tmp_path / "letters.txt")[0] == ExitCode.USAGE
    pyarrow_parquet = pytest.importorskip("pyarrow.parquet")
    assert run("dlq export n-grave", table)[0] == 0
    (row,) = pyarrow_parquet.read_table(table).to_pylist()
    assert (row["topic"], row["body"], dict(row["properties"])["KEYS"]) == ("%DLQ%n-grave", b"x", "k")
    assert run("dlq resend n-grave --rate 1000 --topic n-none --yes")[0] == ExitCode.REFUSED  # said, letter by letter
    assert run("dlq resend n-grave --rate 1000 --yes")[0] == 0
    assert main(["explain", message.msg_id, "--topic", "n-dead"]) == 0
    text = capsys.readouterr().out
    for words in ("created by", "stored; a unit of the queue names the record", "given up for group n-grave",
                  "stored again: dead letter, resend 1"):  # fmt: skip
        assert words in text
    cluster_kinds = _kinds(capsys, "explain", message.msg_id, "--topic", "n-dead")
    assert (
        _kinds(capsys, "explain", message.msg_id, "--topic", "n-dead", "--store", str(cluster.store)) == cluster_kinds
    )
    assert main(["explain", "F" * 32]) == ExitCode.NOTHING_FOUND
    assert main(["explain", "F" * 32, "--store", str(cluster.store)]) == ExitCode.NOTHING_FOUND


def _kinds(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main([*words, "--json"]) == 0
    rows = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    return [row["kind"] for row in rows if row["kind"] not in ("unknown", "passed", "waits")]


def test_brokers_are_drained_and_their_settings_compared(run: Any, cluster: BrokerProcess, admin: AdminClient) -> None:
    filled(cluster, admin, "n-drain", b"1")
    assert run("broker config get broker-a flushDiskType")[1] == [{"name": "flushDiskType", "value": "ASYNC_FLUSH"}]
    assert run("broker config get broker-a flushDiskTyp")[0] == ExitCode.USAGE
    assert run("broker config set broker-a transactionCheckMax=13")[1][0]["then"] == "13"
    assert run("broker config set broker-a transactionCheckMax=13 --yes")[0] == 0
    assert {"name": "transactionCheckMax", "default": "15", "value": "13"} in run("broker config diff broker-a")[1]
    assert run("broker config diff broker-a broker-a")[0] == 0
    assert run("broker drain broker-a --quiet 0.2 --yes")[0] == 0
    code, _, said = run("message send n-drain x")
    assert code != 0, said
    assert run("broker undrain broker-a --yes")[0] == 0
    assert run("message send n-drain x")[0] == 0
    assert run("broker clean broker-a queues --yes")[0] == 0
    assert any(row["name"] == "putTps" for row in run("broker show broker-a")[1])


def test_a_cluster_is_exported_compared_and_imported(run: Any, admin: AdminClient, tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    admin.create_topic("n-export", queues=3)
    admin.create_group("n-exported", retry_max=2)
    assert run("cluster export", file)[0] == 0
    assert "secret" not in file.read_text().lower()
    assert run("cluster diff", file)[0] == 0
    admin.delete_topic("n-export")
    admin.create_group("n-exported", retry_max=9)
    code, rows, _ = run("cluster diff", file)
    assert code == ExitCode.DAMAGE
    assert {"what": "topic", "name": "n-export", "field": "-", "here": "-", "other": "there"} in rows
    assert {"what": "group", "name": "n-exported", "field": "retryMaxTimes", "here": "9", "other": "2"} in rows
    assert {"what": "topic", "name": "n-export", "state": "new"} in run("cluster import", file)[1]
    assert "n-export" not in admin.topics()
    assert run("cluster import", file, "--yes")[0] == 0
    assert run("cluster diff", file, "--no-settings")[0] == 0
    file.write_text("{}")
    assert run("cluster diff", file)[0] == ExitCode.USAGE


def test_top_prints_pictures(run: Any) -> None:
    code, rows, _ = run("top --rounds 2 --interval 0.05")
    assert (code, len(rows)) == (0, 2)
    assert rows[0]["brokers"][0]["broker"] == "broker-a"
    assert run("top --rounds 1 --interval 0")[0] == ExitCode.USAGE


def test_values_of_name_servers(run: Any) -> None:
    assert run("namesrv set-value n-ordered broker-a:2 --yes")[0] == 0
    assert [row["value"] for row in run("namesrv values")[1] if row["key"] == "n-ordered"] == ["broker-a:2"]
    assert run("namesrv delete-value n-ordered --yes")[0] == 0
    assert run("namesrv values")[0] == ExitCode.NOTHING_FOUND
    assert run("namesrv set orderMessageEnable=true")[1][0]["then"] == "true"


OLD_LINES = [
    ("updateTopic -c DefaultCluster -t n-old -r 2 -w 2 -a +message.type=NORMAL", 0),
    ("updateTopicPerm -t n-old -p 4 -c DefaultCluster", 0), ("updateTopicPerm -t n-old -p 6 -b broker-a", 0),
    ("updateSubGroup -c DefaultCluster -g n-crew -d true", 0), ("updateSubGroup -c DefaultCluster -g n-other", 0),
    ("sendMessage -t n-old -p hello -k key1 -c TagA -b broker-a -i 0", 0), ("clusterList", 0), ("clusterList -i 3", 2),
    ("brokerStatus -c DefaultCluster", 0), ("topicList", 0), ("topicList -c", 0), ("topicRoute -t n-old", 0),
    ("topicStatus -t n-old", 0), ("topicClusterList -t n-old", 0), ("getBrokerConfig -b broker-a", 0),
    ("queryMsgByKey -t n-old -k key1", 0), ("queryMsgByOffset -t n-old -b broker-a -i 0 -o 0", 0),
    ("printMsg -t n-old -d true", 0), ("printMsgByQueue -t n-old -a broker-a -i 0 -d false", 0),
    ("consumeMessage -t n-old -c 1 -b broker-a -i 0 -o 0", 0), ("statsAll -t n-old", 0),
    ("resetOffsetByTime -g n-crew -t n-old -s -1", 0), ("resetOffsetByTime -g n-crew -t n-old -s now", 0),
    ("resetOffsetByTime -g n-crew -t n-old -s 2026-01-01#00:00:00:000", 0),
    ("resetOffsetByTime -g n-crew -t n-old -s now -b broker-a -q 0 -o 0", 0),
    ("skipAccumulatedMessage -g n-crew -t n-old", 0), ("cloneGroupOffset -s n-crew -d n-other -t n-old", 0),
    ("consumerProgress -g n-crew", 0), ("consumerProgress", 0), ("consumerConnection -g n-crew", 6),
    ("brokerConsumeStats -b broker-a", 0), ("updateBrokerConfig -b broker-a -k fileReservedTime -v 48", 0),
    ("wipeWritePerm -b broker-a", 0), ("addWritePerm -b broker-a", 0), ("updateKvConfig -s ns -k a -v b", 0),
    ("deleteKvConfig -s ns -k a", 0), ("updateOrderConf -t n-old -m put -v broker-a:2", 0),
    ("updateOrderConf -t n-old -m get", 0), ("updateOrderConf -t n-old -m delete", 0), ("getNamesrvConfig", 0),
    ("cleanUnusedTopic -b broker-a", 0), ("checkMsgSendRT -t n-old -a 3", 0), ("sendMsgStatus -b broker-a -c 2", 0),
    ("updateSubGroup -c DefaultCluster -g n-crew -p x", 2), ("deleteSubGroup -c DefaultCluster -g n-crew -r true", 0),
    ("deleteTopic -c DefaultCluster -t n-old", 0), ("updateStaticTopic -t x -qn 8", 9), ("topicStatus -t n-old", 6),
]  # fmt: skip


def test_lines_of_mqadmin_are_accepted_unchanged(run: Any, admin: AdminClient) -> None:
    """One after the other: each does what the noun form does, at once."""
    for line, code in OLD_LINES:
        done, _, said = run(line)
        assert done == code, f"{line}: {said}"
    assert "n-old" not in admin.topics()


def test_a_line_of_mqadmin_shows_its_change_where_asked(run: Any, admin: AdminClient) -> None:
    code, rows, said = run("updateTopic -c DefaultCluster -t n-shown --dry-run")
    assert (code, len(rows), "nothing was changed" in said) == (0, 4, True)
    assert "n-shown" not in admin.topics()


def test_a_name_that_is_not_here_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert not set(OLD) & set(ABSENT)
    for name in ABSENT[:3]:
        assert main(["admin", name, "-x", "y"]) == ExitCode.NOT_HERE
        assert f"use RocketMQ's mqadmin {name}" in capsys.readouterr().err
