"""Name servers and brokers inside of the test process, with the actions, queries and waits of a test.

The event loop of the application is not used, and ``close`` ends every thread, file and connection. The servers are
those of ``mqfast namesrv`` and ``mqfast broker``; see ``cluster.py``.
"""

from __future__ import annotations

import atexit
import functools
import os
import string
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from mqfast.errors import UsageError
from mqfast.message import broker_accepts_topic
from mqfast.testing import checks, store_inspection
from mqfast.testing.cluster import AT_ONCE, RunningCluster, check_settings
from mqfast.testing.cluster_actions import Acts
from mqfast.testing.cluster_clients import ClusterClients
from mqfast.testing.event_loop_thread import EventLoopThread
from mqfast.testing.faults import Faults
from mqfast.testing.request_recorder import TimeSteps
from mqfast.testing.scratch_directories import ScratchDirectory
from mqfast.testing.virtual_clock import Clock, Time
from mqfast.testing.wait_helpers import WAIT_S_MAX, Waits, describe, stopped_loop, until_true

if TYPE_CHECKING:
    from datetime import datetime

    from mqfast.client.delivery import Delivery
    from mqfast.client.values import Body, MessageQueue, SendResult
    from mqfast.testing.fault_injection import Asked

__all__ = ["BrokerArguments", "BrokerBase", "named_topics"]

_T = TypeVar("_T")
_BROKERS_MAX: Final = 26
_QUEUES: Final = 4


