/* Fuzzes the frames of a reactor: one connection, any bytes in any pieces, a service with every outcome, an event loop
 * that takes, pauses, sends and acknowledges at any time. The input says all of that.
 *
 * It must never know how frames are found: each byte is served or handed over, once, in order, and none is left when
 * the loop has taken all. `main` makes inputs; clang's libFuzzer finds LLVMFuzzerTestOneInput.
 *
 * reactor_frames COUNT SEED */
#include "../../csrc/reactor.c"

enum { INPUT_MAX = 4096, SERVED_MAX = 512, ROUNDS_MAX = 10000 };

typedef struct {
    mq_service service; /* first: the reactor gets its address */
    const uint8_t *stream;
    size_t bytes, served_bytes, answer_bytes;
    size_t at[SERVED_MAX], size[SERVED_MAX]; /* what was served */
    uint64_t ordered;                        /* the end of the last frame that was handed over in order */
    int count, is_cut;
} checker;

static mq_group *group;
static reactor *one;

static void must(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "reactor_frames: broken: %s\n", what);
    abort();
}

static int serve(mq_service *service, mq_turn *turn, const mq_frame *frame) {
    checker *k = (checker *)service;
    size_t size = (size_t)(PREFIX + frame->header_bytes + frame->body_bytes), at = k->served_bytes + turn->conn->handed;
    uint8_t kind = frame->header_bytes ? frame->header[0] : 0;
    must(frame->body == frame->header + frame->header_bytes, "a body is not behind its header");
    must(at + size <= k->bytes && memcmp(k->stream + at, frame->header - PREFIX, size) == 0, "a frame is not the next");
    must(turn->is_after_other || turn->conn->acked >= k->ordered, "a frame overtakes one that is in order");
    if (turn->is_after_other && kind & 8) return MQ_LATER;
    if (kind % 5 == MQ_CUT && kind & 64) {
        k->is_cut = 1;
        return MQ_CUT;
    }
    if (kind % 5 == MQ_SERVED && k->count < SERVED_MAX) {
        size_t answer = (size_t)frame->body_bytes * (kind & 16 ? 99 : 1);
        memset(mq_turn_room(turn, answer), 'a', answer);
        mq_turn_add(turn, answer);
        k->answer_bytes += answer;
        k->at[k->count] = at;
        k->size[k->count++] = size;
        k->served_bytes += size;
        if (kind & 32) turn->sent = MQ_TURN_BYTES + 1;
        return MQ_SERVED;
    }
    if (!(kind & 4)) return MQ_HAND_OVER;
    k->ordered = turn->conn->handed + size;
    return MQ_HAND_OVER_IN_ORDER;
}

static int after_round(mq_service *service, mq_turn *turn) {
    (void)service, (void)turn;
    return -1;
}

static void ended(mq_service *service, mq_turn *turn, mq_conn *conn) { (void)service, (void)turn, (void)conn; }

/* What mq_reactor_run does with the events that are there. Returns their number. */
static int round_of_events(void) {
    struct epoll_event events[EVENTS];
    int i, n = epoll_wait(one->epoll, events, EVENTS, 0);
    for (i = 0; i < n; i++)
        if (events[i].data.ptr != NULL) handle(one, events[i].data.ptr, events[i].events);
    return n;
}

/* The loop's side. Returns MQ_GOT_END at the end. */
static int take(mq_conn *c, uint8_t *handed, size_t *handed_bytes) {
    uint8_t *data;
    int got, all = 0;
    mq_conn *ready;
    while ((ready = mq_take_ready(group)) != NULL) {
        size_t n = mq_conn_take(ready, &data, &got);
        must(ready == c, "another connection is ready");
        if (n) memcpy(handed + *handed_bytes, data, n);
        *handed_bytes += n;
        free(data);
        all |= got;
    }
    return all;
}

static size_t drain(int fd) {
    static uint8_t ignored[1 << 16];
    size_t all = 0;
    ssize_t n;
    while ((n = recv(fd, ignored, sizeof ignored, MSG_DONTWAIT)) > 0) all += (size_t)n;
    return all;
}

