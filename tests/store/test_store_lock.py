"""The writer's lock of a store: no file access of the process releases it, every path leads to it, and the error of a
refused open names the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast.errors import StoreLocked
from mqfast.store.base.lock_holder import find_holder
from mqfast.store.base.os_api import OsApi

SMALL = {"mapped_file_bytes_commit_log": 64 << 10, "message_index_enable": False}
OPEN = """
import sys, mqfast
try:
    store = mqfast.open(sys.argv[1], **eval(sys.argv[2]))
except mqfast.errors.StoreLocked as error:
    print("locked", error.pid, error)
else:
    print("free")
"""
HOLD = OPEN + "sys.stdout.flush(); sys.stdin.readline()\n"
FORK = """
import mqfast, os, sys
store = mqfast.open(sys.argv[1], mapped_file_bytes_commit_log=64 << 10, message_index_enable=False)
child = os.fork()
if child == 0:
    sys.stdin.readline()
    os._exit(0)
print(child, flush=True)
sys.stdin.readline()
"""
JAVA = """
import java.nio.channels.*;
import java.nio.file.*;
public class TryLock {
    public static void main(String[] args) throws Exception {
        FileChannel file = FileChannel.open(Path.of(args[0]), StandardOpenOption.WRITE, StandardOpenOption.CREATE);
        FileLock lock = file.tryLock(0, 1, false);
        System.out.println(lock == null ? "locked" : "free");
        System.out.flush();
        System.in.read();
    }
}
"""


def other_process(path: Path, **settings: object) -> str:
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), repr({**SMALL, **settings})],
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout.strip()


@pytest.fixture
def java(tmp_path: Path) -> list[str]:
    found = shutil.which("java")
    if found is None:
        pytest.skip("needs java")
    source = tmp_path / "TryLock.java"
    source.write_text(JAVA)
    command = [found, str(source)]
    tried = subprocess.run([*command, str(tmp_path / "try")], input="\n", capture_output=True, text=True, timeout=120)
    if tried.returncode != 0:
        pytest.skip(f"needs a Java that runs a source file: {tried.stderr[-200:]}")
    assert tried.stdout.strip() == "free"
    return command


def test_files_of_the_store_may_be_read_and_copied_by_the_process_itself(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        (tmp_path / "store" / "lock").read_bytes()
        with (tmp_path / "store" / "lock").open("r+b"):
            pass
        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        assert other_process(tmp_path / "store").startswith("locked")
        assert other_process(tmp_path / "copy") == "free"
    assert other_process(tmp_path / "store") == "free"


def test_every_path_to_the_store_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path)
    monkeypatch.chdir(tmp_path)
    with mqfast.open("store", **SMALL):
        monkeypatch.chdir(tmp_path / "elsewhere")
        for path in (
            "../store",
            tmp_path / "link",
            "link/store",
            "/proc/self/cwd/../store",
            os.fsencode(tmp_path / "store"),
        ):
            with pytest.raises(StoreLocked, match="already open in this process"):
                mqfast.open(path, **SMALL)
        assert other_process(tmp_path / "link").startswith("locked")
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "elsewhere" / "away").symlink_to(tmp_path / "far" / "away")
    with mqfast.open("away/../beside", **SMALL):  # as the system resolves it: beside the target of the link
        assert (tmp_path / "far" / "beside" / "lock").exists()


def test_a_removed_lock_file_lets_no_second_writer_in(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        (tmp_path / "store" / "lock").unlink()
        with pytest.raises(StoreLocked):
            mqfast.open(tmp_path / "store", **SMALL)
        assert other_process(tmp_path / "store").startswith("locked")
        store.put("T", b"y")
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        assert store.get("T", 0, 0).bodies() == [b"x", b"y"]


def test_two_roots_cannot_share_a_log(tmp_path: Path) -> None:
    logs = str(tmp_path / "logs")
    with mqfast.open(tmp_path / "a", store_path_commit_log=logs, **SMALL):
        with pytest.raises(StoreLocked, match="same directory for its log"):
            mqfast.open(tmp_path / "b", store_path_commit_log=logs, **SMALL)
        assert other_process(tmp_path / "b", store_path_commit_log=logs).startswith("locked")
    with mqfast.open(tmp_path / "b", store_path_commit_log=logs, **SMALL):
        pass


def test_verify_and_repair_see_the_writer_by_every_path(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("store")
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        for path in (tmp_path / "store", tmp_path / "link"):
            with pytest.raises(StoreLocked):
                mqfast.repair(path, dry_run=True)


@contextlib.contextmanager
def holding(path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has a store open for writing."""
    command = [sys.executable, "-c", HOLD, str(path), repr(SMALL)]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "free\n"
        yield holder
    finally:
        holder.communicate("\n", timeout=300)


