/* Floors: what the memory, the kernel and the disk take for the same bytes when nothing else is done. Built by bench/conftest.py with csrc/crc32*.c. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "crc32.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

/* A new file of so many bytes, mapped; its name is gone at once. allocated: with blocks, as a log file has them. NULL: failed */
static uint8_t *map_new(const char *path, int64_t bytes, int allocated) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) return NULL;
    unlink(path);
    int rc = ftruncate(fd, bytes);
#if defined(__linux__)
    if (rc == 0 && allocated) rc = fallocate(fd, 0, 0, bytes);
#else
    (void)allocated;
#endif
    void *base = rc == 0 ? mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    return base == MAP_FAILED ? NULL : base;
}

/* ns for count records of size bytes each with header_bytes of other fields, into a mapping made writable beforehand; -1: failed.
 * Their bodies are those of so many in a row, over and over. unseen: further records, before the clock runs. spare: so many bytes more are
 * mapped behind and made writable last, so that no cache has the others any more. */
int64_t floor_ns(const char *path, const uint8_t *bodies, int64_t many, int64_t size, int64_t header_bytes,
                 int64_t count, int64_t unseen, int64_t spare) {
    int64_t record = size + header_bytes, bytes = record * (unseen + count) + spare;
    uint8_t *base = map_new(path, bytes, 0);
    if (base == NULL) return -1;
    if (madvise(base, (size_t)bytes, MADV_POPULATE_WRITE) != 0) memset(base, 0, (size_t)bytes);
    int64_t start = now_ns();
    const uint8_t *body = bodies;
    for (int64_t i = 0, number = 0; i < unseen + count; i++) {
        if (i == unseen) start = now_ns();
        uint8_t *at = base + i * record;
        uint32_t crc = mq_crc32_copy(at + header_bytes, body, (size_t)size);
        memset(at, (int)(crc & 1), (size_t)header_bytes);
        body = ++number == many ? (number = 0, bodies) : body + size;
    }
    int64_t took = now_ns() - start;
    munmap(base, (size_t)bytes);
    return took;
}

/* The cheapest clock there is: the processor's counter, or the system's where there is none. */
static uint64_t ticks(void) {
#if defined(__x86_64__)
    return __builtin_ia32_rdtsc();
#else
    return (uint64_t)now_ns();
#endif
}

static void put64(uint8_t *at, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(at, &value, sizeof value);
}

static void put32(uint8_t *at, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(at, &value, sizeof value);
}

/* As floor_ns, with the record whole and its queue unit: the fields that differ patched into a copied template, topic and properties
 * behind the body, the size word last, 20 bytes into the file of the queue, and where it all went into an array that the caller gets.
 * No check. tail_bytes is not known to the compiler, as a topic's length is not. alone: each record takes the lock and has its own time, and
 * others see where the log ends behind it; else all that is done once for many. -1: failed */
