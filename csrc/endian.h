/* Big-endian loads and stores at any alignment, the byte order of all store files. Header only; no state; never
 * includes Python.h. */
#ifndef MQ_ENDIAN_H
#define MQ_ENDIAN_H

#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define MQ_BE16(x) (x)
#define MQ_BE32(x) (x)
#define MQ_BE64(x) (x)
#else
#define MQ_BE16(x) __builtin_bswap16(x)
#define MQ_BE32(x) __builtin_bswap32(x)
#define MQ_BE64(x) __builtin_bswap64(x)
#endif

static inline int16_t mq_get16(const void *p) {
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return (int16_t)MQ_BE16(v);
}

static inline int32_t mq_get32(const void *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return (int32_t)MQ_BE32(v);
}

static inline int64_t mq_get64(const void *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return (int64_t)MQ_BE64(v);
}

static inline void mq_put16(void *p, int16_t x) {
    uint16_t v = MQ_BE16((uint16_t)x);
    memcpy(p, &v, sizeof v);
}

static inline void mq_put32(void *p, int32_t x) {
    uint32_t v = MQ_BE32((uint32_t)x);
    memcpy(p, &v, sizeof v);
}

static inline void mq_put64(void *p, int64_t x) {
    uint64_t v = MQ_BE64((uint64_t)x);
    memcpy(p, &v, sizeof v);
}

/* Fields of a mapped file that another thread reads during a change: naturally aligned, never torn. A release
 * publishes all earlier writes to the thread that acquires the field. */
static inline int32_t mq_acquire32(const void *p) {
    return (int32_t)MQ_BE32(__atomic_load_n((const uint32_t *)p, __ATOMIC_ACQUIRE));
}

static inline int64_t mq_acquire64(const void *p) {
    return (int64_t)MQ_BE64(__atomic_load_n((const uint64_t *)p, __ATOMIC_ACQUIRE));
}

static inline void mq_release32(void *p, int32_t x) {
    __atomic_store_n((uint32_t *)p, MQ_BE32((uint32_t)x), __ATOMIC_RELEASE);
}

static inline void mq_release64(void *p, int64_t x) {
    __atomic_store_n((uint64_t *)p, MQ_BE64((uint64_t)x), __ATOMIC_RELEASE);
}

/* Publish the size word of a record: every other byte of the record is visible before the size word.
 * The address is unaligned. On x86-64 a store across a cache line may be torn; readers check magic and bounds, then
 * read again. Other machines get a release fence and a plain store, since an unaligned atomic store may trap there. */
static inline void mq_publish32(void *p, int32_t x) {
    uint32_t v = MQ_BE32((uint32_t)x);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(p, &v, sizeof v);
}

#endif
