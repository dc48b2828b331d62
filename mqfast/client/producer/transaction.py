"""Transactions: a half message, the application's local transaction, then its end; a broker checks open transactions.

A transaction with an unknown outcome is not ended: the broker then calls ``check``. The half message uses the
connection of the heartbeat, which is sent before, so that the broker can send the check back. Source:
TransactionMQProducer, DefaultMQProducerImpl (sendMessageInTransaction, checkTransactionState, endTransaction).
"""

from __future__ import annotations

import inspect
import logging
import queue
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, Unpack

from mqfast import properties as names
from mqfast.client.delivery import Delivery, Source
from mqfast.client.net import io_thread
from mqfast.client.net.guard import check_may_wait
from mqfast.client.net.instance import ROUTE_S, ClientInstance
from mqfast.client.net.request_steps import Request, RequestSteps
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.producer.arguments import ProducerArguments
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.encode import prepared
from mqfast.client.producer.fast_encode import PreparedMessage
from mqfast.client.producer.producer import Producer
from mqfast.client.producer.request_reply import introduced
from mqfast.client.producer.send import Sender, SendOptions
from mqfast.client.producer.trace import Tracer
from mqfast.client.route.namespace import unwrap
from mqfast.client.route.route_table import MASTER_ID
from mqfast.client.settings import check_function
from mqfast.client.values import Address, SendResult, SendStatus, TransactionStatus
from mqfast.errors import ClientConfigError, ClientError, MessageIllegal, MqfastError, SendFailed
from mqfast.message import Message, decode_message_id
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand
from mqfast.store.record.record import decode_record

__all__ = ["AsyncTransactionProducer", "Transaction", "TransactionProducer"]

Outcome = TransactionStatus | bool | None
_Todo = queue.SimpleQueue[tuple[Delivery, Callable[[Any], None]] | None]
_NUMBERS: Final = {TransactionStatus.COMMIT: 8, TransactionStatus.ROLLBACK: 12, TransactionStatus.UNKNOWN: 0}
_log = logging.getLogger("mqfast.client.producer")


def status_of(outcome: object) -> TransactionStatus:
    """Return the status: True commits, False rolls back, None is unknown. Raises: ClientError for another outcome."""
    if outcome is None:
        return TransactionStatus.UNKNOWN
    if isinstance(outcome, TransactionStatus):
        return outcome
    if isinstance(outcome, bool):
        return TransactionStatus.COMMIT if outcome else TransactionStatus.ROLLBACK
    raise ClientError(f"transaction: expected a TransactionStatus, a bool or None as its outcome, found {outcome!r}")


async def _awaited(outcome: Any) -> Any:
    """Return the outcome of a function of the user, which may be a coroutine function."""
    return await outcome if inspect.isawaitable(outcome) else outcome


class Transaction:
    """A stored half message. Attributes: ``result`` of its send; ``msg_id``; ``transaction_id``."""

    def __init__(self, result: SendResult) -> None:
        self.result = result
        self.msg_id = result.msg_id
        self.transaction_id = result.transaction_id or result.msg_id
        self._left_open = False

    def leave_open(self) -> None:
        """Leave the outcome unknown: the broker will call ``check``, whatever happens after this call."""
        self._left_open = True

    def status(self, error: BaseException | None) -> TransactionStatus:
        """Return the status by which the end of a ``with`` block ends the transaction."""
        if self._left_open or not (error is None or isinstance(error, Exception)):
            return TransactionStatus.UNKNOWN
        return TransactionStatus.COMMIT if error is None else TransactionStatus.ROLLBACK


# -- for both clients --------------------------------------------------------------------------------------------------


def half_of(message: Message, producer: Any) -> PreparedMessage:
    """Return the half message. Raises: MessageIllegal for a delayed message."""
    more = {names.TRAN_MSG: "true", names.PGROUP: producer._wire.group}
    out = prepared(message, producer._wire, more)
    if out.delayed:
        raise MessageIllegal("transaction: expected a message without delay, found one")
    return out


async def send_half(
    instance: ClientInstance, sender: Sender, out: PreparedMessage, how: SendOptions, tracer: Tracer | None = None
) -> Transaction:
    """Send the half message, after a heartbeat. Raises: as a send; SendFailed where the status is not SEND_OK."""
    await introduced(instance, sender, out.topic, how.timeout_s)
    result = await instance.driver.run(sender.send(instance, out, how))
    assert result is not None
    if result.status is not SendStatus.SEND_OK:
        await instance.driver.run(end_transaction(instance, sender, out, result, TransactionStatus.ROLLBACK, tracer))
        raise SendFailed(
            f"{out.message.topic}: the half message was stored with status {result.status.name} and is rolled back "
            f"(msg_id {out.msg_id})",
            msg_id=out.msg_id,
        )
    return Transaction(result)


