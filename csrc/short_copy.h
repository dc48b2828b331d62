/* Copy and comparison of a few dozen bytes without a call, for the bytes behind the body of a record. Header only;
 * no state; never includes Python.h. */
#ifndef MQ_SHORT_COPY_H
#define MQ_SHORT_COPY_H

#include <stdint.h>
#include <string.h>

enum { MQ_SHORT_COPY_MOST = 64 }; /* longer copies call memcpy */

/* Two pieces of a fixed size, one from the start and one up to the end. They may overlap, so they cover any length
 * from one to two pieces. */
#define MQ_BOTH_ENDS(piece)                                                                                            \
    do {                                                                                                               \
        uint8_t front[piece], back[piece];                                                                             \
        memcpy(front, from, piece);                                                                                    \
        memcpy(back, from + n - piece, piece);                                                                         \
        memcpy(to, front, piece);                                                                                      \
        memcpy(to + n - piece, back, piece);                                                                           \
    } while (0)

/* As memcpy; for any n, no byte beyond the n bytes is read or written. */
static inline void mq_short_copy(uint8_t *to, const uint8_t *from, size_t n) {
    if (n < 8 || n > MQ_SHORT_COPY_MOST)
        memcpy(to, from, n);
    else if (n <= 16)
        MQ_BOTH_ENDS(8);
    else if (n <= 32)
        MQ_BOTH_ENDS(16);
    else
        MQ_BOTH_ENDS(32);
}

static inline uint64_t mq_differ64(const uint8_t *a, const uint8_t *b) {
    uint64_t x, y;
    memcpy(&x, a, 8);
    memcpy(&y, b, 8);
    return x ^ y;
}

/* As memcmp(a, b, n) == 0. From 4 to 32 bytes, the length of most topics and hosts, without a call: pieces from the
 * start and up to the end, which may overlap. */
static inline int mq_short_equal(const uint8_t *a, const uint8_t *b, size_t n) {
    uint64_t differ;
    if (n >= 8 && n <= 32) {
        differ = mq_differ64(a, b) | mq_differ64(a + n - 8, b + n - 8);
        if (n > 16) differ |= mq_differ64(a + 8, b + 8) | mq_differ64(a + n - 16, b + n - 16);
        return differ == 0;
    }
    if (n >= 4 && n < 8) {
        uint32_t front[2], back[2];
        memcpy(&front[0], a, 4);
        memcpy(&front[1], b, 4);
        memcpy(&back[0], a + n - 4, 4);
        memcpy(&back[1], b + n - 4, 4);
        return front[0] == front[1] && back[0] == back[1];
    }
    return memcmp(a, b, n) == 0;
}

#endif
