/* Marks for callgrind, loaded by bench/counts.py into the process it counts: from where to count, and when to write the counts down.
 * Outside valgrind each call does nothing. */
#include <valgrind/callgrind.h>

void counts_begin(void) {
    CALLGRIND_START_INSTRUMENTATION;
    CALLGRIND_ZERO_STATS;
}

void counts_end(const char *name) {
    CALLGRIND_DUMP_STATS_AT(name);
    CALLGRIND_STOP_INSTRUMENTATION;
}
