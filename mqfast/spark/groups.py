"""The progress of a stream as the offsets of a consumer group, for tools that watch lag.

The offsets are in ``config/consumerOffset.json``, which belongs to the writer of the store. The file is written only
while no other process has the store open; otherwise the offsets are kept for the next call. A stream never waits or
fails because of this file. No Spark.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqfast.errors import MqfastError, StoreLocked
from mqfast.spark.offsets import LOG_KEY, Offsets, decode
from mqfast.store.base.lock import StoreLock
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import StorePaths
from mqfast.store.meta.offsets import ConsumerOffsets
from mqfast.store.reader.store_reader import StoreReader

__all__ = ["GroupProgress", "queue_offsets"]

_log = logging.getLogger("mqfast.spark")


def queue_offsets(reader: StoreReader, spark: Mapping[str, Any]) -> Offsets:
    """Return a stream's offset by queue; in log order, the first message of each queue at or after the position."""
    offset = decode(spark, along_log=LOG_KEY in spark)
    if offset.queues is not None:
        return dict(offset.queues)
    assert offset.position is not None
    position = offset.position
    offsets: Offsets = {}
    reader.refresh()
    for q in reader.queues():
        low, high = q.min_offset, q.max_offset
        while low < high:
            middle = (low + high) // 2
            if reader.unit_at(q.topic, q.queue_id, middle).physical_offset < position:
                low = middle + 1
            else:
                high = middle
        offsets[q.topic, q.queue_id] = low
    return offsets


class GroupProgress:
    """The offsets of a group in a local store.

    Args: commit_log: the directories of a log outside of the store.
    Thread: one.
    """

    def __init__(self, path: str, group: str, commit_log: Sequence[str] = ()) -> None:
        path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
        self._path: Final = os.path.abspath(path)
        self._group: Final = group
        self._commit_log: Final = tuple(commit_log)
        self._told = False

    def commit(self, spark: Mapping[str, Any]) -> bool:
        """Commit that all messages before an offset are processed; offsets never decrease.

        Returns: whether the offsets were written; False while another process has the store open, or on a write error.
        """
        try:
            with StoreReader(self._path, commit_log=self._commit_log) as reader:
                offsets = queue_offsets(reader, spark)
            os_api = OsApi()
            with StoreLock.acquire(os_api, os.path.join(self._path, "lock")):
                table = ConsumerOffsets.load(os_api, StorePaths(self._path).consumer_offset)
                for (topic, queue_id), offset in offsets.items():
                    if offset > table.get(self._group, topic, queue_id):
                        table.commit(self._group, topic, queue_id, offset)
                table.persist()
            return True
        except StoreLocked:
            if not self._told:
                _log.warning("group %s: %s is open in its writer, which has the offsets", self._group, self._path)
        except MqfastError as error:
            if not self._told:
                _log.warning("group %s: %s", self._group, error)
        self._told = True
        return False
