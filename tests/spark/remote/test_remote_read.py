"""What only a read over the network meets: several brokers, brokers that are away, answers that are none, accounts.

No Spark processes: readers are called as Spark calls them.
"""

from __future__ import annotations

import json
import logging
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark.sql.streaming.datasource")
pytest.importorskip("msgspec")

sys.path.append(str(Path(__file__).resolve().parents[2] / "interop"))
from conftest import copy_of, golden_cases
from our_broker import our_process
from places import EVERY, Place, fill, flat, numbers, read, to_the_end
from pyspark.sql.streaming.datasource import ReadAllAvailable
from real_programs import certificate

from mqfast.client import Producer
from mqfast.client.net.request_steps import Request, checked
from mqfast.client.values import Credentials
from mqfast.errors import BrokerError, ConfigError, ConnectError, CorruptFile, DataLoss, Refused
from mqfast.message import Message
from mqfast.remoting.codes import RequestCode
from mqfast.spark.explain import explain
from mqfast.testing import Broker

ALL = ReadAllAvailable()
PULL = RequestCode.PULL_MESSAGE
# Short, so that what fails for good fails soon.
SOON = {"brokerTimeout": "1s"}


def place_of(broker: Broker) -> Place:
    return Place(broker, "", "broker")


@pytest.fixture
def one() -> Iterator[Place]:
    with Broker(topics={"orders": 3}) as broker:
        fill(broker, 0, 60)
        yield place_of(broker)


@pytest.fixture
def two() -> Iterator[Place]:
    """Two brokers, each with queues 0 to 2 of the same topic: 340 and 70 messages."""
    with Broker(topics={"orders": 3}, brokers=2) as broker:
        for name, first, end in (("broker-a", 0, 340), ("broker-b", 1000, 1070)):
            for n in range(first, end):
                broker.send("orders", b"%06d" % n, broker=name, queue_id=n % 3, tags=f"tag{n % 2}")
        yield place_of(broker)


EXPECTED = [*range(340), *range(1000, 1070)]


# --- several brokers -------------------------------------------------------------------------------------------------


def test_queues_of_the_same_name_are_queues_of_their_brokers(two: Place) -> None:
    rows = two.batch(subscribe="orders", columns="store,queueId,queueOffset,body")
    assert numbers(rows) == EXPECTED
    reader = two.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=50)
    start = reader.initialOffset()
    assert list(start["stores"]) == ["broker-a", "broker-b"]
    batches, end = to_the_end(reader, start)
    assert flat(batches) == EXPECTED
    assert max(map(len, batches)) <= 50
    assert {name: [found[0] for found in of_one["queues"].values()] for name, of_one in end["stores"].items()} == {
        "broker-a": [114, 113, 113], "broker-b": [23, 24, 23],
    }  # fmt: skip
    reader.stop()


