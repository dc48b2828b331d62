"""OsApi: the store's only access to files, mappings and clocks, and the one place where an errno becomes an exception.

The GIL is released over every call that may wait for the disk. csrc/os_api.h has the table of calls. Only this
extension links csrc/, so that its static variables (CPU choice, OS table) exist once.
"""

import errno as _errno
import os as _os
import sys as _sys
import threading as _threading

from mqfast.errors import DiskFull, MapFailed, NestedCall, StorageError, StoreLocked, StoreNotFound

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memset
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.pycapsule cimport PyCapsule_New
from cpython.pythread cimport PyThread_start_new_thread
from cpython.ref cimport Py_DECREF, Py_INCREF

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()

cdef extern from "crc32.h" nogil:
    uint32_t mq_crc32(uint32_t seed, const uint8_t *p, size_t n)
    uint32_t mq_crc31(const uint8_t *p, size_t n)
    uint32_t mq_crc32(uint32_t seed_crc, const uint8_t *p, size_t n)
    uint32_t mq_crc32_copy(uint8_t *to, const uint8_t *p, size_t n)
    const char *mq_crc32_variant()
    int mq_crc32_force(const char *name)

cdef extern from "atomics.h" nogil:
    void mq_lock(uint32_t *word)
    void mq_lock_wait(uint32_t *word)
    int mq_lock_wait_for(uint32_t *word, int64_t timeout_ns)
    void mq_unlock(uint32_t *word)
    void mq_futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns)
    void mq_futex_wake_all(uint32_t *word)
    void mq_futex_wake_one(uint32_t *word)
    void mq_yield()
    void mq_name_thread(const char *name)

cdef extern from "os_api.h" nogil:
    int64_t mq_os_spared(int64_t n)
    int mq_os_write_all(mq_os *os, int fd, const void *p, int64_t n, int64_t offset)
    int64_t mq_os_read_all(mq_os *os, int fd, void *p, int64_t n, int64_t offset)
    int64_t mq_os_list_starts(const char *path, int64_t *starts, int64_t most)
    int mq_os_populate(mq_os *os, void *address, int64_t n)
    void mq_os_touch(void *address, int64_t n)
    void mq_os_unmap_written(mq_os *os, void *address, int64_t n)
    int mq_os_allocate(mq_os *os, int fd, int64_t offset, int64_t n)
    int mq_os_allocate_empty(mq_os *os, int fd, int64_t offset, int64_t n)

cdef extern from "sigbus_guard.h" nogil:
    mq_guarded *mq_guard_add(void *address, int64_t n, const char *path, mq_damage *damage, mq_latch *latch)
    void mq_guard_watch(mq_guarded *guarded, mq_latch *latch)
    void mq_guard_remove(mq_guarded *guarded)
    void mq_latch_cut(mq_latch *latch)
    mq_guarded mq_guard_refused
    uint32_t mq_guard_hits()
    int64_t mq_guard_count()


cdef int HANDOFF_TIMES = 20            # checks whether another thread has the lock by now
cdef int64_t HANDOFF_NS = 50000        # interval of these checks


cdef uint32_t crc32(uint32_t seed, const uint8_t *p, size_t n) noexcept nogil:
    return mq_crc32(seed, p, n)

cdef uint32_t crc31(const uint8_t *p, size_t n) noexcept nogil:
    return mq_crc31(p, n)

cdef uint32_t crc32_more(uint32_t crc, const uint8_t *p, size_t n) noexcept nogil:
    return mq_crc32(crc, p, n)

cdef uint32_t crc32_copy(uint8_t *to, const uint8_t *p, size_t n) noexcept nogil:
    return mq_crc32_copy(to, p, n)

cdef void lock(uint32_t *word) noexcept nogil:
    mq_lock(word)

cdef void lock_wait(uint32_t *word) noexcept nogil:
    mq_lock_wait(word)

cdef void unlock(uint32_t *word) noexcept nogil:
    mq_unlock(word)

cdef void futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns) noexcept nogil:
    mq_futex_wait(word, expected, timeout_ns)

cdef void futex_wake_all(uint32_t *word) noexcept nogil:
    mq_futex_wake_all(word)

cdef void futex_wake_one(uint32_t *word) noexcept nogil:
    mq_futex_wake_one(word)

cdef void yield_processor() noexcept nogil:
    mq_yield()

cdef int write_all(mq_os *os, int fd, const void *p, int64_t n, int64_t offset) noexcept nogil:
    return mq_os_write_all(os, fd, p, n, offset)

cdef int64_t read_all(mq_os *os, int fd, void *p, int64_t n, int64_t offset) noexcept nogil:
    return mq_os_read_all(os, fd, p, n, offset)

