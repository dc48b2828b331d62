"""Queue files from rows of the log; runs in tasks.

Formats: ``mqfast/store/FORMAT.md``. Each function writes a file of 20-byte units, or the files of a batch queue, from
rows that hold all the data, so files are written in parallel. In a batch queue the offset of a unit follows from the
units before, so a single task writes all files, with the engine's class. Existing queue files are not read.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from mqfast.errors import UsageError
from mqfast.message import SysFlag
from mqfast.properties import decode, jhash, queue_pairs
from mqfast.spark.durable_files import DurableFile
from mqfast.spark.local.staging import sync_directory
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import offset_name, queue_dir
from mqfast.store.queues.batch_queue import BatchConsumeQueue, places_in

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = [
    "COLUMNS",
    "LEAST_DELAY_MS",
    "SCHEDULE_TOPIC",
    "UNIT_BYTES",
    "FileKey",
    "Units",
    "tag_hashes",
    "write_queue_file",
]

COLUMNS: Final = "topic,queueId,queueOffset,physicalOffset,msgSize,storeTimestamp,sysFlag,tags,properties"
FileKey = tuple[str, int, int]
"""Topic, queue id, and number of a file within the queue, or BATCH for all files of a batch queue."""
BATCH: Final = -1

UNIT_BYTES: Final = 20
_BATCH_UNIT: Final = [
    ("physical", "<i8"), ("size", "<i4"), ("tags", "<i8"), ("stored", "<i8"), ("base", "<i8"), ("count", "<i4"),
]  # fmt: skip
_UNIT: Final = [("offset", "<i8"), ("physical", "<i8"), ("size", "<i4"), ("tags", "<i8")]
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_FILLER_SIZE: Final = 0x7FFFFFFF
LEAST_DELAY_MS: Final = 1000


@dataclass(frozen=True)
class QueueFile:
    """The result of a file: queue offsets of the first and last message, units, and offsets between them without a
    unit.
    """

    key: FileKey
    first: int
    last: int
    units: int
    gaps: int
    files: int = 1


def tag_hashes(tags: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the tags codes of these tags; null is no tag."""
    import numpy as np
    import pyarrow.compute as pc

    coded = pc.fill_null(tags, "").dictionary_encode()
    hashes = np.array([jhash(tag) for tag in coded.dictionary.to_pylist()], np.int64)
    codes: np.ndarray[Any, np.dtype[np.int64]] = hashes[coded.indices.to_numpy()]
    return codes


