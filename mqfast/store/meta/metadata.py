"""The tables of ``config/``: light views of the JSON, with a data version.

A view keeps unknown fields: fields of another release are written back unchanged. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final, Self

from mqfast.errors import CorruptFile, DiskFull, InternalError, UsageError
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles
from mqfast.store.meta.change_journal import TableChange
from mqfast.store.meta.config_file import ConfigFile
from mqfast.util import fastjson

__all__ = [
    "QUEUES_MAX",
    "ConsumerFilterTable",
    "DelayOffsetTable",
    "SubscriptionGroupTable",
    "TopicConfig",
    "TopicConfigTable",
    "new_data_version",
    "next_data_version",
]

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
QUEUES_MAX: Final = 2**31 - 1  # an int for a broker, as a queue id

_Json = dict[Any, Any]


def new_data_version(now_ms: int) -> dict[str, int]:
    """Return the first version of a new table."""
    return {"counter": 0, "stateVersion": 0, "timestamp": now_ms}


def next_data_version(version: _Json, now_ms: int) -> None:
    """Step a ``dataVersion`` object in place; fields that its release lacks are not added.

    Source: DataVersion.nextVersion.
    """
    version["counter"] = version.get("counter", 0) + 1
    version["timestamp"] = now_ms


def _want(what: str, value: object, kind: type) -> None:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise CorruptFile("JSON is damaged", expected=f"{what} to be {kind.__name__}", found=type(value).__name__)


def _want_objects(root: _Json, table: str) -> None:
    entries = root.get(table, {})
    _want(table, entries, dict)
    for name, entry in entries.items():
        _want(f"a name in {table}", name, str)
        _want(f"{table}[{name!r}]", entry, dict)


class _Table:
    """A file with a ``dataVersion`` and a table; changes are in memory until persist.

    The text of each entry is cached: a file of many entries costs little more to write than a file of a few.
    """

    _TABLE: ClassVar[str]
    _VERSIONED: ClassVar[bool] = True

    def __init__(self, os_api: OsFiles, path: str) -> None:
        self._door: Final = os_api
        self._file: Final = ConfigFile(os_api, path, self._check)
        self._lock: Final = Mutex()
        self._root: _Json = {}
        self._texts: dict[str | int, bytes] = {}
        self._pending: dict[str, bool] = {}  # changed entries that are not on disk; True: a new entry
        self._is_whole_pending = False  # of other changes, or of changes that the journal did not take

    @classmethod
    def load(cls, os_api: OsFiles, path: str) -> Self:
        """Read the file, or the ``.bak``; empty without both.

        Raises: CorruptFile, StorageError.
        """
        self = cls(os_api, path)
        self._root, changes = self._file.load_with_changes()
        for change in changes:
            self._replay(change)
        self._is_whole_pending = self._file.has_journal
        return self

    def _replay(self, change: TableChange) -> None:
        entries = self._entries
        if change.value is None:
            entries.pop(change.name, None)
        elif change.name not in entries or not change.is_new:
            self._checked(change.name, change.value)
            entries[change.name] = change.value
        version = self._root.get("dataVersion")
        if version is not None and change.version.get("counter", 0) > version.get("counter", 0):
            version.update(change.version)

    @property
    def warnings(self) -> list[str]:
        """Problems that load noted."""
        return self._file.warnings

    def _check(self, root: _Json) -> None:
        _want("dataVersion", root.get("dataVersion", {}), dict)
        for name in ("counter", "timestamp"):
            _want(f"dataVersion.{name}", root.get("dataVersion", {}).get(name, 0), int)
        _want_objects(root, self._TABLE)

    @property
    def version_ms(self) -> int:
        """Time of the last change of the table, by the clock of the writer; 0: unknown."""
        return int(self._root.get("dataVersion", {}).get("timestamp", 0))

    @property
    def data_version(self) -> dict[str, int]:
        """Return a copy of the table's version; a new version for a table without version."""
        version = self._root.get("dataVersion")
        return dict(version) if version else new_data_version(0)

    def touch(self) -> None:
        """Step the version: data that depends on the table has changed."""
        with self._lock:
            self._changed()

    def put(self, name: str, raw: dict[str, Any]) -> None:
        """Set the object of a name, and step the version. Raises: UsageError for a value that no file can hold."""
        text = self._checked(name, raw)
        with self._lock:
            is_new = name not in self
            self._entries[name] = raw
            self._texts[name] = text
            self._changed(name, is_new=is_new)

    def _checked(self, name: str | int, value: object) -> bytes:
        """Return the text of an entry. Raises: UsageError for a value that no file can hold."""
        try:
            text = fastjson.entry(name, value, 2)
            self._check({self._TABLE: fastjson.loads(b"{" + text + b"}")})
        except (CorruptFile, InternalError) as error:
            raise UsageError(f"{self._TABLE}[{name!r}]: expected what JSON can hold, found: {error}") from None
        return text

    def delete(self, name: str) -> bool:
        """Remove a name from the table. Returns: True if the table had the name."""
        with self._lock:
            if name not in self:
                return False
            del self._entries[name]
            self._texts.pop(name, None)
            self._changed(name)
            return True

    def replace(self, entries: dict[Any, Any], data_version: dict[str, int]) -> None:
        """Replace all entries and the version at once, by another broker's table. Raises: UsageError as ``put``."""
        texts = {name: self._checked(name, value) for name, value in entries.items()}
        with self._lock:
            self._entries.clear()
            self._entries.update(entries)
            self._texts = texts
            self._is_whole_pending = True
            if self._VERSIONED:
                self._root["dataVersion"] = dict(data_version)

    @property
    def _entries(self) -> _Json:
        # The fields of a file are in alphabetical order, so the version comes first.
        if self._VERSIONED and not self._root:
            self._root["dataVersion"] = new_data_version(self._door.now_ms())
        entries: _Json = self._root.setdefault(self._TABLE, {})
        return entries

    def _changed(self, name: str | None = None, *, is_new: bool = False) -> None:
        """Step the version after a change of an entry; None: of anything else."""
        version = self._root.get("dataVersion")
        if version is not None:
            next_data_version(version, self._door.now_ms())
        if name is None or version is None:
            self._is_whole_pending = True
        else:
            self._pending.setdefault(name, is_new)

    def persist(self) -> bool:
        """Put the table on disk if it changed; see ConfigFile.persist."""
        # An empty table that was never on disk needs no file.
        if not self._root:
            return False
        try:
            return self._file.persist_text(self._text)
        except BaseException:
            self._is_whole_pending = True
            raise

    def persist_changes(self) -> bool:
        """Put the changes on disk, those of a large table in the journal: the cost does not grow with the table.

        Another program reads the changes in the journal after the next ``persist``. Returns: True if anything was
        written. Raises: StorageError. Durability: when the call returns, the changes survive power loss.
        """
        try:
            appended = self._file.append_changes(self._taken)
        except DiskFull:  # a replacement may use the blocks of the backup
            appended = None
            self._is_whole_pending = True
        except BaseException:
            self._is_whole_pending = True
            raise
        return self.persist() if appended is None else appended

    @property
    def has_journal(self) -> bool:
        """True if changes are in the journal and not in the file."""
        return self._file.has_journal

    def _taken(self) -> list[TableChange] | None:
        """Return the changes of entries since the last call; None if the file must be replaced."""
        with self._lock:
            if self._is_whole_pending:
                return None
            pending, self._pending = self._pending, {}
            entries, version = self._entries, self.data_version
            return [TableChange(name, entries.get(name), is_new, version) for name, is_new in pending.items()]

    def _text(self) -> bytes:
        """Return the whole file. Threads that change the table do not wait for the disk meanwhile."""
        with self._lock:
            self._pending.clear()
            self._is_whole_pending = False
            parts: list[bytes] = []
            for key, value in self._root.items():
                if key == self._TABLE and value:
                    texts = self._texts
                    if len(texts) < len(value):  # an entry outside the table has no text
                        for name in value.keys() - texts.keys():
                            texts[name] = self._checked(name, value[name])
                    table = b",".join([texts[name] for name in value])
                    parts.append(fastjson.entry(key, {}, 1)[:-1] + table + b"\n\t}")
                else:
                    parts.append(fastjson.entry(key, value, 1))
            return b"{" + b",".join(parts) + b"\n}"

    def __len__(self) -> int:
        return len(self._root.get(self._TABLE, {}))

    def __contains__(self, name: object) -> bool:
        return name in self._root.get(self._TABLE, {})

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter(list(self._root.get(self._TABLE, {})))


