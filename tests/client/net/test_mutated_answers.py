"""Answers of a real broker and name server with bytes changed on their way: errors of clients, no hang, no dead thread.

Two hundred changed chunks; 20,000 with MQFAST_WHOLE=1. Once the line is whole again the same clients go on.
"""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from sampling import WHOLE

from mqfast.client import AdminClient, Message, Producer, PullConsumer, PushConsumer
from mqfast.errors import ClientError
from mqfast.testing import Broker

CHANGED, SECONDS = (20_000, 900) if WHOLE else (200, 8)
LONGEST_S = 15.0


class Line:
    """Connections to a server, whose answers have bytes changed while ``changes`` is set.

    Args: named: an address that answers have, and the one that goes out in its place.
    Attributes: ``changed``: how many chunks were. Thread: one for each direction of a connection.
    """

    def __init__(self, target: str, seed: int, named: tuple[str, str] = ("", "")) -> None:
        host, _, port = target.rpartition(":")
        assert len(named[0]) == len(named[1]), "the length of frames would change"
        self._named = named[0].encode(), named[1].encode()
        self._target = host, int(port)
        self._chance = random.Random(seed)
        self._lock = threading.Lock()
        self.changes = False
        self.changed = 0
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
                far = socket.create_connection(self._target)
            except OSError:
                return
            self._sockets |= {near, far}
            threading.Thread(target=self._copy, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, True), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket, is_answer: bool) -> None:
        try:
            while data := source.recv(65_536):
                if is_answer and self._named[0]:
                    data = data.replace(*self._named)
                to.sendall(self._changed(data) if is_answer and self.changes else data)
        except OSError:
            pass
        finally:
            for one in (source, to):
                end_of(one)
            source.close()  # the other direction closes the other one
            self._sockets.discard(source)

    def _changed(self, data: bytes) -> bytes:
        with self._lock:
            chance = self._chance
            if chance.random() < 0.5:
                return data
            self.changed += 1
            found = bytearray(data)
            for _ in range(chance.choice((1, 1, 1, 4, 16))):
                at = chance.randrange(len(found))
                kind = chance.randrange(4)
                if kind == 0:
                    found[at] ^= 1 << chance.randrange(8)
                elif kind == 1:
                    found[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, 34, 44, 123, 125))
                elif kind == 2:
                    del found[at : at + chance.randrange(1, 9)]
                else:
                    found[at:at] = chance.randbytes(chance.randrange(1, 9))
                if not found:
                    break
            return bytes(found)

    def close(self) -> None:
        self._listener.close()
        for one in list(self._sockets):
            end_of(one)


def end_of(one: socket.socket) -> None:
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}) as one:
        yield one


class Calls:
    """Calls in a loop each, in threads. Attributes: wrong: what should not have been; done: calls that ended well."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.done = 0
        self.failed = 0
        self._threads: list[threading.Thread] = []

    def always(self, name: str, call: Callable[[], object]) -> None:
        def run() -> None:
            while not self.stop.is_set():
                begin = time.monotonic()
                try:
                    call()
                    self.done += 1
                except ClientError:
                    self.failed += 1
                except Exception as error:
                    self.wrong.append(f"{name}: {error!r}")
                took = time.monotonic() - begin
                if took > LONGEST_S:
                    self.wrong.append(f"{name} took {took:.1f} s")

        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()

    def end(self) -> None:
        self.stop.set()
        for one in self._threads:
            one.join(2 * LONGEST_S)
            if one.is_alive():
                self.wrong.append("a call that does not end")


@pytest.mark.slow
def test_clients_live_through_changed_answers(broker: Broker, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setattr("mqfast.client.net.instance.ROUTE_S", 1.0)  # a changed route is replaced soon
    monkeypatch.setattr(threading, "excepthook", lambda args: calls.wrong.append(f"a thread: {args.exc_value!r}"))
    brokers = Line(broker.addresses["broker-a"], seed)
    # Routes name the line in place of the broker.
    names = Line(broker.namesrv_addr, seed + 1, (broker.addresses["broker-a"], brokers.address))
    address = names.address
    seen: set[bytes] = set()
    consumer = PushConsumer("pushers", address, from_where="first", close_timeout_s=3)
    consumer.subscribe("orders", lambda message: seen.add(message.body))
    puller = PullConsumer(
        "pullers", address, topics="orders", from_where="first", offset_reset="earliest", close_timeout_s=3
    )
    producer = Producer("senders", address, send_timeout_s=2, close_timeout_s=3)
    admin = AdminClient(address, timeout_s=2)
    try:
        with consumer, puller, producer, admin:
            producer.send("orders", b"first")
            names.changes = brokers.changes = True
            calls.always("send", lambda: producer.send("orders", b"x"))
            calls.always("future", lambda: producer.send_future(Message("orders", b"x")).result(LONGEST_S))
            calls.always("batch", lambda: producer.send_batch([Message("orders", b"x"), Message("orders", b"y")]))
            calls.always("poll", lambda: puller.poll(timeout_s=0.1))
            calls.always("commit", puller.commit)
            calls.always("lag", consumer.lag)
            calls.always("admin", lambda: (admin.topics(), admin.topic_stats("orders"), admin.lag("pushers")))
            end = time.monotonic() + SECONDS
            while names.changed + brokers.changed < CHANGED and time.monotonic() < end:
                time.sleep(0.02)
            names.changes = brokers.changes = False
            calls.end()
            assert calls.wrong == []
            assert calls.failed > 10
            assert goes_on(producer, seen), consumer.stats()
    finally:
        names.close()
        brokers.close()
    assert calls.wrong == []


def goes_on(producer: Producer, seen: set[bytes]) -> bool:
    """Does a message go through, once a route that was changed is asked for again?"""
    end, number = time.monotonic() + 90, 0
    while time.monotonic() < end:
        number += 1
        body = b"after %d" % number
        try:
            producer.send("orders", body)
        except ClientError:
            time.sleep(0.5)
            continue
        until = time.monotonic() + 3
        while time.monotonic() < until:
            if body in seen:
                return True
            time.sleep(0.01)
    return False
