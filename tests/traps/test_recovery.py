"""Traps 29 to 37: recovery and life cycle.

Room: tests/traps. Where a trap is a bug of RocketMQ the test says what we do instead. Formats:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from golden_checks import read_queue
from laboratory import bodies, lab
from other_thread import in_another_thread
from traps.common import (
    SMALL,
    T0,
    as_killed,
    fill,
    log_bytes,
    patch,
)

import mqfast
from mqfast.errors import (
    CorruptFile,
    StoreLocked,
)
from mqfast.store.base.os_api import OsApi


def test_trap_29_the_abort_file_alone_decides(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 5)
        assert (path / "abort").read_bytes() == str(os.getpid()).encode()
    assert not (path / "abort").exists()
    (path / "abort.bak").touch()
    (path / "compaction").mkdir()
    (path / "compaction/position-checkpoint").write_text('{"empty":true,"queueOffsetMap":{}}')
    end = store.recovery.end
    (path / "commitlog" / f"{4096:020}").write_bytes(bytes(4096))  # made ahead of need
    with mqfast.open(path, **SMALL) as store:
        assert store.recovery.clean
        assert store.max_offset("T", 0) == 5
    (path / "abort").write_bytes(b"")  # as 4.9.7 leaves it
    with mqfast.open(path, **SMALL) as store:
        assert not store.recovery.clean
        assert store.recovery.end > end == 0
    assert (path / "compaction/position-checkpoint").exists()


def test_trap_30_a_queue_that_is_one_unit_short_after_a_clean_stop_gets_it(tmp_path: Path) -> None:
    """RocketMQ leaves it short for ever, and later units shift down by one."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 8)
    for lost in (1, 3):
        patch(path / "consumequeue/T/0" / f"{0:020}", (8 - lost) * 20, bytes(20 * lost))
        with mqfast.open(path, **SMALL) as store:
            assert store.recovery.clean
            assert store.max_offset("T", 0) == 8
            assert [m.record_queue_offset for m in read_queue(store, "T", 0, 0)] == list(range(8))


def test_trap_31_a_log_without_files_leaves_no_queue(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 12)
    shutil.rmtree(path / "commitlog")
    with mqfast.open(path, **SMALL) as store:
        assert store.queues() == []
        assert store.query("T", "k1") == []
        result = store.put("T", b"new", keys="k1")
        assert (result.queue_offset, result.physical_offset) == (0, 0)
        assert [bytes(m.body) for m in store.query("T", "k1")] == [b"new"]
    with mqfast.open(path, **SMALL) as store:
        assert bodies(store, "T") == [b"new"]
        assert [bytes(m.body) for m in store.query("T", "k1")] == [b"new"]


def test_trap_32_the_confirm_offset_is_where_the_last_record_starts(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        last = fill(store, 12)[-1]
    with mqfast.open(path, **SMALL):
        pass
    assert struct.unpack_from(">q", (path / "checkpoint").read_bytes(), 32) == (last.physical_offset,)


def test_trap_33_recovery_starts_three_seconds_before_the_checkpoint(tmp_path: Path) -> None:
    os_api = OsApi()
    with mqfast.open(tmp_path / "store", os_api=os_api, **SMALL) as store:
        for i in range(40):
            os_api.fix_clock(T0 + i * 1000)
            store.put("T", b"x" * 400)
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    first_of_file = {n: T0 + i * 1000 for n, i in ((0, 0), (1, 8), (2, 16), (3, 24), (4, 32))}
    for physic, logics, file in (
        (T0 + 40000, T0 + 40000, 4),
        (T0 + 35000, T0 + 40000, 4),
        (T0 + 34999, T0 + 40000, 3),
        (T0 + 40000, T0 + 27000, 3),
        (T0 + 40000, T0 + 26999, 2),
        (T0 + 40000, 0, 0),
    ):
        assert first_of_file[file] <= max(min(physic, logics) - 3000, T0)
        again = tmp_path / f"again{physic}{logics}"
        shutil.copytree(killed, again)
        (again / "checkpoint").write_bytes(struct.pack(">qq", physic, logics).ljust(4096, b"\0"))
        with mqfast.open(again, **SMALL) as store:
            assert store.recovery.start == file * 4096
            assert store.max_offset("T", 0) == 40


def test_trap_34_the_cut_removes_every_file_above_it(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        results = fill(store, 40)
        killed = as_killed(tmp_path / "store", tmp_path / "killed")
    victim = results[12]
    patch(killed / "commitlog" / f"{4096:020}", victim.physical_offset - 4096 + 90, b"?")
    names = sorted(path.name for path in (killed / "commitlog").iterdir())
    with mqfast.open(killed, **SMALL) as store:
        assert store.recovery.removed_log_files == names[:1:-1]
        assert store.max_physical_offset == victim.physical_offset
        assert store.max_offset("T", 0) == 12
        assert store.query("T", "k12") == store.query("T", "k39") == []
        assert [m.queue_offset for m in store.query("T", "k11")] == [11]
    # and what lay behind the cut in its own file is gone for good
    assert not log_bytes(killed)[victim.physical_offset :].strip(b"\0")
    (killed / "abort").touch()
    with mqfast.open(killed, **SMALL) as store:
        assert store.max_offset("T", 0) == 12


@pytest.mark.parametrize("clean", [True, False])
def test_trap_35_lost_queue_files_do_not_restart_the_offsets(tmp_path: Path, clean: bool) -> None:
    """After a clean stop RocketMQ would begin at 0 again."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 25)
    shutil.rmtree(path / "consumequeue")
    if not clean:
        (path / "abort").touch()
    with mqfast.open(path, **SMALL) as store:
        assert store.put("T", b"next").queue_offset == 25
        assert [m.queue_offset for m in read_queue(store, "T", 0, 0)] == list(range(26))


def test_trap_36_a_record_that_cannot_be_read_is_not_skipped_in_silence(tmp_path: Path) -> None:
    """RocketMQ's master drops the rest of the file from its queues, with a line in its own log."""
    path = tmp_path / "store"
    store = mqfast.open(path, **SMALL)
    with lab(store).dispatcher.locked():
        in_another_thread(lambda: fill(store, 2))
        bad = in_another_thread(lambda: store.put("T", b"bad", keys="k"))
        in_another_thread(lambda: store.put("T", b"behind", keys="k"))
        patch(path / "commitlog" / f"{0:020}", bad.physical_offset + 4, b"?")
    with pytest.raises(CorruptFile) as caught:
        store.get("T", 0, 0, max_count=10)
    assert caught.value.offset == bad.physical_offset
    assert str(bad.physical_offset) in store.stats()["dispatch_error"]
    with pytest.raises(CorruptFile):
        store.close()
    assert (path / "abort").exists()


def test_trap_37_the_lock_is_a_record_lock(tmp_path: Path) -> None:
    path = tmp_path / "store"
    mqfast.open(path, **SMALL).close()
    holder = textwrap.dedent("""
        import fcntl, sys
        file = open(sys.argv[1], "r+b")
        fcntl.flock(file, fcntl.LOCK_EX) if sys.argv[2] == "flock" else fcntl.lockf(file, fcntl.LOCK_EX, 1, 0)
        print("held", flush=True)
        sys.stdin.read()
    """)
    for kind in ("lockf", "flock"):
        command = [sys.executable, "-c", holder, str(path / "lock"), kind]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            if kind == "lockf":  # as a Java broker holds it
                with pytest.raises(StoreLocked):
                    mqfast.open(path, **SMALL)
            else:
                mqfast.open(path, **SMALL).close()
            child.communicate()
    mqfast.open(path, **SMALL).close()