cdef int64_t list_starts(const char *path, int64_t *starts, int64_t most) noexcept nogil:
    return mq_os_list_starts(path, starts, most)

cdef int populate(mq_os *os, void *address, int64_t n) noexcept nogil:
    return mq_os_populate(os, address, n)

cdef void touch(void *address, int64_t n) noexcept nogil:
    mq_os_touch(address, n)

cdef void unmap_written(mq_os *os, void *address, int64_t n) noexcept nogil:
    mq_os_unmap_written(os, address, n)

cdef int allocate(mq_os *os, int fd, int64_t offset, int64_t n) noexcept nogil:
    return mq_os_allocate(os, fd, offset, n)

cdef int allocate_empty(mq_os *os, int fd, int64_t offset, int64_t n) noexcept nogil:
    return mq_os_allocate_empty(os, fd, offset, n)

cdef mq_guarded *guard_add(mq_os *os, void *address, int64_t n, const char *path, mq_damage *damage,
                           mq_latch *latch) noexcept nogil:
    if os.unguarded:
        return &mq_guard_refused
    return mq_guard_add(address, n, path, damage, latch)

cdef void guard_watch(mq_guarded *guarded, mq_latch *latch) noexcept nogil:
    mq_guard_watch(guarded, latch)

cdef void guard_remove(mq_guarded *guarded) noexcept nogil:
    mq_guard_remove(guarded)

cdef void latch_cut(mq_latch *latch) noexcept nogil:
    mq_latch_cut(latch)


cpdef bytes encode_path(object path):
    """Return the bytes of a path for the system: UTF-8 for any locale.

    Topics are names of directories, and RocketMQ's are UTF-8. Bytes that are not UTF-8 are represented in the text as
    os.fsdecode does.
    """
    path = _os.fspath(path)
    return path if isinstance(path, bytes) else (<str> path).encode("utf-8", "surrogateescape")


cpdef str decode_path(object path):
    """Return the text of a path or name; the inverse of encode_path."""
    path = _os.fspath(path)
    return path if isinstance(path, str) else (<bytes> path).decode("utf-8", "surrogateescape")


def lost_page_count() -> int:
    """Return how often this process touched a mapped page that was lost (a truncated file, a disk that cannot read) and
    continued.
    """
    return mq_guard_hits()


def guarded_count() -> int:
    """Return the number of mappings of this process that are guarded now."""
    return mq_guard_count()


cdef extern from *:
    """
    #ifdef MQ_DEBUG
    #define MQ_COUNTS_GIL 1
    #else
    #define MQ_COUNTS_GIL 0
    #endif
    """
    bint MQ_COUNTS_GIL

cdef enum:
    MOST_PATHS = 8      # of one call of OsApi.devices

cdef int64_t gil_takes = 0
_gil_takes = PyCapsule_New(&gil_takes, "mqfast.store.base.os_api._gil_takes", NULL)


def service_gil_takes() -> int | None:
    """Return how often the service threads of all stores took the GIL again after C code of the store.

    None unless this is a debug build on Linux.
    """
    return mq_load64(&gil_takes) if MQ_COUNTS_GIL and _sys.platform.startswith("linux") else None


def name_thread(str name) -> None:
    """Name the calling thread for top, perf and debuggers, which show 15 bytes; on Linux only."""
    text = name.encode()
    cdef const char *given = text
    mq_name_thread(given)


def crc32_variant() -> str:
    """Return the name of the CRC implementation chosen for this CPU."""
    return mq_crc32_variant().decode()


def body_crc(data) -> int:
    """Return the CRC-32 of a bytes-like object with the sign bit cleared, as records store it. Source: UtilAll.crc32.
    """
    cdef const uint8_t[::1] view = data
    return mq_crc31(&view[0], view.shape[0]) if view.shape[0] else 0


cdef object os_error(int64_t rc, str what, object path):
    cdef int code = <int> -rc
    kind = StorageError
    if code in (_errno.ENOSPC, _errno.EDQUOT):
        kind = DiskFull
    elif code == _errno.ENOENT:
        kind = StoreNotFound
    elif what in ("mmap", "open") and code in (_errno.ENOMEM, _errno.EMFILE, _errno.ENFILE):
        kind = MapFailed
    elif what == "lock" and code == _errno.EAGAIN:
        kind = StoreLocked
    hint = ""
    if kind is MapFailed:
        hint = " (limit of open files)" if code != _errno.ENOMEM else " (see vm.max_map_count and the memory limit)"
    elif what == "open" and code == _errno.ENXIO:
        hint = " (expected a regular file, found a FIFO, a socket or a device)"
    return kind(code, f"{what} failed: {_os.strerror(code)}{hint}", path)