int64_t record_floor_ns(const char *path, const uint8_t *bodies, int64_t many, int64_t size, int64_t tail_bytes,
                        int64_t count, int64_t unseen, int64_t spare, int64_t alone) {
    enum { FIXED = 88, UNIT = 20, BATCH = 1000, HOLD = 40000 };
    typedef struct {
        int64_t place, number, time;
        int32_t bytes;
    } placed;
    int64_t all = unseen + count, record = FIXED + size + tail_bytes, bytes = record * all + spare, took = -1;
    uint8_t header[FIXED] = {0}, tail[256] = {0};
    static uint32_t lock, sleepers;
    static int64_t end;
    placed *out = malloc(BATCH * sizeof *out);
    uint8_t *log = map_new(path, bytes, 0), *units = map_new(path, UNIT * all, 0);
    if (log != NULL && units != NULL && out != NULL && tail_bytes <= (int64_t)sizeof tail &&
        madvise(units, (size_t)(UNIT * all), MADV_POPULATE_WRITE) == 0 &&
        madvise(log, (size_t)bytes, MADV_POPULATE_WRITE) == 0) {
        const uint8_t *body = bodies;
        int64_t start = now_ns(), time = start;
        uint64_t read_at = ticks();
        for (int64_t i = 0, number = 0, at = 0; i < all; i++, at += record) {
            if (i == unseen) start = now_ns();
            uint8_t *p = log + at, *unit = units + UNIT * i;
            if (alone) {
                while (__atomic_exchange_n(&lock, 1, __ATOMIC_ACQUIRE) != 0) {}
                if (ticks() - read_at >= HOLD) time = now_ns(), read_at = ticks();
            }
            memcpy(p + 4, header + 4, FIXED - 4);
            put64(p + 20, (uint64_t)i);
            put64(p + 28, (uint64_t)at);
            put64(p + 40, (uint64_t)time);
            put64(p + 56, (uint64_t)time);
            put32(p + 84, (uint32_t)size);
            put32(p + 8, mq_crc32_copy(p + FIXED, body, (size_t)size) & 0x7FFFFFFF);
            memcpy(p + FIXED + size, tail, (size_t)tail_bytes);
            __atomic_store_n((uint32_t *)(void *)p, __builtin_bswap32((uint32_t)record), __ATOMIC_RELEASE);
            put64(unit, (uint64_t)at);
            put32(unit + 8, (uint32_t)record);
            put64(unit + 12, 0);
            out[i % BATCH] = (placed){at, i, time, (int32_t)record};
            if (alone) {
                __atomic_store_n(&end, at + record, __ATOMIC_RELEASE);
                __atomic_store_n(&lock, 0, __ATOMIC_RELEASE);
                if (__atomic_load_n(&sleepers, __ATOMIC_ACQUIRE) != 0) break;
            }
            body = ++number == many ? (number = 0, bodies) : body + size;
        }
        took = now_ns() - start;
    }
    if (log != NULL) munmap(log, (size_t)bytes);
    if (units != NULL) munmap(units, (size_t)(UNIT * all));
    free(out);
    return took;
}

/* ns to read count records of a mapped file once, and to copy their bodies into a buffer of their own for each batch: what columns of all fields
 * cannot do without; -1: failed */
int64_t gather_floor_ns(const char *path, int64_t size, int64_t header_bytes, int64_t count, int64_t batch) {
    int64_t record = size + header_bytes, bytes = record * count;
    volatile uint8_t seen = 0;
    uint8_t *base = map_new(path, bytes, 0);
    if (base == NULL) return -1;
    memset(base, 1, (size_t)bytes);
    int64_t start = now_ns();
    for (int64_t i = 0; i < count; i += batch) {
        int64_t n = count - i < batch ? count - i : batch;
        uint8_t *copy = malloc((size_t)(n * size));
        if (copy == NULL) break;
        for (int64_t k = 0; k < n; k++) memcpy(copy + k * size, base + (i + k) * record + header_bytes, (size_t)size);
        seen += copy[n * size - 1];
        free(copy);
    }
    int64_t took = now_ns() - start;
    munmap(base, (size_t)bytes);
    return took;
}

/* ns to follow the units of a queue to count records and look at the lines that tell whether each is whole and of this queue: its head and its
 * end, with those of a later record asked for ahead; -1: failed */