def test_options_of_one_broker_among_several(two: Place) -> None:
    assert numbers(two.batch(brokers="broker-b")) == EXPECTED[340:]
    starting = json.dumps({"broker-a": {"orders/0": 113, "*": "latest"}, "broker-b": {"*": "latest", "orders/1": 22}})
    assert numbers(two.batch(subscribe="orders", startingOffsets=starting)) == [339, 1066, 1069]
    for options, says in (
        ({"startingOffsets": '{"orders/0": 5}'}, "the offsets of each broker"),
        ({"startingOffsets": '{"broker-c": {"orders/0": 5}}'}, "no broker broker-c; did you mean broker-"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=says):
            two.batch(subscribe="orders", **options)
    with pytest.raises(ConnectError, match="broker broker-c: the name servers know broker-a, broker-b"):
        two.batch(brokers="broker-c", **SOON)


def test_a_broker_that_joins_is_read_from_its_first_message() -> None:
    with Broker(topics={"orders": 1}, brokers=2) as broker:
        fill_one(broker, "broker-a", 0, 10)
        fill_one(broker, "broker-b", 10, 20)
        broker.stop("broker-b")
        place = place_of(broker)
        reader = place.stream(subscribe="orders", startingOffsets="earliest")
        batches, end = to_the_end(reader, reader.initialOffset())
        assert flat(batches) == list(range(10))
        broker.restart("broker-b")
        found: list[int] = []

        def all_are_there() -> bool:
            nonlocal end
            more, end = to_the_end(reader, end)
            found.extend(flat(more))
            return len(found) >= 10

        broker.wait_until(all_are_there, timeout_s=60)
        assert found == list(range(10, 20))
        reader.stop()


def fill_one(broker: Broker, name: str, first: int, end: int) -> None:
    for n in range(first, end):
        broker.send("orders", b"%06d" % n, broker=name, queue_id=0)


# --- away ------------------------------------------------------------------------------------------------------------


def test_a_broker_that_is_away_fails_a_batch_in_time_and_names_itself(one: Place) -> None:
    one.broker.kill()
    with pytest.raises(ConnectError, match=r"brokerTimeout|name servers know none"):
        one.batch(brokers="broker-a", **SOON)


def test_no_name_server() -> None:
    with Broker() as broker:
        place = place_of(broker)
    with pytest.raises(ConnectError, match="name servers: no answer in 1 s"):
        place.batch(subscribe="orders", **SOON)


def test_unavailable_name_servers_are_logged_once(one: Place, caplog: pytest.LogCaptureFixture) -> None:
    """A stream looks a hundred times a second: what was known is read on, and a line of the log says so."""
    one.batch(subscribe="orders")
    one.broker.stop("namesrv-1")
    for _ in range(3):
        assert numbers(one.batch(subscribe="orders")) == list(range(60))
    assert len([record for record in caplog.records if "no name server answered" in record.getMessage()]) == 1


def test_a_read_of_everything_is_not_empty_where_name_servers_know_no_broker(one: Place) -> None:
    assert numbers(one.batch()) == list(range(60))
    one.broker.stop("broker-a")
    for read_all in (one.batch, lambda **more: one.stream(startingOffsets="earliest", **more).initialOffset()):
        with pytest.raises(ConnectError, match="the name servers know no broker"):
            read_all(**SOON)


def test_tasks_wait_for_a_broker_that_starts_again(one: Place) -> None:
    from mqfast.spark import options as table
    from mqfast.spark.schema import chosen_columns
    from mqfast.spark.source import BatchReader

    parsed = table.parse({**one.options, "subscribe": "orders", "columns": "body"}, table.BATCH)
    reader = BatchReader(parsed, chosen_columns(parsed))
    parts = reader.partitions()
    one.broker.kill()
    timer = threading.Timer(0.5, one.broker.restart)
    timer.start()
    found = [body for part in parts for batch in reader.read(part) for body in batch.column(0).to_pylist()]
    timer.join()
    assert sorted(int(body[:6]) for body in found) == list(range(60))


@pytest.mark.parametrize("lost", ["answers", "requests", "connections", "busy"])
def test_lost_answers_are_requested_again(one: Place, lost: str) -> None:
    faults = one.broker.faults
    if lost == "connections":
        one.batch(subscribe="orders")
        faults.drop_connections()
        assert len(one.batch(subscribe="orders")) == 60
        return
    with {"answers": faults.answer(14, "starting", only=[PULL], times=3), "busy": faults.busy(3, only=[PULL]),
          "requests": faults.answer(2, "[REJECTREQUEST]", times=2)}[lost]:  # fmt: skip
        assert numbers(one.batch(subscribe="orders")) == list(range(60))


def test_a_stream_goes_on_without_a_broker_that_is_away_and_then_with_it(two: Place) -> None:
    reader = two.stream(subscribe="orders", startingOffsets="earliest")
    _, end = to_the_end(reader, reader.initialOffset())
    two.broker.kill("broker-b")
    for n in range(2000, 2010):
        two.broker.send("orders", b"%06d" % n, broker="broker-a", queue_id=0)
    batches, end = to_the_end(reader, end)
    assert flat(batches) == list(range(2000, 2010))
    assert set(end["stores"]) == {"broker-a", "broker-b"}
    again = two.stream(subscribe="orders")  # as after a restart while the broker is away
    assert to_the_end(again, end)[0] == []
    two.broker.restart("broker-b")
    two.broker.send("orders", b"%06d" % 3000, broker="broker-b", queue_id=1)
    for one_reader in (reader, again):
        two.broker.wait_until(lambda: one_reader.latestOffset(end, ALL) != end, timeout_s=60)  # noqa: B023
        assert flat(to_the_end(one_reader, end)[0]) == [3000]
        one_reader.stop()


@pytest.mark.parametrize("more", [
    {"brokers": "broker-a,broker-b"},
    {"startingOffsets": '{"broker-a": {"*": "earliest"}, "broker-b": {"*": "earliest"}}'},
])  # fmt: skip
def test_a_broker_that_the_options_name_may_be_away_as_well(two: Place, more: dict[str, str]) -> None:
    reader = two.stream(**{"subscribe": "orders", "startingOffsets": "earliest", **more})
    batches, end = to_the_end(reader, reader.initialOffset())
    assert flat(batches) == EXPECTED
    two.broker.kill("broker-b")
    two.broker.send("orders", b"%06d" % 2000, broker="broker-a", queue_id=0)
    batches, end = to_the_end(reader, end)
    assert flat(batches) == [2000]
    two.broker.restart("broker-b")
    two.broker.send("orders", b"%06d" % 3000, broker="broker-b", queue_id=0)
    two.broker.wait_until(lambda: reader.latestOffset(end, ALL) != end, timeout_s=60)
    assert flat(to_the_end(reader, end)[0]) == [3000]
    reader.stop()


def test_a_stream_fails_or_waits_for_a_broker_that_stays_away(two: Place) -> None:
    fails = two.stream(subscribe="orders", startingOffsets="earliest", brokerTimeout="300ms")
    waits = two.stream(subscribe="orders", startingOffsets="earliest", brokerTimeout="300ms", brokerAway="wait")
    _, end = to_the_end(fails, fails.initialOffset())
    to_the_end(waits, waits.initialOffset())
    two.broker.kill("broker-b")

    def has_failed() -> bool:
        try:
            fails.latestOffset(end, ALL)
        except ConnectError as error:
            return "broker-b" in str(error)
        return False

    two.broker.wait_until(has_failed, timeout_s=60)
    assert waits.latestOffset(end, ALL) == end
    for reader in (fails, waits):
        reader.stop()


def test_a_run_that_ends_by_itself_does_not_end_without_a_broker(two: Place) -> None:
    reader = two.stream(subscribe="orders", startingOffsets="earliest", brokerTimeout="500ms")
    _, end = to_the_end(reader, reader.initialOffset())
    reader.stop()
    two.broker.kill("broker-b")
    again = two.stream(subscribe="orders", brokerTimeout="500ms")
    with pytest.raises(ConnectError, match="broker-b"):
        again.prepareForTriggerAvailableNow()
        again.latestOffset(end, again.getDefaultReadLimit())
    again.stop()


def test_kills_in_mid_stream_lose_and_repeat_nothing(one: Place) -> None:
    reader = one.stream(subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=13)
    end = reader.initialOffset()
    found: list[int] = []
    last = 60
    for turn in range(8):
        start, end = end, json.loads(json.dumps(reader.latestOffset(end, reader.getDefaultReadLimit())))
        if turn % 2:
            one.broker.kill()
            threading.Timer(0.2, one.broker.restart).start()
        found += read(reader, start, end)
        if turn % 3 == 0:
            reader.stop()
            reader = one.stream(subscribe="orders", maxOffsetsPerTrigger=13)
        if not turn % 2:
            fill(one.broker, last, last + 10)
            last += 10
    found += flat(to_the_end(reader, end)[0])
    assert sorted(found) == list(range(last))
    reader.stop()


# --- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_that_skips_messages_is_data_loss(one: Place, caplog: pytest.LogCaptureFixture) -> None:
    # As a slave of RocketMQ answers that is not read from: retry, with an offset behind what it did not send.
    from mqfast.spark.remote import pulls

    asked = []

    def jumping(*args: Any, **kwargs: Any) -> Any:
        answer = yield from before(*args, **kwargs)
        asked.append(args[3])
        return answer._replace(status=pulls.PullStatus.NO_MATCHED_MSG, remark="FOUND") if len(asked) == 1 else answer

    before = pulls.raw_pull
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulls, "raw_pull", jumping)
        with pytest.raises(DataLoss, match="does not send them: FOUND"):
            one.batch(assign="orders/0")
    assert len(one.batch(assign="orders/0")) == 20


