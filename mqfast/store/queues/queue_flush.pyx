"""Flush of the units of many queues at once (RocketMQ: FlushConsumeQueueService).

The interval flush needs no GIL (`flush_tails`) while every queue with new units is an ordinary one: names synced,
nothing truncated, the last file and the file before held for writing. Everything else is `flush_queues`, which takes
the GIL once for FILES_AT_ONCE files. A queue never counts as flushed if a file was not synced, is missing, or has lost
a page; and nothing is synced after a failed sync.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from mqfast.store.queues.consume_queue cimport (
    ConsumeQueue,
    HeldFile,
    QueueState,
    QueueTable,
    Slots,
    behind_units,
    sync_units,
)
from mqfast.store.base.mapped_file cimport MappedFile
from mqfast.store.base.os_api cimport check, lock, mq_load32, mq_load64, mq_os, mq_stat, populate, unlock

from errno import ENOENT as _ENOENT

from mqfast.errors import CorruptFile, MqfastError

cdef enum:
    FILES_AT_ONCE = 256

cdef int64_t PAGE = 4096
# filled since the last flush: puts of fewer pages take fewer faults than this costs system calls
cdef int64_t FEWEST_PAGES = 2


cdef struct Work:                   # on a file of a queue
    mq_os *os
    const char *name
    uint8_t *base                   # NULL: not mapped
    int64_t first, to, end          # bytes of the file: range of the sync, and end of the units
    int64_t ready                   # end of the range that puts reach until the next flush; 0: nothing
    bint sync
    int rc, rc_stat                 # results
    mq_stat st


cdef void _execute(Work *work) noexcept nogil:
    work.rc = sync_units(work.os, work.base, work.first, work.to, work.end) if work.sync else 0
    work.rc_stat = work.os.stat(work.os, work.name, &work.st) if work.rc >= 0 else 0
    if work.rc >= 0:
        _make_ready(work.os, work.base, work.end, work.ready)


# --- without the GIL ---

cdef int flush_tails(QueueTable table, int64_t many, bint *left_page, int64_t *done,
                     QueueState **failed) noexcept nogil:
    """Flush the queues of a table by the clock: of a busy queue all but the page of the next units.

    Returns 1: all is durable; NEEDS_PYTHON: a part is, and the rest is for `flush_queues`; -errno: the sync of `failed`
    failed, and nothing was synced after it. left_page: set if a page of any queue was left. done: bytes synced. many:
    number of dirty queues from which on `flush_queues` is used.
    Thread: one flush at a time.
    """
    cdef Slots *slots = <Slots *> mq_load64(<const int64_t *> &table.slots)
    cdef QueueState *q
    cdef int64_t i, dirty = 0
    cdef int rc
    cdef bint ordinary
    if table.others:
        return NEEDS_PYTHON
    for i in range(slots.mask + 1):
        q = <QueueState *> mq_load64(<const int64_t *> &slots.at[i])
        if q != NULL and _is_dirty(q):
            dirty += 1
            lock(&q.files_lock)
            ordinary = _is_ordinary(q)
            unlock(&q.files_lock)
            if not ordinary:
                return NEEDS_PYTHON
    if dirty >= many:
        return NEEDS_PYTHON
    for i in range(slots.mask + 1):
        q = <QueueState *> mq_load64(<const int64_t *> &slots.at[i])
        if dirty == 0:
            break
        if q != NULL and _is_dirty(q):
            lock(&q.files_lock)
            rc = _flush_tail(q, left_page, done)
            unlock(&q.files_lock)
            if rc != 1:
                failed[0] = q
                return rc
    return 1


cdef inline bint _is_dirty(const QueueState *q) noexcept nogil:
    return (mq_load64(&q.end) > q.flushed or q.cut) and not q.deleted


cdef inline bint _is_ordinary(const QueueState *q) noexcept nogil:
    """Return True if nothing of the queue needs Python. The queue's `files_lock` is held."""
    return not q.cut and not q.fresh and q.tail.base != NULL


