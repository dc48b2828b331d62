/* A copy of a few dozen bytes without a call: what stands behind the body of a record. Header only; no state; never includes Python.h. */
#ifndef MQ_SHORT_COPY_H
#define MQ_SHORT_COPY_H

#include <stdint.h>
#include <string.h>

enum { MQ_SHORT_COPY_MOST = 64 }; /* longer ones are a call of memcpy */

/* Two pieces of a fixed size, one from the front and one up to the end, which may overlap, cover any length between them. */
#define MQ_BOTH_ENDS(piece)                                                                                            \
    do {                                                                                                               \
        uint8_t front[piece], back[piece];                                                                             \
        memcpy(front, from, piece);                                                                                    \
        memcpy(back, from + n - piece, piece);                                                                         \
        memcpy(to, front, piece);                                                                                      \
        memcpy(to + n - piece, back, piece);                                                                           \
    } while (0)

/* As memcpy; whatever n is, nothing beyond the n bytes is read or written. */
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

#endif
