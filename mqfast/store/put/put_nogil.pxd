# A put without the GIL.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.core cimport Core
from mqfast.store.log.append cimport Appended
from mqfast.store.log.log_state cimport LogState
from mqfast.store.queues.consume_queue cimport Slots
from mqfast.store.record.record cimport Draft

cdef enum PutOutcome:
    PUT_LEFT = 0                # nothing was stored: put_encoded decides
    PUT_STORED = 1
    PUT_LOST = 2                # stored, but the log failed meanwhile: no one knows whether the record will survive

# What a put needs of an open store. Valid while the store's Core lives.
cdef struct PutEntry:
    LogState *state
    Slots **queues
    int64_t max_body
    int64_t file_bytes
    int64_t busy_timeout_ms
    bint is_indexed
    bint multi_dispatch


cdef void open_entry(Core e, PutEntry *entry) noexcept
cdef int put_without_gil(const PutEntry *entry, Draft *d, Appended *out) noexcept nogil
