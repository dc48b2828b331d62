"""The words of ACL 2.0: actions, kinds of resources, users and decisions, as the wire spells them.

Room: broker/acl. It must never hold behaviour but the reading of these words. Source: Action, ResourceType, UserType,
UserStatus, PolicyType, Decision.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

__all__ = ["Action", "Decision", "Kind", "PolicyType", "UserStatus", "UserType", "word"]


class Action(StrEnum):
    """What is done to a resource; ``ALL`` in a rule stands for each."""

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
    """What a resource is."""

    UNKNOWN = "Unknown"
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class UserType(StrEnum):
    """A super user may do everything."""

    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    """A disabled user may do nothing."""

    ENABLE = "enable"
    DISABLE = "disable"


class PolicyType(StrEnum):
    """Default rules count where no custom one fits."""

    CUSTOM = "Custom"
    DEFAULT = "Default"


class Decision(StrEnum):
    """What a rule says."""

    ALLOW = "Allow"
    DENY = "Deny"


W = TypeVar("W", bound=StrEnum)


def word(kind: type[W], text: str | None) -> W | None:
    """The word, in letters of any case; None where it is none of these."""
    return next((one for one in kind if one.value.lower() == (text or "").lower()), None)
