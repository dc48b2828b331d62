/* CRC-32 on 64-bit ARM: the CRC instructions of ARMv8, and folding with PMULL for long inputs. Theory: crc32.c.
 *
* The CRC instructions do a step of 1, 2, 4 or 8 bytes, but each waits for the result of the previous. PMULL folds four
* registers side by side and needs no reduction at the end, because two CRC instructions reduce 128 bits. The
 * file holds no state. Little-endian only (crc32_impl.h). */
#include "crc32_impl.h"

#ifdef MQ_CRC32_ARM

#include "crc32_tables.h"
#include <arm_neon.h>

#if defined(__linux__)
#include <sys/auxv.h>
#define HAS_PMULL (1UL << 4)
#define HAS_CRC32 (1UL << 7)
#endif

#if defined(__clang__)
#define FOR_CRC __attribute__((target("crc")))
#define FOR_PMULL __attribute__((target("crc,aes")))
#else
#define FOR_CRC __attribute__((target("+crc")))
#define FOR_PMULL __attribute__((target("+crc+crypto")))
#endif

/* Written as instructions: arm_acle.h offers them only where the whole file is compiled for them. */
FOR_CRC MQ_INLINE uint32_t crc_x(uint32_t state, uint64_t v) {
    __asm__(".arch_extension crc\n\tcrc32x %w0, %w1, %x2" : "=r"(state) : "r"(state), "r"(v));
    return state;
}
FOR_CRC MQ_INLINE uint32_t crc_w(uint32_t state, uint32_t v) {
    __asm__(".arch_extension crc\n\tcrc32w %w0, %w1, %w2" : "=r"(state) : "r"(state), "r"(v));
    return state;
}
FOR_CRC MQ_INLINE uint32_t crc_h(uint32_t state, uint16_t v) {
    __asm__(".arch_extension crc\n\tcrc32h %w0, %w1, %w2" : "=r"(state) : "r"(state), "r"((uint32_t)v));
    return state;
}
FOR_CRC MQ_INLINE uint32_t crc_b(uint32_t state, uint8_t v) {
    __asm__(".arch_extension crc\n\tcrc32b %w0, %w1, %w2" : "=r"(state) : "r"(state), "r"((uint32_t)v));
    return state;
}

FOR_CRC MQ_INLINE uint32_t run_crc(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    for (; n >= 8; src += 8, n -= 8) {
        uint64_t v = mq_crc32_load64(src);
        if (copy) {
            MQ_READ_ONCE();
            memcpy(dst, &v, 8);
            dst += 8;
        }
        state = crc_x(state, v);
    }
    if (copy) {
        mq_crc32_copy_few(dst, src, n);
        MQ_READ_ONCE();
        src = dst;
    }
    if (n & 4) {
        state = crc_w(state, mq_crc32_load32(src));
        src += 4;
    }
    if (n & 2) {
        uint16_t v;
        memcpy(&v, src, 2);
        state = crc_h(state, v);
        src += 2;
    }
    if (n & 1) state = crc_b(state, *src);
    return state;
}

FOR_PMULL MQ_INLINE uint64x2_t fold(uint64x2_t x, poly64x2_t k, uint64x2_t next) {
    poly64x2_t v = vreinterpretq_p64_u64(x);
    uint64x2_t lo = vreinterpretq_u64_p128(vmull_p64(vgetq_lane_p64(v, 0), vgetq_lane_p64(k, 0)));
    uint64x2_t hi = vreinterpretq_u64_p128(vmull_high_p64(v, k));
    return veorq_u64(veorq_u64(lo, hi), next);
}

FOR_PMULL MQ_INLINE uint64x2_t take(uint8_t *dst, const uint8_t *src, size_t at, int copy) {
    uint8x16_t v = vld1q_u8(src + at);
    if (copy) {
        __asm__("" : "+w"(v)); /* loaded once: see MQ_READ_ONCE */
        vst1q_u8(dst + at, v);
    }
    return vreinterpretq_u64_u8(v);
}

#define PAIR(distance) vcombine_p64(vcreate_p64(MQ_FOLD_##distance##_LO), vcreate_p64(MQ_FOLD_##distance##_HI))

FOR_PMULL MQ_INLINE uint32_t run_pmull(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n < 128) return run_crc(state, dst, src, n, copy);
    const poly64x2_t k = PAIR(512);
    uint64x2_t a = veorq_u64(take(dst, src, 0, copy), vcombine_u64(vcreate_u64(state), vcreate_u64(0)));
    uint64x2_t b = take(dst, src, 16, copy), c = take(dst, src, 32, copy), d = take(dst, src, 48, copy);
    size_t at = 64;
    for (; n - at >= 64; at += 64) {
        a = fold(a, k, take(dst, src, at, copy));
        b = fold(b, k, take(dst, src, at + 16, copy));
        c = fold(c, k, take(dst, src, at + 32, copy));
        d = fold(d, k, take(dst, src, at + 48, copy));
    }
    a = fold(a, PAIR(384), fold(b, PAIR(256), fold(c, PAIR(128), d)));
    state = crc_x(crc_x(0, vgetq_lane_u64(a, 0)), vgetq_lane_u64(a, 1));
    return run_crc(state, copy ? dst + at : NULL, src + at, n - at, copy);
}

FOR_CRC static uint32_t crc_crc(uint32_t state, const uint8_t *p, size_t n) { return run_crc(state, NULL, p, n, 0); }
FOR_CRC static uint32_t copy_crc(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    return run_crc(state, dst, src, n, 1);
}
FOR_PMULL static uint32_t crc_pmull(uint32_t state, const uint8_t *p, size_t n) {
    return run_pmull(state, NULL, p, n, 0);
}
FOR_PMULL static uint32_t copy_pmull(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    return run_pmull(state, dst, src, n, 1);
}

#if defined(__APPLE__)
/* Every 64-bit ARM of this vendor has both. */
static int can_crc(void) { return 1; }
static int can_pmull(void) { return 1; }
#elif defined(__linux__)
static int can_crc(void) { return (getauxval(AT_HWCAP) & HAS_CRC32) != 0; }
static int can_pmull(void) { return can_crc() && (getauxval(AT_HWCAP) & HAS_PMULL) != 0; }
#else
static int can_crc(void) { return 0; }
static int can_pmull(void) { return 0; }
#endif

const mq_crc32_variant_t mq_crc32_arm_crc = {"arm_crc", can_crc, crc_crc, copy_crc};
const mq_crc32_variant_t mq_crc32_arm_pmull = {"arm_pmull", can_pmull, crc_pmull, copy_pmull};

#endif