class TopicConfig:
    """A topic of ``topics.json``: a view of the JSON object, with RocketMQ's defaults for missing fields.

    Source: TopicConfig.
    """

    __slots__ = ("name", "raw")

    def __init__(self, name: str, raw: _Json) -> None:
        self.name: Final = name
        self.raw: Final = raw

    def _int(self, field: str, default: int) -> int:
        value = self.raw.get(field, default)
        return value if isinstance(value, int) else default

    @property
    def read_queue_nums(self) -> int:
        """Queues that consumers see."""
        return self._int("readQueueNums", 16)

    @property
    def write_queue_nums(self) -> int:
        """Queues that producers see."""
        return self._int("writeQueueNums", 16)

    @property
    def perm(self) -> int:
        """PERM bits."""
        return self._int("perm", PERM_READ | PERM_WRITE)

    @property
    def sys_flag(self) -> int:
        """1 unit, 2 subscription of a unit."""
        return self._int("topicSysFlag", 0)

    @property
    def order(self) -> bool:
        """True if the topic is marked as ordered."""
        return self.raw.get("order") is True

    @property
    def is_multi_tag(self) -> bool:
        """True if messages of the topic carry several tags (sysFlag MULTI_TAGS)."""
        return self.raw.get("topicFilterType") == "MULTI_TAG"

    @property
    def attributes(self) -> dict[str, str]:
        """The attributes of 5.x; none in files of 4.x."""
        value = self.raw.get("attributes")
        if not isinstance(value, dict):
            return {}
        return {str(key): str(item) for key, item in value.items()}

    @property
    def queue_type(self) -> str:
        """``SimpleCQ`` or ``BatchCQ``."""
        return self.attributes.get("queue.type", "SimpleCQ")

    @property
    def is_batch_queue(self) -> bool:
        """True if the topic has 46-byte units under ``batchconsumequeue``."""
        return self.queue_type == "BatchCQ"

    def __repr__(self) -> str:
        return f"TopicConfig({self.name!r}, queues={self.write_queue_nums}, perm={self.perm}, type={self.queue_type})"


