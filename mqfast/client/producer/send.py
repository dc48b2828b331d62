"""The steps of a send: queues, attempts, retries, deadline, and the meaning of responses.

No I/O; the clock is an argument. A message keeps the unique id over all attempts. Source: DefaultMQProducerImpl
(sendDefaultImpl, sendKernelImpl), MQClientAPIImpl.processSendResponse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps, Sleep, broker_error
from mqfast.client.producer.encode import Wire, head_of
from mqfast.client.producer.fast_encode import HeaderTemplate, PreparedMessage, SendRequest, result_of
from mqfast.client.route.fault import FaultTable
from mqfast.client.route.select import RoundRobin, Selector, by_hash, chosen
from mqfast.client.values import MessageQueue, SendResult, SendStatus
from mqfast.errors import (
    BrokerError,
    CallTimeout,
    ClientError,
    ClientUsageError,
    ConnectError,
    ConnectionLost,
    FieldError,
    NoRoute,
    SendFailed,
    SendTimeout,
    TooManyCalls,
)
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["RETRIED", "SendRequest", "Sender", "SendOptions"]

RETRIED: Final = (17, 14, 1, 16, 204, 205, 2, 1500)
"""Response codes after which another attempt is made."""
_ATTEMPT_S_MIN: Final = 0.005  # no further attempt is made in less time
_STORED: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_HEADS_MAX: Final = 10_000
_LEAVING_S: Final = (0.1, 0.5)
"""First and longest pause before another attempt at a broker that leaves, where no other broker has the topic."""


class SendOptions:
    """Options of a send.

    Args: timeout_s: for all attempts together. queue: exactly this queue. selector: chooses the queue. oneway: without
        a response.
    Attributes: ``any_queue``: no option but the time is set.
    """

    __slots__ = ("any_queue", "oneway", "queue", "selector", "timeout_s")

    def __init__(
        self,
        timeout_s: float,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        oneway: bool = False,
    ) -> None:
        self.timeout_s = timeout_s
        self.queue = queue
        self.selector = selector
        self.oneway = oneway
        self.any_queue = queue is None and selector is None and not oneway


class Sender:
    """Makes the steps of sends for a producer.

    Args: faults: None without latency fault tolerance. clock: seconds that only grow; now: seconds since the epoch.
    Thread: any.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        retries: int = 2,
        retry_codes: Iterable[int] = RETRIED,
        retry_when_not_ok: bool = False,
        faults: FaultTable | None = None,
        without_namespace: Callable[[str], str] = str,
        clock: Callable[[], float] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self.wire = wire
        self.retries = retries
        self.retry_codes = frozenset(retry_codes)
        self.retry_when_not_ok = retry_when_not_ok
        self.faults = faults
        self.retried = 0
        self._without_namespace = without_namespace
        self.clock = clock or time.monotonic
        self._now = now or time.time
        self._robins: dict[str, RoundRobin] = {}
        self._heads: dict[tuple[Any, ...], HeaderTemplate] = {}
        self._targets: dict[tuple[str, int], tuple[object, RoundRobin, list[tuple[str, HeaderTemplate]]]] = {}

    # -- queues --------------------------------------------------------------------------------------------------------

    def queues(self, instance: ClientInstance, topic: str, timeout_s: float) -> RequestSteps[Sequence[MessageQueue]]:
        """Return the queues that a topic (with the namespace) may be sent to. Raises: NoRoute, ConnectError,
        BrokerError.
        """
        known = instance.routes.publish_queues(topic)
        if known:
            return known
        route = yield from instance.publish_route(
            topic, copied_topic=self.wire.create_topic_key, queues=self.wire.topic_queues, timeout_s=timeout_s,
            refresh=True,
        )  # fmt: skip
        queues = instance.routes.publish_queues(topic)
        if not queues:
            brokers = ", ".join(sorted(route.brokers)) or "no broker"
            raise NoRoute(f"topic {topic}: {brokers} has it, but none has a master and a queue with write permission")
        return queues

    def _robin(self, topic: str) -> RoundRobin:
        robin = self._robins.get(topic)
        return self._robins.setdefault(topic, RoundRobin()) if robin is None else robin

    def pick(self, queues: Sequence[MessageQueue], topic: str, last_broker: str | None) -> MessageQueue:
        """Return the queue of an attempt that may go to any."""
        robin = self._robin(topic)
        if self.faults is None:
            return robin.pick(queues, last_broker)
        return self.faults.pick(queues, last_broker, robin)

    def fixed(self, queues: Sequence[MessageQueue], out: PreparedMessage, how: SendOptions) -> MessageQueue | None:
        """Return the required queue of this message; None: any."""
        if how.queue is not None:
            return _checked_queue(how.queue, out)
        if how.selector is not None:
            plain = [queue._replace(topic=out.message.topic) for queue in queues]
            return _checked_queue(chosen(plain, out.message, how.selector), out)
        return by_hash(queues, out.sharding_key) if out.sharding_key else None

    def _head(self, out: PreparedMessage, queue: MessageQueue) -> HeaderTemplate:
        key = (out.code, out.topic, queue.broker_name, queue.queue_id, out.reconsume_times)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _HEADS_MAX:
                self._heads.clear()
            head = head_of(out, self.wire, queue.broker_name, queue.queue_id)
            head.queue = MessageQueue(self._without_namespace(out.topic), queue.broker_name, queue.queue_id)
            self._heads[key] = head
        return head

    def first_attempt(self, instance: ClientInstance, out: PreparedMessage, how: SendOptions) -> SendRequest | None:
        """Return the request of the first attempt, where no steps are needed: any queue will do, and the route is
        known.

        Most sends end with the response; otherwise ``send`` continues from there.
        """
        if not how.any_queue or self.faults is not None or out.sharding_key or out.reconsume_times:
            return None
        known = self._targets.get((out.topic, out.code))
        if known is None or known[0] is not instance.routes.version:
            known = self._find_targets(instance, out)
        _, robin, targets = known
        if not targets:
            return None
        address, head = targets[robin.number() % len(targets)]
        return SendRequest(address, head, out, self._born_ms(out), how.timeout_s, False, self.clock())

    def request(
        self,
        out: PreparedMessage,
        queue: MessageQueue,
        address: str,
        timeout_s: float,
        oneway: bool,
        begun_s: float,
    ) -> SendRequest:
        """Return the request of an attempt."""
        return SendRequest(address, self._head(out, queue), out, self._born_ms(out), timeout_s, oneway, begun_s)

    def _born_ms(self, out: PreparedMessage) -> int:
        return round(self._now() * 1000) if out.born_ms is None else out.born_ms

    def _find_targets(
        self, instance: ClientInstance, out: PreparedMessage
    ) -> tuple[object, RoundRobin, list[tuple[str, HeaderTemplate]]]:
        version = instance.routes.version  # read first: a change meanwhile makes this one old
        queues = instance.routes.publish_queues(out.topic)
        addresses = [instance.routes.address(queue.broker_name) for queue in queues]
        targets = [
            (address, self._head(out, queue)) for address, queue in zip(addresses, queues, strict=True) if address
        ]
        known = version, self._robin(out.topic), targets if len(targets) == len(queues) else []
        if len(self._targets) >= _HEADS_MAX:
            self._targets.clear()
        self._targets[out.topic, out.code] = known
        return known

    # -- the send ------------------------------------------------------------------------------------------------------

    def send(
        self, instance: ClientInstance, out: PreparedMessage, how: SendOptions, first: SendRequest | None = None
    ) -> RequestSteps[SendResult | None]:
        """Send a message or batch. Returns: the result, None for a oneway send.

        Args: first: the request of the first attempt, if already made; the first step is then this request.
        Raises: NoRoute, ConnectError, SendTimeout, SendFailed, BrokerError (Refused, BrokerBusy).
        """
        plan = _SendPlan(self, instance, out, how, first)
        while (attempt := (yield from plan.next_attempt())) is not None:
            try:
                answer = yield attempt.request
            except (ConnectError, ConnectionLost, CallTimeout, TooManyCalls) as error:
                yield from plan.on_error(attempt, error)
                continue
            if how.oneway:
                return None
            status = _STORED.get(answer.code)
            if self.faults is not None:
                self.faults.update(attempt.broker, self.clock() - attempt.begin_s, isolated=status is None)
            if status is None:
                refusal = yield from plan.on_refusal(attempt, answer)
                if answer.code in self.retry_codes:
                    continue
                if plan.stored is None:
                    raise refusal
                return plan.stored
            plan.stored = self._result(status, answer, attempt.request)
            if status is SendStatus.SEND_OK or not self.retry_when_not_ok:
                return plan.stored
        if plan.stored is not None:
            return plan.stored
        raise plan.failures.error(out, self.clock() - plan.begin_s)

    def _result(self, status: SendStatus, answer: RemotingCommand, request: SendRequest) -> SendResult:
        try:
            return result_of(status, answer, request.out, request.head.queue)
        except FieldError as error:
            raise BrokerError(
                f"{request.out.message.topic}: {request.address} answered code {answer.code} without a valid msgId, "
                f"queueId and queueOffset ({error}); the message may be stored",
                code=answer.code,
                remark=answer.remark or "",
                broker=request.address,
                msg_id=request.out.msg_id,
            ) from None


