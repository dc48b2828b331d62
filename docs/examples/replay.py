"""Read the messages from a point in time on once more, without a change of any group's offsets.

Prints: ['after']
"""

import time
from datetime import UTC, datetime

from mqfast import Producer, PullConsumer

with Producer("order-service") as producer:
    producer.send("examples-replay", "before")
    time.sleep(0.01)  # offsets by time have the resolution of a millisecond
    since = datetime.now(UTC)
    producer.send("examples-replay", "after")

replayed = []
with PullConsumer("replay", topics="examples-replay", auto_commit_s=None) as consumer:
    for queue in consumer.queues("examples-replay"):
        answer = consumer.pull(queue, consumer.offset_at(queue, since))
        replayed += [message.text() for message in answer.messages]
print(replayed)