cdef int _flush_tail(QueueState *q, bint *left_page, int64_t *done) noexcept nogil:
    """Flush a queue as flush_tails does. The queue's `files_lock` is held."""
    cdef int64_t end = mq_load64(&q.end), to, filled
    cdef int rc
    if not _is_ordinary(q):
        return NEEDS_PYTHON
    to = behind_units(q, end)
    filled = end - q.flushed
    if q.flushed < q.tail.start:
        if q.before.base == NULL or q.flushed < q.before.start or q.before.start + q.file_bytes != q.tail.start:
            return NEEDS_PYTHON
        rc = _sync_held(q, &q.before, q.tail.start, q.tail.start, done)
        if rc != 1:
            return rc
    if to > q.flushed:
        rc = _sync_held(q, &q.tail, to, end, done)
        if rc != 1:
            return rc
    if filled >= FEWEST_PAGES * PAGE:
        _make_ready(q.os, q.tail.base, end - q.tail.start, min(end + 2 * filled - q.tail.start, q.tail.allocated[0]))
    left_page[0] = left_page[0] or to < end
    return 1


cdef int _sync_held(QueueState *q, const HeldFile *f, int64_t to, int64_t end, int64_t *done) noexcept nogil:
    """Sync a file from `flushed` to stream byte `to`; the last unit ends at `end`.

    A lost page, or a file that was truncated or removed meanwhile, is not durable: NEEDS_PYTHON reports it.
    """
    cdef mq_stat st
    cdef int64_t first = (q.flushed - f.start) & ~(PAGE - 1)
    cdef int rc = sync_units(q.os, f.base, first, to - f.start, end - f.start)
    if rc < 0:
        return rc
    if q.os.stat(q.os, f.path, &st) < 0 or st.bytes < q.file_bytes or mq_load32(f.lost):
        return NEEDS_PYTHON
    done[0] += to - f.start - first
    q.flushed = to
    return 1


cdef void _make_ready(mq_os *os, uint8_t *base, int64_t end, int64_t ready) noexcept nogil:
    """Make the pages that puts reach until the next flush writable, from `end` to `ready`.

    Writeback write-protects pages, the kernel's own of the whole file: each such page would cost a fault.
    """
    if ready > end:
        populate(os, base + (end & ~(PAGE - 1)), ready - (end & ~(PAGE - 1)))


# --- with the GIL ---

