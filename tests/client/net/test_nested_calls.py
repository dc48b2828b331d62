"""A call of a client inside of another one of the same thread: it works, or raises ClientError at once.

A signal handler runs between two instructions of whatever the main thread does; finalizers and callbacks of weak
references do so in any thread. Here a trace function is the handler, at a chosen instruction; real signals come too.
Every time limit of the calls is long: a call that waits for the one that it interrupted is found by its time.
"""

from __future__ import annotations

import gc
import inspect
import logging
import random
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import FrameType
from typing import Any

import pytest
from sampling import Sample

import mqfast
from mqfast.client import (
    AdminClient,
    ClientNested,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
    TransactionProducer,
)
from mqfast.client.net.guard import Guard
from mqfast.contrib.logging_handler import RocketMQHandler
from mqfast.errors import ClientError, UsageError
from mqfast.remoting.codes import RequestCode
from mqfast.testing import Broker

LONG_S = 60.0
STUCK_S = 25.0
"""Far above what a call takes on a loaded machine, and below every limit of the calls."""
PACKAGE = str(mqfast.__path__[0])
INSIDE = (f"{PACKAGE}/client", f"{PACKAGE}/contrib", threading.__file__, inspect.getfile(Future))

Call = Callable[[], object]


class Clients:
    """What the calls are made on; every limit is LONG_S."""

    def __init__(self, broker: Broker) -> None:
        limits: dict[str, Any] = {"close_timeout_s": LONG_S}
        self.broker = broker
        self.address = broker.namesrv_addr
        self.message = Message("orders", b"x")
        self.producer = Producer("p", broker.namesrv_addr, send_timeout_s=LONG_S, **limits).start()
        self.joining = Producer("j", broker.namesrv_addr, linger_ms=1, send_timeout_s=LONG_S, **limits).start()
        self.transactions = TransactionProducer(
            "t", broker.namesrv_addr, check=lambda message: None, send_timeout_s=LONG_S, **limits
        ).start()
        self.pushed = PushConsumer("pushed", broker.namesrv_addr, from_where="first", **limits)
        self.pushed.subscribe("orders", lambda message: None)
        self.pushed.start()
        self.looping = PushConsumer("looping", broker.namesrv_addr, topics="orders", from_where="first", **limits)
        self.loop = iter(self.looping)
        self.pulled = PullConsumer("pulled", broker.namesrv_addr, topics="orders", from_where="first", **limits).start()
        self.pull_loop = iter(self.pulled)
        self.assigned = PullConsumer("assigned", broker.namesrv_addr, **limits)
        self.queue = self.assigned.queues("orders")[0]
        self.assigned.assign([self.queue])
        self.assigned.seek(self.queue, "first")
        self.admin = AdminClient(broker.namesrv_addr, timeout_s=LONG_S)
        self.handler = RocketMQHandler("logs", producer=self.producer)
        self.record = logging.makeLogRecord({"msg": "a line", "name": "app"})

    def close(self) -> None:
        self.handler.close()
        for one in (self.pushed, self.looping, self.pulled, self.assigned, self.transactions, self.joining):
            one.close()
        self.producer.close()
        self.admin.close()

    def next_of(self, loop: Iterator[Any]) -> None:
        """A message is there, so that the loop has nothing to wait for."""
        self.producer.send(self.message)
        next(loop)

    def settled(self, settle: Callable[[Any], None]) -> None:
        self.producer.send(self.message)
        settle(next(self.loop))

    def committed(self) -> None:
        with self.transactions.transaction(self.message):
            pass

    def begun_and_closed(self, kind: Callable[..., Any], *arguments: Any, **more: Any) -> None:
        one = kind(*arguments, **more)
        try:
            one.start() if hasattr(one, "start") else one.topics()
        finally:
            one.close()