class TopicConfigTable(_Table):
    """``config/topics.json``.

    Thread: any.
    Source: TopicConfigManager.
    """

    _TABLE = "topicConfigTable"

    def get(self, topic: str) -> TopicConfig | None:
        """Return the topic, or None if the table lacks the topic."""
        raw = self._root.get(self._TABLE, {}).get(topic)
        return None if raw is None else TopicConfig(topic, raw)

    def ensure(
        self,
        topic: str,
        queue_nums: int,
        *,
        perm: int = PERM_READ | PERM_WRITE,
        multi_tag: bool = False,
        attributes: dict[str, str] | None = None,
    ) -> TopicConfig:
        """Return the topic. A missing topic is created with these values.

        An existing topic gets more queues if it has fewer; no other value changes.
        """
        with self._lock:
            entries = self._entries
            raw = entries.get(topic)
            if raw is None:
                raw = {
                    "attributes": dict(attributes or {}),
                    "order": False,
                    "perm": perm,
                    "readQueueNums": queue_nums,
                    "topicFilterType": "MULTI_TAG" if multi_tag else "SINGLE_TAG",
                    "topicName": topic,
                    "topicSysFlag": 0,
                    "writeQueueNums": queue_nums,
                }
                text = self._checked(topic, raw)
                entries[topic], self._texts[topic] = raw, text
                self._changed(topic, is_new=True)
            config = TopicConfig(topic, raw)
            if min(config.read_queue_nums, config.write_queue_nums) < queue_nums:
                raw["readQueueNums"] = max(queue_nums, config.read_queue_nums)
                raw["writeQueueNums"] = max(queue_nums, config.write_queue_nums)
                self._texts[topic] = self._checked(topic, raw)
                self._changed(topic)
            return config


