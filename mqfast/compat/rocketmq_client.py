"""The public names of rocketmq-client-python 2.0.0 over this client: one import changes, and no C++ library is needed.

    from rocketmq.client import Producer, Message  ->  from mqfast.compat.rocketmq_client import Producer, Message

Times are milliseconds and texts of a received message are bytes, as there. Faults of that package are not repeated: a
``with`` block gives the object, every topic has its own callback, and a received message stays valid. Further features
are in ``mqfast.client``. Source: the names of that package.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum, IntEnum
from typing import Any, NamedTuple, Self

from mqfast import properties as names
from mqfast.client import values

try:
    from mqfast.client.consumer.push_consumer import PushConsumer as _PushConsumer
    from mqfast.client.delivery import Delivery
    from mqfast.client.producer.producer import Producer as _Producer
    from mqfast.client.producer.transaction import TransactionProducer as _TransactionProducer
except ModuleNotFoundError as error:
    if error.name != "msgspec":
        raise
    text = "mqfast.compat.rocketmq_client needs msgspec: pip install 'mqfast[client]'"
    raise ImportError(text, name=error.name) from None
from mqfast.errors import MqfastError
from mqfast.message import Message as _Message

__all__ = [
    "ConsumeStatus",
    "ConsumerException",
    "MallocFailed",
    "Message",
    "MessageModel",
    "MessageProperty",
    "NullPointerException",
    "Producer",
    "ProducerException",
    "ProducerSendAsyncFailed",
    "ProducerSendOnewayFailed",
    "ProducerSendOrderlyFailed",
    "ProducerSendSyncFailed",
    "ProducerStartFailed",
    "PushConsumer",
    "PushConsumerStartFailed",
    "ReceivedMessage",
    "RocketMQException",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
]

_log = logging.getLogger("mqfast.compat.rocketmq_client")


class SendStatus(IntEnum):
    """Result of the storage of a message."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class TransactionStatus(IntEnum):
    """Result of a local transaction."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


class ConsumeStatus(IntEnum):
    """Result of a callback."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(IntEnum):
    """Distribution of messages in a group: to all members, or to one."""

    BROADCASTING = 0
    CLUSTERING = 1


class MessageProperty(Enum):
    """Names for ``ReceivedMessage.get_property``."""

    TRACE_SWITCH = "TRACE_ON"
    MSG_REGION = "MSG_REGION"
    KEYS = "KEYS"
    TAGS = "TAGS"
    WAIT_STORE_MSG_OK = "WAIT"
    DELAY_TIME_LEVEL = "DELAY"
    RETRY_TOPIC = "RETRY_TOPIC"
    REAL_TOPIC = "REAL_TOPIC"
    REAL_QUEUE_ID = "REAL_QID"
    TRANSACTION_PREPARED = "TRAN_MSG"
    PRODUCER_GROUP = "PGROUP"
    MIN_OFFSET = "MIN_OFFSET"
    MAX_OFFSET = "MAX_OFFSET"
    BUYER_ID = "BUYER_ID"
    ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
    TRANSFER_FLAG = "TRANSFER_FLAG"
    CORRECTION_FLAG = "CORRECTION_FLAG"
    MQ2_FLAG = "MQ2_FLAG"
    RECONSUME_TIME = "RECONSUME_TIME"
    UNIQ_CLIENT_MESSAGE_ID_KEYIDX = "UNIQ_KEY"
    MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
    CONSUME_START_TIMESTAMP = "CONSUME_START_TIME"


class SendResult(NamedTuple):
    """Result of a send."""

    status: SendStatus
    msg_id: str
    offset: int


class RocketMQException(Exception):
    """All errors of this module; ``__cause__`` is the client's own."""


class NullPointerException(RocketMQException):
    """The client was not started."""


class MallocFailed(RocketMQException):
    """Never raised here; programs name it."""


class ProducerException(RocketMQException):
    """Errors of producers."""


class ProducerStartFailed(ProducerException):
    """A producer cannot begin."""


class ProducerSendSyncFailed(ProducerException):
    """A send has failed."""


class ProducerSendOnewayFailed(ProducerException):
    """A message could not be given to a broker."""


class ProducerSendOrderlyFailed(ProducerException):
    """A send by a sharding key has failed."""


