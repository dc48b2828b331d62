"""The bytes of 46-byte units in a MappedFile, for the queues in Python (RocketMQ: BatchConsumeQueue, ConsumeQueueExt).

No access outside the file for any position, and no write where no block is allocated. This module knows the fields of a
unit, and no queues. Layout: FORMAT.md.
"""

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from mqfast.store.base.mapped_file cimport MappedFile
from mqfast.store.base.os_api cimport check, mq_get16, mq_get32, mq_get64, mq_os, mq_put16, mq_put32, mq_put64

from mqfast.errors import InternalError

BATCH_UNIT_BYTES = 46


cdef int inside(MappedFile file, int64_t position, int64_t n) except -1:
    if position < 0 or n < 0 or position > file.file_bytes - n:
        raise InternalError(f"{file.path} has {file.file_bytes} bytes, not {n} at {position}")
    return 0


def read_bytes(MappedFile file, int64_t position, int64_t n) -> bytes:
    """Return a copy of ``n`` bytes. Raises: InternalError outside the file; CorruptFile for a shrunk file; StoreClosed.
    """
    cdef uint8_t *base
    inside(file, position, n)
    base = file.hold()
    try:
        data = (<const char *> base + position)[:n]
        file.check_damage()
        return data
    finally:
        file.release()


def read_batch_unit(MappedFile file, int64_t position) -> tuple:
    """Return the seven fields of a unit, in the order of the file. Raises: as read_bytes."""
    cdef const uint8_t *p
    inside(file, position, 46)
    p = file.hold() + position
    try:
        unit = (mq_get64(p), mq_get32(p + 8), mq_get64(p + 12), mq_get64(p + 20), mq_get64(p + 28), mq_get16(p + 36),
                mq_get32(p + 38))
        file.check_damage()
        return unit
    finally:
        file.release()


def write_batch_unit(MappedFile file, int64_t position, int64_t physical_offset, int32_t size, int64_t tags_code,
                     int64_t store_timestamp, int64_t base_offset, int16_t batch_size) -> None:
    """Write a unit, never compacted. Raises: InternalError outside the file; DiskFull, StorageError: nothing is written
    then.

    Durability: the page cache; ``sync`` makes the unit durable.
    """
    cdef uint8_t *p
    inside(file, position, 46)
    file.grow(position + 46)
    p = file.hold() + position
    mq_put64(p + 12, tags_code)
    mq_put64(p + 20, store_timestamp)
    mq_put64(p + 28, base_offset)
    mq_put16(p + 36, batch_size)
    mq_put32(p + 38, -1)
    mq_put32(p + 42, 0)
    mq_put64(p, physical_offset)
    mq_put32(p + 8, size)
    file.release()
    file.check_damage()


def valid_batch_units(MappedFile file, int64_t max_units, int64_t below_physical) -> tuple:
    """Return (count, last): the valid units from the first on with records below that physical offset, and the last
    physical offset (or -1).

    Args: ``most``: maximum count; clipped to the capacity of the file. GIL: released.
    """
    cdef const uint8_t *base
    cdef const uint8_t *p
    cdef int64_t count = 0, last = -1, physical
    max_units = min(max_units, file.file_bytes // 46)
    base = file.hold()
    try:
        with nogil:
            while count < max_units:
                p = base + count * 46
                physical = mq_get64(p)
                if physical < 0 or physical >= below_physical or mq_get32(p + 8) <= 0 or mq_get16(p + 36) <= 0:
                    break
                if <uint64_t> mq_get64(p + 28) >> 62:  # negative, or so large that the unit is damaged
                    break
                last = physical
                count += 1
        file.check_damage()
    finally:
        file.release()
    return count, last


def sync(MappedFile file, int64_t start, int64_t end) -> int:
    """Make the bytes from ``start`` to ``end`` durable; return the bytes covered. Raises: StorageError. GIL: released.
    """
    cdef uint8_t *base
    cdef mq_os *os = file.os
    cdef int64_t first = start & ~<int64_t> 4095
    cdef int rc
    inside(file, start, end - start)
    if start == end:
        return 0
    base = file.hold()
    try:
        with nogil:
            rc = os.msync(os, base + first, end - first)
    finally:
        file.release()
    check(rc, "msync", file.path)
    file.check_damage()
    return end - first
