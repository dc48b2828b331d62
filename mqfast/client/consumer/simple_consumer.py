"""SimpleConsumer: the application receives messages by POP, and acknowledges each by itself.

The requests run in the thread "mqfast-io". Nothing is read ahead, so no queue belongs to a consumer, and no consumer
holds up another. Source: RocketMQ 5.x's SimpleConsumer, over remoting.
"""

from __future__ import annotations

from mqfast.client.consumer.on_demand import SyncOnDemandConsumer
from mqfast.client.consumer.simple.simple_base import SimpleConsumerBase

__all__ = ["SimpleConsumer"]


class SimpleConsumer(SyncOnDemandConsumer, SimpleConsumerBase):
    """Messages on demand by POP; see ``SimpleConsumerBase`` for the arguments.

        with SimpleConsumer("report", topics="orders") as consumer:
            for message in consumer.receive(invisible_s=30):
                print(message.body)
                consumer.ack(message)

    A message without an ack comes again after its invisible time, to any consumer of the group; after the last retry of
    the group to the dead letters. ``change_invisible_time`` moves that time.

    Thread: any. Durability: an ack is stored by the broker before ``ack`` returns.
    """

    def close(self, timeout_s: float | None = None) -> None:
        """Leave the group. Messages without an ack come again after their invisible time.

        Args: timeout_s: limit of the wait, by default ``close_timeout_s``.
        """
        self._close(timeout_s, all_handed_out=True)
