"""What brokers ask of a pull consumer, for admins: members changed (40), offsets reset (220), how far it is (221), what
it does (307).

It must never answer for a queue that is somebody else's. Source: ClientRemotingProcessor, ConsumerRunningInfo,
ProcessQueueInfo.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.consumer.pull.prefetch_buffer import CachedQueue
from mqfast.client.consumer.queue_tables import by_queue, offsets_of
from mqfast.client.net.requests import Handler
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from mqfast.client.consumer.pull.engine import PullEngine

__all__ = ["PullRequests"]

_MIB: Final = 1 << 20
_log = logging.getLogger("mqfast.client.consumer")


class PullRequests:
    """Serves one pull consumer. Thread: that of the event loop."""

    def __init__(self, engine: PullEngine) -> None:
        self._engine: Final = engine
        self._begun_ms = time.time_ns() // 1_000_000
        self._served: Final[dict[int, Handler]] = {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: self.members_changed,
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
        }

    def register(self) -> None:
        """Serve from now on."""
        self._engine.instance.requests.serve_all(self._engine.group, self._served)

    def unregister(self) -> None:
        """Serve no more."""
        self._engine.instance.requests.unserve_all(self._engine.group, self._served)

    def members_changed(self, channel: Channel, request: RemotingCommand) -> None:
        """40: rebalance at once."""
        self._engine.shares.wake.set()

    async def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """220: go on at other offsets, and keep these. Raises: FieldError."""
        engine, topic = self._engine, request.ext_fields.get("topic") or ""
        changed = {}
        for queue, offset in offsets_of(bytes(request.body)).items():
            if engine.cache.get(queue) is None or offset < 0 or (topic and queue.topic != topic):
                continue
            _log.warning("group %s: an admin sets the offset of %s to %d", engine.settings.group, queue, offset)
            engine.cache.seek(queue, offset, is_new=False)
            changed[queue] = offset
        await engine.commit(changed)
        return request.response()

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """221: queue -> the offset that is acknowledged."""
        topic = request.ext_fields.get("topic") or ""
        places = self._engine.cache.positions(handed_out=False)
        mine = {queue: at for queue, at in places.items() if not topic or queue.topic == topic}
        return request.response(body=encode_body({"messageQueueTable": by_queue(mine)}))

    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """307: settings, subscriptions, queues."""
        engine, settings = self._engine, self._engine.settings
        body = {
            "mqPopTable": {},
            "mqTable": by_queue({one.queue: _queue_info(one) for one in engine.cache.all()}),
            "properties": {
                "PROP_CLIENT_VERSION": "mqfast",
                "PROP_CONSUMEORDERLY": "false",
                "PROP_CONSUMER_START_TIMESTAMP": str(self._begun_ms),
                "PROP_CONSUME_TYPE": "CONSUME_ACTIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(engine.instance.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": "0",
                "messageModel": "BROADCASTING" if settings.is_broadcasting else "CLUSTERING",
                "pullBatchSize": str(settings.pull_batch),
                "pullThresholdForQueue": str(settings.limits.messages),
            },
            "statusTable": {},
            "subscriptionSet": [one.as_json() for one in list(engine.subscriptions.values())],
            "userConsumerInfo": {},
        }
        return request.response(body=encode_body(body))


def _queue_info(one: CachedQueue) -> dict[str, Any]:
    offsets = [message.queue_offset for message in list(one.ahead)]
    return {
        "cachedMsgCount": len(offsets),
        "cachedMsgMaxOffset": max(offsets, default=0),
        "cachedMsgMinOffset": min(offsets, default=0),
        "cachedMsgSizeInMiB": one.bytes // _MIB,
        "commitOffset": one.acknowledged if one.acknowledged is not None else -1,
        "droped": one.is_dropped,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": 0,
        "locked": False,
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
