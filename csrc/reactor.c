/* Reactors; see reactor.h. Linux only: built on no other system. */
#define _GNU_SOURCE
#include "reactor.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    EVENTS = 64,
    READ_BYTES = 128 * 1024, /* of one connection, until the others have their turn */
    OUT_BYTES = 256 * 1024,  /* answers of a turn */
    PREFIX = 8,
    SPARE_BYTES = 4096,
};

/* Flags of a connection, under its lock. */
enum {
    PAUSED = 1, /* by the loop */
    STALLED = 2,
    CLOSING = 4,
    AT_ONCE = 8,
    BROKEN = 16,
    GOT_EOF = 32,
    TOLD_EOF = 64,
    WANTS_DRAINED = 128,
    DRAINED = 256,
    ENDED = 512,
    KICKED = 1024, /* report writable, so that the reactor looks at the connection */
};

typedef struct reactor reactor;

struct mq_conn {
    pthread_mutex_t lock;
    reactor *owner;
    void *user;
    int fd;
    unsigned flags;
    uint32_t events; /* that epoll reports */
    int refs;
    /* under the lock */
    uint8_t *out, *inbox;
    size_t out_at, out_end, out_room, inbox_bytes, inbox_room;
    int64_t unsent; /* out_end - out_at, read without the lock */
    uint64_t taken, acked;
    int64_t active_ns;
    /* of the reactor */
    uint8_t *in;
    size_t have, room;
    uint64_t pass; /* bytes to hand over as they come; UINT64_MAX: all */
    uint64_t handed, ordered;
    int has_begun;
    mq_conn *before, *after; /* connections of the reactor, under its lock */
    /* under the lock of the group */
    mq_conn *next_ready;
    int is_ready;
    int host_bytes;
    uint8_t host[20];
};

struct reactor {
    mq_turn turn; /* first: the service gets its address */
    mq_group *group;
    int epoll, wake;
    int idle;        /* in epoll_wait */
    uint32_t rounds; /* begun */
    int stop, wait_ms;
    pthread_mutex_t lock;
    mq_conn *conns;
    int64_t conn_count;
    mq_reactor_counts counts;
    size_t out_bytes;
    uint8_t *in, *out;
};

struct mq_group {
    mq_reactor_limits limits;
    mq_service *service;
    int64_t buffered;
    int signal;
    pthread_mutex_t lock; /* of the list */
    mq_conn *first, *last;
    reactor *reactors;
};

static void fail(const char *what) {
    fprintf(stderr, "mqfast: a reactor thread cannot continue: %s: %s\n", what, strerror(errno));
    abort();
}

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void count(int64_t *counter) { __atomic_store_n(counter, *counter + 1, __ATOMIC_RELAXED); }

