# The object that a service thread sleeps on.
from libc.stdint cimport int64_t, uint32_t


cdef class Event:
    cdef uint32_t word          # futex; counts the calls of set
    cdef uint32_t seen          # value of `word` at the thread's last check
    cdef int64_t elsewhere      # address of another futex that the thread sleeps on now, or 0
