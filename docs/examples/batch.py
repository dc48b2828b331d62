"""Send many messages in few requests, and consume several messages with one call.

Prints: 3 in one queue
Prints: 100 of 100 sent
Prints: 103 received
"""

import threading

from mqfast import Message, Producer, PushConsumer, SendResult

with Producer("order-service") as producer:
    one_request = [Message("examples-batch", f"{number}") for number in range(3)]
    producer.send_batch(one_request)  # all or none, as neighbours in a queue
    print(len(one_request), "in one queue")
    results = list(producer.send_many(Message("examples-batch", f"{number}") for number in range(100)))
    print(sum(isinstance(result, SendResult) for result in results), "of", len(results), "sent")

numbers, done = [], threading.Event()
consumer = PushConsumer("batches", from_where="earliest")


@consumer.on("examples-batch", batch=32)
def work(messages):
    numbers.extend(message.text() for message in messages)
    if len(numbers) >= 103:
        done.set()


with consumer:
    assert done.wait(timeout=60)
print(len(numbers), "received")
