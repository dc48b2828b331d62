"""The parts of a console or of an MCP server, connected: client, collector, members.

Must never connect: the first request does.
"""

from __future__ import annotations

import ssl

from mqfast.client.route.name_servers import parse_addresses
from mqfast.client.values import Credentials
from mqfast.console.broker_wide import BrokerWideClient
from mqfast.console.collector import Collector
from mqfast.console.members import Members
from mqfast.console.page import Console

__all__ = ["console_of"]


def console_of(
    namesrv: str | None,
    *,
    allow_changes: bool = False,
    interval_s: float = 10.0,
    stuck_after_s: float = 30.0,
    credentials: Credentials | None = None,
    tls: bool | ssl.SSLContext = False,
    timeout_s: float = 5.0,
) -> Console:
    """Return the parts for the clusters of name servers. Raises: ConfigError."""
    admin = BrokerWideClient(namesrv, credentials=credentials, tls=tls, timeout_s=timeout_s)
    members = Members(admin, stuck_after_s)
    collector = Collector(admin, members, interval_s)
    connection = {"credentials": credentials, "tls": tls}
    return Console(admin, collector, members, ";".join(parse_addresses(namesrv)), allow_changes, connection)
