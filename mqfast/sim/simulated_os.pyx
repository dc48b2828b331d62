"""The simulated operating system below a store: every file has a live image, and a durable one in memory.

sim_door.c describes what is durable, and what a crash leaves. An object must never be freed while an object of a store
may still call the table, and no real sync is made.
"""

import os
from contextlib import contextmanager
from typing import Final, NamedTuple

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t

from mqfast.store.base.os_api cimport OsApi, mq_os

__all__ = ["KINDS", "SHORT_COUNT", "Image", "Sim", "in_real_time", "scratch_root"]

cdef extern from *:
    """
    typedef struct { int64_t call; int32_t mark, mode; uint64_t seed; } sim_image_row;
    void *sim_new(mq_os *table, const char *root, int64_t start_ms, int real_clocks);
    void sim_free(void *s);
    void sim_images(void *s, int64_t first, int64_t last, uint32_t kinds, int per_call, uint64_t seed, const char *to);
    void sim_only_mode(void *s, int mode);
    void sim_take(void *s);
    void sim_image(void *s, const char *path, int mode, uint64_t seed);
    int sim_image_count(const void *s);
    const sim_image_row *sim_image_list(const void *s);
    void sim_mark(void *s, int mark);
    void sim_freeze(void *s, int on);
    int64_t sim_calls(const void *s);
    int64_t sim_count(const void *s, int kind);
    void sim_clock(void *s, int64_t start_ms, int64_t tick_us);
    void sim_time(void *s, int64_t wall_us, int64_t monotonic_ns);
    void sim_fault(void *s, int kind, int64_t n, int error, int for_ever);
    int64_t sim_fault_hits(const void *s);
    void sim_full(void *s, int64_t n);
    int64_t sim_asked_for_space(const void *s);
    int64_t sim_resyncs(const void *s);
    int sim_open_maps(const void *s);
    int sim_open_fds(const void *s);
    """
    ctypedef struct sim_image_row:
        int64_t call
        int32_t mark
        int32_t mode
        uint64_t seed
    void *sim_new(mq_os *table, const char *root, int64_t start_ms, int real_clocks)
    void sim_free(void *s)
    void sim_images(void *s, int64_t first, int64_t last, uint32_t kinds, int per_call, uint64_t seed, const char *to)
    void sim_only_mode(void *s, int mode)
    void sim_take(void *s)
    void sim_image(void *s, const char *path, int mode, uint64_t seed)
    int sim_image_count(const void *s)
    const sim_image_row *sim_image_list(const void *s)
    void sim_mark(void *s, int mark)
    void sim_freeze(void *s, int on)
    int64_t sim_calls(const void *s)
    int64_t sim_count(const void *s, int kind)
    void sim_clock(void *s, int64_t start_ms, int64_t tick_us)
    void sim_time(void *s, int64_t wall_us, int64_t monotonic_ns)
    void sim_fault(void *s, int kind, int64_t n, int error, int for_ever)
    int64_t sim_fault_hits(const void *s)
    void sim_full(void *s, int64_t n)
    int64_t sim_asked_for_space(const void *s)
    int64_t sim_resyncs(const void *s)
    int sim_open_maps(const void *s)
    int sim_open_fds(const void *s)

# The order of the table in csrc/os_api.h.
KINDS: Final = {
    name: number
    for number, name in enumerate(
        """open close fallocate ftruncate fstat stat mmap munmap madvise mlock munlock msync seek_data pread pwrite
        fdatasync fsync rename unlink mkdir rmdir sync_directory statvfs lock_byte clock_ms monotonic_ns
        sync_filesystem unlock_byte lock_directory""".split()
    )
}
# A fault that reads or writes half of what was asked.
SHORT_COUNT: Final = 100000
KILLED, STRICT, MIXED, NAMES_ONLY, CONTENTS_ONLY = range(5)
# Long ago, so that a store which is opened later with the real clock only sees times go up.
START_MS: Final = 1_600_000_000_000


class Image(NamedTuple):
    """A crash image: the call before which the image was made, the mark of the workload then, mode and seed."""

    call: int
    mark: int
    mode: int
    seed: int


