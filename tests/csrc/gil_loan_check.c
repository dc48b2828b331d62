/* Loans of gil_loan.h between one thread that "puts" and two that borrow; a plain flag stands for the GIL. While a loan lasts the lender is out,
 * each is given back before the next, and who asks where nobody puts, or where nobody lends, goes on. */
#include "gil_loan.h"

#include <pthread.h>
#include <stdio.h>

enum { BORROWERS = 2, LOANS = 200, BIT = 32, PAUSES = 2000 };

static uint32_t flags, running = BORROWERS, inside;
static int64_t put_count;
static mq_gil_loan loan = {.bit = BIT, .flags = &flags, .puts = &put_count};
static uint32_t wrong;

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

static void ask_in_vain(void) {
    mq_gil_ask();
    expect(!mq_gil_is_lent() && loan.state == 0, "no loan for a thread that did not join");
    mq_gil_loan_join(&loan);
    mq_gil_ask();
    expect(!mq_gil_is_lent() && loan.state == 0, "no loan where nobody puts");
    mq_store64(&put_count, 1);
    mq_gil_ask();
    expect(!mq_gil_is_lent() && loan.state == 0 && flags == 0, "no loan where nobody lends, and no question left");
    mq_gil_loan_leave();
    mq_or32(&flags, BIT);
    expect(!mq_gil_is_wanted(&loan) && flags == 0, "a question that nobody asks is forgotten");
}

int main(void) {
    pthread_t threads[BORROWERS];
    ask_in_vain();
    for (int i = 0; i < BORROWERS; i++)
        if (pthread_create(&threads[i], NULL, borrow, NULL) != 0) return 2;
    while (mq_load32(&running) != 0) {
        mq_add64(&put_count, 1);
        if (mq_load32(&flags) & BIT && mq_gil_is_wanted(&loan)) mq_gil_lend(&loan);
    }
    for (int i = 0; i < BORROWERS; i++) pthread_join(threads[i], NULL);
    expect(loan.state == 0, "nothing lent at the end");
    return wrong != 0;
}
