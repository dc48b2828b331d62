"""A master and a slave over real sockets and stores: the slave has the master's log, byte for byte, or says why not."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from pathlib import Path

import pytest
from ha.pairs import QUICK, SIZES, Cutter, as_slave, fill, following, log_of, serving, until
from sampling import WHOLE

import mqfast
from mqfast.errors import FrameError
from mqfast.ha.protocol import Frames, Reports, frame_head, report
from mqfast.ha.slave import FollowState, HaSlave


def test_a_slave_has_the_log_and_the_queues_of_its_master(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 20)  # less than a file: a slave without a log begins with the last file
            async with serving(ours) as master:
                with following(theirs, master.port) as slave:
                    await until(lambda: slave.status.state is FollowState.TRANSFER)
                    fill(ours, 400, seed=1)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    await until(lambda: master.statuses() and master.statuses()[0].behind_bytes == 0)
                    assert log_of(theirs) == log_of(ours)
                    await asyncio.to_thread(theirs.flush)
                    await until(lambda: theirs.max_offset("T", 3) == ours.max_offset("T", 3))
                    for queue_id in range(4):
                        mine = ours.get("T", queue_id, 0, max_count=1000)
                        got = theirs.get("T", queue_id, 0, max_count=1000)
                        assert [bytes(one.body) for one in got] == [bytes(one.body) for one in mine]
        assert mqfast.verify(tmp_path / "s").ok

    asyncio.run(flow())


def test_a_slave_with_sync_flush_confirms_what_is_on_its_disk(tmp_path: Path) -> None:
    async def flow() -> None:
        with (
            mqfast.open(tmp_path / "m", **SIZES) as ours,
            mqfast.open(tmp_path / "s", broker_role="SLAVE", flush_disk_type="SYNC_FLUSH", **SIZES) as theirs,
        ):
            ahead = []
            async with serving(ours, needed=1) as master:
                master.acks.watch(lambda acked: ahead.append(acked - theirs.log.flushed))
                with following(theirs, master.port):
                    for turn in range(50):
                        fill(ours, 4, seed=turn)
                        await until(lambda: master.acks.acked == ours.engine.raw.end)
            assert ahead
            assert max(ahead) <= 0

    asyncio.run(flow())


def test_a_slave_outlives_an_address_that_is_none(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 3)
            async with serving(ours) as master:
                address = ["a" * 70, 1]
                slave = HaSlave(theirs.engine.raw, QUICK, lambda: (str(address[0]), int(address[1])))
                slave.start()
                try:
                    await until(lambda: slave.status.error)
                    address[:] = ["127.0.0.1", master.port]
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                finally:
                    slave.stop()

    asyncio.run(flow())


def test_a_slave_resumes_at_its_end_after_each_disconnect(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours:
            for turn in range(5):
                with as_slave(tmp_path / "s") as theirs:
                    async with serving(ours) as master:
                        with following(theirs, master.port):
                            fill(ours, 40, seed=turn)
                            await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                            assert log_of(theirs) == log_of(ours)

    asyncio.run(flow())


def test_a_connection_that_is_cut_anywhere_costs_nothing(tmp_path: Path) -> None:
    """After a growing number of bytes; with ``make ha`` at every byte of two frames."""
    batch = 700 if WHOLE else QUICK.batch_bytes
    cuts = range(2 * (12 + batch) + 1) if WHOLE else [*range(40), *random.Random(7).choices(range(40, 9000), k=25)]

    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 30)
            async with (
                serving(ours, batch_bytes=batch) as master,
                Cutter(("127.0.0.1", master.port), cuts).listening() as cutter,
            ):
                with following(theirs, cutter.port, reconnect_s=0.001):
                    async with asyncio.timeout(100 + len(cuts)):
                        seed = 0
                        while cutter.left:  # each of them needs bytes that come
                            if theirs.engine.raw.end == ours.engine.raw.end:
                                fill(ours, 3, seed := seed + 1)
                            await asyncio.sleep(0.001)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    assert log_of(theirs) == log_of(ours)

    asyncio.run(flow())


def test_a_slave_that_is_ahead_stops_and_names_both_offsets(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 10)
            restored = ours.engine.raw.end
            async with serving(ours) as master:
                with following(theirs, master.port):
                    fill(ours, 1, seed=3)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
            whole = theirs.engine.raw.end
            with mqfast.open(tmp_path / "old", broker_role="SLAVE", **SIZES) as old:
                old.engine.raw.append(0, log_of(ours)[:restored])
                async with serving(old) as master:
                    with following(theirs, master.port) as slave:
                        await until(lambda: slave.status.state is FollowState.DIVERGED)
                        assert str(whole) in str(slave.status.error)
                        assert str(restored) in str(slave.status.error)
                        assert theirs.engine.raw.end == whole

    asyncio.run(flow())


@pytest.mark.parametrize("truncates", [False, True])
def test_a_log_of_another_history_is_kept_unless_a_cut_is_asked_for(tmp_path: Path, truncates: bool) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 60)
            common = ours.engine.raw.end
            async with serving(ours) as master:
                with following(theirs, master.port):
                    await until(lambda: theirs.engine.raw.end == common)
            with mqfast.open(tmp_path / "x", broker_role="SLAVE", **SIZES) as old:
                old.engine.raw.append(0, log_of(ours))
            with mqfast.open(tmp_path / "x", **SIZES) as other:
                fill(other, 40, seed=5)
                fill(ours, 20, seed=6)
                async with serving(ours) as master:
                    with following(theirs, master.port):
                        await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                before = log_of(theirs)
                async with serving(other) as master:
                    with following(theirs, master.port, truncate_diverged=truncates) as slave:
                        if truncates:
                            await until(lambda: theirs.engine.raw.end == other.engine.raw.end)
                            assert log_of(theirs) == log_of(other)[-len(log_of(theirs)) :]
                        else:
                            await until(lambda: slave.status.state is FollowState.DIVERGED)
                            assert "differs" in str(slave.status.error)
                            assert log_of(theirs) == before

    asyncio.run(flow())


def test_damaged_bytes_never_land(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 20)
            data = bytearray(log_of(ours))
            data[len(data) // 2] ^= 1
            served = threading.Event()

            def serve(listener: socket.socket) -> None:
                with contextlib.suppress(OSError):
                    while True:
                        one, _ = listener.accept()
                        with one:
                            one.recv(8)
                            one.sendall(frame_head(0, len(data)) + data)
                            served.set()
                            one.settimeout(5)
                            one.recv(8)

            with socket.create_server(("127.0.0.1", 0)) as listener:
                thread = threading.Thread(target=serve, args=(listener,), daemon=True)
                thread.start()
                with following(theirs, listener.getsockname()[1], reconnect_s=60) as slave:
                    assert await asyncio.to_thread(served.wait, 100)
                    await until(lambda: slave.status.error)
                    assert "CRC" in str(slave.status.error)
                    assert theirs.engine.raw.end <= len(data) // 2
                    assert log_of(theirs) == log_of(ours)[: theirs.engine.raw.end]
                listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)

    asyncio.run(flow())


def test_puts_complete_when_the_slave_has_acknowledged_them(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            async with serving(ours, needed=1) as master:
                with following(theirs, master.port):
                    await until(master.statuses)
                    result = ours.put("T", b"x")
                    end = result.physical_offset + result.size
                    status = await asyncio.to_thread(master.acks.wait_for, end, 20.0)
                    assert status.name == "PUT_OK"
                    assert theirs.engine.raw.end >= end

    asyncio.run(flow())


def test_where_a_slave_wants_to_go_on_acknowledges_nothing(tmp_path: Path) -> None:
    """A slave with another log may name a place behind what both have in common; only what it got here counts."""

    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours:
            fill(ours, 10)
            end = ours.engine.raw.end
            async with serving(ours, needed=1) as master:
                reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
                writer.write(report(end - 100))
                await reader.readexactly(12 + 100)
                assert [one.sent for one in master.statuses()] == [end]
                assert master.acks.acked == 0
                writer.write(report(end))
                await until(lambda: master.acks.acked == end)
                writer.close()

    asyncio.run(flow())


def test_a_slave_that_does_not_read_costs_no_memory_and_others_go_on(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            async with serving(ours, housekeeping_s=60.0) as master:
                fill(ours, 1)
                reader, writer = await asyncio.open_connection("127.0.0.1", master.port, limit=1024)
                writer.write(report(0))
                with following(theirs, master.port):
                    for seed in range(8):
                        await asyncio.to_thread(fill, ours, 1000, seed)
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    slow = next(one for one in master.statuses() if one.behind_bytes)
                    assert slow.sent < ours.engine.raw.end
                writer.close()
                del reader

    asyncio.run(flow())


def test_a_silent_slave_is_disconnected(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours:
            fill(ours, 1)
            async with serving(ours, housekeeping_s=0.2) as master:
                reader, writer = await asyncio.open_connection("127.0.0.1", master.port)
                writer.write(report(0))
                began = time.monotonic()
                with contextlib.suppress(ConnectionError):
                    while await reader.read(65536):
                        assert time.monotonic() - began < 100
                writer.close()
                assert not master.statuses()

    asyncio.run(flow())


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_frames_however_they_are_cut(step: int) -> None:
    data = frame_head(100, 5) + b"hello" + frame_head(105, 0) + frame_head(105, 3) + b"abc"
    frames, found = Frames(), []
    for at in range(0, len(data), step):
        found += [(offset, bytes(piece)) for offset, piece in frames.feed(memoryview(data)[at : at + step])]
    assert b"".join(piece for _, piece in found) == b"helloabc"
    assert (105, b"") in found
    assert [(at, bytes(rest)) for at, rest in frames.feed(memoryview(frame_head(108, 1) + b"d"))] == [(108, b"d")]
    position = 100
    for offset, piece in found:
        assert offset == position
        position += len(piece)


@pytest.mark.parametrize(("offset", "size"), [(-1, 0), (0, -1), (0, 1 << 30)])
def test_a_frame_that_no_master_sends(offset: int, size: int) -> None:
    with pytest.raises(FrameError, match="frame of a master"):
        list(Frames().feed(memoryview(frame_head(offset, size))))


def test_the_newest_whole_report_counts() -> None:
    reports = Reports()
    data = report(1) + report(2) + report(3)
    assert [reports.feed(data[:5]), reports.feed(data[5:17]), reports.feed(data[17:])] == [None, 2, 3]
