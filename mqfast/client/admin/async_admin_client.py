"""AsyncAdminClient: administration for asyncio.

Room: client. It must never start a thread or block the loop. What each call does: the files of the subjects beside this
one.
"""

from __future__ import annotations

import asyncio
from typing import Self, TypeVar

from mqfast.client.admin.admin_client import AdminCalls
from mqfast.client.admin.call import AsyncFace
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.steps import Steps
from mqfast.errors import ClientClosed

__all__ = ["AsyncAdminClient"]

T = TypeVar("T")


class AsyncAdminClient(AdminCalls, AsyncFace):
    """Administration of one or several clusters by their name servers; the first call connects.

        async with AsyncAdminClient("127.0.0.1:9876") as admin:
            await admin.create_topic("orders")

    Args: see ``AdminCalls``.
    Thread: that of one event loop, from the first call on.
    """

    _closed = False
    _is_open = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End it; calls after that raise ClientClosed. The second call does nothing."""
        was_open, self._is_open, self._closed = self._is_open, False, True
        if was_open:
            await self._instance.release()

    async def _run(self, steps: Steps[T]) -> T:
        if self._closed:
            raise ClientClosed("the AsyncAdminClient is closed")
        if not self._is_open:
            self._is_open = True
            self._instance = ClientInstance.shared(self._settings, asyncio.get_running_loop())
            await self._instance.acquire()
        return await self._instance.shell.run(steps)
