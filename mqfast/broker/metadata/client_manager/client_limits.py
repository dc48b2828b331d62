"""How much the clients of a broker may make the broker remember.

Room: broker. It must never refuse what an honest client says: each limit is far above what clients have.
"""

from __future__ import annotations

from typing import NamedTuple

from mqfast.broker.metadata.client_manager.heartbeat import ConsumerData, Heartbeat
from mqfast.errors import CallRefused, FieldError
from mqfast.remoting.codes import ResponseCode

__all__ = ["ClientLimits", "text_of"]


class ClientLimits(NamedTuple):
    """Limits of what clients tell.

    Attributes: ``groups``: of consumers, and of producers, of one connection; ``members``: connections in groups, of
        all groups; ``subscription_bytes``: text of all subscriptions; ``locks``: locked queues of all groups; ``name``:
        characters of a name.
    """

    groups: int = 2000
    members: int = 500_000
    subscription_bytes: int = 64 << 20
    locks: int = 500_000
    name: int = 1024

    def check_names(self, given: Heartbeat) -> None:
        """Raises: FieldError for a name that is too long."""
        names = [given.client_id, *(one.group_name for one in given.producer_data_set or ())]
        names += [one.group_name for one in given.consumer_data_set or ()]
        for name in names:
            if len(name) > self.name:
                raise FieldError("body", f"names of at most {self.name} characters", f"{name[:40]!r}...")

    def check_member(self, groups: int, members: int) -> None:
        """May a connection enter one more group? Raises: CallRefused."""
        if groups >= self.groups:
            raise _full(f"clientGroupsMax={self.groups}: a connection is in so many groups already")
        if members >= self.members:
            raise _full(f"groupMembersMax={self.members}: the groups have so many members already")

    def check_text(self, size: int) -> None:
        """May all subscriptions have so many bytes? Raises: CallRefused."""
        if size > self.subscription_bytes:
            raise _full(f"subscriptionBytesMax={self.subscription_bytes}: all subscriptions would have {size} bytes")


def text_of(data: ConsumerData) -> int:
    """How much text the subscriptions of a group are; a topic counts for what its object takes, too."""
    return sum(
        200 + len(one.topic) + len(one.sub_string) + 60 * len(one.tags_set or ()) + 40 * len(one.code_set or ())
        for one in data.subscription_data_set or ()
    )


def _full(why: str) -> CallRefused:
    return CallRefused(ResponseCode.SYSTEM_ERROR, why)
