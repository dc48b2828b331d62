"""The official Python SDK (rocketmq-python-client 5.x) against a broker, in a venv of its own.

Arguments: endpoints, then the access key and the secret where there are any, then ``tls``. Topics are those of
test_grpc_sdks.py. The last line of the output is ``done``. 5.0.1 has no push consumer and no recall.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import rocketmq  # type: ignore[import-not-found]
from rocketmq import (
    ClientConfiguration,
    Credentials,
    FilterExpression,
    Message,
    Producer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

HAS_PUSH = hasattr(rocketmq, "PushConsumer")
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


class Reader:
    """A consumer of a topic: a push consumer where the SDK has one, a simple consumer otherwise."""

    def __init__(self, configuration: ClientConfiguration, topic: str, is_tls: bool, is_simple: bool = False) -> None:
        self.bodies: list[str] = []
        self.is_simple = is_simple or not HAS_PUSH
        group, topics = f"python-{topic}", {topic: FilterExpression()}
        if self.is_simple:
            tls = {"tls_enable": is_tls} if HAS_PUSH else {}  # simple consumers of 5.0.1 know no TLS
            self.client = SimpleConsumer(configuration, group, topics, 3, **tls)
        else:
            self.client = rocketmq.PushConsumer(configuration, group, listener(self.bodies), topics, tls_enable=is_tls)
        self.client.startup()
        if self.is_simple:
            self.client.receive(32, 15)  # a new group begins at the end of the topic

    def take(self) -> list[str]:
        """Return the bodies so far; those of a simple consumer are received and acked here."""
        for received in (self.client.receive(32, 15) or ()) if self.is_simple else ():
            self.bodies.append(received.body.decode())
            self.client.ack(received)
        return self.bodies


def listener(bodies: list[str]) -> object:
    """Return a listener that notes the bodies."""

    class Listener(rocketmq.MessageListener):  # type: ignore[misc]
        def consume(self, received: Message) -> object:
            bodies.append(received.body.decode())
            return rocketmq.ConsumeResult.SUCCESS

    return Listener()


class Checker(TransactionChecker):  # type: ignore[misc]
    def check(self, half: Message) -> TransactionResolution:
        return TransactionResolution.COMMIT


def main(endpoints: str, key: str = "", secret: str = "", tls: str = "") -> None:
    credentials = Credentials(key, secret) if key or not HAS_PUSH else Credentials()
    configuration = ClientConfiguration(endpoints, credentials, "")
    is_tls = tls == "tls"
    names = ("normal", "transaction", "fifo", "delay")
    readers = {topic: Reader(configuration, topic, is_tls) for topic in names}
    readers["simple"] = Reader(configuration, "simple", is_tls, True)
    time.sleep(3)  # the first assignment of a push consumer
    producer = Producer(configuration, tuple(readers), checker=Checker(), tls_enable=is_tls)
    producer.startup()

    def send(topic: str, body: str, **fields: object) -> rocketmq.SendReceipt:
        made = message(topic, body)
        for name, value in fields.items():
            setattr(made, name, value)
        return producer.send(made)

    wanted = [f"python-{number}" for number in range(20)]
    for topic in ("normal", "simple"):
        for body in wanted:
            send(topic, body)
        wait(f"{topic}: all messages come", lambda reader=readers[topic]: set(wanted) <= set(reader.take()))
    for body in wanted:
        send("fifo", body, message_group="group")
    wait("all messages of a group come", lambda: len(readers["fifo"].take()) >= len(wanted))
    assert readers["fifo"].bodies == wanted or not HAS_PUSH

    simple, changed = readers["simple"].client, []
    send("simple", "python-changed")

    def change() -> bool:
        for received in simple.receive(32, 600) or ():
            simple.change_invisible_duration(received, 10)
            changed.append(received.body.decode())
        return bool(changed)

    wait("a message is received", change)
    wait("its time is changed, it comes again", lambda: "python-changed" in readers["simple"].take())

    for body in ("python-committed", "python-orphan"):
        transaction = producer.begin_transaction()
        producer.send(message("transaction", body), transaction)
        if body == "python-committed":
            transaction.commit()
    committed = {"python-committed", "python-orphan"}
    wait("transactions are committed, one after a check", lambda: committed <= set(readers["transaction"].take()))

    due_s = int(time.time()) + 4
    send("delay", "python-due", delivery_timestamp=due_s)
    if hasattr(producer, "recall_message"):
        recalled = send("delay", "python-recalled", delivery_timestamp=due_s + 1)
        producer.recall_message("delay", recalled.recall_handle)
    wait("a delayed message comes", lambda: "python-due" in readers["delay"].take())
    assert time.time() >= due_s - 1
    time.sleep(3)
    assert "python-recalled" not in readers["delay"].take()
    producer.shutdown()
    if HAS_PUSH:
        for reader in readers.values():
            reader.client.shutdown()
    print("done", flush=True)
    os._exit(0)  # threads of 5.0.1 do not end


if __name__ == "__main__":
    main(*sys.argv[1:])