static void check(const checker *k, const uint8_t *handed, size_t handed_bytes) {
    size_t at = 0, from = 0;
    int i;
    for (i = 0; i <= k->count; i++) {
        size_t upto = i < k->count ? k->at[i] : k->is_cut ? at + handed_bytes - from : k->bytes;
        must(from + (upto - at) <= handed_bytes, "bytes are missing");
        must(memcmp(handed + from, k->stream + at, upto - at) == 0, "other bytes are handed over");
        from += upto - at;
        at = upto + (i < k->count ? k->size[i] : 0);
    }
    must(from == handed_bytes, "more bytes are handed over than came");
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    static uint8_t handed[INPUT_MAX];
    static checker k;
    size_t handed_bytes = 0, fed = 0, sent = 0, answered = 0, script;
    int pair[2], small = 1, i, got = 0;
    mq_conn *c;
    struct iovec part = {"loop", 4};
    if (size < 8 || size > INPUT_MAX) return 0;
    if (group == NULL) {
        mq_reactor_limits limits = {.threads = 1};
        group = mq_group_new(&limits, &i);
        must(group != NULL, "a group");
        one = &group->reactors[0];
    }
    /* the first bytes are limits, and how much of the rest is the script */
    group->limits.frame_bytes_max = (int64_t)32 << (input[0] % 12);
    group->limits.header_bytes_max = (int64_t)8 << (input[1] % 10);
    group->limits.buffered_bytes_max = input[2] % 3 ? 1 << 20 : -1;
    group->limits.high = input[3] % 2 ? 1 << 20 : input[3];
    group->limits.low = group->limits.high / 2;
    script = 1 + input[4] % 16;
    if (size < 5 + script) return 0;
    memset(&k, 0, sizeof k);
    k.service.serve = serve;
    k.service.after_round = after_round;
    k.service.ended = ended;
    k.stream = input + 5 + script;
    k.bytes = size - 5 - script;
    group->service = &k.service;
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "a pair of sockets");
    if (input[3] & 4) setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    c = mq_conn_adopt(group, pair[0], NULL, NULL, 0);
    must(c != NULL, "a connection");
    for (i = 0; fed < k.bytes && !k.is_cut; i++) {
        uint8_t step = input[5 + (size_t)i % script];
        size_t n = (size_t)(step >> 4) * (step & 8 ? 64 : 1) + 1;
        if (n > k.bytes - fed) n = k.bytes - fed;
        ssize_t done = send(pair[1], k.stream + fed, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0) fed += (size_t)done;
        if (done < 0) { /* the socket is full: all that the reactor may wait for happens */
            mq_conn_pause(c, 0);
            got |= take(c, handed, &handed_bytes);
            mq_conn_ack(c);
            answered += drain(pair[1]);
            round_of_events();
            continue;
        }
        mq_conn_pause(c, (step & 7) == 1);
        round_of_events();
        if ((step & 7) == 2 && mq_conn_send(c, &part, 1) >= 0) sent += part.iov_len;
        if ((step & 7) == 3) got |= take(c, handed, &handed_bytes);
        if ((step & 7) == 4) mq_conn_ack(c);
        if ((step & 7) == 5) answered += drain(pair[1]);
        if ((step & 7) == 6) mq_conn_want_drained(c);
    }
    /* whatever waits goes on once the loop and the peer have taken all; then the peer ends */
    mq_conn_pause(c, 0);
    shutdown(pair[1], SHUT_WR);
    for (i = 0; !(got & MQ_GOT_END); i++) {
        must(i < ROUNDS_MAX, "the connection does not end");
        round_of_events();
        answered += drain(pair[1]);
        got |= take(c, handed, &handed_bytes);
        mq_conn_ack(c);
        if (got & MQ_GOT_EOF && mq_conn_unsent(c) == 0) mq_conn_close(c, 0);
    }
    must(k.is_cut || got & MQ_GOT_EOF, "the end of the peer is not told");
    must(k.is_cut || answered + drain(pair[1]) == k.answer_bytes + sent, "answers are missing");
    check(&k, handed, handed_bytes);
    must(mq_group_buffered(group) == 0, "a buffer is not given back");
    mq_conn_release(c);
    close(pair[1]);
    return 0;
}

#ifndef LIBFUZZER
static uint64_t state;

static uint32_t draw(uint32_t below) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 16) % below;
}

/* Frames, most of them whole and of possible lengths; some bytes changed. */
static size_t make(uint8_t *input) {
    size_t size = 5 + 16, changed;
    uint32_t frames = draw(8), header, body;
    for (size_t i = 0; i < size; i++) input[i] = (uint8_t)draw(256);
    input[4] = 15; /* the whole script */
    if (draw(20) == 0) input[size++] = "\x16P\r"[draw(3)];
    while (frames-- > 0 && size < INPUT_MAX - 700) {
        header = draw(draw(8) ? 24 : 200);
        body = draw(draw(8) ? 24 : 300);
        input[size++] = 0, input[size++] = 0;
        input[size++] = (uint8_t)((4 + header + body) >> 8), input[size++] = (uint8_t)(4 + header + body);
        input[size++] = (uint8_t)draw(2), input[size++] = 0, input[size++] = 0, input[size++] = (uint8_t)header;
        for (header += body; header > 0; header--) input[size++] = (uint8_t)draw(256);
    }
    changed = draw(3) ? 0 : draw(4);
    while (changed-- > 0) input[draw((uint32_t)size)] = (uint8_t)draw(256);
    return draw(6) || size < 40 ? size : size - draw(20);
}

int main(int argc, char **argv) {
    uint8_t input[INPUT_MAX], *exact;
    long count = argc > 1 ? atol(argv[1]) : 1000, i;
    state = (argc > 2 ? strtoull(argv[2], NULL, 10) : 1) * 0x9E3779B97F4A7C15u + 1;
    for (i = 0; i < count; i++) {
        size_t size = make(input);
        exact = malloc(size); /* a read behind the end is seen */
        memcpy(exact, input, size);
        LLVMFuzzerTestOneInput(exact, size);
        free(exact);
    }
    printf("reactor_frames: %ld inputs, nothing found\n", count);
    return 0;
}
#endif
