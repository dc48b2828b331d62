# The topics whose sends reactors may serve.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef enum:
    SIZE_STEPS = 7              # of the histogram of sizes; BrokerStats.SIZE_BOUNDS

# What a reactor has stored in a topic; written by this reactor only, on cache lines of its own.
cdef struct TopicCounts:
    int64_t puts
    int64_t bytes
    int64_t sizes[SIZE_STEPS]
    int64_t padding[7]

cdef struct Topic:
    uint64_t hash
    int32_t name_bytes
    int32_t queues              # a send to queues from 0 to here is served; 0: none
    int32_t sys_flag            # bits of every record
    const uint8_t *name
    TopicCounts *counts         # of each reactor
    TopicCounts *seen           # by Python

cdef struct TopicSlots:         # open addressing; only empty slots are filled
    int64_t mask
    TopicSlots *older
    Topic *at[0]


cdef class TopicTable:
    cdef TopicSlots *slots
    cdef int reactors
    cdef dict topics            # name -> number in `all`
    cdef Topic **all
    cdef Py_ssize_t count
    cdef Py_ssize_t room
    cdef Topic *_of(self, bytes name) except NULL
    cdef TopicSlots *_fresh(self, int64_t size) except NULL


cdef Topic *find_topic(TopicSlots **table, const uint8_t *name, Py_ssize_t n) noexcept nogil
