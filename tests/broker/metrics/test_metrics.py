"""/metrics and the probes of a running broker; the Grafana board and the alert rules name only what is exposed."""

from __future__ import annotations

import asyncio
import errno
import json
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from running import Running, running_broker, serve

import mqfast
from mqfast.broker.metrics import metrics
from mqfast.errors import StoreFailed

GRAFANA = Path(__file__).resolve().parents[3] / "docs" / "grafana"
PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
_SAMPLE = re.compile(r'([a-zA-Z_:][\w:]*)\{((?:[a-zA-Z_]\w*="(?:[^"\\]|\\.)*",?)*)\} (\S+)')
_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')


class Sample(NamedTuple):
    name: str
    labels: dict[str, str]
    value: float


class Page:
    """A scrape, read by the rules of the format: each family has HELP, TYPE and its own samples, each only once."""

    def __init__(self, text: str) -> None:
        assert text.endswith("\n")
        self.kinds: dict[str, str] = {}
        self.samples: list[Sample] = []
        current = ""
        for line in text.splitlines():
            if line.startswith("# HELP "):
                current = line.split(" ")[2]
                assert current not in self.kinds
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split(" ")
                assert name == current
                self.kinds[name] = kind
            else:
                found = _SAMPLE.fullmatch(line)
                assert found, line
                assert found[1] in (current, *(current + end for end in ("_bucket", "_sum", "_count"))), line
                self.samples.append(Sample(found[1], dict(_LABEL.findall(found[2])), float(found[3])))
        seen = [(one.name, tuple(sorted(one.labels.items()))) for one in self.samples]
        assert len(seen) == len(set(seen))

    def values(self, name: str, **labels: str) -> list[float]:
        return [one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        (found,) = self.values(name, **labels)
        return found


async def fetch(one: Running, path: str) -> tuple[int, str]:
    async with asyncio.timeout(300):
        while one.parts.admin.http is None:
            await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection(*one.parts.admin.http.address)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.read()).decode()
        writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def scrape(one: Running) -> Page:
    status, body = await fetch(one, "/metrics")
    assert status == 200
    return Page(body)


def test_messages_in_and_out(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for number in range(3):
            await one.send("T", b"x" * 10, queue_id=number)
        one.context.stats.got("T", "g", 2, 500)
        one.context.stats.add("SEND_TO_DLQ", "T@g")
        page = await scrape(one)
        common = {"cluster": "DefaultCluster", "node_id": "broker-a", "node_type": "broker"}
        assert all(common.items() <= one_sample.labels.items() for one_sample in page.samples)
        assert page.value("rocketmq_messages_in_total", topic="T", message_type="normal", is_system="false") == 3
        assert page.value("rocketmq_throughput_in_total", topic="T") > 300
        assert page.value("rocketmq_messages_out_total", topic="T", consumer_group="g", is_retry="false") == 2
        assert page.value("rocketmq_throughput_out_total", topic="T", consumer_group="g") == 500
        assert page.value("rocketmq_send_to_dlq_messages_total", topic="T", consumer_group="g") == 1
        assert page.value("rocketmq_message_size_bucket", topic="T", le="1024") == 3
        assert page.value("rocketmq_message_size_count", topic="T") == 3
        assert page.kinds["rocketmq_messages_in_total"] == "counter"
        assert page.kinds["rocketmq_message_size"] == "histogram"

    serve(tmp_path, flow, **PROM)


def test_how_long_requests_took(tmp_path: Path) -> None:
    """The names, labels and steps of a Java broker 5.5.0 (rocketmq_rpc_latency)."""
    name = "rocketmq_rpc_latency_milliseconds"
    pull = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 1, "maxMsgNums": 32, "sysFlag": 6,
        "commitOffset": 0, "suspendTimeoutMillis": 20, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip

    async def flow(one: Running) -> None:
        for _ in range(3):
            assert (await one.send("T", b"x")).code == 0
        assert (await one.call(310)).code == 1
        assert (await one.call(12345)).code == 3
        assert (await one.call(11, **{**pull, "queueOffset": 3})).code == 19
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "1"}
        await one.client.oneway(one.address, 15, fields)
        assert (await one.call(28)).code == 0
        page = await scrape(one)
        assert page.kinds[name] == "histogram"
        rows = {
            (labels["request_code"], labels["response_code"], labels["is_long_polling"], labels["result"]): int(count)
            for sample, labels, count in page.samples
            if sample == f"{name}_count" and labels["protocol_type"] == "remoting"
        }
        assert rows == {
            ("send_message_v2", "success", "false", "success"): 3,
            ("send_message_v2", "system_error", "false", "success"): 1,
            ("12345", "request_code_not_supported", "false", "success"): 1,
            ("pull_message", "pull_not_found", "true", "success"): 1,
            ("update_consumer_offset", "success", "false", "oneway"): 1,
            ("get_broker_runtime_info", "success", "false", "success"): 1,
        }
        steps = [one.labels["le"] for one in page.samples if one.name == f"{name}_bucket"][:10]
        assert steps == ["1", "3", "5", "7", "10", "100", "1000", "2000", "3000", "+Inf"]
        assert page.value(f"{name}_sum", request_code="pull_message") >= 20
        assert page.value(f"{name}_bucket", request_code="pull_message", le="10") == 0

    serve(tmp_path, flow, **PROM)


