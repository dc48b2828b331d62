"""The producer for asyncio, in the running loop and without a thread. Source: DefaultMQProducer."""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, overload

from mqfast.client.net import fork
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.guard import Guard
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.user_errors import is_passed_on
from mqfast.client.producer.arguments import ProducerBase, check_call, message_of
from mqfast.client.producer.batch import BatchGroup, Done, Grouping, Linger, Pipeline, start_group
from mqfast.client.producer.encode import batch_of, check_several, prepared
from mqfast.client.producer.fast_encode import PreparedMessage
from mqfast.client.producer.send import SendOptions
from mqfast.client.route.select import Selector
from mqfast.client.values import Body, MessageQueue, SendResult, When
from mqfast.errors import Backlog, ClientError, ClientForked, ClientNested, MqfastError, SendTimeout
from mqfast.message import Message

__all__ = ["AsyncProducer"]

if TYPE_CHECKING:
    from mqfast.client.delivery import Delivery

_log = logging.getLogger("mqfast.client.producer")


class AsyncProducer(ProducerBase):
    __doc__ = """Sends messages from an event loop.

        async with AsyncProducer("order-service", "127.0.0.1:9876") as producer:
            await producer.send("orders", b"42", tags="new", keys="42")

    Thread: that of one event loop.
    Durability: a result means that the broker has the message; ``status`` is the missing confirmation beyond that.
    A send that is repeated after a lost response may store the message twice, with the same msg_id.
    """ + (ProducerBase.__doc__ or "")

    def _set_up(self) -> None:
        self._starting: asyncio.Lock | None = None
        self._pipeline: Pipeline | None = None
        self._linger: Linger | None = None
        self._forked = False
        self._one_start = Guard()
        fork.watch(self)

    # -- life ----------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> Self:
        """Start, if no send has done so. Raises: ClientClosed, ClientForked."""
        await self._begun()
        return self

    async def _begun(self) -> ClientInstance:
        self._check_usable()
        instance = self._instance
        if instance is not None:
            instance.check_here()
            return instance
        self._starting = self._starting or asyncio.Lock()
        async with self._starting:
            if self._instance is None:
                self._check_usable()
                instance = ClientInstance.shared(self._settings, loop_of_caller())
                await instance.acquire(may_wait=self._start_timeout_s != 0)
                try:
                    await instance.wait_for_name_server(self._start_timeout_s, lambda: self._closed)
                    self._check_usable()  # closed meanwhile
                except BaseException:
                    await instance.release()
                    raise
                instance.add_producer(self._wire.group, self._owner)
                self._pipeline = Pipeline(instance, self._sender)
                self._linger = Linger(self._pipeline, self._batch_bytes, self._linger_s, self._timeout_s)
                if self._tracer is not None:
                    self._tracer.begin(instance)
                self._instance = instance
            return self._instance

    def _check_usable(self) -> None:
        self._check_open()
        if self._forked:
            raise ClientForked(f"producer of group {self.group}: it was started in another process; make one here")

    async def close(self, timeout_s: float | None = None) -> None:
        """Send waiting messages, wait for pending sends, unregister at the brokers; a second call does nothing.

        Args: timeout_s: at most, in all; by default ``close_timeout_s``. Sends without an end are logged.
        """
        if self._closed:
            return
        self._check_close(timeout_s)
        self._closed = True
        if self._instance is not None and not self._instance.is_here:
            _log.warning("producer of group %s: closed outside of its loop, without a word to the brokers", self.group)
            return
        deadline = time.monotonic() + (self._close_timeout_s if timeout_s is None else timeout_s)
        try:
            unsent = await self.flush(max(0.0, deadline - time.monotonic()))
            if unsent:
                _log.warning("producer of group %s: closed while %d messages are on their way", self.group, unsent)
        except BaseException:  # a cancelled caller waits no more; the rest is done all the same
            deadline = 0.0
            raise
        finally:
            await self._unregister(deadline)

    async def _unregister(self, deadline: float) -> None:
        instance, self._instance = self._instance, None
        if instance is None:
            return
        assert self._pipeline is not None
        self._pipeline.closed = True
        try:
            async with asyncio.timeout(max(0.1, deadline - time.monotonic())):
                try:
                    if self._tracer is not None:
                        await self._tracer.close(max(0.1, deadline - time.monotonic()) * 0.8)
                    await instance.remove_producer(self._wire.group, self._owner)
                finally:
                    await instance.release()
        except (MqfastError, TimeoutError) as error:
            _log.warning("producer of group %s: closed without a word to the brokers: %s", self.group, error)

    def after_fork(self) -> None:
        """Reset the state in a child process: the loop and the connections belong to the parent."""
        if self._instance is not None:
            self._forked = True
        self._instance = self._pipeline = self._linger = None

    def __del__(self) -> None:
        instance = getattr(self, "_instance", None)
        if instance is not None and not self._closed:
            self._closed = True
            group, owner = self._wire.group, self._owner
            if instance.loop.is_running():
                instance.loop.call_soon_threadsafe(
                    lambda: instance.loop.create_task(_remove_producer(instance, group, owner))
                )
            warnings.warn(f"producer of group {self.group} was not closed", ResourceWarning, stacklevel=2, source=self)

    # -- one message ---------------------------------------------------------------------------------------------------

    @overload
    async def send(
        self,
        message: Message,
        /,
        *,
        queue: MessageQueue | None = ...,
        selector: Selector | None = ...,
        timeout_s: float | None = ...,
    ) -> SendResult: ...

    @overload
    async def send(
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

    async def send(
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
        """Send a message and await the broker's response; see ``Producer.send``.

        While ``max_in_flight`` messages are in flight, the call first awaits room. A cancelled send stops waiting; the
        message may be stored, and the CancelledError has its ``msg_id``.
        """
        message = message_of(given, body, tags, keys, properties, sharding_key, delay_level, delay_s, deliver_at)
        how = self._how(queue, selector, timeout_s)
        if self._instance is None or self._closed or not self._instance.is_here:
            await self._begun()
        contexts = self._contexts([message]) if self._hooks else None
        out = prepared(message if contexts is None else contexts[0].message, self._wire)
        return await self._send(out, how, contexts)

    async def _send(self, out: PreparedMessage, how: SendOptions, contexts: list[Any] | None) -> SendResult:
        size = out.size
        begin = time.monotonic()
        if not self._pressure.try_acquire(1, size) and not await self._pressure.acquire_async(1, size, how.timeout_s):
            raise SendTimeout(
                f"{out.message.topic}: {self._pressure.messages} messages with {self._pressure.bytes} bytes were on "
                f"their way for {how.timeout_s:g} s (max_in_flight {self._limits[0]}); nothing was sent",
                msg_id=out.msg_id,
                maybe_stored=False,
            )
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()

        def ended(result: SendResult | None, error: Exception | None) -> None:
            self._pressure.release(1, size)
            self._count(error)
            if contexts is not None:
                self._after(contexts, () if result is None else (result,), error, time.monotonic() - begin)
            if not future.done():
                if error is not None:
                    future.set_exception(error)
                else:
                    assert result is not None
                    future.set_result(result)

        self._start(out, how, ended)
        try:
            return await future
        except asyncio.CancelledError as error:
            error.msg_id = out.msg_id  # type: ignore[attr-defined]
            raise

    def _start(self, out: PreparedMessage, how: SendOptions, done: Done) -> None:
        pipeline, linger = self._pipeline, self._linger
        assert pipeline is not None
        assert linger is not None
        with self._one_start:  # a signal handler may not begin a send in the middle of another send
            if self._linger_s and self._waits_for_others(out, how):
                linger.add(out, how, done)
            else:
                pipeline.start(out, how, done)

    def send_nowait(
        self, message: Message, /, *, on_done: Callable[[SendResult | ClientError], None] | None = None
    ) -> None:
        """Send without waiting. The producer has to be started.

        Args: on_done: called in the loop with the result or the error.
        Raises: Backlog when ``max_in_flight`` messages are in flight; MessageIllegal.
        """
        if self._instance is None or self._closed:
            self._check_usable()
            raise ClientError(f"producer of group {self.group}: send_nowait needs start() or `async with` before it")
        self._instance.check_here()
        if on_done is not None:
            check_call("on_done", on_done)
        contexts = self._contexts([message]) if self._hooks else None
        out = prepared(message if contexts is None else contexts[0].message, self._wire)
        size = out.size
        if not self._pressure.try_acquire(1, size):
            raise Backlog(
                f"{out.message.topic}: {self._pressure.messages} messages with {self._pressure.bytes} bytes are on "
                f"their way (max_in_flight {self._limits[0]}, max_in_flight_bytes {self._limits[1]}); nothing was sent",
                msg_id=out.msg_id,
            )
        begin = 0.0 if contexts is None else time.monotonic()

        def ended(result: SendResult | None, error: Exception | None) -> None:
            self._pressure.release(1, size)
            self._count(error)
            if contexts is not None:
                self._after(contexts, () if result is None else (result,), error, time.monotonic() - begin)
            if on_done is not None:
                outcome = result if error is None else _as_client_error(error)
                if is_begun:
                    _call_on_done(on_done, outcome)
                else:  # the start failed or ended at once, and on_done may begin another send
                    loop.call_soon(_call_on_done, on_done, outcome)

        loop, is_begun = self._instance.loop, False
        try:
            self._start(out, self._usual, ended)
        except ClientNested:
            self._pressure.release(1, size)
            raise
        is_begun = True

    async def send_oneway(self, message: Message, /) -> str:
        """Send without a response: whether the message arrives is unknown. Returns: the msg_id."""
        instance = await self._begun()
        contexts = self._contexts([message]) if self._hooks else []
        out = prepared(contexts[0].message if contexts else message, self._wire)
        how = SendOptions(self._timeout_s, None, self._selector, oneway=True)
        try:
            await instance.driver.run(self._sender.send(instance, out, how))
        except Exception as error:
            self._failed.add()
            self._after(contexts, (), error, 0.0)
            raise
        self._sent.add()
        self._after(contexts, (), None, 0.0)
        return out.msg_id

    async def send_batch(
        self,
        messages: Iterable[Message],
        /,
        *,
        queue: MessageQueue | None = None,
        timeout_s: float | None = None,
    ) -> SendResult:
        """Send messages of a topic in a single request; see ``Producer.send_batch``."""
        await self._begun()
        check_several(messages)
        many = list(messages)
        contexts = self._contexts(many) if self._hooks else []
        begin = time.monotonic()
        out = batch_of([context.message for context in contexts] or many, self._wire)
        try:
            result = await self._send(out, self._how(queue, None, timeout_s), None)
        except Exception as error:
            self._after(contexts, (), error, time.monotonic() - begin)
            raise
        if contexts:
            singles = [result._replace(msg_id=msg_id, msg_ids=(msg_id,)) for msg_id in result.msg_ids]
            self._after(contexts, singles, None, time.monotonic() - begin)
        return result

    # -- many ----------------------------------------------------------------------------------------------------------

    async def send_many(self, messages: Iterable[Message], /) -> AsyncIterator[SendResult | ClientError]:
        """Send messages of any topics, many at once and in batches; see ``Producer.send_many``."""
        instance = await self._begun()
        pipeline, pressure = self._pipeline, self._pressure
        assert pipeline is not None
        loop = asyncio.get_running_loop()
        check_several(messages)
        grouping = Grouping(self._sender, self._batch_bytes, self._selector)
        ends: deque[list[Any]] = deque()  # [ended, result or error, future to wake, bytes, hooks' end], in order
        begun = 0

        def done(slots: list[list[Any]], outcomes: Sequence[SendResult | Exception]) -> None:
            self._count_all(outcomes)
            pressure.release(len(slots), sum(slot[3] for slot in slots))
            for slot, end in zip(slots, outcomes, strict=True):
                if slot[4] is not None:
                    slot[4](*((None, end) if isinstance(end, Exception) else (end, None)))
                slot[1] = _as_client_error(end) if isinstance(end, Exception) else end
                slot[0] = True
                if slot[2] is not None and not slot[2].done():
                    slot[2].set_result(None)

        def start(groups: Sequence[BatchGroup]) -> None:
            for group in groups:
                start_group(pipeline, group, self._timeout_s, done)

        async def wait(slot: list[Any]) -> Any:
            if not slot[0]:
                slot[2] = loop.create_future()
                try:
                    async with asyncio.timeout(self._timeout_s + 5.0):
                        await slot[2]
                except TimeoutError:
                    return ClientError(f"no end of a send in {self._timeout_s + 5.0:g} s; it may be stored")
            return slot[1]

        try:
            for message in messages:
                contexts = self._contexts([message]) if self._hooks else None
                try:
                    out = prepared(message if contexts is None else contexts[0].message, self._wire)
                    if not instance.routes.publish_queues(out.topic):
                        await instance.driver.run(self._sender.queues(instance, out.topic, self._timeout_s))
                    queue = grouping.queue_of(instance, out)
                except Exception as error:  # of the message, or of the selector
                    self._after(contexts or (), (), error, 0.0)
                    ends.append([True, _as_client_error(error), None, 0, None])
                    continue
                size = out.size
                while not pressure.try_acquire(1, size):
                    start(grouping.rest())
                    if ends:
                        yield await wait(ends.popleft())
                    elif not await pressure.acquire_async(1, size, self._timeout_s):
                        raise Backlog(f"{out.message.topic}: other sends left no room in {self._timeout_s:g} s")
                    else:
                        break
                slot: list[Any] = [False, None, None, size, self._hooked(contexts, _nothing) if contexts else None]
                ends.append(slot)
                groups = grouping.add(queue, out, slot)
                if groups:
                    start(groups)
                    begun += 1
                    if not begun % 16:
                        await asyncio.sleep(0)  # responses are read, and other tasks run
                while ends and ends[0][0]:
                    yield ends.popleft()[1]
        finally:
            start(grouping.rest())
        while ends:
            yield await wait(ends.popleft())

    # -- request, recall -----------------------------------------------------------------------------------------------

    async def request(self, message: Message, /, *, timeout_s: float = 3.0) -> Delivery:
        """Send a message and await the reply of the consumer; see ``Producer.request``."""
        from mqfast.client.producer.request_reply import request  # few producers send requests: not at import

        instance = await self._begun()
        how = self._how(None, None, timeout_s)
        contexts = self._contexts([message]) if self._hooks else []
        with self._counted(contexts) as stored:
            answer, result = await request(instance, self._sender, contexts[0].message if contexts else message, how)
            stored(result)
        return answer

    async def recall(self, topic: str, recall_handle: str) -> str:
        """Call back a timed message that was not delivered yet; see ``Producer.recall``."""
        from mqfast.client.producer.recall import recall

        instance = await self._begun()
        name = self._publish_topic(topic)
        steps = recall(instance, self._sender, name, recall_handle, self._timeout_s, self._tracer)
        return await instance.driver.run(steps)

    async def flush(self, timeout_s: float | None = None) -> int:
        """Send waiting messages and await pending sends. Returns: the number of sends without an end."""
        self._check_close(timeout_s)
        if self._instance is not None:
            self._instance.check_here()
        if self._linger is not None:
            self._linger.flush()
        return await self._pressure.wait_empty_async(self._close_timeout_s if timeout_s is None else timeout_s)

    def queues(self, topic: str) -> Sequence[MessageQueue]:
        """Return the queues that messages of a topic go to, if known: empty before the first send to the topic."""
        name = self._publish_topic(topic)
        known = () if self._instance is None else self._instance.routes.publish_queues(name)
        return tuple(queue._replace(topic=topic) for queue in known)


async def _remove_producer(instance: ClientInstance, group: str, owner: Any) -> None:
    try:
        await instance.remove_producer(group, owner)
    finally:
        await instance.release()


def _nothing(result: SendResult | None, error: Exception | None) -> None:
    """Do nothing: only the hooks get this end."""


def _as_client_error(error: Exception) -> ClientError:
    if isinstance(error, ClientError):
        return error
    wrapped = ClientError(str(error) or repr(error))
    wrapped.__cause__ = error
    return wrapped


def _call_on_done(on_done: Callable[[Any], None], outcome: Any) -> None:
    try:
        on_done(outcome)
    except BaseException as error:
        if is_passed_on(error):
            raise
        _log.exception("on_done of a send failed")
