"""``mqfast broker --check-store DIR``: differences if this broker continues with the store of a Java broker.

Nothing is written, locked or started, since the Java broker may still run. Source: DefaultMessageStore.load,
BrokerController.initialize, for the files that they read.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.config import PROPERTY_OF_FIELD, StoreConfig
from mqfast.errors import ConfigError, CorruptFile, StoreNotFound
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.tables import ConfigTables
from mqfast.store.reader.store_reader import StoreReader
from mqfast.store.reader.timer_files import TimerFiles
from mqfast.util.java_text import java_trim

__all__ = ["MigrationFinding", "check_store"]

_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_HALF, _HALF_GROUP = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"
_REVIVE: Final = "rmq_sys_REVIVE_LOG_"
# Features with state in files that this broker does not read.
_FEATURES: Final = {
    "timerRocksDBEnable": "timed messages in RocksDB",
    "transRocksDBEnable": "half messages in RocksDB",
    "popConsumerKVServiceEnable": "popped messages in RocksDB",
    "indexRocksDBEnable": "the index in RocksDB",
    "enableControllerMode": "replicas by a controller",
    "enableSlaveActingMaster": "slaves that act as masters",
    "enableDLegerCommitLog": "the log of DLedger",
    "rocksdbCQDoubleWriteEnable": "queues in RocksDB as well",
    "useSingleRocksDBForAllConfigs": "tables in RocksDB",
}
_PATHS: Final = ("storePathCommitLog", "readOnlyCommitLogStorePaths", "storePathEpochFile", "storePathBrokerIdentity")
# Names under the store that only a Java broker reads.
_JAVA_ONLY: Final = {
    "config/topicQueueMapping.json": "static topics are not served",
    "config/timermetrics": "counts of timed messages begin anew",
    "compaction/compactionLog": "compacted topics are not served",
    "epochFileCheckpoint": "replicas by a controller are not served",
    "brokerIdentity": "replicas by a controller are not served",
}


class MigrationFinding(NamedTuple):
    """A finding. ``refuses``: the broker would not start, or would ignore messages."""

    text: str
    refuses: bool = False

    def __str__(self) -> str:
        return f"{'STOP ' if self.refuses else 'note '} {self.text}"


def check_store(directory: str | os.PathLike[str], config: BrokerConfig | None = None) -> list[MigrationFinding]:
    """Return all findings, the worst first.

    Args: config: the settings for the start of the broker, as in its broker.conf.
    Raises: StorageError, OSError for an unreadable file.
    """
    root = Path(directory)
    given = config or BrokerConfig()
    findings = list(_settings(given, root))
    try:
        settings = given.store_config()
    except ConfigError as error:
        return [MigrationFinding(str(error), True), *findings]
    if not root.is_dir():
        return [*findings, MigrationFinding(f"{root}: there is no store; the broker makes a new one")]
    if not settings.retention_rules.rocketmq:
        kept = "for ever" if settings.retention in (None, "never") else str(settings.retention)
        findings.append(
            MigrationFinding(f"messages are kept {kept}; a Java broker without other settings deletes files of 72 h")
        )
    findings += _other_engines(root)
    findings += _sizes(root, settings)
    findings += _java_only(root)
    if (root / "abort").exists():
        findings.append(
            MigrationFinding("abort: the last broker runs or was killed; the start recovers the store first")
        )
    try:
        with StoreReader(root, config=settings) as reader:
            findings += _waiting(root, reader, settings)
    except StoreNotFound:
        findings.append(MigrationFinding(f"{root}: there is no log; the broker makes a new one"))
    except CorruptFile as error:
        findings.append(MigrationFinding(f"{error}; mqfast store verify says more", True))
    findings.sort(key=lambda finding: not finding.refuses)
    return findings or [MigrationFinding(f"{root}: nothing differs")]


def _settings(config: BrokerConfig, root: Path) -> Iterator[MigrationFinding]:
    for name, feature in _FEATURES.items():
        text = config.store_keys.get(name, "") if name == "enableDLegerCommitLog" else str(config[name])
        if java_trim(text).lower() == "true":
            yield MigrationFinding(f"{name}=true: {feature}: not here", True)
    for name in _PATHS:
        path = config.store_keys.get(name, "") or (name not in PROPERTY_OF_FIELD.values() and str(config[name]))
        if path and not (name == "storePathCommitLog" and Path(path) == root / "commitlog"):
            yield MigrationFinding(f"{name}: another place than the store's own: {path}")


def _other_engines(root: Path) -> Iterator[MigrationFinding]:
    """Yield findings about directories with the files of RocksDB, at any place."""
    for folder, names, files in os.walk(root):
        depth = len(Path(folder).relative_to(root).parts)
        if depth >= 3 or Path(folder).name in ("commitlog", "consumequeue", "index"):
            names.clear()
        is_base = "CURRENT" in files and any(name.startswith("MANIFEST-") for name in files)
        # RocketMQ 5.5 always creates a base; without a table and with an empty log the base was never used.
        if is_base and any(name.endswith(".sst") or _is_log_in_use(Path(folder), name) for name in files):
            place = Path(folder).relative_to(root)
            users = place.parts[:1] == ("config",) and place.name in ("users", "acls")
            why = "make users and rules anew with mqadmin" if users else "this broker does not read it"
            yield MigrationFinding(f"{place}/: RocksDB: {why}", refuses=not users)
    for name in os.listdir(root):
        if name.startswith("dledger-"):
            yield MigrationFinding(f"{name}/: the log of DLedger: this broker does not read it", True)


def _is_log_in_use(folder: Path, name: str) -> bool:
    return name.endswith(".log") and name[:-4].isdigit() and (folder / name).stat().st_size > 0


def _sizes(root: Path, settings: StoreConfig) -> Iterator[MigrationFinding]:
    rows = (
        ("commitlog", "mappedFileSizeCommitLog", settings.mapped_file_bytes_commit_log),
        ("consumequeue", "mappedFileSizeConsumeQueue", settings.mapped_file_bytes_consume_queue),
        ("index", "maxHashSlotNum and maxIndexNum", 40 + 4 * settings.max_hash_slot_num + 20 * settings.max_index_num),
    )
    for folder, name, expected in rows:
        size = _first_size(root / folder)
        if size and size != expected:
            yield MigrationFinding(
                f"{folder}: files of {size} bytes, where {name} means {expected}: this broker keeps the size that it "
                f"finds, a Java broker needs it in its broker.conf"
            )


def _first_size(folder: Path) -> int:
    for where, names, files in os.walk(folder):
        names.sort()
        whole = sorted(name for name in files if name.isdigit())
        if whole:
            return (Path(where) / whole[0]).stat().st_size
    return 0


def _java_only(root: Path) -> Iterator[MigrationFinding]:
    for name, what in _JAVA_ONLY.items():
        path = root / name
        if name == "epochFileCheckpoint" and (root / "epochHistory").exists():
            continue  # written here
        if any(files for _, _, files in os.walk(path)) or (path.is_file() and not _is_empty(path)):
            yield MigrationFinding(f"{name}: {what}")


def _is_empty(path: Path) -> bool:
    """Return True if a table of Java has no entry, only its data version."""
    data = path.read_bytes()
    return not data.strip() or (
        data.count(b"{") <= 3 and b"[" not in data and b"queueId" not in data and b"\0" not in data
    )


def _waiting(root: Path, reader: StoreReader, settings: StoreConfig) -> Iterator[MigrationFinding]:
    tables = ConfigTables.load(root, settings)
    yield from (MigrationFinding(text) for text in tables.warnings)
    ranges = reader.queues()
    delayed = sum(
        max(0, queue.max_offset - max(queue.min_offset, tables.delays.get(queue.queue_id + 1)))
        for queue in ranges
        if queue.topic == _SCHEDULE
    )
    half = sum(
        max(0, queue.max_offset - max(queue.min_offset, tables.offsets.get(_HALF_GROUP, _HALF, queue.queue_id)))
        for queue in ranges
        if queue.topic == _HALF
    )
    popped = sum(queue.max_offset - queue.min_offset for queue in ranges if queue.topic.startswith(_REVIVE))
    parked = _parked(reader)
    for count, what in (
        (delayed, "delayed messages wait, and go on here"),
        (half, "half messages were not looked at yet, and go on here"),
        (parked, "timed messages are parked, and go on here"),
    ):
        if count:
            yield MigrationFinding(f"{count} {what}")
    if popped:
        yield MigrationFinding(f"{popped} records of POP: what was not acknowledged is redelivered here")
    yield from _key_value_store(root)


def _key_value_store(root: Path) -> Iterator[MigrationFinding]:
    if any(root.glob("kvStore/*.sst")) or any(root.glob("kvStore/*.log")):
        yield MigrationFinding(
            f"{root / 'kvStore'} has POP state in RocksDB: start the Java broker once more, move the state into "
            "messages (request 200056), stop it, and remove the folder",
            refuses=True,
        )


def _parked(reader: StoreReader) -> int:
    """Return the number of units of the timer log that are due after the time up to which the wheel was read."""
    path = Path(reader.paths.timer_check)
    if not path.is_file():
        return 0
    data = path.read_bytes()[:8]
    read_ms = struct.unpack(">q", data)[0] if len(data) == 8 else 0
    return sum(unit.due_ms > read_ms for unit in TimerFiles(OsApi(), reader.paths).walk([]))
