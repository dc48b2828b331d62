"""The steps of a send: which queue, which answer means what, what is tried again, and until when.

Room: client. It must never do I/O, and reads the clock that it was given only. A message keeps its unique id over all
attempts. Source: DefaultMQProducerImpl (sendDefaultImpl, sendKernelImpl), MQClientAPIImpl.processSendResponse.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final

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
"""The answers after which another attempt is made."""
_LEAST_S: Final = 0.005  # no further attempt is made in less time
_STORED: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}
_HEADS_MAX: Final = 10_000
_LEAVING_S: Final = (0.1, 0.5)
"""First and longest pause before another attempt at a broker that leaves, where no other one has the topic."""


class SendOptions:
    """What one send may be told beside its message.

    Args: timeout_s: for all attempts together. queue: exactly this queue. selector: chooses the queue. oneway: no
    answer is wanted.
    Attributes: ``any_queue``: nothing of this is said but the time.
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
    """Makes the steps of sends for one producer.

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
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.wire = wire
        self.retries = retries
        self.retry_codes = frozenset(retry_codes)
        self.retry_when_not_ok = retry_when_not_ok
        self.faults = faults
        self.retried = 0
        self._without_namespace = without_namespace
        self._clock = clock
        self._now = now
        self._robins: dict[str, RoundRobin] = {}
        self._heads: dict[tuple[Any, ...], HeaderTemplate] = {}
        self._targets: dict[tuple[str, int], tuple[object, RoundRobin, list[tuple[str, HeaderTemplate]]]] = {}

    # -- where to ------------------------------------------------------------------------------------------------------

    def queues(self, instance: ClientInstance, topic: str, timeout_s: float) -> RequestSteps[Sequence[MessageQueue]]:
        """The queues that a topic (with its namespace) may be sent to. Raises: NoRoute, ConnectError, BrokerError."""
        known = instance.routes.publish_queues(topic)
        if known:
            return known
        route = yield from instance.publish_route(
            topic, copied_topic=self.wire.create_topic_key, queues=self.wire.topic_queues, timeout_s=timeout_s,
            refresh=True,
        )  # fmt: skip
        found = instance.routes.publish_queues(topic)
        if not found:
            brokers = ", ".join(sorted(route.brokers)) or "no broker"
            raise NoRoute(f"topic {topic}: {brokers} has it, but none has a master and a queue with write permission")
        return found

    def _robin(self, topic: str) -> RoundRobin:
        robin = self._robins.get(topic)
        return self._robins.setdefault(topic, RoundRobin()) if robin is None else robin

    def pick(self, queues: Sequence[MessageQueue], topic: str, last_broker: str | None) -> MessageQueue:
        """The queue of an attempt that may go to any."""
        robin = self._robin(topic)
        if self.faults is None:
            return robin.pick(queues, last_broker)
        return self.faults.pick(queues, last_broker, robin)

    def fixed(self, queues: Sequence[MessageQueue], out: PreparedMessage, how: SendOptions) -> MessageQueue | None:
        """The one queue that this message must go to; None: any."""
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
        """The request of the first attempt, where it needs no steps: any queue will do, and the route is known.

        Most sends end with its answer; what else comes of it is for ``send``, which goes on from there.
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
        born = round(self._now() * 1000) if out.born_ms is None else out.born_ms
        return SendRequest(address, head, out, born, how.timeout_s, False, self._clock())

    def _find_targets(
        self, instance: ClientInstance, out: PreparedMessage
    ) -> tuple[object, RoundRobin, list[tuple[str, HeaderTemplate]]]:
        version = instance.routes.version  # read first: a change meanwhile makes this one old
        queues = instance.routes.publish_queues(out.topic)
        addresses = [instance.routes.address(queue.broker_name) for queue in queues]
        found = [(one, self._head(out, queue)) for one, queue in zip(addresses, queues, strict=True) if one]
        known = version, self._robin(out.topic), found if len(found) == len(queues) else []
        if len(self._targets) >= _HEADS_MAX:
            self._targets.clear()
        self._targets[out.topic, out.code] = known
        return known

    # -- the send ------------------------------------------------------------------------------------------------------

    def send(
        self, instance: ClientInstance, out: PreparedMessage, how: SendOptions, first: SendRequest | None = None
    ) -> RequestSteps[SendResult | None]:
        """Send one message or batch. Returns: its result, None for one-way.

        Args: first: the request of the first attempt, if it is made already; it is then the first step.
        Raises: NoRoute, ConnectError, SendTimeout, SendFailed, BrokerError (Refused, BrokerBusy).
        """
        begin = self._clock() if first is None else first.begun_s
        deadline = begin + how.timeout_s
        queues = () if first is not None else (yield from self.queues(instance, out.topic, how.timeout_s))
        fixed = self.fixed(queues, out, how) if queues else None
        attempts_max = 1 if how.oneway or fixed is not None else 1 + self.retries
        failures: list[tuple[str, float, Exception]] = []
        maybe_stored = False
        stored: SendResult | None = None
        last_broker: str | None = None
        pause_s, _ = _LEAVING_S
        is_leaving = False  # a broker has said so: until it is back, an attempt that stored nothing does not count
        attempt = counted = 0
        while counted < attempts_max:
            ask, first = first, None
            attempt_begin = self._clock() if ask is None else begin
            if ask is None:
                left = deadline - attempt_begin
                if left <= (_LEAST_S if attempt else 0):
                    break  # a timer of the loop may end a little before the deadline
                queues = queues or (yield from self.queues(instance, out.topic, left))
                queue = fixed if fixed is not None else self.pick(queues, out.topic, last_broker)
                last_broker = queue.broker_name
                address = instance.routes.address(last_broker)
                if address is None:
                    yield from instance.route(out.topic, timeout_s=left, refresh=True)
                    address = instance.routes.address(last_broker)
                    if address is None:
                        attempt, counted = attempt + 1, counted + 1
                        nowhere = ConnectError(
                            f"no known route names the master of broker {last_broker}; topic {out.message.topic} is on "
                            f"{', '.join(sorted({one.broker_name for one in queues}))}",
                            msg_id=out.msg_id,
                        )
                        failures.append((last_broker, self._clock() - attempt_begin, nowhere))
                        continue
                    left = deadline - self._clock()
                if attempt:
                    self.retried += 1
                born = round(self._now() * 1000) if out.born_ms is None else out.born_ms
                ask = SendRequest(address, self._head(out, queue), out, born, left, how.oneway, attempt_begin)
            address, last_broker = ask.address, ask.head.queue.broker_name
            attempt, counted = attempt + 1, counted + 1
            try:
                answer = yield ask
            except (ConnectError, ConnectionLost, CallTimeout, TooManyCalls) as error:
                seconds = self._clock() - attempt_begin
                failures.append((f"{last_broker} {address}", seconds, error))
                maybe_stored = maybe_stored or isinstance(error, (ConnectionLost, CallTimeout))
                if not isinstance(error, TooManyCalls):
                    instance.route_failed(out.topic)
                if self.faults is not None:
                    self.faults.update(last_broker, seconds, isolated=True, reachable=False)
                queues = queues or instance.routes.publish_queues(out.topic)
                is_refused = is_leaving and isinstance(error, ConnectError)
                counted -= is_refused
                if is_refused:
                    queues = yield from self._elsewhere(instance, out, last_broker, deadline, pause_s)
                    pause_s = min(pause_s * 2, _LEAVING_S[1])
                elif (
                    isinstance(error, (ConnectError, ConnectionLost))
                    and counted < attempts_max
                    and all(queue.broker_name == last_broker for queue in queues)
                ):  # the route is asked for meanwhile, once for all sends
                    yield Sleep(max(0.0, min(pause_s, deadline - self._clock() - _LEAST_S)))
                    queues = instance.routes.publish_queues(out.topic)
                    pause_s = min(pause_s * 2, _LEAVING_S[1])
                continue
            if how.oneway:
                return None
            seconds = self._clock() - attempt_begin
            status = _STORED.get(answer.code)
            if self.faults is not None:
                self.faults.update(last_broker, seconds, isolated=status is None)
            if status is not None:
                stored = self._result(status, answer, ask)
                if status is SendStatus.SEND_OK or not self.retry_when_not_ok:
                    return stored
                continue
            if answer.code == ResponseCode.SERVICE_NOT_AVAILABLE:
                instance.route_failed(out.topic)
            refusal = broker_error(answer, address, out.message.topic, msg_id=out.msg_id)
            failures.append((f"{last_broker} {address}", seconds, refusal))
            if answer.code not in self.retry_codes:
                if stored is not None:
                    return stored
                raise refusal
            if answer.code == ResponseCode.GO_AWAY and not how.oneway:
                is_leaving = True
                counted -= 1 if self.retries else 0
                queues = yield from self._elsewhere(instance, out, last_broker, deadline, pause_s)
                pause_s = min(pause_s * 2, _LEAVING_S[1])
        if stored is not None:
            return stored
        raise _failed(out, failures, self._clock() - begin, maybe_stored)

    def _elsewhere(
        self, instance: ClientInstance, out: PreparedMessage, leaving: str, deadline: float, pause_s: float
    ) -> RequestSteps[Sequence[MessageQueue]]:
        """Look where else a topic is by now, since a broker of it leaves; wait a little where it is nowhere else."""
        left = deadline - self._clock()
        if left > _LEAST_S:
            with suppress(ClientError):  # the route that is known stays
                yield from instance.route(out.topic, timeout_s=left, refresh=True)
        queues = instance.routes.publish_queues(out.topic)
        left = deadline - self._clock()
        if left > _LEAST_S and not any(one.broker_name != leaving for one in queues):
            yield Sleep(min(pause_s, left))
        return queues

    def _result(self, status: SendStatus, answer: RemotingCommand, ask: SendRequest) -> SendResult:
        try:
            return result_of(status, answer, ask.out, ask.head.queue)
        except FieldError as error:
            raise BrokerError(
                f"{ask.out.message.topic}: {ask.address} answered code {answer.code} without a valid msgId, queueId "
                f"and queueOffset ({error}); the message may be stored",
                code=answer.code,
                remark=answer.remark or "",
                broker=ask.address,
                msg_id=ask.out.msg_id,
            ) from None


