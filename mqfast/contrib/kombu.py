"""A transport of kombu, and so of Celery, over this client: ``import mqfast.contrib.kombu``, then
``mqfast://host:9876//``.

    queue "celery"         topic kombu-celery, shared by the group kombu-celery
    exchange "pidbox"      topic kombu-x-pidbox: every queue that is bound to a fanout exchange, or that ends with its
                           consumer, reads all of it from its binding on, and keeps what matches

A publisher puts a message into the topics of all known bound durable queues. Without a known queue, and for a fanout
exchange, the message goes into the topic of the exchange.

A message is confirmed only after the acknowledgement of the application, and clients of a parent process are not used.
Readers are in ``kombu_readers.py``. Limits: docs/integrations.md.
"""

from __future__ import annotations

import base64
import os
import time
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, Final

try:
    from kombu.transport import TRANSPORT_ALIASES, virtual
    from kombu.transport.base import Transport as _BaseTransport
    from kombu.utils.json import dumps, loads
    from kombu.utils.uuid import uuid
except ModuleNotFoundError as error:
    text = f"mqfast.contrib.kombu needs {error.name}: pip install 'mqfast[kombu]'"
    raise ModuleNotFoundError(text, name=error.name) from None

from mqfast.client.admin.admin_client import AdminClient
from mqfast.client.delivery import Delivery
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Credentials
from mqfast.contrib.kombu_readers import SharedReader, TailReader
from mqfast.errors import BrokerError, ClientError, NoRoute

__all__ = ["Channel", "Transport"]

