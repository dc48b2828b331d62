"""Up to where readers of a fail-over broker may look: what all brokers in sync have, since no take-over loses that.

A master moves the bound with the acknowledgements of the set. A slave gets the bound from its master. Slaves are sent
what is not confirmed yet: they confirm it.

Room: ha/failover. It must never move a bound back, nor beyond what every broker has that may become master. Source:
DefaultMessageStore.getConfirmOffset, AutoSwitchHAService.computeConfirmOffset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqfast.ha.failover.in_sync_replicas import SyncAcks
    from mqfast.store.raw_log import RawLog

__all__ = ["Confirmed"]


class Confirmed:
    """The bound of the readers of one open store, at first where an earlier process knew it to be.

    Thread: that of the event loop, in which messages are put as well.
    """

    def __init__(self, raw: RawLog) -> None:
        self._raw: Final = raw
        self._acks: SyncAcks | None = None
        self._bound: int | None = raw.stored_confirm_offset  # None: readers see all
        raw.bound_readers(self._bound)

    def start_leading(self, acks: SyncAcks) -> None:
        """etcd has taken that this master alone is in sync: its log is confirmed. From now on ``acks`` say."""
        if self._acks is None:
            acks.watch(self._on_acked)
        self._acks = acks
        self._on_acked(acks.acked)

    def stop_leading(self) -> None:
        """The reign is over: what comes from now on confirms nothing."""
        if self._acks is not None:
            self._acks.unwatch(self._on_acked)
            self._acks = None
        if self._bound is None:
            self._bound = self._raw.end  # nothing was put since the right was over
            self._raw.bound_readers(self._bound)

    def update(self, offset: int) -> None:
        """The master that this slave follows says that its log is confirmed up to there."""
        self._move(offset)

    def _on_acked(self, acked: int) -> None:
        assert self._acks is not None
        if self._acks.is_alone:
            if self._bound is not None:
                self._bound = None
                self._raw.unbound_readers()
            return
        if self._bound is None:  # all that was there when the first slave was waited for
            self._bound = self._raw.end
            self._raw.bound_readers(self._bound)
        self._move(acked)

    def _move(self, offset: int) -> None:
        end = min(offset, self._raw.end)
        if self._bound is not None and end > self._raw.confirm_offset:  # a cut of the log took the bound back
            self._bound = end
            self._raw.confirm(end)