static void signal_fd(int fd) {
    uint64_t one = 1;
    while (write(fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
}

static uint32_t big32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* --- the list of connections that have something for the loop --- */

static void make_ready(mq_conn *c) {
    mq_group *g = c->owner->group;
    int was_empty;
    pthread_mutex_lock(&g->lock);
    was_empty = g->first == NULL;
    if (!c->is_ready) {
        c->is_ready = 1;
        c->next_ready = NULL;
        if (was_empty)
            g->first = c;
        else
            g->last->next_ready = c;
        g->last = c;
    }
    pthread_mutex_unlock(&g->lock);
    if (was_empty) signal_fd(g->signal);
}

static int is_listed(mq_conn *c) {
    mq_group *g = c->owner->group;
    int listed;
    pthread_mutex_lock(&g->lock);
    listed = c->is_ready;
    pthread_mutex_unlock(&g->lock);
    return listed;
}

mq_conn *mq_take_ready(mq_group *g) {
    mq_conn *c;
    pthread_mutex_lock(&g->lock);
    c = g->first;
    if (c != NULL) {
        g->first = c->next_ready;
        c->is_ready = 0;
    }
    pthread_mutex_unlock(&g->lock);
    return c;
}

void mq_group_clear_signal(mq_group *g) {
    uint64_t n;
    while (read(g->signal, &n, sizeof n) < 0 && errno == EINTR) {
    }
}

/* --- under the lock of the connection --- */

static void set_events(mq_conn *c) {
    struct epoll_event event;
    uint32_t wanted = 0;
    if (c->fd < 0) return;
    if (!(c->flags & (PAUSED | STALLED | CLOSING | GOT_EOF))) wanted |= EPOLLIN;
    if (c->unsent || c->flags & KICKED) wanted |= EPOLLOUT;
    if (wanted == c->events) return;
    memset(&event, 0, sizeof event);
    event.events = wanted;
    event.data.ptr = c;
    if (epoll_ctl(c->owner->epoll, EPOLL_CTL_MOD, c->fd, &event) < 0) fail("epoll_ctl");
    c->events = wanted;
}

static void kick(mq_conn *c) {
    c->flags |= KICKED;
    set_events(c);
}

static void break_off(mq_conn *c) {
    c->flags |= BROKEN;
    kick(c);
}

static void keep(mq_conn *c, const uint8_t *at, size_t bytes) {
    size_t used = c->out_end - c->out_at;
    if (c->out_end + bytes > c->out_room) {
        if (used) memmove(c->out, c->out + c->out_at, used);
        c->out_at = 0;
        c->out_end = used;
        if (used + bytes > c->out_room) {
            size_t room = (used + bytes) * 2 < SPARE_BYTES ? SPARE_BYTES : (used + bytes) * 2;
            uint8_t *larger = realloc(c->out, room);
            if (larger == NULL) {
                break_off(c);
                return;
            }
            c->out = larger;
            c->out_room = room;
        }
    }
    memcpy(c->out + c->out_end, at, bytes);
    c->out_end += bytes;
    __atomic_store_n(&c->unsent, (int64_t)(c->out_end - c->out_at), __ATOMIC_RELAXED);
}

static void send_kept(mq_conn *c) {
    ssize_t n;
    while (c->out_at < c->out_end) {
        n = send(c->fd, c->out + c->out_at, c->out_end - c->out_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) c->flags |= BROKEN;
            break;
        }
        c->out_at += (size_t)n;
    }
    if (c->out_at == c->out_end) {
        c->out_at = c->out_end = 0;
        if (c->out_room > SPARE_BYTES) {
            free(c->out);
            c->out = NULL;
            c->out_room = 0;
        }
    }
    __atomic_store_n(&c->unsent, (int64_t)(c->out_end - c->out_at), __ATOMIC_RELAXED);
}

/* --- the loop's side --- */

int64_t mq_conn_send(mq_conn *c, const struct iovec *parts, int n) {
    struct msghdr message;
    ssize_t sent = 0;
    size_t skip;
    int64_t unsent;
    int i;
    pthread_mutex_lock(&c->lock);
    if (c->fd < 0 || c->flags & (BROKEN | AT_ONCE)) {
        pthread_mutex_unlock(&c->lock);
        return -1;
    }
    if (c->unsent == 0) {
        memset(&message, 0, sizeof message);
        message.msg_iov = (struct iovec *)parts;
        message.msg_iovlen = (size_t)n;
        do sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        while (sent < 0 && errno == EINTR);
        if (sent < 0) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                break_off(c);
                pthread_mutex_unlock(&c->lock);
                return -1;
            }
            sent = 0;
        }
    }
    skip = (size_t)sent;
    for (i = 0; i < n; i++) {
        if (skip >= parts[i].iov_len) {
            skip -= parts[i].iov_len;
            continue;
        }
        keep(c, (const uint8_t *)parts[i].iov_base + skip, parts[i].iov_len - skip);
        skip = 0;
    }
    unsent = c->unsent;
    set_events(c);
    pthread_mutex_unlock(&c->lock);
    return unsent;
}

size_t mq_conn_take(mq_conn *c, uint8_t **data, int *got) {
    size_t bytes;
    pthread_mutex_lock(&c->lock);
    *data = c->inbox;
    bytes = c->inbox_bytes;
    c->inbox = NULL;
    c->inbox_bytes = c->inbox_room = 0;
    c->taken += bytes;
    *got = 0;
    if (c->flags & GOT_EOF && !(c->flags & TOLD_EOF)) {
        *got |= MQ_GOT_EOF;
        c->flags |= TOLD_EOF;
    }
    if (c->flags & DRAINED) {
        *got |= MQ_GOT_DRAINED;
        c->flags &= ~(unsigned)DRAINED;
    }
    /* the end is told once, by the last entry of the list */
    if (c->flags & ENDED && !is_listed(c)) *got |= MQ_GOT_END;
    if (c->flags & STALLED) kick(c);
    pthread_mutex_unlock(&c->lock);
    return bytes;
}

