"""Deliver a message later, and recall a message that is not yet delivered.

Prints: in a second
"""

from mqfast import Producer, PushConsumer

with Producer("reminders") as producer:
    later = producer.send("examples-delay", "in an hour", delay_s=3600)
    producer.recall("examples-delay", later.recall_handle)
    producer.send("examples-delay", "in a second", delay_level=1)

with PushConsumer("wake-up", topics="examples-delay", from_where="earliest") as consumer:
    for message in consumer:
        print(message.text())
        break