class SubscriptionGroupTable(_Table):
    """``config/subscriptionGroup.json``.

    Thread: any.
    Source: SubscriptionGroupManager.
    """

    _TABLE = "subscriptionGroupTable"
    _FORBIDDEN = "forbiddenTable"

    @property
    def forbidden_table(self) -> dict[str, dict[str, int]]:
        """Group -> topic -> forbidden permission bits: a copy."""
        with self._lock:
            table = self._root.get(self._FORBIDDEN)
            return {group: dict(topics) for group, topics in table.items()} if isinstance(table, dict) else {}

    def forbid(self, group: str, topic: str, bits: int) -> None:
        """Set the forbidden permission bits of a group for a topic; 0: nothing is forbidden."""
        with self._lock:
            _ = self._entries  # so that the version comes first
            table = self._root.setdefault(self._FORBIDDEN, {})
            topics = table.setdefault(group, {})
            topics.pop(topic, None)
            if bits:
                topics[topic] = bits
            if not topics:
                del table[group]
            self._changed()

    def replace_forbidden(self, table: dict[str, dict[str, int]]) -> None:
        """Replace the forbidden bits of all groups by another broker's table; the version does not change."""
        with self._lock:
            if table or self._FORBIDDEN in self._root:
                _ = self._entries  # so that the version comes first
                self._root[self._FORBIDDEN] = {group: dict(topics) for group, topics in table.items()}
                self._is_whole_pending = True

    def delete(self, name: str) -> bool:
        """Remove a group and its forbidden bits from the table. Returns: True if the table had the group."""
        with self._lock:
            table = self._root.get(self._FORBIDDEN)
            if isinstance(table, dict) and table.pop(name, None) is not None:
                self._is_whole_pending = True
                if name not in self:
                    self._changed()
        return super().delete(name)

    def forbidden(self, group: str, topic: str) -> int:
        """Return the forbidden bits of a group for a topic; bit 2: read (RocketMQ: forbiddenTable, PermName)."""
        bits = self._root.get("forbiddenTable", {}).get(group, {}).get(topic, 0)
        return bits if isinstance(bits, int) else 0

    def get(self, group: str) -> dict[str, Any] | None:
        """Return a copy of the group's object, or None."""
        raw = self._root.get(self._TABLE, {}).get(group)
        return None if raw is None else dict(raw)

    def ensure(self, group: str) -> dict[str, Any]:
        """Return a copy of the group's object. A missing group is created with RocketMQ's defaults."""
        with self._lock:
            if not self._root:
                self._root = {"dataVersion": new_data_version(self._door.now_ms()), "forbiddenTable": {}}
            entries = self._entries
            if group not in entries:
                raw = {
                    "attributes": {},
                    "brokerId": 0,
                    "consumeBroadcastEnable": True,
                    "consumeEnable": True,
                    "consumeFromMinEnable": True,
                    "consumeMessageOrderly": False,
                    "consumeTimeoutMinute": 15,
                    "groupName": group,
                    "groupRetryPolicy": {"type": "CUSTOMIZED"},
                    "groupSysFlag": 0,
                    "notifyConsumerIdsChangedEnable": True,
                    "retryMaxTimes": 16,
                    "retryQueueNums": 1,
                    "whichBrokerWhenConsumeSlowly": 1,
                }
                text = self._checked(group, raw)
                entries[group], self._texts[group] = raw, text
                self._changed(group, is_new=True)
            return dict(entries[group])


class DelayOffsetTable(_Table):
    """``config/delayOffset.json``: delay level (1-based, not a queue id) -> next queue offset to deliver.

    Thread: any.
    Source: ScheduleMessageService.
    """

    _TABLE = "offsetTable"

    def _check(self, root: _Json) -> None:
        _want("dataVersion", root.get("dataVersion", {}), dict)
        entries = root.get(self._TABLE, {})
        _want(self._TABLE, entries, dict)
        for level, offset in entries.items():
            _want(f"a level in {self._TABLE}", level, int)
            _want(f"{self._TABLE}[{level}]", offset, int)

    def get(self, level: int) -> int:
        """Return the next queue offset of a level; 0 if none is stored."""
        offset = self._root.get(self._TABLE, {}).get(level, 0)
        return int(offset)

    def offsets(self) -> dict[int, int]:
        """Return every stored level with the next queue offset."""
        with self._lock:
            return dict(self._root.get(self._TABLE, {}))

    def set(self, level: int, offset: int) -> None:
        """Set the next queue offset of a level."""
        with self._lock:
            if self._entries.get(level) != offset:
                self._entries[level] = offset
                self._texts.pop(level, None)
                self._changed()


class ConsumerFilterTable(_Table):
    """``config/consumerFilter.json``: the SQL filters of a broker; read and kept, never used by the store.

    Source: ConsumerFilterManager.
    """

    _TABLE = "filterDataByTopic"
    _VERSIONED = False

    def get(self, topic: str) -> dict[str, Any] | None:
        """Return a copy of the topic's object, or None."""
        raw = self._root.get(self._TABLE, {}).get(topic)
        return None if raw is None else dict(raw)