void mq_conn_ack(mq_conn *c) {
    pthread_mutex_lock(&c->lock);
    c->acked = c->taken;
    if (c->flags & STALLED) kick(c);
    pthread_mutex_unlock(&c->lock);
}

void mq_conn_pause(mq_conn *c, int paused) {
    pthread_mutex_lock(&c->lock);
    if (paused)
        c->flags |= PAUSED;
    else
        c->flags = (c->flags & ~(unsigned)PAUSED) | KICKED; /* bytes may wait behind a frame */
    set_events(c);
    pthread_mutex_unlock(&c->lock);
}

void mq_conn_want_drained(mq_conn *c) {
    int is_low;
    pthread_mutex_lock(&c->lock);
    is_low = c->unsent <= c->owner->group->limits.low;
    c->flags |= is_low ? DRAINED : WANTS_DRAINED;
    pthread_mutex_unlock(&c->lock);
    if (is_low) make_ready(c);
}

void mq_conn_close(mq_conn *c, int at_once) {
    pthread_mutex_lock(&c->lock);
    c->flags |= CLOSING | (at_once ? AT_ONCE : 0);
    kick(c);
    if (at_once && c->fd >= 0) shutdown(c->fd, SHUT_RDWR); /* else a full socket is not reported */
    pthread_mutex_unlock(&c->lock);
}

int64_t mq_conn_unsent(const mq_conn *c) { return __atomic_load_n(&c->unsent, __ATOMIC_RELAXED); }
int64_t mq_conn_active_ns(const mq_conn *c) { return __atomic_load_n(&c->active_ns, __ATOMIC_RELAXED); }
void *mq_conn_user(const mq_conn *c) { return c->user; }
int mq_conn_fd(const mq_conn *c) { return __atomic_load_n(&c->fd, __ATOMIC_RELAXED); }
void mq_conn_hold(mq_conn *c) { __atomic_add_fetch(&c->refs, 1, __ATOMIC_RELAXED); }

int mq_conn_host(const mq_conn *c, const uint8_t **host) {
    *host = c->host;
    return c->host_bytes;
}

void mq_conn_release(mq_conn *c) {
    if (__atomic_sub_fetch(&c->refs, 1, __ATOMIC_ACQ_REL)) return;
    pthread_mutex_destroy(&c->lock);
    free(c->out);
    free(c->inbox);
    free(c->in);
    free(c);
}

mq_conn *mq_conn_adopt(mq_group *g, int fd, void *user, const uint8_t *host, int host_bytes) {
    struct epoll_event event;
    reactor *r = &g->reactors[0];
    mq_conn *c = calloc(1, sizeof *c);
    int i;
    if (c == NULL) return NULL;
    for (i = 1; i < g->limits.threads; i++) {
        reactor *other = &g->reactors[i];
        if (__atomic_load_n(&other->conn_count, __ATOMIC_RELAXED) < __atomic_load_n(&r->conn_count, __ATOMIC_RELAXED))
            r = other;
    }
    pthread_mutex_init(&c->lock, NULL);
    c->owner = r;
    c->user = user;
    c->fd = fd;
    c->refs = 2; /* of the reactor and of the loop */
    c->active_ns = clock_ns();
    c->host_bytes = host_bytes;
    if (host_bytes) memcpy(c->host, host, (size_t)host_bytes);
    c->events = EPOLLIN;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    event.data.ptr = c;
    pthread_mutex_lock(&r->lock);
    c->after = r->conns;
    if (c->after != NULL) c->after->before = c;
    r->conns = c;
    __atomic_add_fetch(&r->conn_count, 1, __ATOMIC_RELAXED);
    if (epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &event) < 0) {
        int error = errno;
        r->conns = c->after;
        if (c->after != NULL) c->after->before = NULL;
        __atomic_sub_fetch(&r->conn_count, 1, __ATOMIC_RELAXED);
        pthread_mutex_unlock(&r->lock);
        c->refs = 1;
        mq_conn_release(c);
        errno = error;
        return NULL;
    }
    pthread_mutex_unlock(&r->lock);
    return c;
}

/* --- the reactor's side --- */

