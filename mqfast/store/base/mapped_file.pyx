"""MappedFile: create, map, preheat, lock, hold and release one file of the store (RocketMQ: DefaultMappedFile,
ReferenceResource).

Never unmapped under a hold. Never written through the mapping beyond the bytes that have real blocks, so that a full
disk is an error instead of a SIGBUS. Never recycled as another file. Positions (written, committed, flushed) belong to
the stream that the file is a part of, so they are kept there, once.

A page of the mapping may be lost while mapped (another process truncates the file, the disk cannot read the page).
csrc/sigbus_guard.c turns the signal into zeros and a mark. A reader of the mapping calls `check_damage` before the
result is used; for a writer the lost page itself sets its latch (`watch`).
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from mqfast.store.base.os_api cimport (
    mq_assert,
    MQ_ADVISE_HUGE,
    MQ_ADVISE_RANDOM,
    MQ_ADVISE_WILLNEED,
    MQ_OPEN_CREATE,
    MQ_OPEN_EXCLUSIVE,
    MQ_OPEN_READ,
    MQ_OPEN_WRITE,
    MQ_READ,
    MQ_READ_WRITE,
    OsApi,
    allocate,
    check,
    check_room,
    decode_path,
    encode_path,
    guard_add,
    guard_remove,
    guard_watch,
    mq_add64,
    mq_guarded,
    mq_latch,
    mq_load32,
    mq_load64,
    mq_os,
    mq_stat,
    mq_store32,
    populate,
    read_all,
    write_all,
)

import os as _os

from mqfast.errors import CorruptFile, StoreClosed

cdef int64_t UNMAP_STEP = 2 << 20       # a large munmap holds the lock that page faults of every thread need
cdef enum:
    ZERO_BYTES = 64 << 10               # read at once while clearing
cdef int64_t POPULATE_STEP = 4 << 20
cdef int NO_FILE = 2, NO_PAGE = 14, NO_SPACE = 28   # ENOENT, EIO, EFAULT, ENOSPC of Linux
cdef uint8_t[4096] ZEROS                 # static, so zero
cdef int64_t live_mappings = 0
cdef int64_t live_locked_bytes = 0


def mapping_count() -> int:
    """Return the number of files of all stores of this process that are mapped now."""
    return live_mappings


cdef int64_t mapped_now() noexcept nogil:
    """Return the same without the GIL; the value may be outdated by a moment."""
    return mq_load64(&live_mappings)


def locked_byte_count() -> int:
    """Return the number of bytes of all stores of this process that are locked in memory now."""
    return live_locked_bytes


cdef class Latch:
    """The flag word that a lost page sets (see csrc/sigbus_guard.c). The owner of the words sets the pointers, and
    detaches the latch before the words are freed.
    """


cdef enum Step:             # of the creation of a file
    OPEN
    ALLOCATE
    TRUNCATE
    SYNC
    SYNC_NAME

_STEPS = ("open", "allocate", "truncate", "fsync", "fsync of directory")


cdef int _make(mq_os *os, const char *name, const char *directory, int64_t file_bytes, bint whole, bint durable,
               int *fd, Step *step) noexcept nogil:
    """Create a file of ``file_bytes`` zeros. Returns 0, or -errno of the last step; the file is open then, unless that
    step was the first.
    """
    cdef int rc
    fd[0] = os.open(os, name, MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_EXCLUSIVE)
    if fd[0] < 0:
        return fd[0]
    if whole:
        step[0] = ALLOCATE
        rc = allocate(os, fd[0], 0, file_bytes)
        if rc < 0:
            return rc
    step[0] = TRUNCATE
    rc = os.ftruncate(os, fd[0], file_bytes)
    if rc < 0 or not durable:
        return rc
    step[0] = SYNC
    rc = os.fsync(os, fd[0])
    if rc < 0:
        return rc
    step[0] = SYNC_NAME
    return os.sync_directory(os, directory)


cdef bint _is_zero(const uint8_t *p, int64_t n) noexcept nogil:
    cdef uint64_t seen = 0, word
    cdef int64_t i = 0
    while i + 8 <= n:
        memcpy(&word, p + i, 8)
        seen |= word
        i += 8
    while i < n:
        seen |= p[i]
        i += 1
    return seen == 0


cdef int64_t _expect_appends(mq_os *os, void *base, int64_t file_bytes, bint small_syncs, int64_t ready) noexcept nogil:
    """As `MappedFile.expect_appends`. Returns the number of bytes that are ready."""
    ready = min(ready, file_bytes)
    os.madvise(os, base, file_bytes, MQ_ADVISE_RANDOM if small_syncs else MQ_ADVISE_HUGE)
    return ready if ready > 0 and populate(os, base, ready) >= 0 else 0


@cython.no_gc_clear
cdef class MappedFile:
    """One file of fixed length, mapped when first needed.

    Thread: hold and release need the GIL (or the free-threaded build's per-object lock); the memory itself may be read
    without the GIL.
    """

    def __cinit__(self):
        self.base = NULL
        self.buffer = NULL
        self.fd = -1
        self.references = 1
        self.owned = True

    @staticmethod
    def create(OsApi os_api, path, int64_t start_offset, int64_t file_bytes, bint whole=True, bint durable=True,
               int64_t room=0, str setting=None, bint appends=False, bint small_syncs=False,
               int64_t ready=0) -> MappedFile:
        """Create a zero-filled file of full length and map it for writing.

        Args: whole: allocate blocks for all of it now (the log); otherwise the file stays sparse and ``grow`` allocates
        (queues); room: allocate up to there as ``grow`` does, but nothing where the disk lacks the space; setting: the
        setting that reduces the disk use, for DiskFull; appends, small_syncs, ready: also call ``expect_appends``.
        Raises: DiskFull, StorageError; no half file is left behind.
        Durability: the file and its directory entry are synced before this returns; without ``durable`` the caller does
        that later.
        GIL: released, once for all steps: each re-acquisition beside a computing thread may wait 5 ms.
        """
        cdef MappedFile file = MappedFile.__new__(MappedFile)
        cdef bytes encoded = encode_path(path), parent = _os.path.dirname(encoded)
        cdef const char *name = encoded
        cdef const char *directory = parent
        cdef mq_os *os = os_api.os
        cdef int fd = -1, rc, rc_map = 0
        cdef Step step = OPEN
        cdef int64_t allocated = file_bytes
        cdef void *address = NULL
        cdef mq_guarded *guarded = NULL
        cdef const char *kept_name
        file._init(os_api, path, start_offset, file_bytes, True)
        file.setting = setting
        kept_name = <const char *> file.native_path
        with nogil:
            rc = _make(os, name, directory, file_bytes, whole, durable, &fd, &step)
            if rc >= 0 and not whole:
                allocated = min(room, file_bytes)
                if allocated > 0 and allocate(os, fd, 0, allocated) < 0:
                    allocated = 0
            # a new mapping waits for the thread that makes pages ready, which may wait for the filesystem's journal
            if rc >= 0:
                rc_map = os.mmap(os, fd, file_bytes, MQ_READ_WRITE, &address)
                if rc_map >= 0:
                    guarded = file.guard(address, kept_name, NULL)
                    if guarded != NULL and not whole and allocated:
                        populate(os, address, allocated)
                    if guarded != NULL and appends:
                        ready = _expect_appends(os, address, file_bytes, small_syncs, ready)
        if fd < 0:
            check_room(os_api, rc, _STEPS[step], path, file_bytes if whole else 4096, setting)
        file.fd = fd
        try:
            # checked here: the arguments allocate, and without memory the mapping below would have no owner
            if rc < 0:
                check_room(os_api, rc, _STEPS[step], path if step != SYNC_NAME else decode_path(parent),
                           file_bytes if whole else 4096, setting)
            check(rc_map, "mmap", path)
            file.allocated = allocated
            file.ready = ready if appends else 0
            file.mapped_at(address, guarded)
            file.check_damage()
        except BaseException:
            file.close_fd()
            os.unlink(os, name)
            raise
        return file

    @staticmethod
    def load(OsApi os_api, path, int64_t start_offset, int64_t file_bytes, bint writable=True,
             bint exact=True) -> MappedFile:
        """Return an existing file; not mapped yet.

        Raises: CorruptFile when its length is not ``file_bytes`` (``exact``): sizes are part of the format.
        """
        cdef MappedFile file = MappedFile.__new__(MappedFile)
        cdef int64_t length = os_api.file_size(path)
        if exact and length != file_bytes:
            raise CorruptFile("wrong file length", path=str(path), expected=f"{file_bytes} bytes",
                              found=f"{length} bytes")
        file._init(os_api, path, start_offset, file_bytes, writable)
        return file

    cdef int _init(self, OsApi os_api, path, int64_t start_offset, int64_t file_bytes, bint writable) except -1:
        if file_bytes <= 0:
            raise CorruptFile("wrong file length", path=str(path), expected="more than 0 bytes", found=file_bytes)
        self.os_api = os_api
        self.os = os_api.os
        self.path = _os.fspath(path)
        self.start_offset = start_offset
        self.native_path = encode_path(self.path)
        self.file_bytes = file_bytes
        self.writable = writable
        return 0

    cdef int open_fd(self) except -1:
        cdef int fd
        if self.fd < 0:
            fd = self.os.open(self.os, <const char *> self.native_path,
                              MQ_OPEN_WRITE if self.writable else MQ_OPEN_READ)
            check(fd, "open", self.path)
            self.fd = fd
        return 0

    cdef void close_fd(self) noexcept:
        if self.fd >= 0:
            self.os.close(self.os, self.fd)
            self.fd = -1

    cdef int map(self) except -1:
        cdef void *address = NULL
        cdef int rc
        cdef mq_stat st
        cdef bint opened = self.fd < 0
        if self.base != NULL:
            return 0
        self.open_fd()
        # a file that shrank since the listing would be a SIGBUS later
        rc = self.os.fstat(self.os, self.fd, &st)
        if rc >= 0 and st.bytes < self.file_bytes:
            self.close_fd()
            raise CorruptFile("file is shorter than its format asks for", path=self.path,
                              expected=f"{self.file_bytes} bytes", found=f"{st.bytes} bytes")
        if rc >= 0:
            rc = self.os.mmap(self.os, self.fd, self.file_bytes, MQ_READ_WRITE if self.writable else MQ_READ, &address)
        if opened:
            self.close_fd()
        check(rc, "mmap", self.path)
        return self.mapped_at(address, self.guard(address, <const char *> self.native_path,
                                                  NULL if self.latch is None else &self.latch.c))

    cdef mq_guarded *guard(self, void *address, const char *kept_name, mq_latch *kept_latch) noexcept nogil:
        """Register the mapping before a page of it is touched. Returns the entry for ``mapped_at``; NULL without
        memory.
        """
        self.damage.hits = 0
        return guard_add(self.os, address, self.file_bytes, kept_name, &self.damage, kept_latch)

    cdef int mapped_at(self, void *address, mq_guarded *guarded) except -1:
        if guarded == NULL:
            self.os.munmap(self.os, address, self.file_bytes)
            raise MemoryError()
        self.guarded = guarded
        self.base = <uint8_t *> address
        mq_add64(&live_mappings, 1)
        return 0

    cdef void unmap(self) noexcept:
        global live_locked_bytes
        cdef uint8_t *base = self.base
        cdef int64_t at = 0, n, total = self.file_bytes
        cdef mq_os *os = self.os
        if base == NULL:
            return
        mq_assert(self.guarded != NULL, self.start_offset, self.file_bytes)
        mq_assert(live_mappings > 0, live_mappings, 0)
        mq_assert(self.locked_bytes >= 0, self.locked_bytes, 0)
        self.base = NULL
        guard_remove(self.guarded)
        self.guarded = NULL
        mq_add64(&live_mappings, -1)
        live_locked_bytes -= self.locked_bytes      # munmap unlocks
        self.locked_bytes = 0
        with nogil:
            while at < total:
                n = min(UNMAP_STEP, total - at)
                os.munmap(os, base + at, n)
                at += n

    cdef uint8_t *hold(self) except NULL:
        if not self.owned:
            raise StoreClosed(f"{self.path} was closed or removed")
        self.map()
        mq_assert(self.references >= 0, self.references, 0)
        mq_assert(self.base != NULL, self.start_offset, self.file_bytes)
        self.references += 1
        return self.base

    cdef void release(self) noexcept:
        mq_assert(self.references > 0, self.references, 0)
        self.references -= 1
        if self.references == 0:
            self.close_fd()
            self.unmap()

    cdef int check_damage(self) except -1:
        """Raise CorruptFile if a page of the mapping was lost since it was mapped: bytes that were read may be zeros.
        """
        if mq_load32(&self.damage.hits):
            raise CorruptFile("a mapped page is gone: the file was cut short, or the disk could not read it",
                              path=self.path,
                              offset=self.damage.position, expected="a page of the file", found="SIGBUS")
        return 0

    cdef void watch(self, Latch latch) noexcept:
        """Let a lost page set this latch (None: only the file's own mark) from now on."""
        cdef Latch kept = self.latch
        if latch is kept:
            return
        self.latch = latch
        if self.guarded != NULL:
            guard_watch(self.guarded, NULL if latch is None else &latch.c)

    def zero_tail(self, int64_t position) -> int:
        """Clear the bytes that a crash left behind ``position``, so that no later scan takes them for data; returns the
        bytes cleared.

        Only blocks that hold data are read, and not through the mapping: next to a hole of a full disk the mapping may
        need blocks.
        Durability: not synced; the next flush of the file covers it.
        """
        cdef mq_os *os = self.os
        cdef uint8_t buffer[ZERO_BYTES]
        cdef int64_t at = position, n, k, step, total = self.file_bytes, cleared = 0, rc = 0
        cdef int fd
        cdef bint shrunk = False
        if position >= total:
            return 0
        self.open_fd()
        fd = self.fd
        with nogil:
            while at < total and rc >= 0:
                at = os.seek_data(os, fd, at)
                if at < 0 or at >= total:
                    break
                n = min(<int64_t> ZERO_BYTES - (at & (ZERO_BYTES - 1)), total - at)
                rc = read_all(os, fd, buffer, n, at)
                if 0 <= rc < n:
                    shrunk = True
                    break
                k = 0
                while rc >= 0 and k < n:
                    step = min(<int64_t> 4096 - ((at + k) & 4095), n - k)
                    if not _is_zero(buffer + k, step):
                        rc = write_all(os, fd, ZEROS, step, at + k)
                        cleared += step
                    k += step
                at += n
        self.close_fd()
        if shrunk:
            raise CorruptFile("file is shorter than its format asks for", path=self.path,
                              expected=f"{self.file_bytes} bytes", found="less")
        check(rc, "clear", self.path)
        self.check_damage()
        return cleared

    def drop(self) -> None:
        """Drop the owner's reference: no new holds; unmapped with the last hold."""
        if self.owned:
            mq_store32(<uint32_t *> &self.owned, False)     # read without the GIL, too
            self.release()

    def unmap_idle(self) -> None:
        """Unmap the file if it has no hold; the next use maps it again."""
        if self.references == 1 and self.owned:
            self.close_fd()         # first: another thread may map and open the file again during the unmap
            self.unmap()

    def destroy(self) -> None:
        """Remove the file's name; readers with a hold keep the bytes. No error if the name is missing. GIL: released.
        """
        cdef const char *name = <const char *> self.native_path
        cdef mq_os *os = self.os
        cdef int rc
        with nogil:
            rc = os.unlink(os, name)        # first, and without allocation: no name stays
        self.drop()
        if rc != -NO_FILE:
            check(rc, "unlink", self.path)

    def grow(self, int64_t end) -> None:
        """Allocate blocks of a sparse file up to byte ``end``, so that writes through the mapping there cannot fail.

        Raises: DiskFull. GIL: released.
        """
        cdef int64_t start = self.allocated
        cdef mq_os *os = self.os
        cdef int rc, fd
        cdef uint8_t *base
        end = min(end, self.file_bytes)
        if end <= start:
            return
        base = self.hold()          # else `unmap_idle` could unmap the file and close its descriptor
        try:
            self.open_fd()
            fd = self.fd
            with nogil:
                rc = allocate(os, fd, start, end - start)
                if rc >= 0:
                    # the page cache may keep a larger folio, whose other bytes have no blocks
                    if populate(os, base + (start & ~<int64_t> 4095), end - (start & ~<int64_t> 4095)) == -NO_PAGE:
                        rc = -NO_SPACE
            self.close_fd()
        finally:
            self.release()
        check_room(self.os_api, rc, "allocate", self.path, end - start, self.setting)
        self.check_damage()
        self.allocated = end

    def expect_appends(self, bint small_syncs, int64_t ready=0) -> None:
        """Choose the size of the page-cache units (folios) before the first write, and make the first pages writable,
        so that the first put does not wait for them. Advice only, so it cannot fail. GIL: released.

        Args: small_syncs: a sync follows every few records. A store through a mapping dirties the whole folio, so small
        folios are written faster then. Otherwise huge folios: the kernel allocates and maps 2 MiB at once, which halves
        the cost of new log pages, and after a sync one fault makes the whole folio writable again. ready: number of
        bytes from the start.
        """
        self.map()
        with nogil:
            ready = _expect_appends(self.os, self.base, self.file_bytes, small_syncs, ready)
        self.ready = ready

    def preheat(self) -> int:
        """Make every page resident and writable ahead of use; returns the number of bytes. Raises: DiskFull,
        StorageError.
        """
        cdef mq_os *os = self.os
        cdef uint8_t *base
        cdef int64_t at = 0, n, total = self.file_bytes
        cdef int rc = 0
        self.map()
        base = self.base
        with nogil:
            while at < total and rc >= 0:
                n = min(POPULATE_STEP, total - at)
                rc = populate(os, base + at, n)
                at += n
        check(rc, "populate", self.path)
        self.check_damage()
        os.madvise(os, base, total, MQ_ADVISE_WILLNEED)
        return total

    def lock_memory(self, int64_t budget_bytes) -> int:
        """Lock the file in memory if the process-wide budget allows.

        Returns: bytes locked now; 0 when the file exceeds the budget. Raises: StorageError when the system refuses (the
        caller warns and continues).
        """
        global live_locked_bytes
        cdef int rc
        cdef mq_os *os = self.os
        cdef uint8_t *base
        cdef int64_t n = self.file_bytes
        if self.locked_bytes or live_locked_bytes + n > budget_bytes:
            return self.locked_bytes
        self.map()
        base = self.base
        with nogil:
            rc = os.mlock(os, base, n)
        check(rc, "mlock", self.path)
        self.locked_bytes = n
        live_locked_bytes += n
        return n

    @property
    def is_mapped(self) -> bool:
        """True if the file is mapped now."""
        return self.base != NULL

    @property
    def holds(self) -> int:
        """Number of readers with a hold."""
        return self.references - (1 if self.owned else 0)

    def __dealloc__(self):
        if self.base != NULL:
            self.unmap()
        self.close_fd()

    def __repr__(self):
        return f"<MappedFile {self.path} start={self.start_offset} bytes={self.file_bytes} holds={self.holds}>"


@cython.no_gc_clear
cdef class FilePin:
    """One hold on a MappedFile; the mapping stays at least as long as this object."""

    def __dealloc__(self):
        if self.base != NULL:
            self.file.release()


cdef FilePin pin_file(MappedFile file):
    cdef FilePin held = FilePin.__new__(FilePin)
    cdef uint8_t *base = file.hold()
    held.file = file
    held.base = base
    return held
