"""PullConsumer: the application polls messages in its own threads.

The engine runs in the thread "mqfast-io"; messages are handed out of the prefetch buffer in the thread of the caller.
A loop gets no message twice, and no wait is without a deadline.
Source: DefaultLitePullConsumer, DefaultMQPullConsumer.pull.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from mqfast.client.consumer.call import SyncCalls, Work
from mqfast.client.consumer.pull.pull_base import PullConsumerBase
from mqfast.client.consumer.pull.settings import new_subscription
from mqfast.client.delivery import Delivery
from mqfast.client.net import io_thread
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientClosed, MqfastError

__all__ = ["PullConsumer"]

T = TypeVar("T")
START_S: Final = 30.0
_LOOK_AGAIN_S: Final = 5.0
_log = logging.getLogger("mqfast.client.consumer")


class PullConsumer(PullConsumerBase, SyncCalls):
    """Messages on demand: ``poll`` or a loop; see ``PullConsumerBase`` for the arguments.

        with PullConsumer("report", topics="orders") as consumer:
            for message in consumer:
                print(message.body)

    Members of a group share the queues of subscribed topics; ``assign`` selects queues instead. A ``poll`` acknowledges
    the messages of earlier polls; a loop acknowledges a message by the request for the next message. Auto commit and a
    rebalance commit acknowledged messages only. ``close()``, and the end of a ``with`` block without an exception,
    commit the last batch too. ``commit()`` commits all messages that were handed out.

    Thread: any; with auto commit a single thread polls. Durability: that of the broker's offsets, some 5 s.
    """

    def _set_up(self) -> None:
        self._starting = Guard(brief=False)

    def after_fork(self) -> None:
        """In a child: see ``PullConsumerBase``."""
        super().after_fork()
        self._starting = Guard(brief=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, all_handed_out=kind is None)

    def start(self) -> Self:
        """Join the group and begin to pull; the first other call does the same.

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
                    self._io.call(self._engine.close(all_handed_out=False), self._settings.close_timeout_s)
                    self._check_open()
                self._is_started = True
                self._at_exit = _AtExit(self)
                close_at_exit(self._at_exit)
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the group; with auto commit, commit all messages that were handed out.

        Args: timeout_s: limit of the wait, by default ``close_timeout_s``.
        """
        self._close(timeout_s, all_handed_out=True)

    def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        check_may_wait()
        self._is_closed = True
        if not self._is_started or not self._io.is_alive:
            return
        limit_s = self._settings.close_timeout_s if timeout_s is None else timeout_s
        try:
            self._io.call(self._engine.close(all_handed_out=all_handed_out), max(0.1, limit_s))
        except (MqfastError, RuntimeError) as error:
            _log.warning("group %s: the pull consumer did not end in order: %s", self.group, error)

    def __del__(self) -> None:
        if not getattr(self, "_is_started", False) or self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        warnings.warn(f"pull consumer of group {self.group} was not closed", ResourceWarning, stacklevel=2, source=self)
        io, engine = self._io, self._engine
        if io.is_alive:
            io.soon(lambda: io.loop.create_task(engine.close(all_handed_out=False)))

    def _run(self, work: Work[T]) -> T:
        try:
            self.start()
        except BaseException:
            work.coroutine.close()
            raise
        return self._io.call(work.coroutine, work.timeout_s)

    # --- which queues ---

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Add the subscription of a topic, or replace the expression of a subscribed topic.

        Raises: UsageError, SubscriptionError (the broker refuses the SQL), ConnectError.
        """
        self._check_open()
        check_may_wait()
        wanted = new_subscription(topic, tags, sql, self._settings.namespace)
        if self._is_started:
            self._run(Work(self._engine.subscribe(wanted)))
        else:
            self._engine.subscriptions[wanted.topic] = wanted

    def assignment(self) -> Mapping[MessageQueue, int]:
        """Return queue of this member -> offset of the next message that is handed out; -1: not known yet."""
        self.start()
        return self._engine.positions()

    # --- messages ---

    def poll(self, timeout_s: float = 5.0, max_count: int = 32) -> Sequence[Delivery]:
        """Wait for the next messages; acknowledge the messages of earlier polls.

        Args: timeout_s: how long to wait for the first message; 0: no wait. max_count: maximum of messages.
        Returns: the messages; an empty list after the timeout.
        Raises: OffsetMoved, Refused, ClientClosed, ClientForked; UsageError without a topic and an assigned queue.
        """
        self._check_poll(timeout_s, max_count)
        self.start()
        cache = self._engine.cache
        deadline = time.monotonic() + timeout_s
        with cache.arrival:
            cache.acknowledge()
            while True:
                messages = cache.poll(max_count)
                remaining_s = deadline - time.monotonic()
                if messages or remaining_s <= 0:
                    break
                cache.arrival.wait(remaining_s)
        refusal = None if messages else self._engine.refusal(has_waited=timeout_s > 0)
        if refusal is not None:
            raise refusal
        return self._call_hooks(messages)

    def __iter__(self) -> Iterator[Delivery]:
        """Iterate over messages until the consumer is closed; the request for the next message acknowledges a message.

        A new loop begins after the last acknowledged message.
        Raises (while looping): OffsetMoved, Refused, ClientForked.
        """
        self.start()
        self._engine.cache.rewind()
        return _Loop(self)

    def _next(self, before: Delivery | None) -> Delivery | None:
        cache = self._engine.cache
        check_may_wait()
        while True:
            self._check_fork()
            try:
                with cache.arrival:
                    message = cache.next(before)
                    if message is None and not cache.arrival.wait(_LOOK_AGAIN_S):
                        refusal = self._engine.refusal()
                        if refusal is not None:
                            raise refusal
            except ClientClosed:
                return None
            if message is not None:
                self._call_hooks((message,))
                return message
            before = None

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            self._check_open()

    def stats(self) -> Mapping[str, Any]:
        """Return queues, offsets, counts of cached messages, and errors."""
        self._check_fork()
        check_may_wait()
        return self._engine.stats() if self._is_started else {"group": self.group}


class _AtExit:
    """Closes an open consumer at exit: commits the acknowledged messages, not the last batch."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer: Final = weakref.ref(consumer)

    def close(self, timeout_s: float | None = None) -> None:
        """Close the consumer at the end of the process."""
        consumer = self._consumer()
        if consumer is not None:
            consumer._close(timeout_s, all_handed_out=False)


class _Loop:
    """A loop over a consumer; a second loop continues after the acknowledged messages."""

    __slots__ = ("_consumer", "_message")

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer: Final = consumer
        self._message: Delivery | None = None

    def __iter__(self) -> _Loop:
        return self

    def __next__(self) -> Delivery:
        before, self._message = self._message, None
        self._message = self._consumer._next(before)
        if self._message is None:
            raise StopIteration
        return self._message
