"""The one exception tree of mqfast.

Every class has one cause: wrong use by the caller, a failed or full disk, a damaged file, the peer of a connection, a
broker that failed a request, or an internal error. Each class also derives from the builtin class that ordinary
handlers expect (``ValueError``, ``OSError``, ``TimeoutError``).
Outcomes of a healthy system (no new message, end of file, a torn tail after a crash) are enum values in
``mqfast.store.base.results``, not exceptions.

This module imports no other module of mqfast.
"""

from __future__ import annotations

__all__ = [
    "Backlog",
    "BrokerBusy",
    "BrokerError",
    "CallRefused",
    "CallTimeout",
    "ClientClosed",
    "ClientConfigError",
    "ClientError",
    "ClientForked",
    "ClientNested",
    "ClientUsageError",
    "ConfigError",
    "ConnectError",
    "ConnectionLost",
    "CorruptFile",
    "DataLoss",
    "DiskFull",
    "FieldError",
    "FlushError",
    "FlushTimeout",
    "FrameError",
    "FrameTooLarge",
    "HeaderIllegal",
    "InternalError",
    "LogGap",
    "LogOverlap",
    "LogPlaceError",
    "MapFailed",
    "MessageIllegal",
    "MessageTooLarge",
    "MqfastError",
    "NestedCall",
    "NoRoute",
    "NotMaster",
    "NotSlave",
    "OffsetError",
    "OffsetMoved",
    "PageCacheBusy",
    "PoolExhausted",
    "PropertiesTooLong",
    "Refused",
    "RemotingError",
    "RequestLost",
    "RequestTimeout",
    "SendFailed",
    "SendTimeout",
    "StorageError",
    "StoreBusy",
    "StoreClosed",
    "StoreFailed",
    "StoreForked",
    "StoreLocked",
    "StoreNotFound",
    "SubscriptionError",
    "TooManyCalls",
    "TopicTooLong",
    "UnknownName",
    "UsageError",
]


class MqfastError(Exception):
    """Root of all exceptions that mqfast raises."""


class ClientError(MqfastError):
    """A request of a client that failed.

    Attributes: ``msg_id``: the unique id of the message that it was about, None where there is none.
    """

    def __init__(self, message: str = "", *, msg_id: str | None = None) -> None:
        super().__init__(message)
        self.msg_id = msg_id


# --- wrong use by the caller ---


class UsageError(MqfastError):
    """The call is not possible as given; nothing was written."""


class ClientUsageError(ClientError, UsageError):
    """The call of a client is not possible as given; nothing was sent."""


class ConfigError(UsageError, ValueError):
    """A setting is unknown, contradicts another one, or contradicts the files of the store."""


class ClientConfigError(ClientError, ConfigError):
    """A setting or argument of a client is unknown, or has no possible value."""


class UnknownName(ClientConfigError, LookupError):
    """A cluster has no group, broker, cluster, queue or client of this name; the nearest one is in the text."""


class MessageIllegal(ClientError, UsageError, ValueError):
    """The message is not valid (RocketMQ: MESSAGE_ILLEGAL); no byte was written."""


class MessageTooLarge(MessageIllegal):
    """The body or the whole record is longer than the configured limit or than a log file can hold."""


class PropertiesTooLong(MessageIllegal):
    """The encoded properties exceed 32,767 bytes (RocketMQ: PROPERTIES_SIZE_EXCEEDED)."""


class TopicTooLong(MessageIllegal):
    """The topic exceeds 127 bytes (255 for ``%RETRY%`` topics)."""


class OffsetError(UsageError, LookupError):
    """No message is stored at the given physical offset, queue offset or message id."""


class StoreClosed(UsageError):
    """The store, reader or view was closed before this call."""


class StoreForked(StoreClosed):
    """The store belongs to the parent process; a forked child must open its own store."""


class NestedCall(UsageError, RuntimeError):
    """A signal handler, a finalizer or a callback called the store while the interrupted call holds a lock that the new
    call needs. Nothing was done.
    """


