/* The declaration of a CRC variant, shared by crc32.c, crc32_x86.c and crc32_arm.c; no other file includes it.
 * MQ_PORTABLE leaves out what is for certain processors, here and in atomics.h. */
#ifndef MQ_CRC32_IMPL_H
#define MQ_CRC32_IMPL_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    const char *name;
    int (*can)(void);
    /* `state` is the bare remainder: the callers in crc32.c do the inversion before and after. */
    uint32_t (*crc)(uint32_t state, const uint8_t *p, size_t n);
    uint32_t (*copy)(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n);
} mq_crc32_variant_t;

#if defined(__x86_64__) && defined(__GNUC__) && !defined(MQ_PORTABLE)
#define MQ_CRC32_X86 1
extern const mq_crc32_variant_t mq_crc32_pclmul, mq_crc32_vpclmul256, mq_crc32_vpclmul512;
#endif

#if defined(__aarch64__) && defined(__GNUC__) && defined(__AARCH64EL__) && !defined(MQ_PORTABLE)
#define MQ_CRC32_ARM 1
extern const mq_crc32_variant_t mq_crc32_arm_crc, mq_crc32_arm_pmull;
#endif

#define MQ_INLINE static inline __attribute__((always_inline))

/* The compiler may neither reuse a value that was read before this point nor read the source in place of its copy. */
#define MQ_READ_ONCE() __asm__ __volatile__("" ::: "memory")

MQ_INLINE uint64_t mq_crc32_load64(const uint8_t *p) {
    uint64_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

MQ_INLINE uint32_t mq_crc32_load32(const uint8_t *p) {
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* Copy n < 16 bytes without a call. */
MQ_INLINE void mq_crc32_copy_few(uint8_t *dst, const uint8_t *src, size_t n) {
    if (n & 8) {
        memcpy(dst, src, 8);
        dst += 8;
        src += 8;
    }
    if (n & 4) {
        memcpy(dst, src, 4);
        dst += 4;
        src += 4;
    }
    if (n & 2) {
        memcpy(dst, src, 2);
        dst += 2;
        src += 2;
    }
    if (n & 1) *dst = *src;
}

#endif
