"""The state of a store, which a broker without a master writes to etcd while running: terms and end of the log.

The state of a log to which this broker appends is not published. Source: own design.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from mqfast.ha.failover.etcd import Etcd, EtcdUnreachable
from mqfast.ha.failover.leader_election import StoreCopy

__all__ = ["OwnCopy"]


class OwnCopy:
    """The key of this broker, with a separate lease.

    Args: call: runs a call of etcd; ttl_s: etcd deletes the key that long after the last renewal.
    Thread: that of the event loop.
    """

    def __init__(self, etcd: Etcd, call: Callable[..., Awaitable[Any]], key: str, ttl_s: int) -> None:
        self._etcd: Final = etcd
        self._call: Final = call
        self._key: Final = key
        self._ttl_s: Final = ttl_s
        self._lease = 0
        self._published: StoreCopy | None = None

    async def publish(self, copy: StoreCopy) -> None:
        """Write the state, or renew an unchanged state. Raises: EtcdUnreachable."""
        if self._lease and await self._call(self._etcd.keep_alive, self._lease) <= 0:
            self._lease = 0
        if self._lease and self._published == copy:
            return
        if not self._lease:
            self._lease = await self._call(self._etcd.grant, self._ttl_s)
        self._published = None  # a write without an answer may not have happened
        await self._call(self._etcd.write, [], [(self._key, copy.encoded(), self._lease)])
        self._published = copy

    async def withdraw(self) -> None:
        """Delete the key; if etcd does not answer, the key expires with the lease."""
        lease, self._lease, self._published = self._lease, 0, None
        if lease:
            with contextlib.suppress(EtcdUnreachable):
                await self._call(self._etcd.revoke, lease)
