"""A stream's progress as the offsets of a consumer group, for whoever watches lag there.

Room: the Spark adapter; no Spark in it. The offsets are in ``config/consumerOffset.json``, which belongs to the writer
of the store: it is written only while nobody else has the store open, and otherwise kept back for the next time.
It must never make a stream wait or fail.
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
    """An offset of a stream, by queue: in log order, the first message of each queue at or behind it."""
    offset = decode(spark, along_log=LOG_KEY in spark)
    if offset.queues is not None:
        return dict(offset.queues)
    assert offset.position is not None
    position = offset.position
    found: Offsets = {}
    reader.refresh()
    for q in reader.queues():
        low, high = q.min_offset, q.max_offset
        while low < high:
            middle = (low + high) // 2
            if reader.unit_at(q.topic, q.queue_id, middle).physical_offset < position:
                low = middle + 1
            else:
                high = middle
        found[q.topic, q.queue_id] = low
    return found


class GroupProgress:
    """The offsets of one group in one local store.

    Args: commit_log: the directories of the log where it does not lie in the store.
    Thread: one.
    """

    def __init__(self, path: str, group: str, commit_log: Sequence[str] = ()) -> None:
        path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
        self._path: Final = os.path.abspath(path)
        self._group: Final = group
        self._commit_log: Final = tuple(commit_log)
        self._told = False

    def commit(self, spark: Mapping[str, Any]) -> bool:
        """Note that everything before an offset is done; no queue of the group goes back.

        Returns: whether it was noted; not, while the store's writer has it, or when it cannot be written.
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
