"""Requests of admins to a push consumer, forwarded by the broker: reset of offsets (220), offsets (221), running info
(307), direct consumption of a message (309).

A handler never runs in the loop of the sync consumer.
Source: ClientRemotingProcessor, ConsumerRunningInfo, ConsumeMessageDirectlyResult.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from typing import Any, Final

from mqfast.client.consumer.push.coordinator import Coordinator
from mqfast.client.consumer.push.dispatcher import Dispatcher
from mqfast.client.consumer.push.fetcher import Fetcher
from mqfast.client.consumer.push.outcome import verdict
from mqfast.client.consumer.push.state import Assigned, ConsumerState, Handler
from mqfast.client.consumer.queue_tables import by_queue, offsets_of
from mqfast.client.delivery import Source, decode_deliveries
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.requests import Handler as ServeHandler
from mqfast.client.net.user_errors import is_passed_on
from mqfast.errors import CallRefused, CorruptFile, FieldError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["RemoteRequests"]

_log = logging.getLogger("mqfast.client.consumer")
_MIB: Final = 1 << 20


class RemoteRequests:
    """Serves the requests to a consumer. Thread: that of the loop."""

    def __init__(
        self,
        state: ConsumerState,
        instance: ClientInstance,
        coordinator: Coordinator,
        fetcher: Fetcher,
        dispatcher: Dispatcher,
    ) -> None:
        self._state: Final = state
        self._instance: Final = instance
        self._coordinator: Final = coordinator
        self._fetcher: Final = fetcher
        self._dispatcher: Final = dispatcher
        self._served: dict[int, ServeHandler] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self.reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self.status,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.consume_directly,
        }

    def register(self) -> None:
        """Begin to serve."""
        self._instance.requests.serve_all(self._state.group, self._served)

    def unregister(self) -> None:
        """Stop serving."""
        self._instance.requests.unserve_all(self._state.group, self._served)

    async def reset(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 220: set the offsets of queues. Raises: FieldError."""
        topic = request.ext_fields.get("topic", "")
        for queue, offset in offsets_of(bytes(request.body)).items():
            assigned = self._state.assigned.get(queue)
            if assigned is None or offset < 0 or (topic and queue.topic != topic):
                continue
            _log.warning(
                "group %s, queue %s: an admin sets offset %d in place of %d",
                self._state.group, queue, offset, assigned.pq.committable,
            )  # fmt: skip
            self._coordinator.seek(assigned, offset)
        await self._coordinator.commit()
        return request.response()

    def status(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 221: return queue -> committable offset of a topic."""
        topic = request.ext_fields.get("topic", "")
        mine = {
            queue: assigned.pq.committable
            for queue, assigned in self._state.assigned.items()
            if assigned.has_position and (not topic or queue.topic == topic)
        }
        return request.response(body=encode_body({"messageQueueTable": by_queue(mine)}))

    def running_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 307: return settings, subscriptions, queues and rates."""
        state = self._state
        settings = state.settings
        table = {queue: _queue_info(assigned) for queue, assigned in state.assigned.items()}
        body: dict[str, Any] = {
            "jstack": _threads() if request.ext_fields.get("jstackEnable") == "true" else None,
            "mqPopTable": {},
            "mqTable": by_queue(table),
            "properties": {
                "PROP_CLIENT_VERSION": f"mqfast {_version()}",
                "PROP_CONSUMEORDERLY": str(settings.orderly).lower(),
                "PROP_CONSUMER_START_TIMESTAMP": str(state.begun_ms),
                "PROP_CONSUME_TYPE": "CONSUME_PASSIVELY",
                "PROP_NAMESERVER_ADDR": ";".join(self._instance.name_servers.addresses),
                "PROP_THREADPOOL_CORE_SIZE": str(settings.threads),
                "maxReconsumeTimes": str(settings.max_reconsume_times),
                "messageModel": "CLUSTERING" if state.is_clustering else "BROADCASTING",
                "pullBatchSize": str(settings.pull_batch),
                "pullThresholdForQueue": str(settings.max_cached_messages),
            },
            "statusTable": {topic: self._rates(topic) for topic in state.wanted},
            "subscriptionSet": [wanted.subscription.as_json() for wanted in state.wanted.values()],
            "userConsumerInfo": {},
        }
        if body["jstack"] is None:
            del body["jstack"]
        return request.response(body=encode_body(body))

    def _rates(self, topic: str) -> dict[str, float]:
        seconds = max(0.001, time.monotonic() - self._state.begun_s)
        pulls, pull_s, pulled = self._fetcher.pull_seconds.get(topic, (0, 0.0, 0))
        counts = self._dispatcher.counts.get(self._state.plain(topic))
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
        """Serve 309: call the handler with a message of any offset; the result changes no offset.

        Raises: FieldError, CallRefused.
        """
        state = self._state
        fields = request.ext_fields
        source = Source(
            str(fields.get("brokerName", "")), retry_topic=state.retry_topic, namespace=state.namespace,
            body_bytes_max=state.settings.max_body_bytes,
        )  # fmt: skip
        try:
            messages = decode_deliveries(bytes(request.body), source)
        except CorruptFile as error:
            raise FieldError("body", "one stored message", str(error)) from None
        if len(messages) != 1:
            raise FieldError("body", "one stored message", f"{len(messages)}")
        handler = state.handler_of(messages[0])
        if handler is None:
            why = f"group {state.group}: no handler for topic {messages[0].topic}"
            raise CallRefused(ResponseCode.SYSTEM_ERROR, why)
        started_s = time.monotonic()
        result, remark = await self._call(handler, messages)
        body = {
            "autoCommit": True,
            "consumeResult": result,
            "order": state.settings.orderly,
            "remark": remark,
            "spentTimeMills": int(1000 * (time.monotonic() - started_s)),
        }
        return request.response(body=encode_body(body))

    async def _call(self, handler: Handler, messages: list[Any]) -> tuple[str, str | None]:
        try:
            result = await self._dispatcher.workers.call(handler, handler.argument(messages))
        except BaseException as error:
            if is_passed_on(error):
                raise
            return "CR_THROW_EXCEPTION", f"{type(error).__name__}: {error}"
        judged = verdict(messages, result, None, is_batch=handler.batch > 1)
        return ("CR_LATER" if judged.later else "CR_SUCCESS"), judged.odd or None


def _queue_info(assigned: Assigned) -> dict[str, Any]:
    open_offsets = [message.queue_offset for message in assigned.pq.open_messages()]
    return {
        "cachedMsgCount": assigned.pq.count,
        "cachedMsgMaxOffset": max(open_offsets, default=0),
        "cachedMsgMinOffset": min(open_offsets, default=0),
        "cachedMsgSizeInMiB": assigned.pq.bytes // _MIB,
        "commitOffset": assigned.pq.committable,
        "droped": assigned.pq.dropped,  # the spelling of Java
        "lastConsumeTimestamp": _wall_ms(assigned.last_consumed_s),
        "lastLockTimestamp": assigned.last_lock_ms,
        "lastPullTimestamp": assigned.last_pull_ms,
        "locked": assigned.locked_until_s > time.monotonic(),
        "transactionMsgCount": 0,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }


def _wall_ms(moment_s: float) -> int:
    """Convert a time of the monotonic clock to ms since the epoch; 0: never."""
    return round(1000 * (time.time() - time.monotonic() + moment_s)) if moment_s else 0


def _threads() -> str:
    """Return the stacks of all threads of the process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
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
