"""Atomic files: written beside the final path, made durable, then renamed.

Directories are local or mounted. A file under the final name is always durable. Uses no Spark.
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
    """A file written sequentially; pyarrow uses the object as a stream.

    ``commit`` renames the file to the final path. Without a commit, ``discard`` removes the file. ``crc`` is the CRC-32
    of all bytes.

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
        """Return whether the file is finished."""
        return self._file.closed

    def write(self, data: Any) -> int:
        """Append all bytes; does nothing after ``discard``."""
        rest = memoryview(data)
        if self._dropped:
            return rest.nbytes  # pyarrow's writers write their footer when they are deleted
        self.crc = zlib.crc32(rest, self.crc)
        size = rest.nbytes
        while rest:
            rest = rest[self._file.write(rest) or 0 :]
        self.bytes += size
        return size

    def lengthen(self, size: int) -> None:
        """Set the length of the file; unwritten bytes are zero, and take no space on the disk."""
        os.ftruncate(self._file.fileno(), size)

    def tell(self) -> int:
        """Return the number of bytes so far."""
        return self.bytes

    def flush(self) -> None:
        """Do nothing: there is no buffer."""

    def close(self) -> None:
        """Do nothing: only ``commit`` and ``discard`` decide about the file."""

    def commit(self) -> None:
        """Rename the file to the final path; durable on return. Raises: StorageError."""
        try:
            os.fsync(self._file.fileno())
            self._file.close()
            os.rename(self._temporary, self.path)
            sync_directory(os.path.dirname(self.path))
        except OSError as error:
            raise StorageError(error.errno, f"{error.strerror}; the file was not written", self.path) from None

    def discard(self) -> None:
        """Remove the file, unless committed."""
        self._dropped = not self._file.closed
        self._file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)


def write_json(path: str, value: dict[str, Any]) -> None:
    """Write JSON atomically; durable on return. Raises: StorageError."""
    file = DurableFile(path)
    try:
        file.write(json.dumps(value, sort_keys=True, indent=1).encode("ascii"))
        file.commit()
    finally:
        file.discard()


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object of a file. Raises: CorruptFile."""
    with open(path, encoding="utf-8") as file:
        try:
            value = json.load(file)
        except ValueError as error:
            raise CorruptFile("not the JSON that was written", path=path, expected="JSON", found=str(error)) from None
    if not isinstance(value, dict):
        raise CorruptFile("not the JSON that was written", path=path, expected="an object", found=type(value).__name__)
    return value


def crc_of(path: str) -> int:
    """Return the CRC-32 of a file's bytes."""
    crc = 0
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


@contextlib.contextmanager
def locked(path: str, what: str) -> Iterator[None]:
    """Hold the lock file during the block; the end of the process releases the lock.

    Raises: StoreLocked.
    """
    make_directory(os.path.dirname(path))
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreLocked(f"{what}: another run is at work there") from None
        yield