CALLS: dict[str, Callable[[Clients], object]] = {
    "Producer.start": lambda c: c.begun_and_closed(Producer, "new", c.address),
    "Producer.close": lambda c: c.begun_and_closed(Producer, "new", c.address, close_timeout_s=LONG_S),
    "Producer.send": lambda c: c.producer.send(c.message),
    "Producer.send with linger": lambda c: c.joining.send(c.message),
    "Producer.send_oneway": lambda c: c.producer.send_oneway(c.message),
    "Producer.send_batch": lambda c: c.producer.send_batch([c.message, c.message]),
    "Producer.send_future": lambda c: c.producer.send_future(c.message).result(LONG_S),
    "Producer.send_many": lambda c: list(c.producer.send_many([c.message] * 3)),
    "Producer.request": lambda c: c.producer.request(c.message, timeout_s=0.01),
    "Producer.recall": lambda c: c.producer.recall("orders", "none"),
    "Producer.flush": lambda c: (c.producer.send_future(c.message), c.producer.flush()),
    "Producer.queues": lambda c: c.producer.queues("orders"),
    "Producer.stats": lambda c: c.producer.stats(),
    "TransactionProducer.transaction": lambda c: c.committed(),
    "TransactionProducer.send_in_transaction": lambda c: c.transactions.send_in_transaction(
        c.message, lambda message, argument: True
    ),
    "TransactionProducer.close": lambda c: c.begun_and_closed(
        TransactionProducer, "new", c.address, check=lambda message: None
    ),
    "PushConsumer.start": lambda c: c.begun_and_closed(PushConsumer, "new", c.address, topics="orders"),
    "PushConsumer.close": lambda c: c.begun_and_closed(PushConsumer, "new", c.address, topics="orders"),
    "PushConsumer.subscribe": lambda c: c.pushed.subscribe("others", lambda message: None),
    "PushConsumer.on": lambda c: c.pushed.on("others")(lambda message: None),
    "PushConsumer.unsubscribe": lambda c: c.pushed.unsubscribe("others"),
    "PushConsumer.pause": lambda c: c.pushed.pause(),
    "PushConsumer.resume": lambda c: c.pushed.resume(),
    "PushConsumer.assignment": lambda c: c.pushed.assignment(),
    "PushConsumer.stats": lambda c: c.pushed.stats(),
    "PushConsumer.lag": lambda c: c.pushed.lag(),
    "PushConsumer.__iter__": lambda c: c.next_of(c.loop),
    "Delivery.ack": lambda c: c.settled(lambda message: message.ack()),
    "Delivery.retry": lambda c: c.settled(lambda message: message.retry(1)),
    "Delivery.reply_sync": lambda c: c.settled(lambda message: message.reply_sync(b"no request")),
    "PullConsumer.start": lambda c: c.begun_and_closed(PullConsumer, "new", c.address, topics="orders"),
    "PullConsumer.close": lambda c: c.begun_and_closed(PullConsumer, "new", c.address, topics="orders"),
    "PullConsumer.poll": lambda c: c.pulled.poll(0.001),
    "PullConsumer.__iter__": lambda c: c.next_of(c.pull_loop),
    "PullConsumer.subscribe": lambda c: c.pulled.subscribe("others"),
    "PullConsumer.unsubscribe": lambda c: c.pulled.unsubscribe("others"),
    "PullConsumer.assign": lambda c: c.assigned.assign([c.queue]),
    "PullConsumer.queues": lambda c: c.assigned.queues("orders"),
    "PullConsumer.assignment": lambda c: c.pulled.assignment(),
    "PullConsumer.pull": lambda c: c.assigned.pull(c.queue, 0),
    "PullConsumer.seek": lambda c: c.assigned.seek(c.queue, "first"),
    "PullConsumer.offset_at": lambda c: c.assigned.offset_at(c.queue, 0),
    "PullConsumer.committed": lambda c: c.assigned.committed(c.queue),
    "PullConsumer.commit": lambda c: c.pulled.commit(),
    "PullConsumer.pause": lambda c: c.assigned.pause(),
    "PullConsumer.resume": lambda c: c.assigned.resume(),
    "PullConsumer.stats": lambda c: c.pulled.stats(),
    "AdminClient.close": lambda c: c.begun_and_closed(AdminClient, c.address, timeout_s=LONG_S),
    "AdminClient": lambda c: c.admin.topic_stats("orders"),
    "AdminClient of pages": lambda c: list(c.admin.browse("orders", begin=0, end=1)),
    "RocketMQHandler.emit": lambda c: c.handler.handle(c.record),
    "RocketMQHandler.flush": lambda c: c.handler.flush(),
}
OTHERS = {
    "PushConsumer.run": "start, a wait and close",
    "Producer.after_fork": "of the fork",
    "TransactionProducer.after_fork": "of the fork",
    "PullConsumer.after_fork": "of the fork",
    "AdminClient.after_fork": "of the fork",
    "Producer.from_java": "a constructor",
    "PushConsumer.from_java": "a constructor",
    "PullConsumer.from_java": "a constructor",
    "PullConsumer.group": "a name",
}


