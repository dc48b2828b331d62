/* The real operating system behind os_api.h. Linux first; macOS through the fallbacks marked below. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "os_api.h"
#include "system_stat.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#endif

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define RESULT(call) ((call) < 0 ? -errno : 0)

static int real_close(mq_os *os, int fd) {
    (void)os;
    return RESULT(close(fd));
}

int64_t mq_os_spared(int64_t bytes) { return (256 << 10) + bytes / 256; }

/* True if the filesystem has less free than these bytes need. A filesystem that reports no size is taken to have
 * room. */
static int lacks_room(const struct statvfs *st, int64_t bytes) {
    return st->f_blocks > 0 && (int64_t)st->f_bavail * (int64_t)st->f_frsize < bytes + mq_os_spared(bytes);
}

/* True if not all blocks of the range are free: the range is not allocated then. An allocation that fails halfway
 * takes every free block, and all other writers of the filesystem fail until those blocks are released. Blocks that
 * the file has beyond `offset` bytes are taken to be behind `offset`. */
static int range_lacks_room(int fd, int64_t offset, int64_t bytes) {
    struct statvfs fs;
    struct stat st;
    if (fstatvfs(fd, &fs) < 0 || !lacks_room(&fs, bytes) || stat_fd(fd, &st) < 0) return 0;
    int64_t there = (int64_t)st.st_blocks * 512 - offset;
    if (there > 0) bytes -= there;
    return bytes > 0 && lacks_room(&fs, bytes);
}

static int real_fallocate(mq_os *os, int fd, int64_t offset, int64_t bytes) {
    (void)os;
    if (range_lacks_room(fd, offset, bytes)) return -ENOSPC;
#if defined(__linux__)
    int rc;
    do rc = fallocate(fd, 0, offset, bytes);
    while (rc < 0 && errno == EINTR);
    return rc < 0 ? -errno : 0;
#else
    (void)fd, (void)offset, (void)bytes;
    return -EOPNOTSUPP;
#endif
}

static int real_ftruncate(mq_os *os, int fd, int64_t bytes) {
    (void)os;
    return RESULT(ftruncate(fd, bytes));
}

static int copy_stat(int rc, const struct stat *st, mq_stat *out) {
    if (rc < 0) return -errno;
    out->bytes = st->st_size;
#if defined(__APPLE__)
    out->mtime_ms = (int64_t)st->st_mtimespec.tv_sec * 1000 + st->st_mtimespec.tv_nsec / 1000000;
#else
    out->mtime_ms = (int64_t)st->st_mtim.tv_sec * 1000 + st->st_mtim.tv_nsec / 1000000;
#endif
    out->device = (int64_t)st->st_dev;
    out->inode = (int64_t)st->st_ino;
    out->is_directory = S_ISDIR(st->st_mode);
    out->is_regular = S_ISREG(st->st_mode);
    out->unlinked = st->st_nlink == 0;
    return 0;
}

/* Without the times. Since Linux 6.13 a file whose times were read gets new ones with its next write, and the next
 * sync then writes the inode besides the data: an fstat after each sync cost 45 of 160 us. */
static int real_fstat(mq_os *os, int fd, mq_stat *out) {
    (void)os;
#if defined(__linux__) && defined(STATX_SIZE)
    struct statx sx;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_TYPE | STATX_INO | STATX_NLINK | STATX_SIZE, &sx) == 0) {
        out->bytes = (int64_t)sx.stx_size;
        out->mtime_ms = 0;
        out->device = (int64_t)makedev(sx.stx_dev_major, sx.stx_dev_minor);
        out->inode = (int64_t)sx.stx_ino;
        out->is_directory = S_ISDIR(sx.stx_mode);
        out->is_regular = S_ISREG(sx.stx_mode);
        out->unlinked = sx.stx_nlink == 0;
        return 0;
    }
#endif
    struct stat st; /* older systems, containers that block statx, and the errno of a failure */
    int rc = copy_stat(stat_fd(fd, &st), &st, out);
    out->mtime_ms = 0;
    return rc;
}

