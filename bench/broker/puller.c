/* A lean consumer: PULL_MESSAGE one after the other on one connection, queue after queue from its first message, until
 * a time is over or all queues are at their ends; then from the beginning.
 *
 * It never decodes a message: bytes are counted, and messages by the offsets of the answers. Prints one JSON object.
 *
 * puller HOST PORT TOPIC QUEUES BATCH SECONDS
 */
#define _GNU_SOURCE
#include "frames.h"

#include <sys/resource.h>

int main(int argc, char **argv) {
    if (argc != 7) return fprintf(stderr, "puller HOST PORT TOPIC QUEUES BATCH SECONDS\n"), 2;
    int queues = atoi(argv[4]), batch = atoi(argv[5]), fd = connected(argv[1], argv[2]);
    double seconds = atof(argv[6]);
    unsigned long long messages = 0, bytes = 0, pulls = 0;
    long long offset = 0;
    int queue = 0;
    double began = now_s();
    while (now_s() - began < seconds) {
        char header[1024];
        snprintf(
            header, sizeof header,
            "{\"code\":11,\"extFields\":{\"consumerGroup\":\"bench-readers\",\"topic\":\"%s\",\"queueId\":\"%d\","
            "\"queueOffset\":"
            "\"%lld\",\"maxMsgNums\":\"%d\",\"sysFlag\":\"4\",\"commitOffset\":\"0\",\"suspendTimeoutMillis\":\"0\","
            "\"subscription\":"
            "\"*\",\"subVersion\":\"0\",\"expressionType\":\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":%llu,"
            "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
            argv[3], queue, offset, batch, pulls & 0x7FFFFFFF);
        ask(fd, header, 0);
        uint32_t body = answered(fd);
        long long code = field("\"code\""), next = field("\"nextBeginOffset\"");
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
