"""A listener for streaming queries: exact offsets of a consumer group, and the lag in messages.

Room: the Spark adapter; runs in the driver's own Python. Spark tells a source of a finished batch only while it plans
the one after, so the last batch of a run is never told; a listener hears of each one once it is done.

    spark.streams.addListener(GroupListener("/var/lib/app/store", group="audit"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from mqfast.errors import UsageError
from mqfast.spark.groups import GroupProgress, queue_offsets
from mqfast.spark.offsets import LOG_KEY, STORES_KEY, backlog, decode
from mqfast.store.reader.store_reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["GroupListener", "lag"]


def _offset(text: str | None, store: str | None = None) -> dict[str, Any] | None:
    """The offset of one of our sources, or of one store of it; None for anything else."""
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    if isinstance(found, dict) and isinstance(found.get(STORES_KEY), dict):
        found = found[STORES_KEY].get(store)
    if not isinstance(found, dict) or not found:
        return None
    try:
        decode(found, along_log=LOG_KEY in found)
    except UsageError:
        return None
    return found


def lag(path: str, start: Mapping[str, Any], end: Mapping[str, Any], *, store: str | None = None) -> int:
    """Messages between two offsets of a stream: of ``endOffset`` and ``latestOffset`` in a query's progress; ``store``:
    which one of several.

    In log order the store is asked. Raises: StoreNotFound, StorageError.
    """
    if STORES_KEY in start and STORES_KEY in end and store is not None:
        start, end = start[STORES_KEY][store], end[STORES_KEY][store]
    since, until = (decode(offset, along_log=LOG_KEY in offset) for offset in (start, end))
    if since.queues is not None and until.queues is not None:
        return backlog(since.queues, until.queues)
    with StoreReader(path) as reader:
        return backlog(queue_offsets(reader, start), queue_offsets(reader, end))


class GroupListener(StreamingQueryListener):
    """Writes the end of each finished batch into the store as the offsets of a consumer group.

    Args: query: only the query of this name, to be given where the session has other queries that read stores: a
    listener hears of them all; source: which of its sources, counted from 0; store: the name of the store at ``path``
    where the query reads several.
    """

    def __init__(
        self, path: str, group: str, *, query: str | None = None, source: int = 0, store: str | None = None
    ) -> None:
        self._store: Final = path if store is None else store
        self._progress: Final = GroupProgress(path, group)
        self._query: Final = query
        self._source: Final = source

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done: note its end."""
        progress = event.progress
        if (self._query is None or progress.name == self._query) and self._source < len(progress.sources):
            end = _offset(progress.sources[self._source].endOffset, self._store)
            if end is not None:
                self._progress.commit(end)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What is done was noted."""
