"""The base of both pull consumers: arguments, checks, and the calls that differ only in how the caller waits.

Source: DefaultLitePullConsumer.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal, Self

from mqfast.client.consumer.allocation import Allocation
from mqfast.client.consumer.call import CALL_S, Work, engine_call
from mqfast.client.consumer.offsets import OffsetStore
from mqfast.client.consumer.on_demand import OnDemandConsumer
from mqfast.client.consumer.pull.engine import PullEngine, wire
from mqfast.client.consumer.pull.settings import (
    OffsetReset,
    PullSettings,
    pull_arguments,
    pull_settings,
    subscriptions_of,
)
from mqfast.client.consumer.pull_request import PullAnswer
from mqfast.client.consumer.subscription import checked_name
from mqfast.client.decompression import BODY_BYTES_MAX
from mqfast.client.delivery import Delivery
from mqfast.client.hooks import ClientHook, ConsumeContext, call_hooks
from mqfast.client.net.instance import ClientInstance
from mqfast.client.route.namespace import wrap
from mqfast.client.values import Address, Credentials, MessageQueue, When, milliseconds
from mqfast.errors import ClientUsageError
from mqfast.util.offset_words import end_word
from mqfast.util.validate import is_number, is_whole

__all__ = ["PullConsumerBase"]

_POLL_S_MAX: Final = 31 * 86_400


class PullConsumerBase(OnDemandConsumer):
    """Arguments, checks and calls of a pull consumer.

    Args:
        group: the consumer group; the members share the queues of the topics, and the offsets.
        namesrv_addr: name servers; None: $NAMESRV_ADDR.
        namespace, namespace_v2, address_map: as a producer's.
        topics: a topic, or topic -> tag expression.
        auto_commit_s: seconds between commits of acknowledged offsets; None: only ``commit()`` commits.
        pull_batch: messages per pull.
        model: ``"clustering"``: each message to a single member; ``"broadcasting"``: all messages to every member,
            with offsets in a file on this machine.
        from_where: the start of a group without an offset: after the last message, at the first message, at a time.
        allocation: a strategy by name, or an object; all members must use the same strategy.
        offset_store: a store of the user, in place of the brokers or the file.
        offset_reset: handling of messages that were deleted before the group has read them: ``"error"`` raises
            OffsetMoved until ``seek``; ``"earliest"`` and ``"latest"`` continue there, with a warning.
        max_cached_messages, max_cached_bytes: limits of a queue; max_cached_total: limit of all queues.
        max_body_bytes: limit of a decompressed body; reading a larger or damaged body is an error.
        trace: write a record of each message into the trace topic, or into the topic of this name.
        hooks: ``before_consume`` and ``after_consume`` are called when messages are handed out.
        start_timeout_s: how long ``start`` tries to reach a name server; 0: one attempt; None: no limit.
        close_timeout_s: limit of ``close()``.
    Raises: ConfigError, UsageError.
    """

    _kind = "pull consumer"
    _settings: PullSettings

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
        self._prepare()

    def _start_engine(self, is_closed: Callable[[], bool]) -> Coroutine[Any, Any, None]:
        return self._engine.start(is_closed)

    def _end_of_engine(self, *, all_handed_out: bool) -> Callable[[], Coroutine[Any, Any, None]]:
        return partial(self._engine.close, all_handed_out=all_handed_out)

    @property
    def _instance(self) -> ClientInstance:
        return self._engine.parts.instance

    @classmethod
    def from_java(cls, settings: Mapping[str, str | int | bool]) -> Self:
        """Create a consumer from DefaultLitePullConsumer's settings: Java's names and milliseconds.

        Raises: ConfigError.
        """
        return cls(**pull_arguments(settings))

    def _call_hooks(self, messages: Sequence[Delivery]) -> Sequence[Delivery]:
        """Call the hooks for messages that are handed out, as Java's poll does."""
        if self._settings.hooks and messages:
            context = ConsumeContext(messages, self.group, "receive")
            call_hooks(self._settings.hooks, "before_consume", context)
            call_hooks(self._settings.hooks, "after_consume", context)
        return messages

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
        for what, given, minimum in (("offset", offset, 0), ("max_count", max_count, 1)):
            if not is_whole(given, minimum):
                raise ClientUsageError(f"{what}: expected a whole number from {minimum} on, found {given!r}")
        if not is_number(wait_s, 0, 60):
            raise ClientUsageError(f"wait_s: expected seconds from 0 to 60, found {wait_s!r}")

    # --- which queues ---

    @engine_call
    def unsubscribe(self, topic: str) -> Work[None]:
        """Remove the subscription of a topic."""
        return Work(self._engine.unsubscribe(self._topic(topic)))

    @engine_call
    def assign(self, queues: Iterable[MessageQueue]) -> Work[None]:
        """Read exactly these queues, whatever other members of the group read; without rebalance.

        Raises: UsageError where topics are subscribed; NoRoute, ConnectError.
        """
        return Work(self._engine.assign(self._wired(queues)))

    @engine_call
    def queues(self, topic: str) -> Work[Sequence[MessageQueue]]:
        """Return all readable queues of a topic, also those of other members. Raises: NoRoute, ConnectError."""
        return Work(self._engine.queues(self._topic(topic)))

    # --- messages ---

    @engine_call
    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        *,
        max_count: int = 32,
        tags: str = "*",
        sql: str | None = None,
        wait_s: float = 0,
    ) -> Work[PullAnswer]:
        """Pull once from any queue at any offset, without an assignment; no offset of the group changes.

        Args: wait_s: how long the broker may wait for a message, at most 60 s.
        Returns: status, messages, next_offset, min_offset, max_offset.
        Raises: BrokerError, NoRoute, ConnectError, CallTimeout, ConnectionLost, UsageError.
        """
        self._check_pull(offset, max_count, wait_s)
        on_wire = self._wire(queue)
        pull = self._engine.pull(on_wire, offset, max_count=max_count, tags=tags, sql=sql, wait_s=wait_s)
        return Work(pull, wait_s + CALL_S)

    # --- offsets ---

    @engine_call
    def seek(
        self, queue: MessageQueue, offset: int | Literal["earliest", "latest", "first", "last"] | datetime
    ) -> Work[None]:
        """Continue at an offset, at the first message, after the last one, or at a time; cached messages are dropped.

        Raises: UsageError: the queue is not assigned to this consumer, or has no such offset.
        """
        self._check_seek(offset)
        return Work(self._engine.seek(self._wire(queue), offset))

    @engine_call
    def offset_at(self, queue: MessageQueue, when: When) -> Work[int]:
        """Return the offset of the first message stored at this time or later; without such a message the end."""
        milliseconds(when)
        return Work(self._engine.offset_at(self._wire(queue), when))

    @engine_call
    def committed(self, queue: MessageQueue) -> Work[int | None]:
        """Return the committed offset of the group; None: there is none."""
        return Work(self._engine.committed(self._wire(queue)))

    @engine_call
    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> Work[None]:
        """Commit these offsets, or those after all messages that were handed out; return after the commit.

        Raises: UsageError: beyond the messages that were handed out, or a queue that is not assigned (any more); the
            errors of the broker or of the offset store.
        """
        return Work(self._engine.commit(self._checked_offsets(offsets)))

    # --- control ---

    @engine_call
    def pause(self, queues: Iterable[MessageQueue] | None = None) -> Work[None]:
        """Stop pulling these queues, or all queues; cached messages are still handed out."""
        return Work(self._engine.pause(None if queues is None else self._wired(queues), paused=True))

    @engine_call
    def resume(self, queues: Iterable[MessageQueue] | None = None) -> Work[None]:
        """Resume the pulls of these queues, or of all queues."""
        return Work(self._engine.pause(None if queues is None else self._wired(queues), paused=False))