def test_codes_that_nobody_knows_do_not_fill_the_memory(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        calls = [one.call(code) for code in range(20_000, 22_100)]
        assert {answer.code for answer in await asyncio.gather(*calls)} == {3}
        page = await scrape(one)
        counts = page.values("rocketmq_rpc_latency_milliseconds_count")
        assert len(counts) == 2001
        assert sum(counts) == 2100
        assert page.value("rocketmq_rpc_latency_milliseconds_count", request_code="other") == 100

    serve(tmp_path, flow, **PROM)


@pytest.mark.parametrize("settings", [{"enableRemotingMetrics": False}])
def test_calls_are_counted_only_where_that_is_asked_for(tmp_path: Path, settings: dict[str, Any]) -> None:
    async def flow(one: Running) -> None:
        await one.send("T", b"x")
        assert "rocketmq_rpc_latency_milliseconds" not in (await scrape(one)).kinds

    serve(tmp_path, flow, **PROM, **settings)


def test_half_messages_that_are_open(tmp_path: Path) -> None:
    def half(number: int) -> str:
        return f"TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01U{number}\x02"

    async def flow(one: Running) -> None:
        stored = [await one.send(topic, b"x", properties=half(n)) for n, topic in enumerate(["A", "A", "B"])]
        page = await scrape(one)
        assert page.kinds["rocketmq_half_messages"] == "gauge"
        assert page.value("rocketmq_half_messages", topic="A") == 2
        assert page.value("rocketmq_half_messages", topic="B") == 1
        for answer, kind in ((stored[0], 8), (stored[2], 12)):
            place = int(answer.ext_fields["msgId"][-16:], 16)
            ended = await one.call(
                37, producerGroup="p", topic="A", tranStateTableOffset=answer.ext_fields["queueOffset"],
                commitLogOffset=place, commitOrRollback=kind, fromTransactionCheck="false", msgId="U",
                transactionId="U",
            )  # fmt: skip
            assert ended.code == 0
        await one.send("B", b"x", properties=half(9))
        page = await scrape(one)
        assert page.value("rocketmq_half_messages", topic="A") == 1
        assert page.value("rocketmq_half_messages", topic="B") == 1

    serve(tmp_path, flow, **PROM)


def test_lag_of_groups_and_queues(tmp_path: Path) -> None:
    now = [1_800_000_000_000]

    async def flow(one: Running) -> None:
        for _ in range(5):
            await one.send("T", b"x", queue_id=1, queues=2)
        one.context.offsets.commit("g", "T", 1, 2)
        one.context.offsets.commit("done", "T", 1, 5)
        one.context.offsets.commit("g", "gone", 0, 1)
        now[0] += 10_000_000_000_000
        page = await scrape(one)
        assert page.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="g") == 3
        assert page.value("rocketmq_consumer_lag_messages", topic="T", consumer_group="done") == 0
        late_ms = page.value("rocketmq_consumer_lag_latency_milliseconds", topic="T", consumer_group="g")
        assert late_ms > 1_000_000_000_000
        assert page.value("rocketmq_consumer_ready_messages", topic="T", consumer_group="g") == 3
        assert page.value("mqfast_group_lag_messages", group="g", topic="T", queue="1") == 3
        seconds = page.value("mqfast_group_lag_seconds", group="g", topic="T", queue="1")
        assert seconds == pytest.approx(late_ms / 1000, rel=1e-6)
        assert page.values("mqfast_group_lag_messages", group="done") == [], "only queues with lag"
        assert page.values("mqfast_group_lag_messages", topic="gone") == []

    async def run() -> None:
        async with running_broker(tmp_path, now_ms=lambda: now[0], **PROM) as one:
            await flow(one)

    asyncio.run(asyncio.wait_for(run(), 300))


