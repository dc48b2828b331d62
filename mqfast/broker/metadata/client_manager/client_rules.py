"""The decisions on requests of clients by the tables of topics and groups: groups of heartbeats, locked queues.

Source: ClientManageProcessor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from mqfast.broker.filter.consumer_filter_manager import expressions
from mqfast.broker.metadata.client_manager.queue_locks import LockedQueue
from mqfast.broker.metadata.topic_manager import READ, WRITE, retry_topic
from mqfast.remoting.channel import Channel
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.heartbeat import ACTIVELY, ConsumerData, SubscriptionData

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["ClientRules"]


class ClientRules:
    """Decides on requests of clients by the tables of the broker. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context: Final = context

    def is_group_allowed(self, group: ConsumerData) -> bool:
        """Return whether the group of a heartbeat may exist; creates the group and its retry topic at need."""
        context = self._context
        if context.config["rejectPullConsumerEnable"] and group.consume_type == ACTIVELY:
            return False
        config = context.groups.get(group.group_name)
        if config is None:
            return False
        queues = int(config.get("retryQueueNums", 1))
        context.topics.ensure(retry_topic(group.group_name), queues, READ | WRITE, 2 if group.unit_mode else 0)
        return True

    def has_queue(self, group: str, queue: LockedQueue) -> bool:
        """Return whether this broker has the queue and knows the group."""
        context = self._context
        topic = context.topics.get(queue.topic)
        queues = 0 if topic is None else max(topic.read_queue_nums, topic.write_queue_nums)
        is_here = 0 <= queue.queue_id < queues and queue.broker_name == context.config["brokerName"]
        return is_here and (group in context.groups.table or context.consumers.group(group) is not None)

    def compiled(
        self, channel: Channel, subscriptions: Sequence[SubscriptionData], serve: Callable[[], RemotingCommand]
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        """Serve a heartbeat once its SQL92 expressions are compiled."""
        return self._context.filters.compiling.then(channel, expressions(subscriptions), serve)

    def notifies_members(self, group: str) -> bool:
        """Return whether the members of a group are notified of a change."""
        config = self._context.groups.table.get(group)
        by_group = config is None or config.get("notifyConsumerIdsChangedEnable", True)
        return bool(self._context.config["notifyConsumerIdsChangedEnable"] and by_group)
