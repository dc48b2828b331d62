"""Replacement of small files: settings, accounts, values of the name server, offsets, notes of Spark writes.

A crash leaves the old or the new content, whole. Owner and mode of the file stay, and a link that another user put in
place of the temporary file is not followed. The store replaces its files with ``OsApi.replace_file`` instead, which
goes through the table of OS calls. Source: MixAll.string2File, which writes into the existing file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from pathlib import Path

__all__ = ["replace_file"]

_NO_RENAME = (errno.EBUSY, errno.EXDEV, errno.EPERM, errno.EACCES)


def replace_file(
    path: str | Path, data: bytes, *, mode: int | None = 0o600, backup: str = "", make_parents: bool = True
) -> None:
    """Write a file whole. Its mode, owner, attributes and links stay.

    A symbolic link stays a link: its target gets the content. The new content is synced in a temporary file, which is
    renamed. A file with hard links, a mounted file, and a file of another owner are written in place instead, after a
    synced copy was made beside it where the directory allows that.

    Args: mode: of a file that does not exist yet, None for that of the umask; backup: a suffix under which the old
        content stays; make_parents: create missing directories.
    Raises: OSError; the old content is there then.
    Durability: file and directory are synced when the call returns.
    """
    target = Path(os.path.realpath(path))
    if make_parents:
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        before = target.stat()
    except FileNotFoundError:
        before = None
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(errno.EINVAL, "expected a file", str(path))
    if before is not None and backup:
        _copy(target, target.with_name(target.name + backup))
    if before is not None and before.st_nlink > 1:
        _write_in_place(target, data)
        return
    try:
        _rename_over(target, data, before, mode)
    except OSError as error:
        if before is None or error.errno not in _NO_RENAME:
            raise
        _write_in_place(target, data)


def _copy(target: Path, copy: Path) -> None:
    data = target.read_bytes()
    with open(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _rename_over(target: Path, data: bytes, before: os.stat_result | None, mode: int | None) -> None:
    new = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    number = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666 if mode is None else 0o600)
    try:
        with open(number, "wb") as file:
            if before is not None:
                _copy_attributes(number, target, before)
            elif mode is not None:
                os.fchmod(number, mode)
            file.write(data)
            file.flush()
            os.fsync(number)
        os.replace(new, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(new)
        raise
    _sync_directory(target.parent)


def _copy_attributes(number: int, target: Path, before: os.stat_result) -> None:
    """Give a new file the owner, mode and attributes of the old one. Raises: PermissionError for another owner."""
    now = os.fstat(number)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        os.fchown(number, before.st_uid, before.st_gid)
    os.fchmod(number, stat.S_IMODE(before.st_mode))
    # File systems and systems without attributes, and attributes that only root may set.
    with contextlib.suppress(OSError, AttributeError):
        for name in os.listxattr(target):
            os.setxattr(number, name, os.getxattr(target, name))


def _write_in_place(target: Path, data: bytes) -> None:
    copy = target.with_name(f".{target.name}.old")
    has_copy = False
    with contextlib.suppress(OSError):  # a directory of another owner
        _copy(target, copy)
        has_copy = True
    with open(os.open(target, os.O_WRONLY), "wb") as file:
        file.write(data)
        file.flush()
        os.ftruncate(file.fileno(), len(data))
        os.fsync(file.fileno())
    if has_copy:
        copy.unlink(missing_ok=True)
        _sync_directory(target.parent)


def _sync_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
