"""PullConsumer: the application polls messages in its own threads.

The engine runs in the thread "mqfast-io"; messages are handed out of the prefetch buffer in the thread of the caller.
A loop gets no message twice, and no wait is without a deadline.
Source: DefaultLitePullConsumer, DefaultMQPullConsumer.pull.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mqfast.client.consumer.call import Work
from mqfast.client.consumer.on_demand import SyncOnDemandConsumer
from mqfast.client.consumer.pull.pull_base import PullConsumerBase
from mqfast.client.consumer.pull.settings import new_subscription
from mqfast.client.delivery import Delivery
from mqfast.client.net.guard import check_may_wait
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientClosed

__all__ = ["PullConsumer"]

_LOOK_AGAIN_S: Final = 5.0


class PullConsumer(SyncOnDemandConsumer, PullConsumerBase):
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

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the group; with auto commit, commit all messages that were handed out.

        Args: timeout_s: limit of the wait, by default ``close_timeout_s``.
        """
        self._close(timeout_s, all_handed_out=True)

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