_PLAIN: Final = frozenset(b"-_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_LOOK_S: Final = 0.5
_FULL_S: Final = 0.05
_TURN_S: Final = 1.0

TRANSPORT_ALIASES["mqfast"] = "mqfast.contrib.kombu:Transport"


def name_of(name: str, prefix: str = "kombu-") -> str:
    """Return the topic or group for a name of AMQP: characters outside of RocketMQ's are written as ``%2E``; one to
    one.
    """
    return prefix + "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode())


class Channel(virtual.Channel):
    """A channel. Thread: that of the connection; acknowledgements: any."""

    supports_fanout = True

    def __init__(self, connection: Transport, **kwargs: Any) -> None:
        super().__init__(connection, **kwargs)
        self._transport = connection
        self._pid = os.getpid()
        self._open: dict[str, tuple[SharedReader, Any]] = {}  # delivery tag -> reader and outcome
        self._no_ack: set[str] = set()

    # --- queues and exchanges ---

    def _new_queue(self, queue: str, **kwargs: Any) -> None:
        if kwargs.get("auto_delete") or kwargs.get("exclusive"):
            self._transport.passing.add(queue)
        else:
            self._transport.ensure(name_of(queue), self._transport.topic_queues)

    def _has_queue(self, queue: str, **kwargs: Any) -> bool:
        return queue in self._transport.passing or self._transport.has_topic(name_of(queue))

    def _queue_bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        kind = self.typeof(exchange)
        if kind.type != "fanout" and queue not in self._transport.passing:
            return

        def accepts(key: str) -> bool:
            return kind.type == "fanout" or bool(kind._match(pattern, key) if pattern else key == routing_key)

        self._transport.tail(queue).bind(self._transport.exchange_topic(exchange), accepts)

    def _delete(self, queue: str, *args: Any, **kwargs: Any) -> None:
        if queue in self._transport.passing:
            self._transport.drop_reader(queue)
        else:
            self._purge(queue)

    def queue_delete(self, queue: str, if_unused: bool = False, if_empty: bool = False, **kwargs: Any) -> None:
        """Delete a queue; its waiting messages are skipped. The topic stays."""
        if if_empty and self._size(queue):
            return
        is_bound = any(True for _ in self.state.queue_bindings(queue))
        super().queue_delete(queue, if_unused, **kwargs)
        if queue in self._transport.passing:
            self._transport.drop_reader(queue)
        elif not is_bound:  # of the anonymous exchange
            self._purge(queue)

    def _size(self, queue: str) -> int:
        reader = self._transport.readers.get(queue)
        if isinstance(reader, TailReader):
            return len(reader)
        return self._transport.waiting(name_of(queue))

    def _purge(self, queue: str) -> int:
        reader = self._transport.readers.get(queue)
        if isinstance(reader, TailReader):
            return reader.purge()
        count = self._transport.skip(name_of(queue))
        if reader is not None:
            reader.purge()
        return count

    # --- publish ---

    def basic_publish(self, message: dict[str, Any], exchange: str, routing_key: str, **kwargs: Any) -> None:
        """Publish to the known bound durable queues, else to the topic of the exchange."""
        self._inplace_augment_message(message, exchange, routing_key)
        if not exchange:
            self._put(routing_key, message)
            return
        lasting: list[str] = []
        if self.typeof(exchange).type != "fanout":
            lasting = [name for name in self._lookup(exchange, routing_key) if name not in self._transport.passing]
        for queue in lasting:
            self._put(queue, message)
        if not lasting:
            self._put_fanout(exchange, message, routing_key)

    def _put(self, queue: str, message: dict[str, Any], **kwargs: Any) -> None:
        topic = name_of(queue)
        self._transport.ensure(topic, self._transport.topic_queues)
        self._transport.send(topic, message)

    def _put_fanout(self, exchange: str, message: dict[str, Any], routing_key: str, **kwargs: Any) -> None:
        self._transport.send(self._transport.exchange_topic(exchange), message, routing_key)

    # --- consume ---

    def basic_consume(self, queue: str, no_ack: bool, *args: Any, **kwargs: Any) -> Any:
        """Consume from a queue."""
        if no_ack:
            self._no_ack.add(queue)
        self._transport.reader(queue)
        return super().basic_consume(queue, no_ack, *args, **kwargs)

    def basic_cancel(self, consumer_tag: str) -> Any:
        """Cancel a consumer; its messages may still be acknowledged."""
        queue = self._tag_to_queue.get(consumer_tag)
        result = super().basic_cancel(consumer_tag)
        if queue is not None and queue not in self._active_queues and self._is_mine:
            self._no_ack.discard(queue)
            if queue in self._transport.passing:
                self.queue_delete(queue)
            else:
                self._transport.drop_reader(queue)
        return result

    def basic_get(self, queue: str, no_ack: bool = False, **kwargs: Any) -> Any:
        """Return a message, or None if the queue has none for this connection."""
        reader = self._transport.reader(queue)
        if isinstance(reader, SharedReader):
            reader.check_soon()
        message = super().basic_get(queue, no_ack=no_ack, **kwargs)
        if message is not None and no_ack:
            self._settle(message.delivery_tag, None)
        return message

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        item = self._transport.reader(queue).next()
        if isinstance(item, Delivery):
            return self._with_tag(_payload(item))
        reader, delivery, outcome = item
        payload = self._with_tag(_payload(delivery))
        if delivery.attempt > 1:
            payload["properties"]["delivery_info"]["redelivered"] = True
        if queue in self._no_ack:
            reader.settle(outcome, None)
        else:
            self._open[payload["properties"]["delivery_tag"]] = reader, outcome
        return payload

    @staticmethod
    def _with_tag(payload: dict[str, Any]) -> dict[str, Any]:
        payload["properties"]["delivery_tag"] = uuid()  # a message with two deliveries is open twice
        return payload

    def basic_ack(self, delivery_tag: str, multiple: bool = False) -> None:
        """Acknowledge a message, in any order: the group's offset stays before the first unacknowledged message."""
        super().basic_ack(delivery_tag, multiple)
        self._settle(delivery_tag, None)

    def basic_reject(self, delivery_tag: str, requeue: bool = False) -> None:
        """Reject a message; with ``requeue`` the message is sent back and delivered again."""
        super().basic_reject(delivery_tag, requeue)
        self._settle(delivery_tag, None)

    def _restore(self, message: Any) -> None:
        self._settle(message.delivery_tag, self._transport.requeue_level)

    def _settle(self, delivery_tag: str, level: int | None) -> None:
        entry = self._open.pop(delivery_tag, None)
        if entry is not None and self._is_mine:
            reader, outcome = entry
            reader.settle(outcome, level)
        self._transport.arrived.set()  # there may be room for the next message

    @property
    def is_full(self) -> bool:
        """Return whether a consumer has as many unacknowledged messages as allowed."""
        return bool(self._consumers) and not self.qos.can_consume()

    @property
    def _is_mine(self) -> bool:
        return self._pid == os.getpid()

    def drain_events(self, timeout: float | None = None, callback: Any = None) -> Any:
        """Deliver a message, or raise Empty at once; the transport waits."""
        return super().drain_events(timeout=timeout, callback=callback)


class _Flag:
    """An event whose ``set`` never waits for a thread that a signal handler interrupted within ``wait``."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Wake the waiting thread. Thread: any."""
        if self._queue.empty():
            self._queue.put(None)

    def is_set(self) -> bool:
        """Return whether ``wait`` would return at once."""
        return not self._queue.empty()

    def clear(self) -> None:
        """Clear the flag."""
        self.wait(0.0)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the flag, and clear the flag. Returns: False at the timeout."""
        try:
            self._queue.get(timeout=timeout_s)
        except Empty:
            return False
        return True


class Transport(virtual.Transport):
    """A connection to a cluster.

    ``transport_options``: namesrv_addr (instead of the URL's host), topic_queues (16: of a queue's topic, so many
    workers share it at most), max_retries (how often a rejected message comes again; without end), requeue_level (1:
    delay level of it), visibility_timeout (86,400 s: a message that is not acknowledged so long comes again), prefetch
    (64: messages of a topic's queue in a worker), credentials, tls.
    """

    Channel = Channel
    default_port = 9876
    driver_type = "mqfast"
    driver_name = "mqfast"
    implements = _BaseTransport.implements.extend(
        asynchronous=False, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors = (*virtual.Transport.connection_errors, ClientError, OSError)
    channel_errors = (*virtual.Transport.channel_errors, BrokerError)

    def __init__(self, client: Any, **kwargs: Any) -> None:
        super().__init__(client, **kwargs)
        options = client.transport_options
        self.topic_queues: int = options.get("topic_queues", 16)
        self.requeue_level: int = options.get("requeue_level", 1)
        self.arguments: dict[str, Any] = {
            "namesrv_addr": options.get("namesrv_addr") or f"{client.hostname or '127.0.0.1'}:{client.port or 9876}",
            "tls": options.get("tls", bool(client.ssl)),
        }
        if options.get("credentials"):
            self.arguments["credentials"] = options["credentials"]
        elif client.userid and client.password:
            self.arguments["credentials"] = Credentials(client.userid, client.password)
        self.consuming: dict[str, Any] = {
            "consume_timeout_s": options.get("visibility_timeout", 86_400),
            "max_reconsume_times": options.get("max_retries", 1 << 30),
            "max_cached_messages": options.get("prefetch", 64),
        }
        self.arrived = _Flag()
        self.passing: set[str] = set()
        """Queues that end with their consumer."""
        self.readers: dict[str, SharedReader | TailReader] = {}
        self._ensured: set[str] = set()
        self._producer: Producer | None = None
        self._admin: AdminClient | None = None
        self._pid = os.getpid()

    # --- the cluster ---

    @property
    def admin(self) -> AdminClient:
        """The admin client, created on first use."""
        if self._admin is None:
            self._admin = AdminClient(**self.arguments)
        return self._admin

    def establish_connection(self) -> Any:
        """Connect to the name servers. Raises: ConnectError; NoRoute without a registered broker: kombu tries again."""
        if not self.admin.clusters():
            raise NoRoute("expected a broker, the name servers know none: it may not have started yet")
        return super().establish_connection()

    def has_topic(self, topic: str) -> bool:
        """Return whether there is such a topic."""
        try:
            self.admin.topic_stats(topic)
        except NoRoute:
            return False
        return True

    def ensure(self, topic: str, queues: int) -> None:
        """Create a missing topic."""
        if topic not in self._ensured:
            if not self.has_topic(topic):
                self.admin.create_topic(topic, queues=queues)
            self._ensured.add(topic)

    def exchange_topic(self, exchange: str) -> str:
        """Return the topic of an exchange, created if missing."""
        topic = name_of(exchange, "kombu-x-")
        self.ensure(topic, 1)
        return topic

    def send(self, topic: str, message: dict[str, Any], tags: str = "") -> None:
        """Store a message; a message with an ETA is delivered then, if the broker supports that."""
        if self._producer is None:
            self._producer = Producer("kombu", **self.arguments)
        body = dumps(message)
        due_ms = _due_ms(message)
        if due_ms is not None:
            try:
                self._producer.send(topic, body, tags=tags or None, deliver_at=due_ms)
                return
            except BrokerError:
                pass  # no timed messages, or the delay is too long: the worker waits
        self._producer.send(topic, body, tags=tags or None)

    def waiting(self, name: str) -> int:
        """Return the count of messages of a queue that its group has not acknowledged."""
        try:
            ends = self.admin.topic_stats(name)
        except NoRoute:
            return 0
        try:
            return sum(lag.behind for lag in self.admin.lag(name, name).values())
        except ClientError:  # the group has never consumed
            return sum(lag.max_offset - lag.min_offset for lag in ends.values())

    def skip(self, name: str) -> int:
        """Move the group behind all messages. Returns: count of skipped messages."""
        count = self.waiting(name)
        if count:
            if name not in self.admin.groups():
                self.admin.create_group(name)
            self.admin.reset_offset(name, name, "latest", dry_run=False)
        return count

    # --- readers ---

    def reader(self, queue: str) -> SharedReader | TailReader:
        """Return the reader of a queue."""
        reader = self.readers.get(queue)
        if reader is None:
            topic = name_of(queue)
            self.ensure(topic, self.topic_queues)
            reader = self.readers[queue] = SharedReader(topic, self.arguments, self.consuming, self.arrived.set)
        return reader

    def tail(self, queue: str) -> TailReader:
        """Return the reader of the exchanges of a queue."""
        reader = self.readers.get(queue)
        if not isinstance(reader, TailReader):
            reader = self.readers[queue] = TailReader(self.arguments, self.arrived.set)
        return reader

    def drop_reader(self, queue: str) -> None:
        """Close the reader of a queue."""
        reader = self.readers.pop(queue, None)
        if reader is not None and self._pid == os.getpid():
            reader.close()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message.

        Raises: TimeoutError without a message; early if a long wait has no room for a message: Celery before 5.7
            acknowledges between two calls.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        is_turn = timeout is None or timeout <= _TURN_S
        while True:
            self.arrived.clear()
            try:
                self.cycle.get(self._deliver, timeout=0)
                return
            except Empty:
                remaining_s = _LOOK_S if deadline is None else min(_LOOK_S, deadline - time.monotonic())
                if remaining_s <= 0:
                    raise TimeoutError("no message in time") from None
                if is_turn or not any(channel.is_full for channel in self.channels):
                    self.arrived.wait(remaining_s)
                elif not self.arrived.wait(min(remaining_s, _FULL_S)):
                    raise TimeoutError("no room for a message: the prefetch count is reached") from None

    def close_connection(self, connection: Any) -> None:
        """Send back unacknowledged messages, and close all clients; in a forked child the clients are the parent's."""
        super().close_connection(connection)
        for queue in list(self.readers):
            self.drop_reader(queue)
        producer, self._producer = self._producer, None
        admin, self._admin = self._admin, None
        if producer is not None:
            producer.close()
        if admin is not None:
            admin.close()


def _payload(delivery: Delivery) -> dict[str, Any]:
    """Return the message as kombu wrote the message; a message of another client becomes a payload of plain bytes."""
    try:
        payload = loads(delivery.body)
        if isinstance(payload["properties"]["delivery_info"], dict):
            return dict(payload)
    except (ValueError, TypeError, KeyError):
        pass
    return {
        "body": base64.b64encode(delivery.body).decode(),
        "content-type": "application/data",
        "content-encoding": "binary",
        "headers": {},
        "properties": {
            "body_encoding": "base64",
            "delivery_info": {"exchange": "", "routing_key": delivery.tags or ""},
            "delivery_tag": "",
        },
    }


def _due_ms(message: dict[str, Any]) -> int | None:
    eta = (message.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return None
    try:
        moment = datetime.fromisoformat(eta)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    due_ms = int(moment.timestamp() * 1000)
    return due_ms if due_ms > time.time() * 1000 else None
