"""Requests by the wire on a connection of their own, for tests of servers that run in another thread or process."""

from __future__ import annotations

import asyncio
from typing import Any

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode
from mqfast.remoting.command import RemotingCommand


def call(address: str, code: int, body: bytes = b"", timeout_ms: int = 10_000, **fields: Any) -> RemotingCommand:
    """Ask a server. Raises: ConnectionLost, CallTimeout."""

    async def ask() -> RemotingCommand:
        client = RemotingClient()
        try:
            texts = {name: str(value) for name, value in fields.items()}
            return await client.call(address, code, texts, body, timeout_ms=timeout_ms)
        finally:
            await client.close()

    return asyncio.run(ask())


def send(
    address: str,
    topic: str,
    body: bytes,
    queue_id: int = 0,
    properties: str = "",
    timeout_ms: int = 10_000,
    **more: Any,
) -> RemotingCommand:
    """One message by 310, as a client sends it. Raises: ConnectionLost, CallTimeout."""
    letters = {
        "a": "producers", "b": topic, "c": "TBW102", "d": 4, "e": queue_id, "f": 0, "g": 1_700_000_000_000, "h": 0,
        "i": properties, "j": 0, "k": "false", "m": "false", **more,
    }  # fmt: skip
    return call(address, RequestCode.SEND_MESSAGE_V2, body, timeout_ms, **letters)
