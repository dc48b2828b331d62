/* A log in C at a pace, with nothing in it that a log at this pace can do without: one thread copies records into a mapped file, a second
 * makes the pages ahead of it ready, a third syncs what was written every 500 ms. No queue, no lock, no interpreter, no call.
 *
 * It is the floor under every paced latency: what it has for a tail, this machine does to a log of that rate. It must never write more than the
 * records, and never sleep in the loop that is measured. Built by harness.py with csrc/crc32*.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "crc32.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { WINDOW = 16 << 20, STEP = 512 << 10, PAGE = 4096 };
static const int64_t FLUSH_NS = 500000000, NAP_NS = 1000000, TICKS_NS = 20000000;

typedef struct {
    uint8_t *base;
    int64_t bytes, written;
    int stop, failed;
} paced_log;

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void nap(int64_t ns) {
    struct timespec ts = {ns / 1000000000, ns % 1000000000};
    nanosleep(&ts, NULL);
}

static int64_t shown(paced_log *log) { return __atomic_load_n(&log->written, __ATOMIC_ACQUIRE); }

static int ended(paced_log *log) { return __atomic_load_n(&log->stop, __ATOMIC_ACQUIRE); }

/* A loop that is kept to one processor has it to itself. */
static void leave_loop_alone(void) {
#if defined(__linux__)
    cpu_set_t kept, all, others;
    memset(&all, 0xff, sizeof all);
    if (sched_getaffinity(0, sizeof kept, &kept) != 0 || CPU_COUNT(&kept) != 1) return;
    CPU_XOR(&others, &all, &kept);
    sched_setaffinity(0, sizeof others, &others);
#endif
}

/* Pages up to a window ahead, a step at a time. */
static void *make_ready(void *given) {
    paced_log *log = given;
    leave_loop_alone();
    for (int64_t at = 0; !ended(log);) {
        int64_t end = shown(log) + WINDOW;
        if (end > log->bytes) end = log->bytes;
        if (at + STEP > end && !(end == log->bytes && at < end)) {
            nap(NAP_NS);
            continue;
        }
        int64_t n = end - at < STEP ? end - at : STEP;
        if (madvise(log->base + at, (size_t)n, MADV_POPULATE_WRITE) != 0)
            __atomic_store_n(&log->failed, 1, __ATOMIC_RELEASE);
        at += n;
    }
    return NULL;
}

/* What was written goes to the disk; its last page, where the next record goes, is made writable again. */
static void *sync_often(void *given) {
    paced_log *log = given;
    leave_loop_alone();
    int64_t from = 0, last = now_ns();
    while (!ended(log)) {
        nap(NAP_NS);
        if (now_ns() - last < FLUSH_NS) continue;
        int64_t to = shown(log), start = from & ~(int64_t)(PAGE - 1);
        if (msync(log->base + start, (size_t)(to - start), MS_SYNC) != 0)
            __atomic_store_n(&log->failed, 1, __ATOMIC_RELEASE);
        int64_t again = to & ~(int64_t)(PAGE - 1);
        if (again + PAGE <= log->bytes) madvise(log->base + again, PAGE, MADV_POPULATE_WRITE);
        from = to;
        last = now_ns();
    }
    return NULL;
}

/* count records, one every period_ns, the first so long after a tick of the timer (latency.first_due); due and call get the ns of each from
 * when it was due and from when it began. -1: failed */
int64_t paced_floor(const char *path, const uint8_t *body, int64_t size, int64_t header_bytes, int64_t period_ns,
                    int64_t count, int64_t *due, int64_t *call, int64_t phase_ns) {
    int64_t record = size + header_bytes;
    paced_log log = {.bytes = (record * count + PAGE - 1) & ~(int64_t)(PAGE - 1)};
    pthread_t ready, sync;
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644), threads = 0;
    if (fd < 0) return -1;
    unlink(path);
    void *base = fallocate(fd, 0, 0, log.bytes) == 0
                     ? mmap(NULL, (size_t)log.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
    close(fd);
    if (base == MAP_FAILED) return -1;
    log.base = base;
    madvise(base, (size_t)log.bytes, MADV_HUGEPAGE);
    if (pthread_create(&ready, NULL, make_ready, &log) == 0) {
        threads++;
        if (pthread_create(&sync, NULL, sync_often, &log) == 0) threads++;
    }
    nap(20 * NAP_NS); /* until the first window is ready */
    int64_t at = now_ns() + NAP_NS, place = 0;
    at += ((phase_ns - at) % TICKS_NS + TICKS_NS) % TICKS_NS;
    for (int64_t k = 0; threads == 2 && k < count; k++, at += period_ns, place += record) {
        int64_t now;
        while ((now = now_ns()) < at) continue;
        uint32_t crc = mq_crc32_copy(log.base + place + header_bytes, body, (size_t)size);
        memset(log.base + place, (int)(crc & 1), (size_t)header_bytes);
        __atomic_store_n(&log.written, place + record, __ATOMIC_RELEASE);
        int64_t end = now_ns();
        due[k] = end - at;
        call[k] = end - now;
    }
    __atomic_store_n(&log.stop, 1, __ATOMIC_RELEASE);
    if (threads > 0) pthread_join(ready, NULL);
    if (threads > 1) pthread_join(sync, NULL);
    munmap(base, (size_t)log.bytes);
    return threads == 2 && !log.failed ? 0 : -1;
}
