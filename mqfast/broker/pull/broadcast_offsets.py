"""Offsets of the clients of broadcasting groups, for clients that switch between a proxy and this broker.

A client of the remoting protocol keeps its own offsets. After a switch, in either direction, the client continues at
the offset of before. The offsets are in memory: after a restart a client of a proxy begins at the first message if that
message is in memory, else after the last message. Clients that do not switch are not affected.
Source: BroadcastOffsetManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mqfast.broker.pull.get_limits import Limits
from mqfast.errors import OffsetError
from mqfast.remoting.channel import Channel
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.command import PullHeader, RemotingCommand

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext

__all__ = ["BroadcastOffsets"]

PROXY_FOR_BROADCAST: Final = 1
_CLIENTS_MAX: Final = 10_000  # of a group and topic


class _Client:
    __slots__ = ("from_proxy", "offsets", "updated_ms")

    def __init__(self, from_proxy: bool, now_ms: int) -> None:
        self.from_proxy = from_proxy
        self.offsets: dict[int, int] = {}
        self.updated_ms = now_ms


class BroadcastOffsets:
    """(topic, group) -> client -> offsets. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext, limits: Limits) -> None:
        self._context = context
        self._limits = limits
        self._clients: dict[tuple[str, str], dict[str, _Client]] = {}

    def begin(self, channel: Channel, request: RemotingCommand, header: PullHeader) -> int:
        """Return the offset of a client that has switched, or that a proxy pulls for first; -1: the offset of the
        pull.
        """
        who = self._who(channel, request, header)
        if who is None:
            return -1
        name, from_proxy = who
        clients = self._clients.get((header.topic, header.consumer_group), {})
        client = clients.get(name)
        if client is None:
            return self._first(header) if from_proxy and header.queue_offset < 0 else -1
        if client.from_proxy != from_proxy or (from_proxy and header.queue_offset < 0):
            offset = client.offsets.get(header.queue_id, -1)
            return offset if offset >= 0 else self._first(header)
        return -1

    def pulled(
        self, channel: Channel, request: RemotingCommand, header: PullHeader, code: int, next_offset: int
    ) -> None:
        """Store the offset at which a client continues after a pull."""
        who = self._who(channel, request, header)
        if who is None:
            return
        name, from_proxy = who
        clients = self._clients.setdefault((header.topic, header.consumer_group), {})
        now = self._context.now_ms()
        client = clients.get(name)
        if client is None:
            if len(clients) >= _CLIENTS_MAX:
                return
            client = clients[name] = _Client(from_proxy, now)
        client.from_proxy, client.updated_ms = from_proxy, now
        offset = next_offset if code == ResponseCode.PULL_OFFSET_MOVED else header.queue_offset
        client.offsets[header.queue_id] = max(offset, client.offsets.get(header.queue_id, offset))

    def _who(self, channel: Channel, request: RemotingCommand, header: PullHeader) -> tuple[str, bool] | None:
        """Return the client of a broadcasting pull, and True if a proxy pulls; None for other pulls."""
        members = self._context.consumers.group(header.consumer_group)
        by_proxy = header.request_source == PROXY_FOR_BROADCAST
        if not by_proxy and (members is None or members.message_model != "BROADCASTING"):
            return None
        if not self._context.config["enableBroadcastOffsetStore"]:
            return None
        if by_proxy:
            client = request.ext_fields.get("proxyFrowardClientId")
            return (str(client), True) if client else None
        if members is None or members.consume_type != "CONSUME_PASSIVELY":
            return None
        member = members.members.get(channel)
        return None if member is None else (member.client_id, False)

    def _first(self, header: PullHeader) -> int:
        engine, queue = self._context.engine, (header.topic, header.queue_id)
        try:
            engine.unit_at(*queue, 0)
        except OffsetError:
            return self._context.store.max_offset(*queue)
        return self._context.store.max_offset(*queue) if engine.is_on_disk(*queue, 0, self._limits.get()) else 0

    def scan(self) -> None:
        """Forget clients that have not pulled for long, disconnected clients earlier."""
        config, now = self._context.config, self._context.now_ms()
        gone_ms, idle_ms = config["broadcastOffsetExpireSecond"] * 1000, config["broadcastOffsetExpireMaxSecond"] * 1000
        for (topic, group), clients in list(self._clients.items()):
            members = self._context.consumers.group(group)
            there = set() if members is None else set(members.client_ids())
            for name, client in list(clients.items()):
                if now - client.updated_ms >= (idle_ms if name in there else gone_ms):
                    del clients[name]
            if not clients:
                del self._clients[topic, group]