def test_a_body_that_was_damaged_on_the_way(one: Place) -> None:
    from mqfast.spark.remote import pulls

    before = pulls.raw_pull

    def damaged(*args: Any, **kwargs: Any) -> Any:
        answer = yield from before(*args, **kwargs)
        data = bytearray(answer.records)
        at = data.find(b"000003x") if b"000003x" in data else -1
        if at >= 0:
            data[at + 8] ^= 1
        return answer._replace(records=data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulls, "raw_pull", damaged)
        assert len(one.batch(subscribe="orders")) == 60
        with pytest.raises(CorruptFile, match=r"crc|checksum"):
            one.batch(subscribe="orders", verifyCrc="fail")
        assert len(one.batch(subscribe="orders", verifyCrc="skip")) == 59
        marked = one.batch(subscribe="orders", verifyCrc="mark")
        assert [int(row["body"][:6]) for row in marked if not row["crcOk"]] == [3]


@pytest.mark.parametrize("damage", ["cut", "length", "zeros"])
def test_bytes_that_are_no_records_are_an_error(one: Place, damage: str) -> None:
    from mqfast.spark.remote import pulls

    before = pulls.raw_pull

    def damaged(*args: Any, **kwargs: Any) -> Any:
        answer = yield from before(*args, **kwargs)
        data = bytearray(answer.records)
        if damage == "cut":
            del data[-5:]
        elif damage == "length":
            data[2:4] = b"\xff\xff"
        else:
            data[:] = bytes(len(data))
        return answer._replace(records=data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pulls, "raw_pull", damaged)
        with pytest.raises(CorruptFile, match="no whole record"):
            one.batch(subscribe="orders", failOnDataLoss="false")