static int real_open(mq_os *os, const char *path, int flags) {
    int mode = flags & MQ_OPEN_WRITE ? O_RDWR : O_RDONLY;
    if (flags & MQ_OPEN_CREATE) mode |= O_CREAT;
    if (flags & MQ_OPEN_TRUNCATE) mode |= O_TRUNC;
    if (flags & MQ_OPEN_EXCLUSIVE) mode |= O_EXCL;
    int fd;
    /* A store has regular files and directories. O_NONBLOCK has no effect on them; without O_NONBLOCK the open of a
     * FIFO would wait for a writer. */
    do fd = open(path, mode | O_CLOEXEC | O_NONBLOCK, 0644);
    while (fd < 0 && errno == EINTR);
    if (fd < 0) return -errno;
    mq_stat st;
    if (real_fstat(os, fd, &st) == 0 && !st.is_regular && !st.is_directory) {
        close(fd);
        return -ENXIO; /* the errno that the system uses for a socket */
    }
    return fd;
}

static int real_stat(mq_os *os, const char *path, mq_stat *out) {
    (void)os;
    struct stat st;
    return copy_stat(stat_path(path, &st), &st, out);
}

static int real_mmap(mq_os *os, int fd, int64_t bytes, int protection, void **out) {
    (void)os;
    void *address;
    if (fd < 0) /* anonymous: a pool buffer */
        address = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    else
        address = mmap(NULL, (size_t)bytes, protection == MQ_READ_WRITE ? PROT_READ | PROT_WRITE : PROT_READ,
                       MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) return -errno;
    *out = address;
    return 0;
}

static int real_munmap(mq_os *os, void *address, int64_t bytes) {
    (void)os;
    return RESULT(munmap(address, (size_t)bytes));
}

static int real_madvise(mq_os *os, void *address, int64_t bytes, int advice) {
    (void)os;
    int native;
    switch (advice) {
    case MQ_ADVISE_RANDOM:
        native = MADV_RANDOM;
        break;
    case MQ_ADVISE_SEQUENTIAL:
        native = MADV_SEQUENTIAL;
        break;
    case MQ_ADVISE_WILLNEED:
        native = MADV_WILLNEED;
        break;
#if defined(__linux__)
    case MQ_ADVISE_POPULATE_WRITE:
        native = MADV_POPULATE_WRITE;
        break;
    case MQ_ADVISE_HUGE:
        native = MADV_HUGEPAGE;
        break;
    case MQ_ADVISE_UNMAP: /* only Linux guarantees that bytes written through a shared mapping stay in the file */
        native = MADV_DONTNEED;
        break;
#endif
    default:
        return -EINVAL;
    }
    return RESULT(madvise(address, (size_t)bytes, native));
}

static int real_mlock(mq_os *os, void *address, int64_t bytes) {
    (void)os;
    return RESULT(mlock(address, (size_t)bytes));
}

static int real_munlock(mq_os *os, void *address, int64_t bytes) {
    (void)os;
    return RESULT(munlock(address, (size_t)bytes));
}

static int real_msync(mq_os *os, void *address, int64_t bytes) {
    (void)os;
    return RESULT(msync(address, (size_t)bytes, MS_SYNC));
}

static int64_t real_seek_data(mq_os *os, int fd, int64_t offset) {
    (void)os;
#if defined(SEEK_DATA)
    off_t found = lseek(fd, offset, SEEK_DATA);
    if (found >= 0) return found;
    if (errno == ENXIO) return -ENXIO;
#endif
    return offset; /* no SEEK_DATA: all bytes may be data */
}

static int64_t real_pread(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset) {
    (void)os;
    ssize_t n = pread(fd, to, (size_t)bytes, offset);
    return n < 0 ? -errno : n;
}

static int64_t real_pwrite(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset) {
    (void)os;
    ssize_t n = pwrite(fd, from, (size_t)bytes, offset);
    return n < 0 ? -errno : n;
}

static int real_fdatasync(mq_os *os, int fd) {
    (void)os;
#if defined(__APPLE__) /* fsync there does not reach the platter; F_FULLFSYNC does */
    return RESULT(fcntl(fd, F_FULLFSYNC));
#else
    return RESULT(fdatasync(fd));
#endif
}

static int real_fsync(mq_os *os, int fd) {
    (void)os;
#if defined(__APPLE__)
    return RESULT(fcntl(fd, F_FULLFSYNC));
#else
    return RESULT(fsync(fd));
#endif
}

static int real_rename(mq_os *os, const char *from, const char *to) {
    (void)os;
    return RESULT(rename(from, to));
}

static int real_unlink(mq_os *os, const char *path) {
    (void)os;
    return RESULT(unlink(path));
}

