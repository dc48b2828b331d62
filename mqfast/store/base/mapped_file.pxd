# One fixed-size file of the store, mapped, with a reference count; see the rules of ownership in docs/architecture.md.
from libc.stdint cimport int64_t, uint8_t, uint32_t
from mqfast.store.base.os_api cimport OsApi, mq_damage, mq_guarded, mq_latch, mq_os


cdef class Latch:
    """Words that a lost page of a file that is written through sets; their owner detaches the latch before they are
    freed.
    """
    cdef mq_latch c


cdef class MappedFile:
    cdef readonly OsApi os_api
    cdef readonly str path
    cdef readonly int64_t start_offset      # first byte, in the logical stream that the file is a part of
    cdef readonly int64_t file_bytes
    cdef readonly bint writable
    cdef mq_os *os
    cdef uint8_t *base                      # NULL while not mapped
    cdef int fd                             # kept open while the file may still need a sync; -1 afterwards
    cdef int64_t references                 # 1 for the owner, 1 for each hold; unmapped with the last one
    cdef readonly int64_t ready  # bytes from the start whose pages were made writable before the first append
    # bytes from the start that have real blocks: only those may be written through the mapping
    cdef readonly int64_t allocated
    cdef readonly str setting               # settings that reduce the disk use, for DiskFull, or None
    cdef int64_t locked_bytes
    cdef uint8_t *buffer                    # a transient pool's buffer that takes the appends, or NULL
    cdef bint owned                         # the owner's reference is not dropped yet
    cdef bytes native_path
    cdef mq_guarded *guarded                # entry in the table of guarded mappings, while mapped
    cdef mq_damage damage                   # written by the SIGBUS handler: the mapping does not show the file any more
    cdef Latch latch                        # set by a lost page while the mapping is written through, or None
    cdef int _init(self, OsApi os_api, path, int64_t start_offset, int64_t file_bytes, bint writable) except -1
    cdef uint8_t *hold(self) except NULL
    cdef void release(self) noexcept
    cdef int map(self) except -1
    cdef mq_guarded *guard(self, void *address, const char *kept_name, mq_latch *kept_latch) noexcept nogil
    cdef int mapped_at(self, void *address, mq_guarded *guarded) except -1
    cdef int check_damage(self) except -1   # after every read through the mapping, before its result is used
    cdef void watch(self, Latch latch) noexcept
    cdef void unmap(self) noexcept
    cdef int open_fd(self) except -1
    cdef void close_fd(self) noexcept


cdef class FilePin:
    cdef MappedFile file
    cdef uint8_t *base


cdef FilePin pin_file(MappedFile file)
cdef int64_t mapped_now() noexcept nogil