class ProducerSendAsyncFailed(ProducerException):
    """Never raised here; programs name it."""


class ConsumerException(RocketMQException):
    """Errors of consumers."""


class PushConsumerStartFailed(ConsumerException):
    """A consumer cannot begin."""


class Message:
    """A message to send. Texts may be str or bytes."""

    def __init__(self, topic: str | bytes) -> None:
        self._topic = _text(topic)
        self._body: bytes | str = b""
        self._tags: str | None = None
        self._keys: str | None = None
        self._properties: dict[str, str] = {}
        self._delay_level: int | None = None

    def set_keys(self, keys: str | bytes) -> None:
        """Set the keys of the message, joined by blanks."""
        self._keys = _text(keys)

    def set_tags(self, tags: str | bytes) -> None:
        """Set the tag."""
        self._tags = _text(tags)

    def set_body(self, body: str | bytes) -> None:
        """Set the body; text becomes UTF-8."""
        self._body = body

    def set_property(self, key: str | bytes, value: str | bytes) -> None:
        """Set a property of the user."""
        self._properties[_text(key)] = _text(value)

    def set_delay_time_level(self, delay_time_level: int) -> None:
        """Set RocketMQ's delay level, from 1."""
        self._delay_level = int(delay_time_level)

    def made(self, sharding_key: str | None = None) -> _Message:
        """Return the message of this client."""
        return _Message(
            self._topic,
            self._body,
            tags=self._tags,
            keys=self._keys,
            properties=dict(self._properties) or None,
            delay_level=self._delay_level,
            sharding_key=sharding_key,
        )


