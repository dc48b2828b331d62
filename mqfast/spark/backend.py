"""How the messages of one broker are reached: one protocol, whether its files are here or it hands them out itself.

Room: the Spark adapter. ``Backend`` is what every place of messages has: queues with bounds, messages along a queue,
offsets by time and by group, views. ``LogAccess`` has the log as well, by physical offset; only files do
(``local/``), brokers do not (``remote/``). A cluster is several accesses, one for each broker's name: a queue's
identity is the name of its store, topic and queue id. Nothing here may return nothing where messages should be.
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
    """How records are read; everything but the place.

    ``queues``: only these queues, each from its start up to, not including, its end (along the log only; ANY_QUEUE for
    all of a topic); ``hidden``: where ``queues`` names none, all topics but these, ``x*`` for those that begin with x;
    ``tags``: only messages with one of these; ``sql``: only those for which a broker finds this expression true;
    ``stored_from``, ``stored_before``: store times, ms; ``queued_only``: only what consumers can see, no half and no
    rolled back messages of transactions; ``decompress``, ``max_body_bytes``: see ``bodies.py``.
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
    """What a read along the log has left out: physical offsets and why, and how many bytes of log.

    Bodies whose checksums disagree are not among them: ``verify_crc="mark"`` gives those to the caller.
    """

    places: list[tuple[int, str]] = field(default_factory=list)
    bytes: int = 0


class StoreReplaced(StoreNotFound):
    """A store is there, and not the one that was planned to be read."""


class Backend(Protocol):
    """The messages of one broker. Thread: one at a time."""

    @property
    def log(self) -> LogAccess | None:
        """The same place, with its log; None where messages are reached through their queues only."""

    # --- what is there ---

    def snapshot(self) -> Snapshot:
        """The queues as they are now. Raises: StoreNotFound, StorageError, ClientError."""

    def refresh(self, *, wait: bool = True) -> Snapshot:
        """The same for a stream, which looks again and again: the object of before where nothing has changed.

        Args: wait: for a broker that does not answer; False: it is an error at once (see ``is_unavailable``).
        """

    def check(self, store_id: str) -> None:
        """Refuse another store than the one that the snapshot was of.

        Raises: StoreNotFound.
        """

    def message_mark(self, topic: str, queue_id: int, offset: int) -> tuple[int, int | None] | None:
        """Physical offset of a message and a checksum of its record's head, by which a queue is known again.

        Returns: None: the queue has no such message; without a checksum: its record is gone.
        """

    def is_filler(self, topic: str, queue_id: int, offset: int) -> bool:
        """Did a queue that began above 0 never have a message at this offset?"""

    def offset_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Queue offset of the first message stored at or after a time; behind the last one when there is none."""

    def group_offsets(self, group: str, queues: Iterable[Place]) -> dict[Place, int]:
        """Next queue offset of a consumer group, by queue; queues without one are left out."""

    def unit_sizes(self, piece: OffsetRange) -> Sequence[int]:
        """Bytes that each message of a queue takes, or about that."""

    # --- messages ---

    def gather(self, piece: OffsetRange, columns: Sequence[Column], settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """Messages along a queue, in batches of about ``batch_bytes``.

        Raises: CorruptFile with place and reason, DataLoss, StorageError, ClientError.
        """

    # --- views ---

    def view_pieces(self, snapshot: Snapshot, options: Options) -> list[Split]:
        """How a view other than messages is divided among tasks.

        Raises: ConfigError, also for a view that cannot be had here.
        """

    def view_rows(self, piece: Split, columns: Sequence[Column], options: Options) -> Iterator[pa.RecordBatch]:
        """The rows of one piece of a view other than messages."""

    # --- what the store is told ---

    def lease(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """Ask the store to keep what a batch was planned to read, if it can be asked."""

    def keep(self, pieces: Sequence[Split], ttl_ms: int) -> TaskLease | None:
        """The same for a stream: until the next call, or ``close``."""

    def commit_group(self, group: str, offset: Mapping[str, Any]) -> bool:
        """Note an offset of a stream as the progress of a consumer group; no queue goes back. Never fails a stream.

        Returns: whether it was noted.
        """

    def release_files(self) -> None:
        """Let go of open files and idle connections until the next use; what was learnt is kept."""

    def close(self) -> None:
        """Let go of everything."""


class LogAccess(Backend, Protocol):
    """An access that has the log as well. Thread: one at a time."""

    def mark(self, physical_offset: int) -> int | None:
        """A checksum of the head of the record at a physical offset; None where nothing is written."""

    def file_start(self, physical_offset: int) -> int:
        """Where the file of the log begins that holds a physical offset, -1 where none does."""

    def behind(self, physical_offset: int) -> int:
        """Where the record at a physical offset ends."""

    def unit_place(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Physical offset of a message, also of one whose record retention removed, as long as the queue has it."""

    def boundary(self, physical_offset: int, limit: int) -> int:
        """Where the first record at or behind a physical offset begins, ``limit`` when none does before it."""

    def boundaries(self, physical_offsets: Sequence[int], limit: int) -> list[int]:
        """The same for several physical offsets, which ascend."""

    def physical_span(self, ranges: Sequence[OffsetRange]) -> tuple[int, int]:
        """The part of the log in which these messages lie; ``(0, 0)`` for none."""

    def scan(
        self, piece: ScanRange, columns: Sequence[Column], settings: ReadSettings, left_out: LeftOut | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Records along the log, as ``gather`` otherwise; ``left_out`` is told at the end."""

    def log_path(self, physical_offset: int) -> str:
        """The file of the log that holds a physical offset; the name that it would have where there is none."""


def log_of(access: Backend) -> LogAccess:
    """The access with its log. Raises: ConfigError where there is none."""
    if access.log is None:
        raise ConfigError("option path: expected a directory: brokers hand out messages by queue, not along their log")
    return access.log


def group_row(
    group: str, topic: str, queue_id: int, offset: int, bounds: tuple[int, int] | None
) -> dict[str, str | int | None]:
    """A row of the view ``groups``. Args: bounds: first and next queue offset; None where the queue is not there."""
    return {
        "group": group, "topic": topic, "queueId": queue_id, "committedOffset": offset,
        "minOffset": bounds[0] if bounds else None, "maxOffset": bounds[1] if bounds else None,
        "lag": max(bounds[1] - max(offset, bounds[0]), 0) if bounds else None,
    }  # fmt: skip
