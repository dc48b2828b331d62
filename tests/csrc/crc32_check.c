/* Checks every CRC variant against answers from outside; built and run by test_crc32.py, in a process of its own so that
 * a read or write beyond a buffer ends in SIGSEGV here and not in the test run.
 *
 * Usage: crc32_check VARIANT FILE. FILE (written by the test, CRCs by zlib): uint32 alignments, uint32 lengths,
 * alignments + lengths - 1 bytes of data, then for each alignment and length the CRC of data[alignment, +length).
 * Exit 0 and the number of comparisons on stdout, or 1 and what was wrong. */
#define _GNU_SOURCE 1 /* MAP_ANONYMOUS */
#include "crc32.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif

#define GUARDED_PAGES 2
#define RED 0xA5

static unsigned long checks;

static void expect(uint32_t found, uint32_t wanted, const char *what, size_t alignment, size_t n) {
    checks++;
    if (found == wanted) return;
    printf("%s: alignment %zu length %zu: expected %08x found %08x\n", what, alignment, n, wanted, found);
    exit(1);
}

static void must(int ok, const char *what, size_t n) {
    checks++;
    if (ok) return;
    printf("%s: length %zu\n", what, n);
    exit(1);
}

/* Two pages with an unmapped page on each side. */
static uint8_t *guarded(size_t page) {
    uint8_t *p = mmap(NULL, (GUARDED_PAGES + 2) * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + page, GUARDED_PAGES * page, PROT_READ | PROT_WRITE) != 0) {
        perror("guard pages");
        exit(2);
    }
    return p + page;
}

static void read_all(void *to, size_t n, FILE *file) {
    if (fread(to, 1, n, file) != n) {
        fprintf(stderr, "answers: short file\n");
        exit(2);
    }
}

/* Somebody who changes the source while it is copied. */
enum { SHARED_BYTES = 1024 };
static uint8_t shared_source[SHARED_BYTES + 64];
static int stop;

static void *scribble(void *unused) {
    uint8_t value = 0;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        value++;
        for (size_t i = 0; i < sizeof shared_source; i++) __atomic_store_n(shared_source + i, value, __ATOMIC_RELAXED);
    }
    return unused;
}

static void torn_source(void) {
    static uint8_t copy[SHARED_BYTES + 64];
    pthread_t thread;
    if (pthread_create(&thread, NULL, scribble, NULL) != 0) exit(2);
    unsigned mixed = 0;
    /* Until copies with two values in them were seen often enough: those are the ones that matter. */
    for (unsigned long turn = 0; mixed < 300 && turn < 20000000ul; turn++) {
        size_t n = 2 + turn % (SHARED_BYTES - 1), at = turn % 64;
        uint32_t crc = mq_crc32_copy(copy, shared_source + at, n);
        expect(crc, mq_crc32(0, copy, n), "CRC of the bytes stored, source changing", at, n);
        mixed += copy[0] != copy[n - 1];
    }
    /* Few bytes, often: the odd ones at the end of any length go the same way, and are in flight for a moment only. */
    for (unsigned long turn = 0; turn < 2000000ul; turn++) {
        size_t n = 1 + turn % 15, at = turn % 64;
        uint32_t crc = mq_crc32_copy(copy, shared_source + at, n);
        expect(crc, mq_crc32(0, copy, n), "CRC of the few bytes stored, source changing", at, n);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    must(mixed > 0, "the source never changed during a copy", 0);
}

int main(int argc, char **argv) {
    if (argc != 3) return 2;
    if (mq_crc32_force(argv[1]) != 0 || strcmp(mq_crc32_variant(), argv[1]) != 0) {
        fprintf(stderr, "%s: cannot run here\n", argv[1]);
        return 2;
    }
    FILE *file = fopen(argv[2], "rb");
    if (file == NULL) return 2;
    uint32_t size[2];
    read_all(size, sizeof size, file);
    size_t alignments = size[0], lengths = size[1], bytes = alignments + lengths - 1;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = GUARDED_PAGES * page;
    if (bytes + 64 > room) return 2;
    uint8_t *data = aligned_alloc(64, (bytes + 63) / 64 * 64);
    uint32_t *answers = malloc(alignments * lengths * sizeof *answers);
    if (data == NULL || answers == NULL) return 2;
    read_all(data, bytes, file);
    read_all(answers, alignments * lengths * sizeof *answers, file);
    fclose(file);
    uint8_t *source = guarded(page), *target = guarded(page);

    for (size_t a = 0; a < alignments; a++)
        for (size_t n = 0; n < lengths; n++) {
            uint32_t wanted = answers[a * lengths + n];
            expect(mq_crc32(0, data + a, n), wanted, "crc", a, n);
            expect(mq_crc31(data + a, n), wanted & 0x7FFFFFFF, "31 bits", a, n);
            /* Split at a place that wanders through the input. */
            size_t cut = n ? (n * 7919 + a * 104729) % (n + 1) : 0;
            expect(mq_crc32(mq_crc32(0, data + a, cut), data + a + cut, n - cut), wanted, "chained", a, n);
            /* Copy to another alignment, with marks on both sides. */
            size_t to = 1 + (a * 5 + n) % 61;
            memset(target, RED, to);
            memset(target + to, (int)~data[a], n);
            target[to + n] = RED;
            expect(mq_crc32_copy(target + to, data + a, n), wanted, "copy", a, n);
            must(memcmp(target + to, data + a, n) == 0, "copied bytes", n);
            must(target[to - 1] == RED && target[to + n] == RED, "copy wrote beyond its target", n);
        }

    /* Against the guard pages: starting at the first byte that may be touched, ending at the last. */
    for (size_t n = 0; n < lengths; n++) {
        uint32_t wanted = answers[n];
        for (int at_end = 0; at_end < 2; at_end++) {
            uint8_t *from = source + (at_end ? room - n : 0), *to = target + (at_end ? room - n : 0);
            memcpy(from, data, n);
            expect(mq_crc32(0, from, n), wanted, "guarded crc", 0, n);
            expect(mq_crc32_copy(to, from, n), wanted, "guarded copy", 0, n);
            must(memcmp(to, data, n) == 0, "guarded bytes", n);
        }
    }
    torn_source();
    printf("%lu\n", checks);
    return 0;
}
