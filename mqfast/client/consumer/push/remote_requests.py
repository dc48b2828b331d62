"""What admins ask of a push consumer through its broker: offsets reset (220), how far it is (221), what it does (307),
and that it handle one message now (309).

Room: client. It must never answer with what it does not know, and never hold the loop while a handler runs.
Source: ClientRemotingProcessor, ConsumerRunningInfo, ConsumeMessageDirectlyResult.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.consumer.push.outcome import verdict
from mqfast.client.consumer.push.state import Assigned, Handler
from mqfast.client.consumer.queue_tables import by_queue, offsets_of
from mqfast.client.delivery import Source, decode_deliveries
from mqfast.client.net.requests import Handler as ServeHandler
from mqfast.client.net.user_errors import is_passed_on
from mqfast.errors import CallRefused, CorruptFile, FieldError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from mqfast.client.consumer.push.engine import PushEngine

__all__ = ["ServerRequests"]

_log = logging.getLogger("mqfast.client.consumer")
_MIB: Final = 1 << 20


class ServerRequests:
    """Serves one consumer. Thread: that of the loop."""

    def __init__(self, engine: PushEngine) -> None:
        self._engine = engine
        self._served: dict[int, ServeHandler] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def register(self) -> None:
        """Serve from now on."""
        self._engine.instance.requests.serve_all(self._engine.group, self._served)

    def unregister(self) -> None:
        """Serve no more."""
        self._engine.instance.requests.unserve_all(self._engine.group, self._served)

    async def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """220: go on at other offsets. Raises: FieldError."""
        topic = request.ext_fields.get("topic", "")
        for queue, offset in offsets_of(bytes(request.body)).items():
            assigned = self._engine.assigned.get(queue)
            if assigned is None or offset < 0 or (topic and queue.topic != topic):
                continue
            _log.warning(
                "group %s, queue %s: an admin sets offset %d in place of %d",
                self._engine.group, queue, offset, assigned.pq.committable,
            )  # fmt: skip
            self._engine.restart_at(assigned, offset, restart_pull=True)
        await self._engine.commit()
        return request.response()

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """221: queue -> offset of a topic."""
        topic = request.ext_fields.get("topic", "")
        mine = {
            queue: one.pq.committable
            for queue, one in self._engine.assigned.items()
            if one.has_position and (not topic or queue.topic == topic)
        }
        return request.response(body=encode_body({"messageQueueTable": by_queue(mine)}))

    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """307: settings, subscriptions, queues and rates."""
        engine = self._engine
        settings = engine.settings
        table = {queue: _queue_info(engine, one) for queue, one in engine.assigned.items()}
        body: dict[str, Any] = {
            "jstack": _threads() if request.ext_fields.get("jstackEnable") == "true" else None,
            "mqPopTable": {},
            "mqTable": by_queue(table),
            "properties": {
                "PROP_CLIENT_VERSION": f"mqfast {_version()}",
                "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(engine.begun_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(engine.instance.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(settings.threads),
                "maxReconsumeTimes": str(settings.max_reconsume_times),
                "messageModel": "CLUSTERING" if engine.is_clustering else "BROADCASTING",
                "pullBatchSize": str(settings.pull_batch),
                "pullThresholdForQueue": str(settings.max_cached_messages),
            },
            "statusTable": {topic: self._rates(topic) for topic in engine.wanted},
            "subscriptionSet": [one.subscription.as_json() for one in engine.wanted.values()],
            "userConsumerInfo": {},
        }
        if body["jstack"] is None:
            del body["jstack"]
        return request.response(body=encode_body(body))

    def _rates(self, topic: str) -> dict[str, float]:
        engine = self._engine
        seconds = max(0.001, time.monotonic() - engine.begun_s)
        pulls, pull_s, pulled = engine.pull_seconds.get(topic, (0, 0.0, 0))
        counts = engine.handling.counts.get(engine.plain(topic))
        done, failed, spent = (0, 0, 0.0) if counts is None else (counts.done, counts.failed, counts.seconds)
        return {
            "consumeFailedMsgs": failed,
            "consumeFailedTPS": failed / seconds,
            "consumeOKTPS": done / seconds,
            "consumeRT": 1000 * spent / max(1, done + failed),
            "pullRT": 1000 * pull_s / max(1, pulls),
            "pullTPS": pulled / seconds,
        }

    async def consume_directly(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """309: one message to its handler, whatever its offset; what becomes of it changes no offset.

        Raises: FieldError, CallRefused.
        """
        engine = self._engine
        fields = request.ext_fields
        source = Source(
            str(fields.get("brokerName", "")), retry_topic=engine.retry_topic, namespace=engine.namespace,
            body_bytes_max=engine.settings.max_body_bytes,
        )  # fmt: skip
        try:
            messages = decode_deliveries(bytes(request.body), source)
        except CorruptFile as error:
            raise FieldError("body", "one stored message", str(error)) from None
        if len(messages) != 1:
            raise FieldError("body", "one stored message", f"{len(messages)}")
        handler = engine.handler_of(messages[0])
        if handler is None:
            why = f"group {engine.group}: no handler for topic {messages[0].topic}"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, why)
        begun = time.monotonic()
        result, remark = await self._call(handler, messages)
        body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": engine.settings.orderly,
            "remark": remark,
            "spentTimeMills": int(1000 * (time.monotonic() - begun)),
        }
        return request.response(body=encode_body(body))

    async def _call(self, handler: Handler, messages: list[Any]) -> tuple[str, str | None]:
        try:
            result = await self._engine.workers.call(handler, handler.argument(messages))
        except BaseException as error:
            if is_passed_on(error):
                raise
            return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        found = verdict(messages, result, None, is_batch=handler.batch > 1)
        return ("CR_LATER" if found.later else "CR_SUCCESS"), found.odd or None


def _queue_info(engine: PushEngine, one: Assigned) -> dict[str, Any]:
    open_offsets = [message.queue_offset for message in one.pq.open_messages()]
    return {
        "cachedMsgCount": one.pq.count,
        "cachedMsgMaxOffset": max(open_offsets, default=0),
        "cachedMsgMinOffset": min(open_offsets, default=0),
        "cachedMsgSizeInMiB": one.pq.bytes // _MIB,
        "commitOffset": one.pq.committable,
        "droped": one.pq.dropped,  # so Java spells it
        "lastConsumeTimestamp": _wall_ms(one.last_consumed_s),
        "lastLockTimestamp": one.last_lock_ms,
        "lastPullTimestamp": one.last_pull_ms,
        "locked": one.locked_until_s > time.monotonic(),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _wall_ms(moment_s: float) -> int:
    """A moment of the monotonic clock, as ms since the epoch; 0: never."""
    return round(1000 * (time.time() - time.monotonic() + moment_s)) if moment_s else 0


def _threads() -> str:
    """What every thread of the process does now, as text."""
    names = {one.ident: one.name for one in threading.enumerate()}
    parts = []
    for ident, frame in sys._current_frames().items():
        stack = "".join(traceback.format_stack(frame))
        parts.append(f"{names.get(ident, '?')} TID: {ident}\n{stack}")
    return "\n".join(parts)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mqfast")
    except PackageNotFoundError:
        return "unknown"
