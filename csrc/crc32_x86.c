/* CRC-32 by carry-less multiplication on x86-64: 128-, 256- and 512-bit registers. Theory: crc32.c.
 *
* Each function is compiled for its own instruction set and runs only where cpuid (and the OS's saving of wide
* registers, which __builtin_cpu_supports checks too) reports that set. The file holds no state. */
#include "crc32_impl.h"

#ifdef MQ_CRC32_X86

#include "crc32_tables.h"
#include <immintrin.h>

#define FOR_128 __attribute__((target("pclmul,sse4.1")))
#define FOR_256 __attribute__((target("vpclmulqdq,pclmul,avx2,sse4.1")))
#define FOR_512 __attribute__((target("avx512f,avx512bw,avx512vl,vpclmulqdq,pclmul,avx2,sse4.1")))

/* Keep a loaded value in its register: the compiler may not load it a second time for its second use. */
#define LOADED_ONCE(v) __asm__("" : "+x"(v))
#define LOADED_ONCE_512(v) __asm__("" : "+v"(v))

#define PAIR(distance) _mm_set_epi64x((long long)MQ_FOLD_##distance##_HI, (long long)MQ_FOLD_##distance##_LO)

/* ---- 128 bits: also the end of every longer input ---- */

FOR_128 MQ_INLINE __m128i fold(__m128i x, __m128i k, __m128i next) {
    __m128i lo = _mm_clmulepi64_si128(x, k, 0x00);
    __m128i hi = _mm_clmulepi64_si128(x, k, 0x11);
    return _mm_xor_si128(_mm_xor_si128(lo, hi), next);
}

FOR_128 MQ_INLINE __m128i take(uint8_t *dst, const uint8_t *src, size_t at, int copy) {
    __m128i v = _mm_loadu_si128((const __m128i *)(src + at));
    if (copy) {
        LOADED_ONCE(v);
        _mm_storeu_si128((__m128i *)(dst + at), v);
    }
    return v;
}

FOR_128 MQ_INLINE uint32_t reduce(__m128i x) {
    const __m128i k = _mm_set_epi64x(0, (long long)MQ_REDUCE_K);
    const __m128i barrett = _mm_set_epi64x((long long)MQ_REDUCE_RHO, (long long)MQ_REDUCE_NU);
    /* The high half alone, times x^32: moved down by 32 bits. */
    __m128i high = _mm_srli_si128(_mm_unpackhi_epi64(_mm_setzero_si128(), x), 4);
    __m128i f = _mm_xor_si128(_mm_clmulepi64_si128(x, k, 0x00), high);
    __m128i q = _mm_clmulepi64_si128(_mm_srli_si128(f, 4), barrett, 0x00);
    __m128i r = _mm_xor_si128(_mm_clmulepi64_si128(q, barrett, 0x10), _mm_slli_si128(q, 8));
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(f, r), 3);
}

/* Store the first n < 16 bytes of lo, hi from registers: what is loaded again right after odd stores waits for them. */
MQ_INLINE void store_few(uint8_t *dst, uint64_t lo, uint64_t hi, size_t n) {
    if (n & 8) {
        memcpy(dst, &lo, 8);
        dst += 8;
        lo = hi;
    }
    if (n & 4) {
        memcpy(dst, &lo, 4);
        dst += 4;
        lo >>= 32;
    }
    if (n & 2) {
        memcpy(dst, &lo, 2);
        dst += 2;
        lo >>= 16;
    }
    if (n & 1) *dst = (uint8_t)lo;
}

/* Fewer than 16 bytes: they go to the end of a register; the zeros before them do not change the CRC. Two loads may
 * overlap; of the second only the bytes that the first did not load are used. */
FOR_128 MQ_INLINE uint32_t run_few(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n >= 8) {
        uint64_t first = mq_crc32_load64(src);
        uint64_t rest = mq_crc32_load64(src + n - 8) >> 8 >> (8 * (15 - n));
        if (copy) {
            MQ_READ_ONCE();
            store_few(dst, first, rest, n);
        }
        unsigned shift = 8 * (unsigned)(16 - n); /* 8 to 64 */
        __extension__ unsigned __int128 v = ((unsigned __int128)rest << 64 | (first ^ state)) << shift;
        return reduce(_mm_set_epi64x((long long)(uint64_t)(v >> 64), (long long)(uint64_t)v));
    }
    if (n >= 4) {
        uint64_t word = (uint64_t)mq_crc32_load32(src + n - 4) >> (8 * (8 - n)) << 32 | mq_crc32_load32(src);
        if (copy) {
            MQ_READ_ONCE();
            store_few(dst, word, 0, n);
        }
        return reduce(_mm_set_epi64x((long long)((word ^ state) << (64 - 8 * n)), 0));
    }
    if (copy) {
        mq_crc32_copy_few(dst, src, n);
        MQ_READ_ONCE();
        src = dst;
    }
    while (n--) state = mq_crc32_slices[0][(state ^ *src++) & 255] ^ state >> 8;
    return state;
}

