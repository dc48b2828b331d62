"""ConfigFile: a JSON file of ``config/`` with a ``.bak``, and a journal of changes beside a large file.

The file is replaced as a whole. No file is deleted: a damaged file is renamed to ``<name>.damaged`` when a good file
replaces it. The journal is removed only after a file with its changes is on disk. Source: ConfigManager.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from mqfast.errors import CorruptFile, DiskFull, InternalError, StoreNotFound
from mqfast.store.base.os_api import Mutex
from mqfast.store.base.paths import OsFiles
from mqfast.store.meta.change_journal import ChangeJournal, TableChange
from mqfast.util import fastjson

__all__ = ["ConfigFile"]

_log = logging.getLogger("mqfast.store")
_WHOLE_BYTES: Final = 64 << 10  # a smaller file is replaced as quickly as the journal is extended
_LOADS: Final = 8  # of a reader beside a writer that replaces the file
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
        self._journal: Final = ChangeJournal(os_api, path)
        self._main_is_good = True
        self._written: bytes | None = None
        self._content: bytes | None = None  # from which load took the value
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
        self._content = None
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
                self._written = self._content = data
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
        self._content = data
        return value

    def load_with_changes(self) -> tuple[_Json, list[TableChange]]:
        """Return the content of the file, and the changes in the journal, in their order.

        A reader beside a writer gets a file and a journal that belong together. If another program has replaced the
        file after the last change, only new entries that the file lacks are returned, with a warning.

        Raises: CorruptFile, StorageError.
        """
        for _ in range(_LOADS):
            before = self._identity()
            value = self.load()
            journal = self._journal.read(self._content)
            # After two replacements the file may have the identity of the first one again; the journal shows that.
            if before == self._identity() and not journal.unknown:
                break
            damage = list(self.warnings)
            self.warnings.clear()
        else:
            self.warnings += damage
        self._content = None
        if journal.unknown:
            self._warn(
                f"{self._journal.path}: its changes belong to another content of {self.path}, which another program "
                f"has replaced; new entries are added, these changes are not made: {', '.join(journal.unknown)}"
            )
        return value, journal.changes

    def _identity(self) -> tuple[int, int] | None:
        try:
            return self._door.file_id(self.path)
        except StoreNotFound:
            return None

    @property
    def has_journal(self) -> bool:
        """True if changes are on disk in the journal only."""
        return self._journal.exists

    def append_changes(self, take: Callable[[], Sequence[TableChange] | None]) -> bool | None:
        """Append changes to the journal of a large file.

        Args: take: returns the changes since the last call, None if the changes are not known one by one; called under
            the lock of the file.
        Returns: None if the file must be replaced as a whole; else True if anything was written.
        Raises: StorageError; the file must be replaced as a whole then.
        Durability: when the call returns, the changes survive power loss.
        """
        with self._lock:
            base = self._written
            if base is None or not self._main_is_good or not _WHOLE_BYTES <= len(base) >= self._journal.bytes:
                return None
            changes = take()
            if changes:
                self._journal.append(base, changes)
            return None if changes is None else bool(changes)

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
            self._journal.discard()
            return False
        if self._is_as_read or not is_checked:
            new = self._read_back(data)
            if self._is_as_read and self._written is not None and new == self._parse(self._written, self.path):
                self._written, self._is_as_read = data, False
                self._journal.discard()
                return False
        if before is not None:
            before()
        self._journal.note_content(data)
        self._put(data)
        self._journal.discard()
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