class OneProcess:
    """The system with no other process than this one to be seen."""

    def __init__(self) -> None:
        self._door = OsApi()

    def listdir(self, path: str) -> list[str]:
        return [str(os.getpid())] if path == "/proc" else self._door.listdir(path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._door, name)


@pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="needs Linux's /proc")
def test_a_stale_process_id_in_abort_is_not_named_as_holder(tmp_path: Path) -> None:
    with holding(tmp_path / "store"):
        lock, abort = str(tmp_path / "store" / "lock"), tmp_path / "store" / "abort"
        abort.write_text(str(os.getpid()))
        assert find_holder(OneProcess(), lock, str(abort)) is None
        abort.write_text("999999999")  # of another machine, or of nobody
        found = find_holder(OneProcess(), lock, str(abort))
        assert found is not None
        assert found.pid == 999999999


@pytest.mark.skipif(not Path("/proc/self/fdinfo").exists(), reason="needs Linux's /proc")
def test_store_locked_names_the_holder_and_the_remedy(tmp_path: Path) -> None:
    with holding(tmp_path / "store") as holder:
        # Neither a process id that an older writer left nor a missing one leads astray.
        for abort in (str(holder.pid), "1", None):
            if abort is None:
                (tmp_path / "store" / "abort").unlink(missing_ok=True)
            else:
                (tmp_path / "store" / "abort").write_text(abort)
            with pytest.raises(StoreLocked) as caught:
                mqfast.open(tmp_path / "store", **SMALL)
            assert caught.value.pid == holder.pid
            assert "import sys, mqfast" in caught.value.command
            assert f"process {holder.pid}" in str(caught.value)
            assert "StoreReader" in str(caught.value)
            assert "one writer" in str(caught.value)


def test_the_lock_ends_with_the_opening_process_despite_a_living_child(tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FORK, str(tmp_path / "store")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    child = int(parent.stdout.readline())
    try:
        assert other_process(tmp_path / "store").startswith("locked")
        parent.kill()
        parent.wait(60)
        os.kill(child, 0)  # it lives
        assert other_process(tmp_path / "store") == "free"
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdin.close()
        parent.stdout.close()


def test_a_child_of_c_code_does_not_keep_the_lock_of_a_closed_store(tmp_path: Path) -> None:
    """It runs no fork handler of Python; the parent unlocks before it closes."""
    code = (
        "import ctypes, mqfast, os, signal, sys\n"
        "store = mqfast.open(sys.argv[1], mapped_file_bytes_commit_log=64 << 10, message_index_enable=False)\n"
        "libc = ctypes.PyDLL(None)\n"
        "child = libc.fork()\n"
        "if child == 0:\n"
        "    libc.pause()\n"
        "store.close()\n"
        "mqfast.open(sys.argv[1], mapped_file_bytes_commit_log=64 << 10, message_index_enable=False).close()\n"
        "os.kill(child, signal.SIGKILL)\n"
        "os.waitpid(child, 0)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], check=True, timeout=300)


def test_a_java_broker_is_kept_out_and_keeps_us_out(tmp_path: Path, java: list[str]) -> None:
    lock = tmp_path / "store" / "lock"
    with mqfast.open(tmp_path / "store", **SMALL) as store:
        store.put("T", b"x")
        lock.read_bytes()
        tried = subprocess.run([*java, str(lock)], input="\n", capture_output=True, text=True, timeout=120)
        assert tried.stdout.strip() == "locked"
    broker = subprocess.Popen([*java, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert broker.stdout is not None
        assert broker.stdout.readline().strip() == "free"
        with pytest.raises(StoreLocked) as caught:
            mqfast.open(tmp_path / "store", **SMALL)
        if Path("/proc/locks").exists():
            assert caught.value.pid == broker.pid
            assert "TryLock" in caught.value.command
    finally:
        broker.communicate("\n", timeout=300)
    mqfast.open(tmp_path / "store", **SMALL).close()
