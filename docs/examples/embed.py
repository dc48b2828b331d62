"""Use the store inside of a program: no server, files in RocketMQ's format.

Prints: 2 messages, the last: paid
Prints: 42 by key
"""

import tempfile
from pathlib import Path

import mqfast

path = Path(tempfile.mkdtemp()) / "store"
with mqfast.open(path) as store:
    store.put("orders", b"42", keys="order-42")
    store.put("orders", b"paid")

with mqfast.open(path) as store:
    messages = store.get("orders", queue_id=0, offset=0, max_count=32)
    print(len(messages), "messages, the last:", bytes(messages[1].body).decode())
    (order,) = store.query("orders", "order-42")
    print(bytes(order.body).decode(), "by key")