int64_t touch_floor_ns(const char *path, int64_t size, int64_t header_bytes, int64_t count) {
    enum { UNIT = 20, AHEAD = 6 };
    int64_t record = size + header_bytes, took = -1;
    volatile uint8_t seen = 0;
    uint8_t *log = map_new(path, record * count, 0), *units = map_new(path, UNIT * count, 0);
    if (log != NULL && units != NULL) {
        memset(log, 1, (size_t)(record * count));
        for (int64_t i = 0; i < count; i++) put64(units + UNIT * i, (uint64_t)(i * record));
        int64_t start = now_ns();
        for (int64_t i = 0; i < count; i++) {
            uint64_t at, soon;
            memcpy(&at, units + UNIT * i, sizeof at);
            memcpy(&soon, units + UNIT * (i + AHEAD < count ? i + AHEAD : i), sizeof soon);
            const uint8_t *p = log + __builtin_bswap64(at), *later = log + __builtin_bswap64(soon);
            __builtin_prefetch(later);
            __builtin_prefetch(later + 64);
            __builtin_prefetch(later + record - 1);
            seen += p[0] + p[64] + p[record - 1];
        }
        took = now_ns() - start;
    }
    if (log != NULL) munmap(log, (size_t)(record * count));
    if (units != NULL) munmap(units, (size_t)(UNIT * count));
    return took;
}

/* ns to walk over count records of a mapped file that the page cache holds, and to take the CRC of each body; -1: failed */
int64_t walk_floor_ns(const char *path, int64_t size, int64_t header_bytes, int64_t count) {
    int64_t record = size + header_bytes, bytes = record * count;
    volatile uint32_t seen = 0;
    uint8_t *base = map_new(path, bytes, 0);
    if (base == NULL) return -1;
    memset(base, 1, (size_t)bytes);
    int64_t start = now_ns();
    for (int64_t i = 0; i < count; i++)
        seen ^= mq_crc32(0, base + i * record + header_bytes, (size_t)size) ^ base[i * record];
    int64_t took = now_ns() - start;
    munmap(base, (size_t)bytes);
    return took;
}

/* ns to make fresh, allocated pages of a file writable: what the kernel takes for every new byte of the log; -1: failed */
int64_t page_floor_ns(const char *path, int64_t bytes) {
    int64_t took = -1;
    uint8_t *base = map_new(path, bytes, 1);
    if (base == NULL) return -1;
    int64_t start = now_ns();
    if (madvise(base, (size_t)bytes, MADV_POPULATE_WRITE) == 0) took = now_ns() - start;
    munmap(base, (size_t)bytes);
    return took;
}

typedef struct {
    uint8_t *base;
    int64_t bytes, written; /* written: how far the writer is, so that the pages ahead stay in the cache */
    int stop;
} page_maker;

enum { PAGES_STEP = 512 << 10, PAGES_AHEAD = 64 << 20 };

static void *make_pages(void *given) {
    page_maker *m = given;
    for (int64_t at = 0; at < m->bytes && !__atomic_load_n(&m->stop, __ATOMIC_ACQUIRE);) {
        int64_t written = __atomic_load_n(&m->written, __ATOMIC_ACQUIRE);
        if (at > written + PAGES_AHEAD) continue;
        if (at < written) at = written & ~(int64_t)(PAGES_STEP - 1);
        int64_t n = m->bytes - at < PAGES_STEP ? m->bytes - at : PAGES_STEP;
        madvise(m->base + at, (size_t)n, MADV_POPULATE_WRITE);
        at += n;
    }
    return NULL;
}

/* As floor_ns, without a rest: into new pages, which a second thread makes ahead as fast as it can; -1: failed */
int64_t sustained_floor_ns(const char *path, const uint8_t *body, int64_t size, int64_t header_bytes, int64_t count) {
    int64_t took = -1, record = size + header_bytes;
    page_maker maker = {.bytes = record * count};
    pthread_t id;
    maker.base = map_new(path, maker.bytes, 1);
    if (maker.base == NULL) return -1;
#if defined(MADV_HUGEPAGE)
    madvise(maker.base, (size_t)maker.bytes, MADV_HUGEPAGE);
#endif
    if (pthread_create(&id, NULL, make_pages, &maker) == 0) {
        int64_t start = now_ns();
        for (int64_t i = 0; i < count; i++) {
            uint8_t *at = maker.base + i * record;
            uint32_t crc = mq_crc32_copy(at + header_bytes, body, (size_t)size);
            memset(at, (int)(crc & 1), (size_t)header_bytes);
            if ((i & 255) == 0) __atomic_store_n(&maker.written, i * record, __ATOMIC_RELEASE);
        }
        took = now_ns() - start;
        __atomic_store_n(&maker.stop, 1, __ATOMIC_RELEASE);
        pthread_join(id, NULL);
    }
    munmap(maker.base, (size_t)maker.bytes);
    return took;
}

