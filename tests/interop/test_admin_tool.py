"""Stock mqadmin 5.5.0 against our broker and against a Java broker with the same actions: the same output in shape.

Numbers, hosts, ids and times are left out of the comparison; so is the order of lines where Java's sets have none.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

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
    older_clients,
    wait_for,
    wait_for_offsets,
)

from mqfast.remoting.client import RemotingClient

__all__ = ["older_clients"]  # a fixture

pytestmark = [*NEEDS_JAVA, pytest.mark.slow]

_TIME = re.compile(r"\d{4}-\d\d-\d\d[ #]\d\d:\d\d:\d\d(?:[,:]\d{1,3})?|\d{17}")
_ID = re.compile(r"\b[0-9A-F]{32,56}\b")
_ADDRESS = re.compile(r"/?127\.0\.0\.1:\d+")
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:E-?\d+)?")

# What only RocksDB has, or only ours (for the exporter), and names of settings that are no settings of a property file.
_NOT_OURS = re.compile(r"RMQ_SYS_ROCKSDB_TRANS_(?:OP_)?HALF_TOPIC|\bbrokerVersion\b")
_NO_SETTINGS = {"isBrokerContainer", "isInBrokerContainer", "isScanAvailableNameSrv", "enableDLegerCommitLog"}
_SECRETS = {"socksProxyConfig", "metricsGrpcExporterHeader"}  # passwords and tokens, which leave the broker for nobody


class Side:
    """A name server, a broker, and what the admin tool prints of them."""

    def __init__(self, machine: Machine, namesrv: str, broker: str, end_file: Path) -> None:
        self.machine = machine
        self.namesrv = namesrv
        self.broker = broker
        self.client_id = ""
        self.unique_key = ""
        self.end_file = end_file
        self.clients: subprocess.Popen[str] | None = None

    @property
    def first_message(self) -> str:
        """The id of the message that stands first in the log."""
        return f"7F000001{int(self.broker.rpartition(':')[2]):08X}{0:016X}"

    def run(self, commands: list[list[str]]) -> dict[str, str]:
        """What each command prints; words in capitals stand for what differs between the two sides."""
        names = {
            "BROKER": self.broker,
            "CLIENT": self.client_id,
            "UNIQUE": self.unique_key,
            "FIRST": self.first_message,
        }
        words = [names.get(word, word) for line in commands for word in (*line, "-n", self.namesrv, "--")]
        process = self.machine.java(*words, main="Admin")
        out, _ = process.communicate(timeout=2 * STEP_S)
        found = re.split(r"(?m)^==\n", out)[:-1]
        assert len(found) == len(commands), out[-2000:]
        return {" ".join(line): text for line, text in zip(commands, found, strict=True)}

    def start_clients(self) -> None:
        """A producer and a consumer that stay."""
        self.end_file.unlink(missing_ok=True)
        self.clients = self.machine.java(self.namesrv, "T", "G", str(self.end_file), main="Stay")
        assert self.clients.stdout is not None
        late = threading.Timer(STEP_S, self.clients.kill)
        late.start()
        try:
            for line in self.clients.stdout:
                found = re.match(r"ready (\S+)$", line)
                if found:
                    self.client_id = found[1]
                    break
            else:
                raise AssertionError("the clients did not get their message")
        finally:
            late.cancel()
        wait_for_offsets(self.namesrv, "T", "G")

    def end_clients(self) -> None:
        """They leave in order."""
        if self.clients is not None:
            self.end_file.touch()
            self.clients.wait(STEP_S)
            self.clients = None

    def shape(self, text: str) -> list[str]:
        """The output without what differs from run to run."""
        names = {self.broker: "BROKER", self.namesrv: "NAMESRV", self.client_id: "CLIENT", self.unique_key: "ID"}
        for word, name in names.items():
            text = text.replace(word, name) if word else text
        for pattern, name in ((_ID, "ID"), (_TIME, "TIME"), (_ADDRESS, "HOST"), (_NUMBER, "N")):
            text = pattern.sub(name, text)
        lines = (re.sub(r"N(?: N)+", "N", " ".join(line.split())) for line in text.splitlines())
        return sorted(line for line in lines if line and not _NOT_OURS.search(line))


def cluster_info(namesrv: str) -> bytes:
    """What a name server says of its brokers."""

    async def ask() -> bytes:
        client = RemotingClient()
        try:
            return bytes((await client.call(namesrv, 106, timeout_ms=20_000)).body)
        finally:
            await client.close()

    return asyncio.run(ask())


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    work = tmp_path_factory.mktemp("admin")
    machine = Machine(NEWEST, work, HERE / "Flow.java")
    ours: OurCluster | None = None
    try:
        machine.start_namesrv()
        port = free_port()
        settings = {"timerWheelEnable": "true", "registerNameServerPeriod": 10_000}
        machine.start_broker(work / "java", settings, port)
        for name in ("Admin.java", "Stay.java"):
            compile_java(machine.home, HERE / name)
        ours = OurCluster(work, free_port())
        both = (
            Side(machine, machine.namesrv, f"127.0.0.1:{port}", work / "end-java"),
            Side(machine, ours.namesrv, ours.address, work / "end-ours"),
        )
        wait_for(lambda: b"brk" in cluster_info(machine.namesrv), "registration")
        yield both
    finally:
        machine.end_all()
        if ours is not None:
            ours.stop()


PREPARE = [
    ["updateTopic", "-c", "golden", "-t", "T", "-r", "2", "-w", "2", "-a", "+message.type=NORMAL"],
    ["updateSubGroup", "-c", "golden", "-g", "G", "-d", "true"],
    ["sendMessage", "-t", "T", "-p", "hello", "-k", "key1", "-c", "TagA", "-b", "brk", "-i", "0"],
]
WITH_CLIENTS = [
    ["clusterList"],
    ["clusterList", "-m"],
    ["brokerStatus", "-b", "BROKER"],
    ["topicList"],
    ["topicList", "-c"],
    ["topicRoute", "-t", "T"],
    ["topicStatus", "-t", "T"],
    ["topicClusterList", "-t", "T"],
    ["queryMsgByKey", "-t", "T", "-k", "key1"],
    ["queryMsgByKey", "-t", "T", "-k", "none"],
    ["queryMsgById", "-i", "FIRST", "-t", "T"],
    ["queryMsgByUniqueKey", "-t", "T", "-i", "UNIQUE"],
    ["queryMsgByUniqueKey", "-t", "T", "-i", "UNIQUE", "-g", "G", "-d", "CLIENT"],
    ["queryMsgByOffset", "-t", "T", "-b", "brk", "-i", "0", "-o", "0"],
    ["queryCq", "-t", "T", "-q", "0", "-i", "0", "-c", "10", "-b", "BROKER"],
    ["printMsg", "-t", "T", "-d", "true"],
    ["consumeMessage", "-t", "T", "-c", "1", "-b", "brk", "-i", "0", "-o", "0"],
    ["getBrokerConfig", "-b", "BROKER"],
    ["statsAll", "-t", "T"],
    ["brokerConsumeStats", "-b", "BROKER"],
    ["consumerConnection", "-g", "G"],
    ["consumerProgress", "-g", "G"],
    ["consumerProgress", "-g", "G", "-s", "true"],
    ["consumerProgress"],
    ["producerConnection", "-g", "G-producer", "-t", "T"],
    ["producerConnection", "-g", "nobody", "-t", "T"],
    ["getConsumerStatus", "-g", "G", "-t", "T"],
    ["getConsumerConfig", "-g", "G"],
    ["allocateMQ", "-t", "T", "-i", "10.0.0.1,10.0.0.2"],
    ["getColdDataFlowCtrInfo", "-b", "BROKER"],
    ["updateColdDataFlowCtrGroupConfig", "-b", "BROKER", "-g", "G", "-v", "10"],
    ["removeColdDataFlowCtrGroupConfig", "-b", "BROKER", "-g", "G"],
    ["setCommitLogReadAheadMode", "-b", "BROKER", "-m", "0"],
    ["setConsumeMode", "-b", "BROKER", "-t", "T", "-g", "G", "-m", "PULL", "-q", "0"],
    ["haStatus", "-b", "BROKER"],
    ["getBrokerEpoch", "-b", "brk"],
]
AFTERWARDS = [
    ["consumerConnection", "-g", "G"],
    ["resetOffsetByTime", "-g", "G", "-t", "T", "-s", "-1"],
    ["resetOffsetByTime", "-g", "G", "-t", "T", "-s", "now"],
    ["skipAccumulatedMessage", "-g", "G", "-t", "T"],
    ["resetOffsetByTime", "-g", "nobody", "-t", "T", "-s", "now"],
    ["cloneGroupOffset", "-s", "G", "-d", "H", "-t", "T"],
    ["updateBrokerConfig", "-b", "BROKER", "-k", "fileReservedTime", "-v", "48"],
    ["updateBrokerConfig", "-b", "BROKER", "-k", "configBlackList", "-v", "x"],
    ["updateTopicPerm", "-t", "T", "-p", "4", "-b", "BROKER"],
    ["updateTopic", "-b", "BROKER", "-t", "bad.name"],
    ["updateTopic", "-b", "BROKER", "-t", "TBW102"],
    ["cleanExpiredCQ", "-b", "BROKER"],
    ["cleanUnusedTopic", "-b", "BROKER"],
    ["deleteExpiredCommitLog", "-b", "BROKER"],
    ["wipeWritePerm", "-b", "brk"],
    ["addWritePerm", "-b", "brk"],
    ["deleteSubGroup", "-c", "golden", "-g", "G", "-r", "true"],
    ["deleteTopic", "-c", "golden", "-t", "T"],
    ["deleteTopic", "-c", "golden", "-t", "TBW102"],
    ["topicList"],
]


@pytest.fixture(scope="module")
def said(sides: tuple[Side, Side]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """What both sides print, in shape: command -> lines."""
    found: list[dict[str, list[str]]] = []
    for side in sides:
        texts = side.run(PREPARE)
        side.unique_key = _ID.findall(texts[" ".join(PREPARE[-1])])[-1]
        side.start_clients()
        texts |= side.run(WITH_CLIENTS)
        side.end_clients()
        texts |= {f"afterwards {line}": text for line, text in side.run(AFTERWARDS).items()}
        found.append({line: side.shape(text) for line, text in texts.items()})
    return found[0], found[1]


EVERY = [
    *(" ".join(line) for line in (*PREPARE, *WITH_CLIENTS)),
    *(f"afterwards {' '.join(line)}" for line in AFTERWARDS),
]
# What has other values by its nature: compared by the names that are there.
BY_NAME = ["brokerStatus -b BROKER", "getBrokerConfig -b BROKER"]
# Java has epochs under a controller alone: test_promotion_java.py looks at what is printed of ours.
OF_OURS = ["getBrokerEpoch -b brk"]


@pytest.mark.parametrize("line", [line for line in EVERY if line not in (*BY_NAME, *OF_OURS)])
def test_it_prints_what_it_prints_on_java(said: tuple[dict[str, list[str]], dict[str, list[str]]], line: str) -> None:
    java, ours = said
    assert ours[line] == java[line]


@pytest.mark.parametrize("line", BY_NAME)
def test_every_name_of_java_is_there(said: tuple[dict[str, list[str]], dict[str, list[str]]], line: str) -> None:
    java, ours = ({text.split(" ")[0].split("_/")[0] for text in one[line]} for one in said)
    assert java - ours <= _NO_SETTINGS | _SECRETS
    assert not ours & _SECRETS
    assert len(java) > 50


def test_something_was_printed(said: tuple[dict[str, list[str]], dict[str, list[str]]]) -> None:
    """So that two empty outputs do not count as equal."""
    _, ours = said
    for line, words in {
        "clusterList": "golden brk N BROKER V",
        "queryMsgByUniqueKey -t T -i UNIQUE": "trackType=CONSUMED",
        "queryMsgById -i FIRST -t T": "TagA",
        "consumerConnection -g G": "CLUSTERING",
        "producerConnection -g G-producer -t T": "CLIENT",
        "afterwards deleteTopic -c golden -t T": "success",
        "afterwards deleteSubGroup -c golden -g G -r true": "success",
        "afterwards updateBrokerConfig -b BROKER -k fileReservedTime -v 48": "success",
    }.items():
        assert any(words in text for text in ours[line]), f"{line}: {words} is not in {ours[line]}"
    assert sum(1 for line in EVERY if ours[line]) > 38


OLDER = {
    "updateTopic -c golden -t Old -r 2 -w 2": "success",
    "updateSubGroup -c golden -g OldGroup": "success",
    "sendMessage -t Old -p hello -k key1 -c TagA -b brk -i 0": "SEND_OK",
    "clusterList": "golden brk N BROKER V",
    "brokerStatus -b BROKER": "putTps",
    "topicList": "Old",
    "topicRoute -t Old": '"perm":N',
    "topicStatus -t Old": "brk N",
    "queryMsgByKey -t Old -k key1": "ID",
    "printMsg -t Old -d true": "hello",
    "resetOffsetByTime -g OldGroup -t Old -s -1": "",
    "consumerProgress -g OldGroup": "",
    "cloneGroupOffset -s OldGroup -d OldCopy -t Old": "",
    "getBrokerConfig -b BROKER": "brokerName",
    "updateBrokerConfig -b BROKER -k fileReservedTime -v 48": "success",
    "statsAll -t Old": "Old",
    "brokerConsumeStats -b BROKER": "",
    "deleteSubGroup -c golden -g OldGroup": "success",
    "deleteTopic -c golden -t Old": "success",
}


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
def test_older_tools_work(tmp_path: Path, older_clients: Callable[[str], Machine], release: str) -> None:
    machine = older_clients(release)
    compile_java(machine.home, HERE / "Admin.java")
    (machine.work / "conf").mkdir(exist_ok=True)
    (machine.work / "conf" / "logback_tools.xml").write_text("<configuration><root level='OFF'/></configuration>")
    ours = OurCluster(tmp_path, free_port())
    try:
        side = Side(machine, ours.namesrv, ours.address, tmp_path / "end")
        texts = side.run([line.split() for line in OLDER])
        for line, words in OLDER.items():
            found = side.shape(texts[line])
            assert not words or any(words in text for text in found), f"{line}: {words} is not in {found}"
            assert not any("Exception" in text for text in found), f"{line}: {found}"
    finally:
        ours.stop()
