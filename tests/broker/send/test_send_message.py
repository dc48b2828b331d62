"""Sends to a running broker: what is stored, what the answers say, and what is refused with which code."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from event_loop import run
from running import broker_config, running_broker

import mqfast
from mqfast.broker.server import Broker
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer


def test_a_message_is_stored_with_what_the_client_sent_and_what_the_broker_adds(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            answer = await one.send(
                "orders", b"hello", queue_id=2, properties="KEYS\x01k1\x02TAGS\x01A\x02UNIQ_KEY\x01U1"
            )
            assert answer.code == 0, answer.remark
            fields = answer.ext_fields
            assert (fields["queueId"], fields["queueOffset"], fields["transactionId"]) == ("2", "0", "U1")
            assert (fields["MSG_REGION"], fields["TRACE_ON"]) == ("DefaultRegion", "true")
            assert len(fields["msgId"]) == 32
            assert fields["msgId"].startswith("7F000001")
            again = await one.send("orders", b"two", queue_id=2)
            assert again.ext_fields["queueOffset"] == "1"

    run(flow())
    with mqfast.open(tmp_path) as store:
        first, second = store.get("orders", 2, 0)
        assert (bytes(first.body), first.tags, first.keys) == (b"hello", "A", ["k1"])
        assert first.properties["UNIQ_KEY"] == "U1"
        assert first.properties["CLUSTER"] == "DefaultCluster"
        assert first.properties["MSG_REGION"] == "DefaultRegion"
        assert first.properties["TRACE_ON"] == "true"
        assert first.born_timestamp == 1_700_000_000_000
        assert len(second.properties["UNIQ_KEY"]) == 32


def batch_body(*bodies: bytes) -> bytes:
    items = []
    for body in bodies:
        properties = b"TAGS\x01B\x02"
        size = 4 + 4 + 4 + 4 + 4 + len(body) + 2 + len(properties)
        head = b"".join(number.to_bytes(4, "big") for number in (size, 0, 0, 7, len(body)))
        items.append(head + body + len(properties).to_bytes(2, "big") + properties)
    return b"".join(items)


def test_a_batch_is_stored_as_its_messages(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            fields = {
                "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "",
                "m": "true",
            }  # fmt: skip
            answer = await one.call(320, batch_body(b"one", b"two", b"three"), **fields)
            assert answer.code == 0, answer.remark
            assert len(answer.ext_fields["msgId"].split(",")) == 3
            assert answer.ext_fields["queueOffset"] == "0"
            cut = await one.call(320, batch_body(b"one")[:-3], **fields)
            assert cut.code == ResponseCode.MESSAGE_ILLEGAL

    run(flow())
    with mqfast.open(tmp_path) as store:
        found = store.get("T", 0, 0)
        assert [bytes(message.body) for message in found] == [b"one", b"two", b"three"]
        assert {message.flag for message in found} == {7}


@pytest.mark.parametrize(
    ("topic", "more", "code", "words"),
    [
        ("bad topic", {}, ResponseCode.INVALID_PARAMETER, "contains illegal characters"),
        ("../../etc", {}, ResponseCode.INVALID_PARAMETER, "contains illegal characters"),
        ("t" * 128, {}, ResponseCode.INVALID_PARAMETER, "is longer than topic max length: 127"),
        ("SELF_TEST_TOPIC", {}, ResponseCode.NO_PERMISSION, "Sending message to topic[SELF_TEST_TOPIC] is forbidden."),
        ("T", {"queue_id": 9}, ResponseCode.INVALID_PARAMETER, "request queueId[9] is illegal"),
        ("T", {"c": "nothing"}, ResponseCode.TOPIC_NOT_EXIST, "topic[T] not exist, apply first please!"),
        ("T", {"g": "soon"}, ResponseCode.SYSTEM_ERROR, "bornTimestamp"),
    ],
)  # fmt: skip
def test_send_that_cannot_be_stored_gets_rocketmqs_code(
    tmp_path: Path, topic: str, more: dict[str, Any], code: int, words: str
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            answer = await one.send(topic, b"x", **more)
            assert answer.code == code
            assert words in str(answer.remark)
            assert (await one.send("fine", b"x")).code == 0

    run(flow())


def test_send_without_autoCreateTopicEnable_needs_the_topic(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, autoCreateTopicEnable=False) as one:
            assert (await one.send("T", b"x")).code == ResponseCode.TOPIC_NOT_EXIST

    run(flow())


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x01k%d\x02WAIT\x01true\x02"])
def test_sync_flush_answers_when_the_message_is_durable(tmp_path: Path, properties: str) -> None:
    """Messages with a unique key have a short way through the broker."""

    async def flow() -> None:
        async with running_broker(tmp_path, flushDiskType="SYNC_FLUSH") as one:

            async def send(number: int) -> None:
                more = {"properties": properties % number} if properties else {}
                answer = await one.send("T", b"%d" % number, **more)
                assert answer.code == 0
                assert one.context.store.stats()["flushed_offset"] > int(answer.ext_fields["msgId"][16:], 16)

            for number in range(20):
                await send(number)
            await asyncio.gather(*(send(number) for number in range(20, 70)))
            assert len(one.context.durable) == 0

    run(flow())


def test_topics_are_registered_at_start_and_when_created(tmp_path: Path) -> None:
    async def flow() -> None:
        from mqfast.namesrv.namesrv_config import NamesrvConfig
        from mqfast.namesrv.server import NameServer

        settings = NamesrvConfig()
        settings.update({"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}, "test")
        name_server = NameServer(settings)
        await name_server.start()
        address = "{}:{}".format(*name_server.address)
        try:
            async with running_broker(tmp_path / "store", namesrvAddr=address) as one:
                assert one.context.registration.registered == {address: True}
                assert "broker-a" in (await one.client.call(address, 106)).body.decode()
                assert (await one.client.call(address, 105, {"topic": "T"})).code == ResponseCode.TOPIC_NOT_EXIST
                # The answer to the send that made the topic comes when name servers know it: a consumer may start now.
                await one.send("T", b"x")
                assert (await one.client.call(address, 105, {"topic": "T"})).code == 0
                await one.send("U", b"x", properties="DELAY\x011")
                assert (await one.client.call(address, 105, {"topic": "U"})).code == 0
        finally:
            await name_server.stop()

    run(flow())


def test_stopped_broker_unregisters(tmp_path: Path) -> None:
    async def flow() -> None:
        codes: list[int] = []

        def serve(_channel: Any, request: Any) -> Any:
            if request.code != 106:  # is there a newer master?
                codes.append(request.code)
            return request.response()

        processors = Processors()
        processors.register_default(serve, ConcurrencyLimit("all"))
        server = RemotingServer(processors)
        await server.start()
        try:
            async with running_broker(tmp_path, namesrvAddr="{}:{}".format(*server.address)):
                assert codes == [103]
        finally:
            await server.stop()
        assert codes == [103, 104]

    run(flow())


def test_topics_and_groups_survive_a_restart(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            await one.send("T", b"x", queues=3)
            one.context.groups.get("G")
        async with running_broker(tmp_path) as one:
            found = one.context.topics.get("T")
            assert found is not None
            assert found.write_queue_nums == 3
            assert "G" in one.context.groups.table
            assert (await one.send("T", b"y", queue_id=0)).ext_fields["queueOffset"] == "1"

    run(flow())


def test_fast_path_of_a_send_stores_the_same_as_the_slow_path(tmp_path: Path) -> None:
    """The first send of a topic takes the long way, and the next ones the short one, while no property needs a look."""
    plain = "KEYS\x01k1 k2\x02UNIQ_KEY\x01U%d\x02TAGS\x01A"
    others = [
        "", "UNIQ_KEY\x01U1\x02MSG_REGION\x01far\x02CLUSTER\x01other\x02", "UNIQ_KEY\x01U2\x02POP_CK\x01x\x02",
        "UNIQ_KEY\x01", "TIMER_\x01x\x02UNIQ_KEY\x01U3",
    ]  # fmt: skip

    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for number in range(3):
                answer = await one.send("T", b"body", properties=plain % number, h=7, f=1, j=2)
                assert answer.code == 0
                assert answer.ext_fields["queueOffset"] == str(number)
                assert answer.ext_fields["transactionId"] == f"U{number}"
                assert (
                    int(answer.ext_fields["msgId"][16:], 16)
                    == one.context.engine.unit_at("T", 0, number).physical_offset
                )
            for properties in others:
                assert (await one.send("T", b"body", properties=properties)).code == 0
            assert one.context.stats.put_totals.count == 8

    run(flow())
    with mqfast.open(tmp_path) as store:
        found = store.get("T", 0, 0)
        same = [
            (m.flag, m.sys_flag, m.reconsume_times, m.born_timestamp, m.tags, m.keys, m.born_host.split(":")[0])
            for m in found[:3]
        ]
        assert same[0] == same[1] == same[2]
        added = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
        for number, message in enumerate(found[:3]):
            assert message.properties == {"KEYS": "k1 k2", "UNIQ_KEY": f"U{number}", "TAGS": "A", **added}
        assert found[4].properties == {"UNIQ_KEY": "U1", **added}
        assert found[5].properties == {"UNIQ_KEY": "U2", **added}
        assert len(found[3].properties["UNIQ_KEY"]) == len(found[6].properties["UNIQ_KEY"]) == 32


def test_next_send_uses_a_changed_topic(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for _ in range(2):
                assert (await one.send("T", b"x", queue_id=3, properties="UNIQ_KEY\x01U")).code == 0
            topics = one.context.topics
            topics.put(topics.raw("T", 2, 6))
            answer = await one.send("T", b"x", queue_id=3, properties="UNIQ_KEY\x01U")
            assert answer.code == ResponseCode.INVALID_PARAMETER
            soon = one.context.now_ms() + 3_600_000
            one.context.config.update({"startAcceptSendRequestTimeStamp": str(soon)}, "test")
            assert (await one.send("T", b"x", properties="UNIQ_KEY\x01U")).code == ResponseCode.SYSTEM_ERROR
            one.context.config.update({"startAcceptSendRequestTimeStamp": "0"}, "test")
            assert (await one.send("T", b"x", properties="UNIQ_KEY\x01U")).code == 0

    run(flow())


def test_too_long_message_is_refused_on_the_fast_and_the_slow_path(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, maxMessageSize=1000) as one:
            for size, code in ((1001, ResponseCode.MESSAGE_ILLEGAL), (10, 0), (1001, ResponseCode.MESSAGE_ILLEGAL)):
                answer = await one.send("T", bytes(size), properties="UNIQ_KEY\x01U")
                assert answer.code == code
            assert "msg body length limit 1000B" in str(answer.remark)

    run(flow())


def test_stopping_broker_answers_go_away_to_new_clients_and_serves_old_clients(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            one.broker.processors.is_leaving = True
            answer = await one.client.call(one.address, 38, {"consumerGroup": "g"}, version=513)
            assert (answer.code, answer.remark) == (ResponseCode.GO_AWAY, "please go away")
            old = await one.client.call(one.address, 38, {"consumerGroup": "g"}, version=475)
            assert old.remark == "no consumer for this group, g"

    run(flow())


def test_broker_whose_port_is_in_use_raises_and_closes_everything(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "one") as one:
            port = one.broker.address[1]
            second = Broker(broker_config(tmp_path / "two", listenPort=port))
            with pytest.raises(OSError, match="in use"):
                await second.start()
            await second.stop()  # there is nothing to stop
            with mqfast.open(tmp_path / "two"):  # its lock is free
                pass

    run(flow())


def test_blocked_disk_blocks_one_thread_that_persists_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, flushConsumerOffsetInterval=1) as one:
            goes_on, begun = threading.Event(), list[int]()

            def persist(**_: object) -> None:
                begun.append(1)
                goes_on.wait(60)

            try:
                monkeypatch.setattr(one.context.tables, "persist", persist)
                async with asyncio.timeout(300):
                    while not begun:
                        await asyncio.sleep(0.001)
                    for _ in range(20):  # turns of the clock, each later than one of the broker's
                        await asyncio.sleep(0.005)
                    assert len(begun) == 1
                    goes_on.set()
                    while len(begun) < 2:
                        await asyncio.sleep(0.001)
            finally:
                goes_on.set()

    run(flow())
