"""Consumer groups: which clients are in them, what they subscribe to, and who is to be told of a change.

A member is a connection, not a client id: a client that comes back by a new connection is not removed when the old one
ends.

Room: broker. It must never do I/O or read a clock that it was not given: it returns who is to be told (40), and who is
to be closed. Source: ConsumerManager, ConsumerGroupInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from mqfast.broker.metadata.client_manager.client_limits import ClientLimits, text_of
from mqfast.broker.metadata.client_manager.heartbeat import ConsumerData, SubscriptionData

__all__ = ["ConsumerGroup", "ConsumerManager", "ClientChannelInfo", "Notice"]

EXPIRY_MS: Final = 120_000
_LIMITS: Final = ClientLimits()


class ClientChannelInfo:
    """One client in one group, by one connection."""

    __slots__ = ("channel", "client_id", "language", "updated_ms", "version")

    def __init__(self, channel: Hashable, client_id: str, language: int, version: int, updated_ms: int) -> None:
        self.channel = channel
        self.client_id = client_id
        self.language = language
        self.version = version
        self.updated_ms = updated_ms


class Notice(NamedTuple):
    """The members of a group changed: ``channels`` are to be told (40)."""

    group: str
    channels: tuple[Hashable, ...]


class ConsumerGroup:
    """One group while it has members."""

    __slots__ = ("consume_from_where", "consume_type", "members", "message_model", "name", "subscriptions", "text")

    def __init__(self, data: ConsumerData) -> None:
        self.name = data.group_name
        self.members: dict[Hashable, ClientChannelInfo] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.text = 0
        self.follow(data)

    def follow(self, data: ConsumerData) -> None:
        """How the group consumes is what its latest heartbeat says."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where

    def client_ids(self) -> list[str]:
        """The members, each once (38)."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def channel_of(self, client_id: str) -> Hashable | None:
        """The connection by which a client came last."""
        found = [member for member in self.members.values() if member.client_id == client_id]
        return max(found, key=lambda member: member.updated_ms).channel if found else None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take the subscriptions of a heartbeat. True: a topic came or went."""
        given = {one.topic: one for one in subscriptions}
        changed = False
        for topic, one in given.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            if known is None or one.sub_version > known.sub_version:
                self.subscriptions[topic] = one
        for topic in self.subscriptions.keys() - given.keys():
            del self.subscriptions[topic]
            changed = True
        return changed

    def notice(self) -> Notice:
        """All of its members are to be told."""
        return Notice(self.name, tuple(self.members))


class ConsumerManager:
    """All consumer groups of a broker.

    Args: now_ms: the time in ms; expiry_ms: a member without a heartbeat for longer is gone.
    Attributes: ``on_register``: called with group and subscriptions of each heartbeat; ``on_end``: with a group that
        lost its last member.
    Thread: one at a time.
    """

    def __init__(
        self, now_ms: Callable[[], int], *, expiry_ms: int = EXPIRY_MS, limits: ClientLimits = _LIMITS
    ) -> None:
        self._now_ms = now_ms
        self._expiry_ms = expiry_ms
        self._limits = limits
        self._members = self._text = 0
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Hashable, dict[str, None]] = {}  # connection -> its groups
        self.on_register: Callable[[str, Iterable[SubscriptionData]], object] = lambda _group, _subscriptions: None
        self.on_end: Callable[[str], object] = lambda _group: None

    def group(self, name: str) -> ConsumerGroup | None:
        """A group, while it has members."""
        return self._groups.get(name)

    def groups(self) -> list[ConsumerGroup]:
        """All groups with members."""
        return list(self._groups.values())

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups that subscribe to a topic now (300)."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What a group wants of a topic."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def register(
        self,
        channel: Hashable,
        client_id: str,
        data: ConsumerData,
        *,
        language: int = 0,
        version: int = 0,
        without_subscriptions: bool = False,
    ) -> Notice | None:
        """A heartbeat. Returns: who is to be told, the newcomer too; None where nothing changed.

        Args: without_subscriptions: the client left them out, since they are the same.
        Raises: CallRefused above a limit.
        """
        group = self._groups.get(data.group_name)
        if group is None or channel not in group.members:
            self._limits.check_member(len(self._groups_of.get(channel, ())), self._members)
        if not without_subscriptions:
            text = self._text + text_of(data) - (0 if group is None else group.text)
            self._limits.check_text(text)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data)
        if not without_subscriptions:
            self._text, group.text = text, text_of(data)
        group.follow(data)
        member = group.members.get(channel)
        self._members += member is None
        changed = member is None or member.client_id != client_id
        group.members[channel] = ClientChannelInfo(channel, client_id, language, version, self._now_ms())
        self._groups_of.setdefault(channel, {})[group.name] = None
        if not without_subscriptions and group.subscribe(data.subscription_data_set or ()):
            changed = True
        if not without_subscriptions:
            self.on_register(group.name, data.subscription_data_set or ())
        return group.notice() if changed else None

    def unregister(self, channel: Hashable, group: str) -> Notice | None:
        """A client leaves a group (35). Returns: who is to be told."""
        found = self._groups.get(group)
        if found is None or found.members.pop(channel, None) is None:
            return None
        self._left(channel, group)
        if not found.members:
            self._end(found)
            return None
        return found.notice()

    def _end(self, group: ConsumerGroup) -> None:
        del self._groups[group.name]
        self._text -= group.text
        self.on_end(group.name)

    def _left(self, channel: Hashable, group: str) -> None:
        self._members -= 1
        groups = self._groups_of[channel]
        del groups[group]
        if not groups:
            del self._groups_of[channel]

    def channel_closed(self, channel: Hashable) -> list[Notice]:
        """A connection is gone, and with it its places in all groups."""
        notices = [self.unregister(channel, name) for name in list(self._groups_of.get(channel, ()))]
        return [notice for notice in notices if notice is not None]

    def expire(self) -> tuple[list[Hashable], list[Notice]]:
        """Remove members that were silent for too long. Returns: their connections, to be closed; who is to be told."""
        latest = self._now_ms() - self._expiry_ms
        late: dict[Hashable, None] = {}
        notices: list[Notice] = []
        for group in list(self._groups.values()):
            gone = [channel for channel, member in group.members.items() if member.updated_ms < latest]
            for channel in gone:
                del group.members[channel]
                self._left(channel, group.name)
                late[channel] = None
            if not group.members:
                self._end(group)
            elif gone:
                notices.append(group.notice())
        return list(late), notices