class _Attempt(NamedTuple):
    """An attempt of a send: the request and the begin of the attempt."""

    request: SendRequest
    begin_s: float

    @property
    def broker(self) -> str:
        """Return the name of the broker."""
        return self.request.head.queue.broker_name

    @property
    def where(self) -> str:
        """Return broker and address, as errors name them."""
        return f"{self.broker} {self.request.address}"


class _SendPlan:
    """The attempts of a send: queue and address of each, limits, pauses, and the deadline of all.

    Attributes: begin_s: of the send. failures: of the attempts so far. stored: the result of an attempt that stored the
        message with another status than SEND_OK.
    """

    __slots__ = (
        "_attempts_max", "_broker", "_counted", "_deadline_s", "_first", "_fixed", "_how", "_instance",
        "_is_broker_leaving", "_number", "_out", "_pause_s", "_queues", "_sender", "begin_s", "failures", "stored",
    )  # fmt: skip

    def __init__(
        self,
        sender: Sender,
        instance: ClientInstance,
        out: PreparedMessage,
        how: SendOptions,
        first: SendRequest | None,
    ) -> None:
        self._sender = sender
        self._instance = instance
        self._out = out
        self._how = how
        self._first = first
        self.begin_s = sender.clock() if first is None else first.begun_s
        self._deadline_s = self.begin_s + how.timeout_s
        self._queues: Sequence[MessageQueue] = ()
        self._fixed: MessageQueue | None = None
        self._attempts_max = 1 + sender.retries
        self._number = 0
        self._counted = 0
        self._broker: str | None = None  # of the last attempt
        self._pause_s = _LEAVING_S[0]
        # Set by GO_AWAY: until the broker is back, an attempt that stored nothing does not count.
        self._is_broker_leaving = False
        self.failures = _Failures()
        self.stored: SendResult | None = None

    def next_attempt(self) -> RequestSteps[_Attempt | None]:
        """Return the next attempt; None: no attempt or no time remains. Raises: NoRoute, ConnectError, BrokerError."""
        if self._number == 0:
            if self._first is not None:
                return self._begin(_Attempt(self._first, self.begin_s))
            yield from self._choose_queues()
        while self._counted < self._attempts_max:
            begin_s = self._sender.clock()
            remaining_s = self._deadline_s - begin_s
            if remaining_s <= (_ATTEMPT_S_MIN if self._number else 0):
                return None  # a timer of the loop may end a little before the deadline
            if not self._queues:
                self._queues = yield from self._sender.queues(self._instance, self._out.topic, remaining_s)
            queue = self._fixed or self._sender.pick(self._queues, self._out.topic, self._broker)
            self._broker = queue.broker_name
            address = self._instance.routes.address(self._broker)
            if address is None:
                yield from self._instance.route(self._out.topic, timeout_s=remaining_s, refresh=True)
                address = self._instance.routes.address(self._broker)
                remaining_s = self._deadline_s - self._sender.clock()
            if address is not None:
                request = self._sender.request(self._out, queue, address, remaining_s, self._how.oneway, begin_s)
                self._sender.retried += self._number > 0
                return self._begin(_Attempt(request, begin_s))
            self._number, self._counted = self._number + 1, self._counted + 1
            self.failures.add(self._broker, self._sender.clock() - begin_s, self._no_address(self._broker))
        return None

    def _choose_queues(self) -> RequestSteps[None]:
        """Set the queues that the message may go to."""
        self._queues = yield from self._sender.queues(self._instance, self._out.topic, self._how.timeout_s)
        self._fixed = self._sender.fixed(self._queues, self._out, self._how)
        if self._how.oneway or self._fixed is not None:
            self._attempts_max = 1

    def _begin(self, attempt: _Attempt) -> _Attempt:
        self._broker = attempt.broker
        self._number, self._counted = self._number + 1, self._counted + 1
        return attempt

    def _no_address(self, broker: str) -> ConnectError:
        brokers = ", ".join(sorted({queue.broker_name for queue in self._queues}))
        return ConnectError(
            f"no known route names the master of broker {broker}; topic {self._out.message.topic} is on {brokers}",
            msg_id=self._out.msg_id,
        )

    def on_error(self, attempt: _Attempt, error: Exception) -> RequestSteps[None]:
        """Note an attempt without a response, and wait where the next attempt can only go to the same broker."""
        seconds = self._sender.clock() - attempt.begin_s
        self.failures.add(attempt.where, seconds, error)
        if not isinstance(error, TooManyCalls):
            self._instance.route_failed(self._out.topic)
        if self._sender.faults is not None:
            self._sender.faults.update(attempt.broker, seconds, isolated=True, reachable=False)
        self._queues = self._queues or self._instance.routes.publish_queues(self._out.topic)
        if self._is_broker_leaving and isinstance(error, ConnectError):
            self._counted -= 1
            yield from self._await_other_broker(attempt.broker)
        elif (
            isinstance(error, (ConnectError, ConnectionLost))
            and self._counted < self._attempts_max
            and all(queue.broker_name == attempt.broker for queue in self._queues)
        ):  # the route is fetched meanwhile, once for all sends
            yield Sleep(max(0.0, min(self._next_pause_s(), self._deadline_s - self._sender.clock() - _ATTEMPT_S_MIN)))
            self._queues = self._instance.routes.publish_queues(self._out.topic)

    def on_refusal(self, attempt: _Attempt, answer: RemotingCommand) -> RequestSteps[BrokerError]:
        """Note a response that stored nothing, and wait for another broker after GO_AWAY. Returns: the error."""
        if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            self._instance.route_failed(self._out.topic)
        refusal = broker_error(answer, attempt.request.address, self._out.message.topic, msg_id=self._out.msg_id)
        self.failures.add(attempt.where, self._sender.clock() - attempt.begin_s, refusal)
        if answer.code == ResponseCode.GO_AWAY and answer.code in self._sender.retry_codes:
            self._is_broker_leaving = True
            self._counted -= 1 if self._sender.retries else 0
            yield from self._await_other_broker(attempt.broker)
        return refusal

    def _await_other_broker(self, leaving: str) -> RequestSteps[None]:
        """Fetch the route while a broker leaves; pause where no other broker has the topic."""
        pause_s = self._next_pause_s()
        remaining_s = self._deadline_s - self._sender.clock()
        if remaining_s > _ATTEMPT_S_MIN:
            with suppress(ClientError):  # the route that is known stays
                yield from self._instance.route(self._out.topic, timeout_s=remaining_s, refresh=True)
        self._queues = self._instance.routes.publish_queues(self._out.topic)
        remaining_s = self._deadline_s - self._sender.clock()
        if remaining_s > _ATTEMPT_S_MIN and not any(queue.broker_name != leaving for queue in self._queues):
            yield Sleep(min(pause_s, remaining_s))

    def _next_pause_s(self) -> float:
        pause_s, self._pause_s = self._pause_s, min(self._pause_s * 2, _LEAVING_S[1])
        return pause_s


