"""Files that are there whole or not at all: written beside their place, made durable, then renamed.

Room: the Spark adapter; knows no Spark. Directories are local or mounted. It must never leave a file under its final
name that is not durable.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from typing import Any, Final

from mqfast.errors import CorruptFile, StorageError, StoreLocked
from mqfast.spark.local.staging import make_directory, sync_directory

__all__ = ["DurableFile", "crc_of", "locked", "read_json", "write_json"]

_BLOCK: Final = 1 << 20


class DurableFile:
    """A file to be written from its beginning to its end; pyarrow takes it as a stream.

    ``commit`` gives it its name. Without it, ``discard`` removes what was written. ``crc`` is the CRC-32 of all bytes.

    Thread: one.
    """

    def __init__(self, path: str) -> None:
        self.path: Final = os.path.abspath(path)
        self.bytes = 0
        self.crc = 0
        self._dropped = False
        self._temporary = f"{os.path.dirname(self.path)}/.{os.path.basename(path)}.{uuid.uuid4().hex}.tmp"
        make_directory(os.path.dirname(self.path))
        self._file = open(self._temporary, "xb", buffering=0)  # noqa: SIM115  (closed by commit or discard)

    @property
    def closed(self) -> bool:
        """Is it no more to be written?"""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Append; all of it is written, but nothing any more once it was discarded."""
        left = memoryview(data)
        if self._dropped:
            return left.nbytes  # pyarrow's writers say their last words when they go
        self.crc = zlib.crc32(left, self.crc)
        size = left.nbytes
        while left:
            left = left[self._file.write(left) or 0 :]
        self.bytes += size
        return size

    def lengthen(self, size: int) -> None:
        """The file gets this length; what was not written is zero, and takes no room on the disk."""
        os.ftruncate(self._file.fileno(), size)

    def tell(self) -> int:
        """Bytes so far."""
        return self.bytes

    def flush(self) -> None:
        """Nothing is buffered here."""

    def close(self) -> None:
        """Does nothing: whoever writes into it does not decide whether it stays."""

    def commit(self) -> None:
        """The file is durable under its name on return. Raises: StorageError."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self.path)
            sync_directory(os.path.dirname(self.path))
        except OSError as error:
            raise StorageError(error.errno, f"{error.strerror}; the file was not written", self.path) from None

    def discard(self) -> None:
        """Remove what was written, unless it was committed."""
        self._dropped = not self._file.closed
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)


def write_json(path: str, value: dict[str, Any]) -> None:
    """All of it or nothing, durable on return. Raises: StorageError."""
    file = DurableFile(path)
    try:
        file.write(json.dumps(value, sort_keys=True, indent=1).encode("ascii"))
        file.commit()
    finally:
        file.discard()


def read_json(path: str) -> dict[str, Any]:
    """Raises: CorruptFile."""
    with open(path, encoding="utf-8") as file:
        try:
            value = json.load(file)
        except ValueError as error:
            raise CorruptFile("not the JSON that was written", path=path, expected="JSON", found=str(error)) from None
    if not isinstance(value, dict):
        raise CorruptFile("not the JSON that was written", path=path, expected="an object", found=type(value).__name__)
    return value


def crc_of(path: str) -> int:
    """CRC-32 of a file's bytes."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


@contextlib.contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """The block runs alone among those that take the same lock file; a process that dies lets go of it.

    Raises: StoreLocked.
    """
    make_directory(os.path.dirname(path))
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(f"{what}: another run is at work there") from None
        yield
