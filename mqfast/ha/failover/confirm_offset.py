"""The confirm offset of a fail-over broker: readers see messages that all in-sync brokers have, which no take-over
loses.

A master advances the offset with the acknowledgements of the in-sync set. A slave gets the offset from its master.
Slaves also receive unconfirmed messages, since their acknowledgements confirm these. The offset never decreases, and
never exceeds the end of any broker that may become master. Source: DefaultMessageStore.getConfirmOffset,
AutoSwitchHAService.computeConfirmOffset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from mqfast.ha.failover.in_sync_replicas import SyncAcks
    from mqfast.store.raw_log import RawLog

__all__ = ["Confirmed"]


class Confirmed:
    """The confirm offset of one open store; starts with the value stored by an earlier process.

    Thread: that of the event loop, in which messages are put as well.
    """

    def __init__(self, raw: RawLog) -> None:
        self._raw: Final = raw
        self._acks: SyncAcks | None = None
        self._bound: int | None = raw.stored_confirm_offset  # None: readers see the whole log
        raw.bound_readers(self._bound)

    def start_leading(self, acks: SyncAcks) -> None:
        """Start as master, after etcd has stored the in-sync set with this master alone: all of the log is confirmed.

        From now on ``acks`` advances the offset.
        """
        if self._acks is None:
            acks.watch(self._on_acked)
        self._acks = acks
        self._on_acked(acks.acked)

    def stop_leading(self) -> None:
        """Stop as master: later acknowledgements confirm nothing."""
        if self._acks is not None:
            self._acks.unwatch(self._on_acked)
            self._acks = None
        if self._bound is None:
            self._bound = self._raw.end  # nothing was put since the lease expired
            self._raw.bound_readers(self._bound)

    def update(self, offset: int) -> None:
        """Advance to the confirm offset of the followed master."""
        self._move(offset)

    def _on_acked(self, acked: int) -> None:
        assert self._acks is not None
        if self._acks.is_alone:
            if self._bound is not None:
                self._bound = None
                self._raw.unbound_readers()
            return
        if self._bound is None:  # the end of the log at the moment the first slave became required
            self._bound = self._raw.end
            self._raw.bound_readers(self._bound)
        self._move(acked)

    def _move(self, offset: int) -> None:
        end = min(offset, self._raw.end)
        if self._bound is not None and end > self._raw.confirm_offset:  # a truncation may have lowered the bound
            self._bound = end
            self._raw.confirm(end)
