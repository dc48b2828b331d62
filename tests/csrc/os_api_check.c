/* The real table of os_api.c against the system, and what the system does not do on demand against a scripted C library.
 *
 * Room: tests. Linked with -Wl,--wrap for the calls named in SCRIPTED: an answer that stands in `script` is given once in place
 * of the call. It must never leave anything outside of the directory it is given. Prints nothing; a wrong answer ends it with
 * its line.
 */
#define _GNU_SOURCE
#include "os_api.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096 };

/* --- the scripted C library: how often the next calls of a kind fail, and with what ---------------------------------- */

static struct {
    int times, error;
} open_fails, fallocate_fails, fsync_fails, fcntl_fails, uname_fails, lseek_fails;
static const char *kernel_release;

#define FAIL(of)                                                                                                       \
    if ((of).times > 0) {                                                                                              \
        (of).times--;                                                                                                  \
        errno = (of).error;                                                                                            \
        return -1;                                                                                                     \
    }

int __real_open(const char *path, int flags, ...);
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_fsync(int fd);
int __real_fcntl(int fd, int command, ...);
int __real_uname(struct utsname *to);
off_t __real_lseek(int fd, off_t offset, int whence);

int __wrap_open(const char *path, int flags, ...) {
    va_list more;
    va_start(more, flags);
    int mode = va_arg(more, int);
    va_end(more);
    FAIL(open_fails)
    return __real_open(path, flags, mode);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes) {
    FAIL(fallocate_fails)
    return __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_fsync(int fd) {
    FAIL(fsync_fails)
    return __real_fsync(fd);
}

int __wrap_fcntl(int fd, int command, ...) {
    va_list more;
    va_start(more, command);
    void *argument = va_arg(more, void *);
    va_end(more);
    FAIL(fcntl_fails)
    return __real_fcntl(fd, command, argument);
}

int __wrap_uname(struct utsname *to) {
    FAIL(uname_fails)
    int rc = __real_uname(to);
    if (rc == 0 && kernel_release != NULL) snprintf(to->release, sizeof to->release, "%s", kernel_release);
    return rc;
}

off_t __wrap_lseek(int fd, off_t offset, int whence) {
    FAIL(lseek_fails)
    return __real_lseek(fd, offset, whence);
}

/* --- every call that fails says why, as a negative number --------------------------------------------------------------- */

static void failures(mq_os *os) {
    mq_stat st;
    void *map = NULL;
    int64_t total, available;
    char byte = 0;
    WANT(os->open(os, "none", MQ_OPEN_READ) == -ENOENT);
    WANT(os->close(os, -1) == -EBADF);
    WANT(os->fallocate(os, -1, 0, 1) == -EBADF);
    WANT(os->ftruncate(os, -1, 1) == -EBADF);
    WANT(os->fstat(os, -1, &st) == -EBADF);
    WANT(os->stat(os, "none", &st) == -ENOENT);
    WANT(os->mmap(os, 1000, PAGE, MQ_READ, &map) == -EBADF && map == NULL);
    WANT(os->mmap(os, -1, INT64_C(1) << 60, MQ_READ_WRITE, &map) == -ENOMEM && map == NULL);
    WANT(os->munmap(os, (void *)1, PAGE) == -EINVAL);
    WANT(os->madvise(os, (void *)1, PAGE, MQ_ADVISE_RANDOM) == -EINVAL);
    WANT(os->madvise(os, NULL, PAGE, 1000) == -EINVAL);
    WANT(os->mlock(os, (void *)(INT64_C(1) << 46), PAGE) == -ENOMEM);
    WANT(os->munlock(os, (void *)(INT64_C(1) << 46), PAGE) == -ENOMEM);
    WANT(os->msync(os, (void *)1, PAGE) == -EINVAL);
    WANT(os->seek_data(os, -1, 7) == 7);
    WANT(os->pread(os, -1, &byte, 1, 0) == -EBADF);
    WANT(os->pwrite(os, -1, &byte, 1, 0) == -EBADF);
    WANT(os->fdatasync(os, -1) == -EBADF);
    WANT(os->fsync(os, -1) == -EBADF);
    WANT(os->rename(os, "none", "other") == -ENOENT);
    WANT(os->unlink(os, "none") == -ENOENT);
    WANT(os->mkdir(os, "none/below") == -ENOENT);
    WANT(os->rmdir(os, "none") == -ENOENT);
    WANT(os->sync_directory(os, "none") == -ENOENT);
    WANT(os->statvfs(os, "none", &total, &available) == -ENOENT);
    WANT(os->lock_byte(os, -1) == -EBADF && os->unlock_byte(os, -1) == -EBADF);
    WANT(os->lock_directory(os, -1, 1) == -EBADF);
    WANT(os->sync_filesystem(os, -1) < 0);
}

/* --- every call that succeeds does what it says -------------------------------------------------------------------------- */

static void successes(mq_os *os) {
    mq_stat st = {.unlinked = 7};
    void *map = NULL;
    int64_t total = 0, available = 0;
    char read[8] = "";
    WANT(os->mkdir(os, "d") == 0);
    WANT(os->stat(os, "d", &st) == 0 && st.is_directory && !st.is_regular && !st.unlinked);
    WANT(mkfifo("d/fifo", 0600) == 0 && os->open(os, "d/fifo", MQ_OPEN_READ) == -ENXIO &&
         os->unlink(os, "d/fifo") == 0);
    WANT(os->sync_directory(os, "d") == 0);
    WANT(os->statvfs(os, "d", &total, &available) == 0 && 0 < available && available <= total);
    int fd = os->open(os, "d/f", MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_EXCLUSIVE);
    WANT(fd >= 0);
    WANT(os->open(os, "d/f", MQ_OPEN_WRITE | MQ_OPEN_CREATE | MQ_OPEN_EXCLUSIVE) == -EEXIST);
    WANT(os->ftruncate(os, fd, 4 * PAGE) == 0);
    WANT(os->fallocate(os, fd, 0, 4 * PAGE) == 0);
    WANT(os->fstat(os, fd, &st) == 0 && st.bytes == 4 * PAGE && st.is_regular && !st.is_directory && st.mtime_ms == 0 &&
         st.inode != 0);
    WANT(os->pwrite(os, fd, "abc", 3, PAGE) == 3);
    WANT(os->pread(os, fd, read, 3, PAGE) == 3 && memcmp(read, "abc", 3) == 0);
    WANT(os->seek_data(os, fd, PAGE) == PAGE);
    WANT(os->seek_data(os, fd, 4 * PAGE) == -ENXIO);
    WANT(os->fdatasync(os, fd) == 0 && os->fsync(os, fd) == 0);
    WANT(os->mmap(os, fd, 4 * PAGE, MQ_READ, &map) == 0 && memcmp((char *)map + PAGE, "abc", 3) == 0);
    for (int advice = MQ_ADVISE_RANDOM; advice <= MQ_ADVISE_WILLNEED; advice++)
        WANT(os->madvise(os, map, 4 * PAGE, advice) == 0);
    WANT(os->munmap(os, map, 4 * PAGE) == 0);
    WANT(os->mmap(os, fd, 4 * PAGE, MQ_READ_WRITE, &map) == 0);
    memcpy(map, "mapped", 6);
    WANT(os->msync(os, map, PAGE) == 0);
    WANT(os->pread(os, fd, read, 6, 0) == 6 && memcmp(read, "mapped", 6) == 0);
    WANT(os->mlock(os, map, PAGE) == 0 && os->munlock(os, map, PAGE) == 0);
    WANT(mq_os_populate(os, map, 4 * PAGE) == 0 && mq_os_populate(os, map, 0) == 0);
    WANT(os->munmap(os, map, 4 * PAGE) == 0);
    WANT(os->mmap(os, fd, 4 * PAGE, MQ_READ_WRITE, &map) == 0);
    memcpy((char *)map + PAGE, "stays", 5);
    int unmapped = os->madvise(os, map, 4 * PAGE, MQ_ADVISE_UNMAP);
    WANT(unmapped == 0 || unmapped == -EINVAL); /* only Linux promises that nothing is lost */
    WANT(os->pread(os, fd, read, 5, PAGE) == 5 && memcmp(read, "stays", 5) == 0);
    WANT(memcmp((char *)map + PAGE, "stays", 5) == 0);
    WANT(os->munmap(os, map, 4 * PAGE) == 0);
    WANT(os->mmap(os, -1, 4 * PAGE, MQ_READ_WRITE, &map) == 0);
    int huge = os->madvise(os, map, 4 * PAGE, MQ_ADVISE_HUGE);
    WANT(huge == 0 || huge == -EINVAL); /* a kernel without huge pages */
    memset(map, 1, 4 * PAGE);
    WANT(os->munmap(os, map, 4 * PAGE) == 0);
    WANT(os->lock_byte(os, fd) == 0);
    pid_t child = fork();
    if (child == 0) {
        int again = os->open(os, "d/f", MQ_OPEN_WRITE);
        _exit(os->lock_byte(os, again) == -EAGAIN ? 0 : 1);
    }
    int status = 1;
    WANT(waitpid(child, &status, 0) == child && status == 0);
    int second = os->open(os, "d/f", MQ_OPEN_WRITE);
    int again = os->lock_byte(os, second); /* 0: this kernel has only record locks, which are the process's */
    WANT(again == -EAGAIN || again == 0);
    WANT(os->unlock_byte(os, fd) == 0 && os->lock_byte(os, second) == 0 && os->close(os, second) == 0);
    int directory = os->open(os, "d", MQ_OPEN_READ), same = os->open(os, "d", MQ_OPEN_READ);
    WANT(os->lock_directory(os, directory, 1) == 0 && os->lock_directory(os, same, 1) == -EAGAIN);
    WANT(os->lock_directory(os, directory, 0) == 0 && os->lock_directory(os, same, 1) == 0);
    WANT(os->close(os, directory) == 0 && os->close(os, same) == 0);
    WANT(os->close(os, os->open(os, "d/f", MQ_OPEN_WRITE | MQ_OPEN_TRUNCATE)) == 0);
    WANT(os->fstat(os, fd, &st) == 0 && st.bytes == 0);
    WANT(os->rename(os, "d/f", "d/g") == 0 && os->unlink(os, "d/g") == 0);
    WANT(os->fstat(os, fd, &st) == 0 && st.unlinked);
    WANT(os->close(os, fd) == 0 && os->rmdir(os, "d") == 0);
    int64_t first = os->monotonic_ns(os);
    WANT(os->monotonic_ns(os) >= first && os->clock_ms(os) > INT64_C(1600000000000));
}

/* --- what a system does now and then ------------------------------------------------------------------------------------ */

static void interruptions(mq_os *os) {
    open_fails.times = 2, open_fails.error = EINTR;
    int fd = os->open(os, "f", MQ_OPEN_WRITE | MQ_OPEN_CREATE);
    WANT(fd >= 0 && open_fails.times == 0);
    fallocate_fails.times = 3, fallocate_fails.error = EINTR;
    WANT(os->fallocate(os, fd, 0, PAGE) == 0 && fallocate_fails.times == 0);
    fallocate_fails.times = 1, fallocate_fails.error = ENOSPC;
    WANT(os->fallocate(os, fd, 0, PAGE) == -ENOSPC);
    lseek_fails.times = 1, lseek_fails.error = EINVAL; /* a filesystem that does not know its holes */
    WANT(os->seek_data(os, fd, 5) == 5);
    fcntl_fails.times = 1, fcntl_fails.error = EACCES; /* POSIX allows either for a lock that another has */
    WANT(os->lock_byte(os, fd) == -EAGAIN);
    fcntl_fails.times = 1, fcntl_fails.error = ENOLCK;
    WANT(os->lock_byte(os, fd) == -ENOLCK);
    fcntl_fails.times = 1, fcntl_fails.error = EINVAL; /* a kernel that has only record locks */
    WANT(os->lock_byte(os, fd) == 0);
    WANT(os->close(os, fd) == 0 && os->unlink(os, "f") == 0);
    fsync_fails.times = 1, fsync_fails.error = EINVAL; /* a filesystem whose directories need no sync */
    WANT(os->sync_directory(os, ".") == 0 && fsync_fails.times == 0);
    fsync_fails.times = 1, fsync_fails.error = EIO;
    WANT(os->sync_directory(os, ".") == -EIO);
}

static void kernels(mq_os *os) {
    int fd = os->open(os, ".", MQ_OPEN_READ);
    WANT(fd >= 0);
    uname_fails.times = 1, uname_fails.error = EFAULT;
    WANT(os->sync_filesystem(os, fd) == -ENOSYS);
    const char *const silent[] = {"4.19.0-generic", "5.7.19", "5.0", "unknown"};
    for (size_t i = 0; i < sizeof silent / sizeof *silent; i++) {
        kernel_release = silent[i];
        WANT(os->sync_filesystem(os, fd) == -ENOSYS);
    }
    const char *const honest[] = {"5.8.0", "5.10.0-13-amd64", "6.1.0"};
    for (size_t i = 0; i < sizeof honest / sizeof *honest; i++) {
        kernel_release = honest[i];
        WANT(os->sync_filesystem(os, fd) == 0);
    }
    kernel_release = NULL;
    WANT(os->close(os, fd) == 0);
}

/* --- what stands on top of the table, over a table whose calls stop halfway ---------------------------------------------- */

static char contents[64 * 1024];
static int64_t length, most, calls;
static int answers[8]; /* of the next calls: an error, or 1 to do it; behind the last one every call is done */

static int64_t answer(int64_t bytes) {
    int64_t now = calls < 8 ? answers[calls] : 1;
    calls++;
    return now < 0 ? now : now == 2 ? 0 : bytes < most ? bytes : most;
}

static int64_t short_pwrite(mq_os *os, int fd, const void *from, int64_t bytes, int64_t offset) {
    (void)os, (void)fd;
    int64_t n = answer(bytes);
    if (n > 0) {
        memcpy(contents + offset, from, (size_t)n);
        if (offset + n > length) length = offset + n;
    }
    return n;
}

static int64_t short_pread(mq_os *os, int fd, void *to, int64_t bytes, int64_t offset) {
    (void)os, (void)fd;
    int64_t n = answer(bytes);
    if (n > length - offset) n = length - offset;
    if (n > 0) memcpy(to, contents + offset, (size_t)n);
    return n;
}

static int no_fallocate(mq_os *os, int fd, int64_t offset, int64_t bytes) {
    (void)os, (void)fd, (void)offset, (void)bytes;
    return answers[0];
}

static int length_of(mq_os *os, int fd, mq_stat *out) {
    (void)os;
    if (fd < 0) return -EIO;
    out->bytes = length;
    return 0;
}

static int advised[4], advices;
static int some_madvise(mq_os *os, void *address, int64_t bytes, int advice) {
    (void)os, (void)address, (void)bytes;
    WANT(advice == MQ_ADVISE_POPULATE_WRITE);
    return advised[advices++];
}

static void script(int first, int second, int third) {
    answers[0] = first, answers[1] = second, answers[2] = third;
    for (int i = 3; i < 8; i++) answers[i] = 1;
    calls = 0;
}

static void helpers(void) {
    mq_os os = *mq_os_real();
    os.pwrite = short_pwrite, os.pread = short_pread, os.fallocate = no_fallocate, os.fstat = length_of;
    os.madvise = some_madvise;
    char text[10];
    most = 4;
    script(1, -EINTR, 1);
    WANT(mq_os_write_all(&os, 3, "0123456789", 10, 5) == 0 && calls == 4 && length == 15);
    script(-EINTR, 1, 1);
    WANT(mq_os_read_all(&os, 3, text, 10, 5) == 10 && memcmp(text, "0123456789", 10) == 0 && calls == 4);
    script(1, -ENOSPC, 1);
    WANT(mq_os_write_all(&os, 3, "0123456789", 10, 5) == -ENOSPC && calls == 2);
    script(2, 1, 1); /* a write that writes nothing would go on for ever */
    WANT(mq_os_write_all(&os, 3, "0123456789", 10, 5) == -EIO && calls == 1);
    script(1, -EIO, 1);
    WANT(mq_os_read_all(&os, 3, text, 10, 5) == -EIO && calls == 2);
    script(1, 1, 1);
    WANT(mq_os_read_all(&os, 3, text, 10, 10) == 5); /* the end of the file */

    most = sizeof contents;
    int none[] = {-EOPNOTSUPP, -ENOSYS, -EINVAL};
    for (int i = 0; i < 3; i++) {
        memset(contents, 'x', sizeof contents);
        length = 100;
        script(none[i], 1, 1);
        calls = 1; /* the first answer is fallocate's */
        WANT(mq_os_allocate(&os, 3, 0, 40000) == 0 && length == 40000);
        WANT(contents[99] == 'x' && contents[100] == 0 && contents[39999] == 0 && contents[40000] == 'x');
    }
    calls = 1;
    WANT(mq_os_allocate(&os, 3, 50000, 100) == 0 && length == 50100 && contents[49999] == 'x');
    WANT(mq_os_allocate(&os, 3, 0, 100) == 0 && length == 50100); /* nothing is missing */
    script(-EINVAL, -ENOSPC, 1);
    calls = 1;
    WANT(mq_os_allocate(&os, 3, 0, 60000) == -ENOSPC && length == 50100);
    WANT(mq_os_allocate(&os, -1, 0, 60000) == -EIO);
    script(0, 1, 1);
    WANT(mq_os_allocate(&os, 3, 0, 1) == 0 && calls == 0);
    script(-ENOSPC, 1, 1);
    WANT(mq_os_allocate(&os, 3, 0, 1) == -ENOSPC && calls == 0);

    static uint8_t pages[3 * PAGE];
    pages[PAGE] = 9;
    advised[0] = -EINTR, advised[1] = -EAGAIN, advised[2] = -EINVAL; /* a kernel that cannot: every page is touched */
    WANT(mq_os_populate(&os, pages, sizeof pages) == 0 && advices == 3 && pages[PAGE] == 9);
    advices = 0, advised[0] = -ENOMEM;
    WANT(mq_os_populate(&os, pages, sizeof pages) == -ENOMEM && advices == 1);

    uint8_t *fresh = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    unsigned char resident[3];
    madvise(fresh, 3 * PAGE, MADV_NOHUGEPAGE);
    mq_os_touch(fresh, 2 * PAGE);
    WANT(mincore(fresh, 3 * PAGE, resident) == 0 && resident[0] == 1 && resident[1] == 1 && resident[2] == 0);
    fresh[PAGE] = 7;
    mq_os_touch(fresh, 2 * PAGE);
    WANT(fresh[PAGE] == 7);
    munmap(fresh, 3 * PAGE);
}

int main(int count, char **arguments) {
    WANT(count == 2 && chdir(arguments[1]) == 0);
    mq_os *os = mq_os_real();
    failures(os);
    successes(os);
    interruptions(os);
    kernels(os);
    helpers();
    return 0;
}
