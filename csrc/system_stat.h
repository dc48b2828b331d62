/* stat and fstat that load with glibc 2.28.
 *
 * glibc 2.33 introduced symbols for stat and fstat: a library that uses them does not load with an older glibc. So
 * these make the system call. The kernel's structure is glibc's where long has 64 bits. No other file calls stat or
 * fstat. */
#ifndef MQ_SYSTEM_STAT_H
#define MQ_SYSTEM_STAT_H

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__) && defined(__LP64__) && defined(SYS_fstat) && defined(SYS_newfstatat)
static inline int stat_fd(int fd, struct stat *st) { return (int)syscall(SYS_fstat, fd, st); }
static inline int stat_path(const char *path, struct stat *st) {
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, st, 0);
}
#else
static inline int stat_fd(int fd, struct stat *st) { return fstat(fd, st); }
static inline int stat_path(const char *path, struct stat *st) { return stat(path, st); }
#endif

#endif
