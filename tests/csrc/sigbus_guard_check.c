/* The guard against lost pages by itself: real faults, and the handlers and failures that no test of the store can bring about.
 *
 * Room: tests. Linked with -Wl,--wrap for sigaction, syscall, calloc, raise and sched_yield: scripted here to fail or to be
 * counted. A fault of somebody else must end the process; here the call that would let it is only counted. It must never leave
 * anything outside of the directory it is given. A wrong answer ends it with its line.
 */
#define _GNU_SOURCE
#include "sigbus_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WANT(condition)                                                                                                \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                                    \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

enum { PAGE = 4096, PAGES = 8 };

/* --- what the library answers -------------------------------------------------------------------------------------------- */

static int sigactions_fail, callocs_fail, maps_fail, hold_maps;
static int defaults, raised; /* calls that would end the process, */
static int delivering;       /* in a handler */
static int in_map, yields, hold_beyond;

int __real_sigaction(int number, const struct sigaction *act, struct sigaction *old);
long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
void *__real_calloc(size_t n, size_t size);
int __real_sched_yield(void);

int __wrap_sigaction(int number, const struct sigaction *act, struct sigaction *old) {
    if (sigactions_fail > 0) {
        sigactions_fail--;
        return -1;
    }
    if (delivering && act != NULL && !(act->sa_flags & SA_SIGINFO) && act->sa_handler == SIG_DFL) {
        defaults++;
        return 0;
    }
    return __real_sigaction(number, act, old);
}

long __wrap_syscall(long number, ...) {
    long a[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) a[i] = va_arg(more, long);
    va_end(more);
    if (number == SYS_mmap) {
        __atomic_store_n(&in_map, 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&hold_maps, __ATOMIC_SEQ_CST) && !__atomic_load_n(&yields, __ATOMIC_SEQ_CST)) {
        }
        while (__atomic_load_n(&hold_beyond, __ATOMIC_SEQ_CST)) {
        }
        if (maps_fail > 0) {
            maps_fail--;
            return -1;
        }
    }
    return __real_syscall(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

void *__wrap_calloc(size_t n, size_t size) {
    if (callocs_fail > 0) {
        callocs_fail--;
        return NULL;
    }
    return __real_calloc(n, size);
}

int __wrap_raise(int number) {
    WANT(number == SIGBUS);
    return raised++, 0;
}

int __wrap_sched_yield(void) {
    __atomic_add_fetch(&yields, 1, __ATOMIC_SEQ_CST);
    return __real_sched_yield();
}

/* --- files that lose their pages ------------------------------------------------------------------------------------------ */

static volatile uint8_t *lost(const char *name) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    WANT(fd >= 0 && ftruncate(fd, PAGES * PAGE) == 0);
    void *map = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    WANT(map != MAP_FAILED);
    memset(map, 1, PAGES * PAGE);
    WANT(ftruncate(fd, 0) == 0 && close(fd) == 0 && unlink(name) == 0);
    return map;
}

static int is_default(void) {
    struct sigaction now;
    WANT(__real_sigaction(SIGBUS, NULL, &now) == 0);
    return !(now.sa_flags & SA_SIGINFO) && now.sa_handler == SIG_DFL;
}

static void installing(void) {
    mq_damage damage = {0, 0};
    static uint8_t memory[PAGE];
    callocs_fail = 1;
    WANT(mq_guard_add(memory, PAGE, "none", &damage, NULL) == NULL && mq_guard_count() == 0 && is_default());
    sigactions_fail = 1;
    mq_guarded *guarded = mq_guard_add(memory, PAGE, "m", &damage, NULL); /* no worse than before */
    WANT(guarded != NULL && is_default());
    mq_guarded *more = mq_guard_add(memory, PAGE, "m", &damage, NULL);
    WANT(!is_default());
    mq_guard_remove(more);
    WANT(!is_default());
    mq_guard_remove(guarded);
    WANT(is_default());
}

