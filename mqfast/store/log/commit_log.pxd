# The log: files and positions.
from libc.stdint cimport int64_t, uint32_t, uint8_t
from mqfast.store.log.log_state cimport LogState
from mqfast.store.base.mapped_file cimport Latch, MappedFile
from mqfast.store.base.os_api cimport Mutex, OsApi

cdef class CommitLog:
    cdef LogState state
    cdef readonly Latch latch               # of this log: a lost page of a file that is written to latches the log
    cdef readonly OsApi os_api
    cdef readonly str path
    cdef readonly int64_t file_bytes
    cdef public object get_ready  # called by a put while LOG_WAITING is set: clears the flag, or raises DiskFull
    cdef public object allocator            # provides the next file: AllocateMappedFileService
    cdef public object pool                 # TransientStorePool, or None
    cdef public bint sync_flush
    cdef bint hide_unflushed                # readers see only durable records
    cdef bint inline_dispatch  # as the store was opened; with a confirm offset the dispatcher puts the units
    cdef readonly list files
    cdef Mutex roll_lock
    cdef list retained                      # MappedFiles of the ring, oldest first
    cdef int64_t reaped                     # number of files released: ring number of the first of `retained`
    cdef int64_t reap_head                  # the ring's head at the last reap; read without the GIL
    cdef MappedFile current
    cdef public int64_t prefault_window
    cdef readonly int64_t zeros_ahead       # with sync flush: bytes ahead that are written to the disk as zeros
    cdef int64_t thorough_commit_due        # of the commit thread
    cdef MappedFile file_at(self, int64_t physical_offset)
    cdef int roll(self, int64_t needed) except -1
    cdef int _roll_over(self) except -1
    cdef int _retain(self, MappedFile file) except -1
    cdef int _sync_range(self, int64_t first, int64_t end) except -1
    cdef int _dirty(self, MappedFile file, int64_t at, int64_t n) except -1
    cdef int _give_blocks(self, int64_t needed, int64_t ahead) except -1
    cdef void _switch_to(self, MappedFile file) noexcept
    cdef int _set_positions(self, int64_t end, int64_t store_timestamp) except -1
    cdef int take_put_lock(self) except -1
    cdef int _commit_failed(self, int rc) except -1
    cdef int raise_state(self) except -1
    cdef int raise_lost(self) except -1


cdef int64_t deadline_after(int64_t now_ns, object timeout) except? -2
