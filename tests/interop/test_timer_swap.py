"""Timed messages that a Java broker 5.5.0 parked are delivered by ours, and the other way round."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from laboratory import open_still, read_queue
from timed import Timed

sys.path.append(str(Path(__file__).resolve().parent))

from real_programs import HERE, NEEDS_JAVA, NEWEST, STEP_S, Machine, free_port

import mqfast
from mqfast.broker.schedule.recall_message import decode_handle
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.schedule.timer.service import TimerService
from mqfast.schedule.timer.settings import TimerSettings
from mqfast.store.base.os_api import OsApi

pytestmark = NEEDS_JAVA

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20,
    "mappedFileSizeConsumeQueue": 6000,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
    "mappedFileSizeTimerLog": 1000,
}
JAVA = {**SIZES, "timerWheelEnable": "true", "recallMessageEnable": "true"}
TOPIC = "TimedSwap"


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(NEWEST, tmp_path, HERE / "Flow.java")
    made.start_namesrv()
    yield made
    made.end_all()


def call(port: int, *calls: tuple[int, bytes, dict[str, Any]]) -> list[Any]:
    """Requests to the broker of a port, one after the other; all must succeed."""

    async def ask() -> list[Any]:
        client = RemotingClient()
        try:
            found = []
            for code, body, fields in calls:
                texts = {name: str(value) for name, value in fields.items()}
                answer = await client.call(f"127.0.0.1:{port}", code, texts, body, timeout_ms=20_000)
                assert answer.code == 0, (code, answer.code, answer.remark)
                found.append(answer)
            return found
        finally:
            await client.close()

    return asyncio.run(ask())


def sending(body: str, **properties: object) -> tuple[int, bytes, dict[str, Any]]:
    text = "".join(f"{name}\x01{value}\x02" for name, value in {"UNIQ_KEY": f"K{body}", **properties}.items())
    fields = {
        "a": "producers", "b": TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1, "h": 0, "i": text, "j": 0,
        "k": "false", "m": "false",
    }  # fmt: skip
    return RequestCode.SEND_MESSAGE_V2, body.encode(), fields


def test_ours_delivers_what_java_parked(machine: Machine, tmp_path: Path) -> None:
    store, port = tmp_path / "store", free_port()
    java = machine.start_broker(store, JAVA, port)
    sent = [sending(str(n), TIMER_DELAY_SEC=3600 + n % 3) for n in range(30)]
    answers = call(port, *sent, sending("far", TIMER_DELAY_SEC=3 * 86_400))
    handle = answers[4].ext_fields["recallHandle"]
    found = decode_handle(handle)
    assert found is not None
    assert (found.topic, found.broker_name, found.message_id) == (TOPIC, "brk", "K4")
    assert found.encode() == handle
    call(port, (RequestCode.RECALL_MESSAGE, b"", {"topic": TOPIC, "recallHandle": handle, "producerGroup": "p"}))
    deadline = time.monotonic() + STEP_S
    while (store / "timerlog").is_dir() is False or parked(store) < 32:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    killed = tmp_path / "killed"
    shutil.copytree(store, killed)  # what a kill of the Java broker leaves
    machine.stop(java)
    for left in (store, killed):
        now_ms = int(time.time() * 1000)
        os_api = OsApi()
        os_api.fix_clock(now_ms)
        with open_still(left, os_api=os_api, **SIZES) as opened:
            timer = TimerService(opened, TimerSettings(), now_ms)
            for at in (now_ms, now_ms + 3500_000, now_ms + 3610_000):
                run_to(timer, os_api, at)
                before = at < now_ms + 3600_000
                bodies = sorted(bytes(m.body).decode() for m in read_queue(opened, TOPIC, 0, 0))
                assert bodies == ([] if before else sorted(str(n) for n in range(30) if n != 4))
            run_to(timer, os_api, now_ms + 3 * 86_400_000)
            assert b"far" in [bytes(m.body) for m in read_queue(opened, TOPIC, 0, 0)]
            if left == store:  # a copy of a running broker may lack what the broker counted last
                assert timer.metrics.count(TOPIC) == 0
            timer.close(os_api.now_ms())
        assert mqfast.verify(left).ok


def run_to(timer: TimerService, os_api: OsApi, end_ms: int) -> None:
    at: int | None = os_api.now_ms()
    while at is not None and at <= end_ms:
        os_api.fix_clock(at)
        at = timer.run_once(at)
        if timer.flush_is_due(os_api.now_ms()):
            timer.flush(os_api.now_ms())
    os_api.fix_clock(end_ms)
    while timer.run_once(end_ms) == end_ms:
        timer.flush(end_ms)


def parked(store: Path) -> int:
    """Units in the timer log of a broker that runs."""
    count = 0
    for path in sorted((store / "timerlog").iterdir()):
        data = path.read_bytes()
        count += sum(data[at : at + 4] == b"\0\0\0\x34" for at in range(0, 936, 52))
    return count


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("ends", ["stop", "kill"])
def test_java_delivers_what_ours_parked(machine: Machine, tmp_path: Path, ends: str) -> None:
    settings = {"mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 6000,
                "max_hash_slot_num": 1000, "max_index_num": 4000}  # fmt: skip
    now_ms = int(time.time() * 1000)
    run = Timed(tmp_path / "store", **settings)
    run.timer._close_files()
    run.at(now_ms)
    run.start_timer()
    due = now_ms + 25_000
    for number in range(30):
        run.send(b"%d" % number, topic=TOPIC, UNIQ_KEY=f"K{number}", TIMER_DELIVER_MS=due)
    run.run_until(now_ms)
    run.timer.flush(now_ms)
    run.send(b"30", topic=TOPIC, UNIQ_KEY="K30", TIMER_DELIVER_MS=due + 1000)
    run.send(b"0", topic=TOPIC, TIMER_DEL_UNIQKEY="K7", TIMER_DELIVER_MS=due)
    run.timer.run_once(now_ms)
    if ends == "kill":
        run.kill()
        run.timer._close_files()
        run.store.close()
    else:
        run.close()
    port = free_port()
    java = machine.start_broker(run.path, JAVA, port)
    expected = sorted(str(n) for n in range(31) if n != 7)
    deadline = time.monotonic() + STEP_S
    while len(found := delivered(run.path)) < len(expected):
        assert time.monotonic() < deadline, found
        time.sleep(0.2)
    assert time.time() * 1000 >= due
    machine.stop(java)
    found = delivered(run.path)
    if ends == "kill":  # behind its checkpoint RocketMQ parks a message once more
        found = sorted({*found})
    assert Counter(found) == Counter(expected)
    assert mqfast.verify(run.path).ok


def delivered(store: Path) -> list[str]:
    with mqfast.StoreReader(store) as reader:
        queues = [one.queue_id for one in reader.queues() if one.topic == TOPIC]
        return [bytes(m.body).decode() for queue_id in queues for m in reader.messages(TOPIC, queue_id)]
