"""Producer groups: by which connections their members can be asked (39) and told (326).

Room: broker. It must never do I/O or read a clock that it was not given. Source: ProducerManager.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from mqfast.broker.clients.consumer_manager import EXPIRY_MS, Member

__all__ = ["ProducerManager"]


class ProducerManager:
    """All producer groups of a broker.

    Args: now_ms: the time in ms; expiry_ms: a member without a heartbeat for longer is gone.
    Thread: one at a time.
    """

    def __init__(self, now_ms: Callable[[], int], *, expiry_ms: int = EXPIRY_MS) -> None:
        self._now_ms = now_ms
        self._expiry_ms = expiry_ms
        self._groups: dict[str, dict[Hashable, Member]] = {}
        self._clients: dict[str, Hashable] = {}
        self._turn = 0

    def register(self, channel: Hashable, client_id: str, group: str, *, language: int = 0, version: int = 0) -> None:
        """A heartbeat."""
        members = self._groups.setdefault(group, {})
        members[channel] = Member(channel, client_id, language, version, self._now_ms())
        self._clients[client_id] = channel

    def unregister(self, channel: Hashable, group: str) -> None:
        """A client leaves a group (35)."""
        members = self._groups.get(group)
        if members is None:
            return
        member = members.pop(channel, None)
        if member is None:
            return
        if not members:
            del self._groups[group]
        if self._clients.get(member.client_id) == channel and not any(
            channel in them for them in self._groups.values()
        ):
            del self._clients[member.client_id]

    def channel_closed(self, channel: Hashable) -> None:
        """A connection is gone, and with it its places in all groups."""
        for group in list(self._groups):
            self.unregister(channel, group)

    def expire(self) -> list[Hashable]:
        """Remove members that were silent for too long. Returns: their connections, to be closed."""
        latest = self._now_ms() - self._expiry_ms
        late: dict[Hashable, None] = {}
        for group, members in list(self._groups.items()):
            for channel in [channel for channel, member in members.items() if member.updated_ms < latest]:
                late[channel] = None
                self.unregister(channel, group)
        return list(late)

    def members(self, group: str) -> list[Member]:
        """The members of a group (204)."""
        return list(self._groups.get(group, {}).values())

    def groups(self) -> list[str]:
        """All groups with members (328)."""
        return list(self._groups)

    def pick(self, group: str) -> Hashable | None:
        """One connection of a group, each in its turn; None where it has none."""
        channels = list(self._groups.get(group, {}))
        if not channels:
            return None
        self._turn += 1
        return channels[self._turn % len(channels)]

    def channel_of(self, client_id: str) -> Hashable | None:
        """The connection by which a client came last."""
        return self._clients.get(client_id)
