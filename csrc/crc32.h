/* CRC-32 of zip, its 31-bit form that a CommitLog record stores, and copy and CRC in one pass. Theory: crc32.c.
 *
 * Never includes Python.h, allocates, blocks or fails. Thread: any, with or without the GIL. The instruction set is
 * chosen on first use and stored in one atomic pointer. */
#ifndef MQ_CRC32_H
#define MQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of p[0..n), continued from the CRC of the bytes before (0 at the start), as zlib's crc32(). */
uint32_t mq_crc32(uint32_t seed_crc, const uint8_t *p, size_t n);

/* The form stored in a record: the CRC-32 with bit 31 cleared, so that Java reads a positive int. */
static inline uint32_t mq_crc31(const uint8_t *p, size_t n) { return mq_crc32(0, p, n) & 0x7FFFFFFFu; }

/* Copy src[0..n) to dst and return the CRC-32 (all 32 bits, seed 0) of exactly the bytes that were stored, even if
 * another thread changes src during the call. src and dst may not overlap, and no other thread may write to dst. */
uint32_t mq_crc32_copy(uint8_t *dst, const uint8_t *src, size_t n);

/* Name of the variant in use, for example "portable" or "vpclmul512". */
const char *mq_crc32_variant(void);

/* Every variant compiled into this program, best first, NULL at the end; this machine may not support all of them. */
const char *const *mq_crc32_variants(void);

/* Returns 1 if this machine supports the variant, else 0; 0 also for an unknown name. */
int mq_crc32_can(const char *name);

/* Use this variant from now on (NULL: choose again). Returns 0, or -1 for an unknown or unsupported variant. For
 * tests. */
int mq_crc32_force(const char *name);

#endif
