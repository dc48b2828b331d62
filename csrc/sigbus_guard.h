/* A process outlives a mapped file that loses its pages: see sigbus_guard.c for the theory.
 *
 * All functions may be called from any thread, with or without the GIL; none of them waits for a disk.
 */
#ifndef MQ_SIGBUS_GUARD_H
#define MQ_SIGBUS_GUARD_H

#include <stdint.h>

/* What happened to one mapping; stands in the object that owns it. The handler writes it, everybody may read it. */
typedef struct {
    uint32_t hits;    /* faults met so far; 0: the mapping shows the file */
    int64_t position; /* byte in the mapping where the first one was */
} mq_damage;

/* What to set when a mapping that somebody writes through is hit: `error` becomes -EIO if it is 0, then `bits` are or-ed to
 * `flags`. The first hit leaves the name of its file and its position here for the message (valid once `published` is set). */
typedef struct {
    uint32_t *flags; /* NULL: cut */
    uint32_t bits;
    int *error;
    uint32_t taken, published;
    int64_t position;
    char path[1024];
} mq_latch;

typedef struct mq_guarded mq_guarded;

/* Guard [address, address + bytes), a mapping of the file `path`. The text, *damage and *latch (or NULL) must live until
 * mq_guard_remove. Returns NULL without memory. The first one installs the handler. */
mq_guarded *mq_guard_add(void *address, int64_t bytes, const char *path, mq_damage *damage, mq_latch *latch);
/* What stands for a mapping whose owner refused the guard: watched and removed as others are, nothing happens. A lost page then ends the process,
 * unless the process has a handler of its own. */
extern mq_guarded mq_guard_refused;
/* Change what a hit sets, NULL for nothing. */
void mq_guard_watch(mq_guarded *guarded, mq_latch *latch);
/* Before the memory is unmapped. When this returns no handler looks at the range or at its structs any more; it waits a second at most for one
 * that does (its thread was stopped). The last one puts back the handler that was there before, unless somebody else put another one over ours. */
void mq_guard_remove(mq_guarded *guarded);
/* After this returns no handler touches what the latch points to. */
void mq_latch_cut(mq_latch *latch);
/* Read one byte, whatever the compiler thinks of it. */
static inline void mq_touch(const void *p) { (void)*(const volatile uint8_t *)p; }
/* Faults met by all mappings of the process so far. */
uint32_t mq_guard_hits(void);
/* Mappings guarded now. */
int64_t mq_guard_count(void);

#endif
