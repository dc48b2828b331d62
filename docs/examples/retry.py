"""Let a failed message be delivered again: a handler that raises gets the message later.

Prints: ['attempt 1', 'attempt 2']
"""

import threading

from mqfast import Producer, PushConsumer, Retry

attempts: list[str] = []
done = threading.Event()
consumer = PushConsumer("billing-retry", from_where="earliest")


@consumer.on("examples-retry")
def bill(message):
    attempts.append(f"attempt {message.reconsume_times + 1}")
    if message.reconsume_times == 0:
        raise Retry(delay_level=1, reason="the bank does not answer")  # level 1 is a second; 0 is RocketMQ's schedule
    done.set()


with Producer("order-service") as producer, consumer:
    producer.send("examples-retry", "42")
    assert done.wait(timeout=60)
print(attempts)
