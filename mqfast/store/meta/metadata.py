"""The JSON files of ``config/``: load with ``.bak``, safe replacement, and light views of the content.

A view keeps unknown fields: fields of another release are written back unchanged. No file is deleted: a damaged file
is renamed to ``<name>.damaged`` when a good file replaces it. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Final, Self

from mqfast.errors import CorruptFile, DiskFull, InternalError, StoreNotFound, UsageError
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles
from mqfast.util import fastjson

__all__ = [
    "QUEUES_MAX",
    "ConfigFile",
    "ConsumerFilterTable",
    "DelayOffsetTable",
    "SubscriptionGroupTable",
    "TopicConfig",
    "TopicTable",
    "new_data_version",
    "next_data_version",
]

_log = logging.getLogger("mqfast.store")

PERM_PRIORITY: Final = 8
PERM_READ: Final = 4
PERM_WRITE: Final = 2
PERM_INHERIT: Final = 1
QUEUES_MAX: Final = 2**31 - 1  # an int for a broker, as a queue id

_Json = dict[Any, Any]


class ConfigFile:
    """A JSON file with a ``.bak``.

    Attributes: ``path``, ``warnings`` (problems at load, one sentence each).
    Thread: persist is serialised; load before it.
    Source: ConfigManager.
    """

    def __init__(self, os_api: OsFiles, path: str, check: Callable[[_Json], None] | None = None) -> None:
        self.path: Final = path
        self.warnings: list[str] = []
        self._door: Final = os_api
        self._check: Final = check
        self._lock: Final = Mutex()
        self._main_is_good = True
        self._written: bytes | None = None
        self._is_as_read = False  # and another program's text: the same values may have another form

    def _read(self, path: str) -> bytes | None:
        try:
            data = self._door.read_file(path, max_bytes=fastjson.MAX_FILE_BYTES)
        except StoreNotFound:
            return None
        return data

    def _parse(self, data: bytes, path: str) -> _Json:
        value = fastjson.loads(data, path)
        if self._check is not None:
            try:
                self._check(value)
            except CorruptFile as error:
                raise CorruptFile("JSON is damaged", path=path, expected=error.expected, found=error.found) from None
        return value

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)

    def load(self) -> _Json:
        """Return the content of the file. A missing, empty or damaged file is replaced by the ``.bak`` (with a
        warning); ``{}``
        without both. A file of no bytes, as a power cut may leave, counts as missing.

        Raises: CorruptFile if files exist and neither can be read; StorageError.
        """
        backup = self.path + ".bak"
        damage: CorruptFile | None = None
        data = self._read(self.path)
        is_empty = data == b""
        if is_empty:
            self._main_is_good = False
        elif data is not None:
            try:
                value = self._parse(data, self.path)
            except CorruptFile as error:
                damage = error
                self._main_is_good = False
            else:
                self._written = data
                self._is_as_read = True
                return value
        data = self._read(backup)
        reason = str(damage) if damage is not None else f"{self.path} is {'empty' if is_empty else 'missing'}"
        if not data:
            if damage is not None:
                raise damage
            if is_empty or data == b"":
                self._warn(f"{reason}, and there is no backup of it: nothing is known of what it held")
            return {}
        try:
            value = self._parse(data, backup)
        except CorruptFile as error:
            self._warn(f"{reason}; its backup cannot be read either")
            raise error from damage
        self._warn(f"{reason}; using {backup}")
        return value

    def persist(self, value: _Json, before: Callable[[], object] | None = None) -> bool:
        """Put ``value`` on disk; the previous file becomes the ``.bak``. No effect if the file has this content
        already.

        Args: before: called when there is something to write.
        Returns: True if anything was written.
        Raises: StorageError, and exceptions of ``before``; the old file or the ``.bak`` is then still valid.
            InternalError if the text would not be read as a file of this kind; nothing is written then.
        Durability: when the call returns, the new content survives power loss. A crash in between leaves the old or the
            new file, or, for an instant, only the ``.bak``, which load reads.
        """
        data = fastjson.dumps(value)
        with self._lock:
            return self._persist(data, before, is_checked=False)

    def persist_text(self, make: Callable[[], bytes]) -> bool:
        """Do ``persist`` for a text whose parts were checked when they were made: the whole text is not parsed again.

        Args: make: returns the text; called under the lock of the file, so an older text never replaces a newer text.
        """
        with self._lock:
            return self._persist(make(), None, is_checked=True)

    def _persist(self, data: bytes, before: Callable[[], object] | None, *, is_checked: bool) -> bool:
        if data == self._written:
            return False
        if self._is_as_read or not is_checked:
            new = self._read_back(data)
            if self._is_as_read and self._written is not None and new == self._parse(self._written, self.path):
                self._written, self._is_as_read = data, False
                return False
        if before is not None:
            before()
        self._put(data)
        self._main_is_good = True
        self._written, self._is_as_read = data, False
        return True

    def _read_back(self, data: bytes) -> _Json:
        try:
            return self._parse(data, self.path)
        except CorruptFile as error:
            raise InternalError(f"{self.path} is left as it is: the new text could not be read back: {error}") from None

    def _put(self, data: bytes) -> None:
        """Write the new file. On a full disk the backup is removed for its blocks: the present file replaces the backup
        anyway.
        """
        backup = self.path + ".bak"
        # A bad file must not replace a good backup.
        keep = backup if self._main_is_good else self.path + ".damaged"
        try:
            self._door.replace_file(self.path, data, keep)
        except StoreNotFound:  # the first file of the directory
            self._door.makedirs(self.path.rpartition("/")[0] or ".")
            self._door.replace_file(self.path, data, keep)
        except DiskFull:
            if not self._main_is_good or not self._door.exists(self.path) or not self._door.exists(backup):
                raise
            self._door.unlink(backup)
            self._door.replace_file(self.path, data, keep)


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

    @classmethod
    def load(cls, os_api: OsFiles, path: str) -> Self:
        """Read the file, or the ``.bak``; empty without both.

        Raises: CorruptFile, StorageError.
        """
        self = cls(os_api, path)
        self._root = self._file.load()
        return self

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
            self._entries[name] = raw
            self._texts[name] = text
            self._changed()

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
            self._changed()
            return True

    def replace(self, entries: dict[Any, Any], data_version: dict[str, int]) -> None:
        """Replace all entries and the version at once, by another broker's table. Raises: UsageError as ``put``."""
        texts = {name: self._checked(name, value) for name, value in entries.items()}
        with self._lock:
            self._entries.clear()
            self._entries.update(entries)
            self._texts = texts
            if self._VERSIONED:
                self._root["dataVersion"] = dict(data_version)

    @property
    def _entries(self) -> _Json:
        # The fields of a file are in alphabetical order, so the version comes first.
        if self._VERSIONED and not self._root:
            self._root["dataVersion"] = new_data_version(self._door.now_ms())
        entries: _Json = self._root.setdefault(self._TABLE, {})
        return entries

    def _changed(self) -> None:
        version = self._root.get("dataVersion")
        if version is not None:
            next_data_version(version, self._door.now_ms())

    def persist(self) -> bool:
        """Put the table on disk if it changed; see ConfigFile.persist."""
        # An empty table that was never on disk needs no file.
        return self._file.persist_text(self._text) if self._root else False

    def _text(self) -> bytes:
        """Return the whole file. Threads that change the table do not wait for the disk meanwhile."""
        with self._lock:
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


class TopicTable(_Table):
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
                self._changed()
            config = TopicConfig(topic, raw)
            if min(config.read_queue_nums, config.write_queue_nums) < queue_nums:
                raw["readQueueNums"] = max(queue_nums, config.read_queue_nums)
                raw["writeQueueNums"] = max(queue_nums, config.write_queue_nums)
                self._texts[topic] = self._checked(topic, raw)
                self._changed()
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

    def delete(self, name: str) -> bool:
        """Remove a group and its forbidden bits from the table. Returns: True if the table had the group."""
        with self._lock:
            table = self._root.get(self._FORBIDDEN)
            if isinstance(table, dict) and table.pop(name, None) is not None and name not in self:
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
                self._changed()
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
