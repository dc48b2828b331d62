"""Settings of a running broker: query (26) and change (25).

A change is also written to the property file with which the broker was started. No secret is shown. Source:
AdminBrokerProcessor.updateBrokerConfig, Configuration.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mqfast.config import FIELD_OF_PROPERTY
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.settings_change import SettingsChange

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import ConcurrencyLimit, Processors

__all__ = ["SettingsRequests"]


class SettingsRequests:
    """Serves 25 and 26. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._version = 0
        self._changed_ms = context.started_ms
        self._change = SettingsChange(
            context.config,
            RequestCode.UPDATE_BROKER_CONFIG,
            black=("configBlackList", "brokerConfigPath"),
            file=lambda: context.config.path,
            log=logging.getLogger("mqfast.broker"),
        )

    def register(self, processors: Processors, lane: ConcurrencyLimit) -> None:
        """Register the handlers."""
        processors.register([RequestCode.UPDATE_BROKER_CONFIG], self.update, lane)
        processors.register([RequestCode.GET_BROKER_CONFIG], self.settings, lane)

    async def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 25: change settings. Unknown names change nothing, as in RocketMQ."""
        config = self._context.config
        changed = await self._change.apply(channel, request)
        taken = changed.taken
        self._version += 1
        self._changed_ms = self._context.now_ms()
        if any(name in FIELD_OF_PROPERTY for name in taken):
            self._context.store.retention.follow(config.store_config())
        if "brokerPermission" in taken:
            self._context.topics.permission_changed()
        answer = request.response(remark=changed.remark)
        if "namesrvAddr" in taken:
            self._context.registration.register_soon()
            self._context.changes.registering()
        return answer

    def settings(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 26: all settings as a property file, sorted; no secrets."""
        text = self._context.config.text()
        version = {"counter": self._version, "stateVersion": 0, "timestamp": self._changed_ms}
        return request.response(0, {"version": encode_body(version).decode()}, text.encode("utf-8"))
