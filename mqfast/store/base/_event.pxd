# What one service thread sleeps on.
from libc.stdint cimport uint32_t


cdef class Event:
    cdef uint32_t word          # futex; counts the calls of set
    cdef uint32_t seen          # what that was when the thread last looked
    cdef uint32_t *elsewhere    # another futex that the thread sleeps on now, or NULL
