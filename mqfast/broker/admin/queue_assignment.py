"""Assignment of queues by the broker (400), and message request modes (401, 402); cold-data requests (2001-2004), which
have no effect here.

The assignment has queues of all brokers of the cluster, since a client asks one broker only. A group in the mode POP
reads all queues of a broker by an assignment with queue id -1, or a share of the queues with ``popShareQueueNum``.
Source: QueryAssignmentProcessor, MessageRequestModeManager, AdminBrokerProcessor.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from mqfast.broker.admin.bodies import QueueBody
from mqfast.broker.metadata.message_request_mode import RequestMode, store_modes
from mqfast.broker.metadata.topic_manager import RETRY_PREFIX
from mqfast.broker.metadata.topic_route_info import TopicRouteInfo
from mqfast.errors import CallRefused
from mqfast.remoting.bodies import build_tables, decode_request, encode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.processors import ConcurrencyLimit

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import Processors

__all__ = ["QueueAssignment", "allocated", "shared"]

_UPDATE_COLD, _REMOVE_COLD, _COLD_INFO, _READ_MODE = 2001, 2002, 2003, 2004
_COLD: Final = {
    "runtimeTable": {},
    "configTable": {},
    "cgColdReadThreshold": 3_145_728,
    "globalColdReadThreshold": 104_857_600,
    "globalAcc": 0,
}
_NORMAL, _RANDOM = "0", "1"
_POINTS: Final = 10  # points of a client on the ring of CONSISTENT_HASH


class _Wanted(Struct, rename="camel"):
    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str | None = None
    message_model: str = "CLUSTERING"


class QueueAssignment:
    """Serves 400-402 and 2001-2004. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._routes: Final = TopicRouteInfo(context)

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        # A lane of its own: the handler may wait for a name server.
        processors.register([RequestCode.QUERY_ASSIGNMENT], self.assign, ConcurrencyLimit("assignment"))
        processors.register([RequestCode.SET_MESSAGE_REQUEST_MODE], self.set_mode, lane)
        processors.register([RequestCode.GET_ALL_MESSAGE_REQUEST_MODE], self.modes, lane)
        processors.register([_UPDATE_COLD, _REMOVE_COLD], self.nothing, lane)
        processors.register([_COLD_INFO], self.cold_info, lane)
        processors.register([_READ_MODE], self.read_mode, lane)

    async def assign(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 400: the queues of all brokers that a client is assigned."""
        wanted = decode_request(request.body, _Wanted, "body")
        context = self._context
        counts = dict(await self._routes.others(wanted.topic))
        if (topic := context.topics.get(wanted.topic)) is not None:
            counts[context.config["brokerName"]] = topic.read_queue_nums
        if not counts:
            return request.response(body=b"{}")
        mode, share = self.mode_of(wanted.topic, wanted.consumer_group)
        queues = [
            QueueBody(name, queue_id, wanted.topic) for name in sorted(counts) for queue_id in range(counts[name])
        ]
        if wanted.message_model != "BROADCASTING":
            group = context.consumers.group(wanted.consumer_group)
            clients = sorted(group.client_ids()) if group is not None else []
            strategy = wanted.strategy_name or "AVG"
            if mode == "POP":
                queues = shared(strategy, queues, clients, wanted.client_id, share)
            else:
                queues = allocated(strategy, queues, clients, wanted.client_id)
        rows = [{"attachments": None, "messageQueue": queue, "mode": mode} for queue in queues]
        return request.response(body=encode_body({"messageQueueAssignments": rows}))

    def mode_of(self, topic: str, group: str) -> tuple[str, int]:
        """Return the mode of a group for a topic, and the number of further clients whose queues are shared."""
        context = self._context
        given = context.request_modes.get(topic, {}).get(group)
        if given is not None:
            return given.mode, given.pop_share_queue_num
        if topic.startswith(RETRY_PREFIX):
            return "PULL", 0
        return context.config["defaultMessageRequestMode"], context.config["defaultPopShareQueueNum"]

    def set_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 401: set the mode by which a group consumes a topic."""
        given, context = decode_request(request.body, RequestMode, "body"), self._context
        if given.topic.startswith(RETRY_PREFIX):
            raise CallRefused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if given.mode not in ("PULL", "POP"):
            raise CallRefused(ResponseCode.INVALID_PARAMETER, f"mode: expected PULL or POP, found {given.mode:.100}")
        if context.topics.get(given.topic) is None:
            raise CallRefused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{given.topic}] not exist")
        if context.groups.get(given.consumer_group) is None:
            raise CallRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        context.request_modes.setdefault(given.topic, {})[given.consumer_group] = given
        store_modes(context.tables.modes, context.request_modes)
        return request.response()

    def modes(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 402: all modes."""
        return request.response(body=encode_body({"messageRequestModeMap": self._context.request_modes}))

    def nothing(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 2001, 2002: no effect, since cold reads are not controlled."""
        return request.response()

    def cold_info(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 2003: no group is controlled."""
        return request.response(body=encode_body(_COLD))

    def read_mode(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 2004: check the mode; no effect, since the kernel decides."""
        mode: Any = request.ext_fields.get("READ_AHEAD_MODE")
        if mode is None:
            raise CallRefused(ResponseCode.SYSTEM_ERROR, "set commitlog readahead mode failed")
        if mode not in (_NORMAL, _RANDOM):
            raise CallRefused(ResponseCode.INVALID_PARAMETER, "set commitlog readahead mode param value error")
        return request.response(remark=f"set commitlog readahead mode success, mode: {mode}")


def shared(strategy: str, queues: list[QueueBody], clients: list[str], client: str, share: int) -> list[QueueBody]:
    """Return the queues that a POP client reads: its own, and those of the next ``share`` clients.

    A share of 0 or less, or of all clients, is a queue with the id -1 of each broker: all queues of the broker.
    Source: QueryAssignmentProcessor.allocate4Pop.
    """
    if share <= 0 or share >= len(clients) - 1:
        return [QueueBody(name, -1, queues[0].topic) for name in dict.fromkeys(queue.broker_name for queue in queues)]
    if client not in clients or not queues:
        return []
    at = clients.index(client)
    if len(clients) > len(queues):
        return [queues[at % len(queues)]]
    members = [clients[(at + number) % len(clients)] for number in range(share + 1)]
    return [queue for member in members for queue in allocated(strategy, queues, clients, member)]


def allocated(strategy: str, queues: list[QueueBody], clients: list[str], client: str) -> list[QueueBody]:
    """Return the queues of a client among those of its group. Raises: CallRefused for an unknown strategy.

    Source: AllocateMessageQueueAveragely, ...ByCircle, ...ConsistentHash.
    """
    if client not in clients:
        return []
    at, count = clients.index(client), len(clients)
    if strategy == "AVG":
        size, rest = divmod(len(queues), count)
        begin = at * size + min(at, rest)
        return queues[begin : begin + size + (at < rest)]
    if strategy == "AVG_BY_CIRCLE":
        return queues[at::count]
    if strategy == "CONSISTENT_HASH":
        ring = sorted({_hash(f"{member}-{point}"): member for member in clients for point in range(_POINTS)}.items())
        points = [position for position, _ in ring]
        return [queue for queue in queues if ring[bisect_left(points, _hash(_text(queue))) % len(ring)][1] == client]
    raise CallRefused(ResponseCode.SYSTEM_ERROR, f"AllocateMessageQueueStrategy {strategy} is not supported")


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _text(queue: QueueBody) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


build_tables(__name__)
