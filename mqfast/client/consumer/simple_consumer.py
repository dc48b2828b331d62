"""SimpleConsumer: the application receives messages by POP, and acknowledges each by itself.

The requests run in the thread "mqfast-io". Nothing is read ahead, so no queue belongs to a consumer, and no consumer
holds up another. Source: RocketMQ 5.x's SimpleConsumer, over remoting.
"""

from __future__ import annotations

import logging
import os
import warnings
import weakref
from types import TracebackType
from typing import Final, Self, TypeVar

from mqfast.client.consumer.call import SyncCalls, Work
from mqfast.client.consumer.simple.simple_base import SimpleConsumerBase
from mqfast.client.net import io_thread
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.errors import MqfastError

__all__ = ["SimpleConsumer"]

T = TypeVar("T")
START_S: Final = 30.0
_log = logging.getLogger("mqfast.client.consumer")


class SimpleConsumer(SimpleConsumerBase, SyncCalls):
    """Messages on demand by POP; see ``SimpleConsumerBase`` for the arguments.

        with SimpleConsumer("report", topics="orders") as consumer:
            for message in consumer.receive(invisible_s=30):
                print(message.body)
                consumer.ack(message)

    A message without an ack comes again after its invisible time, to any consumer of the group; after the last retry of
    the group to the dead letters. ``change_invisible_time`` moves that time.

    Thread: any. Durability: an ack is stored by the broker before ``ack`` returns.
    """

    def _set_up(self) -> None:
        self._starting = Guard(brief=False)

    def after_fork(self) -> None:
        """In a child: see ``SimpleConsumerBase``."""
        super().after_fork()
        self._starting = Guard(brief=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> Self:
        """Join the group; the first other call does the same.

        Raises: ConnectError, SubscriptionError, ClientClosed.
        """
        self._check_open()
        check_may_wait()
        if self._is_started:
            return self
        with self._starting:
            if not self._is_started:
                self._io = io_thread.shared()
                limit_s = io_thread.start_limit(START_S, self._settings.start_timeout_s)
                self._io.call(self._engine.start(lambda: self._is_closed), limit_s)
                if self._is_closed:  # by a signal handler or another thread
                    self._io.call(self._engine.close(), self._settings.close_timeout_s)
                    self._check_open()
                self._is_started = True
                self._at_exit = _AtExit(self)
                close_at_exit(self._at_exit)
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the group. Messages without an ack come again after their invisible time.

        Args: timeout_s: limit of the wait, by default ``close_timeout_s``.
        """
        if self._is_closed or self._pid != os.getpid():
            return
        check_may_wait()
        self._is_closed = True
        if not self._is_started or not self._io.is_alive:
            return
        limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
        try:
            self._io.call(self._engine.close(), max(0.1, limit_s))
        except (MqfastError, RuntimeError) as error:
            _log.warning("group %s: the simple consumer did not end in order: %s", self.group, error)

    def __del__(self) -> None:
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        text = f"simple consumer of group {self.group} was not closed"
        warnings.warn(text, ResourceWarning, stacklevel=2, source=self)
        io, engine = self._io, self._engine
        if io.is_alive:
            io.soon(lambda: io.loop.create_task(engine.close()))

    def _run(self, work: Work[T]) -> T:
        try:
            self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return self._io.call(work.coroutine, work.timeout_s)


class _AtExit:
    """Closes an open consumer at exit."""

    def __init__(self, consumer: SimpleConsumer) -> None:
        self._consumer: Final = weakref.ref(consumer)

    def close(self, timeout_s: float | None = None) -> None:
        """Close the consumer at the end of the process."""
        consumer = self._consumer()
        if consumer is not None:
            consumer.close(timeout_s)
