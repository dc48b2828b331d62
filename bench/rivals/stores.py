"""The rivals in Python, mqfast, and the floor: one class each, all with the same four methods.

``open(directory, durable)``: durable means that a put returns when the disk has the message; else it returns when the
message would survive a kill of the process (it is in the page cache), or in a pool buffer where the name says so.
``put(body)`` stores one message; ``put_many(bodies)``, where there is one, a batch in one transaction or call.
It must never give a rival slower settings than its documents advise for this durability.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import sqlite3
import subprocess
import sys
import tempfile
from array import array
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import harness  # noqa: E402

RECORD_BYTES = 106  # of a record beside its body, as the producer of this comparison makes them


class Rival:
    """What all share; ``has_durable`` and ``has_threads`` say what can be measured."""

    name = ""
    package = ""
    has_durable = True
    has_threads = False

    def version(self) -> str:
        """Of the package that is measured."""
        return importlib.metadata.version(self.package) if self.package else ""

    def open(self, directory: str, durable: bool) -> None:
        """Make a new store."""
        raise NotImplementedError

    def put(self, body: bytes) -> object:
        """Store one message."""
        raise NotImplementedError

    def put_many(self, bodies: list[bytes]) -> object:
        """Store a batch."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""

    def putter(self) -> Any:
        """What a thread calls for each put."""
        return self.put

    def meanwhile(self, size: int, rate: int) -> contextlib.AbstractContextManager[None]:
        """What goes on beside a paced turn."""
        return contextlib.nullcontext()


class Mqfast(Rival):
    """mqfast with file mappings, by a bound producer."""

    name = "mqfast"
    has_threads = True
    settings: dict[str, Any] = {}  # noqa: RUF012

    def version(self) -> str:
        import mqfast

        return mqfast.__version__

    def open(self, directory: str, durable: bool) -> None:
        import mqfast

        flush = "SYNC_FLUSH" if durable else "ASYNC_FLUSH"
        self.store = mqfast.open(directory, profile="broker", flush_disk_type=flush, **self.settings)
        self.put = self.store.producer("Bench", 0, "TagA").put  # type: ignore[method-assign]
        self.queues = 0

    def putter(self) -> Any:
        self.queues += 1
        return self.store.producer("Bench", self.queues % 4, "TagA").put

    def put_by_keyword(self) -> Any:
        """The call with everything said anew each time."""
        return self.store.put

    def put_many(self, bodies: list[bytes]) -> object:
        return self.store.put_many("Bench", bodies)

    def close(self) -> None:
        self.store.close()


class MqfastPool(Mqfast):
    """The same with the transient pool: a put that returned is in a private buffer until the next commit."""

    name = "mqfast, pool"
    settings = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}  # noqa: RUF012


class Sqlite(Rival):
    """sqlite3 in WAL mode, one transaction a put."""

    name = "sqlite3 WAL"

    def version(self) -> str:
        return sqlite3.sqlite_version

    def open(self, directory: str, durable: bool) -> None:
        os.makedirs(directory)
        self.db = sqlite3.connect(os.path.join(directory, "db"), isolation_level=None)
        self.db.execute("PRAGMA journal_mode=WAL")
        self.db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.db.execute("CREATE TABLE queue (id INTEGER PRIMARY KEY, body BLOB)")

    def put(self, body: bytes) -> object:
        return self.db.execute("INSERT INTO queue (body) VALUES (?)", (body,))

    def put_many(self, bodies: list[bytes]) -> object:
        self.db.execute("BEGIN")
        self.db.executemany("INSERT INTO queue (body) VALUES (?)", [(body,) for body in bodies])
        return self.db.execute("COMMIT")

    def close(self) -> None:
        self.db.close()


