"""Does a master have log files of another size than its slave? What the master sends says so.

Room: ha. It must never do I/O.
"""

from __future__ import annotations

import struct
from typing import Final

__all__ = ["other_file_size", "other_size"]

_HEAD: Final = struct.Struct(">II20xQ")  # size, magic and physical offset of a record
_RECORD_MAGICS: Final = (0xDAA320A7, 0xDAA320AB)
_END_MARK_MAGIC: Final = 0xCBD43194


def other_size(mine: int, found: str) -> str:
    """The text of the error. Args: mine: size of a log file of the slave; found: what the master has."""
    return (
        f"mappedFileSizeCommitLog: expected the same size at slave and master, this slave has {mine}, {found}; give "
        "this slave the setting of its master, with an empty store"
    )


def other_file_size(head: bytes, at: int, mine: int) -> str | None:
    """The text of the error, where a record or an end mark at a place has no room in a log file of the slave, or does
    not reach its end; None where the bytes are neither.

    Args: head: the bytes of the master there; at: their physical offset; mine: size of a log file of the slave.
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