class BrokerBase(ClusterClients):
    """The calls of ``Broker``, served by a cluster of this process."""

    clock: Clock
    faults: Faults

    def __init__(
        self,
        *,
        topics: Iterable[str] | Mapping[str, int] = (),
        groups: Iterable[str] = (),
        brokers: int = 1,
        name_servers: int = 1,
        store: Path | str | None = None,
        virtual_time: bool = False,
        auto_create_topics: bool = True,
        retry_at_once: bool = True,
        config: Mapping[str, str] | None = None,
        process: bool = False,
    ) -> None:
        self._topics = named_topics(topics)
        self._groups = named_groups(groups)
        self._names = [
            f"broker-{letter}" for letter in string.ascii_lowercase[: checks.whole("brokers", brokers, 1, _BROKERS_MAX)]
        ]
        self._name_servers = checks.whole("name_servers", name_servers, 1, _BROKERS_MAX)
        self._store = None if store is None else os.path.abspath(store)
        self._virtual_time = checks.flag("virtual_time", virtual_time)
        checks.flag("auto_create_topics", auto_create_topics)
        checks.flag("retry_at_once", retry_at_once)
        check_settings(config or {})
        self._config = {
            "autoCreateTopicEnable": str(auto_create_topics).lower(),
            **({"messageDelayLevel": AT_ONCE} if retry_at_once and not virtual_time else {}),
            **{name: str(value) for name, value in (config or {}).items()},
        }
        self._pid = os.getpid()
        self._place: ScratchDirectory | None = None
        self._host: EventLoopThread
        self._cluster: RunningCluster
        self._clients: list[Any] = []
        self._started = False
        self._namesrv_addr = ""
        self._addresses: Mapping[str, str] = {}

    # --- start and end ---

    def start(self) -> Self:
        """Start; ``with`` does as well. Raises: OSError without a directory or port; as ``open_store``."""
        if self._started:
            raise UsageError("start: expected a broker that is not started, found one that is")
        self._place = ScratchDirectory()
        try:
            return self.start_at(self._place.path, {})
        except BaseException:
            self._place.remove()
            raise

    def start_at(self, path: str, state: Mapping[str, Any]) -> Self:
        """Start in a directory of the caller, on the ports and stores of an earlier ``state``."""
        self._host = EventLoopThread()
        try:
            root = path if self._store is None else self._store
            stores = {name: os.path.join(root, name) for name in self._names}
            if self._store is not None and len(stores) == 1:
                stores = dict.fromkeys(stores, root)
            self._time = Time(stands=self._virtual_time)
            self._cluster = RunningCluster(
                path,
                stores,
                self._config,
                topics=self._topics,
                groups=self._groups,
                time_=self._time,
                name_servers=self._name_servers,
            )
            self._cluster.restore_state(state)
            self._host.run(self._cluster.start())
            self._namesrv_addr = self._cluster.namesrv_addr
            self._addresses = {member.name: f"127.0.0.1:{member.port}" for member in self._cluster.members.values()}
        except BaseException:
            self._host.close()
            raise
        self._started = True
        self._waits = Waits(self._cluster)
        self._acts = Acts(self._cluster)
        self._steps = TimeSteps(self._cluster, self._waits)
        self.faults = Faults(self._host, self._cluster)
        self.clock = Clock(self._time, self._advance_to, lambda: self._host.run(self._steps.next_ms()))
        _running.add(self)
        return self

    def _advance_to(self, ms: int) -> int:
        return self._host.run(self._steps.advance_to(ms), timeout_s=600)

    def close(self) -> None:
        """Close the clients of this broker, then the servers; remove the files. A second call does nothing."""
        if not self._started or self._pid != os.getpid():
            return
        self._started = False
        _running.discard(self)
        try:
            self.close_clients()
            self._host.run(self._cluster.close())
        finally:
            self._host.close()
            if self._place is not None:
                self._place.remove()

    def close_at_exit(self) -> None:
        """Remove the files without an orderly end, at the exit of the interpreter."""
        if self._started and self._pid == os.getpid() and self._place is not None:
            self._cluster.close_at_exit(keeps_stores=self._store is not None)
            self._place.remove()

    def state(self) -> Mapping[str, Any]:
        """Return ports and stores, for ``start_at``."""
        return self._call(self._cluster.state)

    def flushed(self) -> Mapping[str, int]:
        """Return the directory of each open store, and the physical offset up to which syncs came."""
        return self._call(self._cluster.flushed)

    def __enter__(self) -> Self:
        return self if self._started else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name in ("clock", "faults"):
            raise UsageError(f"{name}: expected a broker that is started, found one that is not: use it by `with`")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _check_started(self) -> None:
        if not self._started:
            raise UsageError("expected a broker that is started, found one that is not: use it by `with`")

    def _call(self, function: Callable[..., _T], /, *args: Any, **kwargs: Any) -> _T:
        self._check_started()
        return self._host.call(function, *args, **kwargs)

    @property
    def namesrv_addr(self) -> str:
        """The name servers, as ``127.0.0.1:40001;127.0.0.1:40002``; readable in a forked child, too."""
        self._check_started()
        return self._namesrv_addr

    @property
    def addresses(self) -> Mapping[str, str]:
        """Name -> host:port of every broker; readable in a forked child, too."""
        self._check_started()
        return dict(self._addresses)

    @property
    def endpoints(self) -> str:
        """The brokers for SDKs of RocketMQ 5.x (gRPC), as ``127.0.0.1:40003;127.0.0.1:40004``, without TLS."""
        return ";".join(self.addresses.values())

    # --- servers ---

    def reset(self) -> None:
        """Empty everything: messages, offsets, groups, faults, requests, clock.

        Clients go on, also those that were made here; ports and the topics of the constructor stay; servers that were
        ended serve again.
        Raises: UsageError where the store is one that is kept.
        """
        if self._store is not None:
            raise UsageError("reset: expected a store that is not kept, found store=...; start a new Broker")
        self._call(lambda: None)
        self._host.run(self._cluster.reset())
        self._steps.reset()

    def prepare_reset(self) -> None:
        """Open the store of the next ``reset`` in the background, which makes the reset faster."""
        if self._store is None:
            self._call(self._cluster.prepare_all)

    def stop(self, broker: str = "") -> None:
        """Stop a broker as SIGTERM does; all brokers for an empty name; name servers are namesrv-1, namesrv-2, ...

        Raises: UsageError for a name that is none.
        """
        self._call(lambda: None)
        self._host.run(self._cluster.stop(broker))

    def kill(self, broker: str = "", *, power_loss: bool = False) -> None:
        """Kill a broker as SIGKILL does: connections break, and nothing more is answered or written.

        Args: power_loss: what no sync covered is lost as well. Raises: UsageError.
        """
        self._call(lambda: None)
        self._host.run(self._cluster.kill(broker, power_loss=power_loss))

    def restart(self, broker: str = "") -> None:
        """Restart a broker on its port and with the content of its store. Raises: UsageError."""
        self._call(lambda: None)
        self._host.run(self._cluster.restart(broker))

    # --- topics and messages ---

    def create_topics(self, *, topics: Iterable[str] | Mapping[str, int] = (), groups: Iterable[str] = ()) -> None:
        """Create topics and groups until the next ``reset``. Args: those of the constructor. Raises: UsageError."""
        named = named_topics(topics)
        wanted = named_groups(groups)
        self._call(lambda: None)
        if named or wanted:
            self._host.run(self._cluster.create_all(named, wanted))

    def create_topic(self, topic: str, queues: int = _QUEUES, *, perm: str = "rw", order: bool = False) -> None:
        """Create or change a topic on all brokers; the name servers know the topic on return. Raises: UsageError."""
        self._call(lambda: None)
        self._host.run(self._acts.create_topic(topic, queues, perm=perm, order=order))

    def send(self, topic: str, *bodies: Body, **fields: Any) -> Sequence[SendResult]:
        """Store messages by the brokers themselves: without a producer, and unaffected by faults of connections.

        Args: fields: tags, keys, properties, queue_id, broker, sharding_key, delay_level, delay_s, deliver_at.
        Returns: a SendResult for each body. Raises: UsageError; BrokerError for a message that a broker refuses.
        """
        self._call(lambda: None)
        return self._host.run(self._acts.send(topic, bodies, fields))

    # --- query ---

    def messages(
        self, topic: str, *, queue_id: int | None = None, tags: str | None = None, key: str | None = None
    ) -> Sequence[Delivery]:
        """Return the messages of a topic in the order of storage. Args: tags: ``"a || b"``."""
        return self._call(store_inspection.messages, self._cluster, topic, queue_id=queue_id, tags=tags, key=key)

    def dead_letters(self, group: str) -> Sequence[Delivery]:
        """Return the dead letters of a group."""
        return self.messages(f"%DLQ%{group}")

    def scheduled(self) -> Sequence[tuple[datetime, Delivery]]:
        """Return the scheduled messages, the next first; the property REAL_TOPIC names the topic."""
        return self._call(store_inspection.scheduled, self._cluster)

    def offset(self, group: str, topic: str) -> Mapping[MessageQueue, int]:
        """Return the committed offsets of a group."""
        return self._call(store_inspection.committed, self._cluster, group, topic)

    def requests(self, *codes: int) -> Sequence[Asked]:
        """Return the last 10,000 requests of clients to brokers and name servers, in order. Args: codes: only these."""
        wanted = {int(code) for code in codes}
        return self._call(lambda: [asked for asked in self._cluster.gate.asked if not wanted or asked.code in wanted])

    def describe(self) -> str:
        """Return the cluster as text, as failures show the cluster."""
        return self._call(describe, self._cluster)

    def picture(self) -> str:
        """Return ``describe``; the former name."""
        warnings.warn("Broker.picture is describe now", DeprecationWarning, stacklevel=2)
        return self.describe()

    # --- wait ---

    def wait_for(self, topic: str, count: int = 1, *, timeout_s: float = 5.0, **match: Any) -> Sequence[Delivery]:
        """Wait until a topic has so many messages. Returns: the matching messages.

        Args: match: as ``assert_sent``: body, tags, key; queue_id. Raises: AssertionError with the state of the
            cluster.
        """
        wanted = BrokerArguments(topic, match)
        checks.seconds("timeout_s", timeout_s, WAIT_S_MAX)
        checks.whole("count", count, 0, 1 << 31)
        seen: list[Delivery] = []
        self._call(lambda: None)
        look_at = functools.partial(store_inspection.messages, self._cluster)

        def look_for() -> Sequence[Delivery] | None:
            seen[:] = wanted.among(look_at)
            return seen if len(seen) >= count else None

        self._call(lambda: None)
        messages = self._host.run(self._waits.until(look_for, timeout_s), timeout_s + 60)
        if messages is None:
            self._fail(f"wait_for: expected {count} messages {wanted} within {timeout_s:g} s, found {len(seen)}")
        return list(seen)

    def wait_consumed(self, group: str, topic: str | None = None, *, timeout_s: float = 5.0) -> None:
        """Wait until a group has consumed all messages: of a topic, or of all its topics, retries included.

        Raises: AssertionError with the state of the cluster.
        """

        def look_for() -> bool | None:
            topics = store_inspection.topics_of(self._cluster, group) if topic is None else [topic, f"%RETRY%{group}"]
            is_known = topic is not None or topics
            done = is_known and all(
                lag.behind <= 0 for name in topics for lag in store_inspection.lags(self._cluster, group, name)
            )
            return True if done and not store_inspection.is_delivering(self._cluster, topics) else None

        checks.seconds("timeout_s", timeout_s, WAIT_S_MAX)
        self._call(lambda: None)
        if self._host.run(self._waits.until(look_for, timeout_s, nudge=group), timeout_s + 60) is None:
            what = "all" if topic is None else f"all of {topic}"
            self._fail(f"wait_consumed: expected group {group} to have consumed {what} within {timeout_s:g} s")

    def wait_until(self, condition: Callable[[], object], *, timeout_s: float = 5.0) -> None:
        """Wait until a condition is true. Raises: AssertionError with the state of the cluster; errors of the
        condition.
        """
        if not until_true(condition, timeout_s):
            name = getattr(condition, "__name__", repr(condition))
            self._fail(f"wait_until: expected {name} to be true within {timeout_s:g} s")

    def wait_members(self, group: str, count: int, *, timeout_s: float = 5.0) -> None:
        """Wait until a consumer group has so many members. Raises: AssertionError with the state of the cluster."""

        checks.seconds("timeout_s", timeout_s, WAIT_S_MAX)
        checks.whole("count", count, 0, 1 << 31)

        def look_for() -> bool | None:
            return True if len(store_inspection.members_of(self._cluster, group)) == count else None

        self._call(lambda: None)
        if self._host.run(self._waits.until(look_for, timeout_s), timeout_s + 60) is None:
            self._fail(f"wait_members: expected {count} members of group {group} within {timeout_s:g} s")

    # --- assert ---

    def assert_sent(
        self,
        topic: str,
        *,
        body: Body | None = None,
        tags: str | None = None,
        key: str | None = None,
        times: int | None = None,
    ) -> Sequence[Delivery]:
        """Assert that a topic has such a message; with times: exactly so many. Returns: the messages. Raises:
        AssertionError.
        """
        wanted = BrokerArguments(topic, {"body": body, "tags": tags, "key": key})
        messages: list[Delivery] = wanted.among(self.messages)
        if len(messages) != times if times is not None else not messages:
            expected = "a message" if times is None else f"{times} messages"
            self._fail(f"assert_sent: expected {expected} {wanted}, found {len(messages)}")
        return messages

    def assert_nothing_sent(self, topic: str) -> None:
        """Assert that a topic has no message. Raises: AssertionError."""
        messages = self.messages(topic)
        if messages:
            self._fail(f"assert_nothing_sent: expected no message in {topic}, found {len(messages)}")

    def assert_consumed_once(self, group: str, topic: str) -> None:
        """Assert that a group got every message of a topic once, and sent none back. Raises: AssertionError."""
        wrong = self._call(self._acts.consumed_otherwise, group, topic)
        if wrong:
            self._fail(f"assert_consumed_once: expected every message of {topic} once for group {group}, found {wrong}")

    def assert_in_order(self, topic: str, *, by: str = "__SHARDINGKEY") -> None:
        """Assert that messages with the same value of a property are in one queue, in the order of their birth.

        Raises: AssertionError.
        """
        wrong = self._call(self._acts.out_of_order, topic, by)
        if wrong:
            self._fail(f"assert_in_order: expected messages of {topic} in order by {by}, found {wrong}")

    def _fail(self, text: str) -> None:
        hint = stopped_loop() if text.startswith("wait_") else ""
        raise AssertionError(f"{text}{hint}\n{self.describe()}")


