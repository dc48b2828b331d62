"""A stream that reads an archive first and then continues with the live source: ``startingFrom=archive:PATH``.

The manifests of the archive hold the end offset of each queue; the live stream begins at exactly these offsets. An
offset of the stream is

    {"archive": {"files": 3, "manifests": 2, "of": 9, "which": 17}, "from": {...}, "live": {...}, "version": 2}

``files`` of the ``of`` selected files of the first ``manifests`` runs are read; ``which`` is the checksum of the file
names. ``live`` is an offset of the live stream, constant until all files are read. ``from`` is the start of the first
live batch. A batch has either files or live messages. Files of later runs are not read: those messages are live.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from mqfast.errors import ConfigError, DataLoss, UsageError
from mqfast.spark.archive_manifest import ArchivedFile, Manifest, last_places, recreated_queues
from mqfast.spark.archived_rows import (
    ArchivePartition,
    archive_ends,
    archive_of,
    check_archive,
    read_archived,
    wanted_files,
)
from mqfast.spark.backends import open_backend, stores_of
from mqfast.spark.durable_files import read_json, write_json
from mqfast.spark.offsets import ARCHIVE_KEY, VERSION, Spark
from mqfast.spark.options import Bound, Options
from mqfast.spark.partitions import ScanPartition, freeze_loaded, read_part
from mqfast.spark.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["StreamFromArchive"]

_KEY: Final = ARCHIVE_KEY
_STATE: Final = "handover.json"
# A Parquet file takes a fifth to a ninth of the archived log.
_RATIO: Final = 4
_log = logging.getLogger("mqfast.spark")


@dataclass(frozen=True)
class _Place:
    """A decoded offset; ``live_start``: start of the first live batch, None before and after that batch."""

    manifests: int
    files: int
    of: int
    which: int
    live: Spark
    live_start: Spark | None = None
    moved: bool = False

    def encode(self) -> Spark:
        done = {"files": self.files, "manifests": self.manifests, "of": self.of, "which": self.which}
        json_object: Spark = {_KEY: done}
        if self.live_start is not None:
            json_object["from"] = self.live_start
        json_object["live"] = self.live
        if self.moved:
            json_object["moved"] = True
        json_object["version"] = VERSION
        return json_object


def _decode(offset: Spark) -> _Place:
    try:
        archive: dict[str, int] = offset[_KEY]
        return _Place(
            archive["manifests"], archive["files"], archive["of"], archive["which"], offset["live"],
            offset.get("from"), offset.get("moved", False),
        )  # fmt: skip
    except (KeyError, TypeError):
        raise UsageError(
            f"offset of a stream with startingFrom: expected {_KEY!r}, found {sorted(offset)!r:.80}; a checkpoint that "
            "began without startingFrom goes on without it"
        ) from None


def _which(files: Iterable[ArchivedFile]) -> int:
    return zlib.crc32("\n".join(file.path for file in files).encode())


def _check(options: Options) -> None:
    """Raise ConfigError for options that exclude startingFrom."""
    given = {
        "startingOffsets": options.starting_offsets, "startingTimestamp": options.starting_timestamp,
        "startingOffsetsByTimestamp": options.starting_offsets_by_timestamp, "paths": options.paths,
        "sqlFilter": options.sql_filter,
    }  # fmt: skip
    for name, value in given.items():
        if value is not None:
            raise ConfigError(f"options startingFrom and {name}: expected one of them")
    if options.order == "commitlog":
        raise ConfigError("options startingFrom and order: a stream from an archive goes along the queues")


def starting_at(options: Options, ends: Mapping[tuple[str, str, int], int]) -> Options:
    """Return the options of the live stream: each queue from the archive's end, others from the first message.

    Raises: ConfigError for the archive of other brokers than those to read.
    """
    by_store: dict[str, dict[tuple[str, int], int | str]] = {}
    for (broker, topic, queue_id), end in ends.items():
        by_store.setdefault(broker, {})[topic, queue_id] = end
    live = dataclasses.replace(options, starting_from=None, state_dir=None)

    def bound(offsets: dict[tuple[str, int], int | str]) -> Bound:
        return Bound(by_queue=offsets, others="earliest", of_archive=True)

    if options.namesrv is None:
        brokers = sorted(set(by_store) - {""})
        if brokers:
            raise ConfigError(
                f"option startingFrom: expected the archive of a store, found one of the brokers {', '.join(brokers)}"
            )
        return dataclasses.replace(live, starting_offsets=bound(by_store.get("", {})))
    if "" in by_store:
        names = [name for name, _ in stores_of(live)]
        if len(names) != 1:
            raise ConfigError(
                "option startingFrom: the archive of a store does not tell of which broker it is; name that one in the "
                f"option brokers, out of {', '.join(names)}"
            )
        by_store = {names[0]: by_store[""]}
    bounds = {name: bound(offsets) for name, offsets in by_store.items()}
    return dataclasses.replace(live, starting_offsets=Bound(word="earliest", by_store=bounds))


class StreamFromArchive(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """An archive, then a live stream. Raises: ConfigError, UsageError, CorruptFile.

    Args: live_of: creates the reader of the live stream.
    """

    def __init__(self, options: Options, columns: tuple[Column, ...], live_of: Callable[[Options], Any]) -> None:
        assert options.starting_from is not None
        _check(options)
        self.options: Final = options
        self.columns: Final = columns
        self._archive: Final = archive_of(options.starting_from)
        self._live_of: Final = live_of
        self._live: Any = None
        self._first: Spark | None = None
        self._place: _Place | None = None  # of the last offset passed to latestOffset
        self._known: list[Manifest] = []

    # --- first offset ---

    def _manifests(self, number: int | None = None) -> list[Manifest]:
        """Return the first ``number`` runs of the archive, all for None. Raises: UsageError for fewer runs."""
        if len(self._known) < (number or 1):
            self._known = check_archive(self._archive, self.options)
        if number is not None and len(self._known) < number:
            raise UsageError(
                f"{self._archive}: expected the {number} runs that the stream began with, found {len(self._known)}: "
                "another archive, or one that was set back"
            )
        return self._known if number is None else self._known[:number]

    def _reader(self) -> Any:
        """Return the live stream, which begins after the archive."""
        if self._live is None:
            ends = archive_ends(self._archive, self._manifests(), self.options)
            self._live = self._live_of(starting_at(self.options, ends))
        return self._live

    def _begin(self) -> Spark:
        """Return the first offset of the live stream. Raises: DataLoss, also for recreated topics."""
        self.stop()
        runs = self._manifests()
        ends = archive_ends(self._archive, runs, self.options)
        live = starting_at(self.options, ends)
        places = last_places(runs)
        for name, given in stores_of(live, begins=True):
            of_store = {key: end for key, end in ends.items() if key[0] in ("", name)}
            with closing(open_backend(given)) as access:
                for key in recreated_queues(access, of_store, places):
                    what = f"{self._archive}: message {ends[key] - 1} of queue {key[1]}/{key[2]} is another one now"
                    if self.options.fail_on_data_loss:
                        raise DataLoss(
                            f"{what}: its topic was made again; failOnDataLoss=false reads it from its first message"
                        )
                    _log.warning("%s: its topic was made again, and is read from its first message", what)
                    del ends[key]
        self._live = self._live_of(starting_at(self.options, ends))
        first: Spark = self._live.initialOffset()
        return first

    def initialOffset(self) -> Spark:
        """Return the offset before the first file. Spark calls this more than once: see StreamReader.initialOffset."""
        if self._first is None:
            state = self.options.state_dir
            path = os.path.join(state, _STATE) if state is not None else None
            if path is not None and os.path.exists(path):
                self._first = read_json(path)
                _decode(self._first)
            else:
                runs = self._manifests()
                live = self._begin()
                files = wanted_files(runs, self.options)
                self._first = _Place(len(runs), 0, len(files), _which(files), live).encode()
                if path is not None:
                    write_json(path, self._first)
        self._place = self._place or _decode(self._first)
        return self._first

    # --- end of a batch ---

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of the live stream."""
        limit: ReadLimit = self._reader().getDefaultReadLimit()
        return limit

    def prepareForTriggerAvailableNow(self) -> None:
        """End this run at the present end of the live source."""
        self._reader().prepareForTriggerAvailableNow()

    def reportLatestOffset(self) -> Spark | None:
        """Return the end of the live source, for the lag in the query's progress."""
        live = self._reader().reportLatestOffset()
        if live is None or self._place is None:
            return None
        place = self._place
        return dataclasses.replace(place, files=place.of, live=live, moved=True).encode()

    def latestOffset(self, start: Spark, limit: ReadLimit) -> Spark:
        """Return the end of the next batch; ``start`` if there is no new batch. Raises: as
        StreamReader.latestOffset.
        """
        place = self._place = _decode(start)
        if place.files < place.of:
            files = self._files(place)
            return dataclasses.replace(place, files=self._cut(files, place.files, limit)).encode()
        live: Spark = self._reader().latestOffset(place.live, limit)
        if live == place.live:
            return start
        live_start = None if place.moved else place.live
        return dataclasses.replace(place, live=live, live_start=live_start, moved=True).encode()

    def _files(self, place: _Place) -> list[ArchivedFile]:
        """Return all files of the archive's part. Raises: UsageError if the files differ from those that the offset
        counts.
        """
        files = wanted_files(self._manifests(place.manifests), self.options)
        if _which(files) != place.which:
            raise UsageError(
                f"{self._archive}: expected the {place.of} files that the stream began with, found {len(files)}, or "
                "others: while a stream is in its archive it goes on with the topics that it began with"
            )
        return files

    def _cut(self, files: list[ArchivedFile], first: int, limit: ReadLimit) -> int:
        """Return the number after the last file of a batch: as many files as the limits allow, at least one."""
        rows, size = self.options.max_offsets_per_trigger, self.options.max_bytes_per_trigger
        if isinstance(limit, ReadMaxRows):
            rows = limit.max_rows
        if isinstance(limit, ReadMaxBytes):
            size = limit.max_bytes
        if isinstance(limit, ReadAllAvailable):
            rows = size = None
        taken = taken_bytes = 0
        for number in range(first, len(files)):
            taken += files[number].rows
            taken_bytes += files[number].bytes * _RATIO
            over = (rows is not None and taken > rows) or (size is not None and taken_bytes > size)
            if over and number > first:
                return number
        return len(files)

    # --- partitions of a batch ---

    def partitions(self, start: Spark, end: Spark) -> list[InputPartition]:
        """Return the partitions of a batch. Raises: DataLoss, UsageError."""
        since, until = _decode(start), _decode(end)
        if not until.moved:
            return list(self._parts(self._files(until)[since.files : until.files]))
        partitions: list[InputPartition] = self._reader().partitions(until.live_start or since.live, until.live)
        return partitions

    def _parts(self, files: list[ArchivedFile]) -> Iterator[ArchivePartition]:
        """Yield groups of consecutive files, each of about partitionBytes of log."""
        group: list[ArchivedFile] = []
        size = 0
        for file in files:
            if group and size + file.bytes * _RATIO > self.options.partition_bytes:
                yield ArchivePartition(self._archive, tuple(group), self.options, self.columns)
                group, size = [], 0
            group.append(file)
            size += file.bytes * _RATIO
        if group:
            yield ArchivePartition(self._archive, tuple(group), self.options, self.columns)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition, in Arrow batches."""
        freeze_loaded()
        if isinstance(partition, ArchivePartition):
            yield from read_archived(partition)
        else:
            assert isinstance(partition, ScanPartition)
            yield from read_part(partition)

    # --- committed offsets ---

    def commit(self, end: Spark) -> None:
        """Commit ``end`` in the live source; see StreamReader.commit."""
        place = _decode(end)
        if place.moved:
            self._reader().commit(place.live)

    def stop(self) -> None:
        """Close the live source."""
        if self._live is not None:
            self._live.stop()
            self._live = None
