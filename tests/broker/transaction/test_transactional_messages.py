"""Transactions: half messages, their ends (37), checks (39) and what is given up, over restarts and crashes.

The broker is real, and so is the producer's connection; the tests run the rounds of checks.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from clocked import golden_records
from conftest import golden_cases
from event_loop import run
from running import Running, running_broker

import mqfast
from mqfast import properties as names
from mqfast.broker.send.message_writer import MessageRecord
from mqfast.broker.transaction import transaction_recovery as find_open
from mqfast.broker.transaction.half_message import OP_PROPERTIES, ended_offsets, half_of
from mqfast.broker.transaction.transactional_messages import Transactions
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.store.message_store import MessageStore
from mqfast.store.record.record import StoredMessage, decode_record

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP, GROUP = "TRANS_CHECK_MAX_TIME_TOPIC", "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


class Clock:
    """The wall clock, moved by a test."""

    def __init__(self) -> None:
        self.shift_ms = 0

    def __call__(self) -> int:
        return time.time_ns() // 1_000_000 + self.shift_ms


class Producer:
    """What a producer is asked, on the connection of a running broker's client."""

    def __init__(self) -> None:
        self.asked: asyncio.Queue[RemotingCommand] = asyncio.Queue()
        self.processors = Processors()
        self.processors.register([RequestCode.CHECK_TRANSACTION_STATE], self._asked, ConcurrencyLimit("check"))

    def _asked(self, _channel: object, request: RemotingCommand) -> None:
        self.asked.put_nowait(request)

    async def join(self, one: Running, group: str = "producers") -> None:
        body = {"clientID": "client-1", "consumerDataSet": [], "producerDataSet": [{"groupName": group}]}
        assert (await one.call(RequestCode.HEART_BEAT, json.dumps(body).encode())).code == 0

    async def next(self) -> RemotingCommand:
        return await asyncio.wait_for(self.asked.get(), 300)


def transactions(one: Running) -> Transactions:
    return one.parts.transactions


async def prepare(one: Running, body: bytes = b"x", topic: str = "T", **pairs: Any) -> RemotingCommand:
    """A half message; its group is ``producers``."""
    text = names.encode({"TRAN_MSG": True, "PGROUP": "producers", **pairs}).decode()
    answer = await one.send(topic, body, queue_id=1, properties=text, f=4, h=3, g=one.context.now_ms())
    assert answer.code == 0, answer.remark
    return answer


def ending(half: RemotingCommand, kind: int = COMMIT, **more: Any) -> dict[str, Any]:
    """The fields of 37 for the answer to a prepared send."""
    fields = half.ext_fields
    return {
        "producerGroup": "producers", "topic": "T", "tranStateTableOffset": fields["queueOffset"],
        "commitLogOffset": int(fields["msgId"][16:], 16), "commitOrRollback": kind, "fromTransactionCheck": "false",
        "msgId": fields["transactionId"], "transactionId": fields["transactionId"], "bname": "broker-a", **more,
    }  # fmt: skip


async def end(one: Running, half: RemotingCommand, kind: int = COMMIT, **more: Any) -> RemotingCommand:
    return await one.call(RequestCode.END_TRANSACTION, **ending(half, kind, **more))


async def answer_check(one: Running, question: RemotingCommand, kind: int) -> RemotingCommand:
    """What a producer says to a question, as the Java client says it."""
    names_ = ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId", "topic")
    fields = {name: question.ext_fields[name] for name in names_}
    return await one.call(
        RequestCode.END_TRANSACTION,
        producerGroup="producers",
        commitOrRollback=kind,
        fromTransactionCheck="true",
        **fields,
    )


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 1) -> list[bytes]:
    return [bytes(m.body) for m in store.get(topic, queue_id, 0, max_count=1000)]


def marks(store: MessageStore) -> list[int]:
    return [offset for m in store.get(OP, 0, 0, max_count=1000) for offset in ended_offsets(m)]


# --- half messages ----------------------------------------------------------------------------------------------------


