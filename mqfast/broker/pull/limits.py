"""What ends one get, by RocketMQ's settings, which admins may change at run time.

Room: broker/pull. It must never make new limits for each get. Source: MessageStoreConfig.
"""

from __future__ import annotations

from typing import Final

from mqfast.broker.broker_config import BrokerConfig
from mqfast.store.engine import GetLimits

__all__ = ["Limits"]

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
    """The limits of this moment. Thread: that of the event loop."""

    def __init__(self, config: BrokerConfig) -> None:
        self._config: Final = config
        self._values: tuple[int, ...] = ()
        self._limits = GetLimits()

    def get(self) -> GetLimits:
        """Made anew when a setting has changed; what is out of range is taken as the nearest that is not."""
        config = self._config
        values = tuple([config[name] for name in _NAMES.values()])
        if values != self._values:
            given = dict(zip(_NAMES, values, strict=True))
            given["access_message_in_memory_max_ratio"] = min(100, given["access_message_in_memory_max_ratio"])
            given["travel_cq_file_num_when_get_message"] = max(1, given["travel_cq_file_num_when_get_message"])
            self._limits = GetLimits(**given)
            self._values = values
        return self._limits
