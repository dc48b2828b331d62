"""The consumer groups of a broker with their rules (retries, broadcasting, readable queues).

No I/O except through the table of the store. Source: SubscriptionGroupManager.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.metadata.config_persistence import AtOnce, ConfigPersister
from mqfast.broker.metadata.topic_manager import illegal_group
from mqfast.store.meta.metadata import SubscriptionGroupTable

__all__ = ["SYSTEM_GROUPS", "SubscriptionGroupManager"]

SYSTEM_GROUPS: Final = (
    "DEFAULT_CONSUMER",
    "DEFAULT_PRODUCER",
    "TOOLS_CONSUMER",
    "SCHEDULE_CONSUMER",
    "FILTERSRV_CONSUMER",
    "__MONITOR_CONSUMER",
    "CLIENT_INNER_PRODUCER",
    "SELF_TEST_P_GROUP",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)
_READ_BIT: Final = 1 << 2
_PREFIX: Final = "CID_RMQ_SYS_"
_MADE_AT_START: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", "CID_ONS-HTTP-PROXY", "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_RMQ_SYS_TRANS",
)  # fmt: skip
_BROADCASTS: Final = ("CID_ONSAPI_PULL", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_OWNER", "CID_ONS-HTTP-PROXY")


def is_system_group(group: str) -> bool:
    """Return True if the group belongs to RocketMQ itself. Source: MixAll.isSysConsumerGroup."""
    return group in SYSTEM_GROUPS or group.startswith(_PREFIX)


class SubscriptionGroupManager:
    """All groups of a broker, in the table of ``config/subscriptionGroup.json``.

    Args: changes: persists the table, and delays the response to the current request until then.
    Attributes: ``before_change``: called with a group before its rules change.
    Thread: that of the event loop.
    """

    def __init__(
        self, table: SubscriptionGroupTable, config: BrokerConfig, changes: ConfigPersister | None = None
    ) -> None:
        self.table: Final = table
        self._config = config
        self._changes: Final[ConfigPersister] = changes or AtOnce()
        self.before_change: Callable[[str], object] = lambda _group: None

    def ensure_system_groups(self) -> bool:
        """Create missing groups that RocketMQ itself uses. Returns: True if the table must be persisted."""
        is_changed = False
        for name in _MADE_AT_START:
            if name not in self.table:
                group = self.table.ensure(name)
                if name in _BROADCASTS:
                    self.table.put(name, {**group, "consumeBroadcastEnable": True})
                is_changed = True
        return is_changed

    def get(self, group: str) -> dict[str, Any] | None:
        """Return the rules of a group by RocketMQ's names; None for an unknown group.

        A missing group is created if the settings allow that. Source: findSubscriptionGroupConfig.
        """
        rules = self.table.get(group)
        if rules is None and self._may_make(group):
            rules = self.table.ensure(group)
            self._changes.made(self.table)
        return rules

    def _may_make(self, group: str) -> bool:
        if illegal_group(group) is not None:
            return False
        has_room = len(self.table) < self._config["maxAutoCreatedGroups"]
        return (bool(self._config["autoCreateSubscriptionGroup"]) and has_room) or is_system_group(group)

    def may_read(self, group: str, topic: str) -> bool:
        """Return False if an admin has forbidden the group to read the topic (353)."""
        return not self.table.forbidden(group, topic) & _READ_BIT

    def set_may_read(self, group: str, topic: str, may: bool) -> None:
        """Forbid the group to read the topic, or allow that again; persist the table soon."""
        self.before_change(group)
        bits = self.table.forbidden(group, topic)
        self.table.forbid(group, topic, bits & ~_READ_BIT if may else bits | _READ_BIT)
        self._changes.made(self.table)

    def put(self, raw: dict[str, Any]) -> None:
        """Set the rules of a group (200) and persist the table soon."""
        self.before_change(raw["groupName"])
        self.table.put(raw["groupName"], raw)
        self._changes.made(self.table)

    def delete(self, group: str) -> bool:
        """Delete a group (207) with its forbidden topics, which do not apply to a later group of this name."""
        self.before_change(group)
        existed = self.table.delete(group)
        self._changes.made(self.table)
        return existed
