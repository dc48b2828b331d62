"""Deliver each message to every member of a group, for example to empty the caches of all servers.

Prints: {'first': ['drop 42'], 'second': ['drop 42']}
"""

import threading

from mqfast import Producer, PushConsumer

received: dict[str, list[str]] = {"first": [], "second": []}
done = {name: threading.Event() for name in received}


def member(name):
    """Return a consumer of the group; each member keeps its own offsets, in a file."""
    consumer = PushConsumer("caches", model="broadcasting", instance_name=name, from_where="earliest")

    @consumer.on("examples-broadcast")
    def drop(message):
        received[name].append(message.text())
        done[name].set()

    return consumer


with Producer("products") as producer, member("first"), member("second"):
    producer.send("examples-broadcast", "drop 42")
    assert all(event.wait(timeout=60) for event in done.values())
print(received)
