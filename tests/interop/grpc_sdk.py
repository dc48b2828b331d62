"""The official Python SDK (rocketmq-python-client 5.x) against a broker: ``grpc_sdk.py ENDPOINTS``, in its own venv.

Room: tests/interop. Topics are those of test_grpc_sdks.py. The last line of the output is ``done``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rocketmq import (  # type: ignore[import-not-found]
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

WAIT_S = 60


def message(topic: str, body: str) -> Message:
    made = Message()
    made.topic, made.body, made.tag, made.keys = topic, body.encode(), "t", f"key-{body}"
    made.add_property("colour", "red")
    return made


def wait(what: str, condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {WAIT_S} s"
        time.sleep(0.02)
    print(what, flush=True)


class Listener(MessageListener):  # type: ignore[misc]
    def __init__(self) -> None:
        self.bodies: set[str] = set()

    def consume(self, received: Message) -> ConsumeResult:
        self.bodies.add(received.body.decode())
        return ConsumeResult.SUCCESS


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, half: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(), "")
    listener, committed = Listener(), Listener()
    pushes = [
        PushConsumer(configuration, f"python-{topic}", taker, {topic: FilterExpression()}, tls_enable=False)
        for topic, taker in (("normal", listener), ("transaction", committed))
    ]
    for push in pushes:
        push.startup()
    simple = SimpleConsumer(configuration, "python-simple", {"simple": FilterExpression()}, tls_enable=False)
    simple.startup()
    simple.receive(32, 15)
    time.sleep(3)  # the first assignment of a push consumer
    topics = ("normal", "simple", "transaction", "fifo", "delay")
    producer = Producer(configuration, topics, checker=Checker(), tls_enable=False)
    producer.startup()

    for number in range(20):
        producer.send(message("normal", f"python-{number}"))
        producer.send(message("simple", f"python-{number}"))
    wanted = {f"python-{number}" for number in range(20)}
    wait("a push consumer gets all messages", lambda: wanted <= listener.bodies)

    received: set[str] = set()

    def receive() -> bool:
        for taken in simple.receive(32, 15):
            received.add(taken.body.decode())
            simple.ack(taken)
        return wanted <= received

    wait("a simple consumer gets all messages", receive)

    for body in ("committed", "orphan"):
        transaction = producer.begin_transaction()
        producer.send(message("transaction", f"python-{body}"), transaction)
        if body == "committed":
            transaction.commit()
    wait(
        "transactions are committed, one after a check",
        lambda: {"python-committed", "python-orphan"} <= committed.bodies,
    )

    grouped = message("fifo", "python-fifo")
    grouped.message_group = "group"
    producer.send(grouped)
    late = message("delay", "python-delay")
    late.delivery_timestamp = int(time.time()) + 5
    producer.send(late)
    for client in (*pushes, simple, producer):
        client.shutdown()
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])
