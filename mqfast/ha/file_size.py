"""Detection of a master with another log file size (mappedFileSizeCommitLog) than its slave, from the bytes that the
master sends. No I/O.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["other_file_size", "other_size"]

_HEAD: Final = struct.Struct(">II20xQ")  # size, magic and physical offset of a record
_RECORD_MAGICS: Final = (0xDAA320A7, 0xDAA320AB)
_END_MARK_MAGIC: Final = 0xCBD43194


def other_size(mine: int, theirs: str) -> str:
    """Return the error text. Args: mine: size of a log file of the slave; theirs: about the master's size."""
    return (
        f"mappedFileSizeCommitLog: expected the same size at slave and master, this slave has {mine}, {theirs}; give "
        "this slave the setting of its master, with an empty store"
    )


def other_file_size(head: bytes, at: int, mine: int) -> str | None:
    """Return an error text if a record or end mark of the master does not fit the slave's log files, else None.

    A record does not fit if it ends behind the end of the slave's file. An end mark must end exactly there. Bytes that
    are neither give None.

    Args: head: the bytes of the master; at: their physical offset; mine: size of a log file of the slave.
    """
    if len(head) < _HEAD.size:
        return None
    size, magic, place = _HEAD.unpack_from(head)
    is_end_mark = magic == _END_MARK_MAGIC and size >= 8
    if not is_end_mark and (magic not in _RECORD_MAGICS or place != at):
        return None
    end, file_end = at + size, at - at % mine + mine
    if end > file_end or (is_end_mark and end != file_end):
        return other_size(mine, f"a log file of its master {'ends at' if is_end_mark else 'goes on to'} {end}")
    return None