static void faults(void) {
    uint32_t flags = 0, before = mq_guard_hits();
    int error = 0;
    mq_damage damage = {0, 0}, other = {0, 0};
    static mq_latch latch, far;
    latch = (mq_latch){.flags = &flags, .bits = 4, .error = &error};
    volatile uint8_t *map = lost("f");
    mq_guarded *guarded = mq_guard_add((void *)map, PAGES * PAGE, "the/file", &damage, NULL);
    WANT(guarded != NULL && mq_guard_count() == 1);
    WANT(map[PAGE + 7] == 0 && damage.hits == 1 && damage.position == PAGE + 7 && flags == 0);
    map[PAGE + 8] = 5; /* the page is there now: nobody will ever see it */
    WANT(damage.hits == 1);
    mq_guard_watch(guarded, &latch);
    mq_guard_watch(guarded, &latch);
    map[2 * PAGE] = 5;
    WANT(damage.hits == 2 && damage.position == PAGE + 7 && flags == 4 && error == -EIO && latch.published);
    WANT(latch.position == 2 * PAGE && strcmp(latch.path, "the/file") == 0);
    error = -ENOSPC;
    map[3 * PAGE] = 5; /* the first one is told, and an error that is there stays */
    WANT(latch.position == 2 * PAGE && error == -ENOSPC);
    flags = 0;
    mq_latch_cut(&latch);
    map[4 * PAGE] = 5;
    WANT(flags == 0 && damage.hits == 4);

    /* a name longer than the latch keeps; and slots of more than one block, this one's in the older */
    static uint8_t memory[600];
    static mq_guarded *many[600];
    char name[3000];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    volatile uint8_t *second = lost("s");
    mq_guarded *older = mq_guard_add((void *)second, PAGES * PAGE, name, &other, NULL);
    for (int i = 0; i < 600; i++) WANT((many[i] = mq_guard_add(memory + i, 1, "m", &damage, NULL)) != NULL);
    WANT(mq_guard_count() == 602);
    far = (mq_latch){.flags = &flags, .bits = 8, .error = &error};
    mq_guard_watch(older, &far);
    WANT(second[PAGES * PAGE - 1] == 0 && other.hits == 1 && flags == 8);
    WANT(strlen(far.path) == sizeof far.path - 1 && memcmp(far.path, name, sizeof far.path - 1) == 0);
    for (int i = 0; i < 600; i++) mq_guard_remove(many[i]);

    /* no map entry left for one page: one for all the rest of the file */
    maps_fail = 1;
    WANT(second[PAGE] == 0 && other.hits == 2);
    WANT(second[5 * PAGE] == 0 && other.hits == 2);
    WANT(mq_guard_hits() - before == damage.hits + other.hits);
    mq_guard_remove(older);
    mq_guard_remove(guarded);
    WANT(mq_guard_count() == 0);
}

static volatile uint8_t *met;
static void *meet(void *out) {
    *(int *)out = met[0];
    return NULL;
}

/* Whoever takes something away from a handler waits until it has left. */
static void a_handler_under_way(void) {
    uint32_t flags = 0;
    int error = 0, seen = 7;
    mq_damage damage = {0, 0};
    static mq_latch latch;
    latch = (mq_latch){.flags = &flags, .bits = 1, .error = &error};
    met = lost("h");
    mq_guarded *guarded = mq_guard_add((void *)met, PAGES * PAGE, "h", &damage, &latch);
    in_map = yields = 0;
    hold_maps = 1;
    pthread_t thread;
    WANT(pthread_create(&thread, NULL, meet, &seen) == 0);
    while (!__atomic_load_n(&in_map, __ATOMIC_SEQ_CST)) {
    }
    mq_latch_cut(&latch);
    WANT(yields > 0 && flags == 1);
    WANT(pthread_join(thread, NULL) == 0 && seen == 0);
    hold_maps = 0;
    mq_guard_remove(guarded);
}

/* Nobody waits for ever for one that does not leave; what it looks at is not given to another mapping. */
static void a_handler_that_stays(void) {
    int seen = 7;
    mq_damage damage = {0, 0}, other = {0, 0};
    met = lost("s");
    mq_guarded *guarded = mq_guard_add((void *)met, PAGES * PAGE, "s", &damage, NULL);
    in_map = 0;
    hold_beyond = 1;
    pthread_t thread;
    WANT(pthread_create(&thread, NULL, meet, &seen) == 0);
    while (!__atomic_load_n(&in_map, __ATOMIC_SEQ_CST)) {
    }
    mq_guard_remove(guarded);
    static uint8_t elsewhere[PAGE];
    mq_guarded *next = mq_guard_add(elsewhere, PAGE, "n", &other, NULL);
    WANT(next != NULL && next != guarded);
    __atomic_store_n(&hold_beyond, 0, __ATOMIC_SEQ_CST);
    WANT(pthread_join(thread, NULL) == 0 && seen == 0 && damage.hits == 1);
    mq_guard_remove(next);
    WANT(mq_guard_count() == 0);
}

/* A mapping whose owner refused the guard: no slot, no handler. */
static void refused(void) {
    struct sigaction now;
    mq_latch latch = {.flags = NULL};
    mq_guard_watch(&mq_guard_refused, &latch);
    mq_guard_remove(&mq_guard_refused);
    WANT(mq_guard_count() == 0 && __real_sigaction(SIGBUS, NULL, &now) == 0 && now.sa_handler == SIG_DFL);
}

/* --- other people's faults -------------------------------------------------------------------------------------------------- */

static int plain_calls, full_calls, another_calls;
static void plain(int number) { plain_calls += number == SIGBUS; }
static void full(int number, siginfo_t *info, void *context) { full_calls += number == SIGBUS && info && !context; }
static void another(int number, siginfo_t *info, void *context) {
    another_calls += number == SIGBUS && info && !context;
}