def end_transaction(
    instance: ClientInstance,
    sender: Sender,
    out: PreparedMessage,
    result: SendResult,
    status: TransactionStatus,
    tracer: Tracer | None = None,
) -> RequestSteps[None]:
    """Send the end of a transaction to the broker. There is no response: a broker that did not get the end checks."""
    address = instance.routes.address(result.message_queue.broker_name)
    if address is None:
        _log.warning("transaction %s: no route names broker %s", result.msg_id, result.message_queue.broker_name)
        return
    if tracer is not None:
        topic = unwrap(instance.settings.namespace, out.topic)
        pairs = names.decode(out.properties)
        tracer.ended(topic, pairs, address, result.msg_id, status, from_check=False)
    fields = {
        "topic": out.topic,
        "producerGroup": sender.wire.group,
        "tranStateTableOffset": result.queue_offset,
        "commitLogOffset": decode_message_id(result.offset_msg_id.split(",")[0]).physical_offset,
        "commitOrRollback": _NUMBERS[status],
        "fromTransactionCheck": "false",
        "msgId": result.msg_id,
        "transactionId": result.transaction_id or result.msg_id,
        "bname": result.message_queue.broker_name,
    }
    yield Request(address, RequestCode.END_TRANSACTION, fields, oneway=True)


async def make_known(instance: ClientInstance) -> None:
    """Register this client at all masters before its first send: a broker sends checks of transactions that another,
    ended producer of the group left open. Raises: ClientError, RemotingError.
    """
    info = await instance.driver.run(
        instance.cluster.cluster_info(timeout_s=3.0, about="brokers that ask for transactions")
    )
    brokers = info.broker_addr_table.values()
    instance.add_heartbeat_targets(data.broker_addrs[MASTER_ID] for data in brokers if MASTER_ID in data.broker_addrs)