@cython.final
cdef class _QueueFlush:
    """The syncs of the files of some queues, and their results."""

    cdef Work work[FILES_AT_ONCE]
    cdef int count
    cdef int tried                  # of `work`, up to the first failure
    cdef list files                 # (queue, its end, file, was mapped) of each of `work`
    cdef list whole                 # entries of `dirty` for the queues whose last file was taken
    cdef dict elsewhere             # queue -> entry, for queues on another filesystem than the synced one
    cdef dict failed                # queue -> error
    cdef int64_t device             # filesystem that was synced as a whole; -1: none
    cdef int64_t done

    def __cinit__(self, int64_t device):
        self.files = []
        self.whole = []
        self.elsewhere = {}
        self.failed = {}
        self.device = device

    cdef int flush(self, list dirty) except -1:
        cdef ConsumeQueue queue
        cdef MappedFile file
        cdef int64_t end
        try:
            for entry in dirty:
                queue, end, _ = entry
                for file in list(queue.files):
                    if self.count == FILES_AT_ONCE:
                        self.together()
                    if file in queue.files:         # else retention or the deletion of the topic removed the file
                        self.take(queue, end, file)
                self.whole.append(entry)
            self.together()
        finally:
            self.release_all()
        return 0

    cdef int take(self, ConsumeQueue queue, int64_t end, MappedFile file) except -1:
        cdef Work *work = &self.work[self.count]
        cdef bint sync = self.device < 0, mapped = file.base != NULL
        if sync and not _is_unsynced(queue, end, file):
            return 0
        work.os = queue.os_api.os
        work.name = <const char *> file.native_path
        work.first = max(queue.state.flushed - file.start_offset, 0) & ~<int64_t> 4095
        work.to = queue.file_bytes if queue.state.cut else min(end - file.start_offset, queue.file_bytes)
        work.end = end - file.start_offset
        work.sync = sync
        work.ready = 0
        try:
            work.base = file.hold() if sync or mapped else NULL
        except MqfastError as error:
            self.fail(queue, error)
            return 0
        if work.base != NULL and file is queue.tail and end - queue.state.flushed >= FEWEST_PAGES * PAGE:
            work.ready = min(work.end + 2 * (end - queue.state.flushed), file.allocated)
        try:
            self.files.append((queue, end, file, mapped))
        except MemoryError:
            if work.base != NULL:
                file.release()
            raise
        self.count += 1
        return 0

    cdef int execute(self) noexcept nogil:
        cdef int rc = 0
        while rc >= 0 and self.tried < self.count:
            _execute(&self.work[self.tried])
            rc = self.work[self.tried].rc
            self.tried += 1
        return rc

    cdef int together(self) except -1:
        with nogil:
            self.execute()
        self.conclude()
        return 0

    cdef int conclude(self) except -1:
        cdef int i = 0
        cdef ConsumeQueue queue
        cdef MappedFile file
        cdef int64_t end
        cdef bint fresh
        for i in range(self.tried):
            queue, end, file, _ = self.files[i]
            check(self.work[i].rc, "msync", file.path)
            try:
                self.verify(&self.work[i], queue, end, file)
            except MqfastError as error:
                self.fail(queue, error)
        for entry in self.whole:
            queue, end, fresh = entry
            if queue in self.elsewhere:
                self.elsewhere[queue] = entry
            elif queue not in self.failed:
                queue.state.flushed = max(queue.state.flushed, end)
                queue.state.cut = False
                if fresh:           # else the first file may have been created meanwhile, with an unsynced name
                    queue.state.fresh = False
        self.whole.clear()
        self.release_all()
        return 0

    cdef int verify(self, Work *work, ConsumeQueue queue, int64_t end, MappedFile file) except -1:
        if not work.sync:
            if work.rc_stat < 0 or work.st.device != self.device:
                self.elsewhere[queue] = None
                return 0
            if not _is_unsynced(queue, end, file):
                return 0
        # a lost page, or a file that was truncated or removed meanwhile, is not durable
        file.check_damage()
        if work.rc_stat != -_ENOENT:
            check(work.rc_stat, "stat", file.path)
        # else the retention thread removed the file
        if (work.rc_stat < 0 or work.st.bytes < queue.file_bytes) and file in queue.files:
            raise CorruptFile("queue file was cut short or removed", path=file.path,
                              expected=f"{queue.file_bytes} bytes",
                              found="no file" if work.rc_stat < 0 else f"{work.st.bytes} bytes")
        self.done += work.to - work.first
        return 0

    cdef int fail(self, ConsumeQueue queue, error) except -1:
        if not queue.state.deleted:     # else the files were deleted with the topic
            self.failed[queue] = error
        return 0

    cdef int release_all(self) except -1:
        cdef MappedFile file
        while self.count:
            self.count -= 1
            _, _, file, mapped = self.files[self.count]
            if self.work[self.count].base != NULL:
                file.release()
            if not mapped:
                file.unmap_idle()
        self.files.clear()
        self.tried = 0
        return 0


cdef bint _is_unsynced(ConsumeQueue queue, int64_t end, MappedFile file) noexcept:
    return file.start_offset + queue.file_bytes > queue.state.flushed and (file.start_offset < end or queue.state.cut)


def flush_queues(list dirty, int64_t device=-1) -> int:
    """Make the units of each queue durable up to the byte in `QueueTable.dirty`, and the names of the files; return the
    bytes synced.

    Args: device: this filesystem was synced as a whole after the ends were read; valid for queues whose files are on it
    and intact; -1: each file is synced.
    Raises: StorageError of a failed sync, after which nothing is synced any more; otherwise, once all others are
    durable, the error of a bad file (CorruptFile). No error for a queue that is deleted meanwhile.
    Thread: one at a time. GIL: released during the syncs.
    """
    cdef _QueueFlush flush = _QueueFlush.__new__(_QueueFlush, device)
    cdef ConsumeQueue queue
    if device < 0:
        for queue, _, fresh in dirty:
            try:
                queue.sync_names(fresh)
            except MqfastError:
                if not queue.state.deleted:
                    raise
    flush.flush(dirty)
    if flush.elsewhere:
        flush.done += flush_queues(list(flush.elsewhere.values()))
    for error in flush.failed.values():
        raise error
    return flush.done
