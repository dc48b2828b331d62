"""Settings of a running broker: asked (26) and changed (25).

What changes is also written to the property file that the broker was started with. Changes act at once where the
setting is read anew each time; the others at the next start.

Room: broker. It must never let the network move files, ports, or what protects the broker. Source:
AdminBrokerProcessor.updateBrokerConfig, Configuration.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from mqfast.broker_conf import parse_properties
from mqfast.config import FIELD_OF_PROPERTY
from mqfast.errors import CallRefused, ConfigError
from mqfast.remoting.bodies import encode_body
from mqfast.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from mqfast.broker.context import BrokerContext
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.remoting.processors import Lane, Processors

__all__ = ["SettingsRequests", "with_settings"]

_log = logging.getLogger("mqfast.broker")
_NEVER_LIVE: Final = frozenset(
    {
        "rocketmqHome", "brokerConfigPath", "configBlackList", "bindAddress", "listenPort", "haListenPort",
        "innerClientAuthenticationCredentials", "initAuthenticationUser", "metricsPromExporterHost",
        "metricsPromExporterPort", "messageStorePlugIn", "proxyProtocolEnable", "useTLS",
    }
)  # fmt: skip
_NEVER_LIVE_PREFIXES: Final = ("tls.", "storePath", "acl", "auth")


class SettingsRequests:
    """Serves 25 and 26. Thread: that of the event loop."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._version = 0
        self._changed_ms = context.started_ms

    def register(self, processors: Processors, lane: Lane) -> None:
        """Put the codes into a server's table."""
        processors.register([RequestCode.UPDATE_BROKER_CONFIG], self.update, lane)
        processors.register([RequestCode.GET_BROKER_CONFIG], self.settings, lane)

    async def update(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """25: change settings; unknown names change nothing, as in RocketMQ."""
        pairs = parse_properties(bytes(request.body).decode("utf-8", "replace"))
        self._check(pairs)
        config = self._context.config
        known = {name: text for name, text in pairs.items() if config.knows(name)}
        before = dict(config.store_keys)
        of_store = None
        try:
            if store_keys := {name: text for name, text in known.items() if name in FIELD_OF_PROPERTY}:
                config.store_keys.update(store_keys)
                of_store = config.store_config()
            config.take(known, "request 25")
        except ConfigError as error:
            config.store_keys.clear()
            config.store_keys.update(before)
            raise CallRefused(ResponseCode.SYSTEM_ERROR, str(error)) from None
        if of_store is not None:
            self._context.store.retention.follow(of_store)
        self._version += 1
        self._changed_ms = self._context.now_ms()
        unknown = sorted(pairs.keys() - known.keys())
        _log.warning("settings changed by %s:%d: %s; unknown: %s", *channel.peer, known, unknown)
        if config.path is not None and known:
            await self._context.loop.run_in_executor(None, _rewrite, Path(config.path), known)
        if "brokerPermission" in known:
            self._context.topics.permission_changed()
        if "namesrvAddr" in known:
            self._context.registration.tell()
            return await self._context.registration.then(request.response())
        return request.response()

    def _check(self, pairs: Mapping[str, str]) -> None:
        black = {*_NEVER_LIVE, *str(self._context.config["configBlackList"]).split(";")}
        if not black.isdisjoint(pairs) or any(name.startswith(_NEVER_LIVE_PREFIXES) for name in pairs):
            raise CallRefused(ResponseCode.NO_PERMISSION, "Can not update config in black list.")

    def settings(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """26: all settings as a property file, sorted; no secrets."""
        text = self._context.config.text()
        version = {"counter": self._version, "stateVersion": 0, "timestamp": self._changed_ms}
        return request.response(0, {"version": encode_body(version).decode()}, text.encode("utf-8"))


def with_settings(text: str, pairs: Mapping[str, str]) -> str:
    """A property file's text with other values: lines of these names go, new ones stand at the end.

    Everything else stays as it was, comments too.
    """
    name_of = re.compile(r"[ \t\f]*((?:\\.|[^\\=: \t\f#!])+)")
    kept, continued, drops = [], False, False
    for line in text.splitlines():
        if not continued:
            found = name_of.match(line)
            drops = found is not None and found[1] in pairs
        if not drops:
            kept.append(line)
        backslashes = len(line) - len(line.rstrip("\\"))
        continued = backslashes % 2 == 1 and (continued or not line.lstrip().startswith(("#", "!")))
    if continued and not drops:
        kept.append("")  # else the first new line would go on with the last old one
    return "".join(f"{line}\n" for line in [*kept, *(f"{name}={_escaped(pairs[name])}" for name in sorted(pairs))])


def _escaped(value: str) -> str:
    """A value as a property file in ISO-8859-1 has it."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if text.startswith(" "):
        text = "\\" + text
    units = text.encode("utf-16-be", "surrogatepass")
    numbers = [units[at] << 8 | units[at + 1] for at in range(0, len(units), 2)]
    return "".join(chr(one) if 32 <= one < 127 else f"\\u{one:04x}" for one in numbers)


def _rewrite(path: Path, pairs: Mapping[str, str]) -> None:
    """Replace the file; the old one stays where anything fails."""
    try:
        text = with_settings(path.read_text("latin-1"), pairs)
        new = path.with_name(path.name + ".tmp")
        with new.open("w", encoding="latin-1", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)
    except OSError as error:
        _log.warning("%s: the changed settings are not in the file, they end with this process: %s", path, error)
