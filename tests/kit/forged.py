"""Stores in which a producer has put what looks like records into its bodies.

Room: tests. Made of what a producer can know: the format, checksums, and the physical offsets of messages to come.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import mqfast

V1, V2 = 0xDAA320A7, 0xDAA320AB
HEAD = 88  # bytes of a record before its body


def record(physical: int, topic: str, body: bytes, queue_offset: int, magic: int = V1) -> bytes:
    name = topic.encode()
    topic_length = struct.pack(">b" if magic == V1 else ">h", len(name))
    size = HEAD + len(body) + len(topic_length) + len(name) + 2
    return struct.pack(
        ">iIiiiqqiq4siq4siiqi",
        size, magic, zlib.crc32(body) & 0x7FFFFFFF, 0, 0, queue_offset, physical, 0, 1,
        b"\x7f\0\0\1", 0, 1795000000000, b"\x7f\0\0\1", 10911, 0, 0, len(body),
    ) + body + topic_length + name + b"\0\0"  # fmt: skip


def chain(physical: int, size: int, queue_offset: int, magic: int = V1) -> tuple[bytes, list[int]]:
    """A body of about ``size`` bytes for a record at ``physical``: records of "payments" one behind the other, the last
    of which ends in the true record's own topic; and where they begin."""
    out, places = bytearray(), []
    while len(out) < size - 300:
        places.append(physical + HEAD + len(out))
        out += record(places[-1], "payments", b"FORGED" + b"." * 40, len(places) - 1, magic)
    places.append(physical + HEAD + len(out))
    return bytes(out) + record(places[-1], "guest", b"FORGED", queue_offset)[:-8], places


class Forged(NamedTuple):
    path: Path
    true: list[int]
    """Where records begin."""
    carriers: list[int]
    """Where those begin that hold forged ones."""
    false: list[int]
    """Where forged records begin."""
    end: int


def forge(path: Path, *, carriers: int = 12, size: int = 30_000, queues: int = 4, **settings: Any) -> Forged:
    """A store whose longest queues lie behind a stretch in which only "guest" has messages."""
    true, of_guest, false = [], [], []
    settings = {"mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 2000, **settings}
    with mqfast.open(path, max_hash_slot_num=64, max_index_num=500, **settings) as store:
        true += [store.put("payments", b"real").physical_offset, store.put("guest", b"x").physical_offset]
        at = store.max_physical_offset
        for i in range(carriers):
            body, places = chain(at, size, i + 1, V2 if i % 3 == 2 else V1)
            put = store.put("guest", body)
            if put.physical_offset == at:  # else it went into the next file, and nothing in it is at its place
                of_guest.append(at)
                false += places
            true.append(put.physical_offset)
            at = store.max_physical_offset
        for i in range(queues):
            true += [store.put(f"last{i}", b"y").physical_offset for _ in range(20)]
        end = store.max_physical_offset
    return Forged(path, true, of_guest, false, end)
