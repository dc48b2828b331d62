# CRCs that a second thread takes ahead of recovery's walk; see _crc_ahead.pyx.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from mqfast.store.log._commit_log cimport CommitLog

cdef enum:
    WINDOW_BITS = 17                # 128 KiB of the log: what one of the two checks at a time, some 10 us

# Shared by both threads; a word of each window says who has it, and what was found.
cdef struct CrcWindows:
    int64_t *states
    int64_t first                   # number of the first window: its start, shifted
    int64_t count
    int64_t walk_at                 # start of the first record of the window that the walk came to last
    uint32_t stop                   # nobody wants any more


cdef bint is_whole(CrcWindows *w, int64_t at) noexcept nogil


cdef class CrcAhead:
    cdef CrcWindows windows
    cdef CommitLog log
    cdef int64_t start, end
    cdef bint property_crc
    cdef object thread
    cdef int64_t number         # of the window that the thread is in, -1 at first
    cdef int64_t mine           # the same while it takes the CRCs there, else -1
    cdef int64_t from_window    # windows below are the walk's
    cdef readonly int64_t checked       # windows that were found whole
    cdef CrcWindows *begin(self) except? NULL
    cdef int finish(self) except -1
    cdef void _give_back(self, int64_t found) noexcept nogil
    cdef bint _through(self, const uint8_t *base, int64_t file_start, int64_t file_end, int64_t *position) noexcept nogil
