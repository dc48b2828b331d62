# Hits of a get: pointers to checked records, and the holds on their files.
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport realloc
from mqfast.store.base.mapped_file cimport FilePin

cdef struct Hit:
    const uint8_t *record
    int64_t queue_offset
    int64_t size                # checked size of the record

cdef struct Hits:
    Hit *at                     # from malloc; the owner frees the array
    Py_ssize_t count
    Py_ssize_t room
    int64_t total_bytes


cdef inline int add_hit(Hits *hits, const uint8_t *record, int64_t queue_offset, int64_t size) noexcept nogil:
    """Add a hit. Returns -1 without memory."""
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
    """Check after reading through the mappings that the files did not shrink. Raises: CorruptFile."""
    cdef FilePin held
    for held in pins:
        held.file.check_damage()
    return 0