static uint8_t memory[PAGE];
static mq_damage damage;
static mq_guarded *guarded;

static void put_handler(void (*simple)(int), void (*more)(int, siginfo_t *, void *)) {
    struct sigaction act;
    memset(&act, 0, sizeof act);
    if (more != NULL)
        act.sa_sigaction = more, act.sa_flags = SA_SIGINFO;
    else
        act.sa_handler = simple;
    WANT(__real_sigaction(SIGBUS, &act, NULL) == 0);
}

/* This handler is there, and ours over it. */
static void take_place(void (*simple)(int), void (*more)(int, siginfo_t *, void *)) {
    if (guarded != NULL) mq_guard_remove(guarded);
    put_handler(simple, more);
    guarded = mq_guard_add(memory, PAGE, "m", &damage, NULL);
}

static void deliver(int code, int pid) {
    struct sigaction now;
    siginfo_t info;
    memset(&info, 0, sizeof info);
    WANT(__real_sigaction(SIGBUS, NULL, &now) == 0 && now.sa_flags & SA_SIGINFO);
    info.si_code = code;
    if (code > 0)
        info.si_addr = &info; /* nobody's mapping */
    else
        info.si_pid = pid;
    delivering = 1;
    now.sa_sigaction(SIGBUS, &info, NULL);
    delivering = 0;
}

static void strangers(void) {
    /* nobody was there before us: the default, at the next try of the instruction or at our return */
    take_place(SIG_DFL, NULL);
    deliver(BUS_ADRERR, 0);
    WANT(defaults == 1 && raised == 0);
    deliver(BUS_ADRALN, 0);
    WANT(defaults == 2 && raised == 0);
    deliver(SI_USER, 1);
    WANT(defaults == 3 && raised == 1);

    take_place(plain, NULL);
    deliver(BUS_ADRERR, 0);
    deliver(SI_TKILL, getpid());
    deliver(SI_USER, getpid());
    WANT(plain_calls == 3 && defaults == 3);

    take_place(NULL, full);
    deliver(BUS_ADRERR, 0);
    WANT(full_calls == 1 && plain_calls == 3);

    take_place(SIG_IGN, NULL);
    deliver(SI_USER, 1);
    WANT(defaults == 3 && raised == 1);
    deliver(BUS_ADRERR, 0); /* a fault cannot be ignored */
    WANT(defaults == 4 && raised == 1);

    /* a page of ours, and neither one page nor the rest can be put there */
    take_place(NULL, full);
    struct sigaction now;
    siginfo_t info;
    memset(&info, 0, sizeof info);
    WANT(__real_sigaction(SIGBUS, NULL, &now) == 0);
    info.si_code = BUS_ADRERR;
    info.si_addr = memory + 9;
    maps_fail = 2;
    now.sa_sigaction(SIGBUS, &info, NULL);
    WANT(maps_fail == 0 && damage.hits == 1 && full_calls == 2);

    /* whoever puts a handler over ours keeps it: while ours is below, at the last mapping, and at the next one */
    put_handler(NULL, another);
    mq_guarded *more = mq_guard_add(memory, PAGE, "m", &damage, NULL);
    deliver(BUS_ADRERR, 0);
    WANT(another_calls == 1 && full_calls == 2);
    mq_guard_remove(more);
    mq_guard_remove(guarded);
    deliver(BUS_ADRERR, 0);
    WANT(another_calls == 2);
    guarded = mq_guard_add(memory, PAGE, "m", &damage, NULL);
    deliver(BUS_ADRERR, 0);
    WANT(another_calls == 3 && full_calls == 2);
    maps_fail = 2;
    now.sa_sigaction(SIGBUS, &info, NULL); /* it calls ours for what it does not want */
    WANT(damage.hits == 2 && full_calls == 3);
    WANT(__real_sigaction(SIGBUS, &now, NULL) == 0); /* and has left */
    mq_guard_remove(guarded);
    WANT(__real_sigaction(SIGBUS, NULL, &now) == 0 && now.sa_sigaction == full);
}

static void children(void) {
    mq_damage damage = {0, 0};
    volatile uint8_t *map = lost("c");
    mq_guarded *guarded = mq_guard_add((void *)map, PAGES * PAGE, "c", &damage, NULL);
    pid_t child = fork();
    if (child == 0) {
        int found = map[0] == 0 && damage.hits == 1;
        mq_guard_remove(guarded);
        _exit(found ? 0 : 1);
    }
    int status = 1;
    WANT(waitpid(child, &status, 0) == child && status == 0 && damage.hits == 0);
    mq_guard_remove(guarded);
}

int main(int count, char **arguments) {
    WANT(count == 2 && chdir(arguments[1]) == 0);
    installing();
    faults();
    a_handler_under_way();
    a_handler_that_stays();
    refused();
    children();
    strangers();
    return 0;
}
