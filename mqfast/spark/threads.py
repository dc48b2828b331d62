"""Writes from any thread of the driver.

Room: the Spark adapter. Spark looks a Python source that is written to up in the session that is active in the calling
thread, and only the thread that made the session has one: from any other one ``format("mqfast").save(path)`` ends in
DATA_SOURCE_NOT_FOUND. So where a writer is told this format, its own session becomes the active one of a thread that
has none. It must never touch a writer of another format, nor take a thread's session away.
"""

from __future__ import annotations

import functools
from typing import Any, Final

__all__ = ["write_from_any_thread"]

_FORMAT: Final = "mqfast"
_DONE: Final = "_mqfast_from_any_thread"


def write_from_any_thread() -> None:
    """Let the writers of this process find the source in every thread. Safe to call again."""
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
    """Make a session the active one of this thread, if it has none."""
    sessions = spark._jvm.org.apache.spark.sql.classic.SparkSession
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(spark._jsparkSession)
