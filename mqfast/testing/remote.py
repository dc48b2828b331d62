"""A real cluster with the methods of a Broker, as far as clients can: the same tests run there (``--rocketmq=``).

Queries omit messages from before a test; consumers get these messages, since offsets are not changed. Calls that need a
test's own broker are refused, so that the plug-in skips the test. Existing data is neither deleted nor changed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

from mqfast.client import AdminClient, MessageQueue, Producer, PullConsumer
from mqfast.client.values import PullStatus
from mqfast.errors import ClientError, NoRoute
from mqfast.testing.broker_base import BrokerArguments, named_topics
from mqfast.testing.cluster_clients import ClusterClients
from mqfast.testing.wait_helpers import until_true

if TYPE_CHECKING:
    from mqfast.client.delivery import Delivery
    from mqfast.client.values import Body, SendResult

__all__ = ["RemoteBroker"]

_READER: Final = "mqfast-testing-reader"
_PULLED: Final = 32


class RemoteBroker(ClusterClients):
    """The cluster behind these name servers.

    Args: refuse: called with the name of a call that a real cluster cannot do; raises.
    Thread: one at a time. Raises: ClientError if the cluster is unreachable.
    """

    def __init__(self, namesrv_addr: str, refuse: Callable[[str], NoReturn]) -> None:
        self._namesrv_addr = namesrv_addr
        self._refuse = refuse
        self._admin: Any = AdminClient(namesrv_addr)
        self._reader = PullConsumer(_READER, namesrv_addr, auto_commit_s=None)
        self._producer = Producer("mqfast-testing-producer", namesrv_addr)
        self._clients: list[Any] = []
        self._begins: dict[MessageQueue, int] = {}

    @property
    def namesrv_addr(self) -> str:
        """Return the addresses of the name servers, for clients."""
        return self._namesrv_addr

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(name)

    def close(self) -> None:
        """Close all clients."""
        self.close_clients()
        for client in (self._reader, self._producer, self._admin):
            client.close()

    def reset(self) -> None:
        """Hide the messages that the topics have now."""
        self._begins.clear()
        for topic in self._admin.topics():
            try:
                for queue, stats in self._admin.topic_stats(topic).items():
                    self._begins[queue] = stats[1]
            except ClientError:
                continue  # a topic without a broker now

    def prepare_reset(self) -> None:
        """Do nothing: a real cluster cannot prepare."""

    # --- topics and messages ---

    def create_topics(self, *, topics: Iterable[str] | Mapping[str, int] = (), groups: Iterable[str] = ()) -> None:
        """Create topics and groups, as ``Broker.create_topics``; they stay."""
        there = set(self._admin.topics())
        for topic, queues in named_topics(topics).items():
            if topic not in there:
                self._admin.create_topic(topic, queues=queues)
        for group in [groups] if isinstance(groups, str) else groups:
            self._admin.create_group(group)

    def create_topic(self, topic: str, queues: int = 4, *, perm: str = "rw", order: bool = False) -> None:
        """Create a topic, as ``Broker.create_topic``."""
        self._admin.create_topic(topic, queues=queues, perm=perm, order=order)

    def send(self, topic: str, *bodies: Body, **fields: Any) -> Sequence[SendResult]:
        """Send, as ``Broker.send``, by a producer."""
        queue_id, broker = fields.pop("queue_id", None), fields.pop("broker", None)
        if queue_id is not None or broker is not None:
            wanted = [
                queue
                for queue in self._producer.queues(topic)
                if queue_id in (None, queue.queue_id) and broker in (None, queue.broker_name)
            ]
            if not wanted:
                raise NoRoute(f"{topic}: expected a queue {queue_id} of broker {broker}, found none")
            fields["queue"] = wanted[0]
        return [self._producer.send(topic, body, **fields) for body in bodies]

    # --- query ---

    def messages(
        self, topic: str, *, queue_id: int | None = None, tags: str | None = None, key: str | None = None
    ) -> Sequence[Delivery]:
        """Return messages, as ``Broker.messages``, since the begin of the test."""
        wanted = None if tags in (None, "", "*") else {tag.strip() for tag in str(tags).split("||")}
        try:
            queues = self._reader.queues(topic)
        except NoRoute:
            return []
        matching = [
            message
            for queue in queues
            if queue_id in (None, queue.queue_id)
            for message in self._in_queue(queue)
            if (wanted is None or message.tags in wanted) and (key is None or key in message.keys)
        ]
        return sorted(matching, key=lambda message: (message.store_timestamp, message.queue, message.queue_offset))

    def _in_queue(self, queue: MessageQueue) -> list[Delivery]:
        deliveries: list[Delivery] = []
        at = self._begins.get(queue, 0)
        while True:
            answer = self._reader.pull(queue, at, max_count=_PULLED)
            deliveries += answer.messages
            if answer.status not in (PullStatus.FOUND, PullStatus.NO_MATCHED_MSG) or answer.next_offset <= at:
                return deliveries
            at = answer.next_offset

    def dead_letters(self, group: str) -> Sequence[Delivery]:
        """Return dead letters, as ``Broker.dead_letters``."""
        return self.messages(f"%DLQ%{group}")

    def offset(self, group: str, topic: str) -> Mapping[MessageQueue, int]:
        """Return offsets, as ``Broker.offset``."""
        lags: Mapping[MessageQueue, Any] = self._admin.lag(group, topic)
        return {queue: lag[0] for queue, lag in lags.items() if lag[0] >= 0}

    def describe(self) -> str:
        """Return the known facts about the cluster."""
        return f"--- the cluster at {self.namesrv_addr}: messages of before this test are not counted ---"

    def picture(self) -> str:
        """Return ``describe``; the former name."""
        warnings.warn("RemoteBroker.picture is describe now", DeprecationWarning, stacklevel=2)
        return self.describe()

    # --- wait and assert ---

    def wait_for(self, topic: str, count: int = 1, *, timeout_s: float = 5.0, **match: Any) -> Sequence[Delivery]:
        """Wait, as ``Broker.wait_for``."""
        wanted = BrokerArguments(topic, match)
        messages: list[Delivery] = []

        def is_there() -> bool:
            messages[:] = wanted.among(self.messages)
            return len(messages) >= count

        if not until_true(is_there, timeout_s):
            self._fail(f"wait_for: expected {count} messages {wanted} within {timeout_s:g} s, found {len(messages)}")
        return messages

    def wait_consumed(self, group: str, topic: str | None = None, *, timeout_s: float = 5.0) -> None:
        """Wait, as ``Broker.wait_consumed``; consumers report progress every five seconds."""

        def is_done() -> bool:
            try:
                return all(lag[1] <= 0 for lag in self._admin.lag(group, topic).values())
            except ClientError:
                return False

        if not until_true(is_done, timeout_s):
            self._fail(f"wait_consumed: expected group {group} to have consumed all within {timeout_s:g} s")

    def wait_until(self, condition: Callable[[], object], *, timeout_s: float = 5.0) -> None:
        """Wait, as ``Broker.wait_until``."""
        if not until_true(condition, timeout_s):
            name = getattr(condition, "__name__", repr(condition))
            self._fail(f"wait_until: expected {name} to be true within {timeout_s:g} s")

    def wait_members(self, group: str, count: int, *, timeout_s: float = 5.0) -> None:
        """Wait, as ``Broker.wait_members``."""

        def are_there() -> bool:
            try:
                return len(self._admin.connections(group)) == count
            except ClientError:
                return count == 0

        if not until_true(are_there, timeout_s):
            self._fail(f"wait_members: expected {count} members of group {group} within {timeout_s:g} s")

    def assert_sent(
        self,
        topic: str,
        *,
        body: Body | None = None,
        tags: str | None = None,
        key: str | None = None,
        times: int | None = None,
    ) -> Sequence[Delivery]:
        """Assert, as ``Broker.assert_sent``."""
        wanted = BrokerArguments(topic, {"body": body, "tags": tags, "key": key})
        messages = wanted.among(self.messages)
        if len(messages) != times if times is not None else not messages:
            expected = "a message" if times is None else f"{times} messages"
            self._fail(f"assert_sent: expected {expected} {wanted}, found {len(messages)}")
        return messages

    def assert_nothing_sent(self, topic: str) -> None:
        """Assert, as ``Broker.assert_nothing_sent``."""
        messages = self.messages(topic)
        if messages:
            self._fail(f"assert_nothing_sent: expected no message in {topic}, found {len(messages)}")

    def _fail(self, text: str) -> NoReturn:
        raise AssertionError(f"{text}\n{self.describe()}")