class Units:
    """The units of the records of a piece of the log, by queue file.

    Args: delays_ms: of the delay levels, from the first level on; batch_topics: topics with batch queues.
    Thread: one.
    """

    def __init__(
        self, delays_ms: tuple[int, ...], units_per_file: int, batch_topics: frozenset[str] = frozenset()
    ) -> None:
        self._batch_topics: Final = batch_topics
        self._delays_ms: Final = delays_ms
        self._per_file: Final = units_per_file
        self._found: Final[dict[FileKey, list[bytes]]] = {}

    def packed(self) -> Iterator[tuple[FileKey, bytes]]:
        """Return all units of each file with units, packed."""
        for key, blocks in self._found.items():
            yield key, b"".join(blocks)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the records of a batch of COLUMNS, properties raw.

        Raises: UsageError for a record of several messages in a topic without known batch queues.
        """
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        if batch.num_rows == 0:
            return
        texts, topic_names = batch.column("properties"), batch.column("topic")
        in_batches = pc.is_in(topic_names, pa.array(sorted(self._batch_topics), pa.string())).to_numpy(False)
        several = (batch.column("sysFlag").to_numpy() & SysFlag.INNER_BATCH != 0) & ~in_batches
        if several.any():
            raise UsageError(
                f"topic {topic_names[int(several.argmax())]}: found a record of several messages, but neither "
                "topics.json nor the store's files say that its queues are batch queues; --batch-topics does"
            )
        units = np.empty(batch.num_rows, _UNIT)
        for name, column in (("offset", "queueOffset"), ("physical", "physicalOffset"), ("size", "msgSize")):
            units[name] = batch.column(column).to_numpy()
        units["tags"] = self._tags_codes(batch)
        topics = topic_names.dictionary_encode()
        names, indices = topics.dictionary.to_pylist(), topics.indices.to_numpy()
        queue_ids = batch.column("queueId").to_numpy()
        numbers = units["offset"] // self._per_file
        order = np.lexsort((numbers, queue_ids, indices))
        order = order[~in_batches[order]]
        keys = np.stack((indices[order], queue_ids[order], numbers[order]))
        cuts = [0, *(np.flatnonzero(np.any(np.diff(keys), axis=0)) + 1).tolist(), len(order)] if len(order) else []
        for start, end in pairwise(cuts):
            topic, queue_id, number = (int(key[start]) for key in keys)
            self._found.setdefault((names[topic], queue_id, number), []).append(units[order[start:end]].tobytes())
        self._add_batches(batch, units, np.flatnonzero(in_batches).tolist())
        for row in np.flatnonzero(pc.match_substring(texts, "INNER_MULTI_DISPATCH\x01").to_numpy(False)).tolist():
            if _is_of_the_system(topic_names[row].as_py()):
                continue
            for topic_name, queue_id, offset in _other_queues(decode(texts[row].as_py().encode()), queue_ids[row]):
                unit = units[row : row + 1].copy()
                unit["offset"] = offset
                key = (topic_name, int(queue_id), offset // self._per_file)
                self._found.setdefault(key, []).append(unit.tobytes())

    def _add_batches(self, batch: pa.RecordBatch, units: np.ndarray[Any, Any], rows: list[int]) -> None:
        import numpy as np
        import pyarrow as pa

        if not rows:
            return
        texts = batch.column("properties")
        flags, offsets = batch.column("sysFlag").to_numpy(), units["offset"].tolist()
        places = [
            places_in(decode(texts[row].as_py().encode()), offsets[row])
            if flags[row] & SysFlag.INNER_BATCH
            else (offsets[row], 1)
            for row in rows
        ]
        rows_of_units = np.empty(len(rows), _BATCH_UNIT)
        for name in ("physical", "size", "tags"):
            rows_of_units[name] = units[name][rows]
        rows_of_units["stored"] = batch.column("storeTimestamp").cast(pa.int64()).to_numpy()[rows] // 1000
        rows_of_units["base"], rows_of_units["count"] = zip(*places, strict=True)
        for i, row in enumerate(rows):
            key = (batch.column("topic")[row].as_py(), batch.column("queueId")[row].as_py(), BATCH)
            self._found.setdefault(key, []).append(rows_of_units[i : i + 1].tobytes())

    def _tags_codes(self, batch: pa.RecordBatch) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return the hashes of the tags; delivery times for delayed messages."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        codes = tag_hashes(batch.column("tags"))
        scheduled = pc.equal(batch.column("topic"), SCHEDULE_TOPIC).to_numpy(False)
        if scheduled.any():
            texts = batch.column("properties")
            stored_ms = batch.column("storeTimestamp").cast(pa.int64()).to_numpy() // 1000
            for row in np.flatnonzero(scheduled).tolist():
                level = min(_level(decode(texts[row].as_py().encode()).get("DELAY")), len(self._delays_ms))
                if level > 0:
                    codes[row] = stored_ms[row] + (self._delays_ms[level - 1] or LEAST_DELAY_MS)
        return codes


def _is_of_the_system(topic: str) -> bool:
    """Return whether a record of this topic is not in the named light queues: a copy under the original topic
    follows.
    """
    return topic.startswith(("%RETRY%", "rmq_sys_")) or topic == SCHEDULE_TOPIC


def _level(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _other_queues(properties: dict[str, str], queue_id: int) -> Iterator[tuple[str, int, int]]:
    """Return light queues and other queues that hold a record as well."""
    for name, queue, offset in queue_pairs(properties, queue_id):
        if "/" not in name and offset.isascii() and offset.isdigit():
            yield name, queue, int(offset)


def write_queue_file(key: FileKey, blocks: Iterable[bytes], base: str, units_per_file: int) -> QueueFile:
    """Write a file of a queue; durable on return.

    The first of two records with the same offset wins, as in a broker. Offsets below the first unit, and gaps, get
    fillers.
    """
    import numpy as np

    topic, queue_id, number = key
    units = np.frombuffer(b"".join(blocks), _UNIT)
    units = units[np.argsort(units["physical"], kind="stable")]
    places, firsts = np.unique(units["offset"] - number * units_per_file, return_index=True)
    units = units[firsts]
    kind = np.dtype([("physical", ">i8"), ("size", ">i4"), ("tags", ">i8")])
    written = np.zeros(int(places[-1]) + 1, kind)
    written["size"] = _FILLER_SIZE
    for name in ("physical", "size", "tags"):
        written[name][places] = units[name]
    path = os.path.join(queue_dir(base, topic, queue_id), offset_name(number * units_per_file * UNIT_BYTES))
    file = DurableFile(path)
    try:
        file.write(written.tobytes())
        file.lengthen(units_per_file * UNIT_BYTES)
        file.commit()
    finally:
        file.discard()
    start = number * units_per_file
    first, last = start + int(places[0]), start + int(places[-1])
    return QueueFile(key, first, last, len(places), last - first + 1 - len(places))


def write_batch_queue(key: FileKey, blocks: Iterable[bytes], base: str, file_bytes: int) -> QueueFile:
    """Write the files of a batch queue; durable on return."""
    import numpy as np

    topic, queue_id, _ = key
    units = np.frombuffer(b"".join(blocks), _BATCH_UNIT)
    units = units[np.argsort(units["physical"], kind="stable")]
    shutil.rmtree(queue_dir(base, topic, queue_id), ignore_errors=True)  # from a failed attempt
    queue = BatchConsumeQueue(REAL, base, topic, queue_id, file_bytes)
    try:
        for row in units.tolist():
            queue.put(*row)
        queue.flush()
        files = len(queue.file_list)
    finally:
        queue.close()
    sync_directory(queue.path)
    # Gaps are counted in messages, not in units.
    ends = units["base"] + units["count"]
    lost = int(np.maximum(units["base"][1:] - ends[:-1], 0).sum())
    return QueueFile(key, int(units["base"][0]), int(ends[-1]) - 1, len(units), lost, files)
