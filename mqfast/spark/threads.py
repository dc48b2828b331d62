"""Writes from any thread of the driver.

Spark looks up the Python source of a write in the active session of the calling thread, and only the thread that
created the session has an active session: ``format("mqfast").save(path)`` on another thread ends in
DATA_SOURCE_NOT_FOUND. So a writer with this format activates its session on a thread without a session. Writers of
other formats and the active session of a thread stay as they are.
"""

from __future__ import annotations

import functools
from typing import Any, Final

__all__ = ["write_from_any_thread"]

_FORMAT: Final = "mqfast"
_DONE: Final = "_mqfast_from_any_thread"


def write_from_any_thread() -> None:
    """Let writers of this process find the source on every thread. Idempotent."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    for kind in (DataFrameWriter, DataStreamWriter):
        if not hasattr(kind.format, _DONE):
            kind.format = _finding(kind.format)  # type: ignore[method-assign]


def _finding(given: Any) -> Any:
    @functools.wraps(given)
    def format(self: Any, source: str) -> Any:
        if source.lower() == _FORMAT:
            _activate(self._spark)
        return given(self, source)

    setattr(format, _DONE, True)
    return format


def _activate(spark: Any) -> None:
    """Make a session the active session of this thread, if the thread has none."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)