class NotMaster(UsageError):
    """The store was opened as a slave and takes no puts, because its log must stay equal to its master's log; or its
    master was replaced, or has no lease (RocketMQ: SERVICE_NOT_AVAILABLE).
    """


class NotSlave(UsageError):
    """The store was opened as a master. Only a slave takes log bytes of its master; a master has its own puts."""


class LogPlaceError(UsageError):
    """Log bytes of a master do not begin at the end of the slave's log. Nothing was appended.

    Attributes: ``offset``: physical offset of the bytes; ``expected``: the end of the log.
    """

    def __init__(self, offset: int, expected: int, path: str) -> None:
        super().__init__(f"log {path}: expected bytes from physical offset {expected} on, found {offset}")
        self.offset = offset
        self.expected = expected


class LogGap(LogPlaceError):
    """The bytes begin above the end: what lies between is missing. Ask the master for bytes from ``expected`` on."""


class LogOverlap(LogPlaceError):
    """The bytes begin below the end: the log has bytes there already. They may be the same, or those of another master;
    compare before anything is cut.
    """


class StoreNotFound(UsageError, FileNotFoundError):
    """There is no store at the given path."""


class StoreLocked(UsageError, BlockingIOError):
    """Another process (mqfast or a Java broker) holds the store's lock, or this process has opened the store already.

    Attributes: ``pid`` and ``command`` of the process that holds the lock; None and "" where the system does not tell.
    """

    pid: int | None = None
    command: str = ""


# --- the disk failed, or is not ready ---


class StorageError(MqfastError, OSError):
    """The operating system refused a file operation; see ``errno`` and ``filename``."""


class DiskFull(StorageError):
    """No space was left (ENOSPC, EDQUOT), or disk use is above the watermark. The store continues once space is free.

    Attributes, None where the system does not tell: ``wanted_bytes`` (requested), ``free_bytes`` (of the file system),
    ``setting`` (settings that request less).
    """

    wanted_bytes: int | None = None
    free_bytes: int | None = None
    setting: str | None = None


class MapFailed(StorageError):
    """A file could not be mapped (ENOMEM: see vm.max_map_count; EMFILE: see the limit of open files)."""


class FlushError(StorageError):
    """A flush failed. The store is latched: nothing is appended until the store is reopened. The flush is never
    retried.
    """


class StoreFailed(StorageError):
    """An earlier flush or write failed and latched the store; reopen the store to recover."""


class FlushTimeout(MqfastError, TimeoutError):
    """The message is stored but was not known to be durable in time (RocketMQ: FLUSH_DISK_TIMEOUT)."""


class StoreBusy(MqfastError, BlockingIOError):
    """The store cannot take the message now. Nothing was written; a later attempt may succeed."""


class PageCacheBusy(StoreBusy):
    """One append has held the put lock for longer than ``os_page_cache_busy_timeout_ms`` (RocketMQ:
    OS_PAGE_CACHE_BUSY).
    """


class PoolExhausted(StoreBusy):
    """The transient store pool has no free buffer and ``fast_fail_if_no_buffer_in_store_pool`` is on."""


# --- the file is damaged ---


