"""Send a message and receive the message.

Prints: SEND_OK
Prints: new 42
"""

from mqfast import Producer, PullConsumer

with Producer("order-service") as producer:
    print(producer.send("examples-send", b"42", tags="new", keys="order-42").status.name)

with PullConsumer("billing-send", topics="examples-send", from_where="earliest") as consumer:
    for message in consumer:
        print(message.tags, message.text())
        break
