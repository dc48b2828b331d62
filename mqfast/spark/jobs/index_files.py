"""The index of a store from its log, a task for each file.

A first pass counts the keys of each part of the log, which gives the start of every index file; then the files are
written in parallel. Format: ``mqfast/store/FORMAT.md``. Existing index files are not read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile
from mqfast.properties import TAG_KEY, split_keys
from mqfast.spark import options as table
from mqfast.spark.backend import ReadSettings
from mqfast.spark.backends import open_local
from mqfast.spark.jobs.tasks import run_tasks
from mqfast.spark.local.staging import make_directory
from mqfast.spark.options import Options
from mqfast.spark.plan import ScanRange, scan_pieces
from mqfast.spark.schema import Column, chosen_columns
from mqfast.store.base.os_api import REAL
from mqfast.store.base.paths import index_name
from mqfast.store.index.index_file import IndexFile, key_hash

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KEY_COLUMNS", "Entry", "IndexPiece", "build_index", "entries_of"]

KEY_COLUMNS: Final = "topic,physicalOffset,storeTimestamp,sysFlag,uniqKey,keys,tags"
_TRANSACTION: Final = 0xC
_ROLLED_BACK: Final = 0xC

Entry = tuple[str, str, int, int, bool]
"""Topic, key or tags behind ``TAG_KEY``, physical offset, store time in ms, whether they are tags."""


@dataclass(frozen=True)
class IndexPiece:
    """A range of the log whose keys are needed."""

    options: Options
    columns: tuple[Column, ...]
    store_id: str
    scan: ScanRange
    tags: bool = True


@dataclass(frozen=True)
class _IndexPart:
    """An index file: ``entries`` keys from the number ``skip`` on, counted from the first key of the pieces."""

    pieces: tuple[IndexPiece, ...]
    skip: int
    entries: int
    path: str
    slots: int
    capacity: int


def build_index(
    spark: SparkSession, store: str, directory: str, config: StoreConfig, partition_bytes: int, tags: bool
) -> tuple[int, int]:
    """Build all index files; return the number of files, and of entries. Durable on return.

    Args: tags: include entries for tags, as release 5.5 does.
    """
    read = {"path": store, "columns": KEY_COLUMNS, "batchBytes": "4m", "includeSystemTopics": "true"}
    options = table.parse(read, table.BATCH)
    access = open_local(options)
    try:
        snapshot = access.snapshot()
        start, end = snapshot.log_start, snapshot.log_end
        parts = max(1, round((end - start) / partition_bytes))
        scans = scan_pieces(start, end, parts, access) if start < end else []
    finally:
        access.close()
    pieces = [IndexPiece(options, chosen_columns(options), snapshot.store_id, scan, tags) for scan in scans]
    make_directory(directory)
    counted = run_tasks(spark, pieces, _count, "rebuild: keys")
    # The first entry of an index file is never used.
    room = config.max_index_num - 1
    index_parts: list[_IndexPart] = []
    total, name = sum(number for number, _ in counted), None
    for first in range(0, total, room):
        entries = min(room, total - first)
        numbers = [number for number, _ in counted]
        stored_ms = counted[pieces.index(_pieces_of(pieces, numbers, first, entries)[0][0])][1]
        # Include the entry before: times in a file count from the end of the previous file.
        behind = min(first, 1)
        inside, before = _pieces_of(pieces, numbers, first - behind, entries + behind)
        name = index_name(stored_ms, name)
        path = os.path.join(directory, name)
        index_parts.append(
            _IndexPart(inside, first - before, entries, path, config.max_hash_slot_num, config.max_index_num)
        )
    run_tasks(spark, index_parts, _write, "rebuild: index")
    return len(index_parts), total


def _pieces_of(
    pieces: list[IndexPiece], counts: list[int], first: int, entries: int
) -> tuple[tuple[IndexPiece, ...], int]:
    """Return the pieces with these keys, and the number of keys before the pieces."""
    inside: list[IndexPiece] = []
    at = before = 0
    for piece, number in zip(pieces, counts, strict=True):
        if at < first + entries and at + number > first:
            if not inside:
                before = at
            inside.append(piece)
        at += number
    return tuple(inside), before


def entries_of(piece: IndexPiece) -> Iterator[Entry]:
    """Yield the keys and tags of all records except rolled back ones, as a broker indexes them, half messages
    included.
    """
    access = open_local(piece.options)
    try:
        access.check(piece.store_id)
        settings = ReadSettings(
            batch_bytes=piece.options.batch_bytes, verify_crc=piece.options.verify_crc,
            fail_on_data_loss=piece.options.fail_on_data_loss, queued_only=False,
        )  # fmt: skip
        for batch in access.scan(piece.scan, piece.columns, settings):
            columns = [batch.column(column.name).to_pylist() for column in piece.columns if column.kind != "timestamp"]
            times = batch.column("storeTimestamp").cast("int64").to_pylist()
            for time_us, row in zip(times, zip(*columns, strict=True), strict=True):
                topic, place, flag, unique, keys, tags = row
                if flag & _TRANSACTION != _ROLLED_BACK:
                    if unique:
                        yield topic, unique, place, time_us // 1000, False
                    for key in split_keys(keys):
                        yield topic, key, place, time_us // 1000, False
                    if tags and piece.tags:
                        yield topic, TAG_KEY + tags, place, time_us // 1000, True
    finally:
        access.close()


def _count(piece: IndexPiece) -> tuple[int, int]:
    """Return the number of keys of a piece, and the store time of the first."""
    number, first_ms = 0, 0
    for *_, stored_ms, _ in entries_of(piece):
        if number == 0:
            first_ms = stored_ms
        number += 1
    return number, first_ms


def _write(part: _IndexPart) -> None:
    """Write an index file."""
    if os.path.exists(part.path):
        os.unlink(part.path)  # from a failed attempt
    file: IndexFile | None = None
    previous: tuple[int, int] | None = None
    try:
        remaining, skip = part.entries, part.skip
        for piece in part.pieces:
            for topic, key, place, stored_ms, _ in entries_of(piece):
                if skip:
                    skip -= 1
                    previous = stored_ms, place
                    continue
                if remaining == 0:
                    break
                if file is None:
                    file = IndexFile.create(REAL, part.path, part.slots, part.capacity, previous)
                    file.reserve()
                file.put(key_hash(topic, key), place, stored_ms)
                remaining -= 1
        if remaining or file is None:
            raise CorruptFile("keys are gone that were counted before", path=part.path, expected=0, found=remaining)
        file.flush()
    finally:
        if file is not None:
            file.close()