class Lmdb(Rival):
    """lmdb, one write transaction a put, keys in order."""

    name = package = "lmdb"

    def open(self, directory: str, durable: bool) -> None:
        import lmdb

        self.env = lmdb.open(directory, map_size=64 << 30, sync=durable, metasync=durable)
        self.next = 0

    def put(self, body: bytes) -> object:
        self.next += 1
        with self.env.begin(write=True) as change:
            return change.put(self.next.to_bytes(8, "big"), body, append=True)

    def put_many(self, bodies: list[bytes]) -> object:
        with self.env.begin(write=True) as change:
            for body in bodies:
                self.next += 1
                change.put(self.next.to_bytes(8, "big"), body, append=True)
        return None

    def close(self) -> None:
        self.env.close()


class Rocksdict(Rival):
    """rocksdict (RocksDB), raw bytes, write-ahead log on."""

    name = package = "rocksdict"

    def open(self, directory: str, durable: bool) -> None:
        import rocksdict

        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(True)
        self.db = rocksdict.Rdict(directory, options=options)
        self.write = rocksdict.WriteOptions()
        self.write.sync = durable
        self.batch = partial(rocksdict.WriteBatch, raw_mode=True)
        self.next = 0

    def put(self, body: bytes) -> object:
        self.next += 1
        return self.db.put(self.next.to_bytes(8, "big"), body, write_opt=self.write)

    def put_many(self, bodies: list[bytes]) -> object:
        batch = self.batch()
        for body in bodies:
            self.next += 1
            batch.put(self.next.to_bytes(8, "big"), body)
        return self.db.write(batch, write_opt=self.write)

    def close(self) -> None:
        self.db.close()


class PersistQueue(Rival):
    """persist-queue's SQLiteQueue, committed at each put."""

    name = package = "persist-queue"

    def open(self, directory: str, durable: bool) -> None:
        import persistqueue

        self.queue = persistqueue.SQLiteQueue(directory, multithreading=True, auto_commit=True)
        self.queue._putter.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.put = self.queue.put  # type: ignore[method-assign]

    def close(self) -> None:
        self.queue.close()


class Litequeue(Rival):
    """litequeue; it takes text, so the same bytes go in as ASCII."""

    name = package = "litequeue"

    def open(self, directory: str, durable: bool) -> None:
        import litequeue

        os.makedirs(directory)
        self.queue = litequeue.LiteQueue(os.path.join(directory, "db"))
        self.queue.conn.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")

    def put(self, body: bytes) -> object:
        return self.queue.put(body.decode("ascii"))

    def close(self) -> None:
        self.queue.close()


class Diskcache(Rival):
    """diskcache's Deque, nothing evicted."""

    name = package = "diskcache"

    def open(self, directory: str, durable: bool) -> None:
        import diskcache

        self.cache = diskcache.Cache(directory, eviction_policy="none", sqlite_synchronous=2 if durable else 1)
        self.put = diskcache.Deque.fromcache(self.cache).append  # type: ignore[method-assign]

    def close(self) -> None:
        self.cache.close()