static const uint8_t shifts[48] = {
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, /* before */
    0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  /* the 16 bytes */
    128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, 128, /* behind */
};

/* x stands for all bytes before src[at], at least 16 of them; add those up to n and reduce. */
FOR_128 MQ_INLINE uint32_t finish(__m128i x, uint8_t *dst, const uint8_t *src, size_t at, size_t n, int copy) {
    const __m128i k = PAIR(128);
    for (; n - at >= 16; at += 16) x = fold(x, k, take(dst, src, at, copy));
    size_t odd = n - at;
    if (odd) {
        /* Cut the string of 16 + odd bytes so that the last 16 are together: x loses its first `odd` bytes to the
         * left and takes the new bytes from the right. The load also covers bytes that were already folded; `keep`
         * masks them. */
        __m128i last = _mm_loadu_si128((const __m128i *)(src + n - 16));
        if (copy) {
            LOADED_ONCE(last);
            __m128i only = _mm_shuffle_epi8(last, _mm_loadu_si128((const __m128i *)(shifts + 32 - odd)));
            store_few(dst + at, (uint64_t)_mm_cvtsi128_si64(only), (uint64_t)_mm_extract_epi64(only, 1), odd);
        }
        __m128i keep = _mm_loadu_si128((const __m128i *)(shifts + 16 + odd));
        __m128i cut = _mm_shuffle_epi8(x, _mm_loadu_si128((const __m128i *)(shifts + odd)));
        x = fold(cut, k, _mm_blendv_epi8(_mm_shuffle_epi8(x, keep), last, keep));
    }
    return reduce(x);
}

FOR_128 MQ_INLINE uint32_t short_input(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n >= 16) {
        __m128i x = _mm_xor_si128(take(dst, src, 0, copy), _mm_cvtsi32_si128((int)state));
        return finish(x, dst, src, 16, n, copy);
    }
    return run_few(state, dst, src, n, copy);
}

FOR_128 MQ_INLINE uint32_t run_128(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n < 64) return short_input(state, dst, src, n, copy);
    const __m128i k = PAIR(512);
    __m128i a = _mm_xor_si128(take(dst, src, 0, copy), _mm_cvtsi32_si128((int)state));
    __m128i b = take(dst, src, 16, copy), c = take(dst, src, 32, copy), d = take(dst, src, 48, copy);
    size_t at = 64;
    for (; n - at >= 64; at += 64) {
        a = fold(a, k, take(dst, src, at, copy));
        b = fold(b, k, take(dst, src, at + 16, copy));
        c = fold(c, k, take(dst, src, at + 32, copy));
        d = fold(d, k, take(dst, src, at + 48, copy));
    }
    a = fold(a, PAIR(384), fold(b, PAIR(256), fold(c, PAIR(128), d)));
    return finish(a, dst, src, at, n, copy);
}

/* ---- 256 bits ---- */

FOR_256 MQ_INLINE __m256i fold_256(__m256i x, __m256i k, __m256i next) {
    __m256i lo = _mm256_clmulepi64_epi128(x, k, 0x00);
    __m256i hi = _mm256_clmulepi64_epi128(x, k, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(lo, hi), next);
}

FOR_256 MQ_INLINE __m256i take_256(uint8_t *dst, const uint8_t *src, size_t at, int copy) {
    __m256i v = _mm256_loadu_si256((const __m256i *)(src + at));
    if (copy) {
        LOADED_ONCE(v);
        _mm256_storeu_si256((__m256i *)(dst + at), v);
    }
    return v;
}

FOR_256 MQ_INLINE uint32_t run_256(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n < 64) return short_input(state, dst, src, n, copy);
    const __m256i k256 = _mm256_broadcastsi128_si256(PAIR(256));
    __m256i a = take_256(dst, src, 0, copy);
    a = _mm256_xor_si256(a, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
    size_t at = 32;
    if (n >= 128) {
        const __m256i k1024 = _mm256_broadcastsi128_si256(PAIR(1024));
        __m256i b = take_256(dst, src, 32, copy), c = take_256(dst, src, 64, copy), d = take_256(dst, src, 96, copy);
        for (at = 128; n - at >= 128; at += 128) {
            a = fold_256(a, k1024, take_256(dst, src, at, copy));
            b = fold_256(b, k1024, take_256(dst, src, at + 32, copy));
            c = fold_256(c, k1024, take_256(dst, src, at + 64, copy));
            d = fold_256(d, k1024, take_256(dst, src, at + 96, copy));
        }
        a = fold_256(fold_256(fold_256(a, k256, b), k256, c), k256, d);
    }
    for (; n - at >= 32; at += 32) a = fold_256(a, k256, take_256(dst, src, at, copy));
    __m128i x = fold(_mm256_castsi256_si128(a), PAIR(128), _mm256_extracti128_si256(a, 1));
    return finish(x, dst, src, at, n, copy);
}

