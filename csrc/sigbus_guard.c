/* Theory: the purpose of the SIGBUS handler, and its guarantees.
 *
 * The store writes and reads its files through shared mappings. The system does not guarantee that a mapped page
 * stays available: when another process truncates the file, the disk cannot read the page, or memory fails, the next
 * access raises SIGBUS, which by default ends the process. A check before every access costs a system call and is a
 * race anyway. So the access is allowed to fail:
 *
 *   1. Every mapping is entered in a table: its range, a damage word of its owner, and, while the mapping is written
 *      through, a latch: the flag word that every put checks anyway.
 *   2. A fault inside a range sets damage and latch first, then maps an anonymous page of zeros over the lost page and
 *      returns. The instruction is repeated: a load reads zeros, a store writes to a page that no reader sees.
 *   3. Results of such an access are discarded. A put checks the latch after its store and before its answer. A flush
 *      checks the latch after the sync and before it reports durability. A reader checks the damage word after its
 *      read. Both words are set before the page of zeros is mapped, so that a thread that reads the zeros without a
 *      fault of its own sees the words too.
 *
 * Not detected: bytes that were zeroed or rewritten in place, and a file truncated and extended to its old length
 * between two accesses. Those are wrong contents, found by CRCs, not missing pages. A view that a caller already
 * holds stays readable and shows zeros in place of the lost page.
 *
 * The handler reads the table, and may interrupt any instruction of any thread, so the table is read without a lock:
 * blocks of slots in a list that only grows; a slot is valid while its start is not 0. The search is linear: it runs
 * only after a page was lost, and takes some 10 microseconds in a store of 10,000 mapped files. The table has no
 * fixed capacity; without memory for another block the mapping of the file fails, a file is never mapped unguarded.
 * A slot is reused, and its structs are freed, only once no handler runs (`inside` is 0). Handlers are short, so the
 * remover spins, then naps. After a second (the thread in the handler was stopped, by a debugger or a suspended
 * process) the remover continues, and that slot is never reused.
 *
 * Faults outside the table. The previous handler of the process is called for them. The guard's handler is installed
 * with the first mapping and removed with the last, if it is still the handler of the process. A handler that was
 * installed over it stays, and is never covered again. Python's faulthandler, the usual case, prints, restores the
 * handler that *it* replaced, and raises the signal again. Enabled before the first mapping, faulthandler is below
 * the guard: a fault in the table is remapped, any other is passed to faulthandler. Enabled later, it is above the
 * guard: a lost page is printed and ends the process, because the second signal, which is no page fault, is passed
 * to the handler before the guard's.
 *
 * fork: the child keeps table, mappings and handler; a handler that ran in another thread of the parent does not
 * exist in the child. */
#define _GNU_SOURCE
#define _DARWIN_C_SOURCE
#include "sigbus_guard.h"
#include "atomics.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

enum { BLOCK_SLOTS = 256, WAIT_SPINS = 1000, WAIT_NAPS = 10000, WAIT_NAP_NS = 100000 };

struct mq_guarded {
    uintptr_t start; /* 0: the slot is free; set last, cleared first */
    uintptr_t bytes;
    const char *path;
    mq_damage *damage;
    mq_latch *latch;
    mq_guarded *next_free;
};

mq_guarded mq_guard_refused;

typedef struct block {
    mq_guarded slots[BLOCK_SLOTS];
    struct block *next;
} block;

static uint32_t table_lock;
static block *first_block;
static mq_guarded *free_slots;
static int64_t guarded_count;
static uint32_t inside; /* handlers that run now */
static uint32_t all_hits;
static uintptr_t page_bytes;

static struct sigaction previous; /* previous handler */
static int placed;                /* the guard's handler is installed, perhaps below another one */
static int handlers_of_fork;

#define LOAD(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_RELEASE)

/* --- in the handler: async-signal-safe calls only --- */