class _Failures:
    """The failed attempts of a send: (broker and address, seconds, error) of each."""

    __slots__ = ("_attempts", "_maybe_stored")

    def __init__(self) -> None:
        self._attempts: list[tuple[str, float, Exception]] = []
        self._maybe_stored = False

    def add(self, where: str, seconds: float, error: Exception) -> None:
        """Append an attempt. A request that was sent and got no response may have stored the message."""
        self._attempts.append((where, seconds, error))
        self._maybe_stored = self._maybe_stored or isinstance(error, (ConnectionLost, CallTimeout))

    def error(self, out: PreparedMessage, seconds: float) -> ClientError:
        """Return the error after the last attempt: what, where, how long, and whether the message may be stored."""
        topic, msg_id, maybe_stored = out.message.topic, out.msg_id, self._maybe_stored
        state = "the message may be stored" if maybe_stored else "nothing was stored"
        end = f"{state} (msg_id {msg_id})"
        if not self._attempts:
            return SendTimeout(
                f"{topic}: no attempt in {seconds:.2f} s: the time was over before a broker was asked; {end}",
                msg_id=msg_id,
                maybe_stored=False,
            )
        where, took, cause = self._attempts[-1]
        if len(self._attempts) > 1:
            parts = "; ".join(f"{where} {_reason(where, error, took)}" for where, took, error in self._attempts)
            text = f"{topic}: {len(self._attempts)} attempts in {seconds:.2f} s: {parts}; {end}"
            result: ClientError = self._send_failed(text, msg_id)
        elif isinstance(cause, CallTimeout):
            text = f"{topic}: {where} gave no answer in {took:.2f} s; {end}"
            result = SendTimeout(text, msg_id=msg_id, maybe_stored=True)
        elif isinstance(cause, BrokerError):
            result = cause
        elif isinstance(cause, ConnectError):
            result = ConnectError(f"{topic}: {where}: {_alone(where, cause)}; {end}", msg_id=msg_id)
        else:
            text = f"{topic}: 1 attempt in {seconds:.2f} s: {where}: {_alone(where, cause)}; {end}"
            result = self._send_failed(text, msg_id)
        result.__cause__ = cause if cause is not result else None
        return result

    def _send_failed(self, text: str, msg_id: str) -> SendFailed:
        return SendFailed(text, attempts=tuple(self._attempts), msg_id=msg_id, maybe_stored=self._maybe_stored)


def _checked_queue(queue: object, out: PreparedMessage) -> MessageQueue:
    if not isinstance(queue, MessageQueue):
        raise ClientUsageError(f"queue: expected a MessageQueue, found {queue!r}")
    if queue.topic not in (out.message.topic, out.topic):
        raise ClientUsageError(f"queue: expected a queue of topic {out.message.topic!r}, found one of {queue.topic!r}")
    if type(queue.queue_id) is not int or queue.queue_id < 0:
        raise ClientUsageError(f"queue: expected a queue_id of 0 or more, found {queue.queue_id!r}")
    return queue


def _reason(where: str, error: Exception, took: float) -> str:
    if isinstance(error, CallTimeout):
        return f"gave no answer in {took:.2f} s"
    if isinstance(error, BrokerError):
        return f"answered code {error.code}" + (f" {error.remark!r}" if error.remark else "")
    return f"{_alone(where, error)} ({took:.2f} s)"


def _alone(where: str, error: Exception) -> str:
    """Return the text of an error without the address, which the caller puts before the text."""
    return str(error).removeprefix(where.rpartition(" ")[2] + ": ")