def _checked_queue(queue: object, out: PreparedMessage) -> MessageQueue:
    if not isinstance(queue, MessageQueue):
        raise ClientUsageError(f"queue: expected a MessageQueue, found {queue!r}")
    if queue.topic not in (out.message.topic, out.topic):
        raise ClientUsageError(f"queue: expected a queue of topic {out.message.topic!r}, found one of {queue.topic!r}")
    if type(queue.queue_id) is not int or queue.queue_id < 0:
        raise ClientUsageError(f"queue: expected a queue_id of 0 or more, found {queue.queue_id!r}")
    return queue


def _failed(
    out: PreparedMessage, failures: list[tuple[str, float, Exception]], seconds: float, maybe_stored: bool
) -> ClientError:
    """The error of a send whose attempts have all failed: what, where, how long, and whether it may be stored."""
    topic, msg_id = out.message.topic, out.msg_id
    end = f"the message may be stored (msg_id {msg_id})" if maybe_stored else f"nothing was stored (msg_id {msg_id})"
    if not failures:
        return SendTimeout(
            f"{topic}: no attempt in {seconds:.2f} s: the time was over before a broker was asked; {end}",
            msg_id=msg_id,
            maybe_stored=False,
        )
    where, took, error = failures[-1]
    if len(failures) == 1:
        if isinstance(error, CallTimeout):
            text = f"{topic}: {where} gave no answer in {took:.2f} s; {end}"
            one: ClientError = SendTimeout(text, msg_id=msg_id, maybe_stored=True)
        elif isinstance(error, BrokerError):
            one = error
        elif isinstance(error, ConnectError):
            one = ConnectError(f"{topic}: {where}: {_alone(where, error)}; {end}", msg_id=msg_id)
        else:
            text = f"{topic}: 1 attempt in {seconds:.2f} s: {where}: {_alone(where, error)}; {end}"
            one = SendFailed(text, attempts=tuple(failures), msg_id=msg_id, maybe_stored=maybe_stored)
    else:
        parts = "; ".join(f"{where} {_reason(where, error, took)}" for where, took, error in failures)
        text = f"{topic}: {len(failures)} attempts in {seconds:.2f} s: {parts}; {end}"
        one = SendFailed(text, attempts=tuple(failures), msg_id=msg_id, maybe_stored=maybe_stored)
    one.__cause__ = error if error is not one else None
    return one


def _reason(where: str, error: Exception, took: float) -> str:
    if isinstance(error, CallTimeout):
        return f"gave no answer in {took:.2f} s"
    if isinstance(error, BrokerError):
        return f"answered code {error.code}" + (f" {error.remark!r}" if error.remark else "")
    return f"{_alone(where, error)} ({took:.2f} s)"


def _alone(where: str, error: Exception) -> str:
    """The text of an error without the address, which stands before it."""
    return str(error).removeprefix(where.rpartition(" ")[2] + ": ")
