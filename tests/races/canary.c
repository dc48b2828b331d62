/* A race on purpose: a thread sanitizer that says nothing of it would say nothing of the engine either. */
static volatile long counter;

void race(void) {
    for (long i = 0; i < 20000000; i++) counter++;
}
