/* A lean producer: SEND_MESSAGE_V2 over some connections, each with some requests under way, until a time is over.
 *
 * It never measures itself: one thread, epoll, frames made once and patched. Its own CPU time is printed, so that a reader
 * sees when the sender is the limit. Prints one JSON object.
 *
 * ACCESS_KEY SIGNATURES: signatures of the queues' requests, between commas. A connection then keeps to one queue.
 *
 * sender HOST PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS [ACCESS_KEY SIGNATURES]
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { OPAQUE_DIGITS = 9, QUEUE_DIGITS = 5, IN_BYTES = 1 << 16, BUCKETS = 64 * 32 };

typedef struct {
    int fd;
    int in_flight;
    uint32_t next, answered;
    int first_queue;
    char *out;                                   /* one frame; its opaque and its queue are patched before each write */
    size_t out_bytes, opaque_at, queue_at, sent; /* sent: bytes of a frame that went out in part */
    int is_partial;
    unsigned char in[IN_BYTES];
    size_t in_bytes;
    uint64_t *started; /* ring of WINDOW times, by opaque */
} Connection;

static uint64_t histogram[BUCKETS];
static uint64_t answers, failures;
static int window, queues, stopping, is_signed;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void die(const char *what) {
    perror(what);
    exit(1);
}

/* 32 buckets for each power of two: 3 % wide. */
static size_t bucket_of(uint64_t ns) {
    if (ns < 32) return (size_t)ns;
    int shift = 63 - __builtin_clzll(ns) - 5;
    size_t at = (size_t)(shift + 1) * 32 + (size_t)((ns >> shift) & 31);
    return at < BUCKETS ? at : BUCKETS - 1;
}

static double bucket_ns(size_t at) {
    if (at < 32) return (double)at;
    return (double)((32 + (uint64_t)(at % 32)) << (at / 32 - 1));
}

static double percentile(double share) {
    uint64_t want = (uint64_t)(share * (double)answers), seen = 0;
    for (size_t i = 0; i < BUCKETS; i++) {
        seen += histogram[i];
        if (seen > want) return bucket_ns(i) / 1000;
    }
    return 0;
}

static void put32(unsigned char *at, uint32_t v) {
    at[0] = (unsigned char)(v >> 24), at[1] = (unsigned char)(v >> 16), at[2] = (unsigned char)(v >> 8),
    at[3] = (unsigned char)v;
}

static uint32_t get32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void make_frame(Connection *c, const char *topic, int queue, int body_bytes, const char *more) {
    char header[1024];
    int n = snprintf(
        header, sizeof header,
        "{\"code\":310,\"extFields\":{\"a\":\"bench\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"8\",\"e\":\"%0*d\",\"f\":"
        "\"0\",\"g\":"
        "\"1700000000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F00000100001111222200000000%04X\\u0002WAIT\\u0001true\","
        "\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"%s},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%0*d,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
        topic, QUEUE_DIGITS, queue, queue & 0xFFFF, more, OPAQUE_DIGITS, 0);
    c->out_bytes = (size_t)(8 + n + body_bytes);
    c->out = malloc(c->out_bytes);
    put32((unsigned char *)c->out, (uint32_t)(4 + n + body_bytes));
    put32((unsigned char *)c->out + 4, (uint32_t)n);
    memcpy(c->out + 8, header, (size_t)n);
    memset(c->out + 8 + n, 'x', (size_t)body_bytes);
    c->opaque_at = (size_t)(strstr(c->out + 8, "\"opaque\":") - c->out) + 9;
    c->queue_at = (size_t)(strstr(c->out + 8, "\"e\":\"") - c->out) + 5;
    c->first_queue = queue;
}

/* The fields that sign the requests of a queue. */
static const char *signed_by(const char *key, const char *signatures, int queue) {
    static char fields[256];
    for (; queue > 0; queue--) {
        signatures = strchr(signatures, ',');
        if (signatures++ == NULL) exit(fprintf(stderr, "expected a signature for each queue\n"));
    }
    snprintf(fields, sizeof fields, ",\"AccessKey\":\"%s\",\"Signature\":\"%.*s\"", key, (int)strcspn(signatures, ","),
             signatures);
    return fields;
}

