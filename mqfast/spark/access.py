"""How a store is reached: one interface, whether its files are here or a broker hands its messages out.

Room: the Spark adapter. ``LocalAccess`` reads files beside whoever writes them, as ``StoreReader`` does; reading
through a broker is to be another class of the same methods. It must never write into the log, the queues or the index,
and never return nothing where a store should be.
"""

from __future__ import annotations

import errno
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from mqfast.errors import ConfigError, CorruptFile, DataLoss, StoreNotFound
from mqfast.spark.plan import LogFile, Queue, QueueRange, ScanRange, Snapshot
from mqfast.spark.schema import Column, arrow_schema
from mqfast.store.reader import StoreReader

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.options import Options

__all__ = ["Access", "LocalAccess", "ReadSettings", "open_access"]


@dataclass(frozen=True)
class ReadSettings:
    """How records are read; everything but the place.

    ``queues``: only these queues, each from its start up to, not including, its end (along the log only); ``tags``:
    only messages with one of these; ``stored_from``, ``stored_before``: store times, ms; ``queued_only``: only what
    consumers can see, no half and no rolled back messages of transactions.
    """

    batch_bytes: int = 1 << 20
    verify_crc: str = "off"
    fail_on_data_loss: bool = True
    queues: Mapping[tuple[str, int], tuple[int, int]] | None = None
    tags: tuple[str, ...] | None = None
    stored_from: int | None = None
    stored_before: int | None = None
    queued_only: bool = True
    raw_properties: bool = False


