"""One writer a store: within the process, between processes, and across a fork."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mqfast.errors import StoreLocked, StoreNotFound
from mqfast.store.base.lock import StoreLock, abort_exists, create_abort, remove_abort
from mqfast.store.base.os_api import OsApi

OTHER_PROCESS = """
import sys
from mqfast.errors import StoreLocked
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.lock import StoreLock
try:
    StoreLock.acquire(OsApi(), sys.argv[1])
except StoreLocked:
    print("locked")
else:
    print("free")
"""


def seen_by_another_process(path: Path) -> str:
    done = subprocess.run([sys.executable, "-c", OTHER_PROCESS, str(path)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_process_cannot_open_a_store_twice(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    with StoreLock.acquire(OsApi(), path) as lock:
        assert (tmp_path / "lock").read_bytes() == b"lock"
        with pytest.raises(StoreLocked, match="already open in this process"):
            StoreLock.acquire(OsApi(), path)
        lock.release()
        lock.release()
    StoreLock.acquire(OsApi(), path).release()


def test_trap_a_refused_second_open_does_not_drop_the_record_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with StoreLock.acquire(OsApi(), str(path)):
        assert seen_by_another_process(path) == "locked"
        with pytest.raises(StoreLocked):
            StoreLock.acquire(OsApi(), str(path))
        assert seen_by_another_process(path) == "locked"
    assert seen_by_another_process(path) == "free"


def test_a_removed_directory_is_not_taken_for_another_store(tmp_path: Path) -> None:
    """Filesystems give the number of a removed directory to the next one."""
    (tmp_path / "old").mkdir()
    with StoreLock.acquire(OsApi(), str(tmp_path / "old" / "lock")):
        shutil.rmtree(tmp_path / "old")
        for number in range(20):
            (tmp_path / f"new{number}").mkdir()
            StoreLock.acquire(OsApi(), str(tmp_path / f"new{number}" / "lock")).release()


def test_a_lock_without_a_holder_is_free(tmp_path: Path) -> None:
    StoreLock.acquire(OsApi(), str(tmp_path / "lock"))
    gc.collect()
    StoreLock.acquire(OsApi(), str(tmp_path / "lock")).release()
    assert seen_by_another_process(tmp_path / "lock") == "free"


def test_another_spelling_of_the_path_is_the_same_store(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    with StoreLock.acquire(OsApi(), str(tmp_path / "store" / "lock")):
        for other in (tmp_path / "link" / "lock", tmp_path / "link" / ".." / "store" / "lock"):
            with pytest.raises(StoreLocked):
                StoreLock.acquire(OsApi(), str(other))
        # A deleted lock file does not let a second writer of this process in either.
        (tmp_path / "store" / "lock").unlink()
        with pytest.raises(StoreLocked):
            StoreLock.acquire(OsApi(), str(tmp_path / "store" / "lock"))


def test_other_stores_are_free_and_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with (
        StoreLock.acquire(OsApi(), str(tmp_path / "a" / "lock")),
        StoreLock.acquire(OsApi(), str(tmp_path / "b" / "lock")),
    ):
        pass
    with pytest.raises((StoreNotFound, OSError)):
        StoreLock.acquire(OsApi(), str(tmp_path / "missing" / "lock"))


def test_only_one_of_many_threads_gets_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    outcomes: list[object] = []
    start = threading.Barrier(8)

    def attempt() -> None:
        start.wait()
        try:
            outcomes.append(StoreLock.acquire(OsApi(), path))
        except StoreLocked:
            outcomes.append(None)

    threads = [threading.Thread(target=attempt) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    held = [outcome for outcome in outcomes if isinstance(outcome, StoreLock)]
    assert len(outcomes) == 8
    assert len(held) == 1
    held[0].release()


def test_a_forked_child_neither_has_nor_drops_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = StoreLock.acquire(OsApi(), str(path))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lock.release()
            StoreLock.acquire(OsApi(), str(path))
        except StoreLocked:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen_by_another_process(path) == "locked"
    lock.release()
    assert seen_by_another_process(path) == "free"


def test_abort_file(tmp_path: Path) -> None:
    os_api, path = OsApi(), str(tmp_path / "abort")
    assert not abort_exists(os_api, path)
    create_abort(os_api, path, 4711)
    assert abort_exists(os_api, path)
    assert (tmp_path / "abort").read_bytes() == b"4711"
    remove_abort(os_api, path)
    remove_abort(os_api, path)
    assert [p.name for p in tmp_path.iterdir()] == []
