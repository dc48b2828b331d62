"""The consumer groups: members, subscriptions, and the notifications of a change.

A member is a connection, not a client id: a client that reconnects is not removed when the old connection ends.

No I/O and no clock except ``now_ms``: the connections to notify (40) and to close are returned. Source:
ConsumerManager, ConsumerGroupInfo.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple

from mqfast.broker.metadata.client_manager.client_limits import ClientLimits, text_of
from mqfast.remoting.heartbeat import ConsumerData, SubscriptionData

__all__ = ["ConsumerGroup", "ConsumerManager", "ClientChannelInfo", "Notice"]

EXPIRY_MS: Final = 120_000
_LIMITS: Final = ClientLimits()


class ClientChannelInfo:
    """A client in a group, by its connection."""

    __slots__ = ("channel", "client_id", "language", "updated_ms", "version")

    def __init__(self, channel: Hashable, client_id: str, language: int, version: int, updated_ms: int) -> None:
        self.channel = channel
        self.client_id = client_id
        self.language = language
        self.version = version
        self.updated_ms = updated_ms


class Notice(NamedTuple):
    """A change of the members of a group: ``channels`` must be notified (40)."""

    group: str
    channels: tuple[Hashable, ...]


class ConsumerGroup:
    """A group with members. Attributes: ``version``: counts the changes of message model and subscriptions."""

    __slots__ = (
        "consume_from_where", "consume_type", "members", "message_model", "name", "subscriptions", "text", "version",
    )  # fmt: skip

    def __init__(self, data: ConsumerData) -> None:
        self.name = data.group_name
        self.members: dict[Hashable, ClientChannelInfo] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.text = self.version = 0
        self.message_model = data.message_model
        self.follow(data)

    def follow(self, data: ConsumerData) -> None:
        """Apply the consume settings of the latest heartbeat."""
        self.consume_type = data.consume_type
        self.version += data.message_model != self.message_model
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where

    def client_ids(self) -> list[str]:
        """Return the distinct ids of the members (38)."""
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def channel_of(self, client_id: str) -> Hashable | None:
        """Return the latest connection of a client, None without a connection."""
        members = [member for member in self.members.values() if member.client_id == client_id]
        return max(members, key=lambda member: member.updated_ms).channel if members else None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Apply the subscriptions of a heartbeat. Returns: True if a topic was added or removed."""
        given = {subscription.topic: subscription for subscription in subscriptions}
        changed = False
        for topic, subscription in given.items():
            known = self.subscriptions.get(topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[topic] = subscription
                self.version += 1
        for topic in self.subscriptions.keys() - given.keys():
            del self.subscriptions[topic]
            self.version += 1
            changed = True
        return changed

    def notice(self) -> Notice:
        """Return a notice to all members."""
        return Notice(self.name, tuple(self.members))


class ConsumerManager:
    """All consumer groups of a broker.

    Args: now_ms: the time in ms; expiry_ms: a member without a heartbeat for longer expires.
    Attributes: ``on_register``: called with group and subscriptions of each heartbeat; ``on_end``: called with a group
        that lost the last member; ``on_change``: called with a group that is new, that changed its message model or
        subscriptions, or that lost the last member.
    Thread: no concurrent calls.
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
        self.on_change: Callable[[str], object] = lambda _group: None

    def group(self, name: str) -> ConsumerGroup | None:
        """Return a group with members, None for other groups."""
        return self._groups.get(name)

    def groups(self) -> list[ConsumerGroup]:
        """Return all groups with members."""
        return list(self._groups.values())

    def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic now (300)."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """Return the subscription of a group to a topic, None without a subscription."""
        members_group = self._groups.get(group)
        return None if members_group is None else members_group.subscriptions.get(topic)

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
        """Process a heartbeat. Returns: the notice to all members, the new member included; None without a change.

        Args: without_subscriptions: the client omitted unchanged subscriptions.
        Raises: CallRefused above a limit.
        """
        group = self._groups.get(data.group_name)
        if group is None or channel not in group.members:
            self._limits.check_member(len(self._groups_of.get(channel, ())), self._members)
        if not without_subscriptions:
            text = self._text + text_of(data) - (0 if group is None else group.text)
            self._limits.check_text(text)
        known = -1 if group is None else group.version
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
        if group.version != known:
            self.on_change(group.name)
        if not without_subscriptions:
            self.on_register(group.name, data.subscription_data_set or ())
        return group.notice() if changed else None

    def unregister(self, channel: Hashable, group: str) -> Notice | None:
        """Remove a client from a group (35). Returns: the notice to the other members."""
        left_group = self._groups.get(group)
        if left_group is None or left_group.members.pop(channel, None) is None:
            return None
        self._left(channel, group)
        if not left_group.members:
            self._remove_group(left_group)
            return None
        return left_group.notice()

    def _remove_group(self, group: ConsumerGroup) -> None:
        del self._groups[group.name]
        self._text -= group.text
        self.on_change(group.name)
        self.on_end(group.name)

    def _left(self, channel: Hashable, group: str) -> None:
        self._members -= 1
        groups = self._groups_of[channel]
        del groups[group]
        if not groups:
            del self._groups_of[channel]

    def channel_closed(self, channel: Hashable) -> list[Notice]:
        """Remove a closed connection from all groups."""
        notices = [self.unregister(channel, name) for name in list(self._groups_of.get(channel, ()))]
        return [notice for notice in notices if notice is not None]

    def expire(self) -> tuple[list[Hashable], list[Notice]]:
        """Remove expired members. Returns: their connections, to be closed; the notices."""
        latest = self._now_ms() - self._expiry_ms
        late: dict[Hashable, None] = {}
        notices: list[Notice] = []
        for group in list(self._groups.values()):
            expired = [channel for channel, member in group.members.items() if member.updated_ms < latest]
            for channel in expired:
                del group.members[channel]
                self._left(channel, group.name)
                late[channel] = None
            if not group.members:
                self._remove_group(group)
            elif expired:
                notices.append(group.notice())
        return list(late), notices
