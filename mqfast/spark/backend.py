"""The interface of a store: ``Backend`` for queues and messages, ``LogAccess`` for the log as well.

``Backend`` has queues with bounds, messages along a queue, offsets by time and by group, and views. ``LogAccess`` also
reads the log by physical offset; only files have a log (``local/``), brokers do not (``remote/``). A cluster is several
backends, one for each broker name. A queue is identified by store name, topic and queue id. A backend raises an error
for missing messages and never returns fewer rows without one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from mqfast.errors import ConfigError, StoreNotFound
from mqfast.spark.offsets import Place
from mqfast.spark.plan import OffsetRange, ScanRange, Snapshot, Split
from mqfast.spark.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.local.leases import TaskLease
    from mqfast.spark.options import Options

__all__ = ["Backend", "LeftOut", "LogAccess", "ReadSettings", "StoreReplaced", "group_row", "log_of"]


@dataclass(frozen=True)
class ReadSettings:
    """The settings of a read, except the store.

    ``queues``: read only these queues, each from its start to its end, exclusive (along the log only; ANY_QUEUE for all
    queues of a topic). ``hidden``: without ``queues``, topics to leave out; ``x*`` is a prefix. ``tags``: only messages
    with one of these tags. ``sql``: only messages that match the expression on the broker. ``stored_from``,
    ``stored_before``: store times, ms. ``queued_only``: only messages that consumers can see, without half messages and
    rolled back ones. ``decompress``, ``max_body_bytes``: see ``bodies.py``.
    """

    batch_bytes: int = 1 << 20
    verify_crc: str = "off"
    fail_on_data_loss: bool = True
    queues: Mapping[tuple[str, int], tuple[int, int]] | None = None
    hidden: tuple[str, ...] = ()
    tags: tuple[str, ...] | None = None
    sql: str | None = None
    stored_from: int | None = None
    stored_before: int | None = None
    queued_only: bool = True
    decompress: bool = False
    max_body_bytes: int = 32 << 20


@dataclass
class LeftOut:
    """The records that a read along the log left out: physical offsets with reasons, and the number of bytes.

    Bodies with a wrong checksum are not included: ``verify_crc="mark"`` returns those rows.
    """

    places: list[tuple[int, str]] = field(default_factory=list)
    bytes: int = 0


class StoreReplaced(StoreNotFound):
    """The directory holds a store, but not the planned one."""


class Backend(Protocol):
    """The messages of one broker. Thread: one at a time."""

    @property
    def log(self) -> LogAccess | None:
        """Return the same backend with its log; None if messages are reachable through queues only."""

    # --- state ---

    def snapshot(self) -> Snapshot:
        """Return the present queues. Raises: StoreNotFound, StorageError, ClientError."""

    def refresh(self, *, wait: bool = True) -> Snapshot:
        """Return the present queues for a stream, which polls: the previous object if nothing has changed.

        Args: wait: retry while the broker does not answer; False: raise at once (see ``is_unavailable``).
        """

    def check(self, store_id: str) -> None:
        """Refuse a store other than the one of the snapshot.

        Raises: StoreNotFound.
        """

    def message_mark(self, topic: str, queue_id: int, offset: int) -> tuple[int, int | None] | None:
        """Return the physical offset of a message and the checksum of its record's head, which identify the queue's
        content.

        Returns: None if the queue has no such message; no checksum if the record was removed.
        """

    def is_filler(self, topic: str, queue_id: int, offset: int) -> bool:
        """Return whether a queue that began above 0 never had a message at this offset."""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the first message stored at or after a time; the next offset if there is none."""

    def group_offsets(self, group: str, queues: Iterable[Place]) -> dict[Place, int]:
        """Return the next queue offset of a consumer group, by queue; queues without an offset are left out."""

    def unit_sizes(self, piece: OffsetRange) -> Sequence[int]:
        """Return the bytes of each message of a queue, or an estimate."""

    # --- messages ---

    def gather(self, piece: OffsetRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Yield messages along a queue, in batches of about ``batch_bytes``.

        Raises: CorruptFile with offset and reason, DataLoss, StorageError, ClientError.
        """

    # --- views ---

    def view_pieces(self, snapshot: Snapshot, options: Options) -> list[Split]:
        """Divide a view other than messages among tasks.

        Raises: ConfigError, also for a view that this backend does not have.
        """

    def view_rows(self, piece: Split, columns: Sequence[Column], options: Options) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one split of a view other than messages."""

    # --- leases and offsets ---

    def lease(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """Request a lease on the planned messages from the store; None if the store has no leases."""

    def keep(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """Request a lease for a stream, valid until the next call or ``close``."""

    def commit_group(self, group: str, offset: Mapping[str, Any]) -> bool:
        """Commit an offset of a stream as the offsets of a consumer group. Offsets never decrease; a failure never
        fails a stream.

        Returns: whether the offsets were written.
        """

    def release_files(self) -> None:
        """Close open files and idle connections until the next use; cached data stays."""

    def close(self) -> None:
        """Close all files and connections."""


class LogAccess(Backend, Protocol):
    """A backend with a log. Thread: one at a time."""

    def mark(self, physical_offset: int) -> int | None:
        """Return a checksum of the head of the record at a physical offset; None if no record was written there."""

    def file_start(self, physical_offset: int) -> int:
        """Return the start of the log file that holds a physical offset, -1 if none does."""

    def behind(self, physical_offset: int) -> int:
        """Return the end of the record at a physical offset."""

    def unit_place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Return the physical offset of a message that the queue has, even if retention removed the record."""

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Return the start of the first record at or after a physical offset, ``limit`` if there is none before
        ``limit``.
        """

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """Return the record starts for several physical offsets, in ascending order."""

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        """Return the range of the log that holds these messages; ``(0, 0)`` for none."""

    def scan(
        self, piece: ScanRange, columns: Sequence[Column], settings: ReadSettings, left_out: LeftOut | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Yield records along the log, otherwise as ``gather``; ``left_out`` is filled at the end."""

    def log_path(self, physical_offset: int) -> str:
        """Return the log file that holds a physical offset; the expected path if there is no such file."""


def log_of(access: Backend) -> LogAccess:
    """Return the backend with its log. Raises: ConfigError for a backend without a log."""
    if access.log is None:
        raise ConfigError("option path: expected a directory: brokers hand out messages by queue, not along their log")
    return access.log


def group_row(
    group: str, topic: str, queue_id: int, offset: int, bounds: tuple[int, int] | None
) -> dict[str, str | int | None]:
    """Return a row of the view ``groups``. Args: bounds: first and next queue offset; None for a missing queue."""
    return {
        "group": group, "topic": topic, "queueId": queue_id, "committedOffset": offset,
        "minOffset": bounds[0] if bounds else None, "maxOffset": bounds[1] if bounds else None,
        "lag": max(bounds[1] - max(offset, bounds[0]), 0) if bounds else None,
    }  # fmt: skip
