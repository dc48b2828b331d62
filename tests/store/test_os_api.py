"""OsApi: methods and errors; no other module calls the system for files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from mqfast.errors import DiskFull, MapFailed, MqfastError, StorageError, StoreLocked, StoreNotFound
from mqfast.store.base.mapped_file import MappedFile
from mqfast.store.base.os_api import REAL, Mutex, OsApi, body_crc, crc32_variant

ROOT = Path(__file__).resolve().parents[2]
# Who may call the system for files, and why.
ALLOWED = {
    "csrc/os_api.c": "the real table",
    "mqfast/store/base/os_api.pyx": "the table; names of listdir and makedirs go past the table, which has no call",
    "csrc/sigbus_guard.c": "puts a page under a mapping whose file was cut, in a signal handler, where no table is",
    "csrc/system_stat.h": "declarations only",
    "mqfast/grpc/connection.py": "a method of a channel, no file",
    "csrc/crc32_consts.py": "a generator that is run by hand",
    "mqfast/remoting/tls.py": "certificates and keys, which are no store files",
    "mqfast/util/atomic_file.py": "files of settings, accounts and rules of servers, which are no store files",
    "mqfast/__init__.py": "whether compiled modules are there, at import",
    "mqfast/pure/form.py": "which form of a module is there, at import",
    "mqfast/remoting/settings_change.py": "files of settings, which are no store files",
}
# Programs and clients: their own files (results, exports, settings, rules of access, offsets of broadcasting consumers,
# temporary directories) are no store files.
PROGRAMS = (
    "mqfast/client/",
    "mqfast/namesrv/",
    "mqfast/broker/",
    "mqfast/bench/",
    "mqfast/cli/",
    "mqfast/console/",
    "mqfast/demo.py",
    "mqfast/demo_network.py",
    "mqfast/settings/property_settings.py",
    "mqfast/sim/",
    "mqfast/testing/",
)
ADAPTER = "mqfast/spark/"
CALLS = re.compile(
    r"(?<![\w.])(?:open|fopen|creat|fsync|fdatasync|msync|mmap|munmap|ftruncate|fallocate|posix_fallocate|pwrite|pread|rename"
    r"|unlink|mkdir|rmdir|statvfs)\s*\("
    r"|(?<![\w.])_?os\.(?:open|stat|lstat|fstat|fsync|fdatasync|listdir|scandir|walk|rename|replace|remove|unlink|mkdir"
    r"|makedirs|rmdir|truncate|ftruncate|pread|pwrite|write|statvfs|path\.(?:exists|isfile|isdir|getsize|getmtime))"
    r"\s*\((?!os,)"  # "os" as first argument: the table of the door
    r"|\bmmap\.mmap|\bshutil\.|\.(?:read_bytes|write_bytes|read_text|write_text|iterdir|glob|rglob)\(|\bfcntl\."
)
ERRORS = [
    (errno.ENOSPC, DiskFull),
    (errno.EDQUOT, DiskFull),
    (errno.ENOENT, StoreNotFound),
    (errno.EMFILE, MapFailed),
    (errno.EIO, StorageError),
]


def _code(path: Path) -> str:
    """The file without comments, docstrings and text in quotes."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in (".c", ".h"):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
        return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    text = re.sub(r'"""(?:\\.|[^\\])*?"""', '""', text, flags=re.DOTALL)
    text = re.sub(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'", '""', text)
    return re.sub(r"#[^\n]*", "", text)


def _sources() -> list[Path]:
    return sorted(
        path
        for folder, endings in (("mqfast", (".py", ".pyx", ".pxd")), ("csrc", (".c", ".h", ".py")))
        for path in (ROOT / folder).rglob("*")
        if path.suffix in endings
    )


def test_only_os_api_calls_the_system_for_files() -> None:
    found = []
    for path in _sources():
        name = path.relative_to(ROOT).as_posix()
        if name in ALLOWED or name.startswith((*PROGRAMS, ADAPTER)):
            continue
        for number, line in enumerate(_code(path).splitlines(), 1):
            call = CALLS.search(line)
            if call and not re.match(r"\s*(?:cp?def|def|int|int64_t)\b", line):
                found.append(f"{name}: {call.group()} in {line.strip()[:80]} ({number})")
    assert not found, "\n".join(found)


def test_the_search_would_find_a_call() -> None:
    for line in ("with open(path) as f:", "os.stat(path)", "rc = fsync(fd);", "mmap.mmap(fd, 0)", "path.read_bytes()"):
        assert CALLS.search(line), line
    for line in (
        "os.open(os, c, flags)",
        "os.fsync(os, fd)",
        "door.rename(a, b)",
        "self.mmap(x)",
        "mqfast.open(path)",
        "os.fspath(path)",
    ):
        assert not CALLS.search(line), line
    assert all((ROOT / name).exists() for name in ALLOWED)


def test_files(tmp_path: Path) -> None:
    os_api = OsApi()
    path = tmp_path / "file"
    os_api.write_file(path, b"twelve bytes")
    assert os_api.read_file(path) == b"twelve bytes" == path.read_bytes()
    assert os_api.file_size(path) == 12
    os_api.overwrite(path, b"TWO", 4)
    assert path.read_bytes() == b"twelTWOytes"[:4] + b"TWO" + b"bytes"
    os_api.overwrite(tmp_path / "fresh", b"x", 3)
    assert (tmp_path / "fresh").read_bytes() == b"\0\0\0x"
    os_api.write_file(path, b"short")
    assert path.read_bytes() == b"short"
    os_api.replace_file(path, b"replaced")
    assert path.read_bytes() == b"replaced"
    assert not (tmp_path / "file.tmp").exists()
    assert abs(os_api.mtime_ms(path) - path.stat().st_mtime_ns // 1_000_000) <= 1
    assert os_api.file_id(path) == (path.stat().st_dev, path.stat().st_ino)
    os_api.rename(path, tmp_path / "other")
    assert not os_api.exists(path)
    assert os_api.exists(tmp_path / "other")
    os_api.unlink(tmp_path / "other")
    os_api.unlink(tmp_path / "other", missing_ok=True)
    with pytest.raises(StoreNotFound):
        os_api.unlink(tmp_path / "other")


def test_directories(tmp_path: Path) -> None:
    os_api = OsApi()
    os_api.makedirs(tmp_path / "a" / "b" / "c")
    os_api.makedirs(tmp_path / "a" / "b" / "c")
    assert os_api.is_dir(tmp_path / "a" / "b")
    assert not os_api.is_dir(tmp_path / "none")
    (tmp_path / "a" / "z").touch()
    assert os_api.listdir(tmp_path / "a") == ["b", "z"]
    assert os_api.listdir(tmp_path / "none") == []
    assert not os_api.exists(tmp_path / "a" / "z" / "below")
    with pytest.raises(StorageError):
        os_api.listdir(tmp_path / "a" / "z")
    os_api.rmdir(tmp_path / "a" / "b" / "c")
    with pytest.raises(StorageError):
        os_api.rmdir(tmp_path / "a")
    os_api.fsync_dir(tmp_path)
    with pytest.raises(StoreNotFound):
        os_api.fsync_dir(tmp_path / "none")
    total, available = os_api.statvfs(tmp_path)
    assert 0 < available <= total


def test_reading_refuses_what_is_no_file_or_too_long(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(bytes(100))
    with pytest.raises(StorageError) as raised:
        REAL.read_file(tmp_path / "long", max_bytes=99)
    assert raised.value.errno == errno.EFBIG
    with pytest.raises(StorageError) as raised:
        REAL.read_file(tmp_path)
    assert raised.value.errno == errno.EISDIR
    with pytest.raises(StoreNotFound) as missing:
        REAL.read_file(tmp_path / "none")
    assert os.fspath(missing.value.filename) == str(tmp_path / "none")


def test_the_lock_keeps_other_processes_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    held = REAL.lock_byte(path)
    assert path.read_bytes() == b"lock"
    with pytest.raises(StoreLocked):  # of this process as well
        REAL.lock_byte(path)
    ask = (
        "import sys\n"
        "from mqfast.errors import StoreLocked\n"
        "from mqfast.store.base.os_api import REAL\n"
        "try:\n    REAL.lock_byte(sys.argv[1]); print('free')\n"
        "except StoreLocked:\n    print('held')\n"
    )
    for expected, act in (("held", None), ("free", held.release)):
        if act is not None:
            act()
            act()
        done = subprocess.run(
            [sys.executable, "-c", ask, str(path)], capture_output=True, text=True, check=True, cwd=ROOT
        )
        assert done.stdout.strip() == expected
    assert issubclass(StoreLocked, BlockingIOError)


def test_the_clock_can_be_fixed() -> None:
    os_api = OsApi()
    assert abs(os_api.now_ms() - REAL.now_ms()) < 60_000
    os_api.fix_clock(1234)
    assert [os_api.now_ms(), os_api.now_ms()] == [1234, 1234]
    assert REAL.now_ms() > 1234
    os_api.fix_clock(None)
    assert os_api.now_ms() > 1_600_000_000_000
    first = os_api.monotonic_ns()
    assert os_api.monotonic_ns() >= first


@pytest.mark.parametrize(("number", "kind"), ERRORS)
def test_every_errno_becomes_its_exception(tmp_path: Path, number: int, kind: type[StorageError]) -> None:
    """The first function of a door's table is open: put one there that fails."""
    os_api = OsApi()
    signature = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
    failing = signature(lambda *_: -number)
    ctypes.c_void_p.from_address(os_api.table_address).value = ctypes.cast(failing, ctypes.c_void_p).value
    with pytest.raises(kind) as raised:
        os_api.read_file(tmp_path / "file")
    assert type(raised.value) is kind
    assert raised.value.errno == number
    assert str(tmp_path / "file") in str(raised.value)
    assert os.strerror(number) in str(raised.value)
    (tmp_path / "file").write_bytes(b"other doors are not changed")
    assert OsApi().read_file(tmp_path / "file") == b"other doors are not changed"


# --- calls that fail, one at a time -----------------------------------------------------------------------------------

# Places in struct mq_os (csrc/os_api.h), and how each call is made.
PATH_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)
FD_CALL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)
WRITE_CALL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64
)
PLACES: dict[str, tuple[int, Any]] = {
    "pwrite": (14, WRITE_CALL),
    "fdatasync": (15, FD_CALL),
    "fsync": (16, FD_CALL),
    "mkdir": (19, PATH_CALL),
    "sync_directory": (21, PATH_CALL),
    "sync_filesystem": (26, FD_CALL),
}


