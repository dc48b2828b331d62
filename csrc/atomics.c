/* The part of atomics.h that sleeps: futex on Linux, short naps elsewhere; the name of a thread. */
#define _GNU_SOURCE
#include "atomics.h"

#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <time.h>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

void mq_futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns) {
    struct timespec ts, *limit = NULL;
    if (timeout_ns >= 0) {
        ts.tv_sec = timeout_ns / 1000000000;
        ts.tv_nsec = timeout_ns % 1000000000;
        limit = &ts;
    }
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, limit, NULL, 0);
}

void mq_futex_wake_all(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

void mq_futex_wake_one(uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

void mq_name_thread(const char *name) { prctl(PR_SET_NAME, (unsigned long)name, 0UL, 0UL, 0UL); }

#else

void mq_futex_wait(uint32_t *word, uint32_t expected, int64_t timeout_ns) {
    int64_t nap_ns = 200000;
    if (timeout_ns >= 0 && timeout_ns < nap_ns) nap_ns = timeout_ns;
    struct timespec ts = {0, (long)nap_ns};
    if (mq_load32(word) == expected) nanosleep(&ts, NULL);
}

void mq_futex_wake_all(uint32_t *word) { (void)word; }
void mq_futex_wake_one(uint32_t *word) { (void)word; }
void mq_name_thread(const char *name) { (void)name; }

#endif

void mq_yield(void) { sched_yield(); }

/* 64 pauses take about a microsecond on current machines: longer than one append, shorter than a context switch. */
enum { LOCK_SPINS = 64 };

void mq_lock_wait(uint32_t *word) {
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (mq_load32(word) == 0 && mq_lock_try(word)) return;
        mq_pause();
    }
    while (__atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE) != 0) mq_futex_wait(word, 2, -1);
}

int mq_lock_wait_for(uint32_t *word, int64_t timeout_ns) {
    struct timespec t;
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (mq_load32(word) == 0 && mq_lock_try(word)) return 1;
        mq_pause();
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec, deadline = now + timeout_ns;
    /* a waiter that gives up leaves the word at 2: the unlock then makes one wake call, with a waiter or without */
    while (__atomic_exchange_n(word, 2, __ATOMIC_ACQUIRE) != 0) {
        if (now >= deadline) return 0;
        mq_futex_wait(word, 2, deadline - now);
        clock_gettime(CLOCK_MONOTONIC, &t);
        now = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    }
    return 1;
}
