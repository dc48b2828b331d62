"""Keep the order of the messages of one key: a sharding key and an orderly consumer.

Prints: ['created', 'paid', 'sent']
"""

from mqfast import Producer, PushConsumer

with Producer("order-service") as producer:
    for step in ("created", "paid", "sent"):
        producer.send("examples-order", step, sharding_key="order-42")

steps = []
with PushConsumer("steps", topics="examples-order", orderly=True, from_where="earliest") as consumer:
    for message in consumer:
        steps.append(message.text())
        if len(steps) == 3:
            break
print(steps)
