/* A loan of the interpreter's lock (GIL): how a thread of the store gets it from a thread that puts without a pause, and without a sleep of
 * either. Never includes Python.h: the callers give and take the GIL themselves.
 *
 * CPython lets who wants the GIL sleep until its holder has been told, 5 ms later, and both are woken one after the other: a put waits for two
 * wake-ups, each 20 to 50 us on a virtual machine and milliseconds where the woken one stands behind work of the kernel. So a borrower asks
 * while it is awake and has no GIL yet; the next put gives the GIL back and looks, awake as well, until the borrower has given it back in turn.
 *
 * It is a courtesy and no lock: whoever waits longer than the bounds below goes and takes the GIL as ever. */
#ifndef MQ_GIL_LOAN_H
#define MQ_GIL_LOAN_H

#include "atomics.h"

/* What one log's borrowers and its putting threads share. That somebody asks is a bit of a word that each put loads anyway. */
typedef struct mq_gil_loan {
    uint32_t state; /* nobody, asked, lent: of gil_loan.c */
    uint32_t bit;   /* in *flags: somebody asks */
    uint32_t *flags;
    int64_t ended_ns;    /* when the last one was given back: puts that are late by then come first */
    const int64_t *puts; /* grows with each put: whoever asks where puts are rare would wait for nothing */
} mq_gil_loan;

/* The calling thread is a borrower of this loan until mq_gil_loan_leave, unless it has one processor alone; for any other thread the next two
 * calls do nothing. */
void mq_gil_loan_join(mq_gil_loan *loan);
void mq_gil_loan_leave(void);

/* A borrower: before it takes the GIL, after it gave it back. Both without the GIL. Where puts are rarer than one in 100 us it does not ask:
 * the GIL is free then, or its holder does something else. */
void mq_gil_ask(void);
void mq_gil_gave(void);

/* A borrower with the GIL: was it lent? Then somebody is awake and waits for it. */
int mq_gil_is_lent(void);

/* Does somebody have it, for whom a put waits awake? Prefault begins no piece then: the borrower may want its processor. */
int mq_gil_is_out(const mq_gil_loan *loan);

/* A put that saw the bit. With the GIL: is there somebody to lend it to? Then it gives it back and calls mq_gil_lend, which returns when the
 * borrower has given it back, or takes too long. */
int mq_gil_is_wanted(mq_gil_loan *loan);
void mq_gil_lend(mq_gil_loan *loan);

#endif
