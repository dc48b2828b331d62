/* A lean consumer: PULL_MESSAGE one after the other on one connection, queue after queue from its first message, until
 * a time is over or all queues are at their ends; then from the beginning.
 *
 * It never decodes a message: bytes are counted, and messages by the offsets of the answers. Prints one JSON object.
 *
 * puller HOST PORT TOPIC QUEUES BATCH SECONDS
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static int fd;
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

static void need(unsigned char *to, size_t n) {
    while (n > 0) {
        ssize_t got = recv(fd, to, n, 0);
        if (got <= 0) die("the connection ended");
        to += got, n -= (size_t)got;
    }
}

/* The value of a field of the answer's header, which stands there as text. */
static long long field(const char *header, const char *name) {
    const char *at = strstr(header, name);
    if (at == NULL) return -1;
    at += strlen(name);
    while (*at == '"' || *at == ':') at++;
    return atoll(at);
}

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "puller HOST PORT TOPIC QUEUES BATCH SECONDS\n"), 2;
    int queues = atoi(argv[4]), batch = atoi(argv[5]), one = 1;
    double seconds = atof(argv[6]);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (inet_pton(AF_INET, argv[1], &to.sin_addr) != 1) return fprintf(stderr, "an IPv4 address, please\n"), 2;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) die("no connection");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    unsigned long long messages = 0, bytes = 0, pulls = 0;
    long long offset = 0;
    int queue = 0;
    double began = now_s();
    while (now_s() - began < seconds) {
        char header[1024];
        int n = snprintf(
            header, sizeof header,
            "{\"code\":11,\"extFields\":{\"consumerGroup\":\"bench-readers\",\"topic\":\"%s\",\"queueId\":\"%d\","
            "\"queueOffset\":"
            "\"%lld\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\","
            "\"subscription\":"
            "\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%llu,"
            "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
            argv[3], queue, offset, batch, pulls & 0x7FFFFFFF);
        unsigned char out[1100];
        put32(out, (uint32_t)(4 + n)), put32(out + 4, (uint32_t)n), memcpy(out + 8, header, (size_t)n);
        if (send(fd, out, (size_t)(8 + n), MSG_NOSIGNAL) != 8 + n) die("the request did not go out");
        unsigned char words[8];
        need(words, 8);
        uint32_t frame = get32(words), head = get32(words + 4) & 0xFFFFFF, body = frame - 4 - head;
        if (head >= sizeof in) die("a header of that length is not read here");
        need(in, head);
        in[head] = 0;
        long long code = field((char *)in, "\"code\""), next = field((char *)in, "\"nextBeginOffset\"");
        for (uint32_t left = body; left > 0;) {
            uint32_t part = left < sizeof in ? left : (uint32_t)sizeof in;
            need(in, part);
            left -= part;
        }
        pulls++;
        if (code == 0) {
            messages += (unsigned long long)(next - offset), bytes += body, offset = next;
        } else {
            queue = (queue + 1) % queues, offset = 0;
        }
    }
    double took = now_s() - began;
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    double cpu = (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                 (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
    printf("{\"answers\":%llu,\"bytes\":%llu,\"pulls\":%llu,\"seconds\":%.3f,\"puller_cpu_s\":%.3f}\n", messages, bytes,
           pulls, took, cpu);
    return 0;
}
