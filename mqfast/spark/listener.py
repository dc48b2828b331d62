"""A listener for streaming queries: exact offsets of a consumer group, and the lag in messages.

Runs in the driver's Python. Spark reports a finished batch to a source only while planning the next batch, so the last
batch is never reported; a listener is called after each batch.

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
    """Return the live part of an offset in JSON text; None for a text that is no object."""
    try:
        offset = json.loads(text) if text else None
    except ValueError:  # an offset of another source
        return None
    return live_part(offset) if isinstance(offset, dict) else None


def _offset(text: str | None, store: str | None = None) -> dict[str, Any] | None:
    """Return the offset of an mqfast source, or of one store of the source; None for any other text."""
    offset: Any = _live(text)
    if isinstance(offset, dict) and isinstance(offset.get(STORES_KEY), dict):
        offset = offset[STORES_KEY].get(store)
    if not isinstance(offset, dict) or not offset:
        return None
    try:
        decode(offset, along_log=LOG_KEY in offset)
    except UsageError:
        return None
    return offset


def lag(path: str | None, start: Mapping[str, Any], end: Mapping[str, Any], *, store: str | None = None) -> int:
    """Return the messages between two offsets of a stream: ``endOffset`` and ``latestOffset`` in a query's progress.

    Of a stream that began in an archive: messages of the live part. In log order the store at ``path`` is read.

    Args: store: a store among several, or a broker of a cluster; None: all of them.
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
    """A listener that commits the end of each finished batch as the offsets of a consumer group.

    Args: path: of a store, or the options with which the query reads a cluster (``namesrv`` and related options); all
        brokers of the cluster get the offsets; query: only the query of this name; needed if the session has other
        queries on stores, since a listener gets the events of all queries; source: number of the query's source, from
        0; store: name of the store at ``path`` if the query reads several.
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
        """Do nothing: no batch is finished."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Commit the end of a finished batch."""
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
        live_offset = _live(text)
        stores = live_offset.get(STORES_KEY) if isinstance(live_offset, dict) else None
        for name, offset in stores.items() if isinstance(stores, dict) else ():
            if name not in self._brokers:
                self._brokers[name] = open_backend(table.of_broker(self._cluster, name))
            try:
                self._brokers[name].commit_group(self._group, offset)
            except MqfastError as error:
                _log.warning("group %s: broker %s is not told: %s", self._group, name, error)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: there is no new batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Do nothing: all finished batches are committed."""
