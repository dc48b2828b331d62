"""A producer that is closed in the middle of a send, by a callback or another thread: no socket is left open."""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Sequence

import pytest
from client.net.raw_server import RawServer

from mqfast.client import Message, MessageQueue, Producer


def in_another_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize("call", [lambda function: function(), in_another_thread], ids=["callback", "thread"])
def test_a_send_that_connects_after_the_close_closes_its_socket(call: Callable[[Callable[[], None]], None]) -> None:
    def send(address: str) -> None:
        def close_first(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
            call(producer.close)  # the route is known by then, and no connection to the broker is open
            return queues[0]

        producer = Producer("makers", address)
        assert producer.send(Message("orders", b"x"), selector=close_first).ok

    with (
        RawServer(lambda one, request: one.answer(request)) as broker,
        RawServer(lambda one, request: one.answer(request)) as names,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        names.broker = broker.address
        send(names.address)
        gc.collect()
        assert broker.requests
    assert [str(warning.message) for warning in caught if warning.category is ResourceWarning] == []
