"""Send a message only if the transaction of a database is committed.

Prints: ['paid 42']
"""

import sqlite3
import tempfile
from pathlib import Path

from mqfast import Message, PullConsumer, TransactionProducer, TransactionStatus

path = Path(tempfile.mkdtemp()) / "payments.db"
database = sqlite3.connect(path)
database.execute("CREATE TABLE payments (number TEXT PRIMARY KEY)")


def check(message):
    """Return the state of a transaction whose end the broker does not know, for example after a crash."""
    with sqlite3.connect(path) as other:  # another thread calls this function
        row = other.execute("SELECT 1 FROM payments WHERE number = ?", (message.keys,)).fetchone()
    return TransactionStatus.COMMIT if row else TransactionStatus.ROLLBACK


with TransactionProducer("payments", check=check) as producer:
    for number in ("42", "43"):
        try:
            with producer.transaction(Message("examples-transaction", f"paid {number}", keys=number)), database:
                database.execute("INSERT INTO payments VALUES (?)", (number,))
                if number == "43":
                    raise ValueError("not enough money")
        except ValueError:
            pass  # rolled back: no consumer sees the message

with PullConsumer("accounts", topics="examples-transaction", from_where="earliest") as consumer:
    print([message.text() for message in consumer.poll(timeout_s=20)])
