"""The official Python SDK (rocketmq-python-client 5.1.2) beside two brokers, in a venv of its own.

Argument: the endpoints of one broker, whose routes lead to the other. The topic is ``spread``, with queues at both. The
last line of the output is ``done``.
"""

from __future__ import annotations

import os
import sys
import time

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
)

TOPIC, QUEUES, COUNT, WAIT_S = "spread", 4, 40, 60
BOTH = {"broker-a", "broker-b"}


def message(body: str) -> Message:
    made = Message()
    made.topic, made.body = TOPIC, body.encode()
    return made


def broker_of(received: Message) -> str:
    """Return the name of the broker, the sixth field of a handle."""
    return str(received.receipt_handle.split(" ")[5])


def shared_by_simple_consumers(configuration: ClientConfiguration, producer: Producer) -> None:
    """Two consumers of a group get each message once, those of both brokers."""
    consumers = [
        SimpleConsumer(configuration, "sharing", {TOPIC: FilterExpression()}, 1, tls_enable=False) for _ in range(2)
    ]
    for consumer in consumers:
        consumer.startup()
    for _ in range(QUEUES):  # a new group begins at the end of the topic, at each broker
        consumers[0].receive(1, 15)
    wanted = sorted(f"shared-{number}" for number in range(COUNT))
    for body in wanted:
        producer.send(message(body))
    got: list[list[tuple[str, str]]] = [[], []]
    until = time.monotonic() + WAIT_S
    while sum(map(len, got)) < COUNT:
        assert time.monotonic() < until, got
        for number, consumer in enumerate(consumers):
            for received in consumer.receive(4, WAIT_S) or ():
                got[number].append((received.body.decode(), broker_of(received)))
                consumer.ack(received)
    assert sorted(body for share in got for body, _ in share) == wanted, got
    assert all(got), got
    assert {broker for share in got for _, broker in share} == BOTH, got
    print(f"two simple consumers share: {[len(share) for share in got]}", flush=True)
    for consumer in consumers:
        consumer.shutdown()


def pushed(configuration: ClientConfiguration, producer: Producer) -> None:
    """A push consumer gets the messages of both brokers."""
    brokers: set[str] = set()

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, received: Message) -> object:
            brokers.add(broker_of(received))
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configuration, "pushed", Listener(), {TOPIC: FilterExpression()}, tls_enable=False)
    consumer.startup()
    until = time.monotonic() + WAIT_S
    while brokers != BOTH:
        assert time.monotonic() < until, brokers
        producer.send(message("pushed"))
        time.sleep(0.1)
    print("a push consumer reads both brokers", flush=True)


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(), "")
    producer = Producer(configuration, (TOPIC,), tls_enable=False)
    producer.startup()
    shared_by_simple_consumers(configuration, producer)
    pushed(configuration, producer)
    print("done", flush=True)
    os._exit(0)  # a push consumer ends with its held requests


if __name__ == "__main__":
    main(*sys.argv[1:])
