"""Stock mqadmin 5.5.0 and ``mqfast admin`` on the same broker, a Java broker and ours: the same numbers, both ways.

A change by one tool is read back by the other tool. The flags of every command come from the jar.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from our_cluster import OurCluster
from real_programs import (
    HERE,
    NEEDS_JAVA,
    NEWEST,
    STEP_S,
    Machine,
    compile_java,
    free_port,
    wait_for,
    wait_for_offsets,
)
from sampling import WHOLE

from mqfast.cli.admin.old_names import ABSENT, OLD
from mqfast.cli.arguments import subcommands
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import build_parser, main
from mqfast.client.admin.admin_client import AdminClient

pytestmark = [*NEEDS_JAVA, pytest.mark.slow]
LONG_FORM = pytest.mark.skipif(not WHOLE, reason="the long form: make interop")


class Both:
    """One broker with its name server, with both tools."""

    def __init__(self, machine: Machine, namesrv: str, broker: str, capture: Callable[[list[str]], tuple[int, str]]):
        self.machine = machine
        self.namesrv = namesrv
        self.broker = broker
        self._capture = capture
        self.client_id = ""
        self.clients: subprocess.Popen[str] | None = None

    def stock(self, *lines: str) -> list[str]:
        """Return the output of stock mqadmin for each line, all in one JVM."""
        words = [word for line in lines for word in (*line.split(), "-n", self.namesrv, "--")]
        process = self.machine.java(*words, main="Admin")
        out, _ = process.communicate(timeout=2 * STEP_S)
        texts = re.split(r"(?m)^==\n", out)[:-1]
        assert len(texts) == len(lines), out[-2000:]
        return texts

    def ours(self, line: str) -> list[dict[str, Any]]:
        """Return the rows that ``mqfast admin`` prints for a line."""
        code, text = self._capture(["admin", *line.split(), "-n", self.namesrv, "--json"])
        assert code in (ExitCode.OK, ExitCode.NOTHING_FOUND), f"{line}: {code}"
        return [json.loads(row) for row in text.splitlines()]

    def life(self, *words: str) -> list[dict[str, Any]]:
        """Return the events that ``mqfast explain`` prints."""
        code, text = self._capture(["explain", *words, "-n", self.namesrv, "--json"])
        assert code == ExitCode.OK, words
        return [json.loads(event) for event in text.splitlines()]

    def start_clients(self) -> None:
        """Start a producer and a consumer of Java."""
        end = self.machine.work / f"end-{self.broker.rpartition(':')[2]}"
        self.clients = self.machine.java(self.namesrv, "T", "G", str(end), main="Stay")
        assert self.clients.stdout is not None
        for line in self.clients.stdout:
            if ready := re.match(r"ready (\S+)$", line):
                self.client_id = ready[1]
                break
        else:
            raise AssertionError("the clients did not get their message")
        wait_for_offsets(self.namesrv, "T", "G")


@pytest.fixture(scope="module", params=["java", "ours"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    work = tmp_path_factory.mktemp(f"numbers-{request.param}")
    machine = Machine(NEWEST, work, HERE / "Flow.java")
    ours: OurCluster | None = None
    capture = request.getfixturevalue("captured")
    try:
        for name in ("Admin.java", "Stay.java"):
            compile_java(machine.home, HERE / name)
        if request.param == "java":
            machine.start_namesrv()
            port = free_port()
            machine.start_broker(work / "java", {"registerNameServerPeriod": 10_000, "timerWheelEnable": "true"}, port)
            side = Both(machine, machine.namesrv, f"127.0.0.1:{port}", capture)
        else:
            ours = OurCluster(work, free_port())
            (work / "conf").mkdir(exist_ok=True)
            side = Both(machine, ours.namesrv, ours.address, capture)
        with AdminClient(side.namesrv) as admin:
            wait_for(lambda: bool(admin.clusters()), "registration")
        prepare(side)
        yield side
    finally:
        machine.end_all()
        if ours is not None:
            ours.stop()


@pytest.fixture(scope="module")
def captured() -> Callable[[list[str]], tuple[int, str]]:
    """Runs our command in this process, and returns exit code and stdout."""
    import contextlib
    import io

    def run(words: list[str]) -> tuple[int, str]:
        text = io.StringIO()
        with contextlib.redirect_stdout(text):
            code = main(words)
        return int(code), text.getvalue()

    return run


def prepare(side: Both) -> None:
    """Make topic and groups, send a message by each tool, and start clients."""
    side.ours("updateTopic -c golden -t T -r 2 -w 2 -a +message.type=NORMAL")
    side.ours("updateSubGroup -c golden -g G -d true")
    side.ours("updateSubGroup -c golden -g H -d true")
    with AdminClient(side.namesrv) as admin:
        wait_for(lambda: "T" in admin.topics(), "the topic")
    side.stock("sendMessage -t T -p hello -k key1 -c TagA -b brk -i 0")
    side.ours("sendMessage -t T -p world -k key2 -c TagB -b brk -i 1")
    side.start_clients()


def _errors(both: Both) -> str:
    logs = sorted(both.machine.work.glob("Admin-*.log"), key=lambda path: path.stat().st_mtime)
    return logs[-1].read_text()[-3000:]


def numbers(pattern: str, text: str) -> list[tuple[str, ...]]:
    return re.findall(pattern, text, re.MULTILINE)


@LONG_FORM
def test_lists(both: Both) -> None:
    topics, route, status, where, clusters = both.stock(
        "topicList", "topicRoute -t T", "topicStatus -t T", "topicClusterList -t T", "clusterList"
    )
    assert {row["topic"] for row in both.ours("topicList")} == set(topics.split())
    (row,) = both.ours("topicRoute -t T")
    queues = json.loads(re.sub(r"([{,]\s*)(\d+)\s*:", r'\1"\2":', route))
    assert (row["broker"], row["address"]) == ("brk", queues["brokerDatas"][0]["brokerAddrs"]["0"])
    assert (row["readQueues"], row["writeQueues"]) == tuple(
        queues["queueDatas"][0][name] for name in ("readQueueNums", "writeQueueNums")
    )
    ours = [(r["broker"], str(r["queue"]), str(r["min"]), str(r["max"])) for r in both.ours("topicStatus -t T")]
    assert ours == sorted(numbers(r"^(brk)\s+(\d+)\s+(\d+)\s+(\d+)", status))
    assert [r["cluster"] for r in both.ours("topicClusterList -t T")] == where.split()
    (row,) = both.ours("clusterList")
    (stock,) = numbers(r"^(golden)\s+(\w+)\s+(\d+)\s+(\S+)\s+(\w+)", clusters)
    assert (row["cluster"], row["broker"], str(row["id"]), row["address"], row["version"]) == stock


@LONG_FORM
def test_brokers(both: Both) -> None:
    status, config, name_servers = both.stock(
        f"brokerStatus -b {both.broker}", f"getBrokerConfig -b {both.broker}", "getNamesrvConfig"
    )
    stock = dict(numbers(r"^(\S+)\s*: (.*)$", status))
    ours = {row["name"]: row["value"] for row in both.ours(f"brokerStatus -b {both.broker}")}
    assert set(ours) == set(stock)
    for name in ("brokerVersionDesc", "bootTimestamp", "commitLogMaxOffset", "msgPutTotalTodayNow"):
        if name in stock:
            assert ours[name].strip() == stock[name].strip(), name
    settings = {row["name"]: row["value"] for row in both.ours(f"getBrokerConfig -b {both.broker}")}
    stock = {name: value.strip() for name, value in numbers(r"^(\S+)\s+=  ?(.*)$", config)}
    assert set(stock) == set(settings)
    for name in ("brokerName", "listenPort", "fileReservedTime", "flushDiskType"):
        assert settings[name] == stock[name]
    ours = {row["name"] for row in both.ours("getNamesrvConfig")}
    assert {name for name, _ in numbers(r"^([\w.]+)\s+=\s*(.*)$", name_servers)} <= ours


@LONG_FORM
def test_groups_and_clients(both: Both) -> None:
    progress, members, producers = both.stock(
        "consumerProgress -g G", "consumerConnection -g G", "producerConnection -g G-producer -t T"
    )
    ours = [
        (r["topic"], r["broker"], str(r["queue"]), str(r["committed"]), str(r["behind"]))
        for r in both.ours("consumerProgress -g G") if r["topic"] == "T"
    ]  # fmt: skip
    stock = [
        (topic, broker, queue, committed, behind)
        for topic, broker, queue, _, committed, behind in numbers(
            r"^(T)\s+(brk)\s+(\d+)\s+(\d+)\s+(\d+)\s+(?:\S*\s+)??(-?\d+)\s+\d+\s+", progress
        )
    ]
    assert stock, progress
    assert ours == sorted(stock)
    (row,) = both.ours("consumerConnection -g G")
    assert row["client"] == both.client_id
    assert both.client_id in members
    (row,) = both.ours("producerConnection -g G-producer -t T")
    assert row["client"] in producers
    wait_for(lambda: {row["group"]: row["behind"] for row in both.ours("consumerProgress")}["G"] == 0, "the offsets")
    (row,) = both.ours(f"consumerStatus -g G -i {both.client_id}")
    assert row["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"


@LONG_FORM
def test_messages(both: Both) -> None:
    by_key, by_offset, printed = both.stock(
        "queryMsgByKey -t T -k key1", "queryMsgByOffset -t T -b brk -i 0 -o 0", "printMsg -t T -d true"
    )
    (row,) = both.ours("queryMsgByKey -t T -k key1")
    unique = row["properties"]["UNIQ_KEY"]
    assert numbers(rf"^{unique}\s+(\d+)\s+(\d+)", by_key) == [(str(row["queueId"]), str(row["queueOffset"]))]
    (row,) = both.ours("queryMsgByOffset -t T -b brk -i 0 -o 0")
    facts = dict(numbers(r"^([\w ]+?):\s+(\S+)$", by_offset))
    assert (facts["Queue ID"], facts["Queue Offset"]) == (str(row["queueId"]), str(row["queueOffset"]))
    assert facts["CommitLog Offset"] == str(row["physicalOffset"])
    rows = both.ours("printMsg -t T -d true")
    assert {row["properties"]["UNIQ_KEY"] for row in rows} == set(re.findall(r"UNIQ_KEY=(\w+)", printed))
    assert {row["body"] for row in rows} >= {"hello", "world", "body"}
    assert len(both.ours("printMsgByQueue -t T -a brk -i 0 -d true")) + len(
        both.ours("printMsgByQueue -t T -a brk -i 1 -d true")
    ) == len(rows)
    assert len(both.ours("consumeMessage -t T -b brk -i 0 -o 0 -c 1")) == 1
    by_id, by_unique = both.stock(f"queryMsgById -i {row['msgId']} -t T", f"queryMsgByUniqueKey -i {unique} -t T")
    assert unique in by_id
    assert unique in by_unique
    for line in (f"queryMsgById -i {row['msgId']} -t T", f"queryMsgByUniqueKey -i {unique} -t T"):
        assert [printed["physicalOffset"] for printed in both.ours(line)] == [row["physicalOffset"]], line


@LONG_FORM
def test_the_life_of_a_message(both: Both) -> None:
    """Explain a consumed message by unique id and by offset id: record, unit and group."""
    (row,) = both.ours("queryMsgByKey -t T -k key1")
    for words in ((row["properties"]["UNIQ_KEY"], "--topic", "T"), (row["msgId"],)):
        events = both.life(*words)
        assert [event["kind"] for event in events[:2]] == ["born", "put"]
        assert events[1]["text"] == "stored; a unit of the queue names the record"
        assert events[1]["place"]["physical_offset"] == row["physicalOffset"]
        wait_for(lambda words=words: _kinds(both.life(*words))["G"] == "passed", "the offset")


def _kinds(events: list[dict[str, Any]]) -> dict[str, str]:
    return {str(event["group"]): event["kind"] for event in events}


def committed(both: Both, group: str) -> dict[int, int]:
    return {row["queue"]: row["committed"] for row in both.ours(f"consumerProgress -g {group} -t T")}


@LONG_FORM
def test_each_sees_the_changes_of_the_other(both: Both) -> None:
    """Offsets of a group without members, settings, permissions."""
    both.ours("resetOffsetByTime -g H -t T -s -1")
    (progress,) = both.stock("consumerProgress -g H -t T")
    ours = committed(both, "H")
    stock = {int(q): int(offset) for q, offset in numbers(r"^T\s+brk\s+(\d+)\s+\d+\s+(\d+)", progress)}
    assert stock == ours != {}
    assert all(ours.values())
    both.stock("resetOffsetByTime -g H -t T -s 0")
    assert set(committed(both, "H").values()) == {0}
    both.ours("skipAccumulatedMessage -g H -t T")
    assert committed(both, "H") == ours
    both.ours("group reset H T --to -1 --queue 0 --yes")
    (progress,) = both.stock("consumerProgress -g H -t T")
    moved = {int(q): int(offset) for q, offset in numbers(r"^T\s+brk\s+(\d+)\s+\d+\s+(\d+)", progress)}
    assert moved == {**ours, 0: ours[0] - 1}
    both.ours(f"updateBrokerConfig -b {both.broker} -k fileReservedTime -v 47")
    (config,) = both.stock(f"getBrokerConfig -b {both.broker}")
    assert numbers(r"^fileReservedTime\s+=\s+(\d+)", config) == ["47"]
    both.stock(f"updateBrokerConfig -b {both.broker} -k fileReservedTime -v 46")
    assert both.ours("broker config get brk fileReservedTime")[0]["value"] == "46"
    both.ours("updateTopicPerm -t T -p 4 -c golden")
    (route,) = both.stock("topicRoute -t T")
    assert '"perm":4' in route
    both.stock(f"updateTopicPerm -t T -p 6 -b {both.broker}")
    assert both.ours("topicRoute -t T")[0]["perm"] == "rw"
    both.ours("updateKvConfig -s spaces -k a -v b")
    assert both.ours("namesrv values --namespace spaces")[0]["value"] == "b"
    both.ours("wipeWritePerm -b brk")
    (route,) = both.stock("topicRoute -t T")
    assert '"perm":4' in route
    both.ours("addWritePerm -b brk")
    (route,) = both.stock("topicRoute -t T")
    assert '"perm":6' in route


@LONG_FORM
def test_a_running_group_is_reset(both: Both) -> None:
    """Reset a queue of a group with members: the Java consumer reads again."""
    ours = committed(both, "G")
    rows = both.ours("group reset G T --to earliest --queue 1 --yes")
    assert [row["to"] for row in rows] == [0]
    wait_for(lambda: committed(both, "G") == ours, "the consumer to read again")


@LONG_FORM
def test_deletions(both: Both) -> None:
    both.ours("updateTopic -c golden -t Gone -r 1 -w 1")
    both.ours("updateSubGroup -c golden -g Gone")
    topic, group = both.stock("deleteTopic -c golden -t Gone", "deleteSubGroup -c golden -g Gone -r true")
    assert ("success" in topic, "success" in group) == (True, True), _errors(both)
    assert "Gone" not in {row["topic"] for row in both.ours("topicList")}
    assert "Gone" not in {row["group"] for row in both.ours("group names --all")}
    both.ours("updateTopic -c golden -t Gone -r 1 -w 1")
    both.ours("deleteTopic -c golden -t Gone")
    (topics,) = both.stock("topicList")
    assert "Gone" not in topics.split()


# --- the flags of the jar ---


@pytest.fixture(scope="module")
def flags(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bool]]:
    """Command -> option -> whether it is required, of the jar."""
    machine = Machine(NEWEST, tmp_path_factory.mktemp("flags"), HERE / "Flow.java")
    try:
        compile_java(machine.home, HERE / "AdminOptions.java")
        out, _ = machine.java(main="AdminOptions").communicate(timeout=STEP_S)
    finally:
        machine.end_all()
    table: dict[str, dict[str, bool]] = {}
    for line in out.splitlines():
        command, _, rest = line.partition("\t")
        options = table.setdefault(command, {})
        short, long, _, required = rest.split("\t")
        for name, dashes in ((short, "-"), (long.strip().replace(" ", "_"), "--")):
            if name and name != "null":
                options[dashes + name.strip()] = required == "true"
    return table


def test_every_command_of_the_jar_is_known(flags: dict[str, dict[str, bool]]) -> None:
    assert len(flags) > 80
    assert set(flags) <= {*OLD, *ABSENT}


@pytest.mark.parametrize("name", sorted(OLD))
def test_every_flag_of_the_jar_is_known(flags: dict[str, dict[str, bool]], name: str) -> None:
    if name not in flags:
        pytest.skip(f"{name} is of RocketMQ 4.9")
    parser = subcommands(subcommands(build_parser())["admin"])[name]
    known = {option: action for action in parser._actions for option in action.option_strings}
    assert set(flags[name]) <= set(known), name
    for option, is_required in flags[name].items():
        if not is_required and option not in ("-n",):
            assert not known[option].required, f"{name} {option}: optional in mqadmin"
