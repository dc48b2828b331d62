"""The name server as a whole: tables, values, port, and the scan for expired brokers. Source: NamesrvController."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from mqfast.namesrv.kv_config import KvConfig
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.processor import NamesrvProcessor
from mqfast.namesrv.tables import RouteTables
from mqfast.remoting.channel import Channel
from mqfast.remoting.processors import Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.tls import ServerCertificates, TlsMode

__all__ = ["NameServer"]


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000  # a change of the wall clock expires no broker


class NameServer:
    """A name server in the running event loop.

    Args: config: settings; now_ms: monotonic ms; make_channel: as for ``RemotingServer``.
    Raises: ConfigError, CorruptFile if settings or ``kvConfig.json`` are invalid.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        config: NamesrvConfig,
        *,
        now_ms: Callable[[], int] = _now_ms,
        make_channel: Callable[..., Channel] = Channel,
    ) -> None:
        self.config = config
        self.tables = RouteTables(now_ms)
        self.processors = Processors()
        self._processor = NamesrvProcessor(self.tables, KvConfig(Path(config["kvConfigPath"])), config, now_ms)
        self._processor.register(self.processors)
        tls = {name: config[name] for name in _TLS_NAMES if config[name]}
        self._certificates = ServerCertificates(tls, logging.getLogger("mqfast.namesrv"))
        self._server = RemotingServer(
            self.processors,
            RemotingSettings(
                connections_max=config["connectionsMax"],
                idle_timeout_s=config["serverChannelMaxIdleTimeSeconds"],
                proxy_protocol=config["proxyProtocolEnable"],
                tls_mode=TlsMode.of(config["tls.server.mode"]),
            ),
            context=self._certificates.context,
            on_closed=self._processor.channel_closed,
            make_channel=make_channel,
        )
        self._scanner: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Listen. Raises: OSError if the address is not available."""
        await self._server.start(self.config["bindAddress"], self.config["listenPort"])
        self._schedule_scan()

    @property
    def address(self) -> tuple[str, int]:
        """Return (host, port) of the listening socket."""
        return self._server.address

    @property
    def tls(self) -> str:
        """Return the TLS mode of the port: off, permissive or enforcing."""
        mode = TlsMode.of(self.config["tls.server.mode"])
        return mode.in_words(has_certificate=self._certificates.context is not None)

    def _schedule_scan(self) -> None:
        interval_s = max(self.config["scanNotActiveBrokerInterval"], 10) / 1000
        self._scanner = asyncio.get_running_loop().call_later(interval_s, self._scan)

    def _scan(self) -> None:
        self._schedule_scan()  # first, so that an exception in this scan does not end the scans
        self._processor.scan()
        if self._certificates.reload_if_changed():
            self._server.context = self._certificates.context

    async def stop(self) -> None:
        """Answer received requests and close all connections, within two seconds."""
        if self._scanner is not None:
            self._scanner.cancel()
        await self._server.stop(0.5)


_TLS_NAMES = (
    "tls.server.certPath",
    "tls.server.keyPath",
    "tls.server.keyPassword",
    "tls.server.trustCertPath",
    "tls.server.need.client.auth",
)
