"""Find the messages that a group has given up, and send them to their topic again.

Prints: dead letter 42
Prints: again 42
"""

import threading

from mqfast import Producer, PushConsumer, Retry
from mqfast.client import AdminClient

failed, done = threading.Event(), threading.Event()
consumer = PushConsumer("billing-dead", from_where="earliest")


@consumer.on("examples-dead")
def bill(message):
    if not failed.is_set():
        failed.set()
        raise Retry(delay_level=-1)  # to the dead letters at once; without it after 16 retries
    print("again", message.text(), flush=True)
    done.set()


with Producer("order-service") as producer, AdminClient() as admin, consumer:
    producer.send("examples-dead", "42")
    assert failed.wait(timeout=60)
    letters = []
    for _ in range(600):
        letters = list(admin.dead_letters("billing-dead"))
        if letters or done.wait(timeout=0.1):
            break
    for letter in letters:
        print("dead letter", letter.text(), flush=True)
        admin.resend(letter)
    assert done.wait(timeout=60)
