# The calls of the operating system, and the C of csrc/. csrc/ is linked into this extension only; others reach it by
# cimport.
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef extern from *:
    """
    /* Without memory for a traceback, the C that Cython makes of `except` and `with` increments and decrements the
     * reference count of NULL, which ends the process. tests/memory covers that at open; no flag of Cython prevents
     * it. */
    #undef Py_INCREF
    #undef Py_DECREF
    #define Py_INCREF(object) Py_XINCREF((PyObject *) (object))
    #define Py_DECREF(object) Py_XDECREF((PyObject *) (object))

    #ifdef MQ_DEBUG
    /* Count how often the threads of services take the GIL in C (service_gil_takes). */
    #include <string.h>
    #if defined(__linux__)
    #include <sys/prctl.h>
    #endif
    static void mq_take_gil(PyThreadState *state) {
        static int64_t *takes;
        char name[16] = "";
        PyEval_RestoreThread(state);
    #if defined(__linux__)
        prctl(PR_GET_NAME, (unsigned long) name, 0UL, 0UL, 0UL);
    #endif
        if (strncmp(name, "mqfast-", 7) != 0) return;
        if (takes == NULL) {
            PyObject *type, *value, *traceback;
            PyErr_Fetch(&type, &value, &traceback);
            takes = (int64_t *) PyCapsule_Import("mqfast.store.base.os_api._gil_takes", 0);
            PyErr_Clear();
            PyErr_Restore(type, value, traceback);
        }
        if (takes != NULL) __atomic_add_fetch(takes, 1, __ATOMIC_RELAXED);
    }
    #define PyEval_RestoreThread mq_take_gil
    #endif
    """

cdef extern from "short_copy.h" nogil:
    void mq_short_copy(uint8_t *to, const uint8_t *source, size_t n)
    bint mq_short_equal(const uint8_t *a, const uint8_t *b, size_t n)

# Invariants of this code, checked in debug builds; macros: other builds do not evaluate the arguments.
cdef extern from "invariants.h" nogil:
    enum:
        MQ_IS_DEBUG
    void mq_assert(bint condition, int64_t a, int64_t b)
    bint mq_planted(const char *name)
    uint64_t mq_this_thread()

cdef extern from "endian.h" nogil:
    int16_t mq_get16(const void *p)
    int32_t mq_get32(const void *p)
    int64_t mq_get64(const void *p)
    void mq_put16(void *p, int16_t x)
    void mq_put32(void *p, int32_t x)
    void mq_put64(void *p, int64_t x)
    void mq_publish32(void *p, int32_t x)
    int32_t mq_acquire32(const void *p)
    int64_t mq_acquire64(const void *p)
    void mq_release32(void *p, int32_t x)
    void mq_release64(void *p, int64_t x)

cdef extern from "atomics.h" nogil:
    void mq_pause()
    void mq_prefetchw(const void *p)
    void mq_prefetchr(const void *p)
    void mq_fetch_to_write(const uint8_t *p, int64_t n)
    void mq_fetch_to_read(const uint8_t *p, int64_t n)
    int64_t mq_load64(const int64_t *p)
    void mq_store64(int64_t *p, int64_t v)
    uint32_t mq_load32(const uint32_t *p)
    void mq_store32(uint32_t *p, uint32_t v)
    int64_t mq_add64(int64_t *p, int64_t v)
    uint32_t mq_or32(uint32_t *p, uint32_t v)
    uint32_t mq_and32(uint32_t *p, uint32_t v)
    uint32_t mq_add32(uint32_t *p, uint32_t v)
    void mq_fence()
    int mq_cas32(uint32_t *p, uint32_t expect, uint32_t v)
    int mq_cas64(int64_t *p, int64_t expect, int64_t v)
    int mq_lock_try(uint32_t *word)
    int mq_unlock_no_wake(uint32_t *word)

cdef extern from "os_api.h" nogil:
    ctypedef struct mq_stat:
        int64_t bytes
        int64_t mtime_ms
        int64_t device
        int64_t inode
        int is_directory
        int unlinked
    cdef enum:
        MQ_READ
        MQ_READ_WRITE
        MQ_ADVISE_RANDOM
        MQ_ADVISE_SEQUENTIAL
        MQ_ADVISE_WILLNEED
        MQ_ADVISE_POPULATE_WRITE
        MQ_ADVISE_HUGE
        MQ_ADVISE_UNMAP
        MQ_OPEN_READ
        MQ_OPEN_WRITE
        MQ_OPEN_CREATE
        MQ_OPEN_TRUNCATE
        MQ_OPEN_EXCLUSIVE
    ctypedef struct mq_os:
        int (*open)(mq_os *, const char *path, int flags) noexcept nogil
        int (*close)(mq_os *, int fd) noexcept nogil
        int (*fallocate)(mq_os *, int fd, int64_t offset, int64_t bytes) noexcept nogil
        int (*ftruncate)(mq_os *, int fd, int64_t bytes) noexcept nogil
        int (*fstat)(mq_os *, int fd, mq_stat *out) noexcept nogil
        int (*stat)(mq_os *, const char *path, mq_stat *out) noexcept nogil
        int (*mmap)(mq_os *, int fd, int64_t bytes, int protection, void **out) noexcept nogil
        int (*munmap)(mq_os *, void *address, int64_t bytes) noexcept nogil
        int (*madvise)(mq_os *, void *address, int64_t bytes, int advice) noexcept nogil
        int (*mlock)(mq_os *, void *address, int64_t bytes) noexcept nogil
        int (*munlock)(mq_os *, void *address, int64_t bytes) noexcept nogil
        int (*msync)(mq_os *, void *address, int64_t bytes) noexcept nogil
        int64_t (*seek_data)(mq_os *, int fd, int64_t offset) noexcept nogil
        int64_t (*pread)(mq_os *, int fd, void *to, int64_t bytes, int64_t offset) noexcept nogil
        int64_t (*pwrite)(mq_os *, int fd, const void *from_, int64_t bytes, int64_t offset) noexcept nogil
        int (*fdatasync)(mq_os *, int fd) noexcept nogil
        int (*fsync)(mq_os *, int fd) noexcept nogil
        int (*rename)(mq_os *, const char *from_, const char *to) noexcept nogil
        int (*unlink)(mq_os *, const char *path) noexcept nogil
        int (*mkdir)(mq_os *, const char *path) noexcept nogil
        int (*rmdir)(mq_os *, const char *path) noexcept nogil
        int (*sync_directory)(mq_os *, const char *path) noexcept nogil
        int (*statvfs)(mq_os *, const char *path, int64_t *total_bytes, int64_t *available_bytes) noexcept nogil
        int (*lock_byte)(mq_os *, int fd) noexcept nogil
        int64_t (*clock_ms)(mq_os *) noexcept nogil
        int64_t (*monotonic_ns)(mq_os *) noexcept nogil
        int (*sync_filesystem)(mq_os *, int fd) noexcept nogil
        int (*unlock_byte)(mq_os *, int fd) noexcept nogil
        int (*lock_directory)(mq_os *, int fd, int hold) noexcept nogil
        void *state
        int unguarded
    mq_os *mq_os_real()