REMOVES = {
    "mappedFileSizeCommitLog": str(64 << 10), "mappedFileSizeConsumeQueue": "2000", "fileReservedTime": "0",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
}  # fmt: skip


def test_retention_during_a_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from mqfast.spark import options as table
    from mqfast.spark.schema import chosen_columns
    from mqfast.spark.source import BatchReader

    with Broker(topics={"orders": 1}, store=tmp_path / "s", config=REMOVES) as broker:
        broker.send("orders", *(b"%06d" % n + b"y" * 2000 for n in range(200)), queue_id=0)
        parts = {}
        for fail in ("true", "false"):
            parsed = table.parse(
                {"namesrv": broker.namesrv_addr, "columns": "body", "failOnDataLoss": fail, "subscribe": "orders"},
                table.BATCH,
            )
            reader = BatchReader(parsed, chosen_columns(parsed))
            parts[fail] = reader, reader.partitions()
        first = min(int(path.name) for path in (tmp_path / "s" / "commitlog").iterdir())
        remove_oldest(broker, tmp_path / "s", first)
        reader, planned = parts["true"]
        with pytest.raises(DataLoss, match=r"orders/0.*are not there"):
            for part in planned:
                list(reader.read(part))
        reader, planned = parts["false"]
        with caplog.at_level(logging.WARNING):
            rows = [body for part in planned for batch in reader.read(part) for body in batch.column(0).to_pylist()]
        found = sorted(int(body[:6]) for body in rows)
        assert found == list(range(found[0], 200))
        assert found[0] > 0
        assert "are not there" in caplog.text


def test_a_topic_that_is_added_to_the_options_is_read_from_what_retention_left(tmp_path: Path) -> None:
    with Broker(topics={"orders": 1, "news": 1}, store=tmp_path / "s", config=REMOVES) as broker:
        place = place_of(broker)
        broker.send("orders", *(b"%06d" % n + b"y" * 2000 for n in range(200)), queue_id=0)
        broker.send("news", b"000500", queue_id=0)
        before = place.stream(subscribe="news", startingOffsets="earliest")
        batches, end = to_the_end(before, before.initialOffset())
        assert flat(batches) == [500]
        before.stop()
        remove_oldest(broker, tmp_path / "s", 0)
        queues = {"view": "queues", "subscribe": "orders"}
        broker.wait_until(lambda: place.batch(**queues)[0]["minOffset"] > 0, timeout_s=60)
        for added in ({"subscribe": "news,orders"}, {"assign": "orders/0,news/0"}):
            after = place.stream(**added)
            [found] = after.latestOffset(end, after.getDefaultReadLimit())["stores"].values()
            assert 0 < found["from"]["orders/0"] < found["queues"]["orders/0"][0] == 200
            assert "lost" not in found
            after.stop()
        with pytest.raises(DataLoss, match="queue orders/0: it is new to the stream"):
            place.stream(subscribePattern=".*").latestOffset(end, before.getDefaultReadLimit())


def remove_oldest(broker: Broker, store: Path, first: int) -> None:
    """Have the broker remove files of its log, as its retention does."""
    with broker.admin() as admin:
        address = next(iter(broker.addresses.values()))

        def is_gone() -> bool:
            admin._run(asked(address, RequestCode.DELETE_EXPIRED_COMMITLOG, {}, b""))
            return min(int(path.name) for path in (store / "commitlog").iterdir()) > first

        broker.wait_until(is_gone, timeout_s=30)


# --- filters ---------------------------------------------------------------------------------------------------------


