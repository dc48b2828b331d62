/* The lock of atomics.h: threads that add to one number, some of them holding the lock for so long that the others
 * sleep. Nobody is left asleep, and no addition is lost. */
#include "atomics.h"

#include <pthread.h>
#include <stdio.h>
#include <time.h>

enum { THREADS = 4, TIMES = 20000, SLOW_EVERY = 500, SLOW_NS = 300000 };

static uint32_t lock_word;
static int64_t number;

static void *add(void *unused) {
    (void)unused;
    const struct timespec slow = {0, SLOW_NS};
    for (int i = 1; i <= TIMES; i++) {
        mq_lock(&lock_word);
        int64_t seen = *(volatile int64_t *)&number;
        if (i % SLOW_EVERY == 0) nanosleep(&slow, NULL);
        *(volatile int64_t *)&number = seen + 1;
        mq_unlock(&lock_word);
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, add, NULL) != 0) return 2;
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    if (number != (int64_t)THREADS * TIMES || lock_word != 0) {
        printf("expected %d, free; found %lld, %u\n", THREADS * TIMES, (long long)number, lock_word);
        return 1;
    }
    return 0;
}