cdef int check(int64_t rc, str what, object path) except -1:
    if rc < 0:
        raise os_error(rc, what, path)
    return 0


def _mount_of(str directory) -> str:
    """Return the mount point of the file system of a directory."""
    cdef bytes place = _os.path.realpath(encode_path(directory))
    while not _os.path.ismount(place):
        place = _os.path.dirname(place)
    return decode_path(place)


cdef int check_room(OsApi os_api, int64_t rc, str what, object path, int64_t wanted, str setting) except -1:
    """Raise as check, for a call that needs ``wanted`` bytes of the disk.

    setting: the settings that reduce the need, as text, or None.
    Raises: DiskFull with the details needed to make room.
    """
    cdef int64_t total = 0, available = -1
    cdef bytes encoded
    cdef const char *name
    if rc >= 0:
        return 0        # without an object: the caller may hold a descriptor
    if rc not in (-_errno.ENOSPC, -_errno.EDQUOT):
        return check(rc, what, path)
    directory = _os.path.dirname(_os.path.abspath(path))
    while not _os.path.isdir(encode_path(directory)):
        directory = _os.path.dirname(directory)
    encoded = encode_path(directory)
    name = encoded
    if os_api.os.statvfs(os_api.os, name, &total, &available) < 0:
        available = -1
    error = os_error(rc, what, path)
    free = f"{available} are free" if available >= 0 else "it is not known how many are free"
    text = f"{error.strerror}: wanted {wanted} bytes, {free} on the file system of {_mount_of(directory)}"
    if wanted <= available < wanted + mq_os_spared(wanted):
        text += f", {mq_os_spared(wanted)} of them are left to others"
    elif available >= wanted:
        text += ", perhaps for root only, above a quota, or without inodes (df -i)"
    if setting is not None:
        text += f"; ask for less with a smaller {setting}"
    full = DiskFull(<int> -rc, text, path)
    full.wanted_bytes = wanted
    full.free_bytes = available if available >= 0 else None
    full.setting = setting
    raise full


cdef extern from *:
    """
    /* Number of Mutexes that the calling thread holds. */
    #if defined(__GLIBC__)
    static __thread int mq_mutexes_held __attribute__((tls_model("initial-exec")));
    #else
    static __thread int mq_mutexes_held;
    #endif
    static void mq_hold(int more) { mq_mutexes_held += more; }
    """
    int mq_mutexes_held
    void mq_hold(int more) noexcept nogil

cdef unsigned long main_thread = 0     # the thread in which Python runs signal handlers


def _note_main_thread() -> None:
    global main_thread
    main_thread = _threading.main_thread().ident or 0


_note_main_thread()
_os.register_at_fork(after_in_child=_note_main_thread)


@cython.final
cdef class Mutex:
    """A lock that knows its owner thread: ``with mutex:``.

    A signal handler runs in the middle of any call of the main thread, also of a call that holds a lock. The handler
    cannot wait for that call, and the data that the lock guards may be inconsistent. So a second acquire by the owner
    raises NestedCall, unless the lock ``nests``, for calls of one method from another. A function that handlers may
    call therefore begins with ``refuse_nested`` where such locks are taken.

    threading's locks allocate a tuple when a block ends with an exception; without memory for the tuple they stay
    locked. Cython's ``with`` allocates that tuple too: in a .pyx the form is acquire, try, finally, release.
    Thread: any. GIL: released while waiting. Raises, before the lock is taken: exceptions of signal handlers.
    """

    def __cinit__(self, bint nests=False):
        self.nests = nests

    @property
    def is_mine(self) -> bool:
        """True if the calling thread holds the lock."""
        return mq_load64(&self.owner) == <int64_t> PyThread_get_thread_ident()

    def __enter__(self):
        acquire(self)
        return self

    def __exit__(self, kind, value, trace):
        release(self)


cdef int acquire(Mutex mutex) except -1:
    cdef unsigned long me = PyThread_get_thread_ident()
    cdef bint taken = False
    if mq_load64(&mutex.owner) == <int64_t> me:
        if not mutex.nests:
            raise _nested()
        mutex.depth += 1
        return 0
    if not mq_lock_try(&mutex.word):
        mq_add32(&mutex.waiting, 1)
        try:
            while not taken:
                with nogil:
                    if me != main_thread:
                        lock_wait(&mutex.word)
                        taken = True
                    else:
                        taken = mq_lock_wait_for(&mutex.word, LONGEST_WAIT_NS)
                if not taken:
                    PyErr_CheckSignals()
        finally:
            mq_add32(&mutex.waiting, <uint32_t> -1)
    mq_store64(&mutex.owner, <int64_t> me)
    mutex.depth = 1
    mq_hold(1)
    return 0


