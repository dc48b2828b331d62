"""One task of the sink for clusters, without Spark's JVM: what it sends, what it tries again, what it refuses.

Brokers are real ones of ``mqfast.testing``; faults are theirs.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from mqfast.errors import BrokerError, ClientError, ConfigError, ConnectionLost, NoRoute, PropertiesTooLong, UsageError
from mqfast.properties import jhash
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.once import ASK_ONCE, END_ONCE, RowSequence
from mqfast.spark import options as table
from mqfast.spark.remote.client import settings_of
from mqfast.spark.remote.sender import How, TaskSender
from mqfast.spark.remote.sink import RemoteBatchWriter, SentRows
from mqfast.spark.remote.write_state import WriteBatch
from mqfast.testing import Broker

BATCH = int(RequestCode.SEND_BATCH_MESSAGE)
KEY = "0123456789abcdef"


@pytest.fixture(scope="module")
def shared() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(shared: Broker) -> Broker:
    shared.reset()
    shared.create_topics(topics={"t": 4})
    return shared


def writer(broker: Broker, columns: pa.RecordBatch, **options: str) -> RemoteBatchWriter:
    given = {"namesrv": broker.namesrv_addr, "topic": "t", "brokerTimeout": "60s", **options}
    return RemoteBatchWriter(table.parse(given, table.SINK), from_arrow_schema(columns.schema), False)


def rows(count: int, begin: int = 0, **more: Any) -> pa.RecordBatch:
    numbers = range(begin, begin + count)
    return pa.RecordBatch.from_pydict(
        {"body": [b"%d" % n for n in numbers], "keys": [f"k{n % 7}" for n in numbers]} | more
    )


def send(broker: Broker, *batches: pa.RecordBatch, batch: int = 0, key: str = KEY, **options: str) -> SentRows:
    return writer(broker, batches[0], **options).send(iter(batches), key, batch)


def bodies(broker: Broker, topic: str = "t") -> list[int]:
    return sorted(int(bytes(message.body)) for message in broker.messages(topic))


def test_rows_arrive_with_keys_that_choose_the_queue_and_in_their_order(broker: Broker) -> None:
    sent = send(broker, rows(300), rows(200, 300), sendBytes="1k")
    assert (sent.rows, sent.forgetful, sent.repeated) == (500, (), 0)
    messages = broker.messages("t")
    assert len(messages) == 500
    by_queue: dict[int, list[int]] = {}
    for message in sorted(messages, key=lambda one: one.queue_offset):
        number = int(bytes(message.body))
        assert message.keys == [f"k{number % 7}"]
        assert message.queue_id == abs(jhash(f"k{number % 7}")) % 4
        assert message.properties["UNIQ_KEY"] == message.msg_id
        mark = RowSequence.parse(message.properties["SPK"])
        assert mark is not None
        assert mark[:4] == (KEY, 0, 0, number)
        assert mark[5:] == (4, 1)
        by_queue.setdefault(message.queue_id, []).append(number)
    assert all(numbers == sorted(numbers) for numbers in by_queue.values())
    assert {end.queue_id: end.row for end in sent.ends} == {queue: ns[-1] for queue, ns in by_queue.items()}
    assert len({message.msg_id for message in messages}) == 500


def test_a_task_that_is_repeated_stores_nothing_twice_however_its_batches_are_cut(broker: Broker) -> None:
    send(broker, rows(100))
    again = send(broker, rows(100), rows(150, 100), sendBytes="700")
    assert bodies(broker) == list(range(250))
    assert again.repeated > 0
    first = send(broker, rows(250), sendBytes="2k", batch=1)
    assert first.repeated == 0  # another batch has other rows
    assert bodies(broker) == sorted([*range(250), *range(250)])


def test_a_lost_answer_is_asked_for_again_and_stores_nothing_twice(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mqfast.spark.remote.sender.ATTEMPT_S", 0.3)
    with broker.faults.lose_answers(only=[BATCH], times=3), broker.faults.lose_requests(only=[BATCH], times=2):
        sent = send(broker, rows(400), sendBytes="4k")
    assert sent.repeated >= 1
    assert bodies(broker) == list(range(400))
    with broker.faults.busy(3, only=[BATCH, ASK_ONCE]):
        send(broker, rows(40, 400), key="another")
    assert bodies(broker) == list(range(440))


def test_a_send_to_a_demoted_broker_refreshes_the_route(broker: Broker) -> None:
    with broker.faults.answer(ResponseCode.SERVICE_NOT_AVAILABLE, "a slave", only=[BATCH], times=1):
        send(broker, rows(10), queueSelector="round_robin")
    codes = [one.code for one in broker.requests(RequestCode.GET_ROUTEINFO_BY_TOPIC, BATCH)]
    first = codes.index(BATCH)
    assert RequestCode.GET_ROUTEINFO_BY_TOPIC in codes[first:]  # the route is asked for anew
    assert bodies(broker) == list(range(10))


def test_without_exactly_once_a_lost_answer_repeats_rows(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqfast.spark.remote.sender.ATTEMPT_S", 0.3)
    with broker.faults.lose_answers(only=[BATCH], times=1):
        send(broker, rows(4), delivery="at_least_once", queueSelector="round_robin")
    assert sorted(set(bodies(broker))) == list(range(4))
    assert len(bodies(broker)) > 4


def test_a_broker_that_is_killed_and_comes_back_in_mid_batch_has_each_row_once() -> None:
    with Broker(topics={"t": 4}, process=True) as broker:
        parts = [rows(200, 200 * n) for n in range(20)]
        back = threading.Event()

        def batches() -> Iterator[pa.RecordBatch]:
            for n, part in enumerate(parts):
                if n == 9:
                    broker.kill()
                    threading.Timer(0.2, lambda: (broker.restart(), back.set())).start()
                yield part
            assert back.wait(30)

        one = writer(broker, parts[0], sendBytes="2k", brokerTimeout="60s")
        sent = one.send(batches(), KEY, 0)
        assert sent.rows == 4000
        assert bodies(broker) == list(range(4000))
        broker.kill(power_loss=True)
        broker.restart()
        assert one.send(iter(parts), KEY, 0).rows == 4000
        one.check([sent])
        assert one.send(iter([rows(9)]), KEY, 0).done
        assert bodies(broker) == list(range(4000))


def test_exactly_once_is_refused_and_rows_go_at_least_once_to_a_broker_without_write_state(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    with broker.faults.answer(3, "request type 990001 not supported", only=[ASK_ONCE]):
        sent = send(broker, rows(10))
        assert sent.forgetful == ("broker-a",)
        writer(broker, rows(1)).check([sent])
        assert "broker broker-a remembers no writes" in caplog.text
        caplog.clear()
        quiet = writer(broker, rows(1), delivery="at_least_once")
        quiet.check([quiet.send(iter([rows(10, 10)]), KEY, 0)])
        assert not caplog.text
        with pytest.raises(ConfigError, match="exactly_once needs brokers of mqfast"):
            send(broker, rows(10), delivery="exactly_once")
    assert bodies(broker) == list(range(20))


def test_rows_that_differ_from_those_of_an_earlier_try_are_refused(broker: Broker) -> None:
    one = writer(broker, rows(1))
    first = send(broker, rows(50))
    with pytest.raises(BrokerError, match="sends other rows than before"):
        send(broker, rows(50, 1000))
    with pytest.raises(UsageError, match="sent rows up to"):  # fewer rows than before
        one.check([send(broker, rows(20))])
    with pytest.raises(UsageError, match="of an earlier try"):  # a task of before that is not there now
        one.check([SentRows(KEY, 0, 1, 50, first.ends)])
    one.check([send(broker, rows(50))])
    assert send(broker, rows(50, 1000)).done  # it is done: nobody looks at rows any more
    one.check([send(broker, rows(50))])
    first = send(broker, rows(1), batch=1)
    send(broker, rows(1), batch=3)
    with pytest.raises(BrokerError, match="batch 1 is over"):
        send(broker, rows(1), batch=1)
    assert bodies(broker) == sorted([*range(50), 0, 0])


def test_a_query_whose_checkpoint_was_set_back_is_refused_and_a_job_goes_on(broker: Broker) -> None:
    one = writer(broker, rows(1))
    for batch in (4, 5):
        one.commit([send(broker, rows(5, 10 * batch), batch=batch)])
    one.commit([send(broker, rows(5, 50), batch=5)])  # the last one, as after a crash
    old = send(broker, rows(9, 40), batch=4)
    with pytest.raises(UsageError, match="batch 5 was written before as a whole, so the checkpoint was set back"):
        one.commit([old])
    one.check([old])  # a job that goes over its batches from the first one on
    assert bodies(broker) == [*range(40, 45), *range(50, 55)]


def test_a_topic_that_is_deleted_and_made_again_gets_the_rows_when_the_batch_is_repeated(broker: Broker) -> None:
    one = writer(broker, rows(1))
    first = send(broker, rows(50))
    for _ in range(2):  # before the batch counts, and behind that
        broker.admin().delete_topic("t")
        broker.create_topic("t", 4)
        with pytest.raises(
            UsageError, match=r"the broker has rows up to -1: the topic was deleted.*Run the batch again"
        ):
            one.check([first])
        again = send(broker, rows(50))
        assert (again.done, again.repeated) == (False, 0)
        one.check([again])
        assert bodies(broker) == list(range(50))
        assert send(broker, rows(50)).done


def test_two_attempts_of_one_task_at_a_time_store_each_row_once(broker: Broker) -> None:
    """As speculative execution runs them, and as two queries with one checkpoint do."""
    with ThreadPoolExecutor(3) as pool:
        sizes = ("700", "2k", "5k")
        sent = list(pool.map(lambda size: send(broker, rows(900), rows(300, 900), sendBytes=size), sizes))
    assert bodies(broker) == list(range(1200))
    assert sent[0].ends == sent[1].ends == sent[2].ends
    for one in sent:  # the first driver says that this is all, the others find the same
        writer(broker, rows(1)).commit([one])
    assert send(broker, rows(5)).done


def test_an_answer_or_a_request_may_be_lost_at_each_point(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("sender", "write_state"):
        monkeypatch.setattr(f"mqfast.spark.remote.{module}.ATTEMPT_S", 0.4)
    one, batch = writer(broker, rows(1), brokerTimeout="30s"), 0
    for code in (ASK_ONCE, BATCH, END_ONCE):
        for lost in (broker.faults.lose_answers, broker.faults.lose_requests):
            with lost(only=[code], times=1):
                one.commit([one.send(iter([rows(40, 40 * batch)]), KEY, batch)])
            assert one.send(iter([rows(1)]), KEY, batch).done
            batch += 1
    assert bodies(broker) == list(range(40 * batch))


def test_a_server_without_write_state_at_the_address_of_one_with_it_is_retried(broker: Broker) -> None:
    """Only a broker that has no rows of the batch may know nothing of its end."""
    one = writer(broker, rows(1), brokerTimeout="30s")
    unknown = "request type not supported"
    sent = send(broker, rows(30))
    for code in (ASK_ONCE, END_ONCE):
        with (
            broker.faults.answer(3, unknown, only=[code]),
            pytest.raises(ConnectionLost, match="another server is there"),
        ):
            writer(broker, rows(1), brokerTimeout="300ms").check([sent])
        with broker.faults.answer(3, unknown, only=[code], times=1):
            one.check([sent])
        assert send(broker, rows(30)).done
    settings = settings_of(one.options)
    with broker.faults.answer(3, unknown, only=[ASK_ONCE, END_ONCE]):
        other = WriteBatch(settings, KEY, 1, {"t"}, set(), set(), 5.0)
        assert other.rows() == {}
        other.mark_stored(0)
    broker.create_topic("u", 4)
    both = rows(40, topic=["t"] * 20 + ["u"] * 20)
    with TaskSender(settings, How(KEY, 1, 0, None, 30.0, 1 << 20)) as sender:
        sender.division("t")
        with broker.faults.answer(3, unknown, only=[ASK_ONCE], times=2):
            sender.division("u")
        assert sender.forgetful == set()
    assert send(broker, both, batch=1).forgetful == ()


def test_two_writes_of_one_name_to_different_topics_are_both_written(broker: Broker) -> None:
    broker.create_topic("u", 4)
    one = writer(broker, rows(1))
    one.commit([send(broker, rows(30))])
    other = send(broker, rows(20), topic="u")
    assert not other.done
    one.commit([other])
    assert send(broker, rows(20), topic="u").done
    assert bodies(broker) == list(range(30))
    assert bodies(broker, "u") == list(range(20))


def test_the_driver_waits_for_a_broker_lost_after_the_last_row() -> None:
    with Broker(topics={"t": 4}, brokers=2) as broker:
        sent = send(broker, rows(100), queueSelector="round_robin", brokerTimeout="30s")
        assert {end.broker for end in sent.ends} == {"broker-a", "broker-b"}
        broker.stop("broker-b")
        with pytest.raises(ConnectionLost, match="broker-b, which rows were sent to"):
            writer(broker, rows(1), brokerTimeout="1s").check([sent])
        broker.stop("broker-a")
        with pytest.raises(ConnectionLost, match="t"):  # nobody has a route of the topic
            writer(broker, rows(1), brokerTimeout="500ms").check([sent])
        broker.restart("broker-a")
        timer = threading.Timer(0.5, lambda: broker.restart("broker-b"))
        timer.start()
        writer(broker, rows(1), brokerTimeout="30s").check([sent])
        timer.join()
        assert send(broker, rows(100), queueSelector="round_robin").done


def test_a_batch_that_is_repeated_keeps_its_queues_and_a_new_one_takes_those_that_were_added(broker: Broker) -> None:
    send(broker, rows(50))
    broker.create_topic("t", 8)
    again = send(broker, rows(100))
    assert again.repeated > 0
    assert {end.queue_id for end in again.ends} <= {0, 1, 2, 3}
    assert bodies(broker) == list(range(100))
    sent = send(broker, rows(50, 100), batch=1, queueSelector="round_robin")
    assert {end.queue_id for end in sent.ends} == set(range(8))
    assert bodies(broker) == list(range(150))


def test_a_batch_that_is_repeated_is_refused_while_queues_are_missing(broker: Broker) -> None:
    send(broker, rows(50))
    broker.create_topic("t", 2)
    with pytest.raises(ClientError, match="among 4 queues of 1 brokers, and the topic has 2 of 1 now"):
        send(broker, rows(50), brokerTimeout="1s")
    broker.create_topic("t", 4)
    send(broker, rows(60))
    assert bodies(broker) == list(range(60))


def test_several_brokers_share_the_rows_and_one_that_is_away_is_waited_for() -> None:
    with Broker(topics={"t": 4}, brokers=2) as broker:
        sent = send(broker, rows(200), brokerTimeout="30s")
        assert {end.broker for end in sent.ends} == {"broker-a", "broker-b"}
        assert bodies(broker) == list(range(200))
        broker.stop("broker-b")
        with pytest.raises(ClientError, match="the topic has 4 of 1 now"):
            send(broker, rows(200), brokerTimeout="1s")
        with pytest.raises(ClientError, match="may be on a broker that is away"):
            send(broker, rows(200, 200), batch=1, brokerTimeout="1s")
        timer = threading.Timer(0.5, lambda: broker.restart("broker-b"))
        timer.start()
        send(broker, rows(200, 200), batch=1, brokerTimeout="30s")
        timer.join()
        assert bodies(broker) == list(range(400))
        with pytest.raises(UsageError, match="a queue id alone names no queue"):
            send(broker, rows(1, queueId=pa.array([1], pa.int32())), key="k")


def test_columns_mean_what_they_mean_in_a_store(broker: Broker) -> None:
    columns = {
        "topic": ["t", None, "u"],
        "body": [b"0", b"1", b"2"],
        "queueId": pa.array([3, 2, 1], pa.int32()),
        "tags": ["A", None, "B"],
        "properties": pa.array([[("color", "red")], [], [("n", "1")]], pa.map_(pa.string(), pa.string())),
        "flag": pa.array([1, 2, 3], pa.int32()),
        "reconsumeTimes": pa.array([0, 1, 0], pa.int32()),
        "bornTimestamp": pa.array([1_700_000_000_000_000, 1_700_000_001_000_000, None], pa.timestamp("us", "UTC")),
        "uniqKey": ["own0", None, "own2"],
    }
    broker.create_topic("u", 2)
    send(broker, pa.RecordBatch.from_pydict(columns), preserveTimestamps="true", preserveIds="true")
    first, second = sorted(broker.messages("t"), key=lambda one: bytes(one.body))
    (third,) = broker.messages("u")
    assert [(one.queue_id, one.flag, one.tags, one.reconsume_times) for one in (first, second, third)] == [
        (3, 1, "A", 0), (2, 2, None, 1), (1, 3, "B", 0),
    ]  # fmt: skip
    assert first.properties["color"] == "red"
    assert (first.msg_id, third.msg_id) == ("own0", "own2")
    assert len(second.msg_id) == 32
    assert first.born_timestamp == 1_700_000_000_000


def test_delayed_rows_wait_at_the_broker_and_count_once() -> None:
    with Broker(topics={"t": 2}, virtual_time=True) as broker:
        columns = pa.RecordBatch.from_pydict(
            {
                "body": [b"0", b"1", b"2"],
                "delayLevel": pa.array([None, 3, None], pa.int32()),
                "delayTimeMs": pa.array([None, None, 30_000], pa.int64()),
            }
        )
        for _ in range(2):
            send(broker, columns)
        assert bodies(broker) == [0]
        assert len(broker.scheduled()) == 2
        broker.clock.advance(60)
        assert bodies(broker) == [0, 1, 2]
        send(broker, columns)
        broker.clock.advance(60)
        assert bodies(broker) == [0, 1, 2]


def test_a_topic_is_made_where_brokers_make_topics_and_is_an_error_elsewhere(broker: Broker) -> None:
    send(broker, rows(20), topic="new")
    assert bodies(broker, "new") == list(range(20))
    assert len(broker.admin().topic_stats("new")) == 8
    with Broker(auto_create_topics=False) as strict, pytest.raises(NoRoute, match="no broker makes topics"):
        send(strict, rows(1), topic="new")


def test_a_namespace_and_accounts_are_those_of_the_options(tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(
        "accounts:\n"
        "- {accessKey: writer1, secretKey: abcdefgh, admin: false, defaultTopicPerm: DENY, defaultGroupPerm: DENY,\n"
        "   topicPerms: [tenant%t=PUB, t=SUB]}\n"
    )
    rules = {"aclEnable": "true", "aclFile": str(accounts)}
    with Broker(topics={"tenant%t": 4, "t": 4}, config=rules) as broker:
        with pytest.raises(BrokerError, match="No accessKey is configured"):
            send(broker, rows(3), namespace="tenant")
        keys = {"accessKey": "writer1", "secretKey": "abcdefgh"}
        one = writer(broker, rows(1), namespace="tenant", **keys)
        for _ in range(2):
            one.check([one.send(iter([rows(30)]), KEY, 0)])
        assert bodies(broker, "tenant%t") == list(range(30))
        with pytest.raises(BrokerError, match="permission"):
            send(broker, rows(3), **keys)
        assert bodies(broker) == []


def test_a_namespace_of_version_2_is_in_every_request_of_a_write(broker: Broker) -> None:
    before = len(broker.requests())
    one = writer(broker, rows(1), namespaceV2="tenant")
    one.check([one.send(iter([rows(30)]), KEY, 0)])
    assert bodies(broker) == list(range(30))
    asked = [request for request in broker.requests()[before:] if request.code in (BATCH, ASK_ONCE)]
    assert {request.code for request in asked} == {BATCH, ASK_ONCE}
    assert {request.fields.get("ns") for request in asked} == {"tenant"}


def test_bytes_on_their_way_are_bounded(broker: Broker) -> None:
    big = pa.RecordBatch.from_pydict({"body": [b"x" * 1000] * 1000})
    with broker.faults.slow(0.005, only=[BATCH]):
        sent = send(broker, big, big, maxInFlight="20k", sendBytes="4k", queueSelector="round_robin")
    assert sent.rows == 2000
    assert len(broker.messages("t")) == 2000


def test_a_row_that_cannot_be_sent_fails_the_task_with_its_number(broker: Broker) -> None:
    with pytest.raises(Exception, match="row 1: expected a body, found null"):
        send(broker, pa.RecordBatch.from_pydict({"body": [b"0", None]}))
    with pytest.raises(PropertiesTooLong, match="row 1: expected properties of at most"):
        long = pa.array([[("p", "x")], [("p", "x" * 32_750)]], pa.map_(pa.string(), pa.string()))
        send(broker, pa.RecordBatch.from_pydict({"body": [b"0", b"1"], "properties": long}), key="p")
    with pytest.raises(UsageError, match="expected a queue below 4, found 9"):
        send(broker, rows(1, queueId=pa.array([9], pa.int32())), key="q")
    with pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        send(broker, rows(1), namesrv="127.0.0.1:1", brokerTimeout="500ms")
    with broker.faults.answer(10, only=[BATCH], times=1), contextlib.suppress(ClientError):
        send(broker, rows(3, 100), delivery="at_least_once", key="r")
        raise AssertionError("expected that a status other than SEND_OK fails rows that are not remembered")
