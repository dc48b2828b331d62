/* The floor of a send: threads with an epoll each that parse the header, copy the record with its CRC into memory under
 * one lock, write the unit, and answer. Nothing is kept: no store, no check of rights, no other request.
 *
 * floor PORT THREADS
 */
#define _GNU_SOURCE
#include "crc32.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { EVENTS = 64, IN_BYTES = 256 * 1024, OUT_BYTES = 256 * 1024, LOG_BYTES = 1 << 30, QUEUES = 64, UNITS = 1 << 20 };

typedef struct {
    int fd;
    size_t bytes;
    uint8_t in[IN_BYTES];
} Connection;

typedef struct {
    const char *at;
    size_t size;
} Text;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t *log_base, *units[QUEUES];
static int64_t log_end, queue_ends[QUEUES];
static int epolls[64], thread_count;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void put32(uint8_t *at, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(at, &v, 4);
}

static void put64(uint8_t *at, int64_t v) {
    uint64_t swapped = __builtin_bswap64((uint64_t)v);
    memcpy(at, &swapped, 8);
}

static uint32_t get32(const uint8_t *at) {
    uint32_t v;
    memcpy(&v, at, 4);
    return __builtin_bswap32(v);
}

/* Step over the members of an object, and remember those of one letter, and "opaque". Returns the end. */
static const char *parse(const char *at, const char *end, Text *letters, long *opaque) {
    while (at < end && *at != '}') {
        const char *name, *value;
        size_t size;
        if (*at == ',' || *at == '{') at++;
        if (*at != '"') return end;
        name = ++at;
        while (at < end && *at != '"') at++;
        size = (size_t)(at - name);
        at += 2;
        value = at;
        if (*at == '"') {
            for (at++; at < end && *at != '"'; at++)
                if (*at == '\\') at++;
            at++;
            if (size == 1 && *name >= 'a' && *name <= 'n')
                letters[*name - 'a'] = (Text){value + 1, (size_t)(at - value - 2)};
        } else if (*at == '{') {
            at = parse(at, end, letters, opaque) + 1;
        } else {
            while (at < end && *at != ',' && *at != '}') at++;
            if (size == 6 && memcmp(name, "opaque", 6) == 0) *opaque = atol(value);
        }
    }
    return at;
}

static size_t unescape(const Text *text, uint8_t *to) {
    const char *at = text->at, *end = at + text->size;
    uint8_t *begin = to;
    while (at < end) {
        if (*at == '\\' && at[1] == 'u') {
            *to++ = (uint8_t)((at[4] & 15) << 4 | (at[5] & 15));
            at += 6;
        } else {
            *to++ = (uint8_t)*at++;
        }
    }
    return (size_t)(to - begin);
}