cdef void acquire_without_gil(Mutex mutex) noexcept nogil:
    if not mq_lock_try(&mutex.word):
        mq_add32(&mutex.waiting, 1)
        lock_wait(&mutex.word)
        mq_add32(&mutex.waiting, <uint32_t> -1)
    mq_store64(&mutex.owner, <int64_t> PyThread_get_thread_ident())
    mutex.depth = 1
    mq_hold(1)


cdef void release(Mutex mutex) noexcept nogil:
    mutex.depth -= 1
    if mutex.depth == 0:
        mq_store64(&mutex.owner, 0)
        mq_hold(-1)
        unlock(&mutex.word)


cdef object _nested():
    return NestedCall("called while the same thread is inside another call that has a lock of a store, "
                      "from a signal handler, a finalizer or a callback"
                      ": nothing was done; set a flag there and call when that call has returned")


cdef int refuse_nested() except -1:
    """Raise NestedCall in a signal handler that interrupted a call which holds a lock."""
    if mq_mutexes_held > 0 and PyThread_get_thread_ident() == main_thread:
        raise _nested()
    return 0


cdef bint gets_signals() noexcept:
    """Return true in the thread in which Python runs signal handlers.

    That thread must call PyErr_CheckSignals at least every LONGEST_WAIT_NS of a wait.
    """
    return PyThread_get_thread_ident() == main_thread


def current_ident() -> int:
    """Return the ident of the calling system thread, also where threading's function is replaced."""
    return PyThread_get_thread_ident()


def check_not_nested() -> None:
    """Raise NestedCall in a signal handler that interrupted a call of the main thread which holds a lock of a store."""
    refuse_nested()


def is_nested() -> bool:
    """Return true if the calling thread holds a lock of a store."""
    return mq_mutexes_held > 0


cdef void handoff(Mutex mutex) noexcept nogil:
    """Release the mutex and wait until a waiter owns it.

    Otherwise this thread would re-acquire the mutex first, each time, and starve the waiter.
    """
    cdef uint32_t waited, now
    cdef int i
    cdef bint nested = mutex.depth > 1
    release(mutex)
    now = waited = mq_load32(&mutex.waiting)
    if waited == 0 or nested:
        return
    for i in range(HANDOFF_TIMES):
        futex_wait(&mutex.waiting, now, HANDOFF_NS)
        now = mq_load32(&mutex.waiting)
        if now < waited:
            break


@cython.final
cdef class SystemThread:
    """A thread of the system, also where threading's threads are replaced, and daemonic.

    Under gevent and eventlet a loop that sleeps in C would stop all greenlets of its thread.
    """
    cdef object target
    cdef uint32_t ended

    def __init__(self, target):
        """Start the thread. Raises: RuntimeError where the system has no thread."""
        self.target = target
        Py_INCREF(self)
        if PyThread_start_new_thread(_run_thread, <void *> self) == <unsigned long> -1:
            Py_DECREF(self)
            raise RuntimeError("can't start new thread")

    def join(self) -> None:
        """Wait until the thread has ended. GIL: released. Raises: exceptions of signal handlers."""
        while not mq_load32(&self.ended):
            with nogil:
                mq_futex_wait(&self.ended, 0, LONGEST_WAIT_NS)
            PyErr_CheckSignals()


cdef void _run_thread(void *given) noexcept with gil:
    cdef SystemThread thread = <SystemThread> given
    try:
        thread.target()
    finally:
        thread.target = None
        mq_store32(&thread.ended, 1)
        mq_futex_wake_all(&thread.ended)
        Py_DECREF(thread)


@cython.no_gc_clear
cdef class ByteLock:
    """A held lock on byte 0 of a file. No other holder, mqfast or Java, in any process, can take the lock meanwhile.

    The lock belongs to this open file description: other descriptors of the same file may be opened and closed. A
    forked child has the descriptor too, and must abandon it, else the lock outlives a parent that is killed. Where the
    kernel only has record locks, no other module may open the file.
    """
    cdef OsApi os_api
    cdef int fd
    cdef readonly str path

    def __cinit__(self):
        self.fd = -1

    def release(self) -> None:
        """Release the lock. Safe to call twice."""
        if self.fd >= 0:
            self.os_api.os.unlock_byte(self.os_api.os, self.fd)
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor of a forked child; the lock stays the parent's."""
        if self.fd >= 0:
            self.os_api.os.close(self.os_api.os, self.fd)
            self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            self.os_api.os.close(self.os_api.os, self.fd)


