"""The right of a master to take messages, which ends by its own clock before another broker can be master.

The right is renewed by a linearizable read that shows the master's own key, which a majority of etcd confirms. The
master counts from the moment at which it sent the read, and stops a margin before the end. The next master counts as
long a time from the moment at which it saw that there was no key, and so begins later. The lease of etcd only removes
the key of a master that is gone. No time that etcd counts is trusted: a leader of etcd that stood still renews leases
that its cluster has ended, and ends leases that its cluster has renewed (etcd before 3.4.31 and 3.5.13).

Room: ha/failover. It must never last beyond the time that the next master waits, and never ask anybody.
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
    """Seconds that only grow, also while the machine sleeps."""
    return time.clock_gettime(_BOOT)


class LeaseGuard:
    """May this broker take messages now?

    Attributes: ``epoch``: of the master that it is, or was.
    Thread: any.
    """

    def __init__(self, clock: Callable[[], float] = boot_clock) -> None:
        self.clock: Final = clock
        self.epoch = -1
        self._is_active = False
        self._deadline_s = float("-inf")

    def is_valid(self) -> bool:
        """Is this broker the master, for sure?"""
        return self._is_active and self.clock() < self._deadline_s

    @property
    def left_s(self) -> float:
        """So long may messages be taken without a renewal."""
        return self._deadline_s - self.clock()

    @property
    def is_active(self) -> bool:
        """Was the broker made master, and has not heard of another one? Its time may be over."""
        return self._is_active

    def check(self) -> None:
        """Raises: NotMaster where it does not hold."""
        if not self.is_valid():
            raise NotMaster(self.reason)

    @property
    def reason(self) -> str:
        """Why it does not hold, for clients."""
        if self._is_active:
            return f"the lease of this master (epoch {self.epoch}) could not be renewed at etcd in time"
        return "this broker is not the master now; ask a name server for the route again"

    def extend(self, deadline_s: float) -> None:
        """etcd has confirmed that this broker is the master."""
        self._deadline_s = max(self._deadline_s, deadline_s)

    def activate(self, epoch: int) -> None:
        """The broker is the master of this epoch, as long as its lease."""
        self.epoch, self._is_active = epoch, True

    def revoke(self) -> None:
        """Another one may be master."""
        self._is_active, self._deadline_s = False, float("-inf")


class LeaseKeeper:
    """Renews a lease and the right in a thread of its own, as long as the event loop of the broker turns.

    Args: key: what is there as long as the lease; interval_s: between renewals; right_s: so long may messages be taken
        after a confirmation was asked for; pulse_s: a loop that did not turn for so long loses its lease, so that
        another broker takes over.
    Attributes: ``grace_s``: for so long more while the loop is known to be busy.
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
        """The lease that is kept, 0: none."""
        return self._lease

    def keep(self, lease: int, created: int, asked_s: float) -> None:
        """Keep this lease, and the key of this revision, whose write was asked for at ``asked_s``."""
        self._right.extend(asked_s + self._right_s)
        self.heartbeat()
        self._created, self._lease = created, lease
        self._wake.set()

    def heartbeat(self) -> None:
        """The loop turns."""
        self._beat_s = self._right.clock()

    def drop(self) -> int:
        """Keep it no more. Returns: the lease."""
        lease, self._lease = self._lease, 0
        return lease

    def stop(self) -> None:
        """End the thread."""
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
        """The right, by a read: its answer is of a moment behind ``sent_s``, whichever member gives it."""
        sent_s = self._right.clock()
        try:
            value = self._etcd.read(self._key)[0]
        except EtcdUnreachable:
            return  # the right ends by the clock
        if lease != self._lease:
            return
        if value is not None and value.created == created:
            self._right.extend(sent_s + self._right_s)
        else:
            self._end()

    def _renew(self, lease: int) -> None:
        """The lease, which extends no right."""
        if lease != self._lease:
            return
        try:
            ttl_s = self._etcd.keep_alive(lease)
        except EtcdUnreachable:
            return
        if lease == self._lease and ttl_s <= 0:
            self._end()

    def _end(self) -> None:
        self._lease = 0
        self._right.revoke()
