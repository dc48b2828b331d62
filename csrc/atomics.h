/* Atomic loads and stores, a futex lock and a futex event. No allocation; never includes Python.h.
 *
 * The lock word: 0 free, 1 held, 2 held and a thread may sleep on it. An uncontended lock and unlock are one
 * exchange each.
 * A caller that holds the GIL may only use mq_lock_try; it releases the GIL before mq_lock_wait.
 * The holder of a lock never takes the GIL, so that GIL and lock cannot wait for each other. */
#ifndef MQ_ATOMICS_H
#define MQ_ATOMICS_H

#include "invariants.h"

#include <stdint.h>

#if defined(MQ_PORTABLE)
#define mq_pause() ((void)0)
#elif defined(__x86_64__) || defined(__i386__)
#define mq_pause() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define mq_pause() __asm__ __volatile__("yield")
#else
#define mq_pause() ((void)0)
#endif

#define mq_prefetchw(p) __builtin_prefetch((p), 1, 3)
#define mq_prefetchr(p) __builtin_prefetch((p), 0, 3)

/* Prefetch the cache lines of n bytes, at most MQ_FETCH_MOST: the hardware prefetcher loads the lines after them.
 * Any address is allowed. The loop prefetches four lines at once, some without need: a test per line would take
 * three times the instructions. The builtin needs a constant argument, so reading and writing have a function each. */
enum { MQ_FETCH_MOST = 2048 };
#define MQ_FETCH_LINES(name, prefetch)                                                                                 \
    static inline void name(const uint8_t *p, int64_t n) {                                                             \
        const uint8_t *end = p + (n < MQ_FETCH_MOST ? n : MQ_FETCH_MOST);                                              \
        do {                                                                                                           \
            prefetch(p);                                                                                               \
            prefetch(p + 64);                                                                                          \
            prefetch(p + 128);                                                                                         \
            prefetch(p + 192);                                                                                         \
            p += 256;                                                                                                  \
        } while (p < end);                                                                                             \
    }
MQ_FETCH_LINES(mq_fetch_to_write, mq_prefetchw)
MQ_FETCH_LINES(mq_fetch_to_read, mq_prefetchr)

static inline int64_t mq_load64(const int64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void mq_store64(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline uint32_t mq_load32(const uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void mq_store32(uint32_t *p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_RELEASE); }
static inline int64_t mq_add64(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL); }
static inline uint32_t mq_or32(uint32_t *p, uint32_t v) { return __atomic_fetch_or(p, v, __ATOMIC_ACQ_REL); }
static inline uint32_t mq_and32(uint32_t *p, uint32_t v) { return __atomic_fetch_and(p, v, __ATOMIC_ACQ_REL); }
static inline uint32_t mq_add32(uint32_t *p, uint32_t v) { return __atomic_add_fetch(p, v, __ATOMIC_ACQ_REL); }
static inline int mq_cas32(uint32_t *p, uint32_t expect, uint32_t v) {
    return __atomic_compare_exchange_n(p, &expect, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_ACQUIRE);
}
static inline int mq_cas64(int64_t *p, int64_t expect, int64_t v) {
    return __atomic_compare_exchange_n(p, &expect, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

static inline void mq_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

/* Sleep while *word == expected, at most timeout_ns (negative: no limit). May return at any time; the caller checks
 * again. */
void mq_futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns);
void mq_futex_wake_all(uint32_t *word);
void mq_futex_wake_one(uint32_t *word);

/* Yield this processor to another runnable thread. */
void mq_yield(void);

/* Name the calling thread for top, perf and debuggers; the system keeps the first 15 bytes. */
void mq_name_thread(const char *name);

static inline int mq_lock_try(uint32_t *word) {
    uint32_t free_word = 0;
    return __atomic_compare_exchange_n(word, &free_word, 1, 0, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

/* Take the lock: spin about a microsecond, then sleep. Call without the GIL. */
void mq_lock_wait(uint32_t *word);

/* The same for at most timeout_ns. Returns 1 if the lock was taken, else 0. */
int mq_lock_wait_for(uint32_t *word, int64_t timeout_ns);

static inline void mq_lock(uint32_t *word) {
    if (!mq_lock_try(word)) mq_lock_wait(word);
}

/* Unlock without waking; returns nonzero if a waiter must be woken. */
static inline int mq_unlock_no_wake(uint32_t *word) {
    uint32_t was = __atomic_exchange_n(word, 0, __ATOMIC_RELEASE);
    mq_assert(was == 1 || was == 2, was, 1);
    return was == 2;
}

static inline void mq_unlock(uint32_t *word) {
    if (mq_unlock_no_wake(word)) mq_futex_wake_one(word);
}

#endif
