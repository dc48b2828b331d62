/* Reactors under a sanitizer: a service that answers some frames and leaves others, an event loop that takes, answers
 * and acknowledges, and clients that come, send in pieces, and go, while the service is exchanged.
 *
 * The frames of a connection that are in order (first body byte 'o') must reach the service and the loop in the order
 * of the client. Prints what went wrong, and returns 1. */
#define _GNU_SOURCE
#include "reactor.h"

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { REACTORS = 4, CLIENTS = 16, ROUNDS = 8, FRAMES = 60, BODY = 700, OUT = 1 << 17 };

typedef struct {
    uint32_t next; /* number of the next frame, of the service and of the loop together */
} line;

static mq_group *group;
static int signal_of_group, stop_loop;
static uint32_t served_by_service, served_by_loop, wrong;

static void put32(uint8_t *at, uint32_t v) {
    at[0] = (uint8_t)(v >> 24), at[1] = (uint8_t)(v >> 16), at[2] = (uint8_t)(v >> 8), at[3] = (uint8_t)v;
}

static uint32_t get32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

/* A frame without a header; its body: kind, number, filling. */
static size_t make_frame(uint8_t *to, uint8_t kind, uint32_t number, size_t filling) {
    put32(to, (uint32_t)(4 + 5 + filling));
    put32(to + 4, 0);
    to[8] = kind;
    put32(to + 9, number);
    memset(to + 13, 'x', filling);
    return 13 + filling;
}

static void in_line(mq_conn *conn, uint32_t number) {
    line *l = mq_conn_user(conn);
    uint32_t expected = __atomic_fetch_add(&l->next, 1, __ATOMIC_SEQ_CST);
    if (expected != number) {
        __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
        fprintf(stderr, "expected frame %u, found %u\n", expected, number);
    }
}

static int serve(mq_service *service, mq_turn *turn, const mq_frame *frame) {
    uint8_t *room;
    uint32_t number = get32(frame->body + 1);
    (void)service;
    if (number % 5 == 3) return MQ_HAND_OVER_IN_ORDER;
    if (turn->is_after_other) return MQ_LATER;
    in_line(turn->conn, number);
    room = mq_turn_room(turn, 13);
    mq_turn_add(turn, make_frame(room, 'a', number, 0));
    __atomic_fetch_add(&served_by_service, 1, __ATOMIC_RELAXED);
    return MQ_SERVED;
}

static int after_round(mq_service *service, mq_turn *turn) {
    (void)service, (void)turn;
    return -1;
}

static void ended(mq_service *service, mq_turn *turn, mq_conn *conn) { (void)service, (void)turn, (void)conn; }

static mq_service service = {serve, after_round, ended};

/* The frames that were handed over come whole, since none is longer than MQ_FRAME_SERVED_MAX. */
static int take(mq_conn *conn) {
    uint8_t *data, answer[16];
    int got;
    size_t bytes = mq_conn_take(conn, &data, &got), at = 0;
    struct iovec part;
    while (at + 8 < bytes) {
        uint32_t number = get32(data + at + 9);
        in_line(conn, number);
        part.iov_base = answer;
        part.iov_len = make_frame(answer, 'a', number, 0);
        mq_conn_send(conn, &part, 1);
        at += get32(data + at) + 4;
        __atomic_fetch_add(&served_by_loop, 1, __ATOMIC_RELAXED);
    }
    free(data);
    mq_conn_ack(conn);
    if (got & MQ_GOT_EOF) mq_conn_close(conn, 0);
    if (!(got & MQ_GOT_END)) return 0;
    free(mq_conn_user(conn));
    mq_conn_release(conn);
    return 1;
}

static int open_conns;

static void *loop(void *unused) {
    struct pollfd events = {signal_of_group, POLLIN, 0};
    mq_conn *conn;
    (void)unused;
    while (!__atomic_load_n(&stop_loop, __ATOMIC_SEQ_CST) || __atomic_load_n(&open_conns, __ATOMIC_SEQ_CST)) {
        if (poll(&events, 1, 20) > 0) mq_group_clear_signal(group);
        while ((conn = mq_take_ready(group)) != NULL)
            if (take(conn)) __atomic_fetch_sub(&open_conns, 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

static void send_all(int fd, const uint8_t *at, size_t bytes, unsigned *seed) {
    while (bytes) {
        size_t piece = 1 + (size_t)rand_r(seed) % 3000;
        ssize_t n = send(fd, at, piece < bytes ? piece : bytes, MSG_NOSIGNAL);
        if (n <= 0) return;
        at += n;
        bytes -= (size_t)n;
    }
}

static void *client(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    uint8_t *frames = malloc(OUT), in[13];
    int round;
    for (round = 0; round < ROUNDS; round++) {
        int ends[2], leaves = round % 4 == 3;
        size_t bytes = 0;
        uint32_t i;
        line *l = calloc(1, sizeof *l);
        if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0) abort();
        __atomic_fetch_add(&open_conns, 1, __ATOMIC_SEQ_CST);
        if (mq_conn_adopt(group, ends[0], l, NULL, 0) == NULL) abort();
        for (i = 0; i < FRAMES; i++) bytes += make_frame(frames + bytes, 'o', i, (size_t)rand_r(&seed) % BODY);
        send_all(ends[1], frames, leaves ? bytes / 2 : bytes, &seed);
        for (i = 0; i < FRAMES && !leaves; i++) {
            if (recv(ends[1], in, sizeof in, MSG_WAITALL) != (ssize_t)sizeof in) {
                fprintf(stderr, "the connection ended after %u answers\n", i);
                __atomic_store_n(&wrong, 1, __ATOMIC_SEQ_CST);
                break;
            }
        }
        close(ends[1]);
    }
    free(frames);
    return NULL;
}

static void *reactor_of(void *index) {
    mq_reactor_run(group, (int)(intptr_t)index);
    return NULL;
}

int main(void) {
    mq_reactor_limits limits = {REACTORS, 1 << 20, 1 << 16, 1 << 20, 1 << 16, 1 << 14};
    pthread_t reactors[REACTORS], clients[CLIENTS], taker;
    mq_reactor_counts counts;
    intptr_t i;
    group = mq_group_new(&limits, &signal_of_group);
    if (group == NULL) return 2;
    for (i = 0; i < REACTORS; i++) pthread_create(&reactors[i], NULL, reactor_of, (void *)i);
    pthread_create(&taker, NULL, loop, NULL);
    mq_group_set_service(group, &service);
    for (i = 0; i < CLIENTS; i++) pthread_create(&clients[i], NULL, client, (void *)(i + 1));
    for (i = 0; i < 40; i++) {
        mq_group_set_service(group, i % 2 ? &service : NULL);
        mq_group_counts(group, &counts);
        usleep(1000);
    }
    for (i = 0; i < CLIENTS; i++) pthread_join(clients[i], NULL);
    __atomic_store_n(&stop_loop, 1, __ATOMIC_SEQ_CST);
    pthread_join(taker, NULL);
    mq_group_stop(group);
    for (i = 0; i < REACTORS; i++) pthread_join(reactors[i], NULL);
    if (mq_group_buffered(group) != 0)
        wrong = 1, fprintf(stderr, "%ld bytes are left\n", (long)mq_group_buffered(group));
    mq_group_free(group);
    if (served_by_service == 0 || served_by_loop == 0) wrong = 1, fprintf(stderr, "one side served nothing\n");
    return (int)wrong;
}