static size_t serve(const uint8_t *frame, size_t total, uint8_t *out) {
    size_t header = get32(frame + 4) & 0xFFFFFF, body = total - 4 - header, properties_bytes;
    const char *text = (const char *)frame + 8;
    Text letters[14] = {{0}};
    long opaque = 0;
    uint8_t properties[4096], *record;
    int64_t physical, number;
    int queue, n;
    size_t size;
    struct timespec now;
    parse(text, text + header, letters, &opaque);
    if (letters[8].size > sizeof properties) exit(2);
    properties_bytes = unescape(&letters[8], properties);
    queue = atoi(letters[4].at) % QUEUES;
    size = 88 + body + 1 + letters[1].size + 2 + properties_bytes;
    pthread_mutex_lock(&lock);
    clock_gettime(CLOCK_REALTIME, &now);
    if (log_end % LOG_BYTES + (int64_t)size > LOG_BYTES) log_end += LOG_BYTES - log_end % LOG_BYTES;
    physical = log_end;
    number = queue_ends[queue];
    record = log_base + physical % LOG_BYTES;
    memset(record + 4, 0, 84);
    put32(record + 12, (uint32_t)queue);
    put64(record + 20, number);
    put64(record + 28, physical);
    put64(record + 56, now.tv_sec * 1000 + now.tv_nsec / 1000000);
    put32(record + 84, (uint32_t)body);
    put32(record + 8, mq_crc32_copy(record + 88, frame + 8 + header, body) & 0x7FFFFFFF);
    record[88 + body] = (uint8_t)letters[1].size;
    memcpy(record + 89 + body, letters[1].at, letters[1].size);
    memcpy(record + 91 + body + letters[1].size, properties, properties_bytes);
    put32(record, (uint32_t)size);
    put64(units[queue] + number % UNITS * 20, physical);
    put32(units[queue] + number % UNITS * 20 + 8, (uint32_t)size);
    queue_ends[queue]++;
    log_end += (int64_t)size;
    pthread_mutex_unlock(&lock);
    n = sprintf((char *)out + 8,
                "{\"code\":0,\"extFields\":{\"MSG_REGION\":\"DefaultRegion\",\"TRACE_ON\":\"true\",\"msgId\":"
                "\"7F000001%08X%016lX\",\"queueId\":\"%d\",\"queueOffset\":\"%ld\",\"transactionId\":\"%.36s\"},"
                "\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
                10911, (unsigned long)physical, queue, (long)number, "7F00000100001111222200000000AAAA", opaque);
    put32(out, (uint32_t)n + 4);
    put32(out + 4, (uint32_t)n);
    return (size_t)n + 8;
}

static void *run(void *argument) {
    int epoll = epolls[(intptr_t)argument];
    struct epoll_event events[EVENTS];
    uint8_t *out = malloc(OUT_BYTES);
    for (;;) {
        int n = epoll_wait(epoll, events, EVENTS, -1), i;
        for (i = 0; i < n; i++) {
            Connection *c = events[i].data.ptr;
            ssize_t got = recv(c->fd, c->in + c->bytes, IN_BYTES - c->bytes, 0);
            size_t at = 0, answer = 0;
            if (got <= 0) {
                close(c->fd);
                free(c);
                continue;
            }
            c->bytes += (size_t)got;
            while (c->bytes - at >= 8 && get32(c->in + at) + 4 <= c->bytes - at) {
                answer += serve(c->in + at, get32(c->in + at), out + answer);
                at += get32(c->in + at) + 4;
                if (answer > OUT_BYTES - 1024) {
                    send(c->fd, out, answer, MSG_NOSIGNAL);
                    answer = 0;
                }
            }
            if (answer) send(c->fd, out, answer, MSG_NOSIGNAL);
            memmove(c->in, c->in + at, c->bytes - at);
            c->bytes -= at;
        }
    }
    return NULL;
}

int main(int argc, char **argv) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listening = socket(AF_INET, SOCK_STREAM, 0), one = 1, i;
    if (argc != 3) return 2;
    address.sin_port = htons((uint16_t)atoi(argv[1]));
    thread_count = atoi(argv[2]);
    log_base = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (log_base == MAP_FAILED) die("mmap");
    for (i = 0; i < QUEUES; i++) units[i] = malloc((size_t)UNITS * 20);
    setsockopt(listening, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listening, (struct sockaddr *)&address, sizeof address) < 0 || listen(listening, 1024) < 0) die("listen");
    for (i = 0; i < thread_count; i++) {
        pthread_t thread;
        epolls[i] = epoll_create1(0);
        pthread_create(&thread, NULL, run, (void *)(intptr_t)i);
    }
    for (i = 0;; i = (i + 1) % thread_count) {
        struct epoll_event event = {.events = EPOLLIN};
        Connection *c = calloc(1, sizeof *c);
        c->fd = accept(listening, NULL, NULL);
        if (c->fd < 0) die("accept");
        setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        event.data.ptr = c;
        epoll_ctl(epolls[i], EPOLL_CTL_ADD, c->fd, &event);
    }
}
