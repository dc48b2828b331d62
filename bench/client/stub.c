/* A broker and name server that answers at once and keeps nothing: what a client alone can do, without a broker's work.
 *
 * It reads no header but for code, opaque and the one-way bit, by their text. One thread, epoll. A batch is answered as one.
 *
 * stub PORT
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { IN_BYTES = 8 << 20, OUT_BYTES = 1 << 20, FDS = 1024 };

typedef struct {
    unsigned char *in;
    size_t n;
} Peer;

static Peer peers[FDS];
static char out[OUT_BYTES];
static size_t out_n;
static char route[512];

static uint32_t get32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void put32(char *at, uint32_t v) {
    at[0] = (char)(v >> 24), at[1] = (char)(v >> 16), at[2] = (char)(v >> 8), at[3] = (char)v;
}

static long number_behind(const unsigned char *text, size_t size, const char *name) {
    const unsigned char *at = memmem(text, size, name, strlen(name));
    return at == NULL ? 0 : strtol((const char *)at + strlen(name), NULL, 10);
}

static void flush_to(int fd) {
    size_t sent = 0;
    while (sent < out_n) {
        ssize_t did = send(fd, out + sent, out_n - sent, MSG_NOSIGNAL);
        if (did <= 0) break;
        sent += (size_t)did;
    }
    out_n = 0;
}

static void answer(int fd, const unsigned char *header, size_t size) {
    long code = number_behind(header, size, "\"code\":"), opaque = number_behind(header, size, "\"opaque\":");
    const char *body = code == 105 ? route : "";
    const char *fields = code == 310 || code == 320
                             ? "\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueId\":\"0\",\"queueOffset\":\"0\""
                             : "";
    if (number_behind(header, size, "\"flag\":") & 2) return;
    if (out_n + 2048 > OUT_BYTES) flush_to(fd);
    char *at = out + out_n;
    int length = sprintf(at + 8,
                         "{\"code\":0,\"extFields\":{%s},\"flag\":1,\"language\":\"JAVA\",\"opaque\":%ld,"
                         "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
                         fields, opaque);
    size_t body_n = strlen(body);
    memcpy(at + 8 + length, body, body_n);
    put32(at, (uint32_t)(4 + length) + (uint32_t)body_n);
    put32(at + 4, (uint32_t)length);
    out_n += 8 + (size_t)length + body_n;
}

static int serve(int fd) {
    Peer *peer = &peers[fd];
    ssize_t got = recv(fd, peer->in + peer->n, IN_BYTES - peer->n, 0);
    if (got <= 0) return 0;
    peer->n += (size_t)got;
    size_t at = 0;
    while (peer->n - at >= 8) {
        size_t total = 4 + get32(peer->in + at), header = get32(peer->in + at + 4) & 0xFFFFFF;
        if (peer->n - at < total) break;
        answer(fd, peer->in + at + 8, header);
        at += total;
    }
    memmove(peer->in, peer->in + at, peer->n - at);
    peer->n -= at;
    flush_to(fd);
    return 1;
}

int main(int argc, char **argv) {
    int port = argc > 1 ? atoi(argv[1]) : 0, on = 1, poll = epoll_create1(0),
        listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in me = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    me.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&me, sizeof me) != 0 || listen(listener, 64) != 0) return 1;
    socklen_t size = sizeof me;
    getsockname(listener, (struct sockaddr *)&me, &size);
    port = ntohs(me.sin_port);
    sprintf(route,
            "{\"brokerDatas\":[{\"brokerAddrs\":{\"0\":\"127.0.0.1:%d\"},\"brokerName\":\"a\",\"cluster\":\"c\"}],"
            "\"queueDatas\":[{\"brokerName\":\"a\",\"perm\":6,\"readQueueNums\":4,\"topicSysFlag\":0,"
            "\"writeQueueNums\":4}]}",
            port);
    printf("%d\n", port);
    fflush(stdout);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, ready[64];
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event);
    for (;;) {
        int n = epoll_wait(poll, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            int fd = ready[i].data.fd;
            if (fd == listener) {
                fd = accept(listener, NULL, NULL);
                if (fd < 0 || fd >= FDS) continue;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                if (peers[fd].in == NULL) peers[fd].in = malloc(IN_BYTES);
                peers[fd].n = 0;
                event.events = EPOLLIN, event.data.fd = fd;
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event);
            } else if (!serve(fd)) {
                close(fd);
            }
        }
    }
}
