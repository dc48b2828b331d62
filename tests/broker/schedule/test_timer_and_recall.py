"""Timed messages of a running broker: parked, delivered in time, refused and called back (370)."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import copy_of_open
from event_loop import run
from laboratory import read_queue
from running import Running, running_broker
from waiting import until_async as until

import mqfast
from mqfast.broker.schedule.recall_message import RecallMessageHandle, decode_handle, recall_handle
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.loop import runner
from mqfast.schedule.timer.service import TimerService


class Clock:
    """The wall clock of a broker; it goes on by itself only where it is told to."""

    def __init__(self, now_ms: int = 1_700_000_000_500) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def timer_of(one: Running) -> TimerService:
    timer = one.parts.timers.service
    assert timer is not None
    return timer


def bodies(one: Running, topic: str = "T") -> list[bytes]:
    return [bytes(message.body) for message in read_queue(one.context.store, topic, 0, 0)]


def text(**properties: object) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


async def parked(one: Running, count: int) -> None:
    """Until so many messages were parked since the broker started."""
    await until(lambda: timer_of(one).enqueued == count)


async def recall(one: Running, handle: str, topic: str = "T", **more: Any) -> RemotingCommand:
    return await one.call(RequestCode.RECALL_MESSAGE, topic=topic, recallHandle=handle, **more)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, None),
        ({"fileReservedTime": 48}, None),
        ({"fileReservedTime": 47}, "kept for 47 h, and may wait for 48 h"),
        ({"fileReservedTime": 1, "timerWheelEnable": False}, "kept for 1 h, and may wait for 2 h"),
        ({"fileReservedTime": 2, "timerMaxDelaySec": 7200}, None),
        ({"fileReservedTime": 47, "timerRollWindowSlot": 3600}, None),
        ({"fileReservedTime": 72, "messageDelayLevel": "1s 4d"}, "kept for 72 h, and may wait for 96 h"),
    ],
)
def test_retention_shorter_than_the_longest_delay_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, settings: dict[str, Any], words: str | None
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, **settings):
            pass

    run(flow())
    found = [line for line in caplog.messages if "messages are kept for" in line]
    assert (words is None and not found) or (words is not None and words in found[0] and len(found) == 1)


def test_timed_messages_are_delivered_when_due_by_each_property(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            due = clock.now_ms + 60_000
            assert (await one.send("T", b"at", properties=text(TIMER_DELIVER_MS=due))).code == 0
            assert (await one.send("T", b"sec", properties=text(TIMER_DELAY_SEC=70))).code == 0
            assert (await one.send("T", b"ms", properties=text(TIMER_DELAY_MS=80_000))).code == 0
            assert (await one.send("T", b"now", properties=text(TIMER_DELIVER_MS=clock.now_ms))).code == 0
            await parked(one, 3)
            assert bodies(one) == [b"now"]
            for later_ms, body in ((60_500, b"at"), (70_500, b"sec"), (80_500, b"ms")):
                before = bodies(one)
                clock.now_ms = due - 60_000 + later_ms - 1001
                timer_of(one).run_once(clock.now_ms)
                assert bodies(one) == before
                clock.now_ms = due - 60_000 + later_ms
                await until(lambda: len(bodies(one)) > len(before))  # noqa: B023
                assert bodies(one) == [*before, body]
            (_, message, *_) = read_queue(one.context.store, "T", 0, 0)
            fields = message.properties
            assert fields["TIMER_DELIVER_MS"] == str(due)
            assert fields["TIMER_OUT_MS"] == str(due // 1000 * 1000)
            assert fields["REAL_TOPIC"] == "T"
            assert {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "REAL_QID", "UNIQ_KEY"} <= fields.keys()

    run(flow())


def test_timed_messages_survive_a_restart_and_a_kill(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path / "a", now_ms=clock) as one:
            await one.send("T", b"first", properties=text(TIMER_DELAY_SEC=30))
            await parked(one, 1)
        async with running_broker(tmp_path / "a", now_ms=clock) as one:
            await one.send("T", b"second", properties=text(TIMER_DELAY_SEC=30))
            await parked(one, 1)
            copy_of_open(tmp_path / "a", tmp_path / "b")
        clock.now_ms += 31_000
        async with running_broker(tmp_path / "b", now_ms=clock) as one:
            await until(lambda: len(bodies(one)) == 2)
            assert bodies(one) == [b"first", b"second"]

    run(flow())
    assert mqfast.verify(tmp_path / "b").ok


def test_refusals_have_rocketmqs_codes_and_words(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path / "a", now_ms=clock, timerMaxDelaySec=100) as one:
            for given in (
                {"TIMER_DELAY_SEC": 101}, {"TIMER_DELAY_MS": "soon"}, {"TIMER_DELIVER_MS": clock.now_ms + 100_001},
                {"TIMER_DELIVER_MS": clock.now_ms, "TIMER_DEL_UNIQKEY": "k"}, {"TIMER_DELAY_SEC": 1 << 62},
            ):  # fmt: skip
                answer = await one.send("T", b"x", properties=text(**given))
                assert answer.code == ResponseCode.MESSAGE_ILLEGAL
                assert answer.remark == (
                    "timer message illegal, the delay time should not be bigger than the max delay 100000ms; or if set "
                    "del msg, the delay time should be bigger than the current time"
                )
            assert (await one.send("T", b"x", properties=text(TIMER_DELAY_SEC=100))).code == 0
        async with running_broker(tmp_path / "b", now_ms=clock, timerWheelEnable=False) as one:
            answer = await one.send("T", b"x", properties=text(TIMER_DELAY_SEC=1))
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false",
            )  # fmt: skip
            assert one.parts.timers.service is None
        async with running_broker(tmp_path / "c", now_ms=clock, timerCongestNumEachSlot=2) as one:
            due = clock.now_ms + 10_000
            for number in range(4):
                assert (await one.send("T", b"x", properties=text(TIMER_DELIVER_MS=due))).code == 0
                await parked(one, number + 1)
                one.context.config.update({"timerCongestNumEachSlot": "4" if number < 3 else "2"}, "test")
            answer = await one.send("T", b"x", properties=text(TIMER_DELIVER_MS=due))
            assert (answer.code, answer.remark) == (
                ResponseCode.SYSTEM_ERROR,
                "timer message is under flow control, max num limit is 4 or the current value is greater than 2 and "
                "less than 4, trigger random flow control",
            )
            assert (await one.send("T", b"x", properties=text(TIMER_DELIVER_MS=due + 2000))).code == 0

    run(flow())


def test_delay_level_has_precedence_over_a_delivery_time(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=Clock()) as one:
            answer = await one.send("T", b"x", properties=text(DELAY=3, TIMER_DELAY_SEC=50))
            assert (answer.code, answer.ext_fields.get("recallHandle")) == (0, None)
            (message,) = read_queue(one.context.store, "SCHEDULE_TOPIC_XXXX", 2, 0)
            assert "TIMER_DELAY_SEC" not in message.properties
            assert one.context.store.max_offset("rmq_sys_wheel_timer", 0) == 0

    run(flow())


@pytest.mark.parametrize("append_topic", [False, True], ids=["key", "topic_and_key"])
def test_recalled_message_is_not_delivered(tmp_path: Path, append_topic: bool) -> None:
    clock = Clock()

    async def flow() -> None:
        settings = {"recallMessageEnable": True, "appendTopicForTimerDeleteKey": append_topic}
        async with running_broker(tmp_path, now_ms=clock, **settings) as one:
            answers = [
                await one.send("T", body, properties=text(TIMER_DELAY_SEC=20, UNIQ_KEY=f"K{body.decode()}"))
                for body in (b"1", b"2", b"3")
            ]
            handles = [answer.ext_fields["recallHandle"] for answer in answers]
            out_ms = (clock.now_ms + 20_000) // 1000 * 1000
            assert base64.urlsafe_b64decode(handles[1]) == f"v1 T broker-a {out_ms + 1} K2".encode()
            done = await recall(one, handles[1], producerGroup="producers")
            assert (done.code, done.ext_fields["msgId"]) == (0, "K2")
            assert done.ext_fields["MSG_REGION"] == "DefaultRegion"
            await parked(one, 4)
            assert timer_of(one).metrics.counts() == {"T": 2}
            *_, delete = read_queue(one.context.store, "rmq_sys_wheel_timer", 0, 0)
            assert (bytes(delete.body), delete.tags) == (b"0", "_RECALL_TAG_")
            assert delete.properties["TIMER_DEL_UNIQKEY"] == ("T+K2" if append_topic else "K2")
            assert delete.properties["PGROUP"] == "producers"
            clock.now_ms += 21_000
            await until(lambda: len(bodies(one)) == 2)
            assert bodies(one) == [b"1", b"3"]
            assert timer_of(one).metrics.counts() == {"T": 0}
            late = await recall(one, handles[0])
            assert (late.code, late.remark) == (604, "recall failed, timestamp invalid")

    run(flow())


def test_recalls_that_are_refused(tmp_path: Path) -> None:
    clock = Clock()
    soon = str(clock.now_ms + 5000)

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            answer = await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())
            assert (answer.code, answer.remark) == (16, "recall failed, operation is forbidden")
            assert answer.ext_fields["MSG_REGION"] == "DefaultRegion"
            config = one.context.config
            config.update({"recallMessageEnable": "true"}, "test")
            answer = await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())
            assert (answer.code, answer.remark) == (17, "recall failed, the topic[T] not exist")
            one.context.topics.ensure("T", 4)
            late = str(clock.now_ms + 259_200_000)
            wrong = {
                "recall handle is invalid": ["", "!!!", base64.urlsafe_b64encode(b"v1 T broker-a 5").decode(),
                                             base64.urlsafe_b64encode(b"v2 T broker-a 5 K").decode()],
                "recall failed, topic not match": [RecallMessageHandle("U", "broker-a", soon, "K").encode()],
                "recall failed, broker service not available": [
                    RecallMessageHandle("T", "broker-b", soon, "K").encode()],
                "recall failed, timestamp invalid": [RecallMessageHandle("T", "broker-a", time, "K").encode()
                                                     for time in ("x", str(clock.now_ms), late)],
            }  # fmt: skip
            for remark, handles in wrong.items():
                for handle in handles:
                    answer = await recall(one, handle)
                    assert (answer.code, answer.remark) == (604, remark), handle
            config.update({"brokerPermission": "4"}, "test")
            assert (await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())).code == 0
            config.update({"allowRecallWhenBrokerNotWriteable": "false"}, "test")
            answer = await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())
            assert (answer.code, answer.remark) == (14, "recall failed, broker service not available")
            config.update({"startAcceptSendRequestTimeStamp": str(clock.now_ms + 1)}, "test")
            config.update({"allowRecallWhenBrokerNotWriteable": "true"}, "test")
            assert (await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())).code == 14
            config.update({"timerMaxDelaySec": "1", "startAcceptSendRequestTimeStamp": "0"}, "test")
            answer = await recall(one, RecallMessageHandle("T", "broker-a", soon, "K").encode())
            assert answer.remark == "recall failed, timestamp invalid"

    run(flow())


def test_a_recall_that_cannot_be_stored_is_an_error(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock, recallMessageEnable=True, timerWheelEnable=False) as one:
            one.context.topics.ensure("T", 4)
            answer = await recall(one, RecallMessageHandle("T", "broker-a", str(clock.now_ms + 5000), "K").encode())
            assert (answer.code, answer.remark) == (1, "recall failed, execute error")

    run(flow())


def test_a_handle_is_read_as_java_reads_it() -> None:
    handle = RecallMessageHandle("topic", "broker", "1700000000001", "ID")
    assert decode_handle(handle.encode()) == handle
    assert decode_handle(handle.encode().rstrip("=")) == handle
    more = base64.urlsafe_b64encode(b"v1 topic broker 1700000000001 ID more").decode()
    assert decode_handle(more) == handle
    assert decode_handle("dj E=") is None
    assert decode_handle("é") is None


def test_only_a_parked_message_that_is_no_retry_has_a_handle() -> None:
    given = {"TIMER_OUT_MS": "5", "REAL_TOPIC": "T", "UNIQ_KEY": "K"}
    assert recall_handle(text(**given).encode(), "b") == RecallMessageHandle("T", "b", "6", "K").encode()
    for name in given:
        assert recall_handle(text(**{k: v for k, v in given.items() if k != name}).encode(), "b") is None
    assert recall_handle(text(**{**given, "REAL_TOPIC": "%RETRY%g"}).encode(), "b") is None


def test_timer_checkpoint_and_metrics_are_served_to_slaves(tmp_path: Path) -> None:
    """60 and 61 answer what the files ``timercheck`` and ``timermetrics`` hold."""

    async def flow(is_on: bool) -> None:
        async with running_broker(tmp_path / str(is_on), timerWheelEnable=is_on) as one:
            if not is_on:
                answers = [await one.call(code) for code in (60, 61)]
                assert [answer.code for answer in answers] == [1, 1]
                return
            await one.send("T", b"x", properties=text(TIMER_DELAY_SEC=3600))
            await parked(one, 1)
            checkpoint, counts = await one.call(60), await one.call(61)
            assert (checkpoint.code, len(bytes(checkpoint.body))) == (0, 56)
            assert json.loads(bytes(counts.body))["timingCount"]["T"]["count"] == 1

    run(flow(True))
    run(flow(False))


def test_runtime_info_has_the_state_of_the_timer(tmp_path: Path) -> None:
    clock = Clock()

    async def flow() -> None:
        async with running_broker(tmp_path, now_ms=clock) as one:
            await one.send("T", b"x", properties=text(TIMER_DELAY_SEC=20))
            await parked(one, 1)
            table = bytes((await one.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body).decode()
            assert '"timerCongestNum":"1"' in table
            assert '"timerOffsetBehind":"0"' in table
            assert '"timerReadBehind":"0"' in table

    run(flow())


def test_timer_run_without_delay_needs_no_time_of_its_handle(tmp_path: Path) -> None:
    """uvloop gives a plain handle for a call without delay; the end of a flush asked it when it is due, and failed."""

    async def flow() -> None:
        async with asyncio.timeout(300), running_broker(tmp_path, timerWheelEnable=True) as one:
            timers = one.parts.timers
            for delay_s in (0.0, 0.5, 0.0, 0.001):
                timers._run_in(delay_s)
            due_ms = int(time.time() * 1000) + 1200
            answer = await one.send("timed", b"x", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
            assert answer.code == 0, answer.remark
            while one.context.store.max_offset("timed", 0) < 1:
                await asyncio.sleep(0.02)

    with runner() as loop:
        loop.run(flow())