class ReceivedMessage:
    """A received message, or the message of a local transaction, without a place in a queue yet."""

    def __init__(self, given: Delivery | _Message, message_id: str = "") -> None:
        pairs: dict[str, Any]
        if isinstance(given, Delivery):
            pairs = given.properties
            self.body = given.body
            self.id = given.msg_id
            self.queue_id, self.queue_offset = given.queue_id, given.queue_offset
            self.reconsume_times, self.store_size = given.reconsume_times, given.store_size
            self.born_timestamp, self.store_timestamp = given.born_timestamp, given.store_timestamp
            self.commit_log_offset = given.physical_offset
        else:
            pairs = given.merged_properties(given.properties or {})  # type: ignore[arg-type]
            self.body = bytes(given.encoded_body())
            self.id = message_id
            self.queue_id = self.queue_offset = self.reconsume_times = self.store_size = 0
            self.born_timestamp = self.store_timestamp = self.commit_log_offset = 0
        self._pairs = {name: str(value) for name, value in pairs.items()}
        self.topic = given.topic
        self.prepared_transaction_offset = 0
        self.delay_time_level = int(self._pairs.get(names.DELAY, "0"))

    @property
    def tags(self) -> bytes:
        """The tag; empty without a tag."""
        return self.get_property(names.TAGS)

    @property
    def keys(self) -> bytes:
        """Keys, joined by blanks; empty without keys."""
        return self.get_property(names.KEYS)

    def get_property(self, prop: str | bytes | MessageProperty) -> bytes:
        """Return the value of a property; empty without the property."""
        name = prop.value if isinstance(prop, MessageProperty) else _text(prop)
        return self._pairs.get(name, "").encode()

    def __getitem__(self, key: str | bytes | MessageProperty) -> bytes:
        return self.get_property(key)

    def __str__(self) -> str:
        return self.body.decode()

    def __bytes__(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        return f"<ReceivedMessage topic={self.topic!r} id={self.id!r} body={self.body!r}>"


class _Client:
    """Settings by setters, until ``start``."""

    def __init__(self, group_id: str | bytes) -> None:
        self._group = _text(group_id)
        self._arguments: dict[str, Any] = {}
        self._client: Any = None
        self._runs = False

    def _set(self, **arguments: Any) -> None:
        if self._runs:
            raise RocketMQException("expected settings before start(), found a client that is started")
        self._arguments.update(arguments)

    def set_group(self, group_name: str | bytes) -> None:
        """Set the group of the client."""
        self._set()
        self._group = _text(group_name)

    def set_name_server_address(self, addr: str | bytes) -> None:
        """Set name servers, joined by ``;``."""
        self._set(namesrv_addr=_text(addr))

    def set_name_server_domain(self, domain: str | bytes) -> None:
        """Set the address of an HTTP server that returns name servers."""
        text = _text(domain)
        self._set(namesrv_addr=text if text.startswith(("http://", "https://")) else f"http://{text}")

    set_namesrv_addr = set_name_server_address
    set_namesrv_domain = set_name_server_domain

    def set_session_credentials(self, access_key: str | bytes, access_secret: str | bytes, channel: Any = None) -> None:
        """Set access key and secret. The channel has no effect."""
        self._set(credentials=values.Credentials(_text(access_key), _text(access_secret)))

    def set_instance_name(self, name: str | bytes) -> None:
        """Set a part of the client's id."""
        self._set(instance_name=_text(name))

    def set_message_trace(self, message_trace: bool) -> None:
        """Switch the message trace on or off."""
        self._set(trace=bool(message_trace))

    def start(self) -> None:
        """Start; after ``shutdown`` again."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """Stop. A second call does nothing."""
        if self._client is not None:
            self._runs = False
            self._client.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.shutdown()


class Producer(_Client):
    """Sends messages from threads.

    Args: timeout: of a send, milliseconds. orderly: not needed: every producer sends by a sharding key as well.
    """

    def __init__(
        self,
        group_id: str | bytes,
        orderly: bool = False,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id)
        if timeout is not None:
            self.set_timeout(timeout)
        if compress_level is not None:
            self.set_compress_level(compress_level)
        if max_message_size is not None:
            self.set_max_message_size(max_message_size)

    def set_timeout(self, timeout: int) -> None:
        """Set the timeout of a send, milliseconds."""
        self._set(send_timeout_s=timeout / 1000)

    def set_compress_level(self, level: int) -> None:
        """Set the level of zlib, for bodies of 4 KiB and more."""
        self._set(compress_level=level)

    def set_max_message_size(self, max_size: int) -> None:
        """Set the longest body, bytes."""
        self._set(max_message_bytes=max_size)

    def _make(self) -> _Producer:
        return _Producer(self._group, **self._arguments)

    def start(self) -> None:
        """Start; after ``shutdown`` again. A second call does nothing. Raises: ProducerStartFailed."""
        if self._runs:
            return
        try:
            self._client = self._make().start()
        except MqfastError as error:
            raise ProducerStartFailed(str(error)) from error
        self._runs = True

    def _started(self) -> Any:
        if self._client is None:
            raise NullPointerException("expected a producer that is started, found one that is not: call start()")
        return self._client

    def send_sync(self, msg: Message) -> SendResult:
        """Send, and wait for the broker. Raises: ProducerSendSyncFailed."""
        try:
            return _result(self._started().send(msg.made()))
        except MqfastError as error:
            raise ProducerSendSyncFailed(str(error)) from error

    def send_oneway(self, msg: Message) -> None:
        """Send without a wait. Raises: ProducerSendOnewayFailed."""
        try:
            self._started().send_oneway(msg.made())
        except MqfastError as error:
            raise ProducerSendOnewayFailed(str(error)) from error

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: str | bytes) -> SendResult:
        """Send to the queue of a key. Raises: ProducerSendOrderlyFailed."""
        try:
            return _result(self._started().send(msg.made(_text(sharding_key))))
        except MqfastError as error:
            raise ProducerSendOrderlyFailed(str(error)) from error


class TransactionMQProducer(Producer):
    """Producer of messages that are delivered after the commit of a local transaction.

    Args:
        checker_callback: gets the ReceivedMessage of a transaction without a known end, and returns a
            TransactionStatus. Any exception, and any other value, is UNKNOWN.
        user_args: without effect, as there.
    """

    def __init__(
        self,
        group_id: str | bytes,
        checker_callback: Callable[[ReceivedMessage], Any],
        user_args: Any = None,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
    ) -> None:
        super().__init__(group_id, False, timeout, compress_level, max_message_size)
        self._checker = checker_callback

    def _make(self) -> _Producer:
        return _TransactionProducer(self._group, check=self._check, **self._arguments)

    def _check(self, message: Delivery) -> values.TransactionStatus:
        return _outcome("check", lambda: self._checker(ReceivedMessage(message)))

    def send_message_in_transaction(
        self, message: Message, local_execute: Callable[[ReceivedMessage, Any], Any], user_args: Any = None
    ) -> SendResult:
        """Send a half message, call ``local_execute(message, user_args)``, and end the transaction by the returned
        status.

        Any exception, and any value that is no TransactionStatus, is UNKNOWN: the broker asks the checker.
        Raises: ProducerSendSyncFailed.
        """
        client = self._started()
        made = message.made()
        try:
            with client.transaction(made) as transaction:
                seen = ReceivedMessage(made, transaction.msg_id)
                outcome = _outcome("local transaction", lambda: local_execute(seen, user_args))
                if outcome is values.TransactionStatus.UNKNOWN:
                    transaction.leave_open()
                elif outcome is values.TransactionStatus.ROLLBACK:
                    raise _RollBack
        except _RollBack:
            pass
        except MqfastError as error:
            raise ProducerSendSyncFailed(str(error)) from error
        return _result(transaction.result)


class PushConsumer(_Client):
    """Consumer that passes messages of a group to callbacks, which return a ConsumeStatus.

    After an exception of a callback, or any other value, the message is delivered again.
    """

    def __init__(
        self, group_id: str | bytes, orderly: bool = False, message_model: int = MessageModel.CLUSTERING
    ) -> None:
        super().__init__(group_id)
        self._arguments["orderly"] = bool(orderly)
        self._wanted: dict[str, tuple[Callable[[ReceivedMessage], Any], str]] = {}
        self.set_message_model(message_model)

    def set_message_model(self, model: int) -> None:
        """Set the message model."""
        self._set(model=MessageModel(model).name.lower())

    def set_thread_count(self, thread_count: int) -> None:
        """Set the number of concurrent callbacks."""
        self._set(threads=thread_count)

    def set_message_batch_max_size(self, max_size: int) -> None:
        """Do nothing: a callback gets one message at a time, there as here."""
        self._set()

    def subscribe(
        self, topic: str | bytes, callback: Callable[[ReceivedMessage], Any], expression: str | bytes = "*"
    ) -> None:
        """Subscribe to a topic. A second call for a topic replaces callback and tags. Also while running."""
        name = _text(topic)
        self._wanted[name] = callback, _text(expression)
        if self._runs:
            self._client.subscribe(name, self._handler(name), _text(expression))

    def _handler(self, topic: str) -> Callable[[Delivery], bool]:
        def handle(message: Delivery) -> bool:
            try:
                status = self._wanted[topic][0](ReceivedMessage(message))
                if status not in (ConsumeStatus.CONSUME_SUCCESS, ConsumeStatus.RECONSUME_LATER):
                    raise ValueError(f"callback: expected a ConsumeStatus, found {status!r}")
            except BaseException:
                _log.exception("group %s, topic %s: the callback failed: the message comes again", self._group, topic)
                return False
            return bool(status == ConsumeStatus.CONSUME_SUCCESS)

        return handle

    def start(self) -> None:
        """Start; after ``shutdown`` again. A second call does nothing. Raises: PushConsumerStartFailed."""
        if self._runs:
            return
        try:
            client = _PushConsumer(self._group, **self._arguments)
            for topic, (_, expression) in self._wanted.items():
                client.subscribe(topic, self._handler(topic), expression)
            self._client = client.start()
        except MqfastError as error:
            raise PushConsumerStartFailed(str(error)) from error
        self._runs = True


class _RollBack(Exception):
    """Error that rolls a transaction back."""


def _text(given: str | bytes) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)


def _result(result: values.SendResult) -> SendResult:
    return SendResult(SendStatus(result.status), result.msg_id, result.queue_offset)


def _outcome(what: str, call: Callable[[], Any]) -> values.TransactionStatus:
    try:
        status = call()
        if status not in tuple(TransactionStatus):
            raise ValueError(f"{what}: expected a TransactionStatus, found {status!r}")
        return values.TransactionStatus(status)
    except BaseException:
        _log.exception("%s: the callback failed: the outcome is unknown, and the broker asks for it", what)
        return values.TransactionStatus.UNKNOWN
