/* Edge coverage for the fuzzer: gcc calls the hook at every branch of code that was built with
 * -fsanitize-coverage=trace-pc. Preloaded, so that the extension modules find it. It must never allocate or call into
 * anything: it runs inside every function of the engine. */

#include <stdint.h>

#define MAP_BYTES 65536

__attribute__((visibility("default"))) uint8_t mq_coverage[MAP_BYTES];
static __thread uintptr_t previous;

__attribute__((visibility("default"))) void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    /* Pages move from run to run; the place inside the page does not, and the bits above are good enough within one. */
    uintptr_t at = (here >> 1) ^ (here >> 14);
    uint8_t *cell = &mq_coverage[(at ^ previous) & (MAP_BYTES - 1)];
    if (*cell != 255) {
        *cell = (uint8_t)(*cell + 1);
    }
    previous = at >> 1;
}