def test_prepared_message_is_a_half_message_outside_of_its_topic(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            answer = await prepare(one, b"body", UNIQ_KEY="U1", TAGS="A")
            fields = answer.ext_fields
            assert (fields["transactionId"], fields["queueOffset"]) == ("U1", "0")
            store = one.context.store
            (half,) = store.get(HALF, 0, 0)
            assert fields["msgId"] == half.message_id
            assert (bytes(half.body), half.sys_flag, half.flag) == (b"body", 0, 3)
            assert half.properties["REAL_TOPIC"] == "T"
            assert half.properties["REAL_QID"] == "1"
            assert half.properties["__transactionId__"] == "U1"
            assert store.max_offset("T", 1) == 0
            second = await prepare(one)
            assert second.ext_fields["queueOffset"] == "1"

    run(flow())


def test_transactional_sends_are_refused_with_rejectTransactionMessage(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, rejectTransactionMessage=True) as one:
            text = names.encode({"TRAN_MSG": True, "PGROUP": "producers"}).decode()
            answer = await one.send("T", b"x", properties=text, f=4)
            assert answer.code == ResponseCode.NO_PERMISSION
            assert answer.remark == "the broker[127.0.0.1] sending transaction message is forbidden"

    run(flow())


def test_half_messages_have_javas_bytes() -> None:
    (case,) = golden_cases("5.5.0", ("normal-clean",))
    seen = 0
    for topic, their in golden_records(case):
        pairs = their.properties
        if topic != HALF or names.TRANSACTION_CHECK_TIMES in pairs:
            continue
        real_topic, queue = pairs.pop(names.REAL_TOPIC), int(pairs.pop(names.REAL_QID))
        del pairs[names.TRANSACTION_ID]
        half = half_of(MessageRecord(real_topic, queue, b"", names.encode(pairs), flag=their.flag, sys_flag=4))
        assert (half.topic, half.queue_id, half.sys_flag, half.flag) == (HALF, 0, 0, their.flag)
        assert half.properties == their.properties_bytes
        seen += 1
    assert seen >= 7


@pytest.mark.parametrize("release", ["4.9.7", "5.3.3", "5.5.0"])
def test_marks_of_all_releases_are_read_and_ours_are_those_of_5_5(release: str) -> None:
    (case,) = golden_cases(release, ("normal-clean",))
    found = [m for topic, m in golden_records(case) if topic == OP]
    assert found
    for op in found:
        texts = [text for text in bytes(op.body).decode().split(",") if text]
        assert ended_offsets(op) == list(map(int, texts)) != []
        assert op.properties_bytes.removesuffix(b"\x02") == OP_PROPERTIES.removesuffix(b"\x02")


# --- the end of a transaction -----------------------------------------------------------------------------------------


def test_committed_transaction_is_stored_in_its_queue_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            half = await prepare(one, b"body", TAGS="A", UNIQ_KEY="U1")
            answer = await end(one, half)
            assert (answer.code, answer.remark) == (0, None)
            store = one.context.store
            (message,) = store.get("T", 1, 0)
            parent = store.get(HALF, 0, 0)[0]
            assert bytes(message.body) == b"body"
            assert (message.sys_flag, message.flag, message.tags) == (8, 3, "A")
            assert message.prepared_transaction_offset == parent.physical_offset
            assert message.born_timestamp == parent.born_timestamp
            assert "REAL_TOPIC" not in message.properties
            assert message.properties["TRAN_MSG"] == "true"
            (op,) = store.get(OP, 0, 0)
            assert bytes(op.body) == b"0,"
            assert op.properties_bytes == OP_PROPERTIES
            for kind in (COMMIT, ROLLBACK):
                answer = await end(one, half, kind)
                assert (answer.code, answer.remark) == (1, "The transaction has ended already")
            assert bodies(store) == [b"body"]

    run(flow())


def test_commits_have_javas_bytes(tmp_path: Path) -> None:
    """Each golden half message of 5.5.0 that was committed, committed here."""

    async def flow() -> None:
        (case,) = golden_cases("5.5.0", ("normal-clean",))
        records = list(golden_records(case))
        at = {m.physical_offset: m for topic, m in records if topic == HALF}
        compared = 0
        async with running_broker(tmp_path) as one:
            for _, their in records:
                if their.sys_flag & 12 != COMMIT:
                    continue
                half = at[their.prepared_transaction_offset]
                result = one.context.engine.put_encoded(
                    HALF.encode(), 0, bytes(half.body), half.properties_bytes, half.flag, half.sys_flag,
                    half.born_timestamp, None, one.context.store_host, half.reconsume_times, wait=False,
                )  # fmt: skip
                answer = await one.call(
                    RequestCode.END_TRANSACTION, producerGroup="pg_tx", tranStateTableOffset=result.queue_offset,
                    commitLogOffset=result.physical_offset, commitOrRollback=COMMIT, fromTransactionCheck="true",
                    msgId="x",
                )  # fmt: skip
                assert answer.code == 0, answer.remark
                store = one.context.store
                topic, queue = half.properties["REAL_TOPIC"], int(half.properties["REAL_QID"])
                ours = store.get(topic, queue, store.max_offset(topic, queue) - 1)[0]
                for field in ("properties_bytes", "flag", "sys_flag", "born_timestamp", "reconsume_times", "body_crc",
                              "queue_id", "magic", "size"):  # fmt: skip
                    assert getattr(ours, field) == getattr(their, field), field
                assert ours.prepared_transaction_offset == result.physical_offset
                compared += 1
        assert compared == 4

    run(flow())


def test_rolled_back_transaction_is_not_delivered(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            half = await prepare(one)
            assert (await end(one, half, ROLLBACK)).code == 0
            store = one.context.store
            assert store.max_offset("T", 1) == 0
            assert marks(store) == [0]
            assert (await end(one, half, COMMIT)).code == 1
            assert store.max_offset("T", 1) == 0

    run(flow())


def test_an_unknown_state_is_not_answered_and_changes_nothing(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            half = await prepare(one)
            channel = await one.client.channel(one.address)
            fields = {name: str(value) for name, value in ending(half, UNKNOWN).items()}
            question = asyncio.ensure_future(channel.call(RequestCode.END_TRANSACTION, fields, timeout_ms=60_000))
            assert (await end(one, half, COMMIT)).code == 0
            assert not question.done()
            question.cancel()

    run(flow())


def test_an_end_without_an_answer_works_as_clients_send_it(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for kind in (COMMIT, ROLLBACK):
                half = await prepare(one, b"%d" % kind)
                fields = {name: str(value) for name, value in ending(half, kind).items()}
                await one.client.oneway(one.address, RequestCode.END_TRANSACTION, fields)
            store = one.context.store
            while len(marks(store)) < 2:
                await asyncio.sleep(0.005)
            assert bodies(store) == [b"8"]

    run(flow())


def test_ends_that_do_not_fit_their_half_message_are_refused(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            half = await prepare(one)
            plain = await one.send("T", b"plain")
            place = int(half.ext_fields["msgId"][16:], 16)
            for more, words in (
                ({"producerGroup": "others"}, "The producer group wrong"),
                ({"tranStateTableOffset": 1}, "The transaction state table offset wrong"),
                ({"commitLogOffset": place + 1}, "Find prepared transaction message failed"),
                ({"commitLogOffset": 10**9}, "Find prepared transaction message failed"),
                ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
                (
                    {"commitLogOffset": int(plain.ext_fields["msgId"][16:], 16)},
                    "Find prepared transaction message failed",
                ),
            ):
                for kind in (COMMIT, ROLLBACK):
                    answer = await end(one, half, kind, **more)
                    assert (answer.code, answer.remark) == (1, words)
            for missing in ("producerGroup", "commitLogOffset", "tranStateTableOffset", "commitOrRollback"):
                fields = ending(half)
                del fields[missing]
                answer = await one.call(RequestCode.END_TRANSACTION, **fields)
                assert answer.code == 1
                assert missing in str(answer.remark)
            store = one.context.store
            assert (store.max_offset("T", 1), store.max_offset(OP, 0)) == (0, 0)
            assert (await end(one, half)).code == 0

    run(flow())


def test_end_of_a_transaction_after_its_immunity_time_is_left_to_a_check(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock, transactionTimeOut=6000) as one:
            early = await prepare(one, b"early", CHECK_IMMUNITY_TIME_IN_SECONDS=10)
            assert (await end(one, early)).code == 0
            half = await prepare(one, b"late", CHECK_IMMUNITY_TIME_IN_SECONDS=10)
            short = await prepare(one, b"short", CHECK_IMMUNITY_TIME_IN_SECONDS=1)
            clock.shift_ms = 5000
            assert (await end(one, short)).code == 0  # never less than transactionTimeOut
            clock.shift_ms = 11_000
            for kind in (COMMIT, ROLLBACK):
                answer = await end(one, half, kind)
                assert (answer.code, answer.remark) == (ResponseCode.ILLEGAL_OPERATION, None)
            assert (await end(one, half, fromTransactionCheck="true")).code == 0
            assert bodies(one.context.store) == [b"early", b"short", b"late"]

    run(flow())


def test_a_committed_message_may_be_delayed(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, messageDelayLevel="1s 5s") as one:
            half = await prepare(one, b"later", DELAY=1)
            assert (await end(one, half)).code == 0
            store = one.context.store
            (parked,) = store.get("SCHEDULE_TOPIC_XXXX", 0, 0)
            assert parked.sys_flag == 8
            assert "TRAN_MSG" not in parked.properties
            assert parked.properties["REAL_TOPIC"] == "T"
            while store.max_offset("T", 1) == 0:
                await asyncio.sleep(0.01)
            assert bodies(store) == [b"later"]

    run(flow())


def test_a_committed_message_may_be_timed(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, timerMaxDelaySec=100) as one:
            half = await prepare(one, b"timed", TIMER_DELAY_SEC=1)
            assert (await end(one, half)).code == 0
            store = one.context.store
            (parked,) = store.get("rmq_sys_wheel_timer", 0, 0)
            assert parked.sys_flag == 8
            assert "TRAN_MSG" not in parked.properties
            while store.max_offset("T", 1) == 0:
                await asyncio.sleep(0.01)
            assert bodies(store) == [b"timed"]
            # What may not be parked is not committed, and stays open.
            half = await prepare(one, b"too far", TIMER_DELAY_SEC=1000)
            answer = await end(one, half)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "max delay 100000ms" in str(answer.remark)
            assert transactions(one).open_transactions.is_open(1)
            assert (await end(one, half, ROLLBACK)).code == 0

    run(flow())


def test_end_of_a_transaction_waits_for_the_sync_flush_of_its_half_message(tmp_path: Path) -> None:
    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, flushDiskType="SYNC_FLUSH", transactionTimeOut=0,
                                  processors=producer.processors) as one:  # fmt: skip
            await producer.join(one)
            open_transactions = await asyncio.gather(*(prepare(one, b"%d" % i) for i in range(20)))
            answers = await asyncio.gather(*(end(one, half) for half in open_transactions[:10]))
            assert {answer.code for answer in answers} == {0}
            await asyncio.sleep(0.002)
            assert await transactions(one).check.round() == 10
            for _ in range(10):
                assert (await answer_check(one, await producer.next(), COMMIT)).code == 0
            store = one.context.store
            await asyncio.get_running_loop().run_in_executor(None, store.flush)
            assert sorted(bodies(store)) == sorted(b"%d" % i for i in range(20))

    run(flow())


# --- checks -----------------------------------------------------------------------------------------------------------


def test_transaction_check_sends_the_message_in_wire_format(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            await prepare(one, b"asked", UNIQ_KEY="U1", KEYS="k")
            check = transactions(one).check
            clock.shift_ms = 5900
            assert await check.round() == 0
            clock.shift_ms = 6100
            assert await check.round() == 1
            question = await producer.next()
            store = one.context.store
            first, again = store.get(HALF, 0, 0)
            assert question.is_oneway
            assert question.ext_fields == {
                "topic": HALF, "tranStateTableOffset": "1", "commitLogOffset": str(again.physical_offset),
                "offsetMsgId": again.message_id, "msgId": "U1", "transactionId": "U1", "bname": "broker-a",
            }  # fmt: skip
            record = decode_record(bytes(question.body))
            assert record.size == len(question.body)
            assert (record.topic, record.queue_id, bytes(record.body)) == ("T", 1, b"asked")
            assert (record.record_queue_offset, record.flag) == (1, 3)
            assert (record.born_timestamp, record.born_host) == (first.born_timestamp, first.born_host)
            assert record.properties == {**first.properties, "TRANSACTION_CHECK_TIMES": "1", "WAIT": "false"}
            assert again.properties == {**first.properties, "TRANSACTION_CHECK_TIMES": "1"}
            assert (bytes(again.body), again.flag) == (b"asked", 3)
            assert (await answer_check(one, question, COMMIT)).code == 0
            assert bodies(store) == [b"asked"]
            assert store.get("T", 1, 0)[0].prepared_transaction_offset == again.physical_offset
            assert marks(store) == [0, 1]
            clock.shift_ms = 100_000
            assert await check.round() == 0

    run(flow())


def test_the_end_of_a_checked_transaction_may_name_its_first_half_message(tmp_path: Path) -> None:
    """RocketMQ commits such a message a second time when the producer answers the check as well."""
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            half = await prepare(one, b"once")
            check = transactions(one).check
            for rounds in range(1, 4):
                clock.shift_ms += 31_000
                assert await check.round() == 1
                question = await producer.next()
                assert question.ext_fields["tranStateTableOffset"] == str(rounds)
            assert (await end(one, half)).code == 0
            assert (await answer_check(one, question, COMMIT)).code == 1
            assert bodies(one.context.store) == [b"once"]
            clock.shift_ms += 31_000
            assert await check.round() == 0

    run(flow())


def test_re_stored_half_messages_have_javas_properties(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        (case,) = golden_cases("5.5.0", ("normal-clean",))
        theirs: dict[str, list[StoredMessage]] = {}
        for topic, m in golden_records(case):
            if topic in (HALF, GIVEN_UP):
                theirs.setdefault(m.properties[names.UNIQ_KEY], []).append(m)
        compared = 0
        async with running_broker(tmp_path, now_ms=clock) as one:
            check = transactions(one).check
            for chain in theirs.values():
                if len(chain) == 1:
                    continue
                start = chain[0]
                one.context.engine.put_encoded(
                    HALF.encode(), 0, bytes(start.body), start.properties_bytes, start.flag, 0, start.born_timestamp,
                    None, one.context.store_host, 0, wait=False,
                )  # fmt: skip
                for their in chain[1:]:
                    clock.shift_ms += 31_000
                    await check.round()
                    store, topic = one.context.store, their.topic
                    ours = store.get(topic, 0, store.max_offset(topic, 0) - 1)[0]
                    assert ours.properties_bytes == their.properties_bytes
                    assert bytes(ours.body) == bytes(their.body)
                    for field in ("sys_flag", "born_timestamp", "reconsume_times", "prepared_transaction_offset"):
                        assert getattr(ours, field) == getattr(their, field), field
                    compared += 1
                open_transactions = transactions(one).open_transactions
                open_transactions.end_all(list(range(open_transactions.progress, open_transactions.end)))
        assert compared >= 18

    run(flow())


def test_after_the_last_check_a_message_is_given_up_and_kept(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, transactionCheckMax=3, processors=producer.processors) as one:
            await producer.join(one)
            half = await prepare(one, b"never")
            store, part = one.context.store, transactions(one)
            for times in range(1, 4):
                clock.shift_ms += 31_000
                assert await part.check.round() == 1
                assert (await producer.next()).ext_fields["tranStateTableOffset"] == str(times)
            clock.shift_ms += 31_000
            assert await part.check.round() == 0
            assert bodies(store, GIVEN_UP, 0) == [b"never"]
            assert store.get(GIVEN_UP, 0, 0)[0].properties["TRANSACTION_CHECK_TIMES"] == "3"
            assert one.context.topics.get(GIVEN_UP) is not None
            clock.shift_ms += 31_000
            assert await part.check.round() == 0
            assert bodies(store, GIVEN_UP, 0) == [b"never"]
            assert part.open_transactions.progress == part.open_transactions.end == 4
            assert (await end(one, half)).code == 1
            # 323 gives the message another series of checks, once.
            message_id = store.get(GIVEN_UP, 0, 0)[0].message_id
            for _ in range(2):
                assert (await one.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=message_id)).code == 0
            clock.shift_ms += 31_000
            assert await part.check.round() == 1
            assert (await answer_check(one, await producer.next(), COMMIT)).code == 0
            assert bodies(store) == [b"never"]
            for wrong in ("nonsense", half.ext_fields["msgId"]):
                assert (await one.call(RequestCode.RESUME_CHECK_HALF_MESSAGE, msgId=wrong)).code == 1

    run(flow())


def test_a_message_older_than_the_log_keeps_files_is_given_up(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock, fileReservedTime=1) as one:
            await prepare(one, b"old")
            clock.shift_ms = 3_601_000
            await transactions(one).check.round()
            assert bodies(one.context.store, GIVEN_UP, 0) == [b"old"]

    run(flow())


def test_half_message_without_room_for_its_check_count_delays_no_other(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            assert (await end(one, await prepare(one, UNIQ_KEY="U0", mine="x"), ROLLBACK)).code == 0
            least = len(names.encode(one.context.store.get(HALF, 0, 0)[0].properties))
            full = await prepare(one, b"full", UNIQ_KEY="U1", mine="x" * (32_761 - least))
            await prepare(one, b"behind", UNIQ_KEY="U2")
            clock.shift_ms = 31_000
            part = transactions(one)
            assert await part.check.round() == 1
            question = await producer.next()
            assert question.ext_fields["msgId"] == "U2"
            assert (await answer_check(one, question, COMMIT)).code == 0
            assert part.open_transactions.is_open(1)
            assert (await end(one, full)).code == 0
            assert bodies(one.context.store) == [b"behind", b"full"]
            assert part.open_transactions.progress == part.open_transactions.end

    run(flow())


def test_half_message_within_its_immunity_time_is_not_checked_and_delays_no_other(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, transactionCheckMax=2, processors=producer.processors) as one:
            await producer.join(one)
            quiet = await prepare(one, b"quiet", CHECK_IMMUNITY_TIME_IN_SECONDS=200)
            await prepare(one, b"other")
            part = transactions(one)
            clock.shift_ms = 31_000
            assert await part.check.round() == 1
            assert decode_record(bytes((await producer.next()).body)).properties["REAL_TOPIC"] == "T"
            moved = next(m for m in one.context.store.get(HALF, 0, 2) if bytes(m.body) == b"quiet")
            assert moved.properties["TRAN_PREPARED_QUEUE_OFFSET"] == "0"
            assert "TRANSACTION_CHECK_TIMES" not in moved.properties
            for shift in (62_000, 93_000, 124_000):
                clock.shift_ms = shift
                await part.check.round()
            while not producer.asked.empty():
                assert bytes(decode_record(bytes(producer.asked.get_nowait().body)).body) == b"other"
            assert (await end(one, quiet)).code == 0  # by its first place
            assert bodies(one.context.store) == [b"quiet"]

    run(flow())


def test_half_message_is_checked_after_its_immunity_time(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            await prepare(one, b"quiet", CHECK_IMMUNITY_TIME_IN_SECONDS=100)
            check = transactions(one).check
            asked = []
            for shift in range(31_000, 200_000, 31_000):
                clock.shift_ms = shift
                asked.append(await check.round())
            assert asked == [0, 0, 0, 1, 1, 1]

    run(flow())


def test_age_of_a_transaction_does_not_depend_on_the_producers_clock(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            for born in (1, one.context.now_ms() - 10**9, one.context.now_ms() + 10**9):
                text = names.encode({"TRAN_MSG": True, "PGROUP": "producers"}).decode()
                await one.send("T", b"x", properties=text, f=4, g=born)
            assert await transactions(one).check.round() == 0
            assert one.context.store.max_offset(HALF, 0) == 3

    run(flow())


def test_a_clock_set_back_stops_no_check(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            await prepare(one)
            clock.shift_ms = -86_400_000
            check = transactions(one).check
            assert await check.round() == 0
            clock.shift_ms += 31_000
            assert await check.round() == 1

    run(flow())


def test_without_a_producer_the_transaction_waits_for_one(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one, "others")
            await prepare(one, b"x")
            check = transactions(one).check
            clock.shift_ms = 31_000
            assert await check.round() == 0
            await producer.join(one)
            clock.shift_ms = 62_000
            assert await check.round() == 1
            assert (await answer_check(one, await producer.next(), COMMIT)).code == 0
            assert bodies(one.context.store) == [b"x"]

    run(flow())


def test_rounds_run_by_the_clock(tmp_path: Path) -> None:
    async def flow() -> None:
        producer = Producer()
        async with running_broker(
            tmp_path, transactionTimeOut=100, transactionCheckInterval=50, processors=producer.processors
        ) as one:
            await producer.join(one)
            await prepare(one, b"x")
            question = await producer.next()
            while (await answer_check(one, question, COMMIT)).code:
                question = await producer.next()
            assert bodies(one.context.store) == [b"x"]

    run(flow())


def test_round_of_checks_yields_to_other_tasks(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            text = names.encode({"TRAN_MSG": True, "PGROUP": "p", "REAL_TOPIC": "T", "REAL_QID": 0})
            for i in range(5000):
                one.context.engine.put_encoded(
                    HALF.encode(), 0, b"x" * 100, text + b"UNIQ_KEY\x01%d\x02" % i, wait=False
                )
            clock.shift_ms = 31_000
            part = transactions(one)
            work = asyncio.ensure_future(part.check.round())
            while part.open_transactions.progress == 0:
                await asyncio.sleep(0)
            assert (await one.send("U", b"x")).code == 0
            assert part.open_transactions.progress < 5000
            await work
            assert part.open_transactions.progress == 5000

    run(flow())


def test_round_of_checks_yields_to_other_tasks_among_ended_transactions(tmp_path: Path) -> None:
    """One that stays open keeps all behind it from being forgotten."""
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            text = names.encode({"TRAN_MSG": True, "PGROUP": "p", "REAL_TOPIC": "T", "REAL_QID": 0})
            full = text + b"fill\x01" + b"x" * (32_767 - len(text) - 6) + b"\x02"  # no room for the count of checks
            for properties in (full, *[text] * 5000):
                one.context.engine.put_encoded(HALF.encode(), 0, b"x", properties, wait=False)
            part = transactions(one)
            while part.open_transactions.end < 5001:
                await asyncio.sleep(0.01)
            part.open_transactions.end_all(range(1, 5001))
            clock.shift_ms = 31_000
            part.check._clock = itertools.count(0.0, 1.0).__next__  # a turn is over at every look
            work = asyncio.ensure_future(part.check.round())
            turns = 0
            while not work.done():
                await asyncio.sleep(0)
                turns += 1
            await work
            assert part.open_transactions.progress == 0
            assert turns > 5000 // 1024

    run(flow())


# --- restarts ---------------------------------------------------------------------------------------------------------


def test_open_and_ended_transactions_are_recovered_after_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    kept: list[RemotingCommand] = []

    async def first() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            kept.extend([await prepare(one, b"%d" % i, UNIQ_KEY=f"U{i}") for i in range(5)])
            await end(one, kept[1])
            await end(one, kept[3], ROLLBACK)
            clock.shift_ms = 31_000
            await transactions(one).check.round()  # 0, 2 and 4 are stored once more
            await end(one, kept[4])

    async def second() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            for i in (1, 3, 4):
                assert (await end(one, kept[i])).code == 1
            assert (await end(one, kept[0])).code == 0
            assert (await end(one, kept[2], ROLLBACK)).code == 0
            part = transactions(one)
            assert part.open_transactions.progress == part.open_transactions.end
            assert one.context.offsets.get(GROUP, HALF, 0) == part.open_transactions.end
            assert one.context.offsets.get(GROUP, OP, 0) == one.context.store.max_offset(OP, 0)

    run(first())
    run(second())
    with mqfast.open(tmp_path) as store:
        assert sorted(bodies(store)) == [b"0", b"1", b"4"]


def test_a_slave_ends_no_transaction(tmp_path: Path) -> None:
    kept: list[RemotingCommand] = []

    async def first() -> None:
        async with running_broker(tmp_path) as one:
            kept.extend([await prepare(one, b"%d" % i, UNIQ_KEY=f"U{i}") for i in range(2)])

    async def second() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            for kind in (ROLLBACK, COMMIT, UNKNOWN):
                assert (await end(slave, kept[0], kind)).code == ResponseCode.SLAVE_NOT_AVAILABLE

    async def third() -> None:
        async with running_broker(tmp_path) as one:
            assert transactions(one).open_transactions.progress == 0
            for half in kept:
                assert (await end(one, half)).code == 0
            assert bodies(one.context.store) == [b"0", b"1"]

    run(first())
    run(second())
    run(third())


@pytest.mark.parametrize("lost", ["mark", "offsets", "mark of a check"])
def test_a_crash_between_two_writes_commits_nothing_twice(tmp_path: Path, lost: str) -> None:
    """The store as a kill leaves it: the last record is missing, or the progress of the last seconds."""
    clock = Clock()
    kept: list[RemotingCommand] = []

    async def first() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            kept.append(await prepare(one, b"x", UNIQ_KEY="U"))
            kept.append(await prepare(one, b"y", UNIQ_KEY="V"))
            part = transactions(one)
            if lost != "offsets":
                part.open_transactions.write_marks = lambda: None  # type: ignore[method-assign]
            if lost == "mark of a check":
                clock.shift_ms = 31_000
                await part.check.round()
            else:
                assert (await end(one, kept[0])).code == 0

    async def second() -> None:
        producer = Producer()
        async with running_broker(tmp_path, now_ms=clock, processors=producer.processors) as one:
            await producer.join(one)
            clock.shift_ms += 31_000
            asked = await transactions(one).check.round()
            assert asked == (2 if lost == "mark of a check" else 1)
            for _ in range(asked):
                assert (await answer_check(one, await producer.next(), COMMIT)).code == 0
            for half in kept:
                assert (await end(one, half)).code == 1

    run(first())
    if lost == "offsets":
        (tmp_path / "config" / "consumerOffset.json").unlink(missing_ok=True)
        (tmp_path / "config" / "consumerOffset.json.bak").unlink(missing_ok=True)
    run(second())
    with mqfast.open(tmp_path) as store:
        assert sorted(bodies(store)) == [b"x", b"y"]


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_late_mark_of_a_java_broker_ends_the_half_message_that_was_stored_once_more(
    tmp_path: Path, is_commit: bool
) -> None:
    """RocketMQ collects marks for 3 s; a check that comes sooner stores the half message once more."""

    async def first() -> None:
        async with running_broker(tmp_path) as one:
            half = await prepare(one, b"x", UNIQ_KEY="U")
            engine, pairs = one.context.engine, one.context.store.get(HALF, 0, 0)[0].properties
            again = names.encode({**pairs, "TRANSACTION_CHECK_TIMES": 1})
            engine.put_encoded(HALF.encode(), 0, b"x", again, born_timestamp=one.context.now_ms(), wait=False)
            if is_commit:
                place = int(half.ext_fields["msgId"][16:], 16)
                engine.put_encoded(
                    b"T", 1, b"x", b"UNIQ_KEY\x01U\x02", sys_flag=8, prepared_transaction_offset=place, wait=False
                )
            else:
                engine.put_encoded(OP.encode(), 0, b"0,", OP_PROPERTIES, wait=False)
                one.context.offsets.commit(GROUP, OP, 0, 1)
            one.context.offsets.commit(GROUP, HALF, 0, 1)

    async def second() -> None:
        async with running_broker(tmp_path) as one:
            part = transactions(one)
            assert part.open_transactions.progress == part.open_transactions.end == 2
            assert marks(one.context.store)[-1] == 1

    run(first())
    run(second())
    with mqfast.open(tmp_path) as store:
        assert bodies(store) == ([b"x"] if is_commit else [])


def test_a_mark_of_a_half_message_that_was_stored_once_more_ends_no_transaction(tmp_path: Path) -> None:
    clock = Clock()

    async def first() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            for i in range(3):
                await prepare(one, b"%d" % i, UNIQ_KEY=f"U{i}")
            await end(one, await prepare(one, b"3", UNIQ_KEY="U3"))
            clock.shift_ms = 31_000
            part = transactions(one)
            ticks = itertools.count()
            part.check._clock = lambda: float(next(ticks))
            round_ = part.check.round()
            round_.send(None)  # one turn, for one half message
            round_.close()
            assert (part.open_transactions.progress, part.open_transactions.end) == (1, 5)

    async def second() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            open_transactions = transactions(one).open_transactions
            assert [open_transactions.is_open(offset) for offset in range(5)] == [False, True, True, False, True]

    run(first())
    run(second())


def test_a_delayed_commit_ends_no_half_message_at_the_first_place_of_the_log(tmp_path: Path) -> None:
    """What a delay level delivers is marked as committed, and names place 0 as that of its half message."""
    kept: list[RemotingCommand] = []

    async def first() -> None:
        async with running_broker(tmp_path, messageDelayLevel="1s 5s") as one:
            kept.append(await prepare(one, b"open", UNIQ_KEY="U0"))
            assert ending(kept[0])["commitLogOffset"] == 0
            assert (await end(one, await prepare(one, b"later", UNIQ_KEY="U1", DELAY=1))).code == 0
            store = one.context.store
            while store.max_offset("T", 1) == 0:
                await asyncio.sleep(0.01)
            (delivered,) = store.get("T", 1, 0)
            assert (delivered.sys_flag, delivered.prepared_transaction_offset) == (COMMIT, 0)

    async def second() -> None:
        async with running_broker(tmp_path, messageDelayLevel="1s 5s") as one:
            assert transactions(one).open_transactions.is_open(0)
            assert (await end(one, kept[0])).code == 0
            assert bodies(one.context.store) == [b"later", b"open"]

    run(first())
    run(second())


def test_recovery_reads_the_newest_of_many_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """RocketMQ's mark of an older half message ends a transaction that was checked, whatever marks are older."""
    monkeypatch.setattr(find_open, "_LOOK_BACK_MAX", 2)

    async def first() -> None:
        async with running_broker(tmp_path) as one:
            for unique in ("U", "V", "W"):
                await prepare(one, UNIQ_KEY=unique)
            engine, pairs = one.context.engine, one.context.store.get(HALF, 0, 0)[0].properties
            again = names.encode({**pairs, "TRANSACTION_CHECK_TIMES": 1})
            engine.put_encoded(HALF.encode(), 0, b"x", again, born_timestamp=one.context.now_ms(), wait=False)
            for mark in (b"1,", b"2,", b"0,"):
                engine.put_encoded(OP.encode(), 0, mark, OP_PROPERTIES, wait=False)
            one.context.offsets.commit(GROUP, HALF, 0, 3)
            one.context.offsets.commit(GROUP, OP, 0, 2)

    async def second() -> None:
        async with running_broker(tmp_path) as one:
            assert not transactions(one).open_transactions.is_open(3)

    run(first())
    run(second())