static void end_conn(reactor *r, mq_conn *c) {
    mq_service *service = __atomic_load_n(&r->group->service, __ATOMIC_SEQ_CST);
    if (service != NULL) service->ended(service, &r->turn, c);
    pthread_mutex_lock(&r->lock);
    if (c->before != NULL)
        c->before->after = c->after;
    else
        r->conns = c->after;
    if (c->after != NULL) c->after->before = c->before;
    __atomic_sub_fetch(&r->conn_count, 1, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_lock(&c->lock);
    epoll_ctl(r->epoll, EPOLL_CTL_DEL, c->fd, NULL);
    close(c->fd);
    __atomic_store_n(&c->fd, -1, __ATOMIC_RELAXED);
    c->flags |= ENDED;
    free(c->out);
    c->out = NULL;
    c->out_at = c->out_end = c->out_room = 0;
    __atomic_store_n(&c->unsent, 0, __ATOMIC_RELAXED);
    make_ready(c); /* under the lock: who sees ENDED sees the entry, too */
    pthread_mutex_unlock(&c->lock);
    __atomic_sub_fetch(&r->group->buffered, (int64_t)c->room, __ATOMIC_RELAXED);
    free(c->in);
    c->in = NULL;
    c->have = c->room = 0;
    mq_conn_release(c);
}

/* Hand bytes over to the loop. Returns 0 if the connection must wait until the loop has taken them. */
static int hand_over(reactor *r, mq_conn *c, const uint8_t *at, size_t bytes) {
    int is_full;
    pthread_mutex_lock(&c->lock);
    if (c->inbox_bytes + bytes > c->inbox_room) {
        size_t room = (c->inbox_bytes + bytes) * 2;
        uint8_t *larger = realloc(c->inbox, room);
        if (larger == NULL) fail("hand-over");
        c->inbox = larger;
        c->inbox_room = room;
    }
    memcpy(c->inbox + c->inbox_bytes, at, bytes);
    c->inbox_bytes += bytes;
    c->handed += bytes;
    is_full = c->inbox_bytes > MQ_INBOX_MAX;
    if (is_full) c->flags |= STALLED;
    pthread_mutex_unlock(&c->lock);
    count(&r->counts.handed_over);
    if (is_full) count(&r->counts.inbox_full);
    make_ready(c);
    return !is_full;
}

static void flush_turn(reactor *r) {
    struct iovec all;
    if (r->out_bytes == 0) return;
    all.iov_base = r->out;
    all.iov_len = r->out_bytes;
    r->out_bytes = 0;
    mq_conn_send(r->turn.conn, &all, 1);
}

uint8_t *mq_turn_room(mq_turn *turn, size_t bytes) {
    reactor *r = (reactor *)turn;
    if (bytes > OUT_BYTES) return NULL;
    if (r->out_bytes + bytes > OUT_BYTES) flush_turn(r);
    return r->out + r->out_bytes;
}

void mq_turn_add(mq_turn *turn, size_t bytes) { ((reactor *)turn)->out_bytes += bytes; }

/* The stop of a connection until the loop has served what was handed over in order. Returns 0 if it has meanwhile. */
static int must_wait_for_loop(mq_conn *c) {
    int waits;
    pthread_mutex_lock(&c->lock);
    waits = c->acked < c->ordered;
    if (waits) c->flags |= STALLED;
    pthread_mutex_unlock(&c->lock);
    return waits;
}

static int must_wait_for_peer(mq_conn *c, int64_t high) {
    int waits;
    if (__atomic_load_n(&c->unsent, __ATOMIC_RELAXED) <= high) return 0;
    pthread_mutex_lock(&c->lock);
    waits = c->unsent > high;
    if (waits) c->flags |= STALLED;
    pthread_mutex_unlock(&c->lock);
    return waits;
}

static int is_after_other(mq_conn *c) {
    if (c->ordered == 0) return 0;
    pthread_mutex_lock(&c->lock);
    if (c->acked >= c->ordered) c->ordered = 0;
    pthread_mutex_unlock(&c->lock);
    return c->ordered != 0;
}

/* Does a connection that begins with this byte need the loop for all its bytes? TLS, or a PROXY preamble. */
static int is_for_loop(uint8_t first) { return first == 0x16 || first == 'P' || first == 0x0D; }

/* Serve and hand over frames. Returns the bytes that are done with; *need: the length of the incomplete frame behind
 * them, 0: the connection waits. *cut: end the connection. */
static size_t consume(reactor *r, mq_conn *c, const uint8_t *data, size_t bytes, size_t *need, int *cut) {
    const mq_reactor_limits *limits = &r->group->limits;
    mq_service *service = __atomic_load_n(&r->group->service, __ATOMIC_SEQ_CST);
    size_t used = 0;
    mq_frame frame;
    *need = PREFIX;
    r->turn.sent = 0;
    while (used < bytes) {
        const uint8_t *at = data + used;
        size_t left = bytes - used, size;
        int outcome = MQ_HAND_OVER_IN_ORDER; /* without a service: a later one must not overtake the loop */
        uint32_t total, header;
        if (c->pass) {
            size = c->pass < left ? (size_t)c->pass : left;
            if (c->pass != UINT64_MAX) c->pass -= size;
            used += size;
            if (!hand_over(r, c, at, size)) *need = 0;
            if (*need == 0) break;
            continue;
        }
        if (!c->has_begun) {
            c->has_begun = 1;
            if (is_for_loop(at[0])) c->pass = UINT64_MAX;
            if (c->pass) continue;
        }
        if (left < PREFIX) break;
        total = big32(at);
        header = big32(at + 4) & 0xFFFFFF;
        size = (size_t)total + 4;
        if (total < 4 || (int64_t)size > limits->frame_bytes_max || at[4] > 1 || header > total - 4 ||
            (int64_t)header > limits->header_bytes_max) {
            c->pass = UINT64_MAX; /* no frame: the loop says what is wrong */
            continue;
        }
        if (size > MQ_FRAME_SERVED_MAX ||
            (size > left && __atomic_load_n(&r->group->buffered, __ATOMIC_RELAXED) > limits->buffered_bytes_max)) {
            count(&r->counts.pieces);
            c->pass = size;
            /* a long frame may be of a kind that has an order */
            c->ordered = c->handed + size;
            continue;
        }
        if (size > left) {
            *need = size;
            break;
        }
        if (service != NULL) {
            frame.header = at + PREFIX;
            frame.header_bytes = (int32_t)header;
            frame.body = at + PREFIX + header;
            frame.body_bytes = (int32_t)(total - 4 - header);
            frame.codec = at[4];
            r->turn.is_after_other = is_after_other(c);
            outcome = service->serve(service, &r->turn, &frame);
        }
        if (outcome == MQ_SERVED) {
            count(&r->counts.served);
            used += size;
            if (must_wait_for_peer(c, limits->high)) {
                count(&r->counts.unread);
                *need = 0;
                break;
            }
            if (r->turn.sent > MQ_TURN_BYTES) { /* go on in the next round */
                pthread_mutex_lock(&c->lock);
                c->flags |= KICKED;
                pthread_mutex_unlock(&c->lock);
                *need = 0;
                break;
            }
        } else if (outcome == MQ_LATER) {
            if (!must_wait_for_loop(c)) continue;
            count(&r->counts.later);
            *need = 0;
            break;
        } else if (outcome == MQ_CUT) {
            *cut = 1;
            break;
        } else {
            used += size;
            if (outcome == MQ_HAND_OVER_IN_ORDER) c->ordered = c->handed + size;
            if (!hand_over(r, c, at, size)) {
                *need = 0;
                break;
            }
        }
    }
    flush_turn(r);
    return used;
}

static void give_room(reactor *r, mq_conn *c, size_t room) {
    uint8_t *larger;
    if (room <= c->room) return;
    larger = realloc(c->in, room);
    if (larger == NULL) fail("buffer of a connection");
    __atomic_add_fetch(&r->group->buffered, (int64_t)(room - c->room), __ATOMIC_RELAXED);
    c->in = larger;
    c->room = room;
}

/* Keep the bytes behind those that were used. */
static void keep_rest(reactor *r, mq_conn *c, const uint8_t *data, size_t bytes, size_t used, size_t need) {
    size_t rest = bytes - used;
    if (rest == 0) {
        __atomic_sub_fetch(&r->group->buffered, (int64_t)c->room, __ATOMIC_RELAXED);
        free(c->in);
        c->in = NULL;
        c->have = c->room = 0;
        return;
    }
    if (data == c->in) {
        if (used) memmove(c->in, c->in + used, rest);
        c->have = rest;
        give_room(r, c, need);
        return;
    }
    give_room(r, c, need > rest ? need : rest);
    memcpy(c->in, data + used, rest);
    c->have = rest;
}

/* Returns 0 if the connection must end. */
static int serve_kept(reactor *r, mq_conn *c) {
    size_t need, used;
    int cut = 0;
    if (c->have == 0) return 1;
    used = consume(r, c, c->in, c->have, &need, &cut);
    keep_rest(r, c, c->in, c->have, used, need);
    return !cut;
}

static int serve_socket(reactor *r, mq_conn *c) {
    size_t need, used, room = READ_BYTES;
    uint8_t *to = r->in;
    int cut = 0;
    ssize_t n;
    if (c->have) {
        if (c->room - c->have < SPARE_BYTES) give_room(r, c, c->have + SPARE_BYTES);
        to = c->in + c->have;
        room = c->room - c->have;
    }
    do n = recv(c->fd, to, room, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0) return errno == EAGAIN || errno == EWOULDBLOCK;
    if (n == 0) {
        pthread_mutex_lock(&c->lock);
        c->flags |= GOT_EOF;
        pthread_mutex_unlock(&c->lock);
        if (c->have) hand_over(r, c, c->in, c->have);
        c->have = 0;
        make_ready(c);
        return 1;
    }
    if (c->have) {
        c->have += (size_t)n;
        return serve_kept(r, c);
    }
    used = consume(r, c, to, (size_t)n, &need, &cut);
    keep_rest(r, c, to, (size_t)n, used, need);
    return !cut;
}

static void handle(reactor *r, mq_conn *c, uint32_t events) {
    unsigned flags;
    int must_end, is_drained = 0;
    r->turn.conn = c;
    __atomic_store_n(&c->active_ns, r->turn.now_ns, __ATOMIC_RELAXED);
    pthread_mutex_lock(&c->lock);
    if (c->unsent) send_kept(c);
    if (c->flags & WANTS_DRAINED && c->unsent <= r->group->limits.low) {
        c->flags = (c->flags & ~(unsigned)WANTS_DRAINED) | DRAINED;
        is_drained = 1;
    }
    c->flags &= ~(unsigned)KICKED;
    if (c->unsent <= r->group->limits.high && c->inbox_bytes <= MQ_INBOX_MAX) c->flags &= ~(unsigned)STALLED;
    flags = c->flags;
    must_end = flags & (BROKEN | AT_ONCE) || (flags & CLOSING && c->unsent == 0);
    pthread_mutex_unlock(&c->lock);
    if (is_drained) make_ready(c);
    if (!must_end && !(flags & (PAUSED | CLOSING | GOT_EOF | STALLED))) {
        must_end = !serve_kept(r, c);
        pthread_mutex_lock(&c->lock);
        flags = c->flags;
        pthread_mutex_unlock(&c->lock);
        if (!must_end && !(flags & (PAUSED | STALLED | KICKED)) && events & ~(uint32_t)EPOLLOUT)
            must_end = !serve_socket(r, c);
    } else if (events & (EPOLLHUP | EPOLLERR)) {
        must_end = 1;
    }
    if (must_end) {
        end_conn(r, c);
        return;
    }
    pthread_mutex_lock(&c->lock);
    set_events(c);
    pthread_mutex_unlock(&c->lock);
}

void mq_reactor_run(mq_group *g, int index) {
    reactor *r = &g->reactors[index];
    struct epoll_event events[EVENTS];
    mq_service *service;
    uint64_t ignored;
    int i, n;
    prctl(PR_SET_NAME, "mq-reactor", 0, 0, 0);
    while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
        __atomic_store_n(&r->idle, 1, __ATOMIC_SEQ_CST);
        n = epoll_wait(r->epoll, events, EVENTS, r->wait_ms);
        __atomic_store_n(&r->idle, 0, __ATOMIC_SEQ_CST);
        __atomic_store_n(&r->rounds, r->rounds + 1, __ATOMIC_SEQ_CST);
        if (n < 0 && errno != EINTR) fail("epoll_wait");
        r->turn.now_ns = clock_ns();
        for (i = 0; i < n; i++) {
            if (events[i].data.ptr != NULL)
                handle(r, events[i].data.ptr, events[i].events);
            else if (read(r->wake, &ignored, sizeof ignored) < 0 && errno != EAGAIN && errno != EINTR)
                fail("eventfd");
        }
        service = __atomic_load_n(&r->group->service, __ATOMIC_SEQ_CST);
        r->wait_ms = service == NULL ? -1 : service->after_round(service, &r->turn);
    }
    while (r->conns != NULL) end_conn(r, r->conns);
}

