"""A master and a slave without brokers: stores with small files, over real sockets.

Room: tests/ha.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from waiting import until_async as until

import mqfast
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.master import HaMaster
from mqfast.ha.settings import HaSettings
from mqfast.ha.slave import HaSlave
from mqfast.store.log.acks import AckTable

__all__ = [
    "FILE",
    "KEEPS_TWO_FILES",
    "QUICK",
    "SIZES",
    "Cutter",
    "as_slave",
    "fill",
    "following",
    "log_of",
    "put_up_to",
    "serving",
    "trimmed",
    "until",
]

FILE = 64 * 1024
SIZES: dict[str, Any] = {
    "mapped_file_bytes_commit_log": FILE,
    "mapped_file_bytes_consume_queue": 2000,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
QUICK = HaSettings(heartbeat_s=0.2, housekeeping_s=5.0, reconnect_s=0.05)


def fill(store: mqfast.MessageStore, count: int, seed: int = 0, topic: str = "T") -> None:
    rng = random.Random(seed)
    for number in range(count):
        store.put(topic, rng.randbytes(rng.randrange(1, 2000)), queue_id=number % 4, keys=f"k{number}", tags="a")


def log_of(store: mqfast.MessageStore) -> bytes:
    raw = store.engine.raw
    return b"".join(bytes(view) for view in raw.read(max(raw.min_offset, 0), 1 << 40, unflushed=True))


@contextlib.asynccontextmanager
async def serving(
    store: mqfast.MessageStore, needed: int = 0, epochs: EpochFile | None = None, **changes: Any
) -> AsyncIterator[HaMaster]:
    settings = HaSettings(**{**{f: getattr(QUICK, f) for f in QUICK.__slots__}, **changes})
    raw = store.engine.raw
    master = HaMaster(raw, AckTable(needed), settings, file_bytes=raw.file_bytes, epochs=epochs)
    await master.start("127.0.0.1", 0)
    try:
        yield master
    finally:
        await master.stop()


class Cutter:
    """A port between a slave and its master that ends each connection after some bytes of the master.

    Args: cuts: how many bytes each connection passes; later ones pass everything.
    Attributes: port; left: cuts that are still to come.
    """

    def __init__(self, master: tuple[str, int], cuts: Iterable[int]) -> None:
        self._master = master
        self._cuts = list(cuts)
        self._next = 0
        self.port = 0

    @property
    def left(self) -> int:
        return len(self._cuts) - self._next

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[Cutter]:
        server = await asyncio.start_server(self._pass_on, host, port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        at = self._next
        bytes_left = self._cuts[at] if at < len(self._cuts) else 1 << 60
        to_master, from_slave = await asyncio.open_connection(*self._master)

        async def up() -> None:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65536):
                    from_slave.write(data)
            from_slave.close()  # the slave is gone

        going_up = asyncio.ensure_future(up())
        with contextlib.suppress(ConnectionError):
            while bytes_left > 0 and (data := await to_master.read(min(bytes_left, 65536))):
                bytes_left -= len(data)
                writer.write(data)
                await writer.drain()
        if bytes_left == 0 and at == self._next:
            self._next += 1
        going_up.cancel()
        from_slave.close()
        writer.close()


@contextlib.contextmanager
def following(
    store: mqfast.MessageStore,
    port: int,
    bounds: Callable[[], tuple[int, int] | None] | None = None,
    epochs: EpochFile | None = None,
    asks: bool = False,
    **changes: Any,
) -> Iterator[HaSlave]:
    settings = HaSettings(**{**{f: getattr(QUICK, f) for f in QUICK.__slots__}, **changes})
    slave = HaSlave(
        store.engine.raw,
        settings,
        lambda: ("127.0.0.1", port),
        bounds=bounds,
        epochs=epochs,
        tells_history=lambda: asks,
    )
    slave.start()
    try:
        yield slave
    finally:
        slave.stop()


def as_slave(path: Path) -> mqfast.MessageStore:
    return mqfast.open(path, broker_role="SLAVE", **SIZES)


KEEPS_TWO_FILES: dict[str, Any] = {
    "retention_bytes": 2 * FILE,
    "delete_files_interval_ms_commit_log": 0,
    "clean_resource_interval_ms": 600_000,
}


def put_up_to(store: mqfast.MessageStore, end: int) -> None:
    """Messages until the log ends at an offset or a little behind it."""
    while store.engine.raw.end < end:
        store.put("T", bytes(500), queue_id=0)


def trimmed(store: mqfast.MessageStore, first: int) -> None:
    """Messages, and files deleted, until the log begins at an offset. The store has ``KEEPS_TWO_FILES``."""
    raw = store.engine.raw
    while raw.min_offset < first:
        put_up_to(store, raw.end + FILE // 4)
        end = time.monotonic() + 30
        while raw.end - raw.min_offset > 2 * FILE:  # the flush service may hold a file for a moment
            assert time.monotonic() < end
            store.flush()
            store.log.reap()
            store.retention.run_once(store.os_api.now_ms())
    assert raw.min_offset == first
