"""verify: checks whether a store is valid and reports each damage with its place. ``repair.py`` repairs a store.

Reads only, by pread and without a lock, so that a writer may run meanwhile. The units and entries that the records of
the log require are added up in C, and so are those that queues and index hold. Only where the sums differ, records and
units are compared one by one. Behind damage in the log ``boundaries.py`` gives the next record.
Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Final

from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, MqfastError, StorageError
from mqfast.message import LMQ_PREFIX, SysFlag
from mqfast.properties import index_entries, index_hash, index_key, index_keys, jhash, queue_pairs
from mqfast.store.base.os_api import REAL, OsApi
from mqfast.store.base.paths import (
    OffsetFile,
    StorePaths,
    list_index_files,
    list_offset_files,
    list_queues,
    queue_dir,
    root_of,
    usual_queue_bytes,
)
from mqfast.store.check.boundaries import REASONS, Damaged, Stretch, closes_file, gather_places, resume
from mqfast.store.check.kept import kept_folders
from mqfast.store.index.index_file import IndexFile
from mqfast.store.index.index_service import infer_index_sizes
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.meta.metadata import DelayOffsetTable, TopicConfigTable
from mqfast.store.meta.notes import StoreNotes, log_file_bytes
from mqfast.store.reader.bounds import check_is_store
from mqfast.store.reader.scan import ExtFiles, LogTally, LogWalk, PreadFile, RecordPositions, tally_index, tally_units
from mqfast.store.reader.timer_files import TimerFiles, TimerFinding
from mqfast.store.record.record import StoredMessage
from mqfast.util.deprecated import former_argument

__all__ = ["Damage", "LogFile", "Progress", "Report", "Severity", "Verifier", "run_verify", "store_paths", "verify"]

_UNIT_BYTES: Final = 20
_BATCH_UNIT_BYTES: Final = 46
_FILLER_SIZE: Final = 0x7FFFFFFF
# Findings of one kind in one queue or index; further findings are only counted.
_LISTED: Final = 20
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_MAP_WIDTH: Final = 64
# The files of config/ that a store or its broker reads.
_TABLES: Final = frozenset(
    f"{name}.json"
    for name in (
        "consumerFilter",
        "consumerOffset",
        "consumerOrderInfo",
        "delayOffset",
        "lmqConsumerOffset",
        "mqfast",
        "subscriptionGroup",
        "timermetrics",
        "topicQueueMapping",
        "topics",
    )
)

Progress = Callable[[int, int], None]
_Key = tuple[str, int]


class Severity(StrEnum):
    """NOTE: information, nothing is lost. RECOVERABLE: the state after a kill, which the next open repairs. DAMAGE:
    data is lost or would be lost, or files contradict each other."""

    NOTE = "note"
    RECOVERABLE = "recoverable"
    DAMAGE = "damage"


@dataclass(frozen=True)
class Damage:
    """One finding. ``offset``: physical offset in the log, byte of the file elsewhere, None for a whole file."""

    kind: str
    path: str
    offset: int | None
    expected: str
    found: str
    severity: Severity

    def __str__(self) -> str:
        at = "" if self.offset is None else f" at {self.offset}"
        return f"{self.severity:11} {self.kind:14} {self.path}{at}: expected {self.expected}, found {self.found}"


@dataclass
class Report:
    """The report of verify.

    ``counts``: number of files, records, units, entries and so on, and of findings of each kind (``findings`` has at
    most 20 of a kind per file). ``log_range``: first and last physical offset of whole records.
    """

    path: str
    dirty: bool = False
    damages: list[Damage] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    bytes_checked: int = 0
    seconds: float = 0.0
    log_range: tuple[int, int] = (0, 0)
    log_files: list[tuple[str, int, int, list[tuple[int, int]], int]] = field(default_factory=list)
    """Path, start, end, damaged ranges, end of data; all physical offsets."""

    @property
    def state(self) -> str:
        """``"clean"``, ``"recoverable"`` (the next open repairs the store) or ``"damaged"``."""
        severities = {damage.severity for damage in self.damages}
        if Severity.DAMAGE in severities:
            return "damaged"
        return "recoverable" if self.dirty or Severity.RECOVERABLE in severities else "clean"

    @property
    def ok(self) -> bool:
        """True if nothing is damaged: the store is clean, or recovery repairs the state that a killed writer left."""
        return self.state != "damaged"

    def to_json(self) -> str:
        """Return everything as one JSON object."""
        value = asdict(self)
        value.update(state=self.state, ok=self.ok, counts=dict(self.counts))
        return json.dumps(value, ensure_ascii=False)

    def damage_map(self) -> str:
        """Return the log as one line a file (``.`` whole, ``#`` damaged, blank: free), then the findings."""
        lines = []
        for path, start, end, bad, data_end in self.log_files:
            cells = ["." if start + (end - start) * i // _MAP_WIDTH < data_end else " " for i in range(_MAP_WIDTH)]
            for low, high in bad:
                first = (low - start) * _MAP_WIDTH // max(1, end - start)
                last = max(first, ((high - start) * _MAP_WIDTH - 1) // max(1, end - start))
                for i in range(first, min(last, _MAP_WIDTH - 1) + 1):
                    cells[i] = "#"
            lines.append(f"{os.path.basename(path)} |{''.join(cells)}|")
        return "\n".join([*lines, *map(str, self.damages)])

    def __str__(self) -> str:
        speed = self.bytes_checked / max(self.seconds, 1e-9) / 1e9
        head = f"{self.path}: {self.state}, {self.counts['records']} records, {self.bytes_checked} bytes in "
        return f"{head}{self.seconds:.2f} s ({speed:.2f} GB/s)\n{self.damage_map()}"


@dataclass
class LogFile:
    """The content of one log file."""

    file: OffsetFile
    end: int
    """End of the file within its expected size."""
    tally: LogTally
    file_bytes: int = 0
    stretches: list[Stretch] = field(default_factory=list)
    bad: list[Damaged] = field(default_factory=list)
    data_end: int = 0
    """Offset behind the last whole record, or the end of the file behind a blank."""
    closed: bool = False
    """True if a blank or a record ends at the end of the file."""
    notes: list[Damage] = field(default_factory=list)
    doubtful: bool = False
    """True if bytes behind damage look like a record and no boundary proves the record."""


class Verifier:
    """One run of ``verify``."""

    def __init__(self, os_api: OsApi, paths: StorePaths, config: StoreConfig | None, check_crc: bool) -> None:
        self.os_api = os_api
        self.paths = paths
        self.config = config
        self.check_crc = check_crc
        self.property_crc = config is not None and config.force_verify_prop_crc
        self.report = Report(paths.root)
        self.logs: list[LogFile] = []
        self.log_min = self.log_end = 0
        self.asked: dict[_Key, list[int]] = {}
        self.keys = self.key_sum = self.tags = self.tag_sum = 0
        self.max_timestamp = -1
        self.recent: PreadFile | None = None
        self.log_file_bytes = 0
        """Expected size of the log files, 0: unknown."""
        self.floors: dict[str, int] = {}
        self._places: RecordPositions | None = None
        self._places_lock = threading.Lock()

    # --- findings ----------------------------------------------------------------------------------------------------

    def add(
        self, kind: str, path: str, offset: int | None, expected: object, actual: object, severity: Severity
    ) -> None:
        self.report.counts[kind] += 1
        self.report.damages.append(Damage(kind, path, offset, str(expected), str(actual), severity))

    def unless_dirty(self) -> Severity:
        """Return RECOVERABLE for a store that a killed writer left, DAMAGE for a store that was closed in order."""
        return Severity.RECOVERABLE if self.report.dirty else Severity.DAMAGE

    def deletions(self) -> None:
        """Load the noted deletions: records of deleted topics require no units, as far as the log is still the same."""
        notes = StoreNotes.load(self.os_api, self.paths)
        if not notes.deletions:
            return
        files: list[OffsetFile] = []
        for directory in (*self.paths.commit_logs, *self.paths.read_only_commit_logs):
            files += list_offset_files(self.os_api, directory)[0]

        def record(offset: int) -> StoredMessage | None:
            file = max((file for file in files if file.start_offset <= offset), default=None)
            if file is None:
                return None
            message = PreadFile(self.os_api, file.path, file.start_offset).record(offset, check_body=False)
            return None if isinstance(message, str) else message

        if files:
            self.floors = notes.floors(record, min(files).start_offset)

    def kept(self) -> None:
        """Report the folders with records that recovery or repair took out of the log."""
        try:
            folders = kept_folders(self.os_api, self.paths.root)
        except (CorruptFile, StorageError) as error:
            self.add("kept", self.paths.root, None, "folders that can be read", error, Severity.NOTE)
            return
        for folder in folders:
            self.report.counts["kept records"] += folder.behind.records
            self.add("kept", folder.path, None, "nothing that was taken out of the log", folder, Severity.NOTE)

    # --- the log -----------------------------------------------------------------------------------------------------

    def log(self, threads: int, progress: Progress | None) -> None:
        files: list[OffsetFile] = []
        for directory in (*self.paths.commit_logs, *self.paths.read_only_commit_logs):
            numbered, others = list_offset_files(self.os_api, directory)
            files += numbered
            for name in others:
                self.add("log.name", os.path.join(directory, name), None, "20 digits", name, Severity.NOTE)
        files.sort()
        self.log_file_bytes = self._log_file_bytes(files)
        total = sum(self.os_api.file_size(file.path) for file in files)
        done = 0
        with contextlib.ExitStack() as stack:
            checked: Iterable[LogFile] = map(self._one_log, files)
            if min(threads, len(files)) > 1:
                checked = stack.enter_context(ThreadPoolExecutor(threads, "mqfast-verify")).map(self._one_log, files)
            for result in checked:
                self.logs.append(result)
                done += result.end - result.file.start_offset
                if progress is not None:
                    progress(done, total)
        self.report.bytes_checked += sum(log.data_end - log.file.start_offset for log in self.logs)
        self.report.counts["log files"] = len(files)
        self._join_logs()

    def _one_log(self, file: OffsetFile) -> LogFile:
        opened = self._open(file)
        result = LogFile(file, opened.end, LogTally(self.floors), data_end=file.start_offset)
        result.file_bytes = self.os_api.file_size(file.path)
        at = file.start_offset
        by_scan = False
        while True:
            walk = LogWalk(opened, at, self.check_crc, self.property_crc)
            before = result.tally.records
            stop = walk.tally(result.tally)
            if walk.at > at:
                result.stretches.append(Stretch(at, walk.at, result.tally.records - before, by_scan))
                result.data_end = walk.at
            at = walk.at
            if stop == "end" or (stop == "blank" and closes_file(opened, walk, self._known_places)):
                if stop == "end" or walk.size != opened.end - at:
                    actual = "none" if stop == "end" else f"{walk.size}"
                    rest_bytes = opened.end - at
                    result.notes.append(
                        Damage("log.blank", file.path, at, f"a blank of {rest_bytes} bytes", actual, Severity.NOTE)
                    )
                result.closed = True
                if not result.bad or result.data_end > result.bad[-1].start:
                    result.data_end = opened.end
                return result
            if stop == "zero" and opened.first_set_byte(at - file.start_offset) < 0:
                return result
            places = self._known_places()
            following, scanned, doubtful = resume(opened, at, stop, places)
            by_scan = scanned or (by_scan and places.size_at(following) == 0)
            result.doubtful |= doubtful
            reason = REASONS.get(stop, f"size {walk.size}, magic {walk.magic:#x}")
            result.bad.append(Damaged(at, following if following >= 0 else opened.end, reason))
            if following < 0:
                return result
            at = following

    def _open(self, file: OffsetFile) -> PreadFile:
        """Open a log file without the bytes behind its expected size."""
        return PreadFile(self.os_api, file.path, file.start_offset, self.log_file_bytes or -1)

    def _known_places(self) -> RecordPositions:
        """Return the record positions of all units. Loaded at the first damage only."""
        with self._places_lock:
            if self._places is None:
                self._places = gather_places(self.os_api, self.paths, 0)
            return self._places

    def _join_logs(self) -> None:
        report, logs = self.report, self.logs
        used = [log for log in logs if log.data_end > log.file.start_offset]
        last = used[-1] if used else None
        self.log_min = logs[0].file.start_offset if logs else 0
        self.log_end = last.data_end if last is not None else self.log_min
        report.log_range = (self.log_min, self.log_end)
        usual = self.log_file_bytes
        previous: LogFile | None = None
        newest = -1
        for log in logs:
            start, path = log.file.start_offset, log.file.path
            report.damages += log.notes
            report.counts.update(damage.kind for damage in log.notes)
            if usual == 0:
                self.add("log.size", path, None, "a size that settings, other files or the notes of the store name",
                         f"{log.file_bytes} bytes, which are no whole KiB", Severity.DAMAGE)  # fmt: skip
            elif log.file_bytes != usual:
                # A killed writer leaves a new file without its length.
                severity = self.unless_dirty() if log.end == start and log is logs[-1] else Severity.DAMAGE
                self.add("log.size", path, None, f"{usual} bytes", log.file_bytes, severity)
            if previous is not None and previous.end != start:
                self.add("log.gap", path, previous.end, f"a file that starts at {previous.end}", start, Severity.DAMAGE)
            if previous is not None and not previous.closed and log.tally.records and not previous.bad:
                actual = "nothing, and records in the next file"
                self.add(
                    "log.hole", previous.file.path, previous.data_end, "a record or a blank", actual, Severity.DAMAGE
                )
            for at, following, reason in log.bad:
                # A crash leaves damage at the end of the log, with no whole record behind it.
                tail = at >= self.log_end
                kind = "log.tail" if tail else "log.record"
                severity = self.unless_dirty() if tail else Severity.DAMAGE
                expected = "a whole record" if not tail else "a whole record or zeros"
                more = "" if tail else f"; {_what_follows(log, following)}"
                self.add(kind, path, at, expected, reason + more, severity)
            ranges = [(low, high) for low, high, _ in log.bad]
            report.log_files.append((path, start, log.end, ranges, log.data_end))
            self._add_tally(log.tally)
            if log.tally.backward_times or (log.tally.records and log.tally.first_timestamp < newest):
                at = log.tally.first_backward if log.tally.backward_times else start
                self.add("log.time", path, at, "store times that go up", "one that goes back", Severity.NOTE)
            newest = max(newest, log.tally.last_timestamp)
            previous = log
        self.max_timestamp = newest

    def _log_file_bytes(self, files: Sequence[OffsetFile]) -> int:
        config = self.config
        if config is not None and "mapped_file_bytes_commit_log" in config.explicit:
            return config.mapped_file_bytes_commit_log
        noted = StoreNotes.load(self.os_api, self.paths).log_file_bytes
        return log_file_bytes([(file.start_offset, self.os_api.file_size(file.path)) for file in files], noted)

    def _add_tally(self, tally: LogTally) -> None:
        self.report.counts["records"] += tally.records
        self.report.counts["body bytes"] += tally.body_bytes
        self.keys += tally.keys
        self.key_sum = (self.key_sum + tally.key_sum) & (2**64 - 1)
        self.tags += tally.tags
        self.tag_sum = (self.tag_sum + tally.tag_sum) & (2**64 - 1)
        for key, (count, digest, batch_digest, first, end, low, high, size) in tally.queues().items():
            known = self.asked.get(key)
            if known is None:
                self.asked[key] = [count, digest, batch_digest, first, end, low, high, size]
                continue
            known[0] += count
            known[1] = (known[1] + digest) & (2**64 - 1)
            known[2] = (known[2] + batch_digest) & (2**64 - 1)
            known[4] = max(known[4], end)
            known[5] = min(known[5], low)
            known[6] = max(known[6], high)
            known[7] += size

    def in_bad(self, physical: int) -> bool:
        """Return True if a physical offset is inside damage that was reported already."""
        return any(low <= physical < high for log in self.logs for low, high, _ in log.bad)

    def is_deleted(self, topic: str, end: int) -> bool:
        """Return True if the record that ends at ``end`` was deleted with its topic."""
        return end <= self.floors.get(topic, -1)

    def records(self) -> Iterator[StoredMessage]:
        """Yield every whole record, also behind damage."""
        for log in self.logs:
            opened = self._open(log.file)
            for stretch in log.stretches:
                walk = LogWalk(opened, stretch.start, self.check_crc, self.property_crc)
                stop: str | None = None
                while stop is None:
                    messages, stop = walk.batch(stretch.end)
                    yield from messages

    # --- queues ------------------------------------------------------------------------------------------------------

    def queues(self) -> None:
        paths, report = self.paths, self.report
        present: set[_Key] = set()
        suspects: dict[_Key, bool] = {}
        config = self.config or StoreConfig()
        kinds = (
            (paths.consume_queue, False, config.mapped_file_bytes_consume_queue),
            (paths.batch_consume_queue, True, config.mapped_file_bytes_batch_consume_queue),
        )
        for base, batch, configured in kinds:
            usual, _ = usual_queue_bytes(self.os_api, base, configured)
            for topic, queue_ids in list_queues(self.os_api, base).items():
                for queue_id in queue_ids:
                    present.add((topic, queue_id))
                    if not self._one_queue(topic, queue_id, queue_dir(base, topic, queue_id), batch, usual):
                        suspects[topic, queue_id] = batch
        if suspects:
            self._compare_queues(suspects)
        self._missing_queues(set(self.asked) - present)
        report.counts["queues"] = len(present)

    def _missing_queues(self, missing: Iterable[_Key]) -> None:
        topics: TopicConfigTable | None = None
        try:
            topics = TopicConfigTable.load(self.os_api, self.paths.topics)
        except MqfastError:
            pass  # reported with the other small files
        for topic, queue_id in sorted(missing):
            records = self.asked[topic, queue_id][0]
            severity = self.unless_dirty()
            if topic.startswith(LMQ_PREFIX) or (topics is not None and len(topics) and topic not in topics):
                # Light queues that are switched off, and deleted topics, leave records without queue.
                severity = Severity.NOTE
            path = queue_dir(self.paths.consume_queue, topic, queue_id)
            self.add("queue.none", path, None, f"a queue for {records} records", "none", severity)

    def _one_queue(self, topic: str, queue_id: int, directory: str, batch: bool, usual: int) -> bool:
        """Check the units of one queue. Returns: True if the sums agree with the log."""
        size = _BATCH_UNIT_BYTES if batch else _UNIT_BYTES
        report = self.report
        files = list_offset_files(self.os_api, directory)[0]
        resolver = None if batch else self._extension(topic, queue_id)
        state: tuple[int, ...] | None = None
        ended = False
        with_tags = topic != _SCHEDULE
        previous_end = -1
        for n, file in enumerate(files):
            opened = PreadFile(self.os_api, file.path, file.start_offset)
            report.bytes_checked += opened.bytes
            report.counts["queue files"] += 1
            if previous_end not in (-1, file.start_offset):
                self.add("queue.gap", file.path, None, f"a file that starts at {previous_end}", file.start_offset,
                         Severity.DAMAGE)  # fmt: skip
            if not batch and file.start_offset % size:
                self.add("queue.gap", file.path, None, f"a file that starts at a multiple of {size}", file.start_offset,
                         Severity.DAMAGE)  # fmt: skip
            previous_end = opened.end
            if opened.bytes not in (0, usual):
                self.add("queue.size", file.path, None, f"{usual} bytes, as most queues", opened.bytes,
                         Severity.DAMAGE)  # fmt: skip
            elif opened.bytes % size and not batch:
                self.add("queue.size", file.path, None, f"a multiple of {size} bytes", opened.bytes, Severity.DAMAGE)
            valid = opened.valid_units(0, size)
            whole = opened.bytes - opened.bytes % size
            if ended and valid:
                self.add(
                    "queue.hole", file.path, 0, "nothing behind the end", f"{valid // size} units", Severity.DAMAGE
                )
            elif valid < whole:
                ended = True
                behind = opened.first_set_byte(valid)
                if behind >= 0:
                    self.add("queue.hole", file.path, valid, "a unit, or nothing behind it", f"a byte set at {behind}",
                             self.unless_dirty() if n >= len(files) - 2 else Severity.DAMAGE)  # fmt: skip
            state = tally_units(opened, 0, valid, size, self.log_min, self.log_end, with_tags, resolver, state)
            if state[6] and state[7] >= file.start_offset:
                self.add("queue.order", file.path, state[7] - file.start_offset, "units in the order of the log",
                         f"{state[6]} that are not", Severity.DAMAGE)  # fmt: skip
                state = (*state[:6], 0, -1, *state[8:])
        units, fillers, removed, beyond, counted, digest = (*state[:4], state[8], state[9]) if state else (0,) * 6
        report.counts["units"] += units
        report.counts["fillers"] += fillers
        report.counts["units of removed records"] += removed
        if beyond:
            self.add("queue.beyond", directory, None, f"units below {self.log_end}", f"{beyond} beyond the log",
                     self.unless_dirty())  # fmt: skip
        asked = self.asked.get((topic, queue_id))
        wanted = (0, 0) if asked is None else (asked[0], asked[2 if batch else 1])
        return (counted, digest) == wanted

    def _extension(self, topic: str, queue_id: int) -> ExtFiles | None:
        ext_files = list_offset_files(self.os_api, queue_dir(self.paths.consume_queue_ext, topic, queue_id))[0]
        return ExtFiles([PreadFile(self.os_api, f.path, f.start_offset) for f in ext_files]) if ext_files else None

    def _compare_queues(self, suspects: dict[_Key, bool]) -> None:
        """Compare unit by unit the queues whose sums differ."""
        rows: dict[_Key, dict[int, tuple[int, int, int, int]]] = {key: {} for key in suspects}
        for message in self.records():
            for key, row in _units_of(message):
                if key in rows and not self.is_deleted(key[0], message.physical_offset + message.size):
                    rows[key][message.physical_offset] = row
        for (topic, queue_id), batch in suspects.items():
            self._compare_queue(topic, queue_id, batch, rows[topic, queue_id])

    def _compare_queue(
        self, topic: str, queue_id: int, batch: bool, rows: dict[int, tuple[int, int, int, int]]
    ) -> None:
        directory = queue_dir(self.paths.batch_consume_queue if batch else self.paths.consume_queue, topic, queue_id)
        size = _BATCH_UNIT_BYTES if batch else _UNIT_BYTES
        resolver = None if batch else self._extension(topic, queue_id)
        last = -1
        listed: Counter[str] = Counter()

        def note(kind: str, path: str, at: int | None, expected: object, actual: object, severity: Severity) -> None:
            listed[kind] += 1
            if listed[kind] <= _LISTED:
                self.add(kind, path, at, expected, actual, severity)
            else:
                self.report.counts[kind] += 1

        for file in list_offset_files(self.os_api, directory)[0]:
            opened = PreadFile(self.os_api, file.path, file.start_offset)
            valid = opened.valid_units(0, size)
            for position in range(0, valid, size * 3276):
                data = opened.read(position, min(size * 3276, valid - position))
                for i in range(0, len(data), size):
                    at = position + i
                    physical, length, tags = _three(data, i)
                    base = _number(data, i + 28) if batch else (file.start_offset + at) // size
                    if (physical == 0 and length == _FILLER_SIZE) or physical < self.log_min:
                        continue
                    last = max(last, physical)
                    row = rows.pop(physical, None)
                    if row is None:
                        if self.is_deleted(topic, physical + length):  # restored by RocketMQ
                            note("queue.deleted", file.path, at, f"no message up to {self.floors[topic]}: the topic was"
                                 " deleted there", f"one at {physical}", Severity.NOTE)  # fmt: skip
                        elif physical + length <= self.log_end and not self.in_bad(physical):
                            note("queue.unit", file.path, at, f"a record of {topic}/{queue_id} at {physical}",
                                 "none, or one that an earlier unit has", Severity.DAMAGE)  # fmt: skip
                        continue
                    if row[0] != length:
                        note("queue.unit", file.path, at, f"size {row[0]} of the record at {physical}", length,
                             Severity.DAMAGE)  # fmt: skip
                    elif row[1] != (tags if resolver is None else resolver.tags_code(tags)) and topic != _SCHEDULE:
                        note("queue.unit", file.path, at, f"tags code {row[1]} of the record at {physical}", tags,
                             Severity.DAMAGE)  # fmt: skip
                    elif row[2] != base:
                        # RocketMQ serves by the position in the queue, whatever the record says.
                        note("queue.offset", file.path, at, f"queue offset {row[2]} of the record at {physical}", base,
                             Severity.NOTE)  # fmt: skip
        behind = sorted(physical for physical in rows if physical > last)
        if behind:
            note("queue.behind", directory, None, f"units for records from {behind[0]} on", f"{len(behind)} missing",
                 self.unless_dirty())  # fmt: skip
        for physical in sorted(set(rows).difference(behind)):
            note("queue.missing", directory, None, f"a unit for the record at {physical}", "none", Severity.DAMAGE)

    # --- the index ---------------------------------------------------------------------------------------------------

    def index(self) -> None:
        report, directory = self.report, self.paths.index
        names, others = list_index_files(self.os_api, directory)
        for name in others:
            self.add("index.name", os.path.join(directory, name), None, "yyyyMMddHHmmssSSS", name, Severity.NOTE)
        names = [name for name in names if self.os_api.file_size(os.path.join(directory, name))]
        if not names:
            if self.keys:
                self.add("index.none", directory, None, f"entries for {self.keys} keys", "no file",
                         Severity.RECOVERABLE if report.dirty else Severity.NOTE)  # fmt: skip
            return
        config = self.config
        try:
            known = (config.max_hash_slot_num, config.max_index_num) if config is not None else (None, None)
            sizes = infer_index_sizes(self.os_api, directory, *known)
        except CorruptFile as error:
            if any(self._entries(name) for name in names):
                self.add(
                    "index.file", error.path or directory, error.offset, error.expected, error.found, Severity.DAMAGE
                )
            elif self.keys:
                severity = Severity.RECOVERABLE if report.dirty else Severity.NOTE
                self.add("index.missing", directory, None, f"entries for {self.keys} keys", "none", severity)
            report.counts["index files"] += len(names)
            return
        if sizes is None:
            return
        counted = total = 0
        sound = True
        for name in names:
            path = os.path.join(directory, name)
            # Recovery rebuilds the newest file in any case.
            severity = self.unless_dirty() if name == names[-1] else Severity.DAMAGE
            try:
                opened = PreadFile(self.os_api, path)
                if opened.bytes != (whole := 40 + 4 * sizes[0] + 20 * sizes[1]):
                    # No open uses or rebuilds this file.
                    self.add("index.file", path, None, f"{whole} bytes", opened.bytes, Severity.DAMAGE)
                    sound = False
                    continue
                entries, n, digest, wrong, wrong_at, slots, slot_at, beyond = tally_index(
                    opened, *sizes, self.log_min, self.log_end
                )
            except CorruptFile as error:
                self.add("index.file", path, error.offset, error.expected, error.found, severity)
                sound = False
                continue
            report.bytes_checked += opened.bytes
            report.counts["index files"] += 1
            report.counts["index entries"] += entries
            if wrong:
                self.add("index.chain", path, wrong_at, "entries chained by their slot", f"{wrong} wrong", severity)
            if slots:
                self.add("index.slot", path, slot_at, "slots that name their newest entry", f"{slots} wrong", severity)
            if beyond:
                self.add("index.beyond", path, None, f"entries below {self.log_end}", f"{beyond} beyond the log",
                         self.unless_dirty())  # fmt: skip
            counted += n
            total = (total + digest) & (2**64 - 1)
        # Releases before 5.5 write no entries for tags, so a valid index may lack them.
        keys, both = (self.keys, self.key_sum), (self.keys + self.tags, (self.key_sum + self.tag_sum) & (2**64 - 1))
        if sound and (counted, total) not in (keys, both):
            self._compare_index(names, sizes)

    def _entries(self, name: str) -> int:
        """Return the number of entries in the header of an index file."""
        head = PreadFile(self.os_api, os.path.join(self.paths.index, name)).read(0, 40, False)
        return _number(head, 36, 4) - 1 if _number(head, 36, 4) > 0 else 0

    def _compare_index(self, names: Sequence[str], sizes: tuple[int, int]) -> None:
        """Compare the index entry by entry."""
        wanted: set[tuple[int, int]] = set()
        known: set[tuple[int, int]] = set()
        for message in self.records():
            if message.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK:
                topic, physical = message.topic, message.physical_offset
                for key in index_keys(message.properties):
                    wanted.add((index_hash(index_key(topic, key)), physical))
                for key in index_entries(message.properties):
                    known.add((index_hash(index_key(topic, key)), physical))
        missing = set(wanted)
        listed = 0
        for name in names:
            path = os.path.join(self.paths.index, name)
            file = IndexFile.open(self.os_api, path, *sizes, writable=False)
            try:
                for number, key_hash, physical, _, _ in file.entries():
                    entry = (key_hash, physical)
                    missing.discard(entry)
                    # A record at the boundary of two runs may be there twice.
                    if entry in known or not self.log_min <= physical < self.log_end or self.in_bad(physical):
                        continue
                    listed += 1
                    if listed <= _LISTED:
                        at = 40 + 4 * sizes[0] + 20 * number
                        self.add("index.entry", path, at,
                                 f"a record at {physical} with a key or tags of hash {key_hash}", "none",
                                 self.unless_dirty() if name == names[-1] else Severity.DAMAGE)  # fmt: skip
                    else:
                        self.report.counts["index.entry"] += 1
            finally:
                file.close()
        if missing:
            # RocketMQ itself loses keys of older records when it recovers from a crash.
            self.add("index.missing", self.paths.index, None, f"entries for {len(wanted)} keys",
                     f"{len(missing)} missing, the first of the record at {min(p for _, p in missing)}",
                     Severity.RECOVERABLE if self.report.dirty else Severity.NOTE)  # fmt: skip

    # --- timer files -------------------------------------------------------------------------------------------------

    def timer(self) -> None:
        files = TimerFiles(self.os_api, self.paths)
        weights = {"note": Severity.NOTE, "tail": self.unless_dirty(), "damage": Severity.DAMAGE}
        try:
            findings = files.check(self._record, self.log_min, self.log_end)
        except (CorruptFile, StorageError) as error:
            findings = [
                TimerFinding("timer.file", self.paths.timer_log, None, "files that can be read", error, "damage")
            ]
        for kind, path, offset, expected, what, weight in findings:
            self.add(kind, path, offset, expected, what, weights[weight])
        self.report.counts["timer units"] += files.units
        self.report.counts["timer slots"] += files.slots

    def _record(self, physical_offset: int, size: int) -> StoredMessage | str:
        """Return the record at an offset of the log, or the reason why there is none."""
        opened = self.recent
        if opened is None or not opened.start <= physical_offset < opened.end:
            log = next((log for log in self.logs if log.file.start_offset <= physical_offset < log.end), None)
            if log is None:
                return "none"
            opened = self.recent = PreadFile(self.os_api, log.file.path, log.file.start_offset)
        return opened.record(physical_offset, size, -1, False)

    # --- small files -------------------------------------------------------------------------------------------------

    def small_files(self) -> None:
        paths, report = self.paths, self.report
        checkpoint = StoreCheckpoint.load(self.os_api, paths.checkpoint)
        for text in checkpoint.warnings:
            self.add("checkpoint", paths.checkpoint, None, "six numbers in 4096 bytes", text, Severity.DAMAGE)
        if not self.os_api.exists(paths.checkpoint) and report.counts["records"] and not report.dirty:
            self.add("checkpoint", paths.checkpoint, None, "a file", "none", Severity.NOTE)
        claimed = checkpoint.physic_msg_timestamp
        if report.counts["records"] and claimed > self.max_timestamp and not report.counts["log.time"]:
            self.add("checkpoint", paths.checkpoint, 0, f"a flush up to {self.max_timestamp} or earlier", claimed,
                     self.unless_dirty())  # fmt: skip
        for name in self.os_api.listdir(paths.config):
            if not name.endswith(".json"):
                continue
            path = os.path.join(paths.config, name)
            report.counts["config files"] += 1
            try:
                file = ConfigFile(self.os_api, path)
                file.load()
            except (CorruptFile, StorageError) as error:
                # a foreign file is no part of the store
                severity = Severity.DAMAGE if name in _TABLES else Severity.NOTE
                self.add("config", path, getattr(error, "offset", None), "JSON", error, severity)
                continue
            for text in file.warnings:
                severity = Severity.RECOVERABLE if name in _TABLES else Severity.NOTE
                self.add("config", path, None, "JSON", text, severity)
        self._delay_offsets()

    def _delay_offsets(self) -> None:
        """Check that the delivered offset of each delay level is within the level's queue."""
        path = self.paths.delay_offset
        try:
            table = DelayOffsetTable.load(self.os_api, path)
        except (CorruptFile, StorageError) as error:
            if all(damage.path != path for damage in self.report.damages):  # valid JSON, but not this table
                self.add("config", path, None, "offsets by level", error, Severity.DAMAGE)
            return
        for level, offset in sorted(table.offsets().items()):
            asked = self.asked.get((_SCHEDULE, level - 1))
            if asked is None and self.log_min > 0:
                continue  # its records may have been deleted with the start of the log
            end = 0 if asked is None else asked[6]
            if offset > end:
                # The broker corrects the offset when it loads the file.
                self.add("config.delay", path, None, f"at most {end} of level {level}", offset, Severity.NOTE)


def _what_follows(log: LogFile, following: int) -> str:
    """Describe the records behind damage."""
    stretch = next((stretch for stretch in log.stretches if stretch.start >= following), None)
    if stretch is None:
        return "whole records go on in a later file"
    return f"whole records go on at {stretch.start}" + (", found by a scan" if stretch.by_scan else "")


def _number(data: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(data[at : at + size], "big", signed=True)


def _three(data: bytes, at: int) -> tuple[int, int, int]:
    return _number(data, at), _number(data, at + 8, 4), _number(data, at + 12)


def _integer(text: str | None, otherwise: int) -> int:
    try:
        return int(text) if text is not None else otherwise
    except ValueError:
        return otherwise


def _units_of(message: StoredMessage) -> Iterator[tuple[_Key, tuple[int, int, int, int]]]:
    """Yield the units that a record requires: queue, and (size, tags code, queue offset, messages)."""
    if not SysFlag.is_queued(message.sys_flag):
        return
    properties = message.properties
    tags = properties.get("TAGS")
    code = jhash(tags) if tags else 0
    base, count = message.record_queue_offset, 1
    if message.sys_flag & SysFlag.INNER_BATCH:
        base, count = _integer(properties.get("INNER_BASE"), base), _integer(properties.get("INNER_NUM"), count)
    yield (message.topic, message.queue_id), (message.size, code, base, count)
    for name, queue_id, offset in queue_pairs(properties, message.queue_id):
        place = _integer(offset or None, -1)
        if place >= 0 and "/" not in name:
            yield (name, queue_id), (message.size, code, place, 1)


def store_paths(os_api: OsApi, path: str | os.PathLike[str], config: StoreConfig | None) -> StorePaths:
    dirs = config.commit_log_dirs if config is not None else ()
    paths = StorePaths(root_of(path, os_api), dirs, config.read_only_commit_log_dirs if config is not None else ())
    check_is_store(os_api, paths)
    return paths


def run_verify(
    os_api: OsApi,
    paths: StorePaths,
    config: StoreConfig | None,
    check_crc: bool,
    progress: Progress | None,
    threads: int,
) -> Verifier:
    begun = time.perf_counter()
    run = Verifier(os_api, paths, config, check_crc)
    run.report.dirty = os_api.exists(paths.abort)
    run.deletions()
    run.log(threads, progress)
    run.queues()
    run.index()
    run.timer()
    run.small_files()
    run.kept()
    order = list(Severity)
    run.report.damages.sort(key=lambda damage: -order.index(damage.severity))
    run.report.seconds = time.perf_counter() - begun
    return run


@former_argument("door", "os_api")
def verify(
    path: str | os.PathLike[str],
    *,
    check_crc: bool = True,
    progress: Progress | None = None,
    threads: int = 2,
    config: StoreConfig | None = None,
    os_api: OsApi | None = None,
) -> Report:
    """Check a whole store: log, queues, index, checkpoint, JSON and timer files, each alone and against the log.

    Args: progress: called with (log bytes done, all log bytes) after each file. config: log directories, index sizes
        and ``force_verify_prop_crc``, used where the files do not tell them. threads: number of threads.
    Not checked: fields without a copy elsewhere (flag, hosts, born time), and the delivery times in the units of
    SCHEDULE_TOPIC_XXXX, which depend on the broker's delay levels.
    Raises: StoreNotFound, StorageError. Damage is reported, never raised; a log or queue file that shrinks meanwhile
        raises CorruptFile.
    Thread: starts ``threads`` of its own and ends them. GIL: released while the log is read.
    """
    used = os_api if os_api is not None else REAL
    return run_verify(used, store_paths(used, path, config), config, check_crc, progress, threads).report
