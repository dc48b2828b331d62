"""A listener for streaming queries: exact offsets of a consumer group, and the lag in messages.

Room: the Spark adapter; runs in the driver's own Python. Spark tells a source of a finished batch only while it plans
the one after, so the last batch of a run is never told; a listener hears of each one once it is done.

    spark.streams.addListener(GroupListener("/var/lib/app/store", group="audit"))
    spark.streams.addListener(GroupListener({"namesrv": "host:9876"}, group="audit"))
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.streaming.listener import StreamingQueryListener

from mqfast.errors import MqfastError, UsageError
from mqfast.spark import options as table
from mqfast.spark.backend import Backend
from mqfast.spark.backends import open_backend
from mqfast.spark.groups import GroupProgress, queue_offsets
from mqfast.spark.offsets import LOG_KEY, STORES_KEY, VERSION, backlog, decode, live_part
from mqfast.store.reader.store_reader import StoreReader

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

__all__ = ["GroupListener", "lag"]

_log = logging.getLogger("mqfast.spark")


def _live(text: str | None) -> Mapping[str, Any] | None:
    """The live part of an offset that Spark has as text; None for what is no object."""
    try:
        found = json.loads(text) if text else None
    except ValueError:  # another source has its own form
        return None
    return live_part(found) if isinstance(found, dict) else None


def _offset(text: str | None, store: str | None = None) -> dict[str, Any] | None:
    """The offset of one of our sources, or of one store of it; None for anything else."""
    found: Any = _live(text)
    if isinstance(found, dict) and isinstance(found.get(STORES_KEY), dict):
        found = found[STORES_KEY].get(store)
    if not isinstance(found, dict) or not found:
        return None
    try:
        decode(found, along_log=LOG_KEY in found)
    except UsageError:
        return None
    return found


def lag(path: str | None, start: Mapping[str, Any], end: Mapping[str, Any], *, store: str | None = None) -> int:
    """Messages between two offsets of a stream: of ``endOffset`` and ``latestOffset`` in a query's progress; ``store``:
    which one of several, or which broker of a cluster; None: all of them together.

    Of a stream that begins in an archive: messages of the live part. In log order the store at ``path`` is asked.
    Raises: StoreNotFound, StorageError.
    """
    start, end = start.get("live", start), end.get("live", end)
    if STORES_KEY in start and STORES_KEY in end:
        stores = [store] if store is not None else list(end[STORES_KEY])
        nothing: dict[str, Any] = {"queues": {}, "version": VERSION}
        return sum(
            lag(path, start[STORES_KEY].get(name, nothing), end[STORES_KEY].get(name, nothing)) for name in stores
        )
    since, until = (decode(offset, along_log=LOG_KEY in offset) for offset in (start, end))
    if since.queues is not None and until.queues is not None:
        return backlog(since.queues, until.queues)
    if path is None:
        raise UsageError("path: expected the store, which is asked about offsets in log order, found None")
    with StoreReader(path) as reader:
        return backlog(queue_offsets(reader, start), queue_offsets(reader, end))


class GroupListener(StreamingQueryListener):
    """Writes the end of each finished batch into the store as the offsets of a consumer group.

    Args: path: of a store, or the options with which the query reads a cluster (``namesrv`` and what goes with it), all
    of whose brokers are told then; query: only the query of this name, to be given where the session has other queries
    that read stores: a listener hears of them all; source: which of its sources, counted from 0; store: the name of the
    store at ``path`` where the query reads several.
    """

    def __init__(
        self,
        path: str | Mapping[str, str],
        group: str,
        *,
        query: str | None = None,
        source: int = 0,
        store: str | None = None,
    ) -> None:
        self._group: Final = group
        self._cluster: Final = None if isinstance(path, str) else table.parse(path, table.STREAM)
        self._brokers: Final[dict[str, Backend]] = {}
        self._store: Final = path if store is None and isinstance(path, str) else store
        self._progress: Final = GroupProgress(path, group) if isinstance(path, str) else None
        self._query: Final = query
        self._source: Final = source

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing is done yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done: note its end."""
        progress = event.progress
        if (self._query is None or progress.name == self._query) and self._source < len(progress.sources):
            text = progress.sources[self._source].endOffset
            if self._progress is not None:
                end = _offset(text, self._store)
                if end is not None:
                    self._progress.commit(end)
            else:
                self._commit_to_brokers(text)

    def _commit_to_brokers(self, text: str | None) -> None:
        assert self._cluster is not None
        found = _live(text)
        stores = found.get(STORES_KEY) if isinstance(found, dict) else None
        for name, offset in stores.items() if isinstance(stores, dict) else ():
            if name not in self._brokers:
                self._brokers[name] = open_backend(table.of_broker(self._cluster, name))
            try:
                self._brokers[name].commit_group(self._group, offset)
            except MqfastError as error:
                _log.warning("group %s: broker %s is not told: %s", self._group, name, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing new."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """What is done was noted."""
