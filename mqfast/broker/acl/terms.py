"""The terms of ACL 2.0: actions, kinds of resources, users and decisions, in the spelling of the wire.

Source: Action, ResourceType, UserType, UserStatus, PolicyType, Decision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

__all__ = ["Action", "Decision", "Kind", "PolicyType", "UserStatus", "UserType", "word"]


class Action(StrEnum):
    """An action on a resource; ``ALL`` in a rule means every action."""

    __hash__ = str.__hash__  # that of an enumeration is a function in Python

    UNKNOWN = "Unknown"
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Kind(StrEnum):
    """The kind of a resource."""

    __hash__ = str.__hash__

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class UserType(StrEnum):
    """The type of a user; a super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """The status of a user; a disabled user may do nothing."""

    ENABLE = "enable"
    DISABLE = "disable"


class PolicyType(StrEnum):
    """The type of a rule; default rules apply if no custom rule matches."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(StrEnum):
    """The decision of a rule."""

    ALLOW = "Allow"
    DENY = "Deny"


W = TypeVar("W", bound=StrEnum)


def word(kind: type[W], text: str | None) -> W | None:
    """Return the member with this text in any case; None without such a member."""
    return next((member for member in kind if member.value.lower() == (text or "").lower()), None)
