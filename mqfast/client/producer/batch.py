"""Many messages at once: pipelined sends, batches made on the way, results in order.

A batch has messages of a single topic and queue, and messages of a sharding key keep the order. Source: MessageBatch,
ProduceAccumulator.
"""

from __future__ import annotations

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps, Sleep
from mqfast.client.producer.encode import joined
from mqfast.client.producer.fast_encode import FirstAttempt, PreparedMessage, SendRequest, results_of
from mqfast.client.producer.send import Sender, SendOptions
from mqfast.client.route.select import Selector
from mqfast.client.values import MessageQueue, SendResult
from mqfast.errors import ClientClosed, ClientError, ConnectError, ConnectionLost, MqfastError, TooManyCalls
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["Done", "Grouping", "Linger", "Pipeline", "error_of"]

BATCH_MESSAGES_MAX: Final = 1024
"""Messages in one batch; with more, the header of the response, which has all ids, would grow large."""
_OPEN_GROUPS_MAX: Final = 256

Done: TypeAlias = Callable[[SendResult | None, Exception | None], None]
"""Called with the end of a send: its result, or its error."""


Begin: TypeAlias = Callable[[PreparedMessage, SendOptions, Done], None]
"""Begins a send whose topic has a route."""


class _Flight:
    """The steps of a send, driven by the responses: no task, no future."""

    __slots__ = ("_done", "_instance", "_pipeline", "_step", "_steps", "_timer", "_until")

    def __init__(self, pipeline: Pipeline, steps: RequestSteps[SendResult | None], done: Done) -> None:
        self._pipeline = pipeline
        self._instance = pipeline.instance
        self._steps = steps
        self._done = done
        self._step: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._until = 0.0

    def go_on(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Begin with the outcome of the first step, which was requested already."""
        self._step = next(self._steps)
        if answer is None:
            self.resume(None, error)
        else:
            self.set_result(answer)

    def resume(self, answer: RemotingCommand | None, error: Exception | None) -> None:
        """Run the steps up to the next wait."""
        if self._pipeline.closed:
            self._steps.close()
            self._done(None, ClientClosed("the client was closed before the answer came; the message may be stored"))
            return
        while True:
            try:
                step = self._steps.send(answer) if error is None else self._steps.throw(error)
            except StopIteration as end:
                self._done(end.value, None)
                return
            except BaseException as failure:  # of the user's selector: any exception
                self._done(None, failure if isinstance(failure, Exception) else ClientError(f"send: {failure!r}"))
                if isinstance(failure, KeyboardInterrupt):
                    raise
                return
            answer = error = None
            self._step = step
            if type(step) is SendRequest and not step.oneway and not self._instance.driver.signs:
                try:
                    if not self._instance.driver.begin(step, self, step.timeout_s):
                        self._until = self._instance.loop.time() + step.timeout_s
                        self._timer = self._instance.loop.call_at(self._until, self._too_late)
                        self._pipeline.connect(step.address, self)
                    return
                except (ConnectionLost, TooManyCalls) as failure:
                    error = failure
                    continue
            if type(step) is Sleep:  # many sends may wait for one broker: no task for each
                self._instance.loop.call_later(step.seconds, self.resume, None, None)
                return
            self._instance.spawn(self._slowly(step), "mqfast send")
            return

    def _too_late(self) -> None:
        self._timer = None
        address, more = self._step.address, self._instance.explain(self._step.address)
        self.resume(None, ConnectError(f"{address}: no connection in {self._step.timeout_s:.2f} s{more}"))

    def connected(self, error: Exception | None) -> None:
        """Continue after the awaited connection was made or failed."""
        if self._timer is None:
            return  # the connection came too late
        self._timer.cancel()
        self._timer = None
        if error is None and not self._pipeline.closed:
            try:
                if self._instance.driver.begin(self._step, self, max(0.001, self._until - self._instance.loop.time())):
                    return
                error = ConnectError(f"{self._step.address}: the connection ended at once")
            except (ConnectionLost, TooManyCalls) as failure:
                error = failure
        self.resume(None, error)

    async def _slowly(self, step: Any) -> None:
        answer: RemotingCommand | None = None
        error: Exception | None = None
        try:
            answer = await self._instance.driver.request(step)
        except asyncio.CancelledError:
            self._pipeline.closed = True  # the instance has ended, and its tasks with it
        except Exception as failure:  # any exception: the caller must get an end
            error = failure
        self.resume(answer, error)

    # The interface of a future, for channels.

    def done(self) -> bool:
        """Return whether the send has ended."""
        return False

    def set_result(self, answer: RemotingCommand) -> None:
        """Continue with the response of the last step."""
        if answer.code == ResponseCode.GO_AWAY:
            self._instance.remoting.renew(self._step.address)
            self._instance.spawn(self._slowly(self._step), "mqfast send")
        else:
            self.resume(answer, None)

    def set_exception(self, error: Exception) -> None:
        """Continue with the error of the last step."""
        self.resume(None, error)


class Pipeline:
    """Sends of a producer with a callback for each end.

    Attributes: closed: pending sends end at the next step, with ClientClosed.
    Thread: that of the event loop.
    """

    def __init__(self, instance: ClientInstance, sender: Sender) -> None:
        self.instance = instance
        self.sender = sender
        self.closed = False
        self._connecting: dict[str, list[_Flight]] = {}
        self._without_route: dict[tuple[str, float], list[tuple[PreparedMessage, SendOptions, Done, Begin, float]]] = {}
        self._in_order: dict[MessageQueue, deque[tuple[PreparedMessage, SendOptions, Done]]] = {}

    def start(self, out: PreparedMessage, how: SendOptions, done: Done) -> None:
        """Begin a send. ``done`` is called once, perhaps before the return."""
        request = self.sender.first_attempt(self.instance, out, how)
        if request is not None:
            try:
                attempt = FirstAttempt(request, how, done, self._go_on)
                if self.instance.driver.begin(request, attempt, request.timeout_s):
                    return
            except (ConnectionLost, TooManyCalls):
                pass  # the steps find the same
        elif not self.instance.routes.publish_queues(out.topic):
            self.wait_for_route(out, how, done, self.start)
            return
        _Flight(self, self.sender.send(self.instance, out, how), done).resume(None, None)

    def connect(self, address: str, flight: _Flight) -> None:
        """Make a connection for this send and for all others that need the connection meanwhile: many sends, a single
        task.
        """
        is_first = address not in self._connecting
        self._connecting.setdefault(address, []).append(flight)
        if is_first:  # a send that interrupts this send may be first as well
            self.instance.spawn(self._connect(address), "mqfast connect")

    async def _connect(self, address: str) -> None:
        error: Exception | None = None
        try:
            error = await self.instance.driver.connect(address)
        except asyncio.CancelledError:
            self.closed = True  # the instance has ended, and its tasks with it
        for flight in self._connecting.pop(address, ()):
            flight.connected(error)

    def wait_for_route(self, out: PreparedMessage, how: SendOptions, done: Done, begin: Begin) -> None:
        """Fetch a route, once for all sends that need the route meanwhile with the same time limit; then ``begin``
        each.
        """
        key = out.topic, how.timeout_s
        is_first = key not in self._without_route
        self._without_route.setdefault(key, []).append((out, how, done, begin, self.instance.loop.time()))
        if is_first:  # a send that interrupts this send may be first as well
            self.instance.spawn(self._find_route(key), "mqfast route")

    async def _find_route(self, key: tuple[str, float]) -> None:
        error: Exception | None = None
        try:
            await self.instance.driver.run(self.sender.queues(self.instance, *key))
        except asyncio.CancelledError:
            self.closed = True
            error = ClientClosed("the client was closed before the topic's route was known; nothing was sent")
        except Exception as failure:  # any exception: the callers must get an end
            error = failure
        now_s = self.instance.loop.time()
        for out, how, done, begin, begun_s in self._without_route.pop(key, ()):
            if error is not None:
                done(None, error_of(error, out))
                continue
            remaining = SendOptions(max(0.0, how.timeout_s - (now_s - begun_s)), how.queue, how.selector, how.oneway)
            if remaining.timeout_s:
                begin(out, remaining, done)
            else:  # the steps raise the error, and send nothing
                _Flight(self, self.sender.send(self.instance, out, remaining), done).resume(None, None)

    def _go_on(self, first: FirstAttempt, answer: RemotingCommand | None, error: Exception | None) -> None:
        request = first.request
        steps = self.sender.send(self.instance, request.out, first.how, request)
        _Flight(self, steps, first.on_done).go_on(answer, error)

    def start_in_order(self, out: PreparedMessage, how: SendOptions, done: Done) -> None:
        """Begin a send to ``how.queue`` after the pending sends to that queue."""
        assert how.queue is not None
        waiting = self._in_order.get(how.queue)
        if waiting is not None:
            waiting.append((out, how, done))
            return
        self._in_order[how.queue] = deque([(out, how, done)])
        self.go_through(how.queue)

    def go_through(self, queue: MessageQueue) -> None:
        """Begin the waiting sends, up to the first that waits for a response."""
        waiting = self._in_order[queue]
        while waiting:
            out, how, done = waiting.popleft()
            if self.closed:
                closed = "the client was closed before the turn of the message came; nothing was sent"
                done(None, ClientClosed(closed, msg_id=out.msg_id))
                continue
            turn = _Turn(self, queue, done)
            self.start(out, how, turn.ended)
            if not turn.is_over:
                turn.calls_next = True
                return
        del self._in_order[queue]


class _Turn:
    """A send of an in-order queue. Completion starts the next send unless this send completed synchronously."""

    __slots__ = ("_done", "_pipeline", "_queue", "calls_next", "is_over")

    def __init__(self, pipeline: Pipeline, queue: MessageQueue, done: Done) -> None:
        self._pipeline = pipeline
        self._queue = queue
        self._done = done
        self.is_over = False
        self.calls_next = False

    def ended(self, result: SendResult | None, error: Exception | None) -> None:
        """Record the end of the send."""
        self.is_over = True
        if self.calls_next:
            self._pipeline.go_through(self._queue)
        self._done(result, error)


# -- one result for each message of a batch ----------------------------------------------------------------------------


def error_of(error: Exception, out: PreparedMessage) -> Exception:
    """Return the error of a batch for a message of the batch."""
    own = copy.copy(error)
    if isinstance(own, ClientError):
        own.msg_id = out.msg_id
    own.__cause__ = error
    return own


# -- groups ------------------------------------------------------------------------------------------------------------


class BatchGroup:
    """Messages for a request. Attributes: ``queue``: the required queue, None for any."""

    __slots__ = ("bytes", "many", "queue", "tags")

    def __init__(self, queue: MessageQueue | None) -> None:
        self.queue = queue
        self.many: list[PreparedMessage] = []
        self.tags: list[Any] = []
        self.bytes = 0

    def add(self, out: PreparedMessage, tag: Any) -> None:
        """Append a message."""
        self.many.append(out)
        self.tags.append(tag)
        self.bytes += 22 + out.size


class Grouping:
    """Puts messages into groups, with a request for each.

    Args: batch_bytes: a group is full from this size on. selector: chooses the queue of each message.
    """

    def __init__(self, sender: Sender, batch_bytes: int, selector: Selector | None = None) -> None:
        self._sender = sender
        self._how = SendOptions(0.0, None, selector)
        self._batch_bytes = min(batch_bytes, sender.wire.max_message_bytes)
        self._open: dict[tuple[Any, ...], BatchGroup] = {}

    def queue_of(self, instance: ClientInstance, out: PreparedMessage) -> MessageQueue | None:
        """Return the required queue of a message; None: any. Raises: UsageError; exceptions of the selector."""
        if self._how.selector is None and not out.sharding_key:
            return None
        return self._sender.fixed(instance.routes.publish_queues(out.topic), out, self._how)

    def add(self, queue: MessageQueue | None, out: PreparedMessage, tag: Any) -> Sequence[BatchGroup]:
        """Add a message, for a queue or for any. Returns: the groups to send now, in order."""
        key = (out.topic, queue, out.message.wait_store_ok)
        group = self._open.get(key)
        if not out.is_batchable:
            alone = BatchGroup(queue)
            alone.add(out, tag)
            if queue is None or group is None:
                return (alone,)
            del self._open[key]
            return (group, alone)  # later messages may not overtake it
        ready: list[BatchGroup] = []
        if group is not None and group.bytes + 22 + out.size > self._batch_bytes:
            ready.append(self._open.pop(key))
            group = None
        if group is None:
            if len(self._open) >= _OPEN_GROUPS_MAX:
                ready += self.rest()
            group = self._open[key] = BatchGroup(queue)
        group.add(out, tag)
        if group.bytes >= self._batch_bytes or len(group.many) >= BATCH_MESSAGES_MAX:
            ready.append(self._open.pop(key))
        return ready

    def rest(self) -> list[BatchGroup]:
        """Return all groups that are not full."""
        ready = list(self._open.values())
        self._open.clear()
        return ready


Ends: TypeAlias = Callable[[list[Any], Sequence[SendResult | Exception]], None]
"""Called with the end of a group: the tags of its messages, and the result or error of each."""


def start_group(pipeline: Pipeline, group: BatchGroup, timeout_s: float, done: Ends) -> None:
    """Send a group. ``done`` is called once."""
    many, tags = group.many, group.tags
    how = SendOptions(timeout_s, group.queue)

    def ended(result: SendResult | None, error: Exception | None) -> None:
        ends: Sequence[SendResult | Exception]
        if error is not None:
            ends = (error,) if len(many) == 1 else [error_of(error, prepared) for prepared in many]
        else:
            assert result is not None
            ends = (result,) if len(many) == 1 else results_of(result, many)
        done(tags, ends)

    try:
        out = many[0] if len(many) == 1 else joined(many, pipeline.sender.wire, any_keys=True)
    except MqfastError as error:
        ended(None, error)
        return
    if group.queue is None:
        pipeline.start(out, how, ended)
    else:
        pipeline.start_in_order(out, how, ended)


class Linger:
    """Sends that wait a short time for others of the same topic, for a common request.

    Args: linger_s: wait of the first message of a group. timeout_s: of the request.
    Thread: that of the event loop.
    """

    def __init__(self, pipeline: Pipeline, batch_bytes: int, linger_s: float, timeout_s: float) -> None:
        self._pipeline = pipeline
        self._grouping = Grouping(pipeline.sender, batch_bytes)
        self._linger_s = linger_s
        self._timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def add(self, out: PreparedMessage, how: SendOptions, done: Done) -> None:
        """Send a message together with others, once the route of the topic is known."""
        if not self._pipeline.instance.routes.publish_queues(out.topic):
            self._pipeline.wait_for_route(out, how, done, self.add)
            return
        self._start(self._grouping.add(self._grouping.queue_of(self._pipeline.instance, out), out, done))
        if self._timer is None:
            self._timer = self._pipeline.instance.loop.call_later(self._linger_s, self.flush)

    def flush(self) -> None:
        """Send the waiting messages."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._start(self._grouping.rest())

    def _start(self, groups: Iterable[BatchGroup]) -> None:
        for group in groups:
            start_group(self._pipeline, group, self._timeout_s, _tell_each)


def _tell_each(waiting: list[Done], ends: Sequence[SendResult | Exception]) -> None:
    for done, end in zip(waiting, ends, strict=True):
        if isinstance(end, Exception):
            done(None, end)
        else:
            done(end, None)