class Access(Protocol):
    """A store that can be read from. Thread: one at a time."""

    def snapshot(self) -> Snapshot:
        """The store as it is now."""

    def check(self, store_id: str) -> None:
        """Refuse another store than the one that the snapshot was of.

        Raises: StoreNotFound.
        """

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record at or behind a physical offset begins, ``limit`` when none does before it."""

    def physical_span(self, ranges: Sequence[QueueRange]) -> tuple[int, int]:
        """The part of the log in which these messages lie; ``(0, 0)`` for none."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after a time; behind the last one when there is none."""

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Next queue offset of a consumer group, by queue."""

    def unit_sizes(self, piece: QueueRange) -> Sequence[int]:
        """Bytes of log that each message of a queue takes."""

    def scan(self, piece: ScanRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Records along the log, in batches of about ``batch_bytes``.

        Raises: CorruptFile with file and offset, DataLoss, StorageError.
        """

    def gather(self, piece: QueueRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Messages along a queue; otherwise as scan."""

    def close(self) -> None:
        """Let go of all files."""


def open_access(options: Options) -> Access:
    """What the options say where the store is.

    Raises: StoreNotFound, ConfigError.
    """
    if options.path is None:
        raise ConfigError("option path: expected the root directory of a store, found none")
    return LocalAccess(options.path)


_HEAD_BYTES: Final = 128


class LocalAccess:
    """The files of a store in a directory of this machine, or one that is mounted here.

    Raises: StoreNotFound, StorageError.
    """

    def __init__(self, path: str) -> None:
        self.root: Final = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
        self.reader: Final = StoreReader(self.root)

    def close(self) -> None:
        """Let go of all files."""
        self.reader.close()

    # --- planning ----------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """The store as it is now."""
        self.reader.refresh()
        taken_ms = time.time_ns() // 1_000_000
        queues = tuple(Queue(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in self.reader.queues())
        start, end = self.reader.readable_range()
        files = tuple(
            LogFile(path, first, size, min(max(end - first, 0), size)) for path, first, size in self.reader.log_files()
        )
        return Snapshot(self.root, self._store_id(), taken_ms, start, end, files, queues)

    def _store_id(self) -> str:
        """Start and checksum of the last file of the log that holds a record; one that stays longest is taken."""
        for path, start, _ in reversed(self.reader.log_files()):
            head = _head(path)
            if head.strip(b"\0"):
                return f"{start:020d}-{zlib.crc32(head):08x}"
        return "empty"

    def check(self, store_id: str) -> None:
        """Refuse another store than the one that the snapshot was of.

        Raises: StoreNotFound.
        """
        if store_id == "empty":
            return
        start = int(store_id[:20])
        for path, first, _ in self.reader.log_files():
            if first == start and f"{start:020d}-{zlib.crc32(_head(path)):08x}" == store_id:
                return
        raise StoreNotFound(
            errno.ENOENT,
            f"not the store that was planned to be read: no file of the log is {store_id}. Every executor needs the "
            "same store under the same path",
            self.root,
        )

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record at or behind a physical offset begins, ``limit`` when none does before it."""
        return self.reader.record_boundary(physical_offset, limit)

    def physical_span(self, ranges: Sequence[QueueRange]) -> tuple[int, int]:
        """The part of the log in which these messages lie; ``(0, 0)`` for none."""
        low, high = 1 << 63, 0
        for r in ranges:
            first, last = self.reader.unit_at(r.topic, r.queue_id, r.start), self.reader.unit_at(r.topic, r.queue_id, r.end - 1)  # fmt: skip
            low, high = min(low, first.physical_offset), max(high, last.physical_offset + last.size)
        return (low, high) if low < high else (0, 0)

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after a time; behind the last one when there is none."""
        return self.reader.offset_by_time(topic, queue_id, timestamp_ms)

    def group_offsets(self, group: str) -> dict[tuple[str, int], int]:
        """Next queue offset of a consumer group, by queue."""
        table = self.reader.consumer_offsets(group)
        return {(topic, queue_id): n for topic, queues in table.items() for queue_id, n in queues.items()}

    def unit_sizes(self, piece: QueueRange) -> Sequence[int]:
        """Bytes of log that each message of a queue takes."""
        return [self.reader.unit_at(piece.topic, piece.queue_id, i).size for i in range(piece.start, piece.end)]

    # --- reading -----------------------------------------------------------------------------------------------------

    def scan(self, piece: ScanRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Records along the log; see Access."""
        rows = []
        for m in self.reader.scan(piece.start, piece.end):
            bounds = (settings.queues or {}).get((m.topic, m.queue_id))
            if settings.queues is not None and (bounds is None or not bounds[0] <= m.record_queue_offset < bounds[1]):
                continue
            rows.append(_row(m, m.topic, m.queue_id, m.record_queue_offset))
        yield from _batches(rows, columns)

    def gather(self, piece: QueueRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Messages along a queue; see Access."""
        rows = []
        for i in range(piece.start, piece.end):
            for m in self.reader.get(piece.topic, piece.queue_id, i, 1):
                rows.append(_row(m, piece.topic, piece.queue_id, i))
        yield from _batches(rows, columns)


def _head(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return b""


def _row(m: Any, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    uniq = m.properties.get("UNIQ_KEY")
    return {
        "topic": topic, "queueId": queue_id, "queueOffset": offset, "physicalOffset": m.physical_offset,
        "msgSize": m.size, "bodySize": len(m.body), "bornTimestamp": m.born_timestamp * 1000,
        "storeTimestamp": m.store_timestamp * 1000, "bornHost": m.born_host, "storeHost": m.store_host,
        "flag": m.flag, "sysFlag": m.sys_flag, "reconsumeTimes": m.reconsume_times,
        "preparedTransactionOffset": m.prepared_transaction_offset, "bodyCrc": m.body_crc, "tags": m.tags,
        "keys": m.properties.get("KEYS"), "uniqKey": uniq, "msgId": m.message_id,
        "properties": list(m.properties.items()), "body": bytes(m.body),
    }  # fmt: skip


def _batches(rows: list[dict[str, Any]], columns: Sequence[Column]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    schema = arrow_schema(columns)
    yield pa.RecordBatch.from_pylist([{c.name: row[c.name] for c in columns} for row in rows], schema=schema)