def test_more_queues_than_shown_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_QUEUES_SHOWN", 2)

    async def flow(one: Running) -> None:
        for queue_id, many in enumerate((1, 4, 2, 3)):
            for _ in range(many):
                await one.send("T", b"x", queue_id=queue_id)
        one.context.offsets.commit("g", "T", 0, 0)
        page = await scrape(one)
        assert {one_sample.labels["queue"]: one_sample.value for one_sample in page.samples
                if one_sample.name == "mqfast_group_lag_messages"} == {"1": 4, "3": 3, "other": 3}  # fmt: skip

    serve(tmp_path, flow, **PROM)


def test_connections_and_the_broker_itself(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        body = {
            "clientID": "c", "producerDataSet": [{"groupName": "p"}],
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
        }  # fmt: skip
        await one.call(34, json.dumps(body).encode())
        page = await scrape(one)
        assert page.value("rocketmq_producer_connections", language="java") == 1
        assert page.value("rocketmq_consumer_connections", consumer_group="g", consume_mode="push") == 1
        assert page.value("rocketmq_broker_permission") == 6
        assert page.value("rocketmq_topic_number") == len(one.context.topics.table)
        assert page.value("rocketmq_processor_watermark", processor="send") == 0
        assert page.value("mqfast_store_state", state="open") == 1
        assert page.value("mqfast_store_state", state="failed") == 0
        assert 0 < page.value("mqfast_disk_used_ratio") < 1
        assert page.value("mqfast_cpu_seconds_total") > 0
        assert page.value("rocketmq_storage_dispatch_behind_bytes", storage_type="local") == 0

    serve(tmp_path, flow, **PROM, metricsLabel="zone:a,broken,x-y:z")


def test_more_labels_of_the_owner(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        page = await scrape(one)
        assert {one_sample.labels.get("zone") for one_sample in page.samples} == {"a"}

    serve(tmp_path, flow, **PROM, metricsLabel="zone:a,broken,x-y:z")


def test_probes_of_a_broker_that_is_well(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for path in ("/live", "/ready", "/health"):
            status, body = await fetch(one, path)
            assert (status, json.loads(body)) == (200, {"status": "ok", "reasons": []})

    serve(tmp_path, flow, **PROM)


async def reasons(one: Running, path: str) -> list[str]:
    status, body = await fetch(one, path)
    found: dict[str, Any] = json.loads(body)
    assert (status, found["status"]) == ((503, "failing") if found["reasons"] else (200, "ok"))
    return list(found["reasons"])


def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"  # nobody listens there

        async def flow(one: Running) -> None:
            assert await reasons(one, "/live") == []
            assert await reasons(one, "/ready") == ["no name server has registered the broker"]
            assert await reasons(one, "/health") == ["no name server has registered the broker"]

        serve(tmp_path, flow, **PROM, namesrvAddr=address)


def test_a_broker_that_may_not_or_can_not_write_is_not_healthy(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        one.context.config.update({"brokerPermission": "4"}, "test")
        assert await reasons(one, "/health") == ["brokerPermission has no write bit"]
        assert await reasons(one, "/ready") == []
        one.context.config.update({"brokerPermission": "6", "startAcceptSendRequestTimeStamp": str(2**62)}, "test")
        assert await reasons(one, "/health") == ["startAcceptSendRequestTimeStamp lies ahead"]
        one.context.config.update({"startAcceptSendRequestTimeStamp": "0"}, "test")
        one.context.stopping.set()
        assert await reasons(one, "/ready") == ["the broker stops"]
        one.context.stopping.clear()
        one.context.store.log.fail(errno.EIO)
        assert await reasons(one, "/health") == ["a write or sync of the store failed; it needs a restart"]
        assert (await scrape(one)).value("mqfast_flush_failed") == 1

    with pytest.raises(StoreFailed):
        serve(tmp_path, flow, **PROM)
    with mqfast.open(tmp_path):
        pass  # its lock is free


def test_without_the_setting_nothing_listens(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert one.parts.admin.http is None

    serve(tmp_path, flow)


def test_a_port_that_is_taken_does_not_stop_the_broker(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        async def flow(one: Running) -> None:
            assert (await one.send("T", b"x")).code == 0
            assert one.parts.admin.http is None

        serve(tmp_path, flow, metricsExporterType="PROM", metricsPromExporterPort=taken.getsockname()[1])


# --- what is built on the metrics ---

_NAME = re.compile(r"\b(?:rocketmq|mqfast)_\w+")
_SELECTOR = re.compile(r"\b((?:rocketmq|mqfast)_\w+)\{([^}]*)\}")


def expressions_of_board() -> list[str]:
    board = json.loads((GRAFANA / "broker.json").read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    found += [one["query"]["query"] for one in board["templating"]["list"] if one["type"] == "query"]
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids) > 10
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board["panels"]}
    assert len(places) == len(ids)
    return found


def expressions_of_alerts() -> list[str]:
    yaml = pytest.importorskip("yaml")
    rules = [
        rule for group in yaml.safe_load((GRAFANA / "alerts.yml").read_text())["groups"] for rule in group["rules"]
    ]
    names = [rule["alert"] for rule in rules]
    assert len(set(names)) == len(names) > 5
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert rule["annotations"]["summary"]
    return [rule["expr"] for rule in rules]


@pytest.mark.parametrize("expressions", [expressions_of_board, expressions_of_alerts])
def test_every_metric_and_label_that_is_named_is_exposed(tmp_path: Path, expressions: Any) -> None:
    found = expressions()

    async def flow(one: Running) -> None:
        await one.send("T", b"x")
        one.context.offsets.commit("g", "T", 1, 0)
        one.context.stats.got("T", "g", 1, 1)
        one.context.stats.add("SEND_TO_DLQ", "T@g")
        body = {
            "clientID": "c", "producerDataSet": [{"groupName": "p"}],
            "consumerDataSet": [{"groupName": "g", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}],
        }  # fmt: skip
        await one.call(34, json.dumps(body).encode())
        one.context.registration.registered["127.0.0.1:9876"] = False
        _, slave = await asyncio.open_connection("127.0.0.1", one.parts.replicas.port)
        slave.write(bytes(8))
        async with asyncio.timeout(300):
            while not one.parts.replicas.slaves:
                await asyncio.sleep(0.01)
        page = await scrape(one)
        slave.close()
        known = set(page.kinds)
        known |= {f"{name}_bucket" for name, kind in page.kinds.items() if kind == "histogram"}
        named = {name for text in found for name in _NAME.findall(text)}
        assert named
        assert named <= known, named - known
        labels = {one_sample.name: set(one_sample.labels) for one_sample in page.samples}
        assert named <= set(labels)
        for text in found:
            assert text.count("(") == text.count(")")
            for name, inner in _SELECTOR.findall(text):
                used = set(re.findall(r"(\w+)=", inner))
                assert used <= labels[name], (name, used - labels[name])

    serve(tmp_path, flow, haAllowedAddresses="127.0.0.1", **PROM)


def test_every_metric_has_a_name_of_its_family(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        page = await scrape(one)
        assert all(name.startswith(("rocketmq_", "mqfast_")) for name in page.kinds)
        assert all(name.endswith("_total") == (kind == "counter") for name, kind in page.kinds.items())

    serve(tmp_path, flow, **PROM)


def test_scrapes_beside_sends_see_no_half_of_a_change(tmp_path: Path) -> None:
    """Topics come and go while lines are written; every scrape is whole."""

    async def flow(one: Running) -> None:
        for number in range(300):
            one.context.stats.put(f"T{number}", 1, 100)
            one.context.offsets.commit("g", f"T{number}", 0, 0)
        done = asyncio.Event()

        async def change() -> None:
            number = 0
            while not done.is_set():
                number += 1
                await one.send(f"new{number}", b"x")
                one.context.stats.topic_deleted(f"T{number % 300}")
                one.context.offsets.remove_topic(f"T{number % 300}")

        changes = asyncio.ensure_future(change())
        pages = await asyncio.gather(*(scrape(one) for _ in range(8)))
        done.set()
        await changes
        for page in pages:
            assert page.value("rocketmq_topic_number") > 10

    serve(tmp_path, flow, **PROM)
