"""Settings of a store: one typed, documented table for RocketMQ's property names and for ours.

Every setting is one field of ``StoreConfig``, declared with RocketMQ's name, the unit and the allowed range. Nothing
else in the project maps one name to the other. A ``broker.conf`` is read through the table of OS calls that the caller
gives.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol

from mqfast.errors import ConfigError, MessageIllegal
from mqfast.message import parse_host
from mqfast.retention_rules import RetentionRules, parse_retention
from mqfast.settings.broker_conf import read_conf
from mqfast.settings.declaration import check_setting, setting, specs_of
from mqfast.settings.rocketmq_names import KNOWN_TO_ROCKETMQ
from mqfast.util.deprecated import former_argument
from mqfast.util.java_text import I32_MAX, I64_MAX, java_number, java_trim
from mqfast.util.near_names import did_you_mean
from mqfast.util.property_file import decode_conf, parse_properties

if TYPE_CHECKING:
    from typing import Unpack

    from mqfast.settings import StoreSettings

__all__ = ["DOCUMENTED_FIELDS", "FIELD_OF_PROPERTY", "PROPERTY_OF_FIELD", "Setting", "StoreConfig", "parse_properties"]

_log = logging.getLogger("mqfast.config")

_CONF_BYTES_MAX: Final = 1 << 20
_MS_OF_DELAY_UNIT: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class _OsApi(Protocol):
    def read_file(self, path: str, max_bytes: int = ...) -> bytes: ...


class Setting(NamedTuple):
    """One row of ``StoreConfig.describe()``; ``rocketmq_name`` is None for settings of our own."""

    field: str
    value: object
    unit: str
    rocketmq_name: str | None
    doc: str


def _own(default: object, unit: str, doc: str, **more: Any) -> Any:
    return setting(default, None, unit, doc, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of one store; immutable, checked as a whole when it is made.

    Create a config with ``from_kwargs``, ``from_broker_conf`` or ``tiny``. These methods record the given settings in
    ``explicit``; all other sizes are taken from the files of an existing store. Defaults are those of a small store
    inside an application. With ``profile="broker"`` they are RocketMQ's, unless a field says otherwise. A name begins
    with the quantity and its unit and ends with the kind of file.

    Raises: ConfigError when a value has the wrong type or range, or two values contradict each other.
    Source: MessageStoreConfig, BrokerConfig.
    """

    profile: str = _own(
        "embedded",
        "name",
        "Source of the defaults. embedded: small files, retention off. broker: RocketMQ's sizes and RocketMQ's "
        "retention, for a broker with its own disk; a broker.conf implies this profile.",
        choices=("embedded", "broker"),
    )

    # Where things are.
    store_path_root_dir: str | None = setting(
        None,
        "storePathRootDir",
        "text",
        "Directory of the store; only compared with the path that is given to open().",
    )
    store_path_commit_log: str | None = setting(
        None,
        "storePathCommitLog",
        "directories",
        "Directories of the log, separated by commas; none means commitlog/ in the store.",
    )
    read_only_commit_log_store_paths: str | None = setting(
        None,
        "readOnlyCommitLogStorePaths",
        "directories",
        "Log directories, separated by commas, that get no new files.",
    )
    store_type: str = setting(
        "default",
        "storeType",
        "name",
        "Kind of store; RocksDB stores have another format and cannot be opened.",
        choices=("default",),
    )
    broker_role: str = setting(
        "ASYNC_MASTER",
        "brokerRole",
        "name",
        "SLAVE: the log must stay equal to its master's log, so puts are refused. A master does not wait for a slave, "
        "as with RocketMQ's default for SYNC_MASTER (inSyncReplicas=1).",
        choices=("ASYNC_MASTER", "SYNC_MASTER", "SLAVE"),
    )

    # Sizes that are part of the format.
    mapped_file_bytes_commit_log: int = setting(
        64 << 20, "mappedFileSizeCommitLog", "bytes", "Length of one log file.", low=256, broker_default=1 << 30
    )
    mapped_file_bytes_consume_queue: int = setting(
        6_000_000,
        "mappedFileSizeConsumeQueue",
        "bytes",
        "Length of one queue file, rounded up to whole 20-byte units.",
        low=1,
        high=I32_MAX - I32_MAX % 20,
    )
    mapped_file_bytes_batch_consume_queue: int = setting(
        13_800_000,
        "mapperFileSizeBatchConsumeQueue",
        "bytes",
        "Length of one file of 46-byte batch units; not rounded.",
        low=46,
    )
    mapped_file_bytes_consume_queue_ext: int = setting(
        48 << 20, "mappedFileSizeConsumeQueueExt", "bytes", "Length of one queue extension file.", low=24
    )
    mapped_file_bytes_timer_log: int = setting(
        100 << 20, "mappedFileSizeTimerLog", "bytes", "Length of one file of a broker's timer log."
    )
    enable_consume_queue_ext: bool = setting(
        False,
        "enableConsumeQueueExt",
        "on/off",
        "Units may hold addresses of extension units. Both kinds are read; new units hold the tags code itself.",
    )
    max_hash_slot_num: int = setting(
        75_000, "maxHashSlotNum", "slots", "Hash slots of one index file.", low=1, broker_default=5_000_000
    )
    max_index_num: int = setting(
        300_000,
        "maxIndexNum",
        "entries",
        "Entries of one index file; the first is never used.",
        low=2,
        broker_default=20_000_000,
    )

    # What a message may be.
    max_message_bytes: int = setting(
        4 << 20, "maxMessageSize", "bytes", "Longest body; a whole record may have 64 KiB more.", low=10
    )
    auto_message_version_on_topic_len: bool = setting(
        True,
        "autoMessageVersionOnTopicLen",
        "",
        "Use the record version with a two-byte topic length if the topic needs it.",
    )
    enabled_append_prop_crc: bool = setting(
        False, "enabledAppendPropCRC", "", "End every record with a CRC over all of it, as a property."
    )
    force_verify_prop_crc: bool = setting(
        False,
        "forceVerifyPropCRC",
        "",
        "Check the CRC of the whole record instead of the body's; needs enabled_append_prop_crc.",
    )
    enable_lmq: bool = setting(
        False, "enableLmq", "", "Light queues (%LMQ%); consumer offsets are then stored in lmqConsumerOffset.json."
    )
    enable_multi_dispatch: bool = setting(
        False,
        "enableMultiDispatch",
        "",
        "Dispatch a message also to the queues that its properties name; needs enable_lmq.",
    )
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "messageDelayLevel",
        "levels",
        "Delays of the levels 1, 2, ...: each a number with s, m, h or d, separated by blanks.",
    )
    store_host: str = _own(
        "127.0.0.1:10911",
        "host:port",
        "Store address in records and message ids; in a broker.conf brokerIP1 and listenPort.",
    )
    born_host: str = _own("127.0.0.1:0", "host:port", "Producer address in records of messages without one.")

    # Append and flush.
    flush_disk_type: str = setting(
        "ASYNC_FLUSH",
        "flushDiskType",
        "name",
        "ASYNC_FLUSH: a put returns when the page cache has it. SYNC_FLUSH: when the disk has it.",
        choices=("ASYNC_FLUSH", "SYNC_FLUSH"),
    )
    sync_flush_timeout_ms: int = setting(
        5000,
        "syncFlushTimeout",
        "ms",
        "How long a put under SYNC_FLUSH waits before it reports FLUSH_DISK_TIMEOUT.",
        low=1,
    )
    flush_interval_ms_commit_log: int = setting(
        500, "flushIntervalCommitLog", "ms", "Pause between flushes of the log.", low=1
    )
    flush_least_pages_commit_log: int = setting(
        4, "flushCommitLogLeastPages", "4 KiB pages", "Flush the log only if at least so many pages are dirty."
    )
    flush_thorough_interval_ms_commit_log: int = setting(
        10_000, "flushCommitLogThoroughInterval", "ms", "Longest time between flushes, however few pages are dirty."
    )
    commit_interval_ms_commit_log: int = setting(
        200, "commitIntervalCommitLog", "ms", "Pause between commits from the pool to the page cache.", low=1
    )
    commit_least_pages_commit_log: int = setting(
        4, "commitCommitLogLeastPages", "4 KiB pages", "Commit only if at least so many pages are waiting."
    )
    commit_thorough_interval_ms_commit_log: int = setting(
        200, "commitCommitLogThoroughInterval", "ms", "Longest time between commits, however few pages are waiting."
    )
    flush_interval_ms_consume_queue: int = setting(
        1000, "flushIntervalConsumeQueue", "ms", "Pause between flushes of the queues.", low=1
    )
    os_page_cache_busy_timeout_ms: int = setting(
        1000,
        "osPageCacheBusyTimeOutMills",
        "ms",
        "If one append holds the put lock for longer, further puts raise PageCacheBusy.",
        high=I64_MAX,
    )
    transient_store_pool_enable: bool = setting(
        False,
        "transientStorePoolEnable",
        "",
        "Append into private buffers that are committed later. A killed process loses what is not committed.",
    )
    transient_store_pool_size: int = setting(
        5, "transientStorePoolSize", "buffers", "Buffers of the pool, each as long as a log file.", low=1, high=1024
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        False,
        "fastFailIfNoBufferInStorePool",
        "",
        "An empty pool refuses the put instead of writing through the mapping.",
    )
    warm_mapped_file_enable: bool = setting(
        False, "warmMapedFileEnable", "", "Touch every page of a new log file before it is used."
    )

    # Index, dispatch and reading.
    message_index_enable: bool = setting(True, "messageIndexEnable", "", "Index messages by key and by tags.")
    index_file_write_enable: bool = setting(
        True, "indexFileWriteEnable", "", "Write index entries into index files; there is no other kind of index."
    )
    index_file_read_enable: bool = setting(True, "indexFileReadEnable", "", "Let queries ask the index files.")
    message_index_safe: bool = setting(
        False, "messageIndexSafe", "", "Recovery starts early enough to rebuild every index entry, which takes longer."
    )
    check_crc_on_recover: bool = setting(
        True, "checkCRCOnRecover", "", "Check the body CRC of every record that recovery reads."
    )
    read_uncommitted: bool = setting(
        False, "readUnCommitted", "", "Readers see messages before they are flushed (only under SYNC_FLUSH)."
    )
    max_msgs_num_batch: int = setting(64, "maxMsgsNumBatch", "messages", "Most results of one query by key.", low=1)
    default_query_max_num: int = setting(
        32, "defaultQueryMaxNum", "messages", "Results of a query by key that names no limit.", low=1
    )

    # Retention.
    retention: str | None = _own(
        None,
        "words",
        'Retention rule: "never"; an age ("72h", "3d": log files whose youngest message is older are deleted, at any '
        'hour); a size ("20GB": the oldest log files are deleted above it); both ("72h, 20GB": whichever applies '
        'first); "rocketmq" (the settings below). none means: never for the embedded profile, unless one of '
        "RocketMQ's retention settings is given; rocketmq for the broker profile.",
    )
    file_reserved_time_hours: int = setting(72, "fileReservedTime", "hours", "Age at which a log file may be deleted.")
    delete_when: str = setting(
        "04", "deleteWhen", "local hours", "Hours of the day, separated by semicolons, in which old files are deleted."
    )
    delete_file_batch_max: int = setting(
        10, "deleteFileBatchMax", "files", "Most log files deleted in one pass.", low=1
    )
    delete_files_interval_ms_commit_log: int = setting(
        100, "deleteCommitLogFilesInterval", "ms", "Pause between two deletions of log files."
    )
    destroy_mapped_file_interval_forcibly_ms: int = setting(
        120_000, "destroyMapedFileIntervalForcibly", "ms", "How long the deletion of a file waits for its readers."
    )
    redelete_hanged_file_interval_ms: int = setting(
        120_000, "redeleteHangedFileInterval", "ms", "Pause between attempts to delete a file that readers hold."
    )
    clean_resource_interval_ms: int = setting(
        10_000, "cleanResourceInterval", "ms", "Pause between two passes of the retention services.", low=1
    )
    clean_file_forcibly_enable: bool = setting(
        True, "cleanFileForciblyEnable", "", "Delete files before their time when the disk is nearly full."
    )
    disk_max_used_space_percent: int = setting(
        75, "diskMaxUsedSpaceRatio", "%", "Above this disk use old files are deleted at any hour.", clamp=(10, 95)
    )
    disk_space_clean_forcibly_percent: int = setting(
        85, "diskSpaceCleanForciblyRatio", "%", "Above this disk use files of any age are deleted.", clamp=(30, 85)
    )
    disk_space_warning_level_percent: int = setting(
        90, "diskSpaceWarningLevelRatio", "%", "Above this disk use puts are refused as well.", clamp=(35, 90)
    )
    retention_bytes: int | None = _own(
        None,
        "bytes",
        "Most bytes of log files to keep, in addition to RocketMQ's rules; alone the same as a size in retention.",
        low=1,
        high=I64_MAX,
    )
    on_damage: str = _own(
        "keep",
        "name",
        "If recovery finds whole records behind a damaged one. keep: truncate the log there as RocketMQ does, and keep "
        "these records in a folder. stop: fail the open and change nothing.",
        choices=("keep", "stop"),
    )
    retention_when_full: str = _own(
        "drop_oldest",
        "name",
        "With RocketMQ's rules, on a disk that is nearly full: delete the oldest file, or refuse puts.",
        choices=("drop_oldest", "refuse"),
    )

    # Metadata.
    default_topic_queue_nums: int = setting(
        8,
        "defaultTopicQueueNums",
        "queues",
        "Queues of a topic that its first put creates, as written to topics.json.",
        low=1,
        high=1024,
    )
    flush_consumer_offset_interval_ms: int = setting(
        5000, "flushConsumerOffsetInterval", "ms", "Pause between two writes of consumerOffset.json.", low=1
    )
    consumer_offset_update_version_step: int = setting(
        500,
        "consumerOffsetUpdateVersionStep",
        "commits",
        "Commits after which consumerOffset.json gets a new version.",
        low=1,
        high=I64_MAX,
    )

    # Our own.
    dispatch: str = _own(
        "inline",
        "name",
        "inline: after a put returns, a get sees it. background: a service follows the log.",
        choices=("inline", "background"),
    )
    prefault_window_bytes: int = _own(
        4 << 20,
        "bytes",
        "Bytes ahead of the log end that are kept writable, so that no put waits for a page fault. With a pool the "
        "memory of the buffer is touched. With sync flush see zeros_ahead_bytes.",
        broker_default=16 << 20,
    )
    zeros_ahead_bytes: int = _own(
        4 << 20,
        "bytes",
        "With sync flush: bytes ahead of the log end that are written to disk as zeros, and kept writable, so that no "
        "sync waits for the filesystem's journal (halves the time of a small sync on ext4). The log is written twice "
        "for that: 0 where writes wear the disk or the filesystem copies on write (btrfs, ZFS).",
        broker_default=8 << 20,
    )
    sigbus_guard: bool = _own(
        True,
        "on/off",
        "A page that a mapped file loses (another process cuts the file short, the disk cannot read it) is an error of "
        "the call that touched it. A SIGBUS handler does that while files are mapped; signals of others go to the "
        "handler that was there before. Off: no handler; such a touch ends the process.",
    )
    preallocate_files: int = _own(
        2,
        "files",
        "Log files that are created ahead of need. Files above 4 MiB: the next one when half of the last one is full, "
        "one more at three quarters.",
        low=0,
        high=64,
    )
    mlock_budget_bytes: int = _own(
        8 << 20,
        "bytes",
        "Most memory to lock. Memory that cannot be locked is a warning, never an error. 0 locks nothing.",
        high=I64_MAX,
    )
    max_mapped_files: int = _own(
        32_000,
        "mappings",
        "Most files to keep mapped; the kernel allows 65,530 mappings per process by default.",
        low=16,
    )

    # About the settings themselves.
    explicit: frozenset[str] = field(default=frozenset(), compare=False)
    without_effect: tuple[str, ...] = field(default=(), compare=False)
    unknown: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)

    _NOTES: ClassVar[frozenset[str]] = frozenset({"explicit", "without_effect", "unknown", "warnings"})

    def __post_init__(self) -> None:
        check_setting("profile", self.profile, _SPECS["profile"], hints=False)
        for name, spec in _SPECS.items():
            if getattr(self, name) is None and not spec.optional:
                object.__setattr__(self, name, spec.broker_default if self.profile == "broker" else spec.default)
            check_setting(name, getattr(self, name), spec, hints=False)
        size = self.mapped_file_bytes_consume_queue
        object.__setattr__(self, "mapped_file_bytes_consume_queue", -(-size // 20) * 20)
        self._check_together()

    def _check_together(self) -> None:
        for host in ("store_host", "born_host"):
            try:
                parse_host(getattr(self, host))
            except MessageIllegal as error:
                raise ConfigError(f"{host}: {error}") from None
        index_bytes = 40 + 4 * self.max_hash_slot_num + 20 * self.max_index_num
        if index_bytes > I32_MAX:
            raise ConfigError(
                f"max_hash_slot_num and max_index_num: expected an index file of at most {I32_MAX} bytes, "
                f"found {index_bytes}"
            )
        _delay_levels(self.message_delay_level)
        _hours(self.delete_when)
        if self.force_verify_prop_crc and not self.enabled_append_prop_crc:
            raise ConfigError(
                "force_verify_prop_crc: expected enabled_append_prop_crc as well, found it off: "
                "no new record would pass the check"
            )
        _ = self.retention_rules
        if "mapped_file_bytes_commit_log" in self.explicit:
            self.check_budget()

    def check_budget(self) -> None:
        """Compare the byte budget with the length of a log file, which may come from an existing store.

        Raises: ConfigError.
        """
        min_bytes = 2 * self.mapped_file_bytes_commit_log
        budget = self.retention_rules.log_bytes
        if budget is not None and budget < min_bytes:
            name = "retention_bytes" if self.retention_bytes is not None else "retention"
            raise ConfigError(
                f"{name}: expected at least two log files ({min_bytes} bytes), since the last is never deleted, "
                f"found {budget}; a new store may have shorter files (mapped_file_bytes_commit_log)"
            )

    @property
    def retention_rules(self) -> RetentionRules:
        """Return the retention rules that follow from all settings.

        Raises: ConfigError for an invalid text of ``retention``.
        """
        rules = RetentionRules() if self.retention is None else parse_retention(self.retention)
        if self.retention is None and (self.profile == "broker" or self._asked_for_rocketmq()):
            rules = RetentionRules(rocketmq=True)
        return rules if self.retention_bytes is None else rules._replace(log_bytes=self.retention_bytes)

    @property
    def names_retention(self) -> bool:
        """Return whether any setting selects what is deleted, in plain words or by RocketMQ's names."""
        return self.retention is not None or self.retention_bytes is not None or bool(self._asked_for_rocketmq())

    def _asked_for_rocketmq(self) -> list[str]:
        """Return the settings that select RocketMQ's retention rules without ``retention="rocketmq"``."""
        named = [
            name for name in _ROCKETMQ_RETENTION if name in self.explicit or getattr(self, name) != _SPECS[name].default
        ]
        if "retention_when_full" in self.explicit and self.retention_when_full == "drop_oldest":
            named.append("retention_when_full")
        return named

    def _check_words_of_retention(self) -> None:
        """Check that ``retention`` and other settings select the same rules. Raises: ConfigError."""
        if self.retention is None:
            return
        rules = parse_retention(self.retention)
        others = [] if rules.rocketmq else [name for name in self._asked_for_rocketmq() if name not in _PACE]
        if self.retention_bytes is not None and not rules.rocketmq:
            others.append("retention_bytes")
        if others:
            raise ConfigError(
                f'retention and {" and ".join(others)}: expected one way to say it, found both; "rocketmq" goes with '
                'RocketMQ\'s settings, an age and a size go together as in "72h, 20GB"'
            )

    @classmethod
    @former_argument("maps_max", "max_mapped_files")
    def from_kwargs(cls, **settings: Unpack[StoreSettings]) -> StoreConfig:
        """Return a config from keywords, with our names or RocketMQ's.

        Raises: ConfigError for an unknown name (the text names the nearest one), a setting given twice, a RocketMQ
            setting that this engine does not use, a wrong type or range, or a contradiction.
        """
        values: dict[str, Any] = {}
        host_parts: dict[str, Any] = {}
        for name, value in settings.items():
            if name in _HOST_PARTS:
                host_parts[name] = value
                continue
            target = name if name in _SPECS else FIELD_OF_PROPERTY.get(name)
            if target is None:
                raise ConfigError(_unknown(name))
            if target in values:
                raise ConfigError(f"{target} and {PROPERTY_OF_FIELD[target]}: expected one spelling, found both")
            if value is None:
                check_setting(target, value, _SPECS[target], hints=False)
            values[target] = value
        if host_parts:
            if "store_host" in values:
                raise ConfigError(f"store_host and {' and '.join(host_parts)}: expected one spelling, found both")
            values["store_host"] = _host(host_parts)
        config = cls(**values, explicit=frozenset(values))
        config._check_words_of_retention()
        if "delete_when" in values and len(config.delete_hours) < len(set(_hours(config.delete_when))):
            raise ConfigError(f"delete_when: expected hours 00 to 23, found {config.delete_when!r}")
        return config

    @classmethod
    @former_argument("door", "os_api")
    def from_broker_conf(
        cls, source: str, *, os_api: _OsApi | None = None, **overrides: Unpack[StoreSettings]
    ) -> StoreConfig:
        """Return a config from a broker's property file. Keywords in ``overrides`` replace values of the file.

        Every value means what it means to a Java broker. If Java cannot read a value, Java keeps its default silently;
        mqfast does the same with a warning. A value that Java accepts and this engine cannot use is an error. The file
        is ISO-8859-1, as in Java.

        Args: source: the text itself, or the path of the file if ``os_api`` (a table of OS calls) is given.
        Returns: StoreConfig. ``without_effect`` lists keys that RocketMQ knows and this engine does not use,
            ``unknown`` all other keys, ``warnings`` the text of each warning.
        Raises: ConfigError, StorageError (door).
        Source: MixAll.properties2Object.
        """
        where = "broker.conf"
        early: list[str] = []
        if os_api is not None:
            where = source
            source, early = decode_conf(os_api.read_file(source, max_bytes=_CONF_BYTES_MAX))
        conf = read_conf(source, where, FIELD_OF_PROPERTY, _SPECS, _HOST_PARTS, _unknown)
        values = conf.values
        warnings = (*(f"{where}: {text}" for text in early), *conf.warnings)
        if conf.hosts:
            values["store_host"], strange = _resolved(conf.hosts)
            warnings += tuple(f"{where}: {line}" for line in strange)
        given = cls.from_kwargs(**overrides)
        values.update({name: getattr(given, name) for name in given.explicit})
        values.setdefault("profile", "broker")
        for warning in warnings:
            _log.warning("%s", warning)
        return cls(
            **values,
            explicit=frozenset(values) - ({"profile"} - given.explicit),
            without_effect=conf.without_effect,
            unknown=conf.unknown,
            warnings=warnings,
        )

    @classmethod
    def tiny(cls, **overrides: Unpack[StoreSettings]) -> StoreConfig:
        """Return a config for tests: files are so small that rolling and growth happen every few messages.

        Only the overrides count as explicit.
        """
        small = cls(
            mapped_file_bytes_commit_log=64 << 10,
            mapped_file_bytes_consume_queue=4000,
            mapped_file_bytes_batch_consume_queue=46 * 20,
            mapped_file_bytes_consume_queue_ext=1024,
            mapped_file_bytes_timer_log=1024,
            max_hash_slot_num=8,
            max_index_num=32,
            prefault_window_bytes=8 << 10,
            zeros_ahead_bytes=8 << 10,
            transient_store_pool_size=3,
        )
        given = cls.from_kwargs(**overrides)
        return replace(small, **{name: getattr(given, name) for name in given.explicit}, explicit=given.explicit)

    def describe(self) -> list[Setting]:
        """Return every setting with its value, unit, RocketMQ name and meaning, in the order of the class."""
        return [
            Setting(name, getattr(self, name), spec.unit, spec.rocketmq_name, spec.doc) for name, spec in _SPECS.items()
        ]

    def broker_conf_sizes(self) -> dict[str, int]:
        """Return the file sizes that differ from RocketMQ's defaults, by RocketMQ's names. A Java broker that opens the
        store needs these sizes in its broker.conf.
        """
        sizes = (name for name in _SPECS if name in _SIZES and getattr(self, name) != _SPECS[name].broker_default)
        return {PROPERTY_OF_FIELD[name]: getattr(self, name) for name in sizes}

    @property
    def sync_flush(self) -> bool:
        """Return True if a put waits for the disk."""
        return self.flush_disk_type == "SYNC_FLUSH"

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Return the delays of the levels 1, 2, ... in ms; level n has index n - 1."""
        return _delay_levels(self.message_delay_level)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Return the local hours (0 to 23) in which old files are deleted."""
        return frozenset(hour for hour in _hours(self.delete_when) if 0 <= hour <= 23)

    @property
    def commit_log_dirs(self) -> tuple[str, ...]:
        """Return the configured writable log directories; empty means the default directory."""
        return _directories(self.store_path_commit_log)

    @property
    def read_only_commit_log_dirs(self) -> tuple[str, ...]:
        """Return the configured log directories that get no new files."""
        return _directories(self.read_only_commit_log_store_paths)


_SPECS: Final = specs_of(StoreConfig)
DOCUMENTED_FIELDS: Final = tuple(_SPECS)
PROPERTY_OF_FIELD: Final[dict[str, str]] = {
    name: spec.rocketmq_name for name, spec in _SPECS.items() if spec.rocketmq_name
}
# The two 4.x spellings are the same settings; every other setting has one name.
FIELD_OF_PROPERTY: Final[dict[str, str]] = {
    **{prop: name for name, prop in PROPERTY_OF_FIELD.items()},
    "mapedFileSizeCommitLog": "mapped_file_bytes_commit_log",
    "mapedFileSizeConsumeQueue": "mapped_file_bytes_consume_queue",
}
# File sizes that a broker needs in its broker.conf.
_SIZES: Final = frozenset(
    {
        "mapped_file_bytes_commit_log",
        "mapped_file_bytes_consume_queue",
        "mapped_file_bytes_batch_consume_queue",
        "mapped_file_bytes_consume_queue_ext",
        "max_hash_slot_num",
        "max_index_num",
    }
)
# Any of these settings selects RocketMQ's retention rules.
_ROCKETMQ_RETENTION: Final = (
    "file_reserved_time_hours",
    "delete_when",
    "delete_file_batch_max",
    "delete_files_interval_ms_commit_log",
    "clean_file_forcibly_enable",
    "disk_max_used_space_percent",
    "disk_space_clean_forcibly_percent",
    "disk_space_warning_level_percent",
)
_PACE: Final = frozenset({"delete_file_batch_max", "delete_files_interval_ms_commit_log"})  # with plain words too
# Two properties of RocketMQ are one setting here.
_HOST_PARTS: Final = {"brokerIP1": "127.0.0.1", "listenPort": "10911"}


def _host(parts: Mapping[str, Any]) -> str:
    address = str(parts.get("brokerIP1", _HOST_PARTS["brokerIP1"]))
    port = parts.get("listenPort", _HOST_PARTS["listenPort"])
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _resolved(parts: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return address and port for records, and warnings. RocketMQ resolves a name as well."""
    address = str(parts.get("brokerIP1", _HOST_PARTS["brokerIP1"])).strip().removeprefix("[").removesuffix("]")
    try:
        return _known_host(parts, address), []
    except ValueError:
        pass
    import socket  # only where a file names its host

    try:
        resolved = str(socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)[0][4][0])
        return _known_host(parts, resolved), []
    except (OSError, ValueError, UnicodeError) as error:
        instead = _HOST_PARTS["brokerIP1"]
        said = f"brokerIP1: expected an address or a name with one, found {address!r}: {error}; {instead} counts"
        return _host({**parts, "brokerIP1": instead}), [said]


def _known_host(parts: Mapping[str, Any], address: str) -> str:
    host = _host({**parts, "brokerIP1": address})
    parse_host(host)
    return host


def _directories(text: str | None) -> tuple[str, ...]:
    # As in Java: blanks are part of a name, and empty parts at the end are dropped.
    parts = java_trim(text or "").split(",")
    while parts and not parts[-1]:
        parts.pop()
    return tuple(parts)


def _unknown(name: str) -> str:
    if name in KNOWN_TO_ROCKETMQ:
        return f"{name}: expected a setting of this engine, found one that only RocketMQ uses: it would have no effect"
    hint = did_you_mean(name, [*_SPECS, *FIELD_OF_PROPERTY, *_HOST_PARTS])
    return f"{name}: expected a known setting, found an unknown one{hint}"


@lru_cache(16)
def _delay_levels(text: str) -> tuple[int, ...]:
    levels: list[int] = []
    for token in java_trim(text).split(" "):
        number = java_number(token[:-1], I64_MAX)
        if token[-1:] not in _MS_OF_DELAY_UNIT or number is None or abs(number) > I64_MAX // _MS_OF_DELAY_UNIT["d"]:
            raise ConfigError(
                f"message_delay_level: expected numbers with s, m, h or d between single blanks, found {token!r}"
            )
        levels.append(number * _MS_OF_DELAY_UNIT[token[-1]])
    return tuple(levels)


def _hours(text: str) -> list[int]:
    """Return the hours of ``deleteWhen``. Numbers beyond 23 are accepted, as in Java, and have no effect."""
    text = java_trim(text)
    parts = text.split(";")
    while text and parts and not parts[-1]:
        parts.pop()
    hours = [java_number(part) for part in parts]
    numbers = [hour for hour in hours if hour is not None]
    if len(numbers) < len(hours):
        raise ConfigError(
            f"delete_when: expected hours 00 to 23 separated by semicolons alone, found {text!r}: RocketMQ fails at "
            "each clean-up and deletes nothing"
        )
    return numbers
