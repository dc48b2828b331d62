"""The memory speed of this machine: copy with CRC, and CRC alone, by the routines of the store and without a store.

The demo and benchmarks print these figures beside those of the engine.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset
from mqfast.store.base.os_api cimport OsApi, crc31, crc32_copy, mq_os

from mqfast.errors import UsageError


def memory_floor(int64_t message_bytes, int64_t count) -> tuple:
    """Measure on fresh memory that is made resident beforehand.

    Args: message_bytes: bytes of one copy; count: copies, each to a place of its own.
    Returns: (ns of one copy with CRC, bytes per second of CRC over all of it once more, as a scan would).
    Raises: UsageError, MemoryError. GIL: released.
    """
    cdef OsApi os_api = OsApi()
    cdef mq_os *os = os_api.os
    cdef int64_t began, copied, scanned, i
    cdef uint32_t sum_ = 0
    cdef uint8_t *source
    cdef uint8_t *target
    if not 0 < message_bytes <= 1 << 26 or not 0 < count <= (1 << 33) // message_bytes:
        raise UsageError(
            f"memory_floor: expected up to 8 GiB in messages up to 64 MiB, found {count} of {message_bytes} bytes"
        )
    source = <uint8_t *> malloc(message_bytes)
    target = <uint8_t *> malloc(message_bytes * count)
    if source == NULL or target == NULL:
        free(source)
        free(target)
        raise MemoryError()
    with nogil:
        memset(source, 0x5A, message_bytes)
        memset(target, 1, message_bytes * count)
        began = os.monotonic_ns(os)
        for i in range(count):
            sum_ ^= crc32_copy(target + i * message_bytes, source, message_bytes)
        copied = os.monotonic_ns(os)
        for i in range(count):
            sum_ ^= crc31(target + i * message_bytes, message_bytes)
        scanned = os.monotonic_ns(os)
        # The sum is used, or the compiler would drop the loops.
        source[0] = <uint8_t> sum_
        free(source)
        free(target)
    return <double> (copied - began) / count, message_bytes * count * 1e9 / max(1, scanned - copied)