def failing(call: str, number: int) -> tuple[OsApi, object]:
    """A door one of whose calls always fails; the second object must be kept as long."""
    os_api = OsApi()
    place, signature = PLACES[call]
    function = signature(lambda *_: -number)
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    table[place] = ctypes.cast(function, ctypes.c_void_p).value
    return os_api, function


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_file_that_cannot_be_written_or_synced(tmp_path: Path, call: str) -> None:
    os_api, kept = failing(call, errno.EIO)
    path = tmp_path / "file"
    for write in (os_api.write_file, os_api.overwrite, os_api.replace_file):
        with pytest.raises(StorageError, match="write failed" if call == "pwrite" else "fsync failed"):
            write(path, b"data")
    assert kept is not None


def test_latencies_of_a_disk(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    took = OsApi().sync_latencies_ns(probe, 3)
    assert len(took) == 3
    assert min(took) > 0
    assert not probe.exists()
    for call in ("pwrite", "fdatasync"):
        os_api, kept = failing(call, errno.EIO)
        with pytest.raises(StorageError, match="fdatasync failed"):
            os_api.sync_latencies_ns(probe, 3)
        assert not probe.exists(), "the probe stays"
        assert kept is not None
    with pytest.raises(StoreNotFound):
        OsApi().sync_latencies_ns(tmp_path / "none" / "probe")


def test_makedirs_with_a_concurrent_mkdir_or_a_failed_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OsApi().makedirs("relative")
    OsApi().makedirs("/")
    OsApi().replace_file("plain", b"data")
    assert Path("plain").read_bytes() == b"data"
    os_api, kept = failing("mkdir", errno.EEXIST)  # made by another process between the look and the call
    os_api.makedirs(tmp_path / "theirs")
    os_api, kept = failing("mkdir", errno.EACCES)
    with pytest.raises(StorageError, match="mkdir failed"):
        os_api.makedirs(tmp_path / "mine")
    os_api, kept = failing("sync_directory", errno.EIO)
    os_api.makedirs(tmp_path / "later", False)
    assert (tmp_path / "later").is_dir()
    with pytest.raises(StorageError, match="fsync of directory"):
        os_api.makedirs(tmp_path / "now")
    assert not (tmp_path / "now").exists(), "the next attempt would take it for durable"
    assert kept is not None


def test_a_filesystem_as_a_whole(tmp_path: Path) -> None:
    place = OsApi().open_directory(tmp_path)
    assert place.device == tmp_path.stat().st_dev
    assert place.sync_filesystem() in (True, False)  # by the kernel
    place.close()
    place.close()
    for number, expected in ((errno.ENOSYS, False), (0, True)):
        os_api, kept = failing("sync_filesystem", number)
        assert os_api.open_directory(tmp_path).sync_filesystem() is expected
    os_api, kept = failing("sync_filesystem", errno.EIO)
    with pytest.raises(StorageError, match="sync of filesystem"):
        os_api.open_directory(tmp_path).sync_filesystem()
    assert kept is not None


def test_files_that_have_no_length(tmp_path: Path) -> None:
    """The kernel's own tables say 0 bytes and have some."""
    assert b"MemTotal" in REAL.read_file("/proc/meminfo") if sys.platform == "linux" else True
    assert len(REAL.read_file("/proc/self/maps", max_bytes=10)) == 10 if sys.platform == "linux" else True
    (tmp_path / "empty").touch()
    assert REAL.read_file(tmp_path / "empty") == b""


def test_checksums() -> None:
    assert body_crc(b"") == 0
    assert body_crc(b"123456789") == body_crc(memoryview(b"123456789")) == 0xCBF43926 & 0x7FFFFFFF
    assert crc32_variant() in ("vpclmul512", "vpclmul256", "pclmul", "arm_pmull", "arm_crc", "portable")


def test_a_nesting_mutex_can_be_reacquired_by_its_owner() -> None:
    mutex = Mutex(nests=True)
    entered = threading.Event()

    def enter() -> None:
        with mutex:
            entered.set()

    thread = threading.Thread(target=enter)
    with mutex:
        with mutex:
            thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


@pytest.mark.skipif(sys.platform != "linux", reason="the order of the table is known, the signal only here")
@pytest.mark.parametrize(
    ("slot", "work"),
    [
        (3, lambda os_api, path: MappedFile.create(os_api, f"{path}3", 0, 4096)),
        (6, lambda os_api, path: MappedFile.create(os_api, f"{path}3", 0, 4096)),
        (8, lambda os_api, path: MappedFile.create(os_api, f"{path}3", 0, 4096).expect_appends(False)),
        (5, lambda os_api, path: os_api.exists(path)),
        (5, lambda os_api, path: os_api.file_size(path)),
        (17, lambda os_api, path: os_api.rename(path, f"{path}2")),
        (18, lambda os_api, path: MappedFile.create(os_api, f"{path}3", 0, 4096).destroy()),
        (19, lambda os_api, path: os_api.makedirs(path)),
        (20, lambda os_api, path: os_api.rmdir(path)),
        (21, lambda os_api, path: os_api.fsync_dir(path)),
    ],
)
def test_a_slow_file_system_call_releases_the_gil(tmp_path: Path, slot: int, work: Any) -> None:
    """A rename that waited for the journal kept the GIL: here it waits for a signal, at most 8 seconds."""
    os_api = OsApi()
    table = (ctypes.c_void_p * 27).from_address(os_api.table_address)
    real = table[slot]
    inside = threading.Event()

    def wait() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        inside.set()
        with contextlib.suppress(OSError, MqfastError):
            work(os_api, str(tmp_path / "name"))

    old = signal.signal(signal.SIGALRM, lambda *_: None)
    table[slot] = ctypes.cast(ctypes.CDLL(None).pause, ctypes.c_void_p).value
    thread = threading.Thread(target=wait)
    began = time.monotonic()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGALRM})  # it is for the other thread
    try:
        signal.setitimer(signal.ITIMER_REAL, 60, 0.2)
        thread.start()
        inside.wait()
        for _ in range(50):
            time.sleep(0.001)  # each time somebody else may take the GIL, and must give it back
        took = time.monotonic() - began
    finally:
        table[slot] = real
        while thread.is_alive():
            signal.pthread_kill(thread.ident, signal.SIGALRM)
            thread.join(0.05)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGALRM})
        signal.signal(signal.SIGALRM, old)
    assert took < 50
