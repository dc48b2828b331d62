/* A consumer that waits and a producer, on a connection each: how long from a send until the pull that waits has the
 * message. Nothing else is under way. Prints one JSON object.
 *
 * waiter HOST PORT TOPIC BODY_BYTES COUNT
 */
#define _GNU_SOURCE
#include "frames.h"

enum { HELD_US = 3000, COUNT_MAX = 100000 };

static double took[COUNT_MAX];

static int by_size(const void *one, const void *other) {
    double a = *(const double *)one, b = *(const double *)other;
    return (a > b) - (a < b);
}

static void send_one(int fd, const char *topic, size_t body_bytes) {
    char header[1024];
    snprintf(header, sizeof header,
             "{\"code\":310,\"extFields\":{\"a\":\"bench\",\"b\":\"%s\",\"c\":\"TBW102\",\"d\":\"1\",\"e\":\"0\",\"f\":"
             "\"0\",\"g\":\"1700000000000\",\"h\":\"0\",\"i\":\"UNIQ_KEY\\u00017F00000100001111222200000000AAAA\\u0002"
             "WAIT\\u0001true\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\","
             "\"opaque\":1,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":479}",
             topic);
    ask(fd, header, body_bytes);
}

/* A pull that waits for a message at an offset. */
static void pull(int fd, const char *topic, long long offset) {
    char header[1024];
    snprintf(header, sizeof header,
             "{\"code\":11,\"extFields\":{\"consumerGroup\":\"bench-readers\",\"topic\":\"%s\",\"queueId\":\"0\","
             "\"queueOffset\":\"%lld\",\"maxMsgNums\":\"32\",\"sysFlag\":\"6\",\"commitOffset\":\"0\","
             "\"suspendTimeoutMillis\":\"15000\",\"subscription\":\"*\",\"subVersion\":\"0\",\"expressionType\":"
             "\"TAG\"},\"flag\":0,\"language\":\"JAVA\",\"opaque\":2,\"serializeTypeCurrentRPC\":\"JSON\","
             "\"version\":479}",
             topic, offset);
    ask(fd, header, 0);
}

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "waiter HOST PORT TOPIC BODY_BYTES COUNT\n"), 2;
    int producer = connected(argv[1], argv[2]), consumer = connected(argv[1], argv[2]), count = atoi(argv[5]);
    size_t body_bytes = (size_t)atoi(argv[4]);
    if (count < 1 || count > COUNT_MAX) die("COUNT: 1 to 100000");
    send_one(producer, argv[3], body_bytes);
    answered(producer);
    if (field("\"code\"") != 0) die((char *)in);
    long long offset = field("\"queueOffset\"") + 1;
    do { /* a broker may show the first message of a queue some milliseconds later */
        pull(consumer, argv[3], offset - 1);
        answered(consumer);
    } while (field("\"code\"") != 0);
    double began = now_s();
    for (int i = 0; i < count; i++) {
        pull(consumer, argv[3], offset);
        usleep(HELD_US); /* the broker holds the pull by then */
        double at = now_s();
        send_one(producer, argv[3], body_bytes);
        answered(consumer);
        took[i] = (now_s() - at) * 1e6;
        if (field("\"code\"") != 0) die((char *)in);
        offset = field("\"nextBeginOffset\"");
        answered(producer);
    }
    double seconds = now_s() - began;
    qsort(took, (size_t)count, sizeof *took, by_size);
    printf("{\"answers\":%d,\"seconds\":%.3f,\"p50_us\":%.1f,\"p99_us\":%.1f}\n", count, seconds, took[count / 2],
           took[count * 99 / 100]);
    return 0;
}