/* ns for count rounds of: write size bytes at the end of a file, fdatasync */
int64_t sync_floor_ns(const char *path, const uint8_t *body, int64_t size, int64_t count) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (fd < 0) return -1;
#if defined(__linux__)
    if (fallocate(fd, 0, 0, size * count) != 0) (void)0;
#endif
    int64_t start = now_ns();
    for (int64_t i = 0; i < count; i++) {
        if (pwrite(fd, body, (size_t)size, i * size) != size) return -1;
        if (fdatasync(fd) != 0) return -1;
    }
    int64_t took = now_ns() - start;
    close(fd);
    unlink(path);
    return took;
}

typedef struct {
    pthread_mutex_t lock;
    pthread_cond_t done;
    const uint8_t *body;
    int64_t size, count, written, durable, syncs;
    int fd, syncing, failed;
} sync_group;

static void *sync_member(void *given) {
    sync_group *g = given;
    pthread_mutex_lock(&g->lock);
    for (int64_t i = 0; i < g->count && !g->failed; i++) {
        if (pwrite(g->fd, g->body, (size_t)g->size, g->written) != g->size) g->failed = 1;
        int64_t end = g->written += g->size;
        while (g->durable < end && !g->failed) {
            if (g->syncing) {
                pthread_cond_wait(&g->done, &g->lock);
                continue;
            }
            int64_t target = g->written;
            g->syncing = 1;
            pthread_mutex_unlock(&g->lock);
            int rc = fdatasync(g->fd);
            pthread_mutex_lock(&g->lock);
            g->syncing = 0;
            g->syncs++;
            g->durable = target;
            if (rc != 0) g->failed = 1;
            pthread_cond_broadcast(&g->done);
        }
    }
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

/* ns for threads of C that append count records each and wait until a sync covers them, whoever calls it; *syncs: how many syncs; -1: failed */
int64_t group_floor_ns(const char *path, const uint8_t *body, int64_t size, int64_t threads, int64_t count,
                       int64_t *syncs) {
    sync_group g = {.body = body, .size = size, .count = count};
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    int64_t started = 0, took = -1;
    g.fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    pthread_mutex_init(&g.lock, NULL);
    pthread_cond_init(&g.done, NULL);
#if defined(__linux__)
    if (g.fd >= 0 && fallocate(g.fd, 0, 0, size * count * threads) == 0) fsync(g.fd);
#endif
    int64_t start = now_ns();
    while (ids != NULL && g.fd >= 0 && started < threads && pthread_create(&ids[started], NULL, sync_member, &g) == 0)
        started++;
    for (int64_t i = 0; i < started; i++) pthread_join(ids[i], NULL);
    if (started == threads && !g.failed) took = now_ns() - start;
    *syncs = g.syncs;
    pthread_cond_destroy(&g.done);
    pthread_mutex_destroy(&g.lock);
    if (g.fd >= 0) close(g.fd);
    unlink(path);
    free(ids);
    return took;
}

typedef struct {
    int64_t count, nap_ns, *seen;
    int64_t at;
} hand_over;

static void *hand_over_reader(void *argument) {
    hand_over *h = argument;
    struct timespec nap = {0, (long)h->nap_ns};
    for (int64_t i = 0; i < h->count; i++) {
        while (__atomic_load_n(&h->at, __ATOMIC_ACQUIRE) <= i)
            if (h->nap_ns > 0) nanosleep(&nap, NULL);
        h->seen[i] = now_ns();
    }
    return NULL;
}

/* For each of count numbers, one every pause_ns: ns from before one thread stores it to when another one, which looks at it without a rest
 * (nap_ns 0) or sleeps nap_ns in between, has seen it, into took; 0, or -1: failed */
int64_t hand_over_floor_ns(int64_t count, int64_t pause_ns, int64_t nap_ns, int64_t *took) {
    hand_over h = {.count = count, .nap_ns = nap_ns, .seen = took};
    int64_t *begun = calloc((size_t)count, sizeof *begun);
    pthread_t reader;
    if (begun == NULL || pthread_create(&reader, NULL, hand_over_reader, &h) != 0) {
        free(begun);
        return -1;
    }
    int64_t due = now_ns();
    for (int64_t i = 0; i < count; i++) {
        due += pause_ns;
        while ((begun[i] = now_ns()) < due) {}
        __atomic_store_n(&h.at, i + 1, __ATOMIC_RELEASE);
    }
    pthread_join(reader, NULL);
    for (int64_t i = 0; i < count; i++) took[i] -= begun[i];
    free(begun);
    return 0;
}

/* ns for count times of: one to each of two cache lines of the next of many places (what a store must remember of a queue), a look at a third
 * (topic and properties that go into the record), a record of record_bytes copied to a log of hot memory, an offset and a size to the page that
 * the place names, each in its own mapping of file_bytes as a queue has it, and a full fence, as taking a lock is one; -1: failed. The copy
 * belongs to it: what a log writes pushes the tables of the pages out of the cache, and the next put's lock waits for a store that has to look
 * for its page. The log's lines are asked for ahead, as a put does: a fence that waits for them would hide in that wait what a place costs. */
int64_t spread_floor_ns(const char *path, int64_t places, int64_t file_bytes, int64_t record_bytes, int64_t count) {
    enum { LOG = 16 << 20, MOST = 4096, FETCH_AHEAD = 4096 };
    typedef struct {
        volatile uint8_t *page;
        volatile int64_t puts;
        char rest[48];
        volatile int64_t end;
        char others[56];
        volatile uint8_t topic;
        char between[895];
    } known_place;
    static const uint8_t record[MOST];
    int64_t took = -1, mapped = 0, at = 0;
    known_place *known = calloc((size_t)places, sizeof *known);
    uint8_t *log = mmap(NULL, LOG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (log != MAP_FAILED) memset(log, 1, LOG);
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC, 0644);
    if (known != NULL && log != MAP_FAILED && record_bytes <= MOST && fd >= 0 &&
        ftruncate(fd, places * file_bytes) == 0) {
        for (; mapped < places; mapped++) {
            void *base = mmap(NULL, (size_t)file_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, mapped * file_bytes);
            if (base == MAP_FAILED) break;
            known[mapped].page = base;
            *known[mapped].page = 1;
        }
        int64_t start = now_ns();
        for (int64_t i = 0, place = 0; mapped == places && i < count; i++) {
            known[place].puts += 1 + known[place].topic;
            known[place].end++;
            memcpy(log + at, record, (size_t)record_bytes);
            at += record_bytes;
            if (at + record_bytes > LOG) at = 0;
            for (int64_t line = 0; line < record_bytes; line += 64)
                __builtin_prefetch(log + (at + FETCH_AHEAD + line) % LOG, 1);
            *(volatile uint32_t *)(known[place].page + 8) = (uint32_t)i;
            *(volatile uint64_t *)known[place].page = (uint64_t)at;
            __atomic_thread_fence(__ATOMIC_SEQ_CST);
            if (++place == places) place = 0;
        }
        if (mapped == places) took = now_ns() - start;
    }
    for (int64_t i = 0; i < mapped; i++) munmap((void *)known[i].page, (size_t)file_bytes);
    if (fd >= 0) close(fd);
    unlink(path);
    if (log != MAP_FAILED) munmap(log, LOG);
    free(known);
    return took;
}
