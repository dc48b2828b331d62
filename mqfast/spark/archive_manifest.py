"""The manifests of an archive: the Parquet files of the archive, and the part of the log that each file holds.

    <archive>/_manifest/00000001.json         one for each complete run, written last
    <archive>/_manifest/running.json          a run has begun and not ended: its files are in no manifest
    <archive>/_manifest/lock                  held by the running job
    <archive>/topic=<topic>/date=<day>/<start>-<end>-<part>.parquet
    <archive>/topic=<topic>/date=<day>/<broker>-<queue>-<start>-<end>-<run>-<part>.parquet

Files of the first form hold a range of a store's log. Files of the second form hold a range of a cluster's queue, by
queue offsets; a recreated queue has the same offsets in a later run.

Every file in a manifest is durable. Readers use the manifests: the directory may also hold files of an unfinished run.
Uses neither Spark nor Arrow.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from mqfast.errors import CorruptFile, UsageError
from mqfast.spark.durable_files import locked, read_json, write_json
from mqfast.spark.local.staging import make_directory

if TYPE_CHECKING:
    from mqfast.spark.backend import Backend

__all__ = [
    "CLUSTER", "ArchivedFile", "ArchivedQueue", "DamagedFile", "FileGroup", "Manifest", "batches_of", "last_places",
    "manifests", "merge_queues", "only_run", "path_of", "path_of_queue", "queue_ends", "recreated_queues", "save",
]  # fmt: skip

_VERSION: Final = 1
_NAME: Final = re.compile(r"([0-9]{8})\.json")
_FOLDER: Final = "_manifest"
CLUSTER: Final = "cluster"
"""The store id in manifests of a cluster."""


@dataclass(frozen=True)
class ArchivedFile:
    """A Parquet file; ``path`` is relative to the archive, ``piece_start`` and ``piece_end`` are the range of the log
    that the writing task read, ``crc`` is the CRC-32 of the bytes. ``broker``: of a cluster; the range is then of queue
    ``queue_id``, by queue offsets.
    """

    path: str
    topic: str
    date: str
    piece_start: int
    piece_end: int
    rows: int
    bytes: int
    crc: int
    min_physical_offset: int
    max_physical_offset: int
    broker: str = ""
    queue_id: int = -1


@dataclass(frozen=True)
class ArchivedQueue:
    """The messages of a queue that a run archived: queue offsets from ``start`` to ``end``, exclusive.

    ``broker``: empty for the archive of a store.
    """

    broker: str
    topic: str
    queue_id: int
    start: int
    end: int


@dataclass(frozen=True)
class DamagedFile:
    """Records left out of a log file: the number of records and gaps; ``places``: physical offsets and reasons of the
    first.
    """

    path: str
    count: int
    places: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Manifest:
    """A run: the log from ``start`` to ``end``, exclusive, both 0 for a cluster; ``topics``: only these, or None for
    all; ``left_out``: damage in that range of the log, ``left_out_bytes`` in total; ``queues``: the same range by
    queue, None in manifests of earlier releases.
    """

    number: int
    store_id: str
    start: int
    end: int
    topics: tuple[str, ...] | None
    properties: str
    made_ms: int
    files: tuple[ArchivedFile, ...]
    left_out: tuple[DamagedFile, ...] = ()
    left_out_bytes: int = 0
    queues: tuple[ArchivedQueue, ...] | None = None

    @property
    def rows(self) -> int:
        """Return the messages in all files."""
        return sum(file.rows for file in self.files)

    @property
    def bytes(self) -> int:
        """Return the bytes of all files."""
        return sum(file.bytes for file in self.files)


def path_of(topic: str, date: str, piece_start: int, piece_end: int, part: int) -> str:
    """Return the path of a file; the same for every attempt of a task."""
    # Quoted as Hive does, so that other readers see the topic's name.
    return f"topic={quote(topic, safe='')}/date={date}/{piece_start:020d}-{piece_end:020d}-{part}.parquet"


def path_of_queue(topic: str, date: str, broker: str, queue_id: int, start: int, end: int, run: int, part: int) -> str:
    """Return the path of a cluster's file; the same for every attempt of a task."""
    name = f"{quote(broker, safe='')}-{queue_id}-{start:020d}-{end:020d}-{run}-{part}"
    return f"topic={quote(topic, safe='')}/date={date}/{name}.parquet"


def queue_ends(runs: Sequence[Manifest]) -> dict[tuple[str, str, int], int] | None:
    """Return the next queue offset of each queue (broker, topic, queue id); None if a manifest lacks the queues."""
    ends: dict[tuple[str, str, int], int] = {}
    for manifest in runs:
        if manifest.queues is None:
            return None
        for queue in manifest.queues:
            key = (queue.broker, queue.topic, queue.queue_id)
            ends[key] = queue.end
    return ends


def last_places(runs: Sequence[Manifest]) -> dict[tuple[str, str, int], tuple[int, int]]:
    """Return the range of physical offsets, both inclusive, with the last archived message of each queue.

    Queues with messages that a run left out are not included.
    """
    places: dict[tuple[str, str, int], tuple[int, int]] = {}
    for manifest in runs:
        files: dict[tuple[str, str, int], list[ArchivedFile]] = {}
        for file in manifest.files:
            files.setdefault((file.broker, file.topic, file.queue_id), []).append(file)
        for queue in manifest.queues or ():
            key = (queue.broker, queue.topic, queue.queue_id)
            places.pop(key, None)
            mine = files.get(key, [])
            if manifest.store_id != CLUSTER:
                places[key] = 0, manifest.end - 1
            elif mine and sum(file.rows for file in mine) == queue.end - queue.start:
                last = max(file.max_physical_offset for file in mine)
                places[key] = last, last
    return places


