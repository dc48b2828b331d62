"""Receive only some messages of a topic: by tags, and by an expression over their properties.

The broker reads expressions with the setting ``enablePropertyFilter=true``.

Prints: by tags ['a', 'b']
Prints: by SQL ['c']
"""

import threading

from mqfast import Producer, PushConsumer

with Producer("order-service") as producer:
    producer.send("examples-filter", "a", tags="new", properties={"cents": "10"})
    producer.send("examples-filter", "b", tags="paid", properties={"cents": "20"})
    producer.send("examples-filter", "c", tags="sent", properties={"cents": "3000"})

by_tags, by_sql = PushConsumer("by-tags", from_where="earliest"), PushConsumer("by-sql", from_where="earliest")
bodies: dict[str, list[str]] = {"tags": [], "SQL": []}
done = threading.Event()


def received(name, message):
    """Note a message; the example ends with the third."""
    bodies[name].append(message.text())
    if sum(map(len, bodies.values())) == 3:
        done.set()


@by_tags.on("examples-filter", tags="new || paid")
def some(message):
    received("tags", message)


@by_sql.on("examples-filter", sql="cents > 1000 AND TAGS = 'sent'")
def large(message):
    received("SQL", message)


with by_tags, by_sql:
    assert done.wait(timeout=60)
print("by tags", sorted(bodies["tags"]))
print("by SQL", bodies["SQL"])
