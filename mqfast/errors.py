"""The one exception tree of mqfast.

Every error answers one question: did the caller misuse us, did the disk fail, is the file damaged, or are we wrong?
Each class is mixed with the builtin that ordinary handlers expect (``ValueError``, ``OSError``, ``TimeoutError``).
Outcomes of a healthy system (no new message, end of file, a torn tail after a crash) are enum values in
``mqfast.store.base.results``, never exceptions.

This module imports nothing of ours and must never do so.
"""

from __future__ import annotations

__all__ = [
    "CallRefused",
    "CallTimeout",
    "ConnectionLost",
    "CorruptFile",
    "ConfigError",
    "DataLoss",
    "DiskFull",
    "FieldError",
    "FlushError",
    "FlushTimeout",
    "FrameError",
    "FrameTooLarge",
    "HeaderIllegal",
    "InternalError",
    "MapFailed",
    "MessageIllegal",
    "MessageTooLarge",
    "MqfastError",
    "NestedCall",
    "NotMaster",
    "OffsetError",
    "OffsetMoved",
    "PageCacheBusy",
    "PoolExhausted",
    "PropertiesTooLong",
    "RemotingError",
    "StorageError",
    "StoreBusy",
    "StoreClosed",
    "StoreFailed",
    "StoreForked",
    "StoreLocked",
    "StoreNotFound",
    "TooManyCalls",
    "TopicTooLong",
    "UsageError",
]


class MqfastError(Exception):
    """Root of everything that mqfast raises on purpose."""


# --- the caller misused us -------------------------------------------------------------------------------------------


class UsageError(MqfastError):
    """The call cannot be carried out as asked; nothing was written."""


class ConfigError(UsageError, ValueError):
    """A setting is unknown, contradictory, or disagrees with the files of the store."""


class MessageIllegal(UsageError, ValueError):
    """The message cannot be stored as given (RocketMQ: MESSAGE_ILLEGAL); no byte was written."""


class MessageTooLarge(MessageIllegal):
    """The body or the whole record is longer than the configured limit or than a log file can hold."""


class PropertiesTooLong(MessageIllegal):
    """The encoded properties exceed 32,767 bytes (RocketMQ: PROPERTIES_SIZE_EXCEEDED)."""


class TopicTooLong(MessageIllegal):
    """The topic exceeds 127 bytes (255 for ``%RETRY%`` topics)."""


class OffsetError(UsageError, LookupError):
    """No message can be found at the given physical offset, queue offset or message id."""


class StoreClosed(UsageError):
    """The store, reader or view was closed before this call."""


class StoreForked(StoreClosed):
    """The store belongs to the parent process; a forked child must open its own."""


class NestedCall(UsageError, RuntimeError):
    """A signal handler, a finalizer or a callback called the store while the call that it interrupted has a lock which
    this one needs. Nothing was done.
    """


class NotMaster(UsageError):
    """The store was opened as a slave, whose log must stay equal to its master's: nothing is put (RocketMQ:
    SERVICE_NOT_AVAILABLE).
    """


class StoreNotFound(UsageError, FileNotFoundError):
    """There is no store at the given path."""


class StoreLocked(UsageError, BlockingIOError):
    """Another process (mqfast or a Java broker) holds the store's lock, or this process opened it already.

    Attributes: ``pid`` and ``command`` of the process that has it, where the system tells; else None and "".
    """

    pid: int | None = None
    command: str = ""


# --- the disk failed, or is not ready
# ----------------------------------------------------------------------------------


class StorageError(MqfastError, OSError):
    """The operating system refused a file operation; ``errno`` and ``filename`` say which."""


class DiskFull(StorageError):
    """No space was left (ENOSPC, EDQUOT) or the watermark was reached. Recoverable: the store goes on once space is
    free.

    Attributes, None where the system did not say: ``wanted_bytes`` that were asked for, ``free_bytes`` of the file
    system, ``setting``: which settings ask for less.
    """

    wanted_bytes: int | None = None
    free_bytes: int | None = None
    setting: str | None = None


class MapFailed(StorageError):
    """A file could not be mapped (ENOMEM: see vm.max_map_count; EMFILE: see the limit of open files)."""


class FlushError(StorageError):
    """A flush failed. The store is latched: nothing more is appended until it is reopened, and the flush is never
    retried.
    """


class StoreFailed(StorageError):
    """The store was latched by an earlier failed flush or write; reopen it to recover."""


class FlushTimeout(MqfastError, TimeoutError):
    """The message is stored but was not confirmed durable in time (RocketMQ: FLUSH_DISK_TIMEOUT)."""


class StoreBusy(MqfastError, BlockingIOError):
    """The store cannot take the message right now; nothing was written and a later attempt may succeed."""