def recreated_queues(
    access: Backend, ends: Mapping[tuple[str, str, int], int], places: Mapping[tuple[str, str, int], tuple[int, int]]
) -> list[tuple[str, str, int]]:
    """Return the queues of a broker whose last archived message has changed: the topic was deleted and created again.

    Args: ends: as of ``queue_ends``; places: as of ``last_places``.
    """
    recreated = []
    for key, end in ends.items():
        if key in places and end > 0:
            mark = access.message_mark(key[1], key[2], end - 1)
            if mark is not None and not places[key][0] <= mark[0] <= places[key][1]:
                recreated.append(key)
    return recreated


def merge_queues(parts: Iterable[ArchivedQueue]) -> tuple[ArchivedQueue, ...]:
    """Return the queues of several tasks, each once."""
    merged: dict[tuple[str, str, int], ArchivedQueue] = {}
    for part in parts:
        key = (part.broker, part.topic, part.queue_id)
        known = merged.get(key, part)
        merged[key] = ArchivedQueue(*key, min(part.start, known.start), max(part.end, known.end))
    return tuple(merged[key] for key in sorted(merged))


def manifests(archive: str) -> list[Manifest]:
    """Return all complete runs, oldest first; empty without an archive.

    Raises: CorruptFile for a damaged or missing manifest, or a start other than the previous end.
    """
    folder = os.path.join(archive, _FOLDER)
    if not os.path.isdir(folder):
        return []
    runs: list[Manifest] = []
    for name in sorted(filter(_NAME.fullmatch, os.listdir(folder))):
        path = os.path.join(folder, name)
        manifest = _load(path)
        if manifest.number != len(runs) + 1 or f"{manifest.number:08d}.json" != name:
            raise CorruptFile(
                "a manifest is not in its place", path=path, expected=len(runs) + 1, found=manifest.number
            )
        if runs and manifest.start < runs[-1].end:
            raise CorruptFile("a manifest repeats a part of the log", path=path, expected=runs[-1].end, found=name)
        runs.append(manifest)
    return runs


def _load(path: str) -> Manifest:
    value = read_json(path)
    if value.get("version") != _VERSION:
        raise CorruptFile("a manifest of another version", path=path, expected=_VERSION, found=value.get("version"))
    value.pop("version")
    try:
        files = tuple(ArchivedFile(**file) for file in value.pop("files"))
        topics = value.pop("topics")
        left_out = tuple(
            DamagedFile(file["path"], file["count"], tuple((int(at), str(why)) for at, why in file["places"]))
            for file in value.pop("left_out", ())  # not in manifests of the first release
        )
        queues = value.pop("queues", None)
        archived = None if queues is None else tuple(ArchivedQueue(**queue) for queue in queues)
        topics = None if topics is None else tuple(topics)
        return Manifest(files=files, topics=topics, left_out=left_out, queues=archived, **value)
    except (TypeError, KeyError, ValueError) as error:
        raise CorruptFile("a manifest is not as it was written", path=path, found=str(error)) from None


def save(archive: str, manifest: Manifest) -> None:
    """Write a manifest, which adds the run's files to the archive; durable on return. Only inside ``only_run``."""
    value: dict[str, Any] = {"version": _VERSION, **asdict(manifest)}
    write_json(os.path.join(archive, _FOLDER, f"{manifest.number:08d}.json"), value)


@contextmanager
def only_run(archive: str) -> Iterator[list[Manifest]]:
    """Run the block as the only run in the archive, with the earlier manifests.

    Removes the files of an unfinished run first.
    Raises: StoreLocked, CorruptFile, UsageError for a directory with other content.
    """
    folder = os.path.join(archive, _FOLDER)
    if os.path.isdir(archive) and os.listdir(archive) and not os.path.isdir(folder):
        raise UsageError(f"{archive}: expected an archive or an empty directory, found {os.listdir(archive)[0]}")
    make_directory(folder)
    note = os.path.join(folder, "running.json")
    with locked(os.path.join(folder, "lock"), f"archive {archive}"):
        done = manifests(archive)
        if os.path.exists(note):
            _sweep(archive, done)
        write_json(note, {"pid": os.getpid()})
        yield done
        os.unlink(note)


def _sweep(archive: str, done: Sequence[Manifest]) -> None:
    known = {file.path for manifest in done for file in manifest.files}
    for directory, _, names in os.walk(archive):
        for name in names:
            path = os.path.join(directory, name)
            unnamed = name.endswith(".parquet") and os.path.relpath(path, archive) not in known
            if unnamed or name.endswith(".tmp"):
                with suppress(FileNotFoundError):
                    os.unlink(path)


FileGroup = tuple[ArchivedFile, ...]
"""The files of one task of the archive."""


def batches_of(runs: Sequence[Manifest], topics: tuple[str, ...] | None, batch_bytes: int) -> list[list[FileGroup]]:
    """Return batches of pieces in log order.

    A longer archive has the same first batches, so a batch number means the same rows in every run.
    """
    batches: list[list[FileGroup]] = []
    for manifest in runs:
        pieces: dict[int, list[ArchivedFile]] = {}
        for file in manifest.files:
            if topics is None or file.topic in topics:
                pieces.setdefault(file.piece_start, []).append(file)
        filled = batch_bytes
        for start in sorted(pieces):
            size = sum(file.bytes for file in pieces[start])
            if filled + size > batch_bytes:
                batches.append([])
                filled = 0
            batches[-1].append(tuple(pieces[start]))
            filled += size
    return batches