def test_filters_are_evaluated_by_the_broker(one: Place) -> None:
    before = len(one.broker.requests(PULL))
    assert numbers(one.batch(subscribe="orders", tagFilter="tag1")) == list(range(1, 60, 3))
    pulls = [one for one in one.broker.requests(PULL)[before:] if one.fields["subscription"] == "tag1"]
    assert pulls
    with pytest.raises(BrokerError, match=r"SQL92|enablePropertyFilter"):
        one.batch(subscribe="orders", sqlFilter="n > 5", **SOON)


def test_sql92() -> None:
    with Broker(topics={"orders": 3}, config={"enablePropertyFilter": "true"}) as broker:
        fill(broker, 0, 60)
        place = place_of(broker)
        assert numbers(place.batch(subscribe="orders", sqlFilter="n BETWEEN 10 AND 19")) == list(range(10, 20))
        with pytest.raises(BrokerError, match="parse"):
            place.batch(subscribe="orders", sqlFilter="n >", **SOON)
        reader = place.stream(subscribe="orders", startingOffsets="earliest", sqlFilter="n < 5")
        batches, end = to_the_end(reader, reader.initialOffset())
        assert flat(batches) == [0, 1, 2, 3, 4]
        fill(broker, 3, 9)
        assert flat(to_the_end(reader, end)[0]) == [3, 4]
        reader.stop()


