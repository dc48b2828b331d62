"""The table of routes, changed by several threads at once and by calls that an exception ends."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from types import FrameType, MappingProxyType
from typing import Any

import pytest

from mqfast.client.route.route_table import BrokerPlace, RouteTable, TopicRoute
from mqfast.client.values import MessageQueue
from mqfast.remoting.bodies import READ, WRITE, QueueData


def route_of(topic: str, address: str = "127.0.0.1:10911") -> TopicRoute:
    place = BrokerPlace(f"broker-of-{topic}", "c", MappingProxyType({0: address}))
    return TopicRoute(topic, MappingProxyType({place.name: place}), (QueueData(place.name, READ | WRITE, 1, 0, 1),))


class Overtaken(TopicRoute):
    """A route during whose installation another thread makes a change."""

    meanwhile: Callable[[], object]

    def publish_queues(self) -> tuple[MessageQueue, ...]:
        thread = threading.Thread(target=self.meanwhile)
        thread.start()
        thread.join()
        return super().publish_queues()


def overtaken(topic: str, meanwhile: Callable[[], object]) -> Overtaken:
    route = Overtaken(*route_of(topic))
    route.meanwhile = meanwhile
    return route


def test_two_threads_that_find_two_topics_at_once_have_both() -> None:
    table = RouteTable()
    table.update("a", overtaken("a", lambda: table.update("b", route_of("b"))))
    for topic in ("a", "b"):
        assert table.publish_queues(topic) == (MessageQueue(topic, f"broker-of-{topic}", 0),)
        assert table.subscribe_queues(topic)
        assert table.address(f"broker-of-{topic}") == "127.0.0.1:10911"


def test_a_topic_that_another_thread_forgets_meanwhile_stays_forgotten() -> None:
    table = RouteTable()
    table.update("b", route_of("b"))
    table.update("a", overtaken("a", lambda: table.forget("b")))
    assert table.topics == ("a",)
    assert table.publish_queues("b") == ()
    assert table.address("broker-of-b") is None


def test_two_threads_that_find_the_same_topic_can_both_send_at_once() -> None:
    table = RouteTable()
    seen: list[tuple[MessageQueue, ...]] = []

    def other() -> None:
        table.update("a", route_of("a"))
        seen.append(table.publish_queues("a"))

    table.update("a", overtaken("a", other))
    assert seen == [(MessageQueue("a", "broker-of-a", 0),)]


def interrupt_at(number: int) -> Callable[[FrameType, str, Any], Any]:
    """Return a trace function that raises KeyboardInterrupt at the numbered line of a change of the tables.

    Not in the frame that has the lock: a trace function could raise where a signal handler cannot, before ``__exit__``.
    """
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        is_of_table = frame.f_code.co_filename == sys.modules[RouteTable.__module__].__file__
        if not is_of_table or frame.f_code.co_name == RouteTable.update.__name__:
            return None
        if event == "line":
            lines += 1
            if lines == number:
                raise KeyboardInterrupt
        return trace

    return trace


@pytest.mark.parametrize("change", ["new", "moved"])
def test_the_next_answer_completes_a_change_that_ctrl_c_has_interrupted(change: str) -> None:
    before = sys.gettrace()
    number = 0
    while True:
        number += 1
        table = RouteTable()
        if change == "moved":
            table.update("a", route_of("a", "127.0.0.1:1"))
        version = table.version
        try:
            sys.settrace(interrupt_at(number))
            table.update("a", route_of("a"))
            break
        except KeyboardInterrupt:
            sys.settrace(before)
        table.update("a", route_of("a"))
        assert table.publish_queues("a") == (MessageQueue("a", "broker-of-a", 0),)
        assert table.address("broker-of-a") == "127.0.0.1:10911"
        assert table.version is not version
    sys.settrace(before)
    assert number > 5
