"""The permission of a master to accept messages. It ends by the local clock before another broker can be master.

A linearizable read that shows the master's own key, confirmed by a majority of etcd, extends the permission. The time
counts from the moment before the read was sent, and ends a margin before the lease. The next master waits the same
time from the moment at which the key was missing, so its term begins later. The lease of etcd only removes the key of a
dead master. Times counted by etcd are not trusted: an etcd leader that was suspended renews leases that its cluster has
ended, and ends leases that its cluster has renewed (etcd before 3.4.31 and 3.5.13).

The local deadline is always earlier than the begin of the next master. A check of the permission does no I/O.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from mqfast.errors import NotMaster
from mqfast.ha.failover.etcd import Etcd, EtcdUnreachable

__all__ = ["LeaseKeeper", "LeaseGuard", "boot_clock"]

_BOOT: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_clock() -> float:
    """Return monotonic seconds that include the sleep of the machine."""
    return time.clock_gettime(_BOOT)


class LeaseGuard:
    """The current permission of this broker to accept messages.

    Attributes: ``epoch``: of the current or last mastership.
    Thread: any.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self.clock: Final = clock
        self.epoch = -1
        self._is_active = False
        self._deadline_s = float("-inf")

    def is_valid(self) -> bool:
        """Return True if this broker is certainly the master."""
        return self._is_active and self.clock() < self._deadline_s

    @property
    def left_s(self) -> float:
        """Return the seconds for which messages may be accepted without a renewal."""
        return self._deadline_s - self.clock()

    @property
    def is_active(self) -> bool:
        """Return True if this broker became master and knows no later master; the deadline may have passed."""
        return self._is_active

    def check(self) -> None:
        """Raise NotMaster if the permission is not valid."""
        if not self.is_valid():
            raise NotMaster(self.reason)

    @property
    def reason(self) -> str:
        """Return the reason of a refusal, for clients."""
        if self._is_active:
            return f"the lease of this master (epoch {self.epoch}) could not be renewed at etcd in time"
        return "this broker is not the master now; ask a name server for the route again"

    def extend(self, deadline_s: float) -> None:
        """Extend the deadline: etcd has confirmed that this broker is the master."""
        self._deadline_s = max(self._deadline_s, deadline_s)

    def activate(self, epoch: int) -> None:
        """Make this broker the master of this epoch, until the deadline."""
        self.epoch, self._is_active = epoch, True

    def revoke(self) -> None:
        """End the permission: another broker may be master."""
        self._is_active, self._deadline_s = False, float("-inf")


class LeaseKeeper:
    """Renews a lease and the permission in a thread of its own, while the event loop of the broker runs.

    Args: key: exists as long as the lease; interval_s: between renewals; right_s: seconds for which messages may be
        accepted after a confirmation was requested; watchdog_s: a loop without a heartbeat for longer loses its lease,
        so that another broker takes over.
    Attributes: ``grace_s``: additional watchdog time while the loop is known to be busy.
    Thread: any.
    """

    def __init__(
        self, etcd: Etcd, right: LeaseGuard, *, key: str, interval_s: float, right_s: float, watchdog_s: float
    ) -> None:
        self._etcd: Final = etcd
        self._right: Final = right
        self._key: Final = key
        self._interval_s: Final = interval_s
        self._right_s: Final = right_s
        self._pulse_s: Final = watchdog_s
        self._lease = 0
        self._created = 0
        self.grace_s = 0.0
        self._beat_s = 0.0
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._main, name="mqfast-ha-lease", daemon=True)
        self._thread.start()

    @property
    def lease(self) -> int:
        """Return the renewed lease, 0 without a lease."""
        return self._lease

    def keep(self, lease: int, created: int, asked_s: float) -> None:
        """Start to renew this lease, with the key of this revision, whose write was requested at ``asked_s``."""
        self._right.extend(asked_s + self._right_s)
        self.heartbeat()
        self._created, self._lease = created, lease
        self._wake.set()

    def heartbeat(self) -> None:
        """Note that the event loop runs."""
        self._beat_s = self._right.clock()

    def drop(self) -> int:
        """Stop to renew the lease. Returns: the lease."""
        lease, self._lease = self._lease, 0
        return lease

    def stop(self) -> None:
        """Stop the thread."""
        self._lease = 0
        self._stopping.set()
        self._wake.set()
        self._thread.join(5.0)
        self._etcd.close()

    def _main(self) -> None:
        while not self._stopping.is_set():
            lease, created = self._lease, self._created
            if not lease:
                self._wake.wait(1.0)
                self._wake.clear()
                continue
            if self._right.clock() - self._beat_s <= self._pulse_s + self.grace_s:
                self._confirm(lease, created)
                self._renew(lease)
            self._stopping.wait(self._interval_s)

    def _confirm(self, lease: int, created: int) -> None:
        """Extend the permission by a linearizable read, whose result is valid after ``sent_s``."""
        sent_s = self._right.clock()
        try:
            value = self._etcd.read(self._key)[0]
        except EtcdUnreachable:
            return  # the permission ends by the clock
        if lease != self._lease:
            return
        if value is not None and value.created == created:
            self._right.extend(sent_s + self._right_s)
        else:
            self._end_lease()

    def _renew(self, lease: int) -> None:
        """Renew the lease, without an extension of the permission."""
        if lease != self._lease:
            return
        try:
            ttl_s = self._etcd.keep_alive(lease)
        except EtcdUnreachable:
            return
        if lease == self._lease and ttl_s <= 0:
            self._end_lease()

    def _end_lease(self) -> None:
        self._lease = 0
        self._right.revoke()
