/* mq_short_copy and mq_short_equal between pages that nobody may touch: every length, at both ends of its page, each byte another one. A byte too
 * many ends the process. Run by test_c_by_itself.py. */
#define _GNU_SOURCE
#include "short_copy.h"
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MOST = 300, UNTOUCHED = 0xEE };

/* One page that may be used, with one before and one behind that may not. */
static uint8_t *guarded_page(size_t page) {
    uint8_t *all = mmap(NULL, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + page, page, PROT_READ | PROT_WRITE) != 0) return NULL;
    return all + page;
}

int main(void) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *from = guarded_page(page), *to = guarded_page(page);
    if (from == NULL || to == NULL) return 2;
    for (size_t i = 0; i < page; i++) from[i] = (uint8_t)(i * 7 + i / 251 + 1);
    for (size_t n = 0; n <= MOST; n++)
        for (int corner = 0; corner < 4; corner++) {
            size_t source = corner & 1 ? page - n : 0, target = corner & 2 ? page - n : 0;
            memset(to, UNTOUCHED, page);
            mq_short_copy(to + target, from + source, n);
            for (size_t i = 0; i < page; i++) {
                int inside = i >= target && i < target + n;
                uint8_t expected = inside ? from[source + i - target] : UNTOUCHED;
                if (to[i] != expected) {
                    fprintf(stderr, "%zu bytes, byte %zu: expected %d, found %d\n", n, i - target, expected, to[i]);
                    return 1;
                }
            }
            if (!mq_short_equal(to + target, from + source, n)) {
                fprintf(stderr, "%zu equal bytes: found unequal\n", n);
                return 1;
            }
            for (size_t i = 0; i < n; i++) {
                to[target + i] ^= 0x10;
                if (mq_short_equal(to + target, from + source, n)) {
                    fprintf(stderr, "%zu bytes, of which byte %zu differs: found equal\n", n, i);
                    return 1;
                }
                to[target + i] ^= 0x10;
            }
        }
    return 0;
}
