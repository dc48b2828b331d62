"""Consumer offsets: ``config/consumerOffset.json``, or ``lmqConsumerOffset.json`` with light queues (RocketMQ:
ConsumerOffsetManager).

The file is a broker's: ``topic@group`` -> queue id -> next queue offset to read. Queues are not read here: the reader
checks that an offset still exists. An offset is written only after the messages that the offset passes are durable:
the caller of ``persist`` passes the flush. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from operator import index
from typing import Any, Final

from mqfast.errors import CorruptFile, UsageError
from mqfast.message import LMQ_PREFIX
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles, StorePaths
from mqfast.store.meta.config_file import ConfigFile
from mqfast.store.meta.metadata import new_data_version, next_data_version
from mqfast.util.validate import is_whole

__all__ = ["ConsumerOffsets"]

_log = logging.getLogger("mqfast.store")

_SEPARATOR: Final = "@"
_WARNINGS_MAX: Final = 100
_FOLLOWED_MAX: Final = 10_000  # groups of a topic that are known without a commit


def _key(topic: str, group: str) -> str:
    for what, name in (("topic", topic), ("group", group)):
        # A broker splits the key at '@' and drops keys that do not have two parts.
        if not isinstance(name, str):
            raise UsageError(f"{what}: expected str, found {type(name).__name__}")
        if not name or _SEPARATOR in name:
            raise UsageError(f"{what}: expected a name without '@', found {name!r}")
        try:
            name.encode("utf-8")  # the encoding of the file
        except UnicodeEncodeError:
            raise UsageError(f"{what}: expected text that has a UTF-8 form, found {name!r}") from None
    return topic + _SEPARATOR + group


def _number(what: str, number: object, highest: int) -> int:
    """Return a plain int: a bool, an enum or a number of numpy would have another form in the file."""
    try:
        plain = int(index(number))  # type: ignore[arg-type]
    except TypeError:
        raise UsageError(f"{what}: expected int, found {type(number).__name__}") from None
    if not 0 <= plain <= highest:
        raise UsageError(f"{what}: expected 0 to {highest}, found {number}")
    return plain


def _offset(what: str, value: object) -> None:
    if not is_whole(value):
        raise CorruptFile("JSON is damaged", expected=f"{what} to be int", found=type(value).__name__)


def _check(root: dict[Any, Any]) -> None:
    for name in ("dataVersion", "groupTopicMap", "offsetTable", "lmqOffsetTable"):
        if not isinstance(root.get(name, {}), dict):
            raise CorruptFile("JSON is damaged", expected=f"{name} to be dict", found=type(root[name]).__name__)
    _offset("dataVersion.counter", root.get("dataVersion", {}).get("counter", 0))
    for key, queues in root.get("offsetTable", {}).items():
        if not isinstance(key, str) or not isinstance(queues, dict):
            raise CorruptFile("JSON is damaged", expected="offsetTable of objects", found=f"{key!r}: {queues!r:.40}")
        for queue_id, offset in queues.items():
            # Some tools quote the queue ids; a broker accepts that as well.
            if not (isinstance(queue_id, int) or (queue_id.isascii() and queue_id.isdigit() and len(queue_id) <= 10)):
                raise CorruptFile("JSON is damaged", expected=f"offsetTable[{key!r}] by queue id", found=repr(queue_id))
            _offset(f"offsetTable[{key!r}][{queue_id}]", offset)
    for key, offset in root.get("lmqOffsetTable", {}).items():
        if not isinstance(key, str):
            raise CorruptFile("JSON is damaged", expected="lmqOffsetTable by name", found=repr(key))
        _offset(f"lmqOffsetTable[{key!r}]", offset)


class ConsumerOffsets:
    """The offsets of all groups, in memory, and the file.

    Attributes: ``waiting``: returns (group, topic, queue id, offset) of commits by other threads, each once; called
        before any use of the offsets.
    Thread: any.
    Durability: a commit is in memory until persist; after a crash a group continues at the last persisted offset.
    Source: ConsumerOffsetManager, LmqConsumerOffsetManager.
    """

    def __init__(self, os_api: OsFiles, path: str, *, lmq: bool = False, version_step: int = 500) -> None:
        self._door: Final = os_api
        self._file: Final = ConfigFile(os_api, path, _check)
        self._lmq: Final = lmq
        self._version_step: Final = version_step
        self._lock: Final = Mutex()
        self._persist_lock: Final = Mutex()
        self._commits = 0
        self._root: dict[Any, Any] = {}
        self._table: dict[str, dict[int, int]] = {}
        self._light: dict[str, int] = {}
        self._deletions: dict[str, int] = {}
        self._followed: dict[str, dict[str, dict[int, int]]] = {}
        self.waiting: Callable[[], Iterable[tuple[str, str, int, int]]] | None = None

    @classmethod
    def load(cls, os_api: OsFiles, path: str, *, lmq: bool = False, version_step: int = 500) -> ConsumerOffsets:
        """Read the file, or the ``.bak``; no offsets without both.

        Args: ``path`` is StorePaths.offsets_file(lmq); ``version_step`` is consumer_offset_update_version_step.
        Raises: CorruptFile, StorageError.
        """
        self = cls(os_api, path, lmq=lmq, version_step=version_step)
        self._root = self._file.load()
        for key, queues in self._root.get("offsetTable", {}).items():
            self._table[key] = {int(queue_id): offset for queue_id, offset in queues.items()}
        self._light = dict(self._root.get("lmqOffsetTable", {}))
        return self

    @classmethod
    def of_store(cls, os_api: OsFiles, paths: StorePaths, *, lmq: bool, version_step: int) -> ConsumerOffsets:
        """Load the offsets of a store by ``load``.

        With light queues the offsets of all groups are in a separate file. Just after a switch of light queues this
        file does not exist yet, and the committed offsets are in the other file, which is then read: a group must not
        begin again. RocketMQ begins without offsets then.
        """
        path, other = paths.offsets_file(lmq), paths.offsets_file(not lmq)
        self = cls.load(os_api, path, lmq=lmq, version_step=version_step)
        switched = f"light queues (enableLmq) were switched {'on' if lmq else 'off'}"
        if os_api.exists(path) or os_api.exists(path + ".bak"):
            if os_api.exists(path) and os_api.exists(other) and os_api.mtime_ms(path) < os_api.mtime_ms(other):
                self._warn(f"{switched}: {other} is younger than {path}, by which all groups go on")
            return self
        before = cls.load(os_api, other, lmq=not lmq)
        if before._table:
            self._warn(f"{switched}, and {path} is not there yet; using {other}")
            self._root = {name: value for name, value in before._root.items() if name != "lmqOffsetTable"}
            self._table = before._table
        return self

    def _warn(self, text: str) -> None:
        _log.warning("%s", text)
        self._file.warnings.append(text)

    @property
    def warnings(self) -> list[str]:
        """Problems that load noted."""
        return self._file.warnings

    def _is_light(self, group: str) -> bool:
        # RocketMQ checks the group, not the topic: a light consumer's group has the name of its queue.
        return self._lmq and group.startswith(LMQ_PREFIX)

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """Return the next queue offset to read, or -1 if the group never committed an offset."""
        key = _key(topic, group)
        if not isinstance(queue_id, int):
            raise UsageError(f"queue_id: expected int, found {type(queue_id).__name__}")
        with self._lock:
            self._take_waiting()
            if self._is_light(group):
                return self._light.get(key, -1)
            return self._table.get(key, {}).get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set the next queue offset to read. A lower offset resets the group.

        Raises: UsageError for a name with ``@`` or numbers below 0; nothing is stored then.
        """
        key = _key(topic, group)
        queue_id = _number("queue_id", queue_id, 2**31 - 1)
        offset = _number("offset", offset, 2**63 - 1)
        with self._lock:
            self._take_waiting()
            self._store(key, group, queue_id, offset)

    def _store(self, key: str, group: str, queue_id: int, offset: int) -> None:
        if self._is_light(group):
            self._light[key] = offset
            return
        self._table.setdefault(key, {})[queue_id] = offset
        self._commits += 1
        if self._commits % self._version_step == 0 and "dataVersion" in self._root:
            next_data_version(self._root["dataVersion"], self._door.now_ms())

    def take_waiting(self) -> None:
        """Apply the commits of ``waiting`` now."""
        with self._lock:
            self._take_waiting()

    def _take_waiting(self) -> None:
        if self.waiting is not None:
            for group, topic, queue_id, offset in self.waiting():
                self._store(topic + _SEPARATOR + group, group, queue_id, offset)

    def groups(self) -> list[str]:
        """Return every group with a commit, sorted."""
        with self._lock:
            self._take_waiting()
            keys = [*self._table, *self._light]
        return sorted({key.partition(_SEPARATOR)[2] for key in keys})

    def pairs(self) -> list[tuple[str, str]]:
        """Return (topic, group) of every group with a commit in a topic."""
        with self._lock:
            self._take_waiting()
            keys = [*self._table, *self._light]
        return [(topic, group) for topic, _, group in (key.partition(_SEPARATOR) for key in keys)]

    def offsets(self, group: str) -> dict[str, dict[int, int]]:
        """Return topic -> queue id -> next queue offset of a group: a copy."""
        offsets: dict[str, dict[int, int]] = {}
        with self._lock:
            self._take_waiting()
            for key, queues in self._table.items():
                topic, _, owner = key.partition(_SEPARATOR)
                if owner == group:
                    offsets[topic] = dict(queues)
            for key, offset in self._light.items():
                topic, _, owner = key.partition(_SEPARATOR)
                if owner == group:
                    offsets[topic] = {0: offset}
        return offsets

    def as_file(self) -> dict[Any, Any]:
        """Return the content of the file at this moment (43): a copy."""
        with self._lock:
            self._take_waiting()
            return self._snapshot() or {"dataVersion": new_data_version(self._door.now_ms()), "offsetTable": {}}

    def follow(self, group: str, topic: str, begins: dict[int, int]) -> None:
        """Register a group without a commit until the store closes.

        Args: begins: the group's first offset in each queue that the group does not read from the first message on.
        """
        with self._lock:
            groups = self._followed.setdefault(topic, {})
            if len(groups) < _FOLLOWED_MAX:
                groups.setdefault(group, dict(begins))

    def positions(self) -> dict[str, dict[str, dict[int, int]]]:
        """Return topic -> group -> queue id -> next queue offset, of every group with a commit or a registration: a
        copy.

        A registered group without a commit is at its first offset; a missing queue is read from the first message on.
        """
        with self._lock:
            self._take_waiting()
            result = {topic: {g: dict(at) for g, at in groups.items()} for topic, groups in self._followed.items()}
            table = [*self._table.items(), *((key, {0: offset}) for key, offset in self._light.items())]
            for key, queues in table:
                topic, _, group = key.partition(_SEPARATOR)
                result.setdefault(topic, {}).setdefault(group, {}).update(queues)
        return result

    def remove_group(self, group: str) -> None:
        """Remove the group."""
        self._remove(lambda topic, owner: owner == group)

    def remove_topic(self, topic: str) -> None:
        """Remove every group's offsets in the topic."""
        with self._lock:
            self._deletions[topic] = self._deletions.get(topic, 0) + 1
        self._remove(lambda name, owner: name == topic)

    def deletions(self, topic: str) -> int:
        """Return the number of removals of the topic since the store was opened: older offsets have no meaning then."""
        return self._deletions.get(topic, 0)

    def cut(self, end_of: Callable[[str, int], int | None]) -> None:
        """Lower offsets that are behind the end of their queue, with a warning. The messages there are lost, and new
        messages at the same offsets must not be skipped.

        Args: end_of: the offset behind the last message of (topic, queue id), or None to keep the stored offset.
        """
        with self._lock:
            self._take_waiting()
            for key, queues in self._table.items():
                topic, _, group = key.partition(_SEPARATOR)
                for queue_id, offset in queues.items():
                    queues[queue_id] = self._cut_one(group, topic, queue_id, offset, end_of)
            for key, offset in self._light.items():
                topic, _, group = key.partition(_SEPARATOR)
                self._light[key] = self._cut_one(group, topic, 0, offset, end_of)

    def _cut_one(
        self, group: str, topic: str, queue_id: int, offset: int, end_of: Callable[[str, int], int | None]
    ) -> int:
        end = end_of(topic, queue_id)
        if end is None or offset <= end:
            return offset
        text = (
            f"group {group}, topic {topic}, queue {queue_id}: the stored offset {offset} is behind the end of the "
            f"queue, {end}; the group goes on at {end}"
        )
        _log.warning("%s", text)
        if len(self._file.warnings) < _WARNINGS_MAX:
            self._file.warnings.append(text)
        return end

    def _remove(self, gone: Callable[[str, str], bool]) -> None:
        with self._lock:
            self._take_waiting()
            for table in (self._table, self._light):
                for key in list(table):
                    topic, _, group = key.partition(_SEPARATOR)
                    if gone(topic, group):
                        del table[key]
            for topic, groups in self._followed.items():
                for group in [group for group in groups if gone(topic, group)]:
                    del groups[group]

    def _topics_by_group(self) -> dict[str, list[str]]:
        # Never read back; written because a broker's file has it. Names that are still valid keep their order.
        now: dict[str, dict[str, None]] = {}
        for key in self._table:
            topic, _, group = key.partition(_SEPARATOR)
            now.setdefault(group, {})[topic] = None
        result: dict[str, list[str]] = {}
        for group, topics in self._root.get("groupTopicMap", {}).items():
            if group in now and isinstance(topics, list):
                kept = [topic for topic in topics if topic in now[group]]
                result[group] = [*kept, *(topic for topic in now[group] if topic not in kept)]
        for group, current in now.items():
            result.setdefault(group, list(current))
        return result

    def persist(self, before: Callable[[], object] | None = None) -> bool:
        """Put the offsets on disk if they changed; a file of 4.x keeps the form of 4.x.

        Args: before: called when something is to be written; makes the handed-out messages durable.
        Returns: True if anything was written.
        Raises: StorageError, and exceptions of ``before``; the file is then unchanged.
        Durability: when the call returns, the offsets survive power loss.
        """
        # Two locks: a commit never waits for the disk, and an older state never overwrites a newer state.
        with self._persist_lock:
            with self._lock:
                self._take_waiting()
                root = self._snapshot()
            return self._file.persist(root, before) if root else False

    def _snapshot(self) -> dict[Any, Any]:
        if not self._root:
            if not self._table and not self._light:
                return {}
            self._root = {"dataVersion": new_data_version(self._door.now_ms()), "groupTopicMap": {}}
        if "groupTopicMap" in self._root:
            self._root["groupTopicMap"] = self._topics_by_group()
        if self._lmq and ("lmqOffsetTable" in self._root or self._light):
            self._root["lmqOffsetTable"] = dict(self._light)
        self._root["offsetTable"] = {key: dict(queues) for key, queues in self._table.items()}
        root = dict(self._root)
        if "dataVersion" in root:
            root["dataVersion"] = dict(root["dataVersion"])
        return root