# --- stores of others ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["5.3.3-normal-clean", "4.9.7-killed", "5.3.3-ipv6"])
def test_golden_stores_behind_a_broker_have_the_rows_of_their_files(name: str, tmp_path: Path) -> None:
    (case,) = [case for case in golden_cases() if str(case) == name]
    path = copy_of(case, tmp_path)
    sizes = {
        "mappedFileSizeCommitLog": file_bytes(path, "commitlog/*"),
        "mappedFileSizeConsumeQueue": file_bytes(path, "consumequeue/*/*/*"),
        "maxHashSlotNum": "64",
        "maxIndexNum": str((int(file_bytes(path, "index/*")) - 40 - 64 * 4) // 20),
    }
    with Broker(store=path, config=sizes) as broker:
        given = {"columns": EVERY, "verifyCrc": "fail", "decompress": "false"}
        by_files = Place(broker, str(path), "files").batch(**given)
        assert by_files
        broker.wait_until(
            lambda: len(place_of(broker).batch(**given)) >= len(by_files), timeout_s=60
        )  # it recovers first
        assert place_of(broker).batch(**given) == by_files


def file_bytes(path: Path, pattern: str) -> str:
    return str(max(file.stat().st_size for file in path.glob(pattern)))


# --- who may ask -----------------------------------------------------------------------------------------------------


def test_topics_of_a_namespace_have_their_own_names() -> None:
    with Broker(topics={"tenant%orders": 3, "orders": 1}, groups=["tenant%progress"]) as broker:
        producer = broker.producer(namespace="tenant")
        for n in range(30):
            producer.send(Message("orders", b"%06d" % n))
        broker.send("orders", b"%06d" % 99)
        place = place_of(broker)
        place.options["namespace"] = "tenant"
        rows = place.batch(columns="topic,body")
        assert numbers(rows) == list(range(30))
        assert {row["topic"] for row in rows} == {"orders"}
        reader = place.stream(subscribe="orders", startingOffsets="earliest", commitGroup="progress")
        batches, end = to_the_end(reader, reader.initialOffset())
        assert flat(batches) == list(range(30))
        reader.commit(end)
        assert sum(broker.offset("tenant%progress", "tenant%orders").values()) == 30
        assert {row["group"] for row in place.batch(view="groups")} == {"progress"}
        reader.stop()


def test_keys_sign_every_request(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "- {accessKey: RocketMQ, secretKey: 12345678, admin: true}\n"
        "- {accessKey: reader1, secretKey: abcdefgh, admin: false, defaultTopicPerm: DENY, defaultGroupPerm: DENY,\n"
        "   topicPerms: [orders=SUB], groupPerms: [TOOLS_CONSUMER=SUB]}\n"
    )
    with Broker(topics={"orders": 3, "secret": 1}, config={"aclEnable": "true", "aclFile": str(accounts)}) as broker:
        broker.send("orders", *(b"%06d" % n for n in range(30)))
        broker.send("secret", b"x")
        place = place_of(broker)
        with pytest.raises(BrokerError, match="No accessKey is configured"):
            place.batch(subscribe="orders")
        place.options |= {"accessKey": "reader1", "secretKey": "abcdefgh"}
        assert numbers(place.batch(subscribe="orders")) == list(range(30))
        with pytest.raises(BrokerError, match="secret"):
            place.batch(subscribe="secret", startingOffsets="earliest")
        place.options |= {"secretKey": "wrongkey"}
        with pytest.raises(BrokerError, match="signature"):
            place.batch(subscribe="orders")


def test_acl_2_users_read_with_the_right_sub_only() -> None:
    rules = {
        "authenticationEnabled": "true", "authorizationEnabled": "true",
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
    }  # fmt: skip
    with Broker(topics={"orders": 3, "secret": 1}, config=rules) as broker:
        broker.send("orders", *(b"%06d" % n for n in range(30)))
        broker.send("secret", b"x")
        with broker.admin(credentials=Credentials("root", "root-secret")) as admin:
            address = next(iter(broker.addresses.values()))
            for code, fields, body in (
                (RequestCode.AUTH_CREATE_USER, {"username": "reader"},
                 {"username": "reader", "password": "reader-secret", "userType": "Normal"}),
                (RequestCode.AUTH_CREATE_ACL, {"subject": "User:reader"},
                 {"subject": "User:reader", "policies": [{"policyType": "Custom", "entries": [
                     {"resource": resource, "actions": ["Sub"], "decision": "Allow"}
                     for resource in ("Topic:orders", "Group:TOOLS_CONSUMER")]}]}),
            ):  # fmt: skip
                admin._run(asked(address, code, fields, json.dumps(body).encode()))
        place = place_of(broker)
        place.options |= {"accessKey": "reader", "secretKey": "reader-secret"}
        assert numbers(place.batch(subscribe="orders")) == list(range(30))
        reader = place.stream(subscribe="orders", startingOffsets="earliest")
        assert flat(to_the_end(reader, reader.initialOffset())[0]) == list(range(30))
        reader.stop()
        with pytest.raises(Refused):
            place.batch(subscribe="secret")


def asked(address: str, code: int, fields: dict[str, Any], body: bytes) -> Any:
    answer = yield Request(address, code, fields, body)
    return checked(answer, address)


def test_tls_verifies_server_certificates(tmp_path: Path) -> None:
    settings = certificate(tmp_path)
    if not settings:
        pytest.skip("there is no openssl")
    authority = tmp_path / "certificate.pem"
    with our_process(tmp_path, *settings, "tls.server.mode=enforcing", "tls.enable=true") as namesrv:
        trusting = ssl.create_default_context(cafile=str(authority))
        with Producer("g", namesrv, tls=trusting) as producer:
            for n in range(30):
                producer.send(Message("orders", b"%06d" % n))
        place = Place.of_cluster(namesrv)
        place.options["tls"] = "true"
        with pytest.raises(ConnectError, match="no TLS"):
            place.batch(subscribe="orders", **SOON)
        assert len(place.batch(subscribe="orders", tlsCa=authority, **SOON)) == 30
        assert len(place.batch(subscribe="orders", tlsVerify="false", **SOON)) == 30
        with pytest.raises(ConfigError, match="tlsCa"):
            place.batch(subscribe="orders", tlsCa=tmp_path / "nothing.pem")


# --- seen ------------------------------------------------------------------------------------------------------------


def test_the_plan_and_the_work_of_tasks_in_words(two: Place, caplog: pytest.LogCaptureFixture) -> None:
    options = {**two.options, "subscribe": "orders", "columns": "topic,body", "tagFilter": "tag1"}
    lines = explain({**options, "minPartitions": "1", "endingOffsets": '{"broker-b": {"*": "earliest"}}'}).splitlines()
    assert lines[0].endswith(": 340 messages along queues, 1 brokers, 1 partitions")
    assert lines[1:] == [
        "  columns: topic, body",
        "  tags: tag1",
        "  partition 0: broker-a: orders/0 from 0 to 114, orders/1 from 0 to 113, orders/2 from 0 to 113",
    ]
    with caplog.at_level(logging.INFO, logger="mqfast.spark"):
        two.batch(subscribe="orders", brokers="broker-b", columns="body")
    told = [record.getMessage() for record in caplog.records if "for answers" in record.getMessage()]
    assert len(told) == 3
    assert sum(int(re.search(r"(\d+) rows", line)[1]) for line in told) == 70  # type: ignore[index]
    assert all(re.search(r"\d+ bytes, \d+ pulls, \d+\.\d+ s for answers, \d+\.\d+ s decoding", line) for line in told)
