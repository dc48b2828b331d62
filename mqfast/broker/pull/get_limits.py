"""The limits of a get, by RocketMQ's settings, which admins may change at run time.

Clients of RocketMQ request at most 1024 messages. A larger request gets up to BULK_BYTES, even if the settings allow
fewer bytes. The limits are cached until a setting changes. Source: MessageStoreConfig.
"""

from __future__ import annotations

from typing import Final

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.filter.queue_unit_filter import SqlUnits, WantedUnits
from mqfast.store.engine import GetLimits

__all__ = ["BULK_BYTES", "TOKENS_MAX", "Limits"]

BULK_BYTES: Final = 4 << 20
_BULK_COUNT: Final = 1 << 14
_CLIENT_COUNT_MAX: Final = 1024  # pullBatchSize of RocketMQ's clients

TOKENS_MAX: Final = 100_000
"""The most words of SQL92 that a get evaluates, times the messages."""
_UNIT_BYTES: Final = 20

_NAMES: Final = {
    "access_message_in_memory_max_ratio": "accessMessageInMemoryMaxRatio",
    "max_transfer_bytes_on_message_in_memory": "maxTransferBytesOnMessageInMemory",
    "max_transfer_count_on_message_in_memory": "maxTransferCountOnMessageInMemory",
    "max_transfer_bytes_on_message_in_disk": "maxTransferBytesOnMessageInDisk",
    "max_transfer_count_on_message_in_disk": "maxTransferCountOnMessageInDisk",
    "max_filter_message_size": "maxFilterMessageSize",
    "travel_cq_file_num_when_get_message": "travelCqFileNumWhenGetMessage",
}


class Limits:
    """The limits by the present settings. Thread: that of the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config: Final = config
        self._given: dict[str, int] = {}
        self._limits: GetLimits | None = None
        self._bulk: GetLimits
        config.listeners.append(self._changed)

    def get(self, wanted: WantedUnits = None, count: int = 0) -> GetLimits:
        """Return the limits of a get with a filter.

        A long SQL92 expression is evaluated for fewer messages per get, since the evaluation blocks the event loop.

        Args: count: the number of requested messages.
        """
        limits = self._of_settings()
        if count > _CLIENT_COUNT_MAX and not isinstance(wanted, SqlUnits):
            return self._bulk
        tokens = wanted.tokens if isinstance(wanted, SqlUnits) else 0
        if tokens * (self._config["maxFilterMessageSize"] // _UNIT_BYTES) <= TOKENS_MAX:
            return limits
        return GetLimits(**{**self._given, "max_filter_message_size": TOKENS_MAX // tokens * _UNIT_BYTES})

    def _of_settings(self) -> GetLimits:
        if self._limits is None:
            # Values out of range are replaced by the nearest bound.
            given = self._given = {name: self._config[key] for name, key in _NAMES.items()}
            given["access_message_in_memory_max_ratio"] = min(100, given["access_message_in_memory_max_ratio"])
            given["travel_cq_file_num_when_get_message"] = max(1, given["travel_cq_file_num_when_get_message"])
            self._limits = GetLimits(**given)
            bulk = {name: _BULK_COUNT if "count" in name else BULK_BYTES for name in given if "transfer" in name}
            self._bulk = GetLimits(**{**given, **{name: max(given[name], value) for name, value in bulk.items()}})
        return self._limits

    def _changed(self) -> None:
        self._limits = None