/* True if the filesystem has no block for a new directory. */
static int directory_lacks_room(const char *path) {
    char parent[4096];
    struct statvfs fs;
    const char *slash = strrchr(path, '/');
    size_t n = slash == NULL ? 0 : slash == path ? 1 : (size_t)(slash - path);
    if (n >= sizeof parent) return 0;
    memcpy(parent, path, n);
    parent[n] = '\0';
    return statvfs(n ? parent : ".", &fs) == 0 && lacks_room(&fs, (int64_t)fs.f_frsize) && access(path, F_OK) < 0;
}

static int real_mkdir(mq_os *os, const char *path) {
    (void)os;
    if (directory_lacks_room(path)) return -ENOSPC;
    return RESULT(mkdir(path, 0755));
}

static int real_rmdir(mq_os *os, const char *path) {
    (void)os;
    return RESULT(rmdir(path));
}

static int real_sync_directory(mq_os *os, const char *path) {
    int fd = real_open(os, path, MQ_OPEN_READ);
    if (fd < 0) return fd;
    int rc = RESULT(fsync(fd));
    close(fd);
    return rc == -EINVAL ? 0 : rc; /* some filesystems cannot sync a directory and do not need to */
}

static int real_statvfs(mq_os *os, const char *path, int64_t *total_bytes, int64_t *available_bytes) {
    (void)os;
    struct statvfs st;
    if (statvfs(path, &st) < 0) return -errno;
    /* used + usable, as df and RocketMQ compute it: blocks reserved for root belong to neither */
    *total_bytes = ((int64_t)st.f_blocks - (int64_t)st.f_bfree + (int64_t)st.f_bavail) * (int64_t)st.f_frsize;
    *available_bytes = (int64_t)st.f_bavail * (int64_t)st.f_frsize;
    return 0;
}

/* OFD lock. Conflicts with record locks of other processes (Java). Unlike a record lock, it is kept when this
 * process closes another descriptor of the file. Kernels without OFD locks (before Linux 3.15, gVisor, macOS): a
 * record lock. */
