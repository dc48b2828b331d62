"""The producer for threads: a send uses the caller's own socket, everything else the loop of the I/O thread.

A sync send does not use the event loop, and every wait has a deadline. Source: DefaultMQProducer.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, overload

from mqfast.client.net import fork, io_thread
from mqfast.client.net.connection_pool import BlockingConnectionPool, connection_pool_of
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.guard import HALF_DONE, Guard, check_may_wait, refuse_nested, serves_here
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import of_client
from mqfast.client.producer.arguments import ProducerBase, check_call, message_of
from mqfast.client.producer.batch import BatchGroup, Done, Ends, Grouping, Linger, Pipeline, start_group
from mqfast.client.producer.encode import batch_of, check_several, prepared
from mqfast.client.producer.fast_encode import PreparedMessage
from mqfast.client.producer.send import SendOptions
from mqfast.client.producer.trace import Tracer
from mqfast.client.route.select import Selector
from mqfast.client.values import Body, MessageQueue, SendResult, When
from mqfast.errors import Backlog, CallTimeout, ClientError, ConnectError, ConnectionLost, MqfastError, SendTimeout
from mqfast.message import Message

__all__ = ["Producer"]

if TYPE_CHECKING:
    from mqfast.client.delivery import Delivery

_START_S: Final = 10.0
_log = logging.getLogger("mqfast.client.producer")


class Producer(ProducerBase):
    __doc__ = """Sends messages from threads.

        with Producer("order-service", "127.0.0.1:9876") as producer:
            producer.send("orders", b"42", tags="new", keys="42")

    Thread: any; many threads may share one. Fork: a child starts again at its next send.
    Durability: a result means that the broker has the message; ``status`` is the missing confirmation beyond that.
    A send that is repeated after a lost response may store the message twice, with the same msg_id.
    """ + (ProducerBase.__doc__ or "")

    def _set_up(self) -> None:
        self._starting = Guard(brief=False)
        self._connection_pool: BlockingConnectionPool | None = None
        self._pipeline: Pipeline | None = None
        self._linger: Linger | None = None
        self._io: io_thread.IoThread | None = None
        self._inbox: deque[tuple[PreparedMessage, SendOptions, Done]] = deque()
        self._called = False
        self._warned = False
        fork.watch(self)

    # -- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start, if no send has done so. Raises: ClientClosed; ConnectError after ``start_timeout_s``."""
        self._begun()
        return self

    def _begun(self) -> ClientInstance:
        self._check_open()
        instance = self._instance
        if instance is not None:
            return instance
        with self._starting:
            self._check_open()
            instance = self._instance
            if instance is None:
                io = self._io = io_thread.shared()
                instance = io.call(self._begin(io), io_thread.start_limit(_START_S, self._start_timeout_s))
                close_at_exit(self)
            return instance

    async def _begin(self, io: io_thread.IoThread) -> ClientInstance:
        instance = ClientInstance.shared(self._settings, io.loop)
        await instance.acquire(may_wait=self._start_timeout_s != 0)
        try:
            await instance.wait_for_name_server(self._start_timeout_s, lambda: self._closed)
            self._check_open()  # closed meanwhile, by a signal handler or another thread
        except BaseException:
            await instance.release()
            raise
        instance.add_producer(self._wire.group, self._owner)
        self._pipeline = Pipeline(instance, self._sender)
        self._linger = Linger(self._pipeline, self._batch_bytes, self._linger_s, self._timeout_s)
        self._connection_pool = connection_pool_of(instance)
        if self._tracer is not None:
            self._tracer.begin(instance)
        self._instance = instance
        return instance

    def close(self, timeout_s: float | None = None) -> None:
        """Send waiting messages, wait for pending sends, unregister at the brokers; a second call does nothing.

        Args: timeout_s: at most, in all; by default ``close_timeout_s``. Sends without an end are logged.
        """
        if self._closed:
            return
        self._check_close(timeout_s)
        check_may_wait()
        self._closed = True
        deadline = time.monotonic() + (self._close_timeout_s if timeout_s is None else timeout_s)
        try:
            unsent = self._wait_for_all(deadline - time.monotonic())
            if unsent:
                _log.warning("producer of group %s: closed while %d messages are on their way", self.group, unsent)
        except BaseException:  # an interrupted caller waits no more; the rest is done all the same
            deadline = 0.0
            raise
        finally:
            self._unregister(deadline)

    def _unregister(self, deadline: float) -> None:
        io = self._io
        if self._instance is None or io is None or not io.is_alive:
            return  # a thread that is about to start sees the closed producer
        try:
            left_s = max(0.1, deadline - time.monotonic())
            io.call(self._say_goodbye(left_s * 0.8), left_s)
        except (MqfastError, RuntimeError) as error:
            _log.warning("producer of group %s: closed without a word to the brokers: %s", self.group, error)

    async def _say_goodbye(self, trace_s: float) -> None:
        instance, self._instance = self._instance, None
        if instance is None or self._pipeline is None:
            return
        self._pipeline.closed = True
        await _remove_producer(instance, self._wire.group, self._owner, self._tracer, trace_s)

    def after_fork(self) -> None:
        """Reset the state in a child process: pending sends belong to the parent. The next send starts again."""
        self._starting = Guard(brief=False)
        self._instance = self._connection_pool = self._pipeline = self._linger = self._io = None
        self._inbox = deque()
        self._called = False
        if self._tracer is not None:
            self._tracer.forget()
        self._pressure = type(self._pressure)(*self._limits)

    def __del__(self) -> None:
        instance, io = getattr(self, "_instance", None), getattr(self, "_io", None)
        if instance is None or self._closed or io is None or not io.is_alive:
            return
        self._closed = True
        warnings.warn(f"producer of group {self.group} was not closed", ResourceWarning, stacklevel=2, source=self)
        group, owner = self._wire.group, self._owner
        io.soon(lambda: io.loop.create_task(_remove_producer(instance, group, owner)))

    # -- one message ---------------------------------------------------------------------------------------------------

    @overload
    def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = ...,
        selector: Selector | None = ...,
        timeout_s: float | None = ...,
    ) -> SendResult: ...

    @overload
    def send(
        self,
        topic: str,
        body: Body,
        /,
        *,
        tags: str | None = ...,
        keys: str | Iterable[str] | None = ...,
        properties: Mapping[str, str | int | bool] | None = ...,
        sharding_key: str | None = ...,
        delay_level: int | None = ...,
        delay_s: float | None = ...,
        deliver_at: When | None = ...,
        queue: MessageQueue | None = ...,
        selector: Selector | None = ...,
        timeout_s: float | None = ...,
    ) -> SendResult: ...

    def send(
        self,
        given: Message | str,
        body: Body | None = None,
        /,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] | None = None,
        properties: Mapping[str, str | int | bool] | None = None,
        sharding_key: str | None = None,
        delay_level: int | None = None,
        delay_s: float | None = None,
        deliver_at: When | None = None,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send a message and wait for the broker's response.

        Args: a Message, or topic, body and the other parts of a message. queue: exactly this queue; selector: chooses
            the queue; a sharding key chooses the queue by Java's hash. timeout_s: for all attempts together.
        Returns: the result; all four statuses mean that the broker has the message.
        Raises: MessageIllegal, UsageError (nothing was sent); NoRoute, ConnectError, SendTimeout, SendFailed,
            BrokerError (Refused, BrokerBusy), ClientClosed; see ``maybe_stored`` and ``msg_id`` of an error.
        """
        message = message_of(given, body, tags, keys, properties, sharding_key, delay_level, delay_s, deliver_at)
        how = self._how(queue, selector, timeout_s)
        instance = self._instance
        if instance is None or self._closed:
            instance = self._begun()
        if not self._warned and asyncio._get_running_loop() is not None:
            self._warn()
        if self._hooks:
            return self._send_with_hooks(instance, message, how)
        out = prepared(message, self._wire)
        if self._linger_s and self._waits_for_others(out, how):
            return self._send_with_others(out, how)
        return self._send(instance, out, how)

    def _send(self, instance: ClientInstance, out: PreparedMessage, how: SendOptions) -> SendResult:
        connection_pool, sender = self._connection_pool, self._sender
        assert connection_pool is not None
        try:
            request = sender.first_attempt(instance, out, how)
            if request is None:
                result = connection_pool.run(sender.send(instance, out, how))
            else:
                answer = failed = None
                try:
                    answer = connection_pool.request(request)
                except (ConnectError, ConnectionLost, CallTimeout) as failure:
                    failed = of_client(failure)
                result = request.stored(answer)
                if result is None:
                    result = connection_pool.go_on(sender.send(instance, out, how, request), answer, failed)
        except BaseException as error:
            self._failed.add()
            if not isinstance(error, Exception):
                error.msg_id = out.msg_id  # type: ignore[attr-defined]
            raise
        self._sent.add()
        assert result is not None
        return result

    def _send_with_hooks(self, instance: ClientInstance, message: Message, how: SendOptions) -> SendResult:
        contexts = self._contexts([message])
        begin = time.monotonic()
        try:
            result = self._send(instance, prepared(contexts[0].message, self._wire), how)
        except Exception as error:
            self._after(contexts, (), error, time.monotonic() - begin)
            raise
        self._after(contexts, (result,), None, time.monotonic() - begin)
        return result

    def _send_with_others(self, out: PreparedMessage, how: SendOptions) -> SendResult:
        check_may_wait()
        future: Future[SendResult] = SendFuture()
        self._start_async(out, how, _into(future))
        try:
            return future.result(how.timeout_s + self._linger_s + 1.0)
        except TimeoutError:
            if future.done():
                return future.result(0)  # the error is the send's own, or the end came just now
            raise SendTimeout(
                f"{out.message.topic}: no end of a send in {how.timeout_s + self._linger_s + 1.0:g} s; it may be "
                f"stored (msg_id {out.msg_id})",
                msg_id=out.msg_id,
                maybe_stored=True,
            ) from None

    def _warn(self) -> None:
        check_may_wait()
        self._warned = True
        warnings.warn(
            "Producer.send blocks the event loop of this thread; use AsyncProducer", RuntimeWarning, stacklevel=3
        )

    def send_oneway(self, message: Message, /) -> str:
        """Send without a response: whether the message arrives is unknown. Returns: the msg_id.

        Raises: as send, where the message could not be written to the connection.
        """
        instance = self._begun()
        contexts = self._contexts([message]) if self._hooks else []
        out = prepared(contexts[0].message if contexts else message, self._wire)
        assert self._connection_pool is not None
        how = SendOptions(self._timeout_s, None, self._selector, oneway=True)
        try:
            self._connection_pool.run(self._sender.send(instance, out, how))
        except Exception as error:
            self._failed.add()
            self._after(contexts, (), error, 0.0)
            raise
        self._sent.add()
        self._after(contexts, (), None, 0.0)
        return out.msg_id

    def send_batch(
        self,
        messages: Iterable[Message],
        /,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of a topic in a single request, as neighbours in a queue.

        Raises: MessageIllegal for different topics, waits or sharding keys, a delay or a retry topic; else as send.
        """
        instance = self._begun()
        check_several(messages)
        many = list(messages)
        contexts = self._contexts(many) if self._hooks else []
        begin = time.monotonic()
        out = batch_of([context.message for context in contexts] or many, self._wire)
        try:
            result = self._send(instance, out, self._how(queue, None, timeout_s))
        except Exception as error:
            self._after(contexts, (), error, time.monotonic() - begin)
            raise
        if contexts:
            singles = [result._replace(msg_id=msg_id, msg_ids=(msg_id,)) for msg_id in result.msg_ids]
            self._after(contexts, singles, None, time.monotonic() - begin)
        return result

    # -- without waiting -----------------------------------------------------------------------------------------------

    def send_future(
        self, message: Message, /, *, on_done: Callable[[Future[SendResult]], None] | None = None
    ) -> Future[SendResult]:
        """Send without waiting for the end. Waits while ``max_in_flight`` messages are out, ``send_timeout_s`` at most.

        Args: on_done: called with the future in the thread of the loop; the function may not block.
        Raises: MessageIllegal; Backlog where no room came in time.
        """
        self._begun()
        check_call("on_done", on_done)
        contexts = self._contexts([message]) if self._hooks else []
        out = prepared(contexts[0].message if contexts else message, self._wire)
        future: Future[SendResult] = SendFuture()
        if on_done is not None:
            future.add_done_callback(partial(_call_on_done, on_done))
        self._start_async(out, self._usual, self._hooked(contexts, _into(future)))
        return future

    def _start_async(self, out: PreparedMessage, how: SendOptions, done: Done) -> None:
        size = out.size
        pressure = self._pressure
        limit_s = 0.0
        if not serves_here():  # that thread has to make the room
            refuse_nested()
            limit_s = self._timeout_s
        if not pressure.acquire(1, size, limit_s):
            raise Backlog(
                f"{out.message.topic}: {pressure.messages} messages with {pressure.bytes} bytes are on their way for "
                f"{limit_s:g} s (max_in_flight {self._limits[0]}, max_in_flight_bytes {self._limits[1]}); "
                "nothing was sent",
                msg_id=out.msg_id,
            )

        def ended(result: SendResult | None, error: Exception | None) -> None:
            self._count(error)
            pressure.release(1, size)
            done(result, error)

        with HALF_DONE:
            self._inbox.append((out, how, ended))
            if not self._called:
                self._called = True
                try:
                    assert self._io is not None
                    self._io.soon(self._take_inbox)
                except BaseException:  # of a signal handler: the next send notifies the loop
                    self._called = False
                    raise
            pressure.hand_over(1)

    def _take_inbox(self) -> None:
        self._called = False
        inbox, pipeline, linger = self._inbox, self._pipeline, self._linger
        assert pipeline is not None
        assert linger is not None
        while inbox:
            out, how, done = inbox.popleft()
            if self._linger_s and self._waits_for_others(out, how):
                linger.add(out, how, done)
            else:
                pipeline.start(out, how, done)

    # -- many ----------------------------------------------------------------------------------------------------------

    def send_many(self, messages: Iterable[Message], /) -> Iterator[SendResult | ClientError]:
        """Send messages of any topics, many at once and in batches. Yields: a result or error for each, in order.

        Messages of a sharding key keep the order in the queue. ``max_in_flight`` and ``max_in_flight_bytes`` bound
        the messages that are read ahead. An invalid or too large message, or a message without a queue, yields its
        error.
        """
        instance = self._begun()
        check_may_wait()
        check_several(messages)
        grouping = Grouping(self._sender, self._batch_bytes, self._selector)
        ends: deque[list[Any]] = deque()  # [ended, result or error, reader waits, bytes, hooks' end], in order
        changed = threading.Condition(Guard())  # type: ignore[arg-type]
        pressure = self._pressure

        def done(slots: list[list[Any]], outcomes: Sequence[SendResult | Exception]) -> None:
            self._count_all(outcomes)
            pressure.release(len(slots), sum(slot[3] for slot in slots))
            is_awaited = False
            for slot, end in zip(slots, outcomes, strict=True):
                if slot[4] is not None:
                    slot[4](*((None, end) if isinstance(end, Exception) else (end, None)))
                slot[1] = _as_client_error(end) if isinstance(end, Exception) else end
                slot[0] = True
                is_awaited = is_awaited or slot[2]
            if is_awaited:
                with changed:
                    changed.notify()

        def start(groups: Sequence[BatchGroup]) -> None:
            assert self._io is not None
            if groups:
                self._io.soon(lambda: self._start_groups(groups, done))
                pressure.hand_over(sum(len(group.many) for group in groups))

        def wait(slot: list[Any]) -> Any:
            if not slot[0]:
                with changed:
                    slot[2] = True
                    if not changed.wait_for(lambda: slot[0], self._timeout_s + 5.0):
                        return ClientError(f"no end of a send in {self._timeout_s + 5.0:g} s; it may be stored")
            return slot[1]

        try:
            for message in messages:
                contexts = self._contexts([message]) if self._hooks else None
                try:
                    out = prepared(message if contexts is None else contexts[0].message, self._wire)
                    if not instance.routes.publish_queues(out.topic):
                        assert self._connection_pool is not None
                        self._connection_pool.run(self._sender.queues(instance, out.topic, self._timeout_s))
                    queue = grouping.queue_of(instance, out)
                except Exception as error:  # of the message, or of the selector
                    self._after(contexts or (), (), error, 0.0)
                    ends.append([True, _as_client_error(error), False, 0, None])
                    continue
                size = out.size
                while not pressure.try_acquire(1, size, is_held=True):
                    start(grouping.rest())
                    if ends:
                        yield wait(ends.popleft())
                    elif not pressure.acquire(1, size, self._timeout_s):
                        raise Backlog(f"{out.message.topic}: other sends left no room in {self._timeout_s:g} s")
                    else:
                        break
                slot: list[Any] = [False, None, False, size, self._hooked(contexts, _nothing) if contexts else None]
                ends.append(slot)
                groups = grouping.add(queue, out, slot)
                if groups:
                    start(groups)
                while ends and ends[0][0]:
                    yield ends.popleft()[1]
        finally:
            start(grouping.rest())
        while ends:
            yield wait(ends.popleft())

    def _start_groups(self, groups: Sequence[BatchGroup], done: Ends) -> None:
        assert self._pipeline is not None
        for group in groups:
            start_group(self._pipeline, group, self._timeout_s, done)

    # -- request, recall -----------------------------------------------------------------------------------------------

    def request(self, message: Message, /, *, timeout_s: float = 3.0) -> Delivery:
        """Send a message and wait for the reply of the consumer, ``timeout_s`` in all.

        Raises: as send; SendTimeout without a reply.
        """
        from mqfast.client.producer.request_reply import request  # few producers send requests: not at import

        instance = self._begun()
        how = self._how(None, None, timeout_s)
        assert self._io is not None
        contexts = self._contexts([message]) if self._hooks else []
        with self._counted(contexts) as stored:
            steps = request(instance, self._sender, contexts[0].message if contexts else message, how)
            answer, result = self._io.call(steps, 2 * how.timeout_s + 1.0)
            stored(result)
        return answer

    def recall(self, topic: str, recall_handle: str) -> str:
        """Recall a timed message that was not delivered yet. Returns: the msg_id.

        Args: recall_handle: of the SendResult. Raises: UsageError, NoRoute, ConnectError, BrokerError.
        """
        from mqfast.client.producer.recall import recall

        instance = self._begun()
        assert self._connection_pool is not None
        return self._connection_pool.run(
            recall(instance, self._sender, self._publish_topic(topic), recall_handle, self._timeout_s, self._tracer)
        )

    def flush(self, timeout_s: float | None = None) -> int:
        """Send waiting messages and wait for pending sends. Returns: the number of sends without an end.

        Raises: ClientNested, ClientError where this thread may not wait, as in ``on_done``.
        """
        self._check_close(timeout_s)
        check_may_wait()
        return self._wait_for_all(self._close_timeout_s if timeout_s is None else timeout_s)

    def _wait_for_all(self, timeout_s: float) -> int:
        linger, io = self._linger, self._io
        if linger is not None and io is not None and io.is_alive:
            io.soon(linger.flush)
        return self._pressure.wait_empty(timeout_s)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues that messages of a topic go to. Raises: NoRoute, ConnectError."""
        instance = self._begun()
        assert self._connection_pool is not None
        queues = self._connection_pool.run(self._sender.queues(instance, self._publish_topic(topic), self._timeout_s))
        return tuple(queue._replace(topic=topic) for queue in queues)


async def _remove_producer(
    instance: ClientInstance, group: str, owner: Any, tracer: Tracer | None = None, trace_s: float = 0.0
) -> None:
    try:
        if tracer is not None:
            await tracer.close(trace_s)
        await instance.remove_producer(group, owner)
    finally:
        await instance.release()


def _nothing(result: SendResult | None, error: Exception | None) -> None:
    """Do nothing: only the hooks get this end."""


def _call_on_done(on_done: Callable[[Future[SendResult]], None], future: Future[SendResult]) -> None:
    """Call the function in the loop of all sync clients; exceptions are logged."""
    try:
        on_done(future)
    except BaseException:
        _log.exception("on_done of a send failed")


class SendFuture(Future[SendResult]):
    """The future of a send. The lock is a guard: a call in a signal handler that interrupts a call of the future finds
    that the loop may wait for this lock.
    """

    def __init__(self) -> None:
        super().__init__()
        self._condition = threading.Condition(Guard())  # type: ignore[arg-type]


def _into(future: Future[SendResult]) -> Done:
    def done(result: SendResult | None, error: Exception | None) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            if error is not None:
                future.set_exception(error)
            else:
                assert result is not None
                future.set_result(result)
        except BaseException:  # SystemExit of a callback: a future passes it on, into the loop of all sync clients
            _log.exception("a callback of a send failed")

    return done


def _as_client_error(error: Exception) -> ClientError:
    if isinstance(error, ClientError):
        return error
    wrapped = ClientError(str(error) or repr(error))
    wrapped.__cause__ = error
    return wrapped
