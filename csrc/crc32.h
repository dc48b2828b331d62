/* CRC-32 as zip has it, its 31-bit form that a CommitLog record stores, and copy+CRC in one pass. Theory: crc32.c.
 *
 * Never includes Python.h, allocates, blocks or fails. Everything here may be called without the GIL from any thread;
 * the choice of instruction set is made on first use and is one atomic pointer. */
#ifndef MQ_CRC32_H
#define MQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* CRC-32 of p[0..n), going on from the CRC of what came before (0 at the start), as zlib's crc32() does. */
uint32_t mq_crc32(uint32_t seed_crc, const uint8_t *p, size_t n);

/* The form stored in a record: the CRC-32 without its highest bit, so that Java sees it positive. */
static inline uint32_t mq_crc31(const uint8_t *p, size_t n) { return mq_crc32(0, p, n) & 0x7FFFFFFFu; }

/* Copy src[0..n) to dst and return the CRC-32 (all 32 bits, seed 0) of exactly the bytes that were stored, even if
 * somebody changes src meanwhile. The two may not overlap, and nobody else may write to dst. */
uint32_t mq_crc32_copy(uint8_t *dst, const uint8_t *src, size_t n);

/* Name of the variant in use, for example "portable" or "vpclmul512". */
const char *mq_crc32_variant(void);

/* Every variant compiled into this program, best first, NULL at the end; this machine may not be able to run all. */
const char *const *mq_crc32_variants(void);

/* Whether this machine can run the variant: 1, or 0 also for an unknown name. */
int mq_crc32_can(const char *name);

/* Use this variant from now on (NULL: choose again). 0, or -1 when it is unknown or cannot run here. For tests. */
int mq_crc32_force(const char *name);

#endif
