# Hits of a get: pointers to records that were checked, and the holds on the files that they point into.
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from mqfast.store.base.mapped_file cimport FilePin

cdef struct Hit:
    const uint8_t *record
    int64_t queue_offset
    int64_t size                # of the record, as its unit says and as was checked

cdef struct Hits:
    Hit *at                     # of malloc; its owner frees it
    Py_ssize_t count
    Py_ssize_t room
    int64_t total_bytes


cdef inline int add_hit(Hits *hits, const uint8_t *record, int64_t queue_offset, int64_t size) noexcept nogil:
    """Returns -1 without memory."""
    cdef Hit *grown
    if hits.count == hits.room:
        grown = <Hit *> realloc(hits.at, (32 if hits.room == 0 else hits.room * 2) * sizeof(Hit))
        if grown == NULL:
            return -1
        hits.at = grown
        hits.room = 32 if hits.room == 0 else hits.room * 2
    hits.at[hits.count].record = record
    hits.at[hits.count].queue_offset = queue_offset
    hits.at[hits.count].size = size
    hits.count += 1
    hits.total_bytes += size
    return 0


cdef inline int check_pins(list pins) except -1:
    """After anything was read through the mappings: is it the files that were seen? Raises: CorruptFile."""
    cdef FilePin held
    for held in pins:
        held.file.check_damage()
    return 0
