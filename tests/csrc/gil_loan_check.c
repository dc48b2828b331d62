/* Loans of gil_loan.h between one thread that "puts" and two that borrow: the lender waits for the borrower, each loan is given back before the
 * next, a borrower waits for another one asleep, and who asks where nobody lends goes on. Where puts are rare nobody asks, though somebody would
 * lend; who asks has slept before. */
#define _GNU_SOURCE
#include "gil_loan.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/resource.h>
#include <time.h>

enum { BORROWERS = 2, LOANS = 200, BIT = 32, PAUSES = 2000, RARE = 2, MANY = 1 << 30 };

static uint32_t flags, running = BORROWERS, inside;
static int64_t put_count;
static mq_gil_loan loan = {.bit = BIT, .flags = &flags, .puts = &put_count};
static uint32_t wrong, waited_for;

static void expect(int good, const char *what) {
    if (good) return;
    printf("expected: %s\n", what);
    mq_add32(&wrong, 1);
}

/* Asks until it was lent so often: a loan may fail to come about on a busy machine. */
static void *borrow(void *unused) {
    (void)unused;
    mq_gil_loan_join(&loan);
    for (int lent = 0; lent < LOANS;) {
        mq_gil_ask();
        if (!mq_gil_is_lent()) continue;
        expect(mq_add32(&inside, 1) == 1, "one borrower at a time");
        expect(mq_gil_is_out(&loan), "seen by the other threads");
        for (int i = 0; i < PAUSES; i++) mq_pause();
        mq_add32(&inside, (uint32_t)-1);
        lent++;
        mq_gil_gave();
        expect(!mq_gil_is_lent(), "given back");
    }
    mq_gil_loan_leave();
    mq_add32(&running, (uint32_t)-1);
    return NULL;
}

/* A borrower that is in no hurry has it still when a lender that does not wait comes back; one that lost its processor, too. */
static void lend_if_asked(void) {
    if (!(mq_load32(&flags) & BIT) || !mq_gil_is_wanted(&loan)) return;
    mq_gil_lend(&loan);
    if (mq_load32(&inside) == 0 && mq_load32(&loan.state) == 0) waited_for++;
}

static void *lend(void *unused) {
    (void)unused;
    while (mq_load32(&running) != 0) lend_if_asked();
    return NULL;
}

static void ask_after(int64_t puts_meanwhile) {
    const struct timespec while_they_came = {0, 2000000};
    nanosleep(&while_they_came, NULL);
    mq_add64(&put_count, puts_meanwhile);
    mq_gil_ask();
}

static void ask_in_vain(void) {
    mq_gil_ask();
    expect(!mq_gil_is_lent() && loan.state == 0, "no loan for a thread that did not join");
    mq_gil_loan_join(&loan);
    ask_after(MANY);
    expect(!mq_gil_is_lent() && loan.state == 0 && flags == 0, "no loan where nobody lends, and no question left");
    mq_gil_loan_leave();
    mq_or32(&flags, BIT);
    expect(!mq_gil_is_wanted(&loan) && flags == 0, "a question that nobody asks is forgotten");
}

/* Somebody else lends at once. */
static void ask_where_puts_are_rare(void) {
    mq_gil_loan_join(&loan);
    mq_gil_ask();
    expect(!mq_gil_is_lent(), "no loan before there is a pace");
    for (int i = 0; i < 20; i++) {
        ask_after(RARE);
        expect(!mq_gil_is_lent(), "no loan where puts are rare");
    }
    int lent = 0;
    for (int i = 0; i < 1000 && !lent; i++) {
        ask_after(MANY);
        lent = mq_gil_is_lent();
        mq_gil_gave();
    }
    expect(lent, "a loan where they are not");
    mq_gil_loan_leave();
}

/* As a borrower that keeps its loan so long. */
static const struct timespec long_turn = {0, 3000000};
enum { LENT = 2 };

static void *end_long_turn(void *unused) {
    (void)unused;
    nanosleep(&long_turn, NULL);
    mq_store32(&loan.state, 0);
    return NULL;
}

static int64_t own_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Somebody else lends at once. */
static void ask_behind_another(void) {
    int lent = 0;
    mq_gil_loan_join(&loan);
    for (int i = 0; i < 200 && !lent; i++) {
        const struct timespec while_puts_came = {0, 2000000};
        pthread_t other;
        nanosleep(&while_puts_came, NULL);
        mq_add64(&put_count, MANY);
        mq_store32(&loan.state, LENT);
        if (pthread_create(&other, NULL, end_long_turn, NULL) != 0) break;
        int64_t began = own_ns();
        mq_gil_ask();
        expect(own_ns() - began < long_turn.tv_nsec / 2, "asleep behind another borrower");
        lent = mq_gil_is_lent();
        mq_gil_gave();
        pthread_join(other, NULL);
    }
    expect(lent, "a loan behind a long one");
    mq_gil_loan_leave();
}

/* Who used up its turn on its processor would lose it with the GIL; somebody else lends at once. */
static void ask_after_work(void) {
    struct rusage before, after;
    const struct timespec while_puts_came = {0, 2000000};
    mq_gil_loan_join(&loan);
    nanosleep(&while_puts_came, NULL);
    mq_add64(&put_count, MANY);
    mq_store64(&loan.ended_ns, 0);
    getrusage(RUSAGE_THREAD, &before);
    mq_gil_ask();
    getrusage(RUSAGE_THREAD, &after);
    expect(after.ru_nvcsw > before.ru_nvcsw, "asleep before it asks");
    mq_gil_gave();
    mq_gil_loan_leave();
}

int main(void) {
    pthread_t threads[BORROWERS], lender;
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 && CPU_COUNT(&allowed) < 2) {
        mq_gil_loan_join(&loan);
        ask_after(MANY);
        expect(!mq_gil_is_lent() && flags == 0, "no loan on one processor");
        return wrong != 0;
    }
    ask_in_vain();
    if (pthread_create(&lender, NULL, lend, NULL) != 0) return 2;
    ask_where_puts_are_rare();
    ask_behind_another();
    ask_after_work();
    mq_store32(&running, 0);
    pthread_join(lender, NULL);
    mq_store32(&running, BORROWERS);
    waited_for = 0;
    for (int i = 0; i < BORROWERS; i++)
        if (pthread_create(&threads[i], NULL, borrow, NULL) != 0) return 2;
    while (mq_load32(&running) != 0) {
        mq_add64(&put_count, 1);
        lend_if_asked();
    }
    for (int i = 0; i < BORROWERS; i++) pthread_join(threads[i], NULL);
    expect(loan.state == 0 && !mq_gil_is_out(&loan), "nothing lent at the end");
    expect(waited_for > 0, "a lender that waits");
    return wrong != 0;
}
