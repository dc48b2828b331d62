"""asyncio support: a ticket becomes an awaitable. The engine itself does not use asyncio.

This module must never block the event loop and never finish a future from a thread other than the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from mqfast.store.base.results import PutMessageStatus

if TYPE_CHECKING:
    from mqfast.config import StoreConfig
    from mqfast.store.put._put_result import PutResult, Ticket

__all__ = ["durable", "settled"]


async def durable(ticket: Ticket, timeout_s: float | None = None) -> bool:
    """Await until the ticket's message is durable. Returns: False at the timeout. Raises: FlushError."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not future.done():
            if ticket.error is not None:
                future.set_exception(ticket.error)
            else:
                future.set_result(None)

    def tell(_: Ticket) -> None:
        # In a loop that was closed meanwhile no task waits.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(settle)

    ticket.add_done_callback(tell)
    try:
        await asyncio.wait_for(future, timeout_s)
    except TimeoutError:
        return False
    return True


async def settled(ticket: Ticket, config: StoreConfig) -> PutResult:
    """Await the result of the put. With sync flush: until the message is durable, or with the status
    FLUSH_DISK_TIMEOUT after ``sync_flush_timeout_ms``.
    """
    result = ticket.result
    if config.sync_flush and not await durable(ticket, config.sync_flush_timeout_ms / 1000):
        return result.with_status(PutMessageStatus.FLUSH_DISK_TIMEOUT)
    return result
