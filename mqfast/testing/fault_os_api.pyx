"""The OsApi of a test store: a settable clock, faults of the disk, and a simulated kill.

Only calls with an active fault fail. csrc/os_api.h has the table of calls.

After ``die`` every write, rename and removal reports success without effect. A store that is closed then leaves its
files as a killed process does: writes by mappings, which the page cache has anyway, and new empty files may exist as
well, as if the kill had come a moment later.
"""

from libc.errno cimport EIO, ENOSPC
from libc.stdint cimport int64_t, int32_t

from mqfast.store.base.os_api cimport MQ_OPEN_CREATE, MQ_OPEN_TRUNCATE, OsApi, mq_load64, mq_os, mq_store64

cdef extern from "<time.h>" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int nanosleep(const timespec *wanted, timespec *left)

cdef enum:
    STEP_NS = 1000000

cdef struct Faults:
    mq_os real
    int64_t ahead_ms        # of the system's clock
    int64_t fixed_ms        # above 0: the stopped clock
    int64_t slow_ns         # of each sync
    int64_t full            # no space for anything
    int64_t failing         # syncs fail
    int64_t dead            # writes have no effect
    int64_t syncs           # count since the creation


cdef Faults *_of(mq_os *os) noexcept nogil:
    return <Faults *> os.state


cdef void _be_slow(Faults *faults) noexcept nogil:
    """Sleep while the fault is active: a running sync ends soon after the fault."""
    cdef timespec step
    cdef int64_t slept = 0
    step.tv_sec = 0
    step.tv_nsec = STEP_NS
    while slept < mq_load64(&faults.slow_ns) and not mq_load64(&faults.dead):
        nanosleep(&step, NULL)
        slept += STEP_NS


cdef int _sync_fault(Faults *faults) noexcept nogil:
    """Return the fault of a sync: 0 for none; 1 for a sync to skip; or a negative errno."""
    if mq_load64(&faults.dead):
        return 1
    mq_store64(&faults.syncs, mq_load64(&faults.syncs) + 1)
    _be_slow(faults)
    if mq_load64(&faults.dead):
        return 1
    return -EIO if mq_load64(&faults.failing) else 0


cdef int64_t _clock_ms(mq_os *os) noexcept nogil:
    cdef Faults *faults = _of(os)
    cdef int64_t fixed = mq_load64(&faults.fixed_ms)
    return fixed if fixed > 0 else faults.real.clock_ms(&faults.real) + mq_load64(&faults.ahead_ms)


cdef int _msync(mq_os *os, void *address, int64_t n) noexcept nogil:
    cdef Faults *faults = _of(os)
    cdef int fault = _sync_fault(faults)
    return faults.real.msync(&faults.real, address, n) if fault == 0 else fault if fault < 0 else 0


cdef int _fdatasync(mq_os *os, int fd) noexcept nogil:
    cdef Faults *faults = _of(os)
    cdef int fault = _sync_fault(faults)
    return faults.real.fdatasync(&faults.real, fd) if fault == 0 else fault if fault < 0 else 0


cdef int _fsync(mq_os *os, int fd) noexcept nogil:
    cdef Faults *faults = _of(os)
    cdef int fault = _sync_fault(faults)
    return faults.real.fsync(&faults.real, fd) if fault == 0 else fault if fault < 0 else 0


cdef int _sync_filesystem(mq_os *os, int fd) noexcept nogil:
    cdef Faults *faults = _of(os)
    cdef int fault = _sync_fault(faults)
    return faults.real.sync_filesystem(&faults.real, fd) if fault == 0 else fault if fault < 0 else 0


cdef int _open(mq_os *os, const char *path, int flags) noexcept nogil:
    cdef Faults *faults = _of(os)
    if mq_load64(&faults.dead):
        flags &= ~MQ_OPEN_TRUNCATE  # a new name without content is what a kill may leave, too
    if mq_load64(&faults.full) and flags & MQ_OPEN_CREATE:
        return -ENOSPC
    return faults.real.open(&faults.real, path, flags)


cdef int _fallocate(mq_os *os, int fd, int64_t offset, int64_t n) noexcept nogil:
    cdef Faults *faults = _of(os)
    return -ENOSPC if mq_load64(&faults.full) else faults.real.fallocate(&faults.real, fd, offset, n)


cdef int64_t _pwrite(mq_os *os, int fd, const void *source, int64_t n, int64_t offset) noexcept nogil:
    cdef Faults *faults = _of(os)
    if mq_load64(&faults.dead):
        return n
    return -ENOSPC if mq_load64(&faults.full) else faults.real.pwrite(&faults.real, fd, source, n, offset)


cdef int _rename(mq_os *os, const char *source, const char *to) noexcept nogil:
    cdef Faults *faults = _of(os)
    return 0 if mq_load64(&faults.dead) else faults.real.rename(&faults.real, source, to)


cdef int _unlink(mq_os *os, const char *path) noexcept nogil:
    cdef Faults *faults = _of(os)
    return 0 if mq_load64(&faults.dead) else faults.real.unlink(&faults.real, path)


cdef int _mkdir(mq_os *os, const char *path) noexcept nogil:
    cdef Faults *faults = _of(os)
    return -ENOSPC if mq_load64(&faults.full) else faults.real.mkdir(&faults.real, path)


cdef int _rmdir(mq_os *os, const char *path) noexcept nogil:
    cdef Faults *faults = _of(os)
    return 0 if mq_load64(&faults.dead) else faults.real.rmdir(&faults.real, path)


cdef int _sync_directory(mq_os *os, const char *path) noexcept nogil:
    cdef Faults *faults = _of(os)
    return 0 if mq_load64(&faults.dead) else faults.real.sync_directory(&faults.real, path)


cdef class FaultDoor(OsApi):
    """The OsApi of a store, with faults that are switched on and off while the store is open.

    Thread: any.
    """

    cdef Faults faults

    def __cinit__(self):
        self.faults.real = self.table
        self.table.state = &self.faults
        self.table.clock_ms = _clock_ms
        self.table.msync = _msync
        self.table.fdatasync = _fdatasync
        self.table.fsync = _fsync
        self.table.sync_filesystem = _sync_filesystem
        self.table.open = _open
        self.table.fallocate = _fallocate
        self.table.pwrite = _pwrite
        self.table.rename = _rename
        self.table.unlink = _unlink
        self.table.mkdir = _mkdir
        self.table.rmdir = _rmdir
        self.table.sync_directory = _sync_directory

    def set_clock(self, int64_t ahead_ms, int64_t fixed_ms) -> None:
        """Stop the wall clock at ``fixed_ms``; for 0, run the clock ``ahead_ms`` before the system's."""
        mq_store64(&self.faults.ahead_ms, ahead_ms)
        mq_store64(&self.faults.fixed_ms, fixed_ms)

    def set_disk(self, *, bint full, bint failing, int64_t slow_ns) -> None:
        """Set faults: no space, EIO for every sync, a delay of every sync."""
        mq_store64(&self.faults.full, full)
        mq_store64(&self.faults.failing, failing)
        mq_store64(&self.faults.slow_ns, slow_ns)

    def die(self) -> None:
        """Ignore all writes from now on, without an error."""
        mq_store64(&self.faults.dead, 1)

    @property
    def syncs(self) -> int:
        """Return the count of requested syncs."""
        return mq_load64(&self.faults.syncs)