static int put_zeros(uintptr_t at, uintptr_t bytes) {
    int protection = PROT_READ | PROT_WRITE, flags = MAP_FIXED | MAP_PRIVATE | MAP_ANON;
#if defined(__linux__) && defined(SYS_mmap)
    /* not through the C library, which a sanitizer may intercept */
    return syscall(SYS_mmap, at, bytes, protection, flags, -1, 0L) == -1 ? -1 : 0;
#else
    return mmap((void *)at, bytes, protection, flags, -1, 0) == MAP_FAILED ? -1 : 0;
#endif
}

static void trip(mq_latch *latch, const char *path, int64_t position) {
    uint32_t *flags = __atomic_load_n(&latch->flags, __ATOMIC_SEQ_CST);
    if (flags == NULL) return;
    if (__atomic_exchange_n(&latch->taken, 1, __ATOMIC_ACQ_REL) == 0) {
        size_t n = 0;
        while (path[n] != 0 && n < sizeof latch->path - 1) latch->path[n] = path[n], n++;
        latch->path[n] = 0;
        latch->position = position;
        STORE(&latch->published, 1u);
    }
    int none = 0;
    __atomic_compare_exchange_n(latch->error, &none, -EIO, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    mq_or32(flags, latch->bits);
}

static int remap_zero(uintptr_t address) {
    int remapped = 0;
    __atomic_add_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    for (block *b = LOAD(&first_block); b != NULL && !remapped; b = LOAD(&b->next)) {
        for (int i = 0; i < BLOCK_SLOTS; i++) {
            mq_guarded *g = &b->slots[i];
            uintptr_t start = __atomic_load_n(&g->start, __ATOMIC_SEQ_CST);
            if (start == 0 || address - start >= g->bytes) continue;
            int64_t position = (int64_t)(address - start);
            if (LOAD(&g->damage->hits) == 0) __atomic_store_n(&g->damage->position, position, __ATOMIC_RELAXED);
            mq_add32(&g->damage->hits, 1);
            mq_add32(&all_hits, 1);
            mq_latch *latch = __atomic_load_n(&g->latch, __ATOMIC_SEQ_CST);
            if (latch != NULL) trip(latch, g->path, position);
            uintptr_t page = address & ~(page_bytes - 1);
            /* out of map entries: one mapping for all the rest of the file */
            remapped = put_zeros(page, page_bytes) == 0 || put_zeros(page, start + g->bytes - page) == 0;
            break;
        }
    }
    __atomic_sub_fetch(&inside, 1, __ATOMIC_SEQ_CST);
    return remapped;
}

static void hand_on(int number, siginfo_t *info, void *context) {
    int raised = info->si_code <= 0;
    const struct sigaction *other = &previous;
    if (other->sa_flags & SA_SIGINFO) {
        other->sa_sigaction(number, info, context);
        return;
    }
    if (other->sa_handler == SIG_IGN && raised) return;
    if (other->sa_handler != SIG_DFL && other->sa_handler != SIG_IGN) {
        other->sa_handler(number);
        return;
    }
    /* default action: the failed instruction fails again; a raised signal is raised again, and delivered on return */
    struct sigaction standard;
    memset(&standard, 0, sizeof standard);
    standard.sa_handler = SIG_DFL;
    sigaction(number, &standard, NULL);
    if (raised) raise(number);
}

static void on_bus_error(int number, siginfo_t *info, void *context) {
    int kept = errno;
    if (info->si_code <= 0 || info->si_code == BUS_ADRALN || !remap_zero((uintptr_t)info->si_addr))
        hand_on(number, info, context);
    errno = kept;
}

/* --- outside the handler --- */

static void forked(void) {
    STORE(&inside, 0u);
    STORE(&table_lock, 0u);
}

static int is_ours(const struct sigaction *action) {
    return action->sa_flags & SA_SIGINFO && action->sa_sigaction == on_bus_error;
}

static void install(void) { /* under the lock */
    struct sigaction ours;
    if (placed) return;
    if (!handlers_of_fork) {
        page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
        handlers_of_fork = pthread_atfork(NULL, NULL, forked) == 0;
    }
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_bus_error;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
    sigemptyset(&ours.sa_mask);
    if (sigaction(SIGBUS, NULL, &previous) < 0) return; /* read first: the handler needs it */
    placed = sigaction(SIGBUS, &ours, NULL) == 0;
}

static void uninstall(void) { /* under the lock; no mapping is left */
    struct sigaction now;
    if (!placed || sigaction(SIGBUS, NULL, &now) < 0 || !is_ours(&now)) return;
    placed = sigaction(SIGBUS, &previous, NULL) != 0;
}

/* Spin instead of sleeping: the lock is held for less than a microsecond. */
static void lock_table(void) {
    while (!mq_lock_try(&table_lock)) sched_yield();
}

static void unlock_table(void) { STORE(&table_lock, 0u); }

static int is_inside(void) { return __atomic_load_n(&inside, __ATOMIC_SEQ_CST) != 0; }

/* Wait until no handler runs, for about a second at most. Returns 1 if none runs, else 0. */
static int wait_for_handlers(void) {
    struct timespec nap = {0, WAIT_NAP_NS};
    for (int i = 0; i < WAIT_SPINS && is_inside(); i++) sched_yield();
    for (int i = 0; i < WAIT_NAPS && is_inside(); i++) nanosleep(&nap, NULL);
    return !is_inside();
}

mq_guarded *mq_guard_add(void *address, int64_t bytes, const char *path, mq_damage *damage, mq_latch *latch) {
    lock_table();
    install();
    if (free_slots == NULL) {
        block *b = calloc(1, sizeof *b);
        if (b == NULL) {
            if (guarded_count == 0) uninstall();
            unlock_table();
            return NULL;
        }
        for (int i = BLOCK_SLOTS - 1; i >= 0; i--) {
            b->slots[i].next_free = free_slots;
            free_slots = &b->slots[i];
        }
        b->next = first_block;
        STORE(&first_block, b);
    }
    mq_guarded *g = free_slots;
    mq_assert(g->start == 0, g->start, 0);
    mq_assert(address != NULL && bytes > 0, bytes, 0);
    free_slots = g->next_free;
    guarded_count++;
    unlock_table();
    g->bytes = (uintptr_t)bytes;
    g->path = path;
    g->damage = damage;
    STORE(&g->latch, latch);
    STORE(&g->start, (uintptr_t)address);
    return g;
}

void mq_guard_watch(mq_guarded *guarded, mq_latch *latch) {
    if (guarded == &mq_guard_refused || LOAD(&guarded->latch) == latch) return;
    __atomic_store_n(&guarded->latch, latch, __ATOMIC_SEQ_CST);
    wait_for_handlers();
}

void mq_guard_remove(mq_guarded *guarded) {
    if (guarded == &mq_guard_refused) return;
    mq_assert(guarded->start != 0, guarded->start, guarded->bytes);
    __atomic_store_n(&guarded->start, (uintptr_t)0, __ATOMIC_SEQ_CST);
    int is_idle = wait_for_handlers();
    lock_table();
    if (is_idle) {
        guarded->next_free = free_slots;
        free_slots = guarded;
    }
    mq_assert(guarded_count > 0, guarded_count, 0);
    if (--guarded_count == 0) uninstall();
    unlock_table();
}

void mq_latch_cut(mq_latch *latch) {
    __atomic_store_n(&latch->flags, NULL, __ATOMIC_SEQ_CST);
    wait_for_handlers();
}

uint32_t mq_guard_hits(void) { return mq_load32(&all_hits); }

int64_t mq_guard_count(void) {
    lock_table();
    int64_t count = guarded_count;
    unlock_table();
    return count;
}
