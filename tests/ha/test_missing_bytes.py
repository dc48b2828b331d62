"""Masters that do not have what their slave asks for: trimmed by retention, restored, or emptied."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ha.pairs import (
    FILE,
    KEEPS_TWO_FILES,
    SIZES,
    as_slave,
    fill,
    following,
    log_of,
    put_up_to,
    serving,
    trimmed,
    until,
)

import mqfast
from mqfast.ha.protocol import frame_head, report
from mqfast.ha.slave import FollowState


def master_of(path: Path) -> mqfast.MessageStore:
    return mqfast.open(path, **SIZES, **KEEPS_TWO_FILES)


def with_its_end_at_that_of(master: mqfast.MessageStore, slave: mqfast.MessageStore) -> None:
    """What replication does, without sockets."""
    ours, theirs = master.engine.raw, slave.engine.raw
    for view in ours.read(max(theirs.end, 0), 1 << 40, unflushed=True):
        theirs.append(theirs.end, view)
    assert theirs.end == ours.end


@pytest.mark.parametrize("above", [1, 3000])
def test_a_slave_that_ends_little_above_its_masters_first_byte_follows(tmp_path: Path, above: int) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, 2 * FILE + above)
            with_its_end_at_that_of(ours, theirs)
            trimmed(ours, 2 * FILE)
            assert 0 < theirs.engine.raw.end - ours.engine.raw.min_offset < 4096
            async with serving(ours) as master:
                with following(theirs, master.port) as slave:
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
                    assert slave.status.state is FollowState.TRANSFER
            assert log_of(theirs)[2 * FILE :] == log_of(ours)

    asyncio.run(flow())


def test_a_divergence_above_the_masters_min_offset_is_found(tmp_path: Path) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, 2 * FILE)
            with mqfast.open(tmp_path / "other", **SIZES) as other:
                put_up_to(other, 2 * FILE + 3000)
                with_its_end_at_that_of(other, theirs)
            trimmed(ours, 2 * FILE)
            before = log_of(theirs)
            async with serving(ours) as master:
                for truncates in (False, True):
                    with following(theirs, master.port, truncate_diverged=truncates) as slave:
                        await until(lambda: slave.status.state is FollowState.DIVERGED)
                        assert "differs from its master's at" in str(slave.status.error)
                        assert "nothing is common to both" in str(slave.status.error)
                        assert ("nothing was cut" in str(slave.status.error)) is truncates
                        assert log_of(theirs) == before

    asyncio.run(flow())


def test_a_slave_that_ends_where_its_master_begins_follows(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, FILE + 1)
            theirs.engine.raw.append(0, log_of(ours)[:FILE])
            trimmed(ours, FILE)
            assert theirs.engine.raw.end == FILE
            async with serving(ours) as master:
                with following(theirs, master.port):
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
            assert log_of(theirs)[FILE:] == log_of(ours)

    asyncio.run(flow())
    assert f"begins where this one ends, at {FILE}" in caplog.text


@pytest.mark.parametrize("truncates", [False, True])
def test_the_error_of_a_slave_below_the_masters_min_offset_has_both_offsets(tmp_path: Path, truncates: bool) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 10)
            with_its_end_at_that_of(ours, theirs)
            trimmed(ours, 3 * FILE)
            before = log_of(theirs)
            async with serving(ours) as master:
                with following(theirs, master.port, truncate_diverged=truncates) as slave:
                    await until(lambda: slave.status.state is FollowState.DIVERGED)
                    text = str(slave.status.error)
                    assert f"ends at {len(before)}, its master's begins at {3 * FILE}" in text
                    assert "what is between is gone" in text
                    assert log_of(theirs) == before
                    assert not master.acks.slaves

    asyncio.run(flow())


def test_a_slave_without_a_log_begins_with_the_last_file_of_a_trimmed_master(tmp_path: Path) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            trimmed(ours, 3 * FILE)
            async with serving(ours) as master:
                with following(theirs, master.port):
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
            first = theirs.engine.raw.min_offset
            assert first == ours.engine.raw.end // FILE * FILE
            assert log_of(theirs) == log_of(ours)[first - ours.engine.raw.min_offset :]

    asyncio.run(flow())


def test_a_slave_without_a_log_gets_the_whole_log_of_a_trimmed_master(tmp_path: Path) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            trimmed(ours, 3 * FILE)
            async with serving(ours, whole_log=True) as master:
                with following(theirs, master.port):
                    await until(lambda: theirs.engine.raw.end == ours.engine.raw.end)
            assert theirs.engine.raw.min_offset == 3 * FILE
            assert log_of(theirs) == log_of(ours)

    asyncio.run(flow())


def test_files_that_go_under_a_slave_that_reads_slowly(tmp_path: Path) -> None:
    """What was sent stays readable; a slave that comes too late hears where the log begins, and keeps what it has."""

    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, 3 * FILE)
            whole = log_of(ours)
            async with serving(ours) as master:
                reader, writer = await asyncio.open_connection("127.0.0.1", master.port, limit=1024)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                writer.write(report(1))
                await until(master.statuses)
                (of_master,) = master.followers  # else the kernel's buffer grows to megabytes
                assert of_master._transport is not None
                of_master._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
                await asyncio.to_thread(trimmed, ours, 40 * FILE)
                got, position = bytearray(), 1
                with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                    while True:
                        head = await reader.readexactly(12)
                        assert int.from_bytes(head[:8], "big") == position + len(got)
                        got += await reader.readexactly(int.from_bytes(head[8:], "big"))
                assert bytes(got[: len(whole) - 1]) == whole[1 : 1 + len(got)]
                assert position + len(got) < 40 * FILE
                writer.close()
                theirs.engine.raw.append(0, whole)
                with following(theirs, master.port) as slave:
                    await until(lambda: slave.status.state is FollowState.DIVERGED)
                    assert f"ends at {len(whole)}, its master's begins at {40 * FILE}" in str(slave.status.error)

    asyncio.run(flow())


@pytest.mark.parametrize("ahead", [1, 8000, 3 * FILE])
@pytest.mark.parametrize("truncates", [False, True])
def test_a_slave_however_far_ahead_of_a_restored_master(tmp_path: Path, ahead: int, truncates: bool) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, FILE)
            with as_slave(tmp_path / "old") as old:
                with_its_end_at_that_of(ours, old)
                restored = old.engine.raw.end
                put_up_to(ours, restored + ahead)
                with_its_end_at_that_of(ours, theirs)
                whole = theirs.engine.raw.end
                async with serving(old) as master:
                    with following(theirs, master.port, truncate_diverged=truncates) as slave:
                        if truncates:
                            await until(lambda: slave.status.state is FollowState.TRANSFER)
                            assert log_of(theirs) == log_of(old)
                        else:
                            await until(lambda: slave.status.state is FollowState.DIVERGED)
                            text = str(slave.status.error)
                            assert f"ends at {whole}, its master's at {restored}: the slave is ahead" in text
                            assert theirs.engine.raw.end == whole

    asyncio.run(flow())


def test_a_slave_with_a_log_is_not_cut_to_that_of_an_empty_master(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            fill(ours, 5)
            with_its_end_at_that_of(ours, theirs)
            end = theirs.engine.raw.end
            with mqfast.open(tmp_path / "new", **SIZES) as new:
                async with serving(new) as master:
                    with following(theirs, master.port, truncate_diverged=True) as slave:
                        await until(lambda: slave.status.state is FollowState.DIVERGED)
                        assert f"ends at {end}, its master's at 0" in str(slave.status.error)
                        assert "nothing was cut" in str(slave.status.error)
                        assert theirs.engine.raw.end == end

    asyncio.run(flow())


class _JavaMaster:
    """What a master of RocketMQ sends where it has not what was asked for: heartbeats with the offset asked for."""

    def __init__(self, first: int, log: bytes) -> None:
        self._first, self._log = first, log
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                one, _ = self._listener.accept()
                with one, contextlib.suppress(ConnectionError):
                    asked = int.from_bytes(one.recv(8), "big")
                    one.sendall(frame_head(asked, 0))  # its first frame often is a heartbeat, whatever it has
                    if self._first <= asked < self._first + len(self._log):
                        data = self._log[asked - self._first :]
                        one.sendall(frame_head(asked, len(data)) + data)
                        asked += len(data)
                    one.settimeout(0.05)
                    while not self._ended.is_set():
                        one.sendall(frame_head(asked, 0))
                        with contextlib.suppress(TimeoutError):
                            if not one.recv(64):
                                break

    def end(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextlib.contextmanager
def java_master(first: int, log: bytes) -> Iterator[_JavaMaster]:
    one = _JavaMaster(first, log)
    try:
        yield one
    finally:
        one.end()


def test_a_java_masters_silence_is_understood_by_its_bounds(tmp_path: Path) -> None:
    async def flow() -> None:
        with master_of(tmp_path / "m") as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, 2 * FILE + 1500)
            with_its_end_at_that_of(ours, theirs)
            trimmed(ours, 2 * FILE)
            end = ours.engine.raw.end
            bounds: list[tuple[int, int] | None] = [(2 * FILE, end)]
            with java_master(2 * FILE, log_of(ours)) as java:
                with following(theirs, java.port, bounds=lambda: bounds[0]):
                    await until(lambda: theirs.engine.raw.end == end)
            assert log_of(theirs)[2 * FILE :] == log_of(ours)

    asyncio.run(flow())


@pytest.mark.parametrize(
    ("bounds", "told"), [((0, FILE), f"at {FILE}: the slave is ahead"), (None, "the slave is ahead")]
)
def test_a_java_masters_silence_below_the_slave(tmp_path: Path, bounds: Any, told: str) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, 2 * FILE)
            with_its_end_at_that_of(ours, theirs)
            end = theirs.engine.raw.end
            with (
                java_master(0, log_of(ours)[:FILE]) as java,
                following(theirs, java.port, bounds=bounds and (lambda: bounds)) as slave,
            ):
                await until(lambda: slave.status.state is FollowState.DIVERGED)
                assert f"ends at {end}, its master's" in str(slave.status.error)
                assert told in str(slave.status.error)

    asyncio.run(flow())


def test_a_pause_of_the_master_during_the_comparison_truncates_nothing(tmp_path: Path) -> None:
    """It sends heartbeats, as with a limit of bytes a second; its bounds say that there is more."""

    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, FILE)
            with_its_end_at_that_of(ours, theirs)
            whole = log_of(ours)
            with (
                java_master(0, whole[:-2000]) as java,
                following(theirs, java.port, bounds=lambda: (0, len(whole)), truncate_diverged=True) as slave,
            ):
                await until(lambda: "the master has them up to" in str(slave.status.error))
                assert log_of(theirs) == whole


def test_nothing_is_truncated_while_the_masters_max_offset_is_unknown(tmp_path: Path) -> None:
    async def flow() -> None:
        with mqfast.open(tmp_path / "m", **SIZES) as ours, as_slave(tmp_path / "s") as theirs:
            put_up_to(ours, FILE)
            with_its_end_at_that_of(ours, theirs)
            whole = log_of(ours)
            end = theirs.engine.raw.last_boundary(len(whole) - 2000)
            bounds: list[tuple[int, int] | None] = [None]
            with (
                java_master(0, whole[:end]) as java,
                following(theirs, java.port, bounds=lambda: bounds[0], truncate_diverged=True) as slave,
            ):
                await until(lambda: "nobody tells where they end" in str(slave.status.error))
                assert log_of(theirs) == whole
                bounds[0] = (0, end)
                await until(lambda: theirs.engine.raw.end == end)

    asyncio.run(flow())

    asyncio.run(flow())
