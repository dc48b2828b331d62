"""Poll messages, and commit when the work with them is done.

Prints: 5 messages
Prints: 0 messages
"""

from mqfast import Producer, PullConsumer


def report():
    """Work on all messages that the group has not committed; return their number."""
    count = 0
    with PullConsumer("report", topics="examples-pull", auto_commit_s=None, from_where="earliest") as consumer:
        while batch := consumer.poll(timeout_s=1):
            count += len(batch)
            consumer.commit()
    return count


with Producer("order-service") as producer:
    for number in range(5):
        producer.send("examples-pull", f"{number}")

print(report(), "messages")
print(report(), "messages")
