"""CRCs of the log taken by a second thread, ahead of recovery's walk over the same records.

It must never decide where the log ends, and never keep the walk waiting for long: in a window that this thread did not begin, in which it found
anything but whole records, or which it has not finished in a millisecond, the walk takes the CRCs itself. A record belongs to the window that
it starts in; both come to the same records, as each says where the next one starts. Windows are for whoever comes first, so that the two share
the work whatever else the walk has to do. On one processor, or for little, there is no second thread.
"""

import os
import threading

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from mqfast.store.log._commit_log cimport CommitLog
from mqfast.store.base._mapped_file cimport Lease, MappedFile, lease
from mqfast.store.base._os cimport mq_cas64, mq_fetch_to_read, mq_load32, mq_load64, mq_pause, mq_prefetchr, mq_store32, mq_store64
from mqfast.store.record._record cimport REC_BLANK, REC_OK, Record, check_crc, parse_record

cdef enum:                  # of a window
    FREE = 0
    OF_WALK = 1
    OF_THREAD = 2
    WHOLE = 3               # every record that starts here is
    DOUBTFUL = 4            # the thread did not get through

# Near the walk, which would wait for the rest of a window, the thread leaves the next ones to it, and goes on far from it.
cdef enum:
    NEAR = 1
    FAR = 32

cdef int64_t CHECK_AHEAD = 1 << 10      # fetched behind the next record, as by the walk
cdef int64_t HEADS_AHEAD = 8            # the same: of the walk's windows only heads are read
cdef int LOOKS = 20000                  # at a window that is not ready yet: about a millisecond


cdef bint is_whole(CrcWindows *w, int64_t at) noexcept nogil:
    """Did the thread find all records of this window whole? Asked once by the walk, with the start of its first record; False: check them."""
    cdef int64_t number = (at >> WINDOW_BITS) - w.first
    cdef int64_t *state = w.states + number
    cdef int i
    if not 0 <= number < w.count:
        return False
    mq_store64(&w.walk_at, at)
    if mq_cas64(state, FREE, OF_WALK):
        return False
    for i in range(LOOKS):
        if mq_load64(state) != OF_THREAD:
            break
        mq_pause()
    return mq_load64(state) == WHOLE


cdef class CrcAhead:
    """The thread over [start, end) of the log; made and ended by the walk's thread, which asks `is_whole`."""

    def __init__(self, CommitLog log, int64_t start, int64_t end, bint property_crc):
        self.log = log
        self.start = start
        self.end = end
        self.property_crc = property_crc
        self.mine = self.number = -1
        self.windows.first = start >> WINDOW_BITS
        self.windows.count = (end >> WINDOW_BITS) - self.windows.first + 1
        self.windows.walk_at = start
        self.windows.states = <int64_t *> calloc(self.windows.count, sizeof(int64_t))
        if self.windows.states == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.windows.states)

    cdef CrcWindows *begin(self) except? NULL:
        """Start the thread. NULL: there is none, as there is one processor only, or no more threads."""
        processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        if processors < 2:
            return NULL
        thread = threading.Thread(target=self.run, name="mqfast-crc-ahead", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return NULL
        self.thread = thread
        return &self.windows

    cdef int finish(self) except -1:
        """Wait for the thread's end. Nobody may look at the windows behind this."""
        if self.thread is not None:
            mq_store32(&self.windows.stop, 1)
            self.thread.join()
            self.thread = None
        return 0

    def run(self) -> None:
        """What the thread does: file after file, as far as records go."""
        cdef MappedFile file
        cdef Lease held
        cdef int64_t at = self.start, file_end
        cdef bint more = True
        try:
            while more:
                # Files behind the walk are not for this thread any more; nor is a window that it may still have: the walk has gone past it.
                at = max(at, mq_load64(&self.windows.walk_at))
                file = self.log.file_at(at)
                if file is None:
                    break
                held = lease(file)
                file_end = file.start_offset + file.file_bytes
                with nogil:
                    more = self._through(held.base, file.start_offset, file_end, &at)
                file.check_damage()     # what was read where a page is gone is no record
                if more:
                    at = file_end
                    more = at < self.end
            self._give_back(WHOLE if at >= self.end else DOUBTFUL)
        except Exception:               # the walk meets it as well, and tells
            pass
        finally:
            self._give_back(DOUBTFUL)

    cdef void _give_back(self, int64_t found) noexcept nogil:
        if self.mine >= 0:
            self.checked += found == WHOLE
            mq_store64(self.windows.states + self.mine, found)
            self.mine = -1

    cdef bint _through(self, const uint8_t *base, int64_t file_start, int64_t file_end, int64_t *position) noexcept nogil:
        """Take the CRCs of one file; False when there is no more to do, at `position`."""
        cdef CrcWindows *w = &self.windows
        cdef int64_t limit = min(self.end, file_end), at = position[0]
        cdef const uint8_t *p
        cdef Record r
        cdef int64_t walk_at, walk_number
        cdef int outcome
        while at < limit and not mq_load32(&w.stop):
            p = base + (at - file_start)
            outcome = parse_record(p, limit - at, &r)
            if outcome == REC_BLANK or file_end - at < 8:
                return True
            if outcome != REC_OK or r.physical_offset != at:
                break
            if (at >> WINDOW_BITS) - w.first != self.number:
                self.number = (at >> WINDOW_BITS) - w.first
                self._give_back(WHOLE)
                walk_at = mq_load64(&w.walk_at)
                walk_number = (walk_at >> WINDOW_BITS) - w.first
                if self.number <= walk_number + NEAR:
                    self.from_window = walk_number + FAR
                if self.number >= self.from_window and mq_cas64(w.states + self.number, FREE, OF_THREAD):
                    self.mine = self.number
                elif at < walk_at < limit:      # left behind: on from where the walk is
                    at = walk_at
                    continue
            if self.mine >= 0:
                mq_prefetchr(p + r.total)
                mq_prefetchr(p + r.total + 64)
                mq_fetch_to_read(p + r.total + CHECK_AHEAD, r.total)
                if not check_crc(p, &r, self.property_crc):
                    break
            else:
                mq_prefetchr(p + HEADS_AHEAD * r.total)
            at += r.total
        position[0] = at
        return at >= file_end
