"""Sends that reactors serve: stored bytes and answers are those of Python, in the order of each connection, and counted
as Python counts.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from raw_frames import Raw, binary_frame, json_frame, letters, strange_frame
from running import Running, running_broker
from sampling import LONG
from waiting import until_async as until

import mqfast
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import FrameDecoder, RemotingCommand

pytestmark = pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def counts(running: Running) -> dict[str, int]:
    result = running.broker.reactor_counts()
    assert result is not None
    return result


def masked(running: Running, frame: bytes) -> tuple[int, RemotingCommand]:
    """An answer and its length, without what differs between two brokers: addresses, and ids that the broker makes."""
    prefix = running.context.store_host.hex().upper().encode()
    text = frame.replace(prefix, b"?" * len(prefix))
    text = re.sub(rb"127\.0\.0\.1:\d{5}", b"127.0.0.1:ABCDE", _MADE_ID.sub(b"!" * 32, text))
    (answer,) = FrameDecoder().feed(text)
    return len(frame), answer


_MADE_ID = re.compile(rb"7F000001[0-9A-F]{24}")


def stored(path: Path, topics: list[str]) -> list[Any]:
    """All messages, with what does not depend on clock and port."""
    result: list[Any] = []
    with mqfast.open(path) as store:
        for topic in topics:
            for queue_id in range(4):
                for message in store.get(topic, queue_id, 0, 100_000):
                    place = message.queue_offset, message.physical_offset, message.size
                    numbers = message.flag, message.sys_flag, message.born_timestamp, message.reconsume_times
                    text = _MADE_ID.sub(b"!", message.properties_bytes)
                    result.append((topic, queue_id, place, numbers, message.body_crc, bytes(message.body), text))
    return result


async def both(paths: list[Path], flow: Any, **settings: Any) -> None:
    """Run a flow with a broker without reactors, and with a broker with two."""
    for path, threads in zip(paths, (0, 2), strict=True):
        async with running_broker(path, serverSelectorThreads=threads, **settings) as running:
            await flow(running, path)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("index", [True, False])
def test_answers_and_stored_bytes_are_those_of_python(tmp_path: Path, flush: str, index: bool) -> None:
    answers: dict[Path, list[tuple[int, RemotingCommand]]] = {}
    served: list[int] = []

    async def flow(running: Running, path: Path) -> None:
        chance = random.Random(46)
        raw = await Raw.to(running.address)
        answers[path] = []
        for number in range(3000 if LONG else 300):
            frame = strange_frame(chance, number, chance.choice(("T", "U")))
            answers[path].append(masked(running, await raw.ask(frame)))
        raw.close()
        if running.broker.reactor_counts() is not None:
            served.append(counts(running)["served"])

    paths = [tmp_path / "python", tmp_path / "reactors"]
    run(both(paths, flow, flushDiskType=flush, messageIndexEnable=index))
    assert answers[paths[1]] == answers[paths[0]]
    assert stored(paths[1], ["T", "U"]) == stored(paths[0], ["T", "U"])
    assert served[0] > 60


def test_a_pipeline_is_stored_in_its_order_though_python_serves_some(tmp_path: Path) -> None:
    number_of = 2000

    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw = await Raw.to(running.address)
            for number in range(3):  # the topic is known then
                await raw.ask(json_frame(letters(number, queue_id=1), b""))
            for number in range(number_of):
                plain = number % 7 != 3
                properties = None if plain else f"TRACE_ON\x01false\x02UNIQ_KEY\x01id{number:06}\x02"
                frame = json_frame if number % 2 else binary_frame
                fields = letters(number, properties=properties)
                raw.send(frame(fields, b"%d" % number, opaque=number))
            for _ in range(number_of):
                await raw.receive()
            raw.close()
            assert counts(running)["served"] > number_of // 2

    run(flow())
    with mqfast.open(tmp_path) as store:
        bodies = [int(bytes(message.body)) for message in store.get("T", 0, 0, number_of)]
    assert bodies == list(range(number_of))


def test_a_send_that_waits_in_the_queue_of_python_is_stored_before_later_sends(tmp_path: Path) -> None:
    async def flow() -> None:
        lane = {"sendThreadPoolQueueCapacity": 1, "flushDiskType": "SYNC_FLUSH"}  # one send of Python at a time
        async with running_broker(tmp_path, serverSelectorThreads=2, **lane) as running:
            raw = await Raw.to(running.address)
            for number in range(3):  # the topic is known then
                await raw.ask(json_frame(letters(number), b"%d" % number))
            for number in range(3, 33, 3):
                frames = b""
                for at in range(number, number + 3):
                    python = f"TRACE_ON\x01false\x02UNIQ_KEY\x01id{at:06}\x02"
                    properties = None if at == number + 2 else python
                    frames += json_frame(letters(at, properties=properties), b"%d" % at, opaque=at)
                raw.send(frames)
                for _ in range(3):
                    assert b'"code":0' in await raw.receive()
            raw.close()
            assert counts(running)["served"] >= 10

    run(flow())
    with mqfast.open(tmp_path) as store:
        assert [int(bytes(message.body)) for message in store.get("T", 0, 0, 100)] == list(range(33))


def test_two_connections_and_two_reactors_share_a_queue(tmp_path: Path) -> None:
    async def send(running: Running, first: int) -> None:
        raw = await Raw.to(running.address)
        for number in range(first, first + 500):
            raw.send(json_frame(letters(number), b"%d" % number, opaque=number))
        for _ in range(500):
            assert b'"code":0' in await raw.receive()
        raw.close()

    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            await asyncio.gather(*(send(running, first) for first in range(0, 4000, 500)))

    run(flow())
    with mqfast.open(tmp_path) as store:
        result = [int(bytes(message.body)) for message in store.get("T", 0, 0, 4000)]
    assert sorted(result) == list(range(4000))
    for first in range(0, 4000, 500):
        own = [number for number in result if first <= number < first + 500]
        assert own == sorted(own)


def test_what_reactors_store_is_counted_as_python_counts(tmp_path: Path) -> None:
    result: dict[Path, Any] = {}

    async def flow(running: Running, path: Path) -> None:
        raw = await Raw.to(running.address)
        for number in range(50):
            await raw.ask(json_frame(letters(number), bytes(100 * number), opaque=number))
        raw.close()
        stats, latencies = running.context.stats, running.context.latencies
        series = stats.puts["T"]
        assert latencies is not None
        rows = {(row.request_code, row.response_code): sum(each.counts) for row, each in latencies.rows()}
        result[path] = (
            [(each.count, each.size, each.times) for each in (series, stats.put_totals, stats.put_totals_all)],
            series.sizes,
            sum(stats.put_times()),
            rows[("send_message_v2", "success")],
        )

    paths = [tmp_path / "python", tmp_path / "reactors"]
    metrics = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    run(both(paths, flow, **metrics))
    assert result[paths[1]] == result[paths[0]]


def test_changes_of_topics_and_settings_count_at_once(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw = await Raw.to(running.address)
            for number in range(5):
                assert b'"code":0' in await raw.ask(json_frame(letters(number, queue_id=3), b"x"))
            before = counts(running)["served"]
            assert before > 0
            await running.call(
                RequestCode.UPDATE_AND_CREATE_TOPIC, topic="T", defaultTopic="TBW102", readQueueNums=2,
                writeQueueNums=2, perm=6, topicFilterType="SINGLE_TAG", topicSysFlag=0, order="false",
            )  # fmt: skip
            assert b"queueId[3] is illegal" in await raw.ask(json_frame(letters(9, queue_id=3), b"x"))
            await running.call(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=4")
            await raw.ask(json_frame(letters(10), b"x"))
            await raw.ask(json_frame(letters(11), b"x"))
            assert counts(running)["served"] == before
            await running.call(RequestCode.UPDATE_BROKER_CONFIG, b"brokerPermission=6")
            for number in range(3):
                assert b'"code":0' in await raw.ask(json_frame(letters(number), b"x"))
            assert counts(running)["served"] > before
            await running.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="T")
            assert b'"queueOffset":"0"' in await raw.ask(json_frame(letters(12), b"x"))
            raw.close()

    run(flow())


def test_a_held_pull_gets_a_message_that_a_reactor_stores(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2) as running:
            raw = await Raw.to(running.address)
            for number in range(3):
                await raw.ask(json_frame(letters(number), b"x"))
            await running.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, b'{"groupName":"readers"}')
            pull = asyncio.ensure_future(
                running.call(
                    RequestCode.PULL_MESSAGE, timeout_ms=60_000,
                    consumerGroup="readers", topic="T", queueId=0, queueOffset=3, maxMsgNums=32, sysFlag=6,
                    commitOffset=0, suspendTimeoutMillis=50_000, subscription="*", subVersion=0, expressionType="TAG",
                )
            )  # fmt: skip
            await until(lambda: len(running.parts.long_polling) == 1)
            before = counts(running)["served"]
            await raw.ask(json_frame(letters(3), b"the one"))
            answer = await pull
            assert answer.code == 0
            assert b"the one" in b"".join(bytes(part) for part in [answer.body])
            assert counts(running)["served"] == before + 1
            raw.close()

    run(flow())


def test_rolls_of_the_log_lose_nothing(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, serverSelectorThreads=2, mappedFileSizeCommitLog=64 << 10) as running:
            raw = await Raw.to(running.address)
            for number in range(400):
                raw.send(json_frame(letters(number), b"%06d" % number * 100, opaque=number))
            for _ in range(400):
                assert b'"code":0' in await raw.receive()
            raw.close()

    run(flow())
    with mqfast.open(tmp_path) as store:
        assert [int(bytes(message.body[:6])) for message in store.get("T", 0, 0, 400)] == list(range(400))
