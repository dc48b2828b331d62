"""The six numbers of the checkpoint, and the write in place.

A file that a Java broker may have mapped is never shortened, replaced or half written: the numbers are in one sector.
Only a file of another length is created again and renamed. Format: FORMAT.md. ``checkpoint.py`` gives the meaning of
the numbers.
"""

from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memcmp, memcpy
from mqfast.store.base.os_api cimport (
    MQ_OPEN_WRITE, Mutex, OsApi, acquire, check, check_room, encode_path, lock, mq_load64, mq_put64, mq_store64,
    release, unlock, write_all,
)

cdef enum:
    FILE_BYTES = 4096
    NOT_THERE = 2               # of write: the file must be created first
cdef int NO_FILE = 2            # ENOENT


cdef class CheckpointFile:
    """The numbers in memory, each of which may be set at any time, and the file.

    Thread: any; flushes are serialised.
    """

    def __init__(self, OsApi os_api not None, path):
        self.os_api = os_api
        self.os = os_api.os
        self.path = path
        self.native_path = encode_path(path)
        self.name = self.native_path
        self.mutex = Mutex()

    def assume_written(self, bytes numbers not None) -> None:
        """Note that the file is valid and holds these 48 bytes."""
        memcpy(self.written, <const char *> numbers, NUMBERS_BYTES)
        self.whole = self.known = True

    def number(self, int place) -> int:
        """Return the number at this position of the file."""
        if not 0 <= place < NUMBERS_BYTES // 8:
            raise IndexError(place)
        return mq_load64(&self.physic_msg_timestamp + place)

    def set_number(self, int place, int64_t value) -> None:
        """Set the number; the flush thread may read meanwhile."""
        if not 0 <= place < NUMBERS_BYTES // 8:
            raise IndexError(place)
        mq_store64(&self.physic_msg_timestamp + place, value)

    cdef void _pack(self, uint8_t *to) noexcept nogil:
        mq_put64(to, mq_load64(&self.physic_msg_timestamp))
        mq_put64(to + 8, mq_load64(&self.logics_msg_timestamp))
        mq_put64(to + 16, mq_load64(&self.index_msg_timestamp))
        mq_put64(to + 24, mq_load64(&self.master_flushed_offset))
        mq_put64(to + 32, mq_load64(&self.confirm_phy_offset))
        mq_put64(to + 40, mq_load64(&self.logics_physical_offset))

    cdef int write(self) noexcept nogil:
        """Write the numbers and wait for the disk. Returns 1: written; 0: unchanged; NOT_THERE: no valid
        file; -errno.
        """
        cdef uint8_t numbers[NUMBERS_BYTES]
        cdef int rc = 0, fd
        lock(&self.writing)
        self._pack(numbers)
        if not self.known or memcmp(numbers, self.written, NUMBERS_BYTES) != 0:
            self.known = False
            rc = NOT_THERE
            if self.whole:
                fd = self.os.open(self.os, self.name, MQ_OPEN_WRITE)
                if fd == -NO_FILE:
                    self.whole = False      # another process has removed the file of a running store
                elif fd < 0:
                    rc = fd
                else:
                    rc = write_all(self.os, fd, numbers, NUMBERS_BYTES, 0)
                    if rc >= 0:
                        rc = self.os.fsync(self.os, fd)
                    self.os.close(self.os, fd)
                    if rc >= 0:
                        memcpy(self.written, numbers, NUMBERS_BYTES)
                        self.known = True
                        rc = 1
        unlock(&self.writing)
        return rc

    def flush(self) -> bool:
        """Write the six numbers and wait for the disk. No effect if the file holds the numbers already.

        Returns: True if anything was written.
        Raises: StorageError; the numbers then count as not written.
        Durability: when the call returns, the numbers survive power loss.
        """
        cdef uint8_t numbers[NUMBERS_BYTES]
        cdef int rc
        acquire(self.mutex)
        try:
            with nogil:
                rc = self.write()
            if rc == NOT_THERE:
                self._pack(numbers)
                data = (<const char *> numbers)[:NUMBERS_BYTES]
                self.os_api.replace_file(self.path, data.ljust(FILE_BYTES, b"\0"))
                self.assume_written(data)
                return True
            check_room(self.os_api, rc, "write", self.path, NUMBERS_BYTES, None)
            return rc == 1
        finally:
            release(self.mutex)
