/* CRC-32: theory, the portable variant, and the choice of variant at run time. The fast variants are in crc32_x86.c
 * and crc32_arm.c. This file never includes Python.h, allocates or blocks.
 *
* The polynomial. Read the message as a polynomial M over GF(2), the first bit as its highest coefficient. The CRC
 * is M * x^32 mod P for P = 0x104C11DB7, with the first 32 bits and the result inverted. zip takes the lowest bit of
 * each byte as the first ("reflected"), so in a little-endian word of w bits bit j is the coefficient of x^(w-1-j):
 * the first byte of memory has the highest powers, and shifting a word right multiplies it.
 *
 * Tables (the portable variant). A byte changes the remainder by a number that depends on the byte only: 256 entries.
 * Eight tables, one for each count of zero bytes that follow, turn eight dependent steps into eight independent
 * look-ups ("slicing", Kounavis and Berry 2005).
 *
 * Folding (Gopal et al., "Fast CRC Computation Using PCLMULQDQ", Intel 2009). Only M mod P matters, so 128 bits A that
 * precede other data by D bits may be replaced by something congruent to A * x^D and added to that data. With
 * A = L * x^64 + H (L: the low half of the register, first in memory)
 *     A * x^D  =  L * x^(D+64) + H * x^D  ~  L * (x^(D+64) mod P) + H * (x^D mod P),
 * two carry-less multiplications of 64 by 32 bits, which fit into 128 bits again. The product of two reflected words
 * comes out one power too high (bit i times bit j lands in bit i+j, which in 128 bits is x^(127-i-j) and not
 * x^(126-i-j)), so the stored constants have one power less: MQ_FOLD_D_LO = x^(D+63), MQ_FOLD_D_HI = x^(D-1) mod P.
 * Independent registers side by side (D = their total width) hide the latency of the multiplier; at the end they are
 * folded into one another until 128 bits A are left.
 *
 * Reduction of A to A * x^32 mod P. One multiplication, L * (x^96 mod P) + H * x^32, leaves F of degree 95. Barrett:
 * the quotient q = floor(F / P) depends on T = floor(F / x^32) only and is floor(T * floor(x^96 / P) / x^64). The extra
* power of the reflected product provides the 65th bit: with nu = floor(floor(x^96 / P) / x), q is the low half of
 * T times nu. The remainder is the last 32 coefficients of F + q * P, and q * P = (q * rho) * x + q for rho = (P-1)/x.
 *
* Constants: crc32_consts.py computes crc32_tables.h from P; a test compares the two.
 *
 * Copy and CRC. Record and CRC must agree although another thread may change the body during the call. So each source
 * word is read into a register once, and both stored and summed from there; odd bytes at the end are copied first and
 * then summed from the copy. MQ_READ_ONCE keeps the compiler from reading the source again.
 */
#include "crc32.h"
#include "crc32_impl.h"
#include "crc32_tables.h"

MQ_INLINE uint64_t le64(uint64_t v) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(v);
#else
    return v;
#endif
}

MQ_INLINE uint32_t step8(uint32_t state, uint64_t word) {
    word = le64(word) ^ state;
    return mq_crc32_slices[7][word & 255] ^ mq_crc32_slices[6][word >> 8 & 255] ^ mq_crc32_slices[5][word >> 16 & 255] ^
           mq_crc32_slices[4][word >> 24 & 255] ^ mq_crc32_slices[3][word >> 32 & 255] ^
           mq_crc32_slices[2][word >> 40 & 255] ^ mq_crc32_slices[1][word >> 48 & 255] ^ mq_crc32_slices[0][word >> 56];
}

static uint32_t portable_crc(uint32_t state, const uint8_t *p, size_t n) {
    for (; n >= 8; p += 8, n -= 8) state = step8(state, mq_crc32_load64(p));
    while (n--) state = mq_crc32_slices[0][(state ^ *p++) & 255] ^ state >> 8;
    return state;
}

static uint32_t portable_copy(uint32_t state, uint8_t *dst, const uint8_t *src, size_t n) {
    for (; n >= 8; dst += 8, src += 8, n -= 8) {
        uint64_t word = mq_crc32_load64(src);
        MQ_READ_ONCE();
        memcpy(dst, &word, 8);
        state = step8(state, word);
    }
    mq_crc32_copy_few(dst, src, n);
    MQ_READ_ONCE();
    return portable_crc(state, dst, n);
}

static int always(void) { return 1; }

static const mq_crc32_variant_t portable = {"portable", always, portable_crc, portable_copy};

/* Best first. */
static const mq_crc32_variant_t *const variants[] = {
#ifdef MQ_CRC32_X86
    &mq_crc32_vpclmul512,
    &mq_crc32_vpclmul256,
    &mq_crc32_pclmul,
#endif
#ifdef MQ_CRC32_ARM
    &mq_crc32_arm_pmull,
    &mq_crc32_arm_crc,
#endif
    &portable,
};

static const char *const names[] = {
#ifdef MQ_CRC32_X86
    "vpclmul512", "vpclmul256", "pclmul",
#endif
#ifdef MQ_CRC32_ARM
    "arm_pmull",  "arm_crc",
#endif
    "portable",   NULL,
};

enum { VARIANTS = sizeof variants / sizeof variants[0] };

/* The chosen variant. Two threads that choose at the same time get the same result, so no lock is needed. */
static const mq_crc32_variant_t *chosen;

static __attribute__((noinline, cold)) const mq_crc32_variant_t *choose(void) {
    int i = 0;
    while (!variants[i]->can()) i++; /* the last variant runs on every machine; coverage: other processors */
    __atomic_store_n(&chosen, variants[i], __ATOMIC_RELEASE);
    return variants[i];
}

MQ_INLINE const mq_crc32_variant_t *current(void) {
    const mq_crc32_variant_t *variant = __atomic_load_n(&chosen, __ATOMIC_ACQUIRE);
    return __builtin_expect(variant != NULL, 1) ? variant : choose();
}

uint32_t mq_crc32(uint32_t seed_crc, const uint8_t *p, size_t n) { return ~current()->crc(~seed_crc, p, n); }

uint32_t mq_crc32_copy(uint8_t *dst, const uint8_t *src, size_t n) {
    return ~current()->copy(0xFFFFFFFFu, dst, src, n);
}

const char *mq_crc32_variant(void) { return current()->name; }

const char *const *mq_crc32_variants(void) { return names; }

static const mq_crc32_variant_t *find(const char *name) {
    for (int i = 0; i < VARIANTS; i++)
        if (strcmp(variants[i]->name, name) == 0 && variants[i]->can()) /* coverage: other processors */
            return variants[i];
    return NULL;
}

int mq_crc32_can(const char *name) { return find(name) != NULL; }

int mq_crc32_force(const char *name) {
    if (name == NULL) {
        choose();
        return 0;
    }
    const mq_crc32_variant_t *variant = find(name);
    if (variant == NULL) return -1;
    __atomic_store_n(&chosen, variant, __ATOMIC_RELEASE);
    return 0;
}
