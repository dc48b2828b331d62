"""A handler of the standard library's logging that sends records to a topic, as lines of JSON.

The logging thread never blocks, the handler logs nothing itself, and the end of the process waits for a second at most.
A record without room is dropped and counted.
"""

from __future__ import annotations

import atexit
import json
import logging
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any, Final

from mqfast.client.net import fork
from mqfast.client.net.guard import Guard
from mqfast.client.producer.encode import checked_topic
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Address, SendResult
from mqfast.errors import ConfigError, MqfastError
from mqfast.message import Message

__all__ = ["JsonFormatter", "RocketMQHandler"]

_EXIT_S: Final = 1.0
_OWN_THREADS: Final = frozenset({"mqfast-io", "mqfast-logging"})
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: time, level, logger, message, process, thread, exception, and the record's extras.

    Values that JSON has no form for are written as their text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without a line end."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            "thread": record.threadName,
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            fields["exception"] = record.exc_text
        if record.stack_info:
            fields["stack"] = record.stack_info
        for name, value in vars(record).items():
            if name not in _USUAL and name not in fields:
                fields[name] = value
        return json.dumps(fields, default=str, ensure_ascii=False)


class RocketMQHandler(logging.Handler):
    """Sends every record to a topic. The tag of a message is the level's name.

        logging.getLogger().addHandler(RocketMQHandler("app-logs", namesrv_addr="127.0.0.1:9876", level="INFO"))

    Args:
        topic: of the messages.
        producer: sends them and stays open at the end; None: one of the handler's own.
        namesrv_addr: of the handler's own producer; None for $NAMESRV_ADDR.
        level: least level of a record.
        capacity: records that may wait; one more is dropped.
    Raises: ConfigError.
    Thread: any. Records of the client itself (loggers ``mqfast`` and below) are not sent.
    Durability: none is promised; ``stats`` counts what was lost.
    """

    def __init__(
        self,
        topic: str,
        *,
        producer: Producer | None = None,
        namesrv_addr: Address | None = None,
        level: int | str = logging.NOTSET,
        capacity: int = 10_000,
    ) -> None:
        super().__init__(level)
        given: object = producer
        if given is not None and not isinstance(given, Producer):
            raise ConfigError(f"producer: expected a Producer, found {type(given).__name__}")
        if producer is not None and namesrv_addr is not None:
            raise ConfigError("namesrv_addr: expected a producer or an address, found both")
        if type(capacity) is not int or capacity < 1:
            raise ConfigError(f"capacity: expected records, 1 or more, found {capacity!r}")
        self._topic = checked_topic(topic)
        self._is_own = producer is None
        self._producer = producer or Producer(
            "mqfast-logging", namesrv_addr, linger_ms=5, close_timeout_s=_EXIT_S, max_in_flight=capacity
        )
        if self._is_own:
            self._producer.start()  # now: no thread can start at the end of the process
        self._capacity = capacity
        self._closed = False
        self.formatter = JsonFormatter()
        self._begin_counts()
        fork.watch(self)
        _open.add(self)

    def _begin_counts(self) -> None:
        self._lines: queue.SimpleQueue[tuple[str, str] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition(Guard())  # type: ignore[arg-type]
        self._accepted = self._sent = self._dropped = self._failed = 0

    def after_fork(self) -> None:
        """Forget the records of the parent, in a child."""
        self._begin_counts()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop the record if ``capacity`` records wait. Never blocks, raises nothing."""
        name = record.name
        if name == "mqfast" or name.startswith("mqfast.") or record.threadName in _OWN_THREADS:
            return
        if self._closed or self._accepted - self._sent - self._failed >= self._capacity:
            self._dropped += 1
            return
        try:
            line = self.format(record)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="mqfast-logging", daemon=True)
                self._thread.start()
        except Exception:
            self._dropped += 1
            self.handleError(record)
            return
        self._accepted += 1
        self._lines.put((line, record.levelname))

    def _work(self) -> None:
        lines = self._lines
        while (taken := lines.get()) is not None:
            line, level = taken
            try:
                tags = level if level.isalnum() else None
                self._producer.send_future(Message(self._topic, line, tags=tags), on_done=self._ended)
            except (MqfastError, RuntimeError, OSError):  # a RuntimeError: the interpreter ends
                self._count(sent=False)

    def _ended(self, future: Future[SendResult]) -> None:
        self._count(sent=not future.cancelled() and future.exception() is None)

    def _count(self, *, sent: bool) -> None:
        with self._changed:
            if sent:
                self._sent += 1
            else:
                self._failed += 1
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait until the queued records are sent, a second at most."""
        self._flush(_EXIT_S)

    def _flush(self, timeout_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._sent + self._failed >= self._accepted, timeout_s)

    def close(self) -> None:
        """Send the queued records, a second at most, and close an own producer. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        deadline = time.monotonic() + _EXIT_S
        self._flush(_EXIT_S * 0.7)
        self._lines.put(None)
        if self._is_own:
            self._producer.close(max(0.0, deadline - time.monotonic()))
        super().close()

    def stats(self) -> dict[str, int]:
        """Return counts of sent, dropped (no room, or no text), failed and waiting records."""
        waiting = self._accepted - self._sent - self._failed
        return {"sent": self._sent, "dropped": self._dropped, "failed": self._failed, "waiting": waiting}


_open: weakref.WeakSet[RocketMQHandler] = weakref.WeakSet()


def _close_all() -> None:
    """Close all handlers at the end of the process, before the clients, which registered earlier."""
    for handler in list(_open):
        handler.close()


atexit.register(_close_all)
