/* SIGBUS guard: a lost page of a mapped file does not end the process. Theory: sigbus_guard.c.
 *
 * Thread: any, with or without the GIL; no function waits for a disk. */
#ifndef MQ_SIGBUS_GUARD_H
#define MQ_SIGBUS_GUARD_H

#include <stdint.h>

/* Damage of one mapping, a field of the object that owns the mapping. The handler writes it, any thread may read it. */
typedef struct {
    uint32_t hits;    /* faults so far; 0: the mapping shows the file */
    int64_t position; /* byte in the mapping of the first fault */
} mq_damage;

/* Words to set at a fault in a mapping that is written through: `error` becomes -EIO if it is 0, then `bits` are
 * or-ed to `flags`. The first fault stores the name of its file and its position here for the message (valid once
 * `published` is set). */
typedef struct {
    uint32_t *flags; /* NULL: cut */
    uint32_t bits;
    int *error;
    uint32_t taken, published;
    int64_t position;
    char path[1024];
} mq_latch;

typedef struct mq_guarded mq_guarded;

/* Guard [address, address + bytes), a mapping of the file `path`. The text, *damage and *latch (or NULL) must live
 * until mq_guard_remove. Returns NULL without memory. The first call installs the handler. */
mq_guarded *mq_guard_add(void *address, int64_t bytes, const char *path, mq_damage *damage, mq_latch *latch);
/* The entry of mappings whose owner refused the guard: watched and removed as other entries, without effect. A lost
 * page then ends the process, unless the process has a SIGBUS handler of its own. */
extern mq_guarded mq_guard_refused;
/* Change the latch that a fault sets, NULL for none. */
void mq_guard_watch(mq_guarded *guarded, mq_latch *latch);
/* Remove the guard before the memory is unmapped. When this returns no handler uses the range or its structs. It
 * waits at most a second for a running handler (its thread may be stopped). The last removal restores the previous
 * handler, unless another handler was installed over this one. */
void mq_guard_remove(mq_guarded *guarded);
/* Detach the latch: after this returns no handler writes to the words of the latch. */
void mq_latch_cut(mq_latch *latch);
/* Read one byte; the compiler cannot remove the load. */
static inline void mq_touch(const void *p) { (void)*(const volatile uint8_t *)p; }
/* Faults of all mappings of the process so far. */
uint32_t mq_guard_hits(void);
/* Mappings guarded now. */
int64_t mq_guard_count(void);

#endif
