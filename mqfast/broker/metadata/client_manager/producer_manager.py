"""The producer groups: the connections for transaction checks (39) and replies (326).

No I/O and no clock except ``now_ms``. Source: ProducerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

from mqfast.broker.acl.rights import Caller
from mqfast.broker.metadata.client_manager.client_limits import ClientLimits
from mqfast.broker.metadata.client_manager.consumer_manager import EXPIRY_MS, ClientChannelInfo

__all__ = ["ProducerManager"]

_LIMITS: Final = ClientLimits()
_ANYBODY: Final = Caller()


class ProducerManager:
    """All producer groups of a broker.

    Args: now_ms: the time in ms; expiry_ms: a member without a heartbeat for longer expires.
    Thread: no concurrent calls.
    """

    def __init__(
        self, now_ms: Callable[[], int], *, expiry_ms: int = EXPIRY_MS, limits: ClientLimits = _LIMITS
    ) -> None:
        self._now_ms = now_ms
        self._expiry_ms = expiry_ms
        self._limits = limits
        self._count = 0
        self._groups: dict[str, dict[Hashable, ClientChannelInfo]] = {}
        self._groups_of: dict[Hashable, dict[str, None]] = {}  # connection -> its groups
        self._ids_of: dict[Hashable, dict[str, None]] = {}  # connection -> ids of its clients
        self._clients: dict[str, dict[Hashable, None]] = {}  # id -> connections, that of the latest heartbeat last
        self._callers: dict[Hashable, Caller] = {}  # of the latest heartbeat by a connection
        self._owners: dict[str, str] = {}  # id -> first account with this id
        self._turn = 0

    def register(
        self,
        channel: Hashable,
        client_id: str,
        group: str,
        caller: Caller = _ANYBODY,
        *,
        language: int = 0,
        version: int = 0,
    ) -> None:
        """Process a heartbeat. Args: caller: the sender. Raises: CallRefused above a limit."""
        is_new = channel not in self._groups.get(group, ())
        if is_new:
            self._limits.check_member(len(self._groups_of.get(channel, ())), self._count)
        if client_id not in self._ids_of.get(channel, ()):
            self._limits.check_member(len(self._ids_of.get(channel, ())), 0)
        self._count += is_new
        members = self._groups.setdefault(group, {})
        members[channel] = ClientChannelInfo(channel, client_id, language, version, self._now_ms())
        self._callers[channel] = caller
        self._owners.setdefault(client_id, caller.name)
        self._groups_of.setdefault(channel, {})[group] = None
        self._ids_of.setdefault(channel, {})[client_id] = None
        channels = self._clients.setdefault(client_id, {})
        channels.pop(channel, None)
        channels[channel] = None

    def unregister(self, channel: Hashable, group: str) -> None:
        """Remove a client from a group (35)."""
        members = self._groups.get(group)
        if members is None or members.pop(channel, None) is None:
            return
        self._count -= 1
        if not members:
            del self._groups[group]
        groups = self._groups_of[channel]
        del groups[group]
        if groups:
            return
        del self._groups_of[channel]
        del self._callers[channel]
        for client_id in self._ids_of.pop(channel):
            channels = self._clients[client_id]
            del channels[channel]
            if not channels:
                del self._clients[client_id]
                del self._owners[client_id]

    def channel_closed(self, channel: Hashable) -> None:
        """Remove a closed connection from all groups."""
        for group in list(self._groups_of.get(channel, ())):
            self.unregister(channel, group)

    def expire(self) -> list[Hashable]:
        """Remove expired members. Returns: their connections, to be closed."""
        latest = self._now_ms() - self._expiry_ms
        late: dict[Hashable, None] = {}
        for group, members in list(self._groups.items()):
            for channel in [channel for channel, member in members.items() if member.updated_ms < latest]:
                late[channel] = None
                self.unregister(channel, group)
        return list(late)

    def members(self, group: str) -> list[ClientChannelInfo]:
        """Return the members of a group (204)."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> list[str]:
        """Return all groups with members (328)."""
        return list(self._groups)

    def pick(self, group: str, may: Callable[[Caller], bool] = lambda _: True) -> Hashable | None:
        """Return a connection of a group, round robin; None without a connection. Args: may: which callers are
        eligible.
        """
        channels = [channel for channel in self._groups.get(group, {}) if may(self._callers[channel])]
        if not channels:
            return None
        self._turn += 1
        return channels[self._turn % len(channels)]

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the latest open connection of a client.

        While a client is connected, its id belongs to the first account with that id, since ids are not secret.
        """
        owner = self._owners.get(client_id)
        for channel in reversed(self._clients.get(client_id, {})):
            if self._callers[channel].name == owner:
                return channel
        return None
