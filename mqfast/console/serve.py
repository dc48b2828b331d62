"""The console as a process: collector, web server, banner; and the snapshot of a cluster in a file.

Must never listen without a token.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import uvicorn

from mqfast.client.values import Credentials
from mqfast.console.guards import CONNECTIONS_MAX, ImpatientProtocol
from mqfast.console.page import Page
from mqfast.console.pages import brokers, flow, groups, now, topics
from mqfast.console.parts import console_of
from mqfast.console.rendering import Renderer
from mqfast.console.web import application

__all__ = ["ConsoleServer", "write_snapshot"]


class ConsoleServer:
    """A console at an address. Args: token: for the login; port: 0 for any free port; public_names: of a proxy.

    Attributes: address: (host, port) once started. Thread: that of the event loop.
    """

    def __init__(
        self,
        namesrv: str | None,
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 8099,
        allow_changes: bool = False,
        interval_s: float = 10.0,
        stuck_after_s: float = 30.0,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        timeout_s: float = 5.0,
        public_names: Collection[str] = (),
    ) -> None:
        self.console = console_of(
            namesrv,
            allow_changes=allow_changes,
            interval_s=interval_s,
            stuck_after_s=stuck_after_s,
            credentials=credentials,
            tls=tls,
            timeout_s=timeout_s,
        )
        self.address = (host, port)
        config = uvicorn.Config(
            application(self.console, token, public_names),
            host=host,
            port=port,
            log_config=None,
            access_log=False,
            lifespan="off",
            ws="none",
            timeout_graceful_shutdown=2,
            limit_concurrency=CONNECTIONS_MAX,
            http=ImpatientProtocol,
            server_header=False,
        )
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the collector and the server. Raises: OSError where the address is in use."""
        config = self._server.config
        listening = await asyncio.get_running_loop().create_server(asyncio.Protocol, *self.address, start_serving=False)
        sockets = [socket.dup() for socket in listening.sockets]
        listening.close()
        self.address = sockets[0].getsockname()[:2]
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=sockets)
        self._serving = asyncio.get_running_loop().create_task(self._server.main_loop(), name="mqfast console web")
        self.console.collector.start()

    async def stop(self) -> None:
        """Stop both."""
        await self.console.collector.stop()
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving
            await self._server.shutdown()
        await self.console.admin.close()


async def write_snapshot(
    namesrv: str | None,
    path: Path,
    *,
    between_s: float = 2.0,
    credentials: Credentials | None = None,
    tls: bool | ssl.SSLContext = False,
    timeout_s: float = 5.0,
    wait: Callable[[float], Any] = asyncio.sleep,
) -> None:
    """Write the state of all clusters as one HTML file. Args: between_s: seconds between two rounds, for rates.

    Raises: OSError where the file cannot be written; ClientError where the name servers do not answer.
    """
    console = console_of(namesrv, credentials=credentials, tls=tls, timeout_s=timeout_s)
    try:
        await console.admin.clusters()  # raises where no name server answers
        await console.collector.collect()
        await wait(between_s)
        await console.collector.collect()
        pages: list[Page] = []
        for view in (now.now, groups.groups, topics.topics, brokers.brokers, flow.flows):
            pages.append(await view(console, {}))
        path.write_text(Renderer(console).snapshot(pages), encoding="utf-8")
    finally:
        await console.admin.close()
