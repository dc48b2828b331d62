"""Limits of the memory that clients can occupy in a broker.

Each limit is far above the needs of an honest client.
"""

from __future__ import annotations

from typing import NamedTuple

from mqfast.errors import CallRefused, FieldError
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.heartbeat import ConsumerData, Heartbeat

__all__ = ["ClientLimits", "text_of"]


class ClientLimits(NamedTuple):
    """Limits of the data that clients send.

    Attributes: ``groups``: of consumers, and of producers, of a connection; ``members``: connections in groups, of all
        groups; ``subscription_bytes``: text of all subscriptions; ``locks``: locked queues of all groups; ``name``:
        characters of a name.
    """

    groups: int = 2000
    members: int = 500_000
    subscription_bytes: int = 64 << 20
    locks: int = 500_000
    name: int = 1024

    def check_names(self, given: Heartbeat) -> None:
        """Raise FieldError for a name that is too long."""
        names = [given.client_id, *(group.group_name for group in given.producer_data_set or ())]
        names += [group.group_name for group in given.consumer_data_set or ()]
        for name in names:
            if len(name) > self.name:
                raise FieldError("body", f"names of at most {self.name} characters", f"{name[:40]!r}...")

    def check_member(self, groups: int, members: int) -> None:
        """Check whether a connection may enter another group. Raises: CallRefused."""
        if groups >= self.groups:
            raise _full(f"clientGroupsMax={self.groups}: a connection is in so many groups already")
        if members >= self.members:
            raise _full(f"groupMembersMax={self.members}: the groups have so many members already")

    def check_text(self, size: int) -> None:
        """Check the total size of subscriptions in bytes. Raises: CallRefused."""
        if size > self.subscription_bytes:
            raise _full(f"subscriptionBytesMax={self.subscription_bytes}: all subscriptions would have {size} bytes")


def text_of(data: ConsumerData) -> int:
    """Return the size of a group's subscriptions, with the memory of an object for each topic."""
    return sum(
        200
        + len(subscription.topic)
        + len(subscription.sub_string)
        + 60 * len(subscription.tags_set or ())
        + 40 * len(subscription.code_set or ())
        for subscription in data.subscription_data_set or ()
    )


def _full(why: str) -> CallRefused:
    return CallRefused(ResponseCode.SYSTEM_ERROR, why)