/* JSON allows no leading zeros: opaques begin at 100000000. A connection goes round all queues. */
static void patch(Connection *c) {
    char digits[16];
    snprintf(digits, sizeof digits, "%09u", 100000000u + c->next % 800000000u);
    memcpy(c->out + c->opaque_at, digits, OPAQUE_DIGITS);
    if (is_signed) return;
    snprintf(digits, sizeof digits, "%05u", ((uint32_t)c->first_queue + c->next) % (uint32_t)queues % 100000u);
    memcpy(c->out + c->queue_at, digits, QUEUE_DIGITS);
}

static int write_some(Connection *c) {
    while (c->is_partial || (!stopping && c->in_flight < window)) {
        if (!c->is_partial) {
            patch(c);
            c->started[c->next % (uint32_t)window] = now_ns();
            c->next++, c->in_flight++, c->sent = 0, c->is_partial = 1;
        }
        ssize_t n = send(c->fd, c->out + c->sent, c->out_bytes - c->sent, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->sent += (size_t)n;
        if (c->sent == c->out_bytes) c->is_partial = 0;
    }
    return 0;
}

static int read_some(Connection *c) {
    for (;;) {
        ssize_t n = recv(c->fd, c->in + c->in_bytes, IN_BYTES - c->in_bytes, 0);
        if (n == 0) return -1;
        if (n < 0) return errno == EAGAIN ? 0 : -1;
        c->in_bytes += (size_t)n;
        size_t at = 0;
        while (c->in_bytes - at >= 8) {
            size_t frame = get32(c->in + at) + 4, header = get32(c->in + at + 4) & 0xFFFFFF;
            if (c->in_bytes - at < frame) break;
            /* Answers of one connection come in the order of their requests where the broker keeps it; else the time is
             * that of the oldest one, which is never too short. */
            uint64_t took = now_ns() - c->started[c->answered % (uint32_t)window];
            c->answered++, c->in_flight--;
            histogram[bucket_of(took)]++, answers++;
            if (memmem(c->in + at + 8, header, "\"code\":0,", 9) == NULL) {
                if (failures++ == 0) fprintf(stderr, "%.*s\n", (int)header, (char *)c->in + at + 8);
            }
            at += frame;
        }
        memmove(c->in, c->in + at, c->in_bytes - at);
        c->in_bytes -= at;
    }
}

int main(int argc, char **argv) {
    if (argc != 9 && argc != 11)
        return fprintf(stderr,
                       "sender HOST PORT TOPIC QUEUES CONNECTIONS WINDOW BODY_BYTES SECONDS [KEY SIGNATURES]\n"),
               2;
    is_signed = argc == 11;
    int count = atoi(argv[5]), body_bytes = atoi(argv[7]);
    queues = atoi(argv[4]);
    double seconds = atof(argv[8]);
    window = atoi(argv[6]);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return fprintf(stderr, "an IPv4 address, please\n"), 2;
    Connection *all = calloc((size_t)count, sizeof *all);
    int poll = epoll_create1(0), one = 1;
    for (int i = 0; i < count; i++) {
        Connection *c = all + i;
        c->fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(c->fd, (struct sockaddr *)&to, sizeof to) < 0) die("connect");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(c->fd, F_SETFL, O_NONBLOCK);
        c->started = calloc((size_t)window, sizeof *c->started);
        make_frame(c, argv[3], i % queues, body_bytes, is_signed ? signed_by(argv[9], argv[10], i % queues) : "");
        struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = c};
        epoll_ctl(poll, EPOLL_CTL_ADD, c->fd, &e);
    }
    uint64_t began = now_ns(), end = began + (uint64_t)(seconds * 1e9);
    struct epoll_event events[256];
    int left = count;
    while (left > 0) {
        int n = epoll_wait(poll, events, 256, 100);
        for (int i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            if (c->fd >= 0 && (read_some(c) < 0 || write_some(c) < 0)) {
                fprintf(stderr, "a connection ended\n");
                return 1;
            }
        }
        if (now_ns() < end) continue;
        stopping = 1;
        if (now_ns() > end + 20000000000u) return fprintf(stderr, "answers are missing\n"), 1;
        left = 0;
        for (int i = 0; i < count; i++) {
            if (all[i].is_partial && write_some(all + i) < 0) return fprintf(stderr, "a connection ended\n"), 1;
            left += all[i].in_flight > 0;
        }
    }
    double took = (double)(now_ns() - began) / 1e9;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    printf("{\"answers\":%llu,\"failures\":%llu,\"seconds\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,"
           "\"sender_cpu_s\":%.3f}\n",
           (unsigned long long)answers, (unsigned long long)failures, took, percentile(0.5), percentile(0.99),
           percentile(0.999), cpu);
    return failures ? 3 : 0;
}
