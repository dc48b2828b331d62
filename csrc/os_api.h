/* The calls of the operating system.
 *
 * Every call of the store on files, mappings and clocks uses the table below, so that a test can substitute another
 * table: one that fails the N-th call, or one that keeps a durable image beside the live files. No other file of the
 * store calls the OS for files.
 *
 * Every function returns >= 0 on success and -errno on failure; mmap returns the address through *out. The table is
 * passed by pointer and is never written after it was handed out, so any thread may use it without a lock. No
 * function needs the GIL. */
#ifndef MQ_OS_API_H
#define MQ_OS_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct mq_os mq_os;

typedef struct {
    int64_t bytes;    /* length */
    int64_t mtime_ms; /* last modification, ms since the epoch; fstat does not read it and sets 0 */
    int64_t device, inode;
    int is_directory, is_regular; /* neither: a FIFO, a socket or a device, which open refuses with ENXIO */
    int unlinked; /* the file has no name any more; set to 0 before a call: a table may leave the field unchanged */
} mq_stat;

enum { MQ_READ = 0, MQ_READ_WRITE = 1 }; /* mmap protection */
enum {
    MQ_ADVISE_RANDOM = 1,
    MQ_ADVISE_SEQUENTIAL,
    MQ_ADVISE_WILLNEED,
    MQ_ADVISE_POPULATE_WRITE,
    MQ_ADVISE_HUGE,
    /* of a shared file mapping: unmap its pages in one step; the next access to a page maps the page again */
    MQ_ADVISE_UNMAP
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
    /* allocate and extend; a full disk is reported here, before a block is taken */
    int (*fallocate)(mq_os *, int fd, int64_t offset, int64_t bytes);
    int (*ftruncate)(mq_os *, int fd, int64_t bytes);
    int (*fstat)(mq_os *, int fd, mq_stat *out);
    int (*stat)(mq_os *, const char *path, mq_stat *out);
    int (*mmap)(mq_os *, int fd, int64_t bytes, int protection, void **out);
    int (*munmap)(mq_os *, void *address, int64_t bytes);
    int (*madvise)(mq_os *, void *address, int64_t bytes, int advice);
    int (*mlock)(mq_os *, void *address, int64_t bytes);
    int (*munlock)(mq_os *, void *address, int64_t bytes);
    int (*msync)(mq_os *, void *address, int64_t bytes); /* synchronous, of that range only */
    /* first byte at or after offset that may be nonzero; -ENXIO: none */
    int64_t (*seek_data)(mq_os *, int fd, int64_t offset);
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
    /* byte 0, for this descriptor alone, not blocking; -EAGAIN: locked through another descriptor, of any process */
    int (*lock_byte)(mq_os *, int fd);
    int64_t (*clock_ms)(mq_os *); /* wall clock, ms since the epoch */
    int64_t (*monotonic_ns)(mq_os *);
    /* the whole filesystem; reports errors since fd was opened. -ENOSYS: unsupported, or not reliable */
    int (*sync_filesystem)(mq_os *, int fd);
    int (*unlock_byte)(mq_os *, int fd); /* also effective while a forked child still has the descriptor */
    /* hold 1: lock the whole directory, not blocking; 0: unlock. -EAGAIN: locked already */
    int (*lock_directory)(mq_os *, int fd, int hold);
    void *state;   /* of the table's owner */
    int unguarded; /* mappings of this table's owner get no guard against lost pages (sigbus_guard.h) */
};

/* The real operating system. */
mq_os *mq_os_real(void);
/* Bytes that an allocation of `bytes` bytes leaves free: room for the filesystem's metadata and for other processes. */
int64_t mq_os_spared(int64_t bytes);

/* Write all bytes, or return -errno; a short write is continued, EINTR repeated. */
int mq_os_write_all(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset);
/* Read up to `bytes` bytes, continued over short reads; returns the number of bytes before the end of the file, or
 * -errno. */
int64_t mq_os_read_all(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset);
/* List the start offsets of a directory: entries whose names are 20 digits up to 2^63-1 and that are not known to be
 * directories, unordered. At most `most` of them go to `starts`. Returns their number, 0 for a missing directory, or
 * -errno. */
int64_t mq_os_list_starts(const char *path, int64_t *starts, int64_t most);
/* Make [address, address + bytes) resident and writable; address must be page aligned. Without MADV_POPULATE_WRITE
 * in the kernel, each page is touched with an atomic "or 0" (a put may write the same page at that moment). */
int mq_os_populate(mq_os *os, void *address, int64_t bytes);
/* Touch each page of [address, address + bytes) with an atomic "or 0", which keeps its bytes: other threads may
 * write the same page at that moment. Pages that this system holds ready may still be missing below it: the host of
 * a virtual machine supplies them at the touch. */
void mq_os_touch(void *address, int64_t bytes);
/* Unmap the pages of [address, address + bytes) of a shared file mapping in one step, before a sync. A sync makes
 * each page that is mapped writable read-only, and interrupts the other processors of the process for each page; an
 * unmapped page is only written. No data is lost, and the next access maps a page again: for pages that will not be
 * written again soon. No effect for a few pages, or where the kernel does not support it: the sync then works as
 * usual. */
void mq_os_unmap_written(mq_os *os, void *address, int64_t bytes);
/* Allocate the full length of a new file in real blocks; where the filesystem cannot allocate, zeros are written. */
int mq_os_allocate(mq_os *os, int fd, int64_t offset, int64_t bytes);
/* Allocate the blocks of a range of a file of full length. The range holds no data: where the filesystem cannot
 * allocate, the range is overwritten with zeros. */
int mq_os_allocate_empty(mq_os *os, int fd, int64_t offset, int64_t bytes);

#endif
