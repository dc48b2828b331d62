"""Units of many queues made durable at once (RocketMQ: FlushConsumeQueueService).

Each return to Python stops a thread that puts for 60 to 100 us, so there is one for FILES_AT_ONCE files, not one a file, and for a few files
none at all: they are an errand for the thread's next sleep. It must never count a queue as flushed of which a file was not synced, is not
there, or has lost a page; nor sync anything after a sync that failed.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t
from mqfast.store.queues._consume_queue cimport ConsumeQueue, sync_units
from mqfast.store.base._mapped_file cimport MappedFile
from mqfast.store.base._os cimport Errand, ask_for_gil, check, gave_gil, mq_os, mq_stat, populate

from errno import ENOENT as _ENOENT

from mqfast.errors import CorruptFile, MqfastError

cdef enum:
    FILES_AT_ONCE = 256

cdef int64_t PAGE = 4096
cdef int64_t FEWEST_PAGES = 2       # that a queue filled since the last flush: puts of fewer meet fewer faults than this has system calls


cdef struct Work:                   # on one file of a queue
    mq_os *os
    const char *name
    uint8_t *base                   # NULL: not mapped
    int64_t first, to, end          # bytes of the file: what is synced, and how far units go
    int64_t ready                   # and from there on, what puts come to until the next flush; 0: nothing
    bint sync
    int rc, rc_stat                 # what came of it
    mq_stat st


cdef void _carry_out(Work *one) noexcept nogil:
    one.rc = sync_units(one.os, one.base, one.first, one.to, one.end) if one.sync else 0
    one.rc_stat = one.os.stat(one.os, one.name, &one.st) if one.rc >= 0 else 0
    if one.rc >= 0 and one.ready > one.end:
        # who writes pages to the disk takes the right to write from them, the kernel in its own time from all of the file: each would be a fault
        populate(one.os, one.base + (one.end & ~(PAGE - 1)), one.ready - (one.end & ~(PAGE - 1)))


@cython.final
cdef class QueueFlush(Errand):
    """Syncs of the files of some queues, and what came of them."""

    cdef Work work[FILES_AT_ONCE]
    cdef int count
    cdef int tried                  # of `work`, up to the first one that failed
    cdef list files                 # (queue, its end, file, was it mapped?) of each of `work`
    cdef list whole                 # what `dirty` says of those queues whose last file was taken
    cdef dict elsewhere             # queue -> the same, of those that the sync of the filesystem did not reach
    cdef dict failed                # queue -> why
    cdef int64_t device             # what was synced as a whole; -1: nothing
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
            for one in dirty:
                queue, end, _ = one
                for file in list(queue.files):
                    if self.count == FILES_AT_ONCE:
                        self.together()
                    if file in queue.files:         # else retention took it, or it went with its topic
                        self.take(queue, end, file)
                self.whole.append(one)
            self.together()
        finally:
            self.let_go()
        return 0

    cdef int take(self, ConsumeQueue queue, int64_t end, MappedFile file) except -1:
        cdef Work *one = &self.work[self.count]
        cdef bint sync = self.device < 0, mapped = file.base != NULL
        if sync and not _is_unsynced(queue, end, file):
            return 0
        one.os = queue.door.os
        one.name = <const char *> file.native_path
        one.first = max(queue.flushed - file.start_offset, 0) & ~<int64_t> 4095
        one.to = queue.file_bytes if queue.cut else min(end - file.start_offset, queue.file_bytes)
        one.end = end - file.start_offset
        one.sync = sync
        one.ready = 0
        try:
            one.base = file.hold() if sync or mapped else NULL
        except MqfastError as error:
            self.fail(queue, error)
            return 0
        if one.base != NULL and file is queue.tail and end - queue.flushed >= FEWEST_PAGES * PAGE:
            one.ready = min(one.end + 2 * (end - queue.flushed), file.allocated)
        try:
            self.files.append((queue, end, file, mapped))
        except MemoryError:
            if one.base != NULL:
                file.release()
            raise
        self.count += 1
        return 0

    cdef int carry_out(self) noexcept nogil:
        cdef int rc = 0
        while rc >= 0 and self.tried < self.count:
            _carry_out(&self.work[self.tried])
            rc = self.work[self.tried].rc
            self.tried += 1
        return rc

    cdef int together(self) except -1:
        with nogil:
            gave_gil()
            self.carry_out()
            ask_for_gil()
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
                self.believe(&self.work[i], queue, end, file)
            except MqfastError as error:
                self.fail(queue, error)
        for one in self.whole:
            queue, end, fresh = one
            if queue in self.elsewhere:
                self.elsewhere[queue] = one
            elif queue not in self.failed:
                queue.flushed = max(queue.flushed, end)
                queue.cut = False
                if fresh:           # else its first file may have come meanwhile, and nobody has synced that name
                    queue.fresh = False
        self.whole.clear()
        self.let_go()
        return 0

    def finish(self) -> bool:
        """Believe what was carried out; False when nothing was yet. Raises: as ``flush_queues``."""
        if self.tried == 0 < self.count:
            self.let_go()
            return False
        try:
            self.conclude()
        finally:
            self.let_go()
        for error in self.failed.values():
            raise error
        return True

    def abandon(self) -> None:
        """Let go of the files, and believe nothing."""
        self.let_go()

    cdef int believe(self, Work *one, ConsumeQueue queue, int64_t end, MappedFile file) except -1:
        if not one.sync:
            if one.rc_stat < 0 or one.st.device != self.device:
                self.elsewhere[queue] = None
                return 0
            if not _is_unsynced(queue, end, file):
                return 0
        # a page that was lost, or a file that was cut short or removed meanwhile, is nothing to call durable
        file.check_damage()
        if one.rc_stat != -_ENOENT:
            check(one.rc_stat, "stat", file.path)
        if (one.rc_stat < 0 or one.st.bytes < queue.file_bytes) and file in queue.files:    # else the retention thread took it
            raise CorruptFile("queue file was cut short or removed", path=file.path, expected=f"{queue.file_bytes} bytes",
                              found="no file" if one.rc_stat < 0 else f"{one.st.bytes} bytes")
        self.done += one.to - one.first
        return 0

    cdef int fail(self, ConsumeQueue queue, error) except -1:
        if not queue.state.deleted:     # else its files went with its topic
            self.failed[queue] = error
        return 0

    cdef int let_go(self) except -1:
        cdef MappedFile file
        while self.count:
            self.count -= 1
            _, _, file, mapped = self.files[self.count]
            if self.work[self.count].base != NULL:
                file.release()
            if not mapped:
                file.rest()
        self.files.clear()
        self.tried = 0
        return 0


cdef bint _is_unsynced(ConsumeQueue queue, int64_t end, MappedFile file) noexcept:
    return file.start_offset + queue.file_bytes > queue.flushed and (file.start_offset < end or queue.cut)


def flush_queues(list dirty, int64_t device=-1) -> int:
    """Make the units of each queue durable up to the byte that `QueueTable.dirty` told, and the names of its files; returns the bytes synced.

    Args: device: all of this filesystem was synced after the ends were read, which is believed of queues whose files lie there and are what
    they should be; -1: none was, and each file is synced. Raises: StorageError of a sync that failed, after which nothing is synced any more;
    otherwise, once all others are durable, what was wrong with a file (CorruptFile). Of a queue that is deleted meanwhile nothing is raised.
    Thread: one at a time. GIL: released while it syncs.
    """
    cdef QueueFlush flush = QueueFlush.__new__(QueueFlush, device)
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


def prepare_flush(list dirty) -> QueueFlush | None:
    """What ``flush_queues`` would sync, as an errand; None when it has names to sync or more files than fit.

    Thread: it is finished or abandoned before the next flush is prepared; until then it holds the files.
    """
    cdef QueueFlush flush = QueueFlush.__new__(QueueFlush, -1)
    cdef ConsumeQueue queue
    cdef MappedFile file
    cdef int64_t end
    cdef bint fresh
    try:
        for one in dirty:
            queue, end, fresh = one
            if fresh or queue.cut or flush.count + len(queue.files) > FILES_AT_ONCE:
                flush.let_go()
                return None
            for file in list(queue.files):
                flush.take(queue, end, file)
            flush.whole.append(one)
    except BaseException:
        flush.let_go()
        raise
    return flush