class CorruptFile(MqfastError, ValueError):
    """The content of a file contradicts its format.

    Attributes: ``path``, ``offset`` (byte in that file, or physical offset for the log; None for the whole file),
    ``expected``, ``found`` (short texts).
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
    """Messages that should be read are missing: their files were removed, or an offset lies outside of its queue."""


class OffsetMoved(ClientError, DataLoss):
    """The next offset of a consumer group lies outside of its queue: the messages were deleted, or the queue ends
    before that offset. The offset was not changed; ``seek`` chooses the next one (RocketMQ: PULL_OFFSET_MOVED).

    Attributes: ``group``, ``topic``, ``queue_id``, ``offset`` (the group's next offset), ``min_offset`` (the first
    message of the queue), ``max_offset`` (behind the last message), ``queue`` (of a client: topic, broker, id; of an
    embedded consumer None).
    """

    def __init__(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: int,
        min_offset: int,
        max_offset: int,
        queue: tuple[str, str, int] | None = None,
    ) -> None:
        if offset < min_offset:
            what = f"the {min_offset - offset} messages from there on were deleted before the group has read them"
            to = min_offset
        else:
            what = "the queue ends before it"
            to = max_offset
        super().__init__(
            f"group {group}, topic {topic}, queue {queue_id}: expected the next offset to be from {min_offset} to "
            f"{max_offset}, found {offset}: {what}; seek({queue_id if queue is None else queue}, {to}) goes on"
        )
        self.group = group
        self.topic = topic
        self.queue_id = queue_id
        self.offset = offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.queue = queue

    def again(self) -> OffsetMoved:
        """Return an equal new error, for another raise."""
        return OffsetMoved(*self.__reduce__()[1])

    def __reduce__(
        self,
    ) -> tuple[type[OffsetMoved], tuple[str, str, int, int, int, int, tuple[str, str, int] | None]]:
        place = (self.group, self.topic, self.queue_id, self.offset, self.min_offset, self.max_offset, self.queue)
        return OffsetMoved, place


# --- the peer of a connection ---


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


# --- requests of a client to a cluster ---


class NoRoute(ClientError, LookupError):
    """No name server knows the topic, and no broker makes topics by itself. RocketMQ: client code 10005, answer 17."""


class ConnectError(ClientError, ConnectionError):
    """No connection to an address could be made; nothing was sent. RocketMQ: client code 10001."""


class RequestTimeout(ClientError, CallTimeout):
    """No answer to a request came in time; the server may have carried it out."""


class RequestLost(ClientError, ConnectionLost):
    """The connection ended before the answer came; the server may have carried the request out."""


class SendTimeout(ClientError, TimeoutError):
    """A send was not answered in time. RocketMQ: client code 10002.

    Attributes: ``maybe_stored``: the broker may have stored the message.
    """

    def __init__(self, message: str = "", *, msg_id: str | None = None, maybe_stored: bool = True) -> None:
        super().__init__(message, msg_id=msg_id)
        self.maybe_stored = maybe_stored


class SendFailed(ClientError):
    """All attempts of a send failed.

    Attributes:
        attempts: (broker and address, seconds, error) of each attempt, in order.
        maybe_stored: one of the brokers may have stored the message.
    """

    def __init__(
        self,
        message: str = "",
        *,
        attempts: tuple[tuple[str, float, Exception], ...] = (),
        msg_id: str | None = None,
        maybe_stored: bool = False,
    ) -> None:
        super().__init__(message, msg_id=msg_id)
        self.attempts = attempts
        self.maybe_stored = maybe_stored


class BrokerError(ClientError):
    """A broker or name server answered with a code other than success.

    Attributes: ``code`` (a response code), ``remark`` (the broker's own words), ``broker`` (its address).
    """

    def __init__(
        self, message: str = "", *, code: int = 1, remark: str = "", broker: str = "", msg_id: str | None = None
    ) -> None:
        super().__init__(message or f"{broker}: code {code}" + (f": {remark}" if remark else ""), msg_id=msg_id)
        self.code = code
        self.remark = remark
        self.broker = broker


class BrokerBusy(BrokerError, BlockingIOError):
    """The broker refused the request for the moment (code 2); nothing was stored."""


class Refused(BrokerError, PermissionError):
    """The broker does not allow the request to this client, or to any client (codes 16 and 3001)."""


class Backlog(ClientError, BlockingIOError):
    """As many messages are on their way as the producer's limits allow; nothing was sent."""


class ClientClosed(ClientError):
    """The client is closed, or was never started."""


class ClientForked(ClientClosed):
    """The client was started in another process; a child makes its own consumer."""


class ClientNested(ClientError, NestedCall):
    """A signal handler, a finalizer or a callback called a client inside of another call of the same thread, for which
    the new call would have to wait. Nothing was done.
    """


class SubscriptionError(ClientError, ValueError):
    """A subscription is not possible: the broker refused its SQL, or the members of the group disagree."""


# --- internal errors ---


class InternalError(MqfastError, AssertionError):
    """A rule of mqfast itself does not hold; please report the error. Nothing more is written."""
