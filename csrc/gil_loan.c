/* The waits of gil_loan.h, all bounded: a thread may stop anywhere, for as long as the system likes. The borrower waits for its turn asleep, then
 * it and the lender for each other awake. None yields its processor:
 * Linux takes a yield for a turn that was had (6.18), and puts then stood still for up to 55 ms, as if behind a borrower without a processor. */
#define _GNU_SOURCE
#include "gil_loan.h"

#include <sched.h>
#include <stddef.h>
#include <time.h>

enum { NOBODY, ASKED, LENT };

/* Longer than the pause between two puts of a thread that is in a hurry; after it the borrower takes the GIL as ever, and its puts go on. */
enum { ASK_NS = 500000 };
/* Behind another borrower, which may lose its processor or go twice: long, as it is spent asleep. */
enum { TURN_NS = 5000000 };
/* Puts that come so fast are worth waiting for, by the pace of the last such time and more. */
enum { HURRY_NS = 100000, SAMPLE_NS = 1000000 };
/* Longer than most of what a borrower does with the GIL; after it the put waits for the GIL as ever, asleep. */
enum { LEND_NS = 500000 };
/* Between two loans: what a put was late after one is made up for in less. */
enum { PAUSE_NS = 50000 };
/* Between two looks at the clock: a microsecond or two. */
enum { PAUSES = 64 };

/* Of the thread itself, where the C library has room for that: what it allocates for a library that is loaded later it frees unseen by the
 * race lane, which takes it for a race. */
#if defined(__GLIBC__)
#define OF_THREAD __thread __attribute__((tls_model("initial-exec")))
#else
#define OF_THREAD __thread
#endif

static OF_THREAD struct {
    mq_gil_loan *loan;
    int64_t puts_seen, seen_ns;
    int hurry, has_it;
} borrower;

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static int swap32(uint32_t *word, uint32_t expect, uint32_t v) {
    return __atomic_compare_exchange_n(word, &expect, v, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Look at the word until it is (or is no more) this, at most so long. */
static int look(const uint32_t *word, uint32_t value, int equal, int64_t deadline) {
    for (;;) {
        for (int i = 0; i < PAUSES; i++) {
            if ((mq_load32(word) == value) == equal) return 1;
            mq_pause();
        }
        if (now_ns() >= deadline) return 0;
    }
}

static int is_alone(void) {
#if defined(__linux__)
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < 2;
#else
    return 0;
#endif
}

/* Who waits awake keeps the other one from a processor that they share. */
void mq_gil_loan_join(mq_gil_loan *loan) {
    borrower.loan = is_alone() ? NULL : loan;
    borrower.puts_seen = mq_load64(loan->puts);
    borrower.seen_ns = now_ns();
    borrower.hurry = borrower.has_it = 0;
}

void mq_gil_loan_leave(void) {
    mq_gil_gave();
    borrower.loan = NULL;
}

static int puts_hurry(const mq_gil_loan *loan, int64_t now) {
    int64_t taken = now - borrower.seen_ns, puts;
    if (taken >= SAMPLE_NS) {
        puts = mq_load64(loan->puts);
        borrower.hurry = puts - borrower.puts_seen >= taken / HURRY_NS;
        borrower.puts_seen = puts;
        borrower.seen_ns = now;
    }
    return borrower.hurry;
}

/* Asleep, behind the last loan and behind another borrower, and where it has to wait for neither: who wakes up has its turn before it, and is less
 * likely to lose its processor with the GIL than who has just used up its turn; and who has the GIL may want the processor that looking at it would
 * take. */
static int take_turn(mq_gil_loan *loan, int64_t now) {
    int64_t deadline = now + TURN_NS, pause = mq_load64(&loan->ended_ns) + PAUSE_NS - now;
    do {
        uint32_t nobody_wakes = 0;
        mq_futex_wait(&nobody_wakes, 0, pause > 0 ? pause : PAUSE_NS);
        now = now_ns();
        if (now >= deadline) return 0;
        pause = mq_load64(&loan->ended_ns) + PAUSE_NS - now;
    } while (pause > 0 || !swap32(&loan->state, NOBODY, ASKED));
    return 1;
}

void mq_gil_ask(void) {
    mq_gil_loan *loan = borrower.loan;
    if (loan == NULL) return;
    int64_t now = now_ns(), deadline;
    if (!puts_hurry(loan, now) || !take_turn(loan, now)) return;
    deadline = now_ns() + ASK_NS;
    mq_or32(loan->flags, loan->bit);
    if (!look(&loan->state, LENT, 1, deadline)) {
        mq_and32(loan->flags, ~loan->bit);
        if (swap32(&loan->state, ASKED, NOBODY)) return;
    }
    borrower.has_it = 1; /* maybe in the last moment */
}

void mq_gil_gave(void) {
    if (!borrower.has_it) return;
    borrower.has_it = 0;
    mq_store64(&borrower.loan->ended_ns, now_ns());
    mq_store32(&borrower.loan->state, NOBODY);
}

int mq_gil_is_lent(void) { return borrower.has_it; }

int mq_gil_is_wanted(mq_gil_loan *loan) {
    mq_and32(loan->flags, ~loan->bit);
    return mq_load32(&loan->state) == ASKED;
}

int mq_gil_is_out(const mq_gil_loan *loan) { return mq_load32(&loan->state) == LENT; }

void mq_gil_lend(mq_gil_loan *loan) {
    if (swap32(&loan->state, ASKED, LENT)) look(&loan->state, LENT, 0, now_ns() + LEND_NS);
}