def scratch_root():
    """Return a directory in memory, None without one: no image needs a disk."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


cdef class Sim:
    """A simulated system over the tree below ``root``; ``os_api`` is what a store is opened with.

    The files below ``root`` at the creation count as durable.
    """

    cdef readonly str root
    cdef readonly OsApi os_api
    cdef void *_sim
    cdef mq_os _real

    def __init__(self, root, *, bint real_clocks=False, int64_t start_ms=START_MS):
        self.root = os.fspath(root)
        self.os_api = OsApi()
        self._real = self.os_api.table
        self._sim = sim_new(&self.os_api.table, os.fsencode(self.root), start_ms, real_clocks)

    def images(self, target, *, first, last, per_call, seed, kinds=(1 << 26) - 1):
        """Make ``per_call`` images in ``target`` before every call with ``first <= number < last``."""
        sim_images(self._sim, first, last, kinds, per_call, seed, os.fsencode(target))

    def image_at(self, target, int64_t call, int mode, uint64_t seed):
        """Make one image in ``target``/0 in front of a call."""
        sim_only_mode(self._sim, mode)
        sim_images(self._sim, call, call + 1, 0xFFFFFFFF, 1, seed, os.fsencode(target))

    def taken(self):
        """Return the images so far; number n is the directory ``target``/n."""
        cdef const sim_image_row *rows = sim_image_list(self._sim)
        return [
            Image(rows[n].call, rows[n].mark, rows[n].mode, rows[n].seed) for n in range(sim_image_count(self._sim))
        ]

    def take(self):
        """Note a moment at which a crash may come, without a call."""
        sim_take(self._sim)

    def image(self, path, int mode, uint64_t seed=0):
        """Make an image of this moment."""
        sim_image(self._sim, os.fsencode(path), mode, seed)

    def mark(self, int number):
        """Set the mark that images carry: the progress of the workload."""
        sim_mark(self._sim, number)

    def freeze(self, bint on):
        """Let calls work without a trace, until a call with False."""
        sim_freeze(self._sim, on)

    def clock(self, int64_t start_ms, int64_t tick_us):
        """Set the wall clock, and the step by which each reading advances the clock."""
        sim_clock(self._sim, start_ms, tick_us)

    def set_time(self, int64_t wall_us, int64_t monotonic_ns):
        """Set both clocks, which stand still until the next call."""
        sim_time(self._sim, wall_us, monotonic_ns)

    def fault(self, kind, int64_t n, int error, bint for_ever=False):
        """Let the n-th call of this kind from now on fail."""
        sim_fault(self._sim, KINDS[kind], n, error, for_ever)

    def fill(self, int64_t n=1):
        """Let the disk be full from the n-th call on that needs space: blocks, a new name, a longer file."""
        sim_full(self._sim, n)

    @property
    def asked_for_space(self):
        """Return the number of calls that needed space since ``fill``."""
        return sim_asked_for_space(self._sim)

    def heal(self):
        """End all faults; the disk has space."""
        sim_fault(self._sim, -1, 0, 0, 0)
        sim_full(self._sim, 0)

    @property
    def calls(self):
        """Return the number of calls so far."""
        return sim_calls(self._sim)

    def count(self, kind):
        """Return the number of calls of a kind so far."""
        return sim_count(self._sim, KINDS[kind])

    @property
    def fault_hits(self):
        """Return the number of calls that failed since ``fault``."""
        return sim_fault_hits(self._sim)

    @property
    def resyncs(self):
        """Return the number of syncs of pages on which an earlier sync had failed."""
        return sim_resyncs(self._sim)

    @property
    def open_maps(self):
        """Return the number of mappings that the store has now."""
        return sim_open_maps(self._sim)

    @property
    def open_fds(self):
        """Return the number of descriptors that the store has now."""
        return sim_open_fds(self._sim)

    def free(self):
        """End the simulation; the table has the real calls again. Stores on the table must be closed before."""
        if self._sim != NULL:
            self.os_api.table = self._real
            sim_free(self._sim)
            self._sim = NULL


@contextmanager
def in_real_time(directory):
    """Provide a simulation with real clocks below a directory, for stores with threads. All must be closed at the
    end.
    """
    root = directory / "live"
    root.mkdir()
    sim = Sim(root, real_clocks=True)
    yield sim
    sim.heal()
    assert sim.open_maps == 0
    assert sim.open_fds == 0
    sim.free()
