"""Rows that a broker stores once: tries, half stored batches, gaps, other rows, and what a restart remembers.

Room: tests. The broker is real; requests are made by hand, as the sink of Spark makes them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from once_rows import Task, how
from running import Running, serve

import mqfast
from mqfast.broker.idempotence.producer_state import (
    FencedBatch,
    LastSequence,
    OtherPartitioning,
    ProducerStateFull,
    ProducerStateTable,
)
from mqfast.broker.idempotence.state_recovery import remember
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.once import ASK_ONCE, END_ONCE, ONCE, RowSequence, SequenceRange, end_text, ended, gone, gone_text


def rows(count: int, text: str = "row") -> list[bytes]:
    return [f"{text} {n}".encode() for n in range(count)]


def stored(path: Path, topic: str = "t") -> list[bytes]:
    with mqfast.StoreReader(path) as reader:
        return [bytes(message.body) for message in reader.scan() if message.topic == topic]


def test_repeated_idempotent_send_stores_no_row_twice(tmp_path: Path) -> None:
    task = Task(rows(10))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"
        assert how(await task.send(one, 0, 4)) == "before"
        assert how(await task.send(one, 0, 2)) == "before"  # a task that is repeated may cut its batches elsewhere
        answer = await task.send(one, 2, 7)
        assert how(answer) == "rest"
        assert (answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]) == ("1", "6")
        assert how(await task.send(one, 7, 10)) == "stored"
        # Another task, another queue and another write have rows of their own.
        assert how(await Task(rows(1, "p"), partition=4).send(one, 0, 1)) == "stored"
        assert how(await Task(rows(1, "q")).send(one, 0, 1, queue_id=2)) == "stored"
        assert how(await Task(rows(1, "w"), key="other").send(one, 0, 1)) == "stored"

    serve(tmp_path, flow)
    assert stored(tmp_path) == [*rows(10), b"p 0", b"q 0", b"w 0"]


def test_idempotent_send_with_a_gap_other_rows_or_a_wrong_mark_is_refused(tmp_path: Path) -> None:
    task = Task(rows(10))

    async def flow(one: Running) -> None:
        answer = await task.send(one, 2, 4)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "behind row -1, found those behind row 2" in (answer.remark or "")
        assert how(await task.send(one, 0, 4)) == "stored"
        for begin, end in ((0, 4), (0, 6), (2, 6)):
            answer = await Task(rows(10, "else")).send(one, begin, end)
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "other rows than before" in (answer.remark or "")
        for span in ("nonsense", "k:1:2:3", task.span(4, 6)):
            answer = await task.send(one, 4, 5, **{ONCE: span})
            assert answer.code == ResponseCode.INVALID_PARAMETER
        answer = await task.send(one, 4, 5, queue_id=99)
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert how(await task.send(one, 4, 6)) == "stored"

    serve(tmp_path, flow)
    assert stored(tmp_path) == rows(6)


def test_fenced_batches_and_other_partitioning_are_refused(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for batch in (7, 8, 9):
            assert how(await Task(rows(2, f"b{batch}"), batch).send(one, 0, 2)) == "stored"
        assert how(await Task(rows(2, "b8"), 8).send(one, 0, 2)) == "before"
        answer = await Task(rows(2, "b7"), 7).send(one, 0, 2)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "batch 7 is over: rows of batch 9 are stored" in (answer.remark or "")
        task = Task(rows(4, "b9"), 9)
        task.marks = [mark._replace(queues=8, brokers=2) for mark in task.marks]
        answer = await task.send(one, 2, 4)
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "among 4 queues of 1 brokers, and now among 8 of 2" in (answer.remark or "")

    serve(tmp_path, flow)
    assert len(stored(tmp_path)) == 6


def test_producer_state_is_recovered_from_the_file_and_the_log(tmp_path: Path) -> None:
    task = Task(rows(30))
    file = tmp_path / "config" / "mqfastWrites.json"

    async def first(one: Running) -> None:
        assert how(await task.send(one, 0, 10)) == "stored"

    async def second(one: Running) -> None:
        assert how(await task.send(one, 0, 10)) == "before"
        assert how(await task.send(one, 10, 20)) == "stored"
        assert (await one.send("t", b"of another producer", queue_id=1)).code == 0

    async def third(one: Running) -> None:
        assert how(await task.send(one, 5, 25)) == "rest"

    serve(tmp_path, first)
    assert json.loads(file.read_text())["writes"]["k" * 16]["batches"]["7"]["rows"][0][:4] == [3, "t", 1, 18]
    before = file.read_bytes()
    serve(tmp_path, second)
    file.write_bytes(before)  # as a kill leaves it: older than the log
    serve(tmp_path, third)
    for name in (file, file.with_name(file.name + ".bak")):
        name.unlink()  # a slave that became the master has none

    async def last(one: Running) -> None:
        assert how(await task.send(one, 0, 25)) == "before"
        assert how(await task.send(one, 25, 30)) == "stored"

    serve(tmp_path, last)
    assert [body for body in stored(tmp_path) if body.startswith(b"row")] == rows(30)


def test_producer_state_file_of_another_log_is_ignored(tmp_path: Path) -> None:
    task = Task(rows(4))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"

    serve(tmp_path / "long", lambda one: one.send("t", b"x" * 5000))
    serve(tmp_path / "long", flow)
    serve(tmp_path / "short", lambda one: one.send("t", b"x"))
    theirs, ours = (tmp_path / name / "config" / "mqfastWrites.json" for name in ("long", "short"))
    ours.write_bytes(theirs.read_bytes())  # ends behind the log
    serve(tmp_path / "short", flow)
    serve(tmp_path / "other", lambda one: one.send("t", b"y" * 9000))
    (tmp_path / "other" / "config" / "mqfastWrites.json").write_bytes(theirs.read_bytes())  # another record is there
    serve(tmp_path / "other", flow)
    ours.write_text("{")
    serve(tmp_path / "short", lambda one: task.send(one, 0, 4))
    for name in ("short", "other"):
        assert stored(tmp_path / name)[1:] == rows(4)


def test_producer_state_file_that_does_not_match_the_log_is_deleted_and_the_log_is_scanned(tmp_path: Path) -> None:
    """As behind a repair that cut the log, which has grown again since then."""
    task = Task(rows(4))
    file = tmp_path / "config" / "mqfastWrites.json"

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"

    async def again(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "before"
        assert not list(file.parent.glob(f"{file.name}*"))

    serve(tmp_path, flow)
    for changes in ({"offset": -7}, {"offset": 5000}):
        said = json.loads(file.read_text())
        for name, difference in changes.items():
            said[name] += difference
        file.write_text(json.dumps(said))
        serve(tmp_path, again)
    assert stored(tmp_path) == rows(4)


def test_slave_keeps_no_producer_state_file_and_a_promoted_slave_scans_the_log(tmp_path: Path) -> None:
    task = Task(rows(4))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"

    async def as_slave(one: Running) -> None:
        answer = await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        answer = await task.send(one, 0, 4)  # the rows are in its log, which its master may cut
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE

    async def as_master(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "before"

    serve(tmp_path, flow)
    assert (tmp_path / "config" / "mqfastWrites.json").exists()
    serve(tmp_path, as_slave, brokerRole="SLAVE", brokerId=1)
    assert not list((tmp_path / "config").glob("mqfastWrites*"))
    serve(tmp_path, as_master)
    assert stored(tmp_path) == rows(4)


def test_rest_of_a_batch_cut_by_a_kill_is_stored_by_the_repeated_send(tmp_path: Path) -> None:
    """The first rows of a batch are in the log, its others are not: what a kill in the middle of the append leaves."""
    task = Task(rows(6))

    async def half(one: Running) -> None:
        # By a send without the field, so that nothing but the log knows of these rows.
        answer = await one.call(
            RequestCode.SEND_BATCH_MESSAGE, task.body(0, 3),
            a="p", b="t", c="TBW102", d=4, e=1, f=0, g=1, h=0, i="", j=0, k="false", m="true",
        )  # fmt: skip
        assert answer.code == 0
        assert ONCE not in answer.ext_fields

    async def again(one: Running) -> None:
        assert how(await task.send(one, 0, 6)) == "rest"

    serve(tmp_path, half)
    serve(tmp_path, again)
    assert stored(tmp_path) == rows(6)


def test_delayed_rows_count_from_the_moment_that_they_are_parked(tmp_path: Path) -> None:
    task = Task(rows(3))

    async def send(one: Running, n: int, delay: str) -> RemotingCommand:
        fields: dict[str, Any] = {ONCE: task.span(n, n + 1)}
        properties = task.properties(n, f"{delay}UNIQ_KEY\x01u{n}\x02").decode()
        return await one.send("t", task.bodies[n], queue_id=1, properties=properties, **fields)

    async def flow(one: Running) -> None:
        assert how(await send(one, 0, "DELAY\x0118\x02")) == "stored"
        assert how(await send(one, 0, "DELAY\x0118\x02")) == "before"
        assert how(await send(one, 1, "TIMER_DELAY_MS\x013600000\x02")) == "stored"

    async def again(one: Running) -> None:
        assert how(await send(one, 0, "DELAY\x0118\x02")) == "before"
        assert how(await send(one, 1, "TIMER_DELAY_MS\x013600000\x02")) == "before"
        assert how(await task.send(one, 2, 3)) == "stored"

    serve(tmp_path, flow)
    (tmp_path / "config" / "mqfastWrites.json").unlink()
    serve(tmp_path, again)
    assert stored(tmp_path, "SCHEDULE_TOPIC_XXXX") == [b"row 0"]
    assert stored(tmp_path, "rmq_sys_wheel_timer")[:1] == [b"row 1"]
    assert stored(tmp_path) == [b"row 2"]


def test_producer_state_can_be_queried(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        task = Task(rows(5))
        await task.send(one, 0, 5)
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7)).body))
        assert said["rows"] == []  # a task does not need them
        answer = await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7, tasks="true")
        said = json.loads(bytes(answer.body))
        assert said["rows"] == [[3, "t", 1, 8, task.marks[4].crc]]
        assert (said["newest"], said["divisions"], said["before"]) == (7, {"t": [4, 1]}, {})
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=8)).body))
        assert (said["newest"], said["divisions"], said["before"], said["rows"]) == (7, {}, {"t": [4, 1]}, [])
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="unknown", batch=0)).body))
        assert (said["newest"], said["rows"]) == (-1, [])
        assert (await one.call(ASK_ONCE, topic="t")).code == ResponseCode.INVALID_PARAMETER

    serve(tmp_path, flow)


def test_completed_batch_is_recorded_in_the_log(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert how(await Task(rows(3)).send(one, 0, 3)) == "stored"
        for _ in range(2):
            assert (await one.call(END_ONCE, topic="t;u", key="k" * 16, batch=7, rows=3)).code == 0
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7)).body))
        assert said["done"] == 7
        for wrong in ({"topic": "t", "key": "a:b"}, {"topic": "", "key": "k"}, {"topic": "t;a:b", "key": "k"}):
            assert (await one.call(END_ONCE, batch=7, **wrong)).code == ResponseCode.INVALID_PARAMETER

    async def again(one: Running) -> None:
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7, tasks="true")).body))
        assert (said["done"], said["ended"], len(said["rows"])) == (7, ["t", "u"], 1)
        # Whoever may write to another topic says nothing about this one.
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="v", key="k" * 16, batch=7)).body))
        assert said["done"] == -1
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="other", batch=7)).body))
        assert said["done"] == -1

    for settings in ({}, {"flushDiskType": "SYNC_FLUSH"}):
        path = tmp_path / str(len(settings))
        serve(path, flow, **settings)
        serve(path, again)
        (path / "config" / "mqfastWrites.json").unlink()
        serve(path, again)
        assert stored(path, "rmq_sys_mqfast_writes") == [b""]


def test_clients_cannot_send_records_of_completed_batches(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        assert (await one.call(END_ONCE, topic="t", key="other", batch=1)).code == 0
        note = f"SPK\x01{end_text('k' * 16, 7, 3, ['t'])}\x02"
        answer = await one.send("rmq_sys_mqfast_writes", b"", queue_id=0, properties=note)
        assert answer.code == ResponseCode.NO_PERMISSION

    serve(tmp_path, flow)
    assert stored(tmp_path, "rmq_sys_mqfast_writes") == [b""]


def test_row_that_a_consumer_sent_back_does_not_count_after_a_restart(tmp_path: Path) -> None:
    task = Task(rows(2))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 2)) == "stored"
        answer = await one.call(RequestCode.CONSUMER_SEND_MSG_BACK, group="g", offset=0, delayLevel=18)
        assert answer.code == 0, answer.remark

    async def again(one: Running) -> None:
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7, tasks="true")).body))
        assert said["rows"] == [[3, "t", 1, 2, task.marks[1].crc]]

    serve(tmp_path, flow)
    assert stored(tmp_path, "SCHEDULE_TOPIC_XXXX") == [b"row 0"]  # with the mark of the row
    for file in (tmp_path / "config").glob("mqfastWrites*"):
        file.unlink()
    serve(tmp_path, again)


def test_the_file_follows_a_log_that_grows_by_other_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mqfast.broker.idempotence.idempotent_writes._CHECK_S", 0.02)
    monkeypatch.setattr("mqfast.broker.idempotence.idempotent_writes._PERSIST_BYTES", 5000)
    file = tmp_path / "config" / "mqfastWrites.json"
    ends: list[int] = []

    def offset() -> int:
        try:
            return int(json.loads(file.read_text())["offset"])
        except FileNotFoundError:  # not there yet, or just replaced
            return 0

    async def flow(one: Running) -> None:
        assert how(await Task(rows(1)).send(one, 0, 1)) == "stored"
        for _ in range(3):
            assert (await one.send("t", b"x" * 6000, queue_id=1)).code == 0
            deadline = time.monotonic() + 30
            while offset() < one.context.engine.raw.end:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
        assert (await one.send("t", b"few bytes", queue_id=1)).code == 0
        ends.append(one.context.engine.raw.end)

    serve(tmp_path, flow)
    assert offset() == ends[0]


async def delete_topic(one: Running, topic: str = "t") -> None:
    answer = await one.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic)
    assert answer.code == 0, answer.remark


async def queue_has(one: Running) -> int:
    return int((await one.call(RequestCode.GET_MAX_OFFSET, topic="t", queueId=1)).ext_fields["offset"])


def test_rows_of_a_deleted_topic_are_stored_in_the_topic_created_again(tmp_path: Path) -> None:
    task = Task(rows(4))

    async def flow(one: Running) -> None:
        await delete_topic(one, "unknown")
        assert how(await task.send(one, 0, 2)) == "stored"
        assert how(await Task(rows(1)).send(one, 0, 1, b="other")) == "stored"
        await delete_topic(one)
        answer = await task.send(one, 2, 4)  # the task has to begin anew: its first rows are deleted
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
        assert "behind row -1, found those behind row 2" in (answer.remark or "")
        assert how(await task.send(one, 0, 4)) == "stored"
        assert how(await Task(rows(1)).send(one, 0, 1, b="other")) == "before"
        assert await queue_has(one) == 4
        assert (await one.call(END_ONCE, topic="t;other", key="k" * 16, batch=7, rows=5)).code == 0

    async def deleted(one: Running) -> None:
        await delete_topic(one)  # before anybody asked what is remembered
        said = json.loads(bytes((await one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7, tasks="true")).body))
        assert (said["done"], said["ended"], said["divisions"]) == (-1, ["other"], {"other": [4, 1]})
        assert how(await task.send(one, 0, 4)) == "stored"
        assert await queue_has(one) == 4

    async def again(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "before"

    file = tmp_path / "config" / "mqfastWrites.json"
    serve(tmp_path, flow)
    serve(tmp_path, again)
    before = file.read_bytes()
    serve(tmp_path, deleted)
    file.write_bytes(before)  # as a kill leaves it
    serve(tmp_path, again)
    file.unlink()
    serve(tmp_path, again)


def test_topic_deleted_during_the_recovery_of_producer_state_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(rows(4))
    is_read, may_end = threading.Event(), threading.Event()

    def slow(*work: Any) -> None:
        remember(*work)
        is_read.set()
        assert may_end.wait(30)

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"

    async def again(one: Running) -> None:
        assert await queue_has(one) == 4
        # Requests of one connection are served in their order.
        asked = asyncio.ensure_future(one.call(ASK_ONCE, topic="t", key="k" * 16, batch=7, tasks="true"))
        sent = asyncio.ensure_future(task.send(one, 0, 4))
        while not is_read.is_set():
            await asyncio.sleep(0.01)
        await delete_topic(one)
        may_end.set()
        assert json.loads(bytes((await asked).body))["rows"] == []
        assert (await sent).code == ResponseCode.TOPIC_NOT_EXIST  # no row goes into a topic that is not there
        assert how(await task.send(one, 0, 4)) == "stored"
        assert await queue_has(one) == 4

    serve(tmp_path, flow)
    monkeypatch.setattr("mqfast.broker.idempotence.idempotent_writes.remember", slow)
    serve(tmp_path, again)


def test_abandoned_task_stores_no_row_after_its_batch_completed(tmp_path: Path) -> None:
    task = Task(rows(6))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"
        assert (await one.call(END_ONCE, topic="t", key="k" * 16, batch=7, rows=4)).code == 0
        for late in (task.send(one, 4, 6), task.send(one, 2, 6), Task(rows(1), partition=9).send(one, 0, 1)):
            answer = await late
            assert answer.code == ResponseCode.MESSAGE_ILLEGAL
            assert "batch 7 is over: topic t has it as a whole" in (answer.remark or "")
        assert how(await task.send(one, 0, 4)) == "before"
        assert how(await Task(rows(1, "next"), 8).send(one, 0, 1)) == "stored"

    serve(tmp_path, flow)
    assert stored(tmp_path) == [*rows(4), b"next 0"]


def test_completed_batches_of_unknown_writes_are_bounded(tmp_path: Path) -> None:
    async def flow(one: Running) -> None:
        for n in range(3):
            assert (await one.call(END_ONCE, topic="t", key=f"w{n}", batch=0)).code == 0
        answer = await one.call(END_ONCE, topic="t", key="w3", batch=0)
        assert answer.code == ResponseCode.SYSTEM_BUSY
        assert "idempotentWriteTasksMax: 3 tasks of 3 writes" in (answer.remark or "")
        assert (await Task(rows(1)).send(one, 0, 1)).code == ResponseCode.SYSTEM_BUSY
        assert (await one.call(END_ONCE, topic="t", key="w2", batch=1)).code == 0  # nothing new has to be remembered
        for wrong in ("k" * 65, "a\x02SPK", ""):
            assert (await one.call(END_ONCE, topic="t", key=wrong, batch=0)).code == ResponseCode.INVALID_PARAMETER
        for batch in (-1, 1 << 63, 10**4000):
            assert (await one.call(END_ONCE, topic="t", key="w", batch=batch)).code == ResponseCode.INVALID_PARAMETER

    serve(tmp_path, flow, idempotentWriteTasksMax=3)


def test_response_to_a_repeated_send_waits_for_the_sync_flush(tmp_path: Path) -> None:
    task = Task(rows(4))

    async def flow(one: Running) -> None:
        assert how(await task.send(one, 0, 4)) == "stored"
        assert one.context.engine.log.flushed >= one.context.engine.raw.end
        assert how(await task.send(one, 0, 4)) == "before"

    serve(tmp_path, flow, flushDiskType="SYNC_FLUSH")
    assert stored(tmp_path) == rows(4)


def test_producer_state_is_bounded_and_idle_writes_expire() -> None:
    memory = ProducerStateTable(keep_ms=1000, places_max=4)
    mark = RowSequence("a", 0, 0, 5, 1, 4, 1)

    def note(one: RowSequence, now_ms: int) -> None:
        memory.make_room(one.key, now_ms)
        memory.note(one, "t", 0, LastSequence(5, 1, 100, 0), now_ms)

    for partition in range(4):
        note(mark._replace(partition=partition), 10)
    assert (len(memory), memory.writes) == (4, 1)
    with pytest.raises(ProducerStateFull, match="4 tasks of 1 writes"):
        memory.make_room("b", 500)  # no fresh write is forgotten
    note(mark._replace(key="b"), 2000)  # the first one has expired
    assert (len(memory), memory.writes) == (1, 1)
    note(mark._replace(key="b", batch=1), 2000)
    note(mark._replace(key="b", batch=2), 2000)
    assert len(memory) == 2  # the newest batch and the one before
    for old, error in ((0, FencedBatch), (2, OtherPartitioning)):
        with pytest.raises(error):
            memory.last(mark._replace(key="b", batch=old, queues=9), "t", 0)
    memory.complete_batch("b", 2, ["t", "u"], 2000)
    memory.complete_batch("b", 2, ["t"], 2000)
    assert len(memory) == 4  # what is stored as a whole is remembered too
    again = ProducerStateTable(1000, 4)
    again.load(json.loads(json.dumps(memory.dump())))
    assert (again.dump(), len(again)) == (memory.dump(), len(memory))
    memory.note(
        mark._replace(key="b", batch=2), "t", 0, LastSequence(3, 1, 100, 0), 2000
    )  # a delayed message that comes is a row before the last one
    assert memory.last(mark._replace(key="b", batch=2), "t", 0) == LastSequence(5, 1, 100, 0)
    # A log tells of writes that were forgotten to make room; no fresh one is, even if there are too many.
    for n, now_ms in enumerate((2000, 3000, 4_000_000, 4_000_000)):
        memory.note(mark._replace(key=f"c{n}"), "t", 0, LastSequence(5, 1, 100, 0), now_ms)
        memory.trim(now_ms)
    assert (len(memory), memory.writes) == (4, 4)
    memory.note(mark._replace(key="d", partition=1), "t", 0, LastSequence(5, 1, 100, 0), 4_000_000)
    memory.note(mark._replace(key="d", partition=2), "t", 0, LastSequence(5, 1, 100, 0), 4_000_000)
    memory.trim(4_000_000)
    assert [memory.newest(key) for key in ("c0", "c1", "c2", "c3", "d")] == [None, None, 0, 0, 0]


def test_row_sequences_and_ranges_are_parsed_and_other_texts_are_not() -> None:
    mark = RowSequence("key", 7, 3, 12, 0xBEEF, 8, 2)
    assert mark.text() == "key:7:3:12:0000beef:8.2"
    assert RowSequence.parse(mark.text()) == mark
    assert SequenceRange.parse(SequenceRange(5, mark).text()) == SequenceRange(5, mark)
    for text in (
        "",
        "a:1:2:3",
        "key:7:3:12:xyz:8.2",
        "key:7:3:-1:0:8.2",
        ":7:3:12:0:8.2",
        "key:7:3:12:0:8",
        "a:b:c:d:e:f",
        f"key:7:3:{1 << 63}:0:8.2",
    ):
        assert RowSequence.parse(text) is None
    assert ended(end_text("key", 7, 12, ["t", "u"])) == ("key", 7, ["t", "u"])
    for text in (
        "",
        mark.text(),
        "key:7:3:12:t",
        "key:x:done:1:t",
        "key:\u00b2:done:1:t",
        "key:7:done:1",
        f"key:{10**30}:done:1:t",
    ):
        assert ended(text) is None
    assert gone(gone_text("t")) == "t"
    for text in ("", "gone:", "gone", mark.text(), "gone:1:2:3:4:5.6"):
        assert gone(text) is None
    for text in ("key:7:3:12:12:0:8.2", "key:7:3:-2:12:0:8.2", "key:7:3::12:0:8.2", "x"):
        assert SequenceRange.parse(text) is None
