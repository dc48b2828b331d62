/* What the lean consumers have in common: a blocking connection, frames, and fields of an answer's header.
 *
 * It must never decode a message. */
#ifndef BENCH_FRAMES_H
#define BENCH_FRAMES_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static unsigned char in[1 << 20];

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void put32(unsigned char *at, uint32_t v) {
    at[0] = (unsigned char)(v >> 24), at[1] = (unsigned char)(v >> 16), at[2] = (unsigned char)(v >> 8),
    at[3] = (unsigned char)v;
}

static uint32_t get32(const unsigned char *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int connected(const char *host, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (inet_pton(AF_INET, host, &to.sin_addr) != 1) die("an IPv4 address, please");
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) die("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void need(int fd, unsigned char *to, size_t n) {
    while (n > 0) {
        ssize_t got = recv(fd, to, n, 0);
        if (got <= 0) die("the connection ended");
        to += got, n -= (size_t)got;
    }
}

/* A request; `body_bytes` of its body are zeros. */
static void ask(int fd, const char *header, size_t body_bytes) {
    static unsigned char out[1 << 16];
    size_t n = strlen(header), all = 8 + n + body_bytes;
    if (all > sizeof out) die("a request of that length is not made here");
    put32(out, (uint32_t)(all - 4)), put32(out + 4, (uint32_t)n), memcpy(out + 8, header, n);
    memset(out + 8 + n, 0, body_bytes);
    if (send(fd, out, all, MSG_NOSIGNAL) != (ssize_t)all) die("the request did not go out");
}

/* Read a frame; the header of the answer is text in `in` then. Returns the bytes of the body. */
static uint32_t answered(int fd) {
    static unsigned char part[1 << 18];
    unsigned char words[8];
    need(fd, words, 8);
    uint32_t frame = get32(words), head = get32(words + 4) & 0xFFFFFF, body = frame - 4 - head;
    if (head >= sizeof in) die("a header of that length is not read here");
    need(fd, in, head);
    in[head] = 0;
    for (uint32_t left = body; left > 0;) {
        uint32_t size = left < sizeof part ? left : (uint32_t)sizeof part;
        need(fd, part, size);
        left -= size;
    }
    return body;
}

/* The value of a field of the answer's header. */
static long long field(const char *name) {
    const char *at = strstr((char *)in, name);
    if (at == NULL) return -1;
    at += strlen(name);
    while (*at == '"' || *at == ':') at++;
    return atoll(at);
}

#endif
