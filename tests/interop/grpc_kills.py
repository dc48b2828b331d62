"""The official Python SDK through kills of the broker: sends and consumes until told to stop.

Arguments: endpoints. Standard output: ``sent BODY`` for each send that was answered. At the line ``stop`` of standard
input the program sends no more, and waits for every message that was sent: ``done COUNT``, or ``lost BODIES``.
Each fifth message fails at the first delivery.
"""

from __future__ import annotations

import os
import sys
import threading
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
)

WAIT_S = 120
TOPIC = "kills"
consumed: set[str] = set()
failed: set[str] = set()


class Listener(MessageListener):  # type: ignore[misc]
    def consume(self, received: Message) -> ConsumeResult:
        body = received.body.decode()
        if body.endswith("5") and body not in failed:
            failed.add(body)
            return ConsumeResult.FAILURE
        consumed.add(body)
        return ConsumeResult.SUCCESS


def send(producer: Producer, body: str) -> bool:
    """Send a message. Returns: False without an answer that the message is stored."""
    message = Message()
    message.topic, message.body = TOPIC, body.encode()
    try:
        producer.send(message)
    except Exception:
        time.sleep(0.1)
        return False
    return True


def main(endpoints: str) -> None:
    configuration = ClientConfiguration(endpoints, Credentials(), "")
    producer = Producer(configuration, (TOPIC,), tls_enable=False)
    producer.startup()
    send(producer, "first")
    consumer = PushConsumer(configuration, "killed", Listener(), {TOPIC: FilterExpression()}, tls_enable=False)
    consumer.startup()
    while not consumed:  # a new group begins at the end of the topic
        send(producer, "first")
        time.sleep(0.1)
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    sent: set[str] = set()
    number = 0
    while not stopped.is_set():
        number += 1
        if send(producer, f"python-{number}"):
            sent.add(f"python-{number}")
            print(f"sent python-{number}", flush=True)
    until = time.monotonic() + WAIT_S
    while not sent <= consumed and time.monotonic() < until:
        time.sleep(0.05)
    lost = sorted(sent - consumed)
    print(f"lost {lost}" if lost else f"done {len(sent)}", flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