class Bare(Rival):
    """write(2), and fdatasync(2) where durable: no queue, no index, no checksum."""

    name = "write + fdatasync"

    def open(self, directory: str, durable: bool) -> None:
        os.makedirs(directory)
        self.file = os.open(os.path.join(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        if durable:
            os.posix_fallocate(self.file, 0, 1)
            self.put = self._durable  # type: ignore[method-assign]
        else:
            self.put = partial(os.write, self.file)  # type: ignore[method-assign]

    def _durable(self, body: bytes) -> object:
        os.write(self.file, body)
        return os.fdatasync(self.file)

    def put_many(self, bodies: list[bytes]) -> object:
        return os.writev(self.file, bodies)

    def close(self) -> None:
        os.close(self.file)


def _compiled(source: str) -> ctypes.CDLL:
    """A C file of bench/, loaded; nothing of it stays behind."""
    with tempfile.TemporaryDirectory(prefix="mqfast-floor-") as place:
        return harness.compiled(source, Path(place))


class CFloor(Rival):
    """The floor in C: copy + CRC into a file mapping made writable before; durable: pwrite + fdatasync in C.

    Its figures are taken whole from bench/floor.c, not put by put.
    """

    name = "floor in C"

    def __init__(self) -> None:
        self.floor = harness.Floor(_compiled("floor.c"))

    def open(self, directory: str, durable: bool) -> None:
        os.makedirs(directory)
        self.place = Path(directory)
        self.durable = durable

    def whole(self, size: int, threads: int) -> float:
        """ns a message. Threads that sync share their syncs; more than one that only writes makes no sense."""
        if not self.durable:
            return self.floor.copy_ns(self.place, size)
        if threads == 1:
            return self.floor.sync_ns(self.place, size, 1000)
        return 1e9 / self.floor.group(self.place, size, threads, max(20, 6000 // threads))[0]


class CFloorNewPages(CFloor):
    """The same without a rest, into pages that a second thread makes ahead: what a log that grows has to have done."""

    name = "floor in C, new pages"
    has_durable = False

    def whole(self, size: int, threads: int) -> float:
        """ns a message."""
        return self.floor.sustained_ns(self.place, size)


class CLog(Rival):
    """A log in C at a pace: records copied into a mapped file whose pages one thread makes ready and another syncs
    every 500 ms. No queue, no lock, no interpreter: its tail is what the machine does to any log of that rate.
    """

    name = "log in C (floor)"
    has_durable = False

    def __init__(self) -> None:
        self.run = _compiled("paced_floor.c").paced_floor
        self.run.restype = ctypes.c_int64
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self.run.argtypes = [ctypes.c_char_p, ctypes.c_char_p, *[number] * 4, pointer, pointer, number]

    def open(self, directory: str, durable: bool) -> None:
        os.makedirs(directory)
        self.path = os.fsencode(os.path.join(directory, "log"))

    def paced(self, size: int, rate: int, due: array[int], call: array[int], phase_ns: int) -> None:
        """One record for every place of the arrays, which get ns from when it was due and from when it began."""
        body, period_ns = b"x" * size, 1_000_000_000 // rate
        places = (due.buffer_info()[0], call.buffer_info()[0])
        if self.run(self.path, body, size, RECORD_BYTES, period_ns, len(due), *places, phase_ns) < 0:
            raise OSError("the log in C could not be made, or its pages could not")


class HotMemory(Rival):
    """A copy of the body into memory in the cache: the noise under every paced latency of a rival in Python."""

    name = "hot memory (noise)"
    has_durable = False

    def open(self, directory: str, durable: bool) -> None:
        self.put = None  # type: ignore[assignment,method-assign]
        self.memory = memoryview(bytearray(1 << 20))

    def putter(self) -> Any:
        return self._copy

    def _copy(self, body: bytes) -> None:
        self.memory[: len(body)] = body


class HotMemoryBesideDisk(HotMemory):
    """The same while another process appends as many bytes to a file and syncs them every 500 ms: what any paced loop
    on this machine suffers from that much writing, whoever does it.
    """

    name = "hot memory beside a plain writer (noise)"

    def open(self, directory: str, durable: bool) -> None:
        super().open(directory, durable)
        os.makedirs(directory)
        self.directory = directory

    @contextlib.contextmanager
    def meanwhile(self, size: int, rate: int) -> Iterator[None]:
        script = str(Path(__file__).with_name("plain_writer.py"))
        command = [sys.executable, script, os.path.join(self.directory, "file"), str((size + 100) * rate)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as writer:  # ends with its input
            yield
            assert writer.stdin is not None
            writer.stdin.close()


RIVALS: dict[str, type[Rival]] = {
    rival.name: rival
    for rival in (
        Mqfast,
        MqfastPool,
        Sqlite,
        Lmdb,
        Rocksdict,
        PersistQueue,
        Litequeue,
        Diskcache,
        Bare,
        CFloor,
        CFloorNewPages,
        CLog,
        HotMemory,
        HotMemoryBesideDisk,
    )
}