def _name_of(entry) -> str:
    return decode_path(entry.name)


def _is_directory(entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:         # a link to an unreadable target
        return False


cdef int NO_FILE = 2, NO_SPACE = 28, OVER_QUOTA = 122       # ENOENT, ENOSPC, EDQUOT of Linux
cdef int64_t ONE_BLOCK = 4096
_STEPS = ("open", "write", "fsync", "stat", "rename", "fsync of directory")
cdef enum:
    OPEN = 0
    WRITE = 1
    FSYNC = 2
    STAT = 3
    RENAME = 4
    FSYNC_DIRECTORY = 5


cdef int _check_step(OsApi os_api, int rc, int step, object path, int64_t n) except -1:
    """Raise the error of a failed step of writing a file."""
    if step <= WRITE:
        check_room(os_api, rc, _STEPS[step], path, n, None)
    else:
        check(rc, _STEPS[step], path)
    return 0


cdef int _write_whole(mq_os *os, const char *name, const char *data, int64_t n, int *step) noexcept nogil:
    """Create or overwrite a file and fsync it. Returns 0, or -errno of ``step``.

    A write that fails halfway would take the last blocks of a full disk: more than one block is allocated before the
    write.
    """
    cdef int rc, fd
    step[0] = OPEN
    fd = os.open(os, name, MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_TRUNCATE)
    if fd < 0:
        return fd
    step[0] = WRITE
    rc = os.fallocate(os, fd, 0, n) if n > ONE_BLOCK else 0
    if rc != -NO_SPACE and rc != -OVER_QUOTA:       # a system that cannot allocate can write
        rc = mq_os_write_all(os, fd, data, n, 0)
    if rc >= 0:
        step[0] = FSYNC
        rc = os.fsync(os, fd)
    os.close(os, fd)
    return min(rc, 0)


cdef int _replace(mq_os *os, const char *target, const char *temporary, const char *directory, const char *kept,
                  const char *data, int64_t n, int *step) noexcept nogil:
    """Write ``temporary``, rename the file ``target`` to ``kept`` unless that is empty, rename ``temporary`` to
    ``target``.

    Returns 0, or -errno of ``step``.
    """
    cdef mq_stat st
    cdef int rc = _write_whole(os, temporary, data, n, step)
    if rc >= 0 and kept[0] != 0:
        step[0] = STAT
        rc = os.stat(os, target, &st)
        if rc >= 0:
            step[0] = RENAME
            rc = os.rename(os, target, kept)
        elif rc == -NO_FILE:
            rc = 0
    if rc >= 0:
        step[0] = RENAME
        rc = os.rename(os, temporary, target)
    if rc < 0:
        if step[0] != OPEN:
            os.unlink(os, temporary)    # a partial file would keep blocks of a full disk
        return rc
    step[0] = FSYNC_DIRECTORY
    return min(os.sync_directory(os, directory), 0)


cdef class OsApi:
    """The operating system as the store uses it.

    A new instance uses the real system. ``fix_clock`` (tests, byte-exact replays) replaces the wall clock. Every method
    raises a ``StorageError`` (``DiskFull``, ``MapFailed``, ``StoreNotFound``, ``StoreLocked``) with errno and file
    name.

    Thread: any. GIL: released over every call that may wait.
    """

    def __cinit__(self):
        self.table = mq_os_real()[0]
        self.os = &self.table

    cpdef int64_t now_ms(self) noexcept:
        return self.os.clock_ms(self.os)

    cpdef int64_t monotonic_ns(self) noexcept:
        return self.os.monotonic_ns(self.os)

    @property
    def table_address(self) -> int:
        """Address of this instance's own table of calls (struct mq_os): a test may replace functions there before the
        store is opened.
        """
        return <size_t> self.os

    def guard_mappings(self, bint guarded) -> None:
        """Choose the effect of a lost page of a mapped file: an error (guarded, the default), or SIGBUS for the
        process.

        Applies to files that are mapped from now on.
        """
        self.table.unguarded = not guarded

    def fix_clock(self, now_ms) -> None:
        """Fix the wall clock at ``now_ms`` (int, ms), or let it run again (None)."""
        if now_ms is None:
            self.table.clock_ms = mq_os_real().clock_ms
            return
        self.table.state = <void *> <size_t> <int64_t> now_ms
        self.table.clock_ms = _fixed_clock_ms

    def read_file(self, path, max_bytes=64 << 20) -> bytes:
        """Return the whole file; refuse a file longer than ``max_bytes``."""
        cdef bytes p = encode_path(path)
        cdef const char *c = p
        cdef mq_os *os = self.os
        cdef mq_stat st
        cdef int fd
        cdef int64_t got, room
        cdef bytes data
        cdef char *to
        with nogil:
            fd = os.open(os, c, MQ_OPEN_READ)
        check(fd, "open", path)
        try:
            check(os.fstat(os, fd, &st), "stat", path)
            if st.is_directory:
                raise StorageError(_errno.EISDIR, "is a directory", path)
            if st.bytes > max_bytes:
                raise StorageError(_errno.EFBIG, f"expected at most {max_bytes} bytes, found {st.bytes}", path)
            # the kernel's own tables (/proc, /sys) report 0 bytes and have some
            room = st.bytes if st.bytes else min(<int64_t> max_bytes, 65536)
            data = PyBytes_FromStringAndSize(NULL, room)
            to = PyBytes_AS_STRING(data)
            with nogil:
                got = mq_os_read_all(os, fd, to, room, 0)
            check(got, "read", path)
            return data if got == room else data[:got]
        finally:
            os.close(os, fd)

    def write_file(self, path, bytes data) -> None:
        """Create or overwrite the file and fsync it. A crash may leave a partial file: use replace_file where that
        matters.
        """
        cdef bytes p = encode_path(path)
        cdef const char *c = p
        cdef const char *from_ = data
        cdef int64_t n = len(data)
        cdef int rc, step = 0
        with nogil:
            rc = _write_whole(self.os, c, from_, n, &step)
        _check_step(self, rc, step, path, n)

    def overwrite(self, path, bytes data, int64_t offset=0, bint create=True) -> None:
        """Write ``data`` in place at ``offset`` and fsync.

        The file is never shortened; a missing file is created (``create``).
        """
        cdef bytes p = encode_path(path)
        cdef const char *c = p
        cdef const char *from_ = data
        cdef int64_t n = len(data)
        cdef mq_os *os = self.os
        cdef int fd, rc, rc_sync = 0, flags = MQ_OPEN_WRITE | (MQ_OPEN_CREATE if create else 0)
        with nogil:
            fd = os.open(os, c, flags)
        check(fd, "open", path)
        with nogil:
            rc = mq_os_write_all(os, fd, from_, n, offset)
            if rc >= 0:
                rc_sync = os.fsync(os, fd)
            os.close(os, fd)
        check_room(self, rc, "write", path, n, None)
        check(rc_sync, "fsync", path)

    def replace_file(self, path, bytes data, keep=None) -> None:
        """Replace the file ``path`` by ``data`` atomically: temporary file, fsync, rename, fsync of the directory.

        A crash leaves the old or the new file, whole. keep: another name in the same directory, to which an existing
        file is renamed first; a crash may then leave the file only under that name. GIL: released once for all steps,
        since each re-acquisition can take 5 ms beside a computing thread.
        """
        path = _os.fspath(path)
        cdef bytes target_ = encode_path(path), temporary_ = encode_path(path + ".tmp")
        cdef bytes directory_ = encode_path(_os.path.dirname(path)
                                            or "."), keep_ = b"" if keep is None else encode_path(keep)
        cdef const char *target = target_
        cdef const char *temporary = temporary_
        cdef const char *directory = directory_
        cdef const char *kept = keep_
        cdef const char *from_ = data
        cdef int64_t n = len(data)
        cdef int rc, step = 0
        with nogil:
            rc = _replace(self.os, target, temporary, directory, kept, from_, n, &step)
        _check_step(self, rc, step, path, n)

    def sync_latencies_ns(self, path, int rounds=32) -> list:
        """Append 1 KiB and fdatasync, ``rounds`` times, to a temporary file of this name; return the ns of each round.
        """
        cdef bytes p = encode_path(path)
        cdef const char *c = p
        cdef mq_os *os = self.os
        cdef char block[1024]
        cdef int64_t start_ns
        cdef int fd, rc = 0, i
        memset(block, 1, sizeof(block))
        with nogil:
            fd = os.open(os, c, MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_TRUNCATE)
        check(fd, "open", path)
        took = []
        try:
            check(mq_os_allocate(os, fd, 0, 1024 * rounds), "allocate", path)
            for i in range(rounds):
                start_ns = os.monotonic_ns(os)
                with nogil:
                    rc = mq_os_write_all(os, fd, block, sizeof(block), 1024 * i)
                    if rc >= 0:
                        rc = os.fdatasync(os, fd)
                check(rc, "fdatasync", path)
                took.append(os.monotonic_ns(os) - start_ns)
        finally:
            with nogil:
                os.close(os, fd)
                os.unlink(os, c)
        return took

    def rename(self, source, target) -> None:
        """Rename within one filesystem; replaces ``target``. GIL: released, since a busy journal takes tens of
        milliseconds.
        """
        cdef bytes from_ = encode_path(source), to = encode_path(target)
        cdef const char *old = from_
        cdef const char *new = to
        cdef mq_os *os = self.os
        cdef int rc
        with nogil:
            rc = os.rename(os, old, new)
        check(rc, "rename", target)

    def unlink(self, path, missing_ok=False) -> None:
        """Remove a file."""
        cdef int rc = self._call(self.os.unlink, path)
        if missing_ok and rc == -_errno.ENOENT:
            return
        check(rc, "unlink", path)

    def makedirs(self, path, bint durable=True) -> None:
        """Create the directory and its missing parents; each new entry is made durable here, or by the caller later."""
        cdef bytes encoded = encode_path(path)
        cdef const char *name = encoded
        cdef mq_os *os = self.os
        cdef int rc
        path = _os.fspath(path)
        if self.exists(path):
            return
        parent = _os.path.dirname(path) or "."
        if parent != path and not self.exists(parent):
            self.makedirs(parent, durable)
        rc = self._call(self.os.mkdir, path)
        if rc != -_errno.EEXIST:
            check_room(self, rc, "mkdir", path, 4096, None)
        if not durable:
            return
        try:
            self.fsync_dir(parent)
        except BaseException:
            # else the next attempt would take the entry for durable. No allocation: memory may be the reason of the
            # failure
            with nogil:
                os.rmdir(os, name)
            raise

    def open_directory(self, path) -> OpenDirectory:
        """Keep a directory open."""
        return OpenDirectory(self, path)

    def rmdir(self, path) -> None:
        """Remove an empty directory."""
        check(self._call(self.os.rmdir, path), "rmdir", path)

    def listdir(self, path) -> list:
        """Return the names in a directory, sorted; an empty list for a missing directory."""
        try:
            # no comprehension: Cython 3.3 releases an element of a comprehension twice where the list cannot grow
            names = list(map(decode_path, _os.listdir(encode_path(path))))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(error.errno, error.strerror, path) from error
        names.sort()
        return names

    def subdirectories(self, path) -> list:
        """Return the names of the directories in a directory, sorted; an empty list for a missing directory."""
        try:
            # the listing has the type of each entry: no stat
            with _os.scandir(encode_path(path)) as entries:
                names = list(map(_name_of, filter(_is_directory, entries)))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StorageError(error.errno, error.strerror, path) from error
        names.sort()
        return names

    cdef int _call(self, PathCall call, object path) except 1:
        """Make one call on a name, without the GIL. Returns 0, or -errno."""
        cdef bytes encoded = encode_path(path)
        cdef const char *name = encoded
        cdef mq_os *os = self.os
        cdef int rc
        with nogil:
            rc = call(os, name)
        return min(rc, 0)

    cdef int _stat(self, object path, mq_stat *st) except 1:
        """Make a stat call on a name, without the GIL. Returns 0, or -errno."""
        cdef bytes encoded = encode_path(path)
        cdef const char *name = encoded
        cdef mq_os *os = self.os
        cdef int rc
        with nogil:
            rc = os.stat(os, name, st)
        return min(rc, 0)

    def exists(self, path) -> bool:
        """Return true if a file or directory of that name exists."""
        cdef mq_stat st
        cdef int rc = self._stat(path, &st)
        if rc in (-_errno.ENOENT, -_errno.ENOTDIR):
            return False
        check(rc, "stat", path)
        return True

    def is_dir(self, path) -> bool:
        """Return true if a directory of that name exists. Raises: StorageError when the disk cannot be read."""
        cdef mq_stat st
        cdef int rc = self._stat(path, &st)
        if rc in (-_errno.ENOENT, -_errno.ENOTDIR, -_errno.EACCES, -_errno.ELOOP):
            return False
        check(rc, "stat", path)
        return st.is_directory != 0

    def file_size(self, path) -> int:
        """Return the length in bytes."""
        cdef mq_stat st
        check(self._stat(path, &st), "stat", path)
        return st.bytes

    def mtime_ms(self, path) -> int:
        """Return the time of the last modification, ms since the epoch."""
        cdef mq_stat st
        check(self._stat(path, &st), "stat", path)
        return st.mtime_ms

    def file_id(self, path) -> tuple:
        """Return (device, inode): equal for two names of the same file."""
        cdef mq_stat st
        check(self._stat(path, &st), "stat", path)
        return st.device, st.inode

    def devices(self, list paths not None) -> list:
        """Return the device of each path, -1 for a missing path.

        GIL: released once for all paths: a service makes this call every few seconds.
        """
        cdef list native = [encode_path(path) for path in paths]
        cdef const char *names[MOST_PATHS]
        cdef mq_stat stats[MOST_PATHS]
        cdef int rc[MOST_PATHS]
        cdef int i, n = len(native)
        if n > MOST_PATHS:
            return self.devices(paths[:MOST_PATHS]) + self.devices(paths[MOST_PATHS:])
        for i in range(n):
            names[i] = <const char *> (<bytes> native[i])
        with nogil:
            for i in range(n):
                rc[i] = self.os.stat(self.os, names[i], &stats[i])
        for i in range(n):
            if rc[i] not in (-_errno.ENOENT, -_errno.ENOTDIR):
                check(rc[i], "stat", paths[i])
        return [stats[i].device if rc[i] >= 0 else -1 for i in range(n)]

    def fsync_dir(self, path) -> None:
        """Make the entries of a directory durable."""
        check(self._call(self.os.sync_directory, path), "fsync of directory", path)

    def statvfs(self, path) -> tuple:
        """Return (total, available) bytes of the filesystem that holds ``path``, as df computes them.

        GIL: released: the system sums up counters of each processor.
        """
        cdef int64_t total = 0, available = 0
        cdef bytes name = encode_path(path)
        cdef const char *c = name
        cdef mq_os *os = self.os
        cdef int rc
        with nogil:
            rc = os.statvfs(os, c, &total, &available)
        check(rc, "statvfs", path)
        return total, available

    def lock_byte(self, path) -> ByteLock:
        """Lock byte 0 of ``path`` (created if missing) without waiting, and write ``lock`` into the file.

        Raises: StoreLocked when another process, or another descriptor of this process, holds the lock.
        """
        cdef ByteLock held = ByteLock.__new__(ByteLock)     # closes the descriptor on any failure
        held.os_api = self
        held.path = _os.fspath(path)
        held.fd = self.os.open(self.os, encode_path(path), MQ_OPEN_WRITE | MQ_OPEN_CREATE)
        cdef int fd = held.fd
        check(fd, "open", path)
        check(self.os.lock_byte(self.os, fd), "lock", path)
        written = mq_os_write_all(self.os, fd, <const char *> b"lock", 4, 0)
        if written not in (-_errno.ENOSPC, -_errno.EDQUOT):  # the content of the file does not matter: the lock is held
            check(written, "write", path)
        return held


@cython.no_gc_clear
@cython.final
cdef class OpenDirectory:
    """A directory that is kept open: its inode number is not reused meanwhile, and its filesystem can be synced as a
    whole.

    A sync reports write errors since this object was made. Raises: StorageError. Thread: any, but close while no sync
    runs.
    """
    cdef OsApi os_api
    cdef int fd
    cdef str path
    cdef readonly int64_t device        # number of the filesystem, as stat reports it

    def __cinit__(self, OsApi os_api not None, path):
        cdef mq_stat st
        self.fd = -1
        self.os_api = os_api
        self.path = _os.fspath(path)
        self.fd = os_api.os.open(os_api.os, encode_path(path), MQ_OPEN_READ)
        check(self.fd, "open", path)
        check(os_api.os.fstat(os_api.os, self.fd, &st), "stat", path)
        self.device = st.device

    def __dealloc__(self):
        if self.fd >= 0:
            self.os_api.os.close(self.os_api.os, self.fd)

    def sync_filesystem(self) -> bool:
        """Make everything in the filesystem durable; False where the system cannot, or does not report failures.

        Raises: StorageError. GIL: released.
        """
        cdef mq_os *os = self.os_api.os
        cdef int rc
        with nogil:
            rc = os.sync_filesystem(os, self.fd)
        if rc == -_errno.ENOSYS:
            return False
        check(rc, "sync of filesystem", self.path)
        return True

    def lock(self) -> bool:
        """Lock the whole directory; False when another descriptor, of any process, holds the lock.

        True as well where the filesystem has no such locks.
        """
        return self.os_api.os.lock_directory(self.os_api.os, self.fd, 1) != -_errno.EAGAIN

    def unlock(self) -> None:
        """Release the lock, also while a forked child still has the descriptor."""
        if self.fd >= 0:
            self.os_api.os.lock_directory(self.os_api.os, self.fd, 0)

    def close(self) -> None:
        """Close the directory. Safe to call twice."""
        if self.fd >= 0:
            self.os_api.os.close(self.os_api.os, self.fd)
            self.fd = -1


cdef int64_t _fixed_clock_ms(mq_os *os) noexcept nogil:
    return <int64_t> <size_t> os.state


REAL = OsApi()
IS_DEBUG = bool(MQ_IS_DEBUG)     # a build that checks invariants (csrc/invariants.h)