class PageCacheBusy(StoreBusy):
    """One append has held the put lock for longer than ``os_page_cache_busy_timeout_ms`` (RocketMQ:
    OS_PAGE_CACHE_BUSY).
    """


class PoolExhausted(StoreBusy):
    """The transient store pool has no free buffer and ``fast_fail_if_no_buffer_in_store_pool`` is on."""


# --- the file is damaged
# -------------------------------------------------------------------------------------------------


class CorruptFile(MqfastError, ValueError):
    """A file does not hold what its format asks for.

    Attributes: ``path``, ``offset`` (byte in that file, or physical offset for the log; None when the whole file is
    meant), ``expected``, ``found`` (short texts).
    """

    def __init__(
        self, message: str, *, path: str = "", offset: int | None = None, expected: object = None, found: object = None
    ) -> None:
        parts = [message]
        if path:
            parts.append(f"file {path}")
        if offset is not None:
            parts.append(f"offset {offset}")
        if expected is not None:
            parts.append(f"expected {expected}")
        if found is not None:
            parts.append(f"found {found}")
        super().__init__(", ".join(parts))
        self.path = path
        self.offset = offset
        self.expected = expected
        self.found = found


class DataLoss(MqfastError, LookupError):
    """Messages that were to be read are gone: their files were removed, or an offset lies outside of its queue."""


class OffsetMoved(DataLoss):
    """The next offset of a consumer group is no place in its queue: the messages there were deleted, or the queue ends
    before it. Nothing was moved; ``seek`` chooses where the group goes on (RocketMQ: PULL_OFFSET_MOVED).

    Attributes: ``group``, ``topic``, ``queue_id``, ``offset`` (where the group was to go on), ``min_offset`` and
    ``max_offset`` (the first message there is, and the place behind the last one).
    """

    def __init__(self, group: str, topic: str, queue_id: int, offset: int, min_offset: int, max_offset: int) -> None:
        if offset < min_offset:
            what = f"the {min_offset - offset} messages from there on were deleted before the group has read them"
            to = min_offset
        else:
            what = "the queue ends before it"
            to = max_offset
        super().__init__(
            f"group {group}, topic {topic}, queue {queue_id}: expected the next offset to be from {min_offset} to "
            f"{max_offset}, found {offset}: {what}; seek({queue_id}, {to}) goes on"
        )
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __reduce__(self) -> tuple[type[OffsetMoved], tuple[str, str, int, int, int, int]]:
        fields = (self.group, self.topic, self.queue_id, self.offset, self.min_offset, self.max_offset)
        return OffsetMoved, fields


# --- the peer of a connection
# ----------------------------------------------------------------------------------------------


class RemotingError(MqfastError):
    """Something went wrong between two ends of a connection."""


class FrameError(RemotingError, ValueError):
    """The bytes that a peer sent are no frame; nothing after them can be read, so the connection ends."""


class FrameTooLarge(FrameError):
    """A frame or its header is longer than the limit of this end."""


class HeaderIllegal(FrameError):
    """The header of a frame cannot be decoded."""


class FieldError(RemotingError, ValueError):
    """A field of a header or a body is missing or has a value of another kind; the connection stays.

    Attributes: ``field``, ``expected``, ``found`` (short texts).
    """

    def __init__(self, field: str, expected: str, found: str) -> None:
        super().__init__(f"field {field}: expected {expected}, found {found}")
        self.field = field
        self.expected = expected
        self.found = found

    def __reduce__(self) -> tuple[type[FieldError], tuple[str, str, str]]:
        return FieldError, (self.field, self.expected, self.found)


class CallTimeout(RemotingError, TimeoutError):
    """No answer to a request came in time; the peer may have carried it out."""


class ConnectionLost(RemotingError, ConnectionError):
    """The connection could not be made, or ended before the answer came."""


class TooManyCalls(RemotingError):
    """More requests wait for their answers, or for their turn, than this end allows; nothing was sent."""


class CallRefused(RemotingError):
    """The peer answered with a code other than success.

    Attributes: ``code`` (a response code), ``remark`` (the peer's own words, may be empty).
    """

    def __init__(self, code: int, remark: str = "") -> None:
        super().__init__(f"expected code 0, found code {code}" + (f": {remark}" if remark else ""))
        self.code = code
        self.remark = remark

    def __reduce__(self) -> tuple[type[CallRefused], tuple[int, str]]:
        return CallRefused, (self.code, self.remark)


# --- we are wrong
# ----------------------------------------------------------------------------------------------------------


class InternalError(MqfastError, AssertionError):
    """One of our own rules does not hold; please report it. Nothing more is written."""
