"""Latencies of requests from their last byte to their response, by code and outcome: RocketMQ's histogram.

The number of rows is bounded: further codes share a row. Source: RemotingMetricsManager,
NettyRemotingAbstract.writeResponse.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Final, NamedTuple

from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["BOUNDS_MS", "Latencies", "Latency", "Outcome"]

BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""Upper bounds of the buckets, ms; the last bucket has no bound."""
SUCCESS, ONEWAY, NOT_WRITTEN = "success", "oneway", "write_channel_failed"
_ROWS_MAX: Final = 2000
_OTHER: Final = "other"


class Outcome(NamedTuple):
    """Request and result, by the names of RocketMQ's labels."""

    request_code: str
    response_code: str
    is_long_polling: bool
    result: str


class Latency:
    """A row of the histogram. Attributes: ``counts``: of each bucket; ``sum_ms``: of all requests."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0


_Key = tuple[int, int, bool, str]


class Latencies:
    """All rows of a server.

    Attributes: ``before_reading``: called before rows are read: they add what other threads have counted.
    Thread: that of the event loop.
    """

    def __init__(self) -> None:
        self.before_reading: list[Callable[[], None]] = []
        self._rows: dict[_Key, Latency] = {}
        self._others = Latency()

    def note(self, request: RemotingCommand, response_code: int, now_s: float, is_written: bool) -> None:
        """Count a response. Args: is_written: the connection is still open."""
        result = ONEWAY if request.is_oneway else SUCCESS if is_written else NOT_WRITTEN
        row = self._row((request.code, response_code, request.was_held, result))
        took_ms = max(0, int((now_s - request.received_s) * 1000))
        row.counts[bisect_left(BOUNDS_MS, took_ms)] += 1
        row.sum_ms += took_ms

    def add(self, code: int, response_code: int, counts: list[int], sum_ms: int) -> None:
        """Count successful responses by the steps of BOUNDS_MS."""
        row = self._row((code, response_code, False, SUCCESS))
        for step, number in enumerate(counts):
            row.counts[step] += number
        row.sum_ms += sum_ms

    def _row(self, key: _Key) -> Latency:
        row = self._rows.get(key)
        if row is None:
            if len(self._rows) < _ROWS_MAX:
                row = self._rows[key] = Latency()
            else:
                row = self._others
        return row

    def rows(self) -> list[tuple[Outcome, Latency]]:
        """Return all rows, with those of further codes as the last."""
        for add in self.before_reading:
            add()
        percentiles = [
            (Outcome(_request_name(code), _response_name(answer), was_held, result), row)
            for (code, answer, was_held, result), row in self._rows.items()
        ]
        if any(self._others.counts):
            percentiles.append((Outcome(_OTHER, _OTHER, False, SUCCESS), self._others))
        return percentiles


def _request_name(code: int) -> str:
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return str(code)


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)