/* ---- 512 bits ---- */

FOR_512 MQ_INLINE __m512i fold_512(__m512i x, __m512i k, __m512i next) {
    __m512i lo = _mm512_clmulepi64_epi128(x, k, 0x00);
    __m512i hi = _mm512_clmulepi64_epi128(x, k, 0x11);
    return _mm512_ternarylogic_epi64(lo, hi, next, 0x96); /* exclusive or of three */
}

FOR_512 MQ_INLINE __m512i take_512(uint8_t *dst, const uint8_t *src, size_t at, int copy) {
    __m512i v = _mm512_loadu_si512((const void *)(src + at));
    if (copy) {
        LOADED_ONCE_512(v);
        _mm512_storeu_si512((void *)(dst + at), v);
    }
    return v;
}

FOR_512 MQ_INLINE uint32_t run_512(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n, int copy) {
    if (n < 64) return short_input(state, dst, src, n, copy);
    const __m512i k512 = _mm512_broadcast_i32x4(PAIR(512));
    __m512i a = take_512(dst, src, 0, copy);
    a = _mm512_xor_si512(a, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    size_t at = 64;
    if (n >= 256) {
        const __m512i k2048 = _mm512_broadcast_i32x4(PAIR(2048));
        __m512i b = take_512(dst, src, 64, copy), c = take_512(dst, src, 128, copy), d = take_512(dst, src, 192, copy);
        for (at = 256; n - at >= 256; at += 256) {
            a = fold_512(a, k2048, take_512(dst, src, at, copy));
            b = fold_512(b, k2048, take_512(dst, src, at + 64, copy));
            c = fold_512(c, k2048, take_512(dst, src, at + 128, copy));
            d = fold_512(d, k2048, take_512(dst, src, at + 192, copy));
        }
        a = fold_512(a, _mm512_broadcast_i32x4(PAIR(1024)), c);
        b = fold_512(b, _mm512_broadcast_i32x4(PAIR(1024)), d);
        a = fold_512(a, k512, b);
    }
    for (; n - at >= 64; at += 64) a = fold_512(a, k512, take_512(dst, src, at, copy));
    /* Each lane by its own distance to the last one; the last one goes in as it is. */
    const __m512i lanes =
        _mm512_set_epi64(0, 0, (long long)MQ_FOLD_128_HI, (long long)MQ_FOLD_128_LO, (long long)MQ_FOLD_256_HI,
                         (long long)MQ_FOLD_256_LO, (long long)MQ_FOLD_384_HI, (long long)MQ_FOLD_384_LO);
    a = fold_512(a, lanes, _mm512_maskz_mov_epi64(0xC0, a));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(a), _mm512_extracti64x4_epi64(a, 1));
    __m128i x = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    return finish(x, dst, src, at, n, copy);
}

/* ---- the variants ---- */

FOR_128 static uint32_t crc_128(uint32_t state, const uint8_t *p, size_t n) { return run_128(state, NULL, p, n, 0); }
FOR_256 static uint32_t crc_256(uint32_t state, const uint8_t *p, size_t n) { return run_256(state, NULL, p, n, 0); }
FOR_512 static uint32_t crc_512(uint32_t state, const uint8_t *p, size_t n) { return run_512(state, NULL, p, n, 0); }

FOR_128 static uint32_t copy_128(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    return run_128(state, dst, src, n, 1);
}
FOR_256 static uint32_t copy_256(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    return run_256(state, dst, src, n, 1);
}
FOR_512 static uint32_t copy_512(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    return run_512(state, dst, src, n, 1);
}

static int can_128(void) { /* coverage: other processors */
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
static int can_256(void) { /* coverage: other processors */
    return can_128() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}
static int can_512(void) { /* coverage: other processors */
    return can_256() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl");
}

const mq_crc32_variant_t mq_crc32_pclmul = {"pclmul", can_128, crc_128, copy_128};
const mq_crc32_variant_t mq_crc32_vpclmul256 = {"vpclmul256", can_256, crc_256, copy_256};
const mq_crc32_variant_t mq_crc32_vpclmul512 = {"vpclmul512", can_512, crc_512, copy_512};

#endif