/* --- the group --- */

void mq_group_free(mq_group *g) {
    int i;
    for (i = 0; g->reactors != NULL && i < g->limits.threads; i++) {
        reactor *r = &g->reactors[i];
        if (r->epoll >= 0) close(r->epoll);
        if (r->wake >= 0) close(r->wake);
        free(r->in);
        free(r->out);
        pthread_mutex_destroy(&r->lock);
    }
    if (g->signal >= 0) close(g->signal);
    pthread_mutex_destroy(&g->lock);
    free(g->reactors);
    free(g);
}

static int prepare(mq_group *g, reactor *r, int index) {
    struct epoll_event event;
    r->group = g;
    r->turn.index = index;
    r->wait_ms = -1;
    r->in = malloc(READ_BYTES);
    r->out = malloc(OUT_BYTES);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (r->in == NULL || r->out == NULL || r->epoll < 0 || r->wake < 0) return 0;
    memset(&event, 0, sizeof event);
    event.events = EPOLLIN;
    return epoll_ctl(r->epoll, EPOLL_CTL_ADD, r->wake, &event) == 0;
}

mq_group *mq_group_new(const mq_reactor_limits *limits, int *signal_fd_out) {
    mq_group *g = calloc(1, sizeof *g);
    int i, error;
    if (g == NULL) return NULL;
    g->limits = *limits;
    pthread_mutex_init(&g->lock, NULL);
    g->signal = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    g->reactors = calloc((size_t)limits->threads, sizeof *g->reactors);
    for (i = 0; g->reactors != NULL && i < limits->threads; i++) {
        g->reactors[i].epoll = g->reactors[i].wake = -1;
        pthread_mutex_init(&g->reactors[i].lock, NULL);
    }
    if (g->signal < 0 || g->reactors == NULL) goto failed;
    for (i = 0; i < limits->threads; i++) {
        if (!prepare(g, &g->reactors[i], i)) goto failed;
    }
    *signal_fd_out = g->signal;
    return g;
failed:
    error = errno;
    mq_group_free(g);
    errno = error;
    return NULL;
}

