"""Unique ids of messages (UNIQ_KEY): of producers, and of a broker for messages without an id.

No id is repeated. Source: MessageClientIDSetter.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_DecodeASCII
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

import os
import time
from datetime import datetime

cdef const char *HEX = b"0123456789ABCDEF"


def month_of(double seconds):
    """Return the begin of the month of a time in local time, and that of the next month, both in ms."""
    now = datetime.fromtimestamp(seconds)
    begin = datetime(now.year, now.month, 1)
    end = datetime(now.year + now.month // 12, now.month % 12 + 1, 1)
    return int(begin.timestamp() * 1000), int(end.timestamp() * 1000)


cdef class UniqueIds:
    """Generates the unique ids (UNIQ_KEY) of a process: upper-case hex, 32 digits for an IPv4 host and 56 for IPv6.

    Args: host: the address, 4 or 16 bytes. clock: seconds since the epoch. month: as ``month_of``.
    The time of an id counts from the begin of the month, as in RocketMQ. No id is repeated, even if the clock
    is set back: 65,536 ids have the same millisecond, the next id the following millisecond.
    Thread: any.
    """

    def __init__(self, bytes host, clock=time.time, month=month_of):
        head = host + (os.getpid() & 0xFFFF).to_bytes(2, "big") + os.urandom(4)
        self._head = head.hex().upper().encode()
        self._clock = clock
        self._month = month
        self._now = -1
        self._next_month = -1

    def next(self):
        """Return a new id."""
        cdef char text[64]
        return PyUnicode_DecodeASCII(text, self.write(text), NULL)

    cdef Py_ssize_t write(self, char *at) except -1:
        """Write a new id. Returns: the length, at most 56."""
        cdef int64_t now = <int64_t> (<double> self._clock() * 1000), late
        cdef Py_ssize_t head = PyBytes_GET_SIZE(self._head)
        cdef uint64_t tail
        cdef int i
        while True:
            late = now if now > self._now else self._now + (self._count - self._first >= 65536)
            if late < self._next_month:
                break  # from here on no other thread can run
            self._begin, self._next_month = self._month(late / 1000)
        if late > self._now:
            self._now = late
            self._first = self._count
        tail = <uint64_t> (<uint32_t> (late - self._begin)) << 16 | (self._count & 0xFFFF)
        self._count += 1
        memcpy(at, PyBytes_AS_STRING(self._head), head)
        for i in range(12):
            at[head + 11 - i] = HEX[tail & 15]
            tail >>= 4
        return head + 12