def public_names(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def test_every_public_call_is_in_the_table() -> None:
    known = {*CALLS, *OTHERS}
    for kind in (Producer, PushConsumer, PullConsumer):
        assert {f"{kind.__name__}.{name}" for name in public_names(kind)} - known == set()
    more = public_names(TransactionProducer) - public_names(Producer)
    assert {f"TransactionProducer.{name}" for name in more} - known == set()


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    topics = {"orders": 1, "others": 1, "logs": 1}
    with Broker(topics=topics, process=True) as broker:  # no lock of this process is also a lock of the broker
        one = Clients(broker)
        try:
            for call in CALLS.values():  # what a first call loads and makes is there
                attempt(call, one)
            yield one
        finally:
            one.close()


def attempt(call: Callable[[Clients], object], clients: Clients) -> BaseException | None:
    """Make a call. Returns: the ClientError that it raised; every other exception is a fault."""
    try:
        call(clients)
    except ClientError as error:
        return error
    except UsageError as error:  # of a wrong argument, a handle that is none, say
        return error
    return None


class Interruption:
    """Makes a call at one instruction of another call, as a signal handler would."""

    def __init__(self, at: int, inner: Call) -> None:
        self.count = 0
        self._at = at
        self._inner = inner

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(INSIDE):
            return None
        frame.f_trace_opcodes = True
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            self.count += 1
            if self.count == self._at:
                self._inner()
        return self.step


def traced(call: Call, at: int, inner: Call) -> int:
    """Returns: how many instructions the call took."""
    one = Interruption(at, inner)
    before = sys.gettrace()
    sys.settrace(one)
    try:
        call()
    finally:
        sys.settrace(before)
    return one.count


@pytest.mark.sampled
@pytest.mark.parametrize("name", CALLS)
def test_calls_at_any_instruction_of_another_call(name: str, clients: Clients, sample: Sample) -> None:
    """Some instructions of each call, and at each of them another call; ``make sweeps``: at every third one."""
    outer = CALLS[name]
    length = traced(lambda: attempt(outer, clients), -1, lambda: None)
    assert length > 0
    places = range(1, length + 1, 3) if sample.whole else sorted(sample.rng.choices(range(1, length + 1), k=25))
    sample.note(len(places), length, f"instructions of {name}")
    for at in places:
        inner_name = sample.rng.choice(list(CALLS))
        took: list[float] = []

        def inner(one: str = inner_name, took: list[float] = took) -> None:
            begun = time.monotonic()
            attempt(CALLS[one], clients)
            took.append(time.monotonic() - begun)

        begun = time.monotonic()
        traced(lambda: attempt(outer, clients), at, inner)
        whole = time.monotonic() - begun
        assert whole < STUCK_S, f"{inner_name} at instruction {at} of {name}: {took or 'never'} of {whole:.1f} s"


@pytest.mark.sampled
def test_signals_at_random_moments(clients: Clients, sample: Sample) -> None:
    """Real signals: a handler makes any call while the main thread makes any other one."""
    inside = False
    count = 0
    longest = (0.0, "")

    def handler(number: int, frame: FrameType | None) -> None:
        nonlocal inside, count, longest
        if inside:
            return
        inside = True
        try:
            name = sample.rng.choice(list(CALLS))
            begun = time.monotonic()
            attempt(CALLS[name], clients)
            longest = max(longest, (time.monotonic() - begun, name))
            count += 1
        finally:
            inside = False
            signal.setitimer(signal.ITIMER_REAL, sample.rng.uniform(0.0002, 0.02))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        until = 2000 if sample.whole else 60
        sample.note(until, 2000, "calls in handlers")
        while count < until:
            attempt(CALLS[random.choice(list(CALLS))], clients)
            assert longest[0] < STUCK_S, f"{longest[1]} in a handler took {longest[0]:.1f} s"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_send_in_a_handler_of_a_send_that_waits(clients: Clients) -> None:
    """The interrupted caller reads the socket; the handler's send goes over a connection of its own."""
    found: list[SendResult] = []
    broker = clients.broker

    def handler(number: int, frame: FrameType | None) -> None:
        found.append(clients.producer.send("orders", b"from the handler"))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with broker.faults.slow(1.0, only=[RequestCode.SEND_MESSAGE_V2], times=1):
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            assert clients.producer.send("orders", b"from the frame").ok
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [one.ok for one in found] == [True]


def test_calls_in_finalizers_and_callbacks_of_weak_references(clients: Clients) -> None:
    """The garbage collector runs them in any thread, also in that of the loop."""
    ends: list[BaseException | None] = []
    callbacks: list[weakref.ref[Any]] = []

    class Dying:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            ends.append(attempt(CALLS["Producer.send"], clients))
            ends.append(attempt(CALLS["Producer.flush"], clients))

    class Watched:
        def __init__(self) -> None:
            self.me = self

    thresholds = gc.get_threshold()
    gc.set_threshold(20)
    try:
        for _ in range(300):
            Dying()
            watched = Watched()
            callbacks.append(
                weakref.ref(watched, lambda one: ends.append(attempt(CALLS["Producer.send_future"], clients)))
            )
            del watched
            clients.producer.send_future(clients.message)
        clients.producer.flush()
    finally:
        gc.set_threshold(*thresholds)
    gc.collect()
    assert len(ends) >= 900
    assert clients.producer.send(clients.message).ok


@pytest.mark.parametrize(
    "name", ["Producer.flush", "Producer.close", "Producer.send", "AdminClient", "PullConsumer.poll"]
)
def test_calls_that_wait_are_refused_in_on_done(name: str, clients: Clients) -> None:
    found: list[object] = []

    def on_done(future: Future[SendResult]) -> None:
        found.append(attempt(CALLS[name], clients))
        found.append(clients.producer.send_future(clients.message))  # this one never waits

    clients.producer.send_future(clients.message, on_done=on_done).result(STUCK_S)
    clients.broker.wait_until(lambda: len(found) == 2, timeout_s=STUCK_S)
    error, future = found
    assert isinstance(error, ClientError)
    assert "serves sync clients" in str(error)
    assert isinstance(future, Future)
    assert future.result(STUCK_S).ok


def test_a_guard_refuses_its_own_thread_alone() -> None:
    guard = Guard()
    with guard:
        with pytest.raises(ClientNested):
            guard.acquire()
        other: list[bool] = []
        thread = threading.Thread(target=lambda: other.append(guard.acquire(timeout=0.01)))
        thread.start()
        thread.join()
        assert other == [False]
    assert guard.acquire(blocking=False)
    guard.release()
    with pytest.raises(RuntimeError):
        guard.release()


def test_a_wait_that_is_interrupted_leaves_with_its_guard() -> None:
    """threading.Condition takes its lock again before the exception goes on."""
    guard = Guard()
    condition = threading.Condition(guard)

    def handler(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        for delay_s in (0.001, 0.01, 0.05):
            with pytest.raises(KeyboardInterrupt), condition:
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                condition.wait(STUCK_S)
            assert guard.acquire(blocking=False)
            guard.release()
    finally:
        signal.signal(signal.SIGALRM, before)
