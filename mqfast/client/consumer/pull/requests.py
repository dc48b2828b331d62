"""Requests of brokers to a pull consumer, some for admins: members changed (40), reset of offsets (220), offsets (221),
running info (307).

Queues that are not assigned to this member are ignored. Source: ClientRemotingProcessor, ConsumerRunningInfo,
ProcessQueueInfo.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from mqfast.client.consumer.pull.prefetch_buffer import CachedQueue
from mqfast.client.consumer.pull.state import PullState
from mqfast.client.consumer.queue_tables import by_queue, offsets_of
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.requests import Handler
from mqfast.client.values import MessageQueue
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["PullRequests"]

_MIB: Final = 1 << 20
_log = logging.getLogger("mqfast.client.consumer")


class PullRequests:
    """Serves the requests to one pull consumer.

    Args: rebalance: set the event for a rebalance; commit: commits offsets.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        state: PullState,
        instance: ClientInstance,
        rebalance: asyncio.Event,
        commit: Callable[[Mapping[MessageQueue, int]], Awaitable[None]],
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._rebalance: Final = rebalance
        self._commit: Final = commit
        self._begun_ms = time.time_ns() // 1_000_000
        self._served: Final[dict[int, Handler]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
        }

    def register(self) -> None:
        """Begin to serve."""
        self._instance.requests.serve_all(self._state.group, self._served)

    def unregister(self) -> None:
        """Stop serving."""
        self._instance.requests.unserve_all(self._state.group, self._served)

    def members_changed(self, channel: Channel, request: RemotingCommand) -> None:
        """Serve 40: rebalance at once."""
        self._rebalance.set()

    async def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 220: set the offsets of queues and commit them. Raises: FieldError."""
        cache, topic = self._state.cache, request.ext_fields.get("topic") or ""
        changed = {}
        for queue, offset in offsets_of(bytes(request.body)).items():
            if cache.get(queue) is None or offset < 0 or (topic and queue.topic != topic):
                continue
            _log.warning("group %s: an admin sets the offset of %s to %d", self._state.settings.group, queue, offset)
            cache.seek(queue, offset, is_new=False)
            changed[queue] = offset
        await self._commit(changed)
        return request.response()

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 221: return queue -> acknowledged offset."""
        topic = request.ext_fields.get("topic") or ""
        positions = self._state.cache.positions(handed_out=False)
        mine = {queue: offset for queue, offset in positions.items() if not topic or queue.topic == topic}
        return request.response(body=encode_body({"messageQueueTable": by_queue(mine)}))

    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 307: return settings, subscriptions and queues."""
        state, settings = self._state, self._state.settings
        body = {
            "mqPopTable": {},
            "mqTable": by_queue({cached.queue: _queue_info(cached) for cached in state.cache.all()}),
            "properties": {
                "PROP_CLIENT_VERSION": "mqfast",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._begun_ms),
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": "0",
                "messageModel": "BROADCASTING" if settings.is_broadcasting else "CLUSTERING",
                "pullBatchSize": str(settings.pull_batch),
                "pullThresholdForQueue": str(settings.limits.messages),
            },
            "statusTable": {},
            "subscriptionSet": [wanted.as_json() for wanted in list(state.subscriptions.values())],
            "userConsumerInfo": {},
        }
        return request.response(body=encode_body(body))


def _queue_info(cached: CachedQueue) -> dict[str, Any]:
    offsets = [message.queue_offset for message in list(cached.ahead)]
    return {
        "cachedMsgCount": len(offsets),
        "cachedMsgMaxOffset": max(offsets, default=0),
        "cachedMsgMinOffset": min(offsets, default=0),
        "cachedMsgSizeInMiB": cached.bytes // _MIB,
        "commitOffset": cached.acknowledged if cached.acknowledged is not None else -1,
        "droped": cached.is_dropped,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": 0,
        "locked": False,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
