"""Comparison of a slave's log with the bytes that its master sends, before the slave appends the first byte.

If both sides send terms (``term_history.py``), the newest common term gives the offset up to which the logs are equal.
Then, and always with a master of RocketMQ, whole records are compared. The record before that offset must be the same
in both logs, with offsets, times, hosts, size and CRC. If that record differs, the next connection begins further back,
each time twice as far, until a common record is found. An equal number of bytes decides nothing.

No I/O except reads of the log. Source: own design; AutoSwitchHAClient.doTruncate, KIP-279.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from mqfast.errors import DataLoss, FrameError
from mqfast.ha.term_history import common_end

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqfast.ha.protocol import MasterHistory
    from mqfast.ha.term_history import Term
    from mqfast.store.raw_log import RawLog

__all__ = ["LogComparison", "Diverged", "Search"]

_log = logging.getLogger("mqfast.ha")
_STEP_BYTES: Final = 1 << 20


class Diverged(DataLoss):
    """The log of a slave does not continue the log of its master.

    Attributes: ``end``: the end of the slave's log; ``master``: the first physical offset that differs; the end of the
        master's log if that is smaller; the begin of the master's log if that is behind ``end``.
    """

    def __init__(self, end: int, master: int, text: str) -> None:
        super().__init__(text)
        self.end = end
        self.master = master


class Search:
    """The start of the next comparison, from the results of earlier connections to the same master.

    Attributes: ``below``: the last record that ends at or before this offset is compared, None: the last record;
        ``by_records``: terms and records contradict each other, so terms do not count.
    """

    def __init__(self) -> None:
        self.below: int | None = None
        self.step = 0
        self.by_records = False

    def go_back(self, start: int, differs_at: int) -> None:
        """Move the search backwards: the record at ``start`` is not common to both logs."""
        if differs_at < start:  # the master's log ends before: compare there first
            self.below = differs_at
        else:
            self.below, self.step = start, max(_STEP_BYTES, 2 * self.step)
        self.by_records = True


class LogComparison:
    """One comparison, for one connection.

    Args: first: where the master's log begins, 0 if unknown; mine: the terms of this log; history: the master's, None
        if the master sends none.
    Attributes: lowest: the smallest offset to compare; limit: the largest offset up to which both logs can be equal;
        start, position: of the comparison; end: of the slave's log; all physical offsets; ``by_terms``: terms determine
        ``limit``.
    Raises: Diverged if the logs diverge before any byte is compared.
    """

    def __init__(
        self, raw: RawLog, search: Search, first: int, mine: Sequence[Term], history: MasterHistory | None
    ) -> None:
        self._raw = raw
        self._quiet_s: float | None = None
        self.history: Final = history
        self.end = raw.end
        if history is not None:
            first = history.first
        self.lowest = max(raw.min_offset, first, 0)
        common = None
        if history is not None and not search.by_records:
            common = common_end(mine, self.end, history.terms, history.end)
        self.by_terms: Final = common is not None
        self.limit = self.end if history is None else min(self.end, history.end if common is None else common)
        if history is not None and 0 < self.end < history.first:
            raise begins_behind(self.end, history.first)
        self.start = self._start_of(search) if self.end else 0
        self.position = self.start
        if 0 < self.end == self.start and not self.by_terms:
            if history is not None and _are_known(mine) and _are_known(history.terms):
                raise Diverged(
                    self.end,
                    self.end,
                    f"the log of this slave, which ends at {self.end} where its master's begins, has no epoch in "
                    "common with that",
                )
            _log.warning("the master's log begins where this one ends, at %d: nothing can be compared", self.end)

    def _start_of(self, search: Search) -> int:
        """Return the start of a record, if there is a record to compare.

        A report of 0 means an empty log: a master would begin with its last file.
        """
        if self.limit <= self.lowest:
            return max(self.limit, 0)
        below = self.limit if search.below is None else min(self.limit, search.below)
        record = self._raw.record_before(max(self.lowest, below - search.step))
        return max(self.lowest if record is None else record[0], self.lowest, 1)

    @property
    def is_done(self) -> bool:
        """Return True if all bytes were compared and are equal."""
        return self.position >= self.end

    @property
    def is_at_limit(self) -> bool:
        """Return True if all comparable bytes are equal but the slave's log is longer."""
        return self.limit <= self.position < self.end

    def is_quiet(self, now_s: float, seconds: float) -> bool:
        """Return True if only heartbeats arrived for ``seconds``. Called with each heartbeat."""
        if self._quiet_s is None:
            self._quiet_s = now_s
        return now_s - self._quiet_s >= seconds

    def compare(self, offset: int, piece: memoryview) -> memoryview:
        """Compare the next bytes. Returns: the bytes behind the slave's end. Raises: Diverged, FrameError."""
        if offset != self.position:
            raise FrameError(f"frame: expected offset {self.position}, found {offset}")
        self._quiet_s = None
        mine = min(len(piece), self.limit - self.position)
        done = 0
        while done < mine:
            for view in self._raw.read(self.position, mine - done, unflushed=True):
                other = piece[done : done + len(view)]
                if view != other:
                    at = next(i for i in range(len(view)) if view[i] != other[i])
                    self.position += at
                    raise Diverged(
                        self.end,
                        self.position,
                        f"the log of this slave, which ends at {self.end}, differs from its master's at "
                        f"{self.position}",
                    )
                done += len(view)
                self.position += len(view)
                view.release()
        if self.is_at_limit:
            raise self.ends_at_limit()
        return piece[mine:]

    def ends_at_limit(self) -> Diverged:
        """Return the error for a slave whose log is longer than ``limit``."""
        if self.history is not None and self.limit == self.history.end:
            return ahead(self.end, self.limit)
        return Diverged(
            self.end,
            self.limit,
            f"the log of this slave, which ends at {self.end}, differs from its master's at {self.limit}: behind it is "
            "another epoch",
        )

    def common_below(self, differs_at: int) -> int | None:
        """Return the end of the last common record before an offset at which the logs differ.

        Returns: None if this comparison found no common record.
        """
        if self.by_terms and differs_at >= self.limit:
            return self._raw.last_boundary(self.limit) if self.limit >= self.lowest else None
        common = self._raw.last_boundary(differs_at) if differs_at >= self.lowest else 0
        return common if common > self.start else None

    @property
    def is_lowest(self) -> bool:
        """Return True if no record precedes the first compared record."""
        return self.start <= max(self.lowest, 1)


def _are_known(terms: Sequence[Term]) -> bool:
    return any(term.history for term in terms)


def begins_behind(end: int, first: int) -> Diverged:
    """Return the error for a master that has deleted the bytes after the slave's end."""
    return Diverged(
        end,
        first,
        f"the log of this slave ends at {end}, its master's begins at {first}: what is between is gone; a slave with "
        "an empty store begins anew",
    )


def ahead(end: int, master_end: int) -> Diverged:
    """Return the error for a slave whose log is longer than the master's log."""
    return Diverged(
        end, master_end, f"the log of this slave ends at {end}, its master's at {master_end}: the slave is ahead"
    )
