/* Invariants of this code, checked in builds with MQ_DEBUG (MQFAST_DEBUG=1, and the builds with sanitizers); no code
 * in other builds.
 *
 * Bytes from a disk or a socket are never asserted: they are checked, and a wrong byte is an error of the call. A
 * violation of an invariant is a fault of the program. It prints file, line, condition and two values, and aborts
 * before anything more is written.
 *
 * The name is not assert.h: this folder precedes the C library's in the include search path. */
#ifndef MQ_INVARIANTS_H
#define MQ_INVARIANTS_H

#include <stdint.h>

#ifdef MQ_DEBUG

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MQ_IS_DEBUG = 1 };

/* A number of the calling thread, never 0. */
static inline uint64_t mq_this_thread(void) { return (uint64_t)(uintptr_t)pthread_self(); }

static inline void mq_broken(const char *file, int line, const char *condition, const char *names, int64_t a,
                             int64_t b) {
    fprintf(stderr, "broken invariant: %s:%d: %s [%s: %lld, %lld]\n", file, line, condition, names, (long long)a,
            (long long)b);
    fflush(stderr);
    abort();
}

/* Abort the process unless `condition` holds; a and b are the two numbers that the condition compares. */
#define mq_assert(condition, a, b)                                                                                     \
    ((condition) ? (void)0 : mq_broken(__FILE__, __LINE__, #condition, #a ", " #b, (int64_t)(a), (int64_t)(b)))

/* For tests: true if this invariant must be violated now. MQFAST_PLANT=name violates it at the first visit, name:n
 * at the n-th. */
static inline int mq_planted(const char *name) {
    static uint32_t visits;
    const char *wanted = getenv("MQFAST_PLANT");
    size_t n = strlen(name);
    if (wanted == NULL || strncmp(wanted, name, n) != 0 || (wanted[n] != 0 && wanted[n] != ':')) return 0;
    uint32_t at = wanted[n] == ':' ? (uint32_t)strtoul(wanted + n + 1, NULL, 10) : 1;
    return __atomic_add_fetch(&visits, 1, __ATOMIC_ACQ_REL) == at;
}

#else

enum { MQ_IS_DEBUG = 0 };

#define mq_this_thread() ((uint64_t)0)
#define mq_assert(condition, a, b) ((void)0)
#define mq_planted(name) 0

#endif

#endif