class BrokerArguments:
    """Arguments that select messages of a topic. Raises: UsageError."""

    def __init__(self, topic: str, match: Mapping[str, Any]) -> None:
        unknown = match.keys() - {"body", "tags", "key", "queue_id"}
        if unknown:
            raise UsageError(f"expected body, tags, key or queue_id to match, found {', '.join(sorted(unknown))}")
        self._topic = topic
        self._fields = {name: value for name, value in match.items() if value is not None}
        body = self._fields.pop("body", None)
        if body is not None and not isinstance(body, (str, bytes, bytearray, memoryview)):
            raise UsageError(f"body: expected bytes or text, found {body!r}")
        self._body = body.encode() if isinstance(body, str) else None if body is None else bytes(body)

    def among(self, messages: Callable[..., Sequence[Delivery]]) -> list[Delivery]:
        """Return the matching messages. Args: messages: as ``Broker.messages``."""
        sent = list(messages(self._topic, **self._fields))
        return sent if self._body is None else [message for message in sent if message.body == self._body]

    def __str__(self) -> str:
        fields = {**({"body": self._body} if self._body is not None else {}), **self._fields}
        return f"in {self._topic}" + "".join(f", {name}={value!r}" for name, value in fields.items())


def named_topics(topics: Iterable[str] | Mapping[str, int]) -> dict[str, int]:
    """Return name -> queues. Raises: UsageError."""
    from mqfast.broker.metadata.topic_manager import illegal_topic

    if isinstance(topics, Mapping):
        named = dict(topics)
    else:
        named = dict.fromkeys([topics] if isinstance(topics, str) else topics, _QUEUES)
    for name, queues in named.items():
        wrong = illegal_topic(name) if isinstance(name, str) else f"expected a name, found {name!r}"
        if wrong:
            raise UsageError(f"topics: {wrong}")
        checks.whole(f"topics: queues of {name}", queues, 1, 1024)
    return named


def named_groups(groups: Iterable[str]) -> list[str]:
    """Return the names of groups. Raises: UsageError."""
    names = [groups] if isinstance(groups, str) else list(groups)
    for given in names:
        name: object = given
        if not isinstance(name, str) or not broker_accepts_topic(name):
            raise UsageError(f"groups: expected 1 to 127 of the characters a-z, A-Z, 0-9, % | - _, found {given!r}")
    return names


_running: weakref.WeakSet[BrokerBase] = weakref.WeakSet()


def _leave_all() -> None:
    """Remove all files at the exit of the interpreter, when no thread can be started any more."""
    for broker in list(_running):
        broker.close_at_exit()


atexit.register(_leave_all)
