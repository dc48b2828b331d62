"""What tests of push consumers share: a broker whose retries take a second, and messages in all queues of a topic."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from consumer_cluster import BROKER_NAME, Hand, a_cluster, until

from mqfast.client.delivery import Delivery
from mqfast.client.values import MessageQueue

__all__ = ["QUICK", "Hand", "Seen", "a_cluster", "fill", "queue_of", "until"]

QUICK = {"messageDelayLevel": " ".join(["1s"] * 18)}
"""Every retry comes after a second."""


def queue_of(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, BROKER_NAME, queue_id)


def fill(hand: Hand, topic: str, count: int, *, properties: str = "", first: int = 0) -> list[bytes]:
    """So many messages, spread over the four queues of the topic."""
    bodies = [b"%06d" % i for i in range(first, first + count)]
    for queue_id in range(4):
        hand.send(topic, *bodies[queue_id::4], queue_id=queue_id, properties=properties)
    return bodies


class Seen:
    """What a handler has seen. Thread: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.messages: list[Delivery] = []
        self.times: list[float] = []

    def __call__(self, message: Delivery) -> None:
        with self._lock:
            self.messages.append(message)
            self.times.append(time.monotonic())

    @property
    def bodies(self) -> list[bytes]:
        return [one.body for one in list(self.messages)]

    @property
    def counts(self) -> Counter[bytes]:
        return Counter(self.bodies)

    def wait(self, count: int, what: str = "messages") -> None:
        until(lambda: len(self.messages) >= count, f"{count} {what}")

    def wait_for(self, condition: Callable[[], Any], what: str) -> None:
        until(condition, what)
