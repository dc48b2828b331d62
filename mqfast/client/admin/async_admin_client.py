"""AsyncAdminClient: administration for asyncio, without a thread. The files of the subjects describe the calls."""

from __future__ import annotations

from typing import Self, TypeVar

from mqfast.client.admin.admin_client import AdminCalls
from mqfast.client.admin.call import AsyncFace
from mqfast.client.net.green import loop_of_caller
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps
from mqfast.errors import ClientClosed

__all__ = ["AsyncAdminClient"]

T = TypeVar("T")


class AsyncAdminClient(AdminCalls, AsyncFace):
    """Administration of clusters, by the addresses of name servers; the first call connects.

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
        """Close the client; later calls raise ClientClosed. A second call does nothing."""
        was_open, self._is_open, self._closed = self._is_open, False, True
        if was_open and self._instance.is_here:
            await self._instance.release()

    def _has_changed(self) -> bool:
        return self._is_open or self._closed

    async def _run(self, steps: RequestSteps[T]) -> T:
        if self._closed:
            raise ClientClosed("the AsyncAdminClient is closed")
        if not self._is_open:
            instance = ClientInstance.shared(self._settings, loop_of_caller())
            await instance.acquire()
            if self._has_changed():  # another task opened or closed the client meanwhile
                await instance.release()
                return await self._run(steps)
            self._instance, self._is_open = instance, True
        self._instance.check_here()
        return await self._instance.driver.run(steps)