static int set_byte_lock(int fd, short type) {
    struct flock range = {.l_type = type, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    int rc = -1;
    errno = EINVAL;
#if defined(F_OFD_SETLK)
    rc = fcntl(fd, F_OFD_SETLK, &range);
#endif
    if (rc < 0 && errno == EINVAL) rc = fcntl(fd, F_SETLK, &range);
    if (rc == 0) return 0;
    return errno == EACCES ? -EAGAIN : -errno;
}

static int real_lock_byte(mq_os *os, int fd) {
    (void)os;
    return set_byte_lock(fd, F_WRLCK);
}

static int real_unlock_byte(mq_os *os, int fd) {
    (void)os;
    return set_byte_lock(fd, F_UNLCK);
}

static int real_lock_directory(mq_os *os, int fd, int hold) {
    (void)os;
    return RESULT(flock(fd, hold ? LOCK_EX | LOCK_NB : LOCK_UN));
}

static int64_t real_clock_ms(mq_os *os) {
    (void)os;
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static int64_t real_monotonic_ns(mq_os *os) {
    (void)os;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int real_sync_filesystem(mq_os *os, int fd) {
    (void)os;
#if defined(__linux__)
    /* before Linux 5.8 syncfs does not report write errors */
    struct utsname kernel;
    int major = 0, minor = 0;
    if (uname(&kernel) < 0 || sscanf(kernel.release, "%d.%d", &major, &minor) != 2) return -ENOSYS;
    if (major < 5 || (major == 5 && minor < 8)) return -ENOSYS;
    return RESULT(syncfs(fd));
#else
    (void)fd;
    return -ENOSYS;
#endif
}

static mq_os the_real_os = {
    .open = real_open,
    .close = real_close,
    .fallocate = real_fallocate,
    .ftruncate = real_ftruncate,
    .fstat = real_fstat,
    .stat = real_stat,
    .mmap = real_mmap,
    .munmap = real_munmap,
    .madvise = real_madvise,
    .mlock = real_mlock,
    .munlock = real_munlock,
    .msync = real_msync,
    .seek_data = real_seek_data,
    .pread = real_pread,
    .pwrite = real_pwrite,
    .fdatasync = real_fdatasync,
    .fsync = real_fsync,
    .rename = real_rename,
    .unlink = real_unlink,
    .mkdir = real_mkdir,
    .rmdir = real_rmdir,
    .sync_directory = real_sync_directory,
    .statvfs = real_statvfs,
    .lock_byte = real_lock_byte,
    .unlock_byte = real_unlock_byte,
    .lock_directory = real_lock_directory,
    .clock_ms = real_clock_ms,
    .monotonic_ns = real_monotonic_ns,
    .sync_filesystem = real_sync_filesystem,
    .state = NULL,
};

mq_os *mq_os_real(void) { return &the_real_os; }

int mq_os_write_all(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset) {
    const char *at = from;
    while (bytes > 0) {
        int64_t n = os->pwrite(os, fd, at, bytes, offset);
        if (n == -EINTR) continue;
        if (n < 0) return (int)n;
        if (n == 0) return -EIO;
        at += n, offset += n, bytes -= n;
    }
    return 0;
}

int64_t mq_os_read_all(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset) {
    char *at = to;
    int64_t done = 0;
    while (done < bytes) {
        int64_t n = os->pread(os, fd, at + done, bytes - done, offset + done);
        if (n == -EINTR) continue;
        if (n < 0) return n;
        if (n == 0) break;
        done += n;
    }
    return done;
}

static int64_t start_of(const char *name) { /* -1: no start offset */
    uint64_t start = 0;
    int i = 0;
    for (; name[i] >= '0' && name[i] <= '9' && i < 20; i++) {
        if (start > (INT64_MAX - (uint64_t)(name[i] - '0')) / 10) return -1;
        start = start * 10 + (uint64_t)(name[i] - '0');
    }
    return i == 20 && name[20] == 0 ? (int64_t)start : -1;
}

int64_t mq_os_list_starts(const char *path, int64_t *starts, int64_t most) {
    DIR *directory = opendir(path);
    if (directory == NULL) return errno == ENOENT ? 0 : -errno;
    int64_t count = 0;
    struct dirent *entry;
    while (errno = 0, (entry = readdir(directory)) != NULL) {
        int64_t start = start_of(entry->d_name);
#if defined(DT_DIR)
        if (entry->d_type == DT_DIR) continue;
#endif
        if (start < 0) continue;
        if (count < most) starts[count] = start;
        count++;
    }
    if (errno != 0) count = -errno;
    closedir(directory);
    return count;
}

int mq_os_populate(mq_os *os, void *address, int64_t bytes) {
    if (bytes <= 0) return 0;
    int rc;
    do rc = os->madvise(os, address, bytes, MQ_ADVISE_POPULATE_WRITE);
    while (rc == -EINTR || rc == -EAGAIN);
    if (rc != -EINVAL) return rc;
    mq_os_touch(address, bytes);
    return 0;
}

/* Excluded from the thread sanitizer: a put may store to the same byte before or after the "or"; neither write is
 * lost. */
__attribute__((no_sanitize("thread"))) void mq_os_touch(void *address, int64_t bytes) {
    volatile uint8_t *page = address;
    for (int64_t i = 0; i < bytes; i += 4096) __atomic_fetch_or(&page[i], 0, __ATOMIC_RELAXED);
}

void mq_os_unmap_written(mq_os *os, void *address, int64_t bytes) {
    enum { LEAST = 8 * 4096 }; /* a system call for fewer costs more than it saves */
    if (bytes >= LEAST) os->madvise(os, address, bytes, MQ_ADVISE_UNMAP);
}

static int cannot_allocate(int rc) { return rc == -EOPNOTSUPP || rc == -ENOSYS || rc == -EINVAL; }

/* Where the filesystem cannot allocate (some network, overlay and union filesystems, macOS): zeros in small writes,
 * so that the page cache keeps small folios. */
static int write_zeros(mq_os *os, int fd, int64_t at, int64_t end) {
    static const uint8_t zeros[16384];
    while (at < end) {
        int64_t n = end - at < (int64_t)sizeof zeros ? end - at : (int64_t)sizeof zeros;
        int rc = mq_os_write_all(os, fd, zeros, n, at);
        if (rc < 0) return rc;
        at += n;
    }
    return 0;
}

int mq_os_allocate(mq_os *os, int fd, int64_t offset, int64_t bytes) {
    int rc = os->fallocate(os, fd, offset, bytes);
    if (!cannot_allocate(rc)) return rc;
    mq_stat st; /* bytes that exist already are kept */
    rc = os->fstat(os, fd, &st);
    return rc < 0 ? rc : write_zeros(os, fd, offset > st.bytes ? offset : st.bytes, offset + bytes);
}

int mq_os_allocate_empty(mq_os *os, int fd, int64_t offset, int64_t bytes) {
    int rc = os->fallocate(os, fd, offset, bytes);
    return cannot_allocate(rc) ? write_zeros(os, fd, offset, offset + bytes) : rc;
}