class Checks:
    """Responses of one producer to checks of brokers.

    Args: run: runs a check and calls back with its outcome, in the loop.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        namespace: str | None,
        run: Callable[[Delivery, Callable[[Any], None]], None],
        tracer: Tracer | None = None,
    ) -> None:
        self._instance = instance
        self._group = group
        self._namespace = namespace
        self._run = run
        self._tracer = tracer
        about = f"{group} brokers that ask for transactions"
        instance.serve(RequestCode.CHECK_TRANSACTION_STATE, None, self.asked)
        self._known = instance.every(ROUTE_S, lambda: make_known(instance), about, first_s=0.0)

    def stop(self) -> None:
        """Serve no more checks."""
        self._instance.requests.unserve(None, self.asked)
        self._known.cancel()

    def asked(self, channel: Channel, request: RemotingCommand) -> RemotingCommand | None:
        """Serve a check of a broker. Returns: None where the message is of another group."""
        try:
            record = decode_record(bytes(request.body))
        except MqfastError as error:
            _log.warning("check of a transaction by %s:%d: %s", *channel.peer, error)
            return None
        if record.properties.get(names.PGROUP) != self._group:
            return None
        fields = request.ext_fields
        message = Delivery(record, Source(str(fields.get("bname") or ""), namespace=self._namespace or ""))

        def done(outcome: Any) -> None:
            if self._tracer is not None:
                address = f"{channel.peer[0]}:{channel.peer[1]}"
                self._tracer.ended(message.topic, message.properties, address, message.msg_id, outcome, from_check=True)
            answer = {
                "topic": fields.get("topic"),
                "producerGroup": self._group,
                "tranStateTableOffset": fields.get("tranStateTableOffset"),
                "commitLogOffset": fields.get("commitLogOffset"),
                "commitOrRollback": _NUMBERS[outcome],
                "fromTransactionCheck": "true",
                "msgId": message.msg_id,
                "transactionId": fields.get("transactionId"),
                "bname": fields.get("bname"),
            }
            signed = self._instance.sign(
                RequestCode.END_TRANSACTION, {name: value for name, value in answer.items() if value is not None}, b""
            )
            channel.oneway(RequestCode.END_TRANSACTION, signed)

        self._run(message, done)
        return request.response(0)


def checked_outcome(message: Delivery, work: Callable[[], object]) -> TransactionStatus:
    """Return the outcome of a check; unknown after any exception: the thread of checks continues."""
    try:
        return status_of(work())
    except BaseException:
        _log.exception("check of transaction %s failed; the broker will ask again", message.msg_id)
        return TransactionStatus.UNKNOWN


# -- for threads -------------------------------------------------------------------------------------------------------


class TransactionProducer(Producer):
    """A producer whose messages are delivered when the application's local transaction has ended well.

        with producer.transaction(Message("paid", b"42")) as transaction:
            ...  # write the database

    Args: check: called with the message of a transaction without an end at the broker; returns True or COMMIT, False or
    ROLLBACK, None or UNKNOWN (also after an exception). check_threads: number of checks at once.
    """

    def __init__(
        self,
        group: str,
        namesrv_addr: Address | None = None,
        *,
        check: Callable[[Delivery], Outcome],
        check_threads: int = 1,
        **producer_arguments: Unpack[ProducerArguments],
    ) -> None:
        check_function("check", check)
        if type(check_threads) is not int or not 1 <= check_threads <= 1000:
            raise ClientConfigError(f"check_threads: expected 1 to 1000, found {check_threads!r}")
        self._check = check
        self._check_threads = check_threads
        super().__init__(group, namesrv_addr, **producer_arguments)

    def _set_up(self) -> None:
        super()._set_up()
        self._checks: Checks | None = None
        self._todo: _Todo = queue.SimpleQueue()
        self._workers = 0

    def after_fork(self) -> None:
        """Reset the state in a child process; the next send starts again."""
        super().after_fork()
        self._checks = None
        self._todo, self._workers = queue.SimpleQueue(), 0

    async def _begin(self, io: io_thread.IoThread) -> ClientInstance:
        instance = await super()._begin(io)
        self._checks = Checks(instance, self._wire.group, self._settings.namespace, self._check_later, self._tracer)
        return instance

    def close(self, timeout_s: float | None = None) -> None:
        """Close as a producer; brokers then send checks to another member of the group."""
        if not self._closed:
            check_may_wait()
        checks, io = self._checks, self._io
        if checks is not None and io is not None and io.is_alive:
            io.soon(checks.stop)
        super().close(timeout_s)
        if self._closed:  # the close was not refused
            self._todo.put(None)

    def _check_later(self, message: Delivery, done: Callable[[Any], None]) -> None:
        if self._closed:
            return
        self._todo.put((message, done))
        if self._workers < self._check_threads:
            self._workers += 1
            threading.Thread(target=_work, args=(self._todo, self._check, self._io), daemon=True).start()

    def _half(self, message: Message) -> tuple[PreparedMessage, Transaction]:
        instance = self._begun()
        contexts = self._contexts([message], is_half=True) if self._hooks else []
        out = half_of(contexts[0].message if contexts else message, self)
        assert self._io is not None
        with self._counted(contexts) as stored:
            half = send_half(instance, self._sender, out, self._usual, self._tracer)
            transaction = self._io.call(half, 2 * self._timeout_s + 1.0)
            stored(transaction.result)
        return out, transaction

    def _end_transaction(self, out: PreparedMessage, result: SendResult, status: TransactionStatus) -> None:
        instance, io = self._instance, self._io
        if instance is None or io is None:
            _log.warning("transaction %s: the producer was closed before its end; the broker asks", out.msg_id)
            return
        try:
            io.call(
                instance.driver.run(end_transaction(instance, self._sender, out, result, status, self._tracer)),
                self._timeout_s,
            )
        except MqfastError as error:
            _log.warning("transaction %s: the broker asks for its end, since: %s", out.msg_id, error)

    @contextmanager
    def transaction(self, message: Message, /) -> Iterator[Transaction]:
        """Send a half message, then run the block: its end commits, an exception rolls back and is raised.

        KeyboardInterrupt and other exceptions that are no Exception, and ``leave_open``, leave the end open: the broker
        calls ``check``. Raises: as send, before the block is run.
        """
        out, transaction = self._half(message)
        try:
            yield transaction
        except BaseException as error:
            self._end_transaction(out, transaction.result, transaction.status(error))
            raise
        self._end_transaction(out, transaction.result, transaction.status(None))

    def send_in_transaction(
        self, message: Message, local: Callable[[Message, Any], Outcome], argument: Any = None
    ) -> SendResult:
        """Send a half message, call ``local(message, argument)``, and end the transaction by its outcome.

        An exception of ``local`` leaves the end open, as in RocketMQ, and is logged: the broker calls ``check``.
        """
        check_function("local", local)
        out, transaction = self._half(message)
        status = TransactionStatus.UNKNOWN
        try:
            status = status_of(local(message, argument))
        except Exception:
            _log.exception("transaction %s: the local transaction failed; the broker asks for its end", out.msg_id)
        finally:
            self._end_transaction(out, transaction.result, status)
        return transaction.result


def _work(
    todo: _Todo,
    check: Callable[[Delivery], Outcome],
    io: io_thread.IoThread,
) -> None:
    while True:
        job = todo.get()
        if job is None:  # the producer is closed
            todo.put(None)  # for the other threads
            return
        message, done = job
        outcome = checked_outcome(message, lambda message=message: check(message))  # type: ignore[misc]
        io.soon(lambda done=done, outcome=outcome: done(outcome))  # type: ignore[misc]


# -- for asyncio -------------------------------------------------------------------------------------------------------


class AsyncTransactionProducer(AsyncProducer):
    """``TransactionProducer`` for an event loop: ``check`` is a coroutine function; a plain one runs in the loop."""

    def __init__(
        self,
        group: str,
        namesrv_addr: Address | None = None,
        *,
        check: Callable[[Delivery], Awaitable[Outcome] | Outcome],
        **producer_arguments: Unpack[ProducerArguments],
    ) -> None:
        if not callable(check):
            raise ClientConfigError(f"check: expected a coroutine function, found {check!r}")
        self._check = check
        self._checks: Checks | None = None
        super().__init__(group, namesrv_addr, **producer_arguments)

    async def _begun(self) -> ClientInstance:
        instance = await super()._begun()
        if self._checks is None:
            self._checks = Checks(instance, self._wire.group, self._settings.namespace, self._check_later, self._tracer)
        return instance

    async def close(self, timeout_s: float | None = None) -> None:
        """Close as a producer; brokers then send checks to another member of the group."""
        if self._checks is not None:
            self._checks.stop()
        await super().close(timeout_s)

    def _check_later(self, message: Delivery, done: Callable[[Any], None]) -> None:
        async def run() -> None:
            try:
                outcome = status_of(await _awaited(self._check(message)))
            except BaseException as error:
                if is_passed_on(error):
                    raise
                _log.exception("check of transaction %s failed; the broker will ask again", message.msg_id)
                outcome = TransactionStatus.UNKNOWN
            done(outcome)

        assert self._instance is not None
        self._instance.spawn(run(), "mqfast check")

    @asynccontextmanager
    async def transaction(self, message: Message, /) -> AsyncIterator[Transaction]:
        """Send a half message, then run the block; see ``TransactionProducer.transaction``."""
        instance, out, transaction = await self._half(message)
        try:
            yield transaction
        except BaseException as error:
            await self._tell_end(instance, out, transaction.result, transaction.status(error))
            raise
        await self._tell_end(instance, out, transaction.result, transaction.status(None))

    async def send_in_transaction(
        self, message: Message, local: Callable[[Message, Any], Awaitable[Outcome] | Outcome], argument: Any = None
    ) -> SendResult:
        """Send a half message, await ``local(message, argument)``, and end the transaction by its outcome."""
        if not callable(local):
            raise ClientConfigError(f"local: expected a function, found {local!r}")
        instance, out, transaction = await self._half(message)
        status = TransactionStatus.UNKNOWN
        try:
            status = status_of(await _awaited(local(message, argument)))
        except Exception:
            _log.exception("transaction %s: the local transaction failed; the broker asks for its end", out.msg_id)
        finally:
            await self._tell_end(instance, out, transaction.result, status)
        return transaction.result

    async def _half(self, message: Message) -> tuple[ClientInstance, PreparedMessage, Transaction]:
        instance = await self._begun()
        contexts = self._contexts([message], is_half=True) if self._hooks else []
        out = half_of(contexts[0].message if contexts else message, self)
        with self._counted(contexts) as stored:
            transaction = await send_half(instance, self._sender, out, self._usual, self._tracer)
            stored(transaction.result)
        return instance, out, transaction

    async def _tell_end(
        self, instance: ClientInstance, out: PreparedMessage, result: SendResult, status: TransactionStatus
    ) -> None:
        try:
            await instance.driver.run(end_transaction(instance, self._sender, out, result, status, self._tracer))
        except MqfastError as error:
            _log.warning("transaction %s: the broker asks for its end, since: %s", out.msg_id, error)