cdef extern from "sigbus_guard.h" nogil:
    ctypedef struct mq_damage:
        uint32_t hits
        int64_t position
    ctypedef struct mq_latch:
        uint32_t *flags
        uint32_t bits
        int *error
        uint32_t taken
        uint32_t published
        int64_t position
        char path[1024]
    ctypedef struct mq_guarded:
        pass
    void mq_touch(const void *p)


ctypedef int (*PathCall)(mq_os *, const char *) noexcept nogil

cdef class OsApi:
    cdef mq_os *os
    cdef mq_os table            # a private copy that a test may change; `os` points here
    cpdef int64_t now_ms(self) noexcept
    cpdef int64_t monotonic_ns(self) noexcept
    cdef int _call(self, PathCall call, object path) except 1
    cdef int _stat(self, object path, mq_stat *st) except 1


# The functions of csrc/, exported once. Other extensions call these, not the C names, which are not linked there.
cdef uint32_t crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil
cdef uint32_t crc31(const uint8_t *p, size_t n) noexcept nogil
cdef uint32_t crc32_more(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil
cdef uint32_t crc32_copy(uint8_t *to, const uint8_t *p, size_t n) noexcept nogil
cdef void lock_wait(uint32_t *word) noexcept nogil
cdef void unlock(uint32_t *word) noexcept nogil
cdef void lock(uint32_t *word) noexcept nogil
cdef void futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns) noexcept nogil
cdef void futex_wake_all(uint32_t *word) noexcept nogil
cdef void futex_wake_one(uint32_t *word) noexcept nogil
cdef void yield_processor() noexcept nogil
cdef int write_all(mq_os *os, int fd, const void *p, int64_t n, int64_t offset) noexcept nogil
cdef int64_t read_all(mq_os *os, int fd, void *p, int64_t n, int64_t offset) noexcept nogil
cdef int64_t list_starts(const char *path, int64_t *starts, int64_t most) noexcept nogil
cdef int populate(mq_os *os, void *address, int64_t n) noexcept nogil
cdef void touch(void *address, int64_t n) noexcept nogil
cdef void unmap_written(mq_os *os, void *address, int64_t n) noexcept nogil
cdef int allocate(mq_os *os, int fd, int64_t offset, int64_t n) noexcept nogil
cdef int allocate_empty(mq_os *os, int fd, int64_t offset, int64_t n) noexcept nogil

# The page cache keeps up to 2 MiB of a file as one unit, a folio, which starts at a multiple of its length. A write
# through a mapping dirties the whole folio, so the whole folio needs blocks.
cdef enum:
    FOLIO = 2 << 20
cdef inline int64_t in_folios(int64_t position) noexcept nogil:
    """Return the end of the folio that ends at or behind this position."""
    return (position + FOLIO - 1) & ~<int64_t> (FOLIO - 1)

cdef mq_guarded *guard_add(mq_os *os, void *address, int64_t n, const char *path, mq_damage *damage,
                           mq_latch *latch) noexcept nogil
cdef void guard_watch(mq_guarded *guarded, mq_latch *latch) noexcept nogil
cdef void guard_remove(mq_guarded *guarded) noexcept nogil
cdef void latch_cut(mq_latch *latch) noexcept nogil

# errno (negative, as the table returns it) -> exception of mqfast.errors
cpdef bytes encode_path(object path)
cpdef str decode_path(object path)
cdef object os_error(int64_t rc, str what, object path)
cdef int check(int64_t rc, str what, object path) except -1
cdef int check_room(OsApi os_api, int64_t rc, str what, object path, int64_t wanted, str setting) except -1

cdef class Mutex:
    cdef uint32_t word
    cdef readonly uint32_t waiting      # threads
    cdef int64_t owner                  # ident of the thread that holds the lock, or 0
    cdef int depth                      # nesting depth of that thread
    cdef bint nests


cdef int acquire(Mutex mutex) except -1
cdef void acquire_without_gil(Mutex mutex) noexcept nogil     # not in the main thread, which runs signal handlers
cdef void release(Mutex mutex) noexcept nogil
cdef void handoff(Mutex mutex) noexcept nogil
cdef int refuse_nested() except -1
cdef bint gets_signals() noexcept
cdef enum:
    LONGEST_WAIT_NS = 100000000         # longest wait between two checks for signals, which need the GIL