void mq_group_quiesce(mq_group *g) {
    int i;
    for (i = 0; i < g->limits.threads; i++) {
        reactor *r = &g->reactors[i];
        uint32_t seen = __atomic_load_n(&r->rounds, __ATOMIC_SEQ_CST);
        struct timespec pause = {0, 20000};
        while (!__atomic_load_n(&r->idle, __ATOMIC_SEQ_CST) && __atomic_load_n(&r->rounds, __ATOMIC_SEQ_CST) == seen)
            nanosleep(&pause, NULL);
    }
}

void mq_group_set_service(mq_group *g, mq_service *service) {
    __atomic_store_n(&g->service, service, __ATOMIC_SEQ_CST);
    mq_group_quiesce(g);
}

void mq_group_wake(mq_group *g, int index) { signal_fd(g->reactors[index].wake); }

void mq_group_stop(mq_group *g) {
    int i;
    for (i = 0; i < g->limits.threads; i++) {
        __atomic_store_n(&g->reactors[i].stop, 1, __ATOMIC_RELEASE);
        signal_fd(g->reactors[i].wake);
    }
}

int64_t mq_group_buffered(const mq_group *g) { return __atomic_load_n(&g->buffered, __ATOMIC_RELAXED); }

void mq_group_counts(const mq_group *g, mq_reactor_counts *sum) {
    int i;
    memset(sum, 0, sizeof *sum);
    for (i = 0; i < g->limits.threads; i++) {
        const mq_reactor_counts *one = &g->reactors[i].counts;
        sum->served += __atomic_load_n(&one->served, __ATOMIC_RELAXED);
        sum->handed_over += __atomic_load_n(&one->handed_over, __ATOMIC_RELAXED);
        sum->later += __atomic_load_n(&one->later, __ATOMIC_RELAXED);
        sum->inbox_full += __atomic_load_n(&one->inbox_full, __ATOMIC_RELAXED);
        sum->unread += __atomic_load_n(&one->unread, __ATOMIC_RELAXED);
        sum->pieces += __atomic_load_n(&one->pieces, __ATOMIC_RELAXED);
    }
}
