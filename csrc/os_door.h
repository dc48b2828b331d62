/* The one door to the operating system.
 *
 * Every call that the store makes on files, mappings and clocks goes through the table below, so that a test can put another table in
 * its place (one that fails the N-th call, or one that keeps a durable image beside the live one). No other file of the store may
 * call the OS for files.
 *
 * Every function returns >= 0 on success and -errno on failure; mmap returns the address through *out. The table is passed by
 * pointer and is never written after it was handed out, so any thread may use it without a lock. None of these needs the GIL.
 */
#ifndef MQ_OS_DOOR_H
#define MQ_OS_DOOR_H

#include <stddef.h>
#include <stdint.h>

typedef struct mq_os mq_os;

typedef struct {
    int64_t bytes;    /* length */
    int64_t mtime_ms; /* last modification, ms since the epoch; fstat does not ask for it, and says 0 */
    int64_t device, inode;
    int is_directory, is_regular; /* neither: a FIFO, a socket or a device, which open refuses with ENXIO */
    int unlinked; /* no name leads to the file any more; set to 0 before a call: a table may leave it alone */
} mq_stat;

enum { MQ_READ = 0, MQ_READ_WRITE = 1 }; /* mmap protection */
enum {
    MQ_ADVISE_RANDOM = 1,
    MQ_ADVISE_SEQUENTIAL,
    MQ_ADVISE_WILLNEED,
    MQ_ADVISE_POPULATE_WRITE,
    MQ_ADVISE_HUGE,
    MQ_ADVISE_UNMAP /* of a shared file mapping: take the pages out of it, in one step; the next touch of each finds it again */
}; /* madvise */
enum {
    MQ_OPEN_READ = 0,
    MQ_OPEN_WRITE = 1,
    MQ_OPEN_CREATE = 2,
    MQ_OPEN_TRUNCATE = 4,
    MQ_OPEN_EXCLUSIVE = 8
}; /* open flags, or-ed */

struct mq_os {
    int (*open)(mq_os *, const char *path, int flags);
    int (*close)(mq_os *, int fd);
    int (*fallocate)(mq_os *, int fd, int64_t offset, int64_t bytes); /* allocate and extend: full disk is found here,
                                                                       * before a block is taken */
    int (*ftruncate)(mq_os *, int fd, int64_t bytes);
    int (*fstat)(mq_os *, int fd, mq_stat *out);
    int (*stat)(mq_os *, const char *path, mq_stat *out);
    int (*mmap)(mq_os *, int fd, int64_t bytes, int protection, void **out);
    int (*munmap)(mq_os *, void *address, int64_t bytes);
    int (*madvise)(mq_os *, void *address, int64_t bytes, int advice);
    int (*mlock)(mq_os *, void *address, int64_t bytes);
    int (*munlock)(mq_os *, void *address, int64_t bytes);
    int (*msync)(mq_os *, void *address, int64_t bytes); /* synchronous, of that range only */
    int64_t (*seek_data)(mq_os *, int fd,
                         int64_t offset); /* first byte at or after offset that may be not zero; -ENXIO: none */
    int64_t (*pread)(mq_os *, int fd, void *to, int64_t bytes, int64_t offset);
    int64_t (*pwrite)(mq_os *, int fd, const void *from, int64_t bytes, int64_t offset);
    int (*fdatasync)(mq_os *, int fd);
    int (*fsync)(mq_os *, int fd);
    int (*rename)(mq_os *, const char *from, const char *to);
    int (*unlink)(mq_os *, const char *path);
    int (*mkdir)(mq_os *, const char *path);
    int (*rmdir)(mq_os *, const char *path);
    int (*sync_directory)(mq_os *, const char *path);
    int (*statvfs)(mq_os *, const char *path, int64_t *total_bytes, int64_t *available_bytes);
    int (*lock_byte)(mq_os *, int fd); /* byte 0, for this descriptor alone, not blocking; -EAGAIN: another one has it,
                                        * of whatever process */
    int64_t (*clock_ms)(mq_os *);      /* wall clock, ms since the epoch */
    int64_t (*monotonic_ns)(mq_os *);
    int (*sync_filesystem)(mq_os *,
                           int fd);      /* all of it; errors since fd was opened. -ENOSYS: not here, or not reliable */
    int (*unlock_byte)(mq_os *, int fd); /* also where a forked child still has the descriptor */
    int (*lock_directory)(mq_os *, int fd, int hold); /* or let go of it; as a whole, not blocking; -EAGAIN: taken */
    void *state;                                      /* of the table's owner */
    int unguarded; /* mappings of this table's owner get no guard against lost pages (sigbus_guard.h) */
};

/* The real operating system. */
mq_os *mq_os_real(void);
/* What an allocation of so many bytes leaves free besides: room for the filesystem's own records of it, and for others. */
int64_t mq_os_spared(int64_t bytes);

/* Write all of it, or return -errno; a short write is continued, EINTR repeated. */
int mq_os_write_all(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset);
/* Read up to bytes, continued over short reads; returns what was there before the end of the file, or -errno. */
int64_t mq_os_read_all(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset);
/* The numbers of the entries of a directory whose names are 20 digits up to 2^63-1 and that are not known to be directories, in
 * no order: at most `most` of them go to `starts`. Returns how many there are, 0 for no such directory, or -errno. */
int64_t mq_os_list_starts(const char *path, int64_t *starts, int64_t most);
/* Make [address, address + bytes) resident and writable; address must be page aligned. Falls back to touching each page
 * with an atomic "or 0" where the kernel has no MADV_POPULATE_WRITE (the put may write the same page meanwhile). */
int mq_os_populate(mq_os *os, void *address, int64_t bytes);
/* Write to each page of [address, address + bytes) what it holds, by an atomic "or 0": others may write the same page meanwhile. Memory that this
 * system holds ready may still be missing below it: the host of a virtual machine gives it back at the touch. */
void mq_os_touch(void *address, int64_t bytes);
/* Before a sync of [address, address + bytes) of a shared file mapping: take its pages out of the mapping, all in one step. A sync makes each
 * page that is mapped writable read-only, and interrupts the other processors of the process for each of them; a page that is not mapped
 * it just writes. Nothing is lost, and the next touch of a page maps it again: for pages that will not be written again soon. Nothing
 * happens where there are but a few pages, or where the kernel does not do this: the sync then does what it always did. */
void mq_os_unmap_written(mq_os *os, void *address, int64_t bytes);
/* Give a fresh file its full length with real blocks; zeros are written where the filesystem cannot allocate. */
int mq_os_allocate(mq_os *os, int fd, int64_t offset, int64_t bytes);
/* Give a range of a file of full length its blocks. The range holds nothing: where the filesystem cannot allocate, zeros are written over it. */
int mq_os_allocate_empty(mq_os *os, int fd, int64_t offset, int64_t bytes);

#endif
