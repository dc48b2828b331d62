"""PullConsumer: the application asks for messages, on its own threads.

A face over ``pull/engine.py``, which runs on the thread "mqfast-io"; messages are handed out of the cache on the
caller's thread. It must never hand out a message twice to one loop, or wait without a deadline.
Source: DefaultLitePullConsumer, DefaultMQPullConsumer.pull.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
import warnings
import weakref
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.offsets import OffsetStore
from mqfast.client.consumer.pull.engine import PullEngine, wire
from mqfast.client.consumer.pull.settings import (
    OffsetReset,
    new_subscription,
    pull_arguments,
    pull_settings,
    subscriptions_of,
)
from mqfast.client.consumer.pull_request import PullAnswer
from mqfast.client.consumer.subscription import checked_name
from mqfast.client.decompression import BODY_BYTES_MAX
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook, ConsumeContext, tell
from mqfast.client.net import fork, io_thread
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.client.route.namespace import plain_queue, wrap
from mqfast.client.values import Address, Credentials, MessageQueue, When, milliseconds
from mqfast.errors import ClientClosed, ClientForked, ClientUsageError, MqfastError
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_number, is_whole

__all__ = ["PullArguments", "PullConsumer"]

T = TypeVar("T")
START_S: Final = 30.0
CALL_S: Final = 20.0
_LOOK_AGAIN_S: Final = 5.0
_POLL_S_MAX: Final = 31 * 86_400
_log = logging.getLogger("mqfast.client.consumer")


class PullArguments:
    """What both pull consumers take.

    Args:
        group: consumer group: its members share the queues of its topics, and its offsets.
        namesrv_addr: name servers; None: $NAMESRV_ADDR.
        namespace, namespace_v2, address_map: as a producer's.
        topics: a topic, or topic -> tag expression.
        auto_commit_s: seconds between commits of what was acknowledged; None: only ``commit()`` commits.
        pull_batch: messages of one pull.
        model: ``"clustering"``: each message to one member; ``"broadcasting"``: all messages to every member, whose
            offsets are in a file on this machine.
        from_where: where a group begins that has no offset: behind the last message, at the first one, at a time.
        allocation: a strategy by its name, or an object; all members need the same one.
        offset_store: the user's own, in place of the brokers or the file.
        offset_reset: what happens where messages were deleted before the group has read them: ``"error"`` raises
            OffsetMoved until ``seek``; ``"earliest"`` and ``"latest"`` go on there, with a warning.
        max_cached_messages, max_cached_bytes: pulled ahead of one queue; max_cached_total: of all queues.
        max_body_bytes: of a body that is decompressed; reading a larger one is an error, as of a damaged one.
        trace: write what is handed out into the trace topic, or into the topic of this name.
        hooks: ``before_consume`` and ``after_consume`` are called when messages are handed out.
        start_timeout_s: how long ``start`` tries to reach a name server; 0: once; None: without end.
        close_timeout_s: bound of ``close()``.
    Raises: ConfigError, UsageError.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: Address | None = None,
        *,
        topics: str | Mapping[str, str] | None = None,
        auto_commit_s: float | None = 5.0,
        pull_batch: int = 10,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace: str | None = None,
        namespace_v2: str | None = None,
        instance_name: str | None = None,
        unit_name: str | None = None,
        address_map: Mapping[str, str] | None = None,
        model: Literal["clustering", "broadcasting"] = "clustering",
        from_where: Literal["latest", "earliest", "last", "first"] | datetime = "latest",
        allocation: Allocation | str = "AVG",
        offset_store: OffsetStore | None = None,
        offset_reset: OffsetReset = "error",
        pull_interval_s: float = 0,
        max_cached_messages: int = 1000,
        max_cached_bytes: int = 100 << 20,
        max_cached_total: int = 10_000,
        max_body_bytes: int = BODY_BYTES_MAX,
        trace: bool | str = False,
        hooks: Sequence[ClientHook] = (),
        start_timeout_s: float | None = 0.0,
        close_timeout_s: float = 5.0,
        **unknown: Any,
    ) -> None:
        self._settings = pull_settings(
            group,
            namesrv_addr,
            from_where=from_where,
            allocation=allocation,
            offset_store=offset_store,
            offset_reset=offset_reset,
            hooks=hooks,
            trace=trace,
            shared={
                "credentials": credentials,
                "tls": tls,
                "namespace": namespace,
                "namespace_v2": namespace_v2,
                "instance_name": instance_name,
                "unit_name": unit_name,
                "address_map": address_map,
            },
            numbers={
                "model": model,
                "auto_commit_s": auto_commit_s,
                "pull_batch": pull_batch,
                "pull_interval_s": pull_interval_s,
                "max_cached_messages": max_cached_messages,
                "max_cached_bytes": max_cached_bytes,
                "max_cached_total": max_cached_total,
                "max_body_bytes": max_body_bytes,
                "start_timeout_s": start_timeout_s,
                "close_timeout_s": close_timeout_s,
            },
            unknown=unknown,
        )
        self._engine = PullEngine(self._settings, subscriptions_of(topics, self._settings.namespace))
        self._pid = os.getpid()
        self._is_started = False
        self._is_closed = False
        self._set_up()
        fork.watch(self)

    def _set_up(self) -> None:
        """What a face needs of its own."""

    @classmethod
    def from_java(cls, settings: Mapping[str, str | int | bool]) -> Self:
        """A consumer from DefaultLitePullConsumer's settings: Java's names and milliseconds. Raises: ConfigError."""
        return cls(**pull_arguments(settings))

    def after_fork(self) -> None:
        """In a child: a consumer that was not started may be started; a running one is the parent's."""
        if not self._is_started:
            self._pid = os.getpid()

    def _told(self, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """Let the hooks hear of messages that are handed out, as Java's poll does."""
        if self._settings.hooks and messages:
            context = ConsumeContext(messages, self.group, "receive")
            tell(self._settings.hooks, "before_consume", context)
            tell(self._settings.hooks, "after_consume", context)
        return messages

    @property
    def group(self) -> str:
        """The consumer group."""
        return self._settings.group

    def _check_open(self) -> None:
        if self._pid != os.getpid():
            raise ClientForked(f"group {self.group}: the consumer belongs to process {self._pid}; make one of your own")
        if self._is_closed:
            raise ClientClosed(f"group {self.group}: the pull consumer is closed")

    def _wire(self, queue: MessageQueue) -> MessageQueue:
        return wire(self._settings.namespace, queue)

    def _wired(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        given: object = queues
        if isinstance(given, (str, MessageQueue)) or not isinstance(given, Iterable):
            raise ClientUsageError(f"queues: expected several MessageQueues, found {queues!r}")
        return [self._wire(queue) for queue in queues]

    def _checked_offsets(self, offsets: Mapping[MessageQueue, int] | None) -> dict[MessageQueue, int] | None:
        given: object = offsets
        if offsets is None:
            return None
        if not isinstance(given, Mapping):
            raise ClientUsageError(f"commit: expected a mapping from MessageQueue to offset, found {given!r}")
        for queue, offset in offsets.items():
            if type(offset) is not int:
                raise ClientUsageError(f"commit of {queue}: expected an offset, found {offset!r}")
        return {self._wire(queue): at for queue, at in offsets.items()}

    def _plain(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        return [plain_queue(self._settings.namespace, queue) for queue in queues]

    def _topic(self, topic: str) -> str:
        return wrap(self._settings.namespace, checked_name(topic))

    @staticmethod
    def _check_poll(timeout_s: Any, max_count: Any) -> None:
        if not is_whole(max_count, 1):
            raise ClientUsageError(f"max_count: expected a whole number from 1 on, found {max_count!r}")
        if not is_number(timeout_s, 0):
            raise ClientUsageError(f"timeout_s: expected seconds from 0 on, found {timeout_s!r}")
        if timeout_s > _POLL_S_MAX:
            raise ClientUsageError(f"timeout_s: expected at most {_POLL_S_MAX} seconds, found {timeout_s!r}")

    @staticmethod
    def _check_seek(to: object) -> None:
        if isinstance(to, (datetime, int)) and not isinstance(to, bool):
            return
        if end_word(to) not in ("earliest", "latest"):
            raise ClientUsageError(f"seek: expected an offset, 'earliest', 'latest' or a datetime, found {to!r}")

    @staticmethod
    def _check_pull(offset: Any, max_count: Any, wait_s: Any) -> None:
        for what, given, least in (("offset", offset, 0), ("max_count", max_count, 1)):
            if not is_whole(given, least):
                raise ClientUsageError(f"{what}: expected a whole number from {least} on, found {given!r}")
        if not is_number(wait_s, 0, 60):
            raise ClientUsageError(f"wait_s: expected seconds from 0 to 60, found {wait_s!r}")

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else "running" if self._is_started else "not started"
        return f"<{type(self).__name__} of group {self.group!r}, {state}>"


class PullConsumer(PullArguments):
    """Messages on demand: ``poll`` or a loop; see ``PullArguments`` for what it takes.

        with PullConsumer("report", topics="orders") as consumer:
            for message in consumer:
                print(message.body)

    Members of a group share the queues of the topics that they subscribe to; ``assign`` chooses queues by hand instead.
    A ``poll`` says that the application is done with what earlier polls handed out; a loop says so of a message when
    it asks for the next one. Auto commit and a rebalance commit that, and never more; ``close()``, and the end of a
    ``with`` block without an exception, commit the last batch too. ``commit()`` commits all that was handed out.

    Thread: any; with auto commit one thread polls. Durability: that of the broker's offsets, some 5 s.
    """

    def _set_up(self) -> None:
        self._starting = Guard(brief=False)

    def after_fork(self) -> None:
        """In a child: see ``PullArguments``."""
        super().after_fork()
        self._starting = Guard(brief=False)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(None, all_handed_out=kind is None)

    def start(self) -> Self:
        """Make the consumer known and give it its queues; the first other call does it by itself.

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
                if self._is_closed:  # meanwhile, by a signal handler or another thread
                    self._io.call(self._engine.close(all_handed_out=False), self._settings.close_timeout_s)
                    self._check_open()
                self._is_started = True
                self._at_exit = _AtExit(self)
                close_at_exit(self._at_exit)
        return self

    def close(self, timeout_s: float | None = None) -> None:
        """End: with auto commit everything that was handed out is committed; the group's other members take over.

        Args: timeout_s: bound of the wait, by default ``close_timeout_s``.
        """
        self._close(timeout_s, all_handed_out=True)

    def _close(self, timeout_s: float | None, *, all_handed_out: bool) -> None:
        if self._is_closed or self._pid != os.getpid():
            return
        check_may_wait()
        self._is_closed = True
        if not self._is_started or not self._io.is_alive:
            return
        most = self._settings.close_timeout_s if timeout_s is None else timeout_s
        try:
            self._io.call(self._engine.close(all_handed_out=all_handed_out), max(0.1, most))
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

    def _call(self, work: Coroutine[Any, Any, T], timeout_s: float = CALL_S) -> T:
        try:
            self.start()
        except BaseException:
            work.close()
            raise
        return self._io.call(work, timeout_s)

    # --- which queues ---

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Read a topic with the group, from now on; a topic that is read already gets a new expression.

        Raises: UsageError, SubscriptionError (the broker refuses the SQL), ConnectError.
        """
        self._check_open()
        check_may_wait()
        wanted = new_subscription(topic, tags, sql, self._settings.namespace)
        if self._is_started:
            self._call(self._engine.shares.subscribe(wanted))
        else:
            self._engine.subscriptions[wanted.topic] = wanted

    def unsubscribe(self, topic: str) -> None:
        """Read a topic no more."""
        self._call(self._engine.shares.unsubscribe(self._topic(topic)))

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read just these queues, whoever else is in the group; nothing is rebalanced.

        Raises: UsageError where topics are subscribed; NoRoute, ConnectError.
        """
        self._call(self._engine.shares.assign(self._wired(queues)))

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic that can be read, of whichever member they are. Raises: NoRoute, ConnectError."""
        return self._plain(self._call(self._engine.queues(self._topic(topic))))

    def assignment(self) -> Mapping[MessageQueue, int]:
        """This member's queues -> the offset of the message that is handed out next; -1: not known yet."""
        self.start()
        return self._engine.positions()

    # --- messages ---

    def poll(self, timeout_s: float = 5.0, max_count: int = 32) -> Sequence[Delivery]:
        """The next messages, as soon as there are any; what earlier polls handed out is acknowledged.

        Args: timeout_s: how long to wait for the first message; 0: not at all. max_count: at most so many.
        Returns: an empty list at the end of the time.
        Raises: OffsetMoved, Refused, ClientClosed, ClientForked; UsageError where there is neither a topic nor a queue.
        """
        self._check_poll(timeout_s, max_count)
        self.start()
        cache = self._engine.cache
        deadline = time.monotonic() + timeout_s
        with cache.arrival:
            cache.acknowledge()
            while True:
                found = cache.take(max_count)
                left = deadline - time.monotonic()
                if found or left <= 0:
                    break
                cache.arrival.wait(left)
        refusal = None if found else self._engine.refusal(has_waited=timeout_s > 0)
        if refusal is not None:
            raise refusal
        return self._told(found)

    def __iter__(self) -> Iterator[Delivery]:
        """Messages until the consumer is closed. Each one is acknowledged when the loop asks for the next.

        A new loop begins at what was not acknowledged, the message in hand of the loop before included.
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
                    found = cache.next(before)
                    if found is None and not cache.arrival.wait(_LOOK_AGAIN_S):
                        refusal = self._engine.refusal()
                        if refusal is not None:
                            raise refusal
            except ClientClosed:
                return None
            if found is not None:
                self._told((found,))
                return found
            before = None

    def _check_fork(self) -> None:
        if self._pid != os.getpid():
            self._check_open()

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        tags: str = "*",
        sql: str | None = None,
        wait_s: float = 0,
    ) -> PullAnswer:
        """Read any queue at any offset, once; no offset of the group changes, and nobody has to be assigned.

        Args: wait_s: how long the broker may wait for a message, at most 60 s.
        Returns: status, messages, next_offset, min_offset, max_offset.
        Raises: BrokerError, NoRoute, ConnectError, CallTimeout, ConnectionLost, UsageError.
        """
        self._check_pull(offset, max_count, wait_s)
        steps = self._engine.pull(
            self._wire(queue), offset, max_count=max_count, tags=tags, sql=sql, wait_s=wait_s
        )  # fmt: skip
        return self._call(steps, wait_s + CALL_S)

    # --- offsets ---

    def seek(
        self, queue: MessageQueue, offset: int | Literal["earliest", "latest", "first", "last"] | datetime
    ) -> None:
        """Go on at an offset, the first message, behind the last one, or at a time; what is cached is dropped.

        Raises: UsageError: the queue is not assigned to this consumer, or has no such offset.
        """
        self._check_seek(offset)
        self._call(self._engine.seek(self._wire(queue), offset))

    def offset_at(self, queue: MessageQueue, when: When) -> int:
        """The offset of the first message that was stored at a time or later; behind the last one where none was."""
        milliseconds(when)
        return self._call(self._engine.offset_at(self._wire(queue), when))

    def committed(self, queue: MessageQueue) -> int | None:
        """The offset that is kept for the group; None: there is none."""
        return self._call(self._engine.committed(self._wire(queue)))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Keep these offsets, or those behind everything that was handed out; returns when they are kept.

        Raises: UsageError: beyond what was handed out, or of a queue that is not assigned (any more); what the broker
            or the offset store raises.
        """
        on_wire = self._checked_offsets(offsets)
        self._call(self._engine.commit(on_wire))

    # --- control ---

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull no more from these queues, or from all; what is cached is still handed out."""
        self._paused(queues, True)

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Pull again."""
        self._paused(queues, False)

    def _paused(self, queues: Iterable[MessageQueue] | None, paused: bool) -> None:
        self._call(self._engine.pause(None if queues is None else self._wired(queues), paused=paused))

    def stats(self) -> Mapping[str, Any]:
        """What this consumer does: queues, offsets, what is cached, and why nothing comes."""
        self._check_fork()
        check_may_wait()
        return self._engine.stats() if self._is_started else {"group": self.group}


class _AtExit:
    """Closes a consumer that nobody closed: what was acknowledged is committed, not the last batch."""

    def __init__(self, consumer: PullConsumer) -> None:
        self._consumer: Final = weakref.ref(consumer)

    def close(self, timeout_s: float | None = None) -> None:
        """As the end of the process asks."""
        consumer = self._consumer()
        if consumer is not None:
            consumer._close(timeout_s, all_handed_out=False)


class _Loop:
    """One loop over a consumer; a second one takes over from it."""

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
