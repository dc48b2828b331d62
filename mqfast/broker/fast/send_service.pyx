"""Requests inside of reactors. Of a send: the checks, the put, and the answer, which waits for the disk and slaves
where the broker does. Pulls: ``pull_service.pyx``.

Without the GIL and without an allocation for a message. Nothing is refused: requests of uncommon kinds go to Python
unchanged. The sends of a connection are stored in their order: a send behind a send of Python waits until Python has
served (MQ_LATER). Source: SendMessageProcessor.sendMessage.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy
from mqfast.broker.fast.pull_request cimport LITE_PULL, PULL
from mqfast.broker.fast.pull_service cimport PullState, serve_pull
from mqfast.broker.fast.pull_table cimport Pulls, PullTable
from mqfast.broker.fast.send_request cimport (
    ANSWER_MAX,
    PAIRS_MAX,
    SEND,
    SEND_V2,
    UNIQUE_MAX,
    AnswerParts,
    SendAnswer,
    SendFields,
    is_plain_text,
    read_send,
    write_answer,
)
from mqfast.broker.fast.topic_table cimport Topic, TopicCounts, TopicSlots, TopicTable, find_topic
from mqfast.broker.send.fast_send cimport needs_slow_path
from mqfast.remoting.codec cimport unescape
from mqfast.remoting.raw_header cimport RawHeader, read_header
from mqfast.remoting.reactor.reactor cimport (
    MQ_CUT,
    MQ_HAND_OVER,
    MQ_HAND_OVER_IN_ORDER,
    MQ_LATER,
    MQ_REACTORS_MAX,
    MQ_SERVED,
    Reactors,
    ReactorService,
    iovec,
    mq_conn,
    conn_close,
    conn_hold,
    conn_host,
    conn_release,
    conn_send,
    mq_frame,
    mq_group,
    group_wake,
    mq_service,
    mq_turn,
    turn_add,
    turn_room,
)
from mqfast.store.base.os_api cimport (
    futex_wait,
    futex_wake_all,
    mq_add32,
    mq_and32,
    mq_cas32,
    mq_load32,
    mq_load64,
    mq_os,
    mq_store32,
    mq_store64,
)
from mqfast.store.core cimport Core
from mqfast.store.log.append cimport Appended
from mqfast.store.log.group_commit cimport flush_up_to
from mqfast.store.log.log_state cimport LOG_FAILED, LogState
from mqfast.store.put.put_nogil cimport PUT_LEFT, PUT_LOST, PutEntry, open_entry, put_without_gil
from mqfast.store.put.put_record cimport MAX_PROPERTIES
from mqfast.store.record.record cimport BORN_HOST_V6, STORE_HOST_V6, Draft

from mqfast.broker.metrics.broker_stats import PUT_TIME_BOUNDS_MS, SIZE_BOUNDS
from mqfast.errors import UsageError
from mqfast.remoting.codes import ResponseCode
from mqfast.remoting.latency import BOUNDS_MS

cdef enum:
    SEND_BATCH = 320
    UPDATE_OFFSET = 15
    SERVED_CODES = 4
    PARKED_MAX = 8192           # answers of a reactor that wait; a power of 2
    DISK = 1                    # what an answer waits for
    SLAVES = 2
    OUTCOMES = 3                # codes of answers
    LATENCY_STEPS = 10
    TOOK_STEPS = 13
    SIZES = 6
    ESCAPE_MAX = 6              # bytes of an escaped byte
    BURST_BYTES = 64 << 10      # answers to a connection that are sent together
    WAIT_MS_MAX = 60000

cdef int64_t[SIZES] SIZE_LIMITS = list(SIZE_BOUNDS)
cdef int64_t[LATENCY_STEPS - 1] LATENCY_LIMITS = list(BOUNDS_MS)
cdef int64_t[TOOK_STEPS - 1] TOOK_LIMITS = list(PUT_TIME_BOUNDS_MS)
cdef int32_t[SERVED_CODES] REQUESTS = [SEND, SEND_V2, PULL, LITE_PULL]
cdef int32_t[OUTCOMES] CODES = [0, ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT]
cdef int64_t EVERYTHING = 0x7FFFFFFFFFFFFFFF

cdef extern from "<unistd.h>" nogil:
    ssize_t write(int fd, const void *data, size_t n)

cdef extern from *:
    """
    #define mq_count(p, n) __atomic_store_n((p), *(p) + (n), __ATOMIC_RELAXED)
    #define mq_read(p) __atomic_load_n((p), __ATOMIC_RELAXED)
    """
    void mq_count(int64_t *p, int64_t n) noexcept nogil
    int64_t mq_read(const int64_t *p) noexcept nogil
    int32_t mq_read32 "mq_read"(const int32_t *p) noexcept nogil


# A stored message whose answer waits for the disk, for slaves, or for both.
cdef struct Parked:
    mq_conn *conn
    int waits
    int64_t end_offset
    int64_t begun_ns
    SendAnswer answer

# Latencies of answers, as Latencies counts them: by code of the request, by code of the answer.
cdef struct Latency:
    int64_t counts[LATENCY_STEPS]
    int64_t sum_ms

# Of one reactor.
cdef struct ReactorState:
    uint8_t *properties         # as they are stored
    uint8_t *burst
    Parked *parked              # a ring, by end offset
    int64_t head
    int64_t tail
    int64_t asked               # end of the messages for which the slaves were woken
    Latency latencies[SERVED_CODES][OUTCOMES]
    PullState pulls
    int64_t took[TOOK_STEPS]    # puts of a millisecond and more
    int64_t took_max_ms
    int64_t full                # sends left to Python since the ring was full

cdef struct Sends:
    mq_service service          # first: reactors get its address
    PutEntry put
    Pulls *pulls
    TopicSlots **topics
    AnswerParts parts
    const uint8_t *additions
    Py_ssize_t additions_bytes
    const uint8_t *store_host
    int store_host_bytes
    int32_t is_open
    int32_t waits
    uint32_t sync_wanted        # futex of the thread that syncs
    uint32_t ends
    int64_t timeout_ns
    int64_t acked               # as many slaves as needed have the log up to here
    int64_t reach               # the same of slaves that are connected now
    int64_t max_gap             # a slave that is behind by so much counts as absent
    int64_t slave_timeout_ns
    uint32_t slaves_wanted      # the event loop was told to send to slaves, and has not begun
    int slaves_fd
    mq_group *group
    int reactors
    ReactorState states[MQ_REACTORS_MAX]


cdef inline int step_of(const int64_t *limits, int n, int64_t value) noexcept nogil:
    """Return the number of limits below a value (bisect_left)."""
    cdef int i = 0
    while i < n and limits[i] < value:
        i += 1
    return i


cdef inline void note_latency(ReactorState *state, int32_t code, int outcome, int64_t took_ns) noexcept nogil:
    cdef int at = 0 if code == SEND else 1 if code == SEND_V2 else 2 if code == PULL else 3
    cdef Latency *row = &state.latencies[at][outcome]
    cdef int64_t took_ms = took_ns // 1000000 if took_ns > 0 else 0
    mq_count(&row.counts[step_of(LATENCY_LIMITS, LATENCY_STEPS - 1, took_ms)], 1)
    mq_count(&row.sum_ms, took_ms)


cdef inline void note_put(ReactorState *state, TopicCounts *counts, int64_t size, int64_t took_ns) noexcept nogil:
    cdef int64_t took_ms = took_ns // 1000000
    cdef int step
    mq_count(&counts.bytes, size)
    mq_count(&counts.sizes[step_of(SIZE_LIMITS, SIZES, size)], 1)
    mq_count(&counts.puts, 1)
    if took_ms > 0:
        step = step_of(TOOK_LIMITS, TOOK_STEPS - 1, took_ms + 1)        # bisect_right
        mq_count(&state.took[step], 1)
        if took_ms > state.took_max_ms:
            mq_store64(&state.took_max_ms, took_ms)


cdef int serve_send(Sends *sends, mq_turn *turn, const mq_frame *frame, RawHeader *header) noexcept nogil:
    cdef ReactorState *state = &sends.states[turn.index]
    cdef LogState *log = sends.put.state
    cdef SendFields fields
    cdef Draft d
    cdef Appended stored
    cdef SendAnswer answer
    cdef Parked *parked
    cdef Topic *topic
    cdef const uint8_t *host = NULL
    cdef const char *text = <const char *> state.properties
    cdef const char *unique = NULL
    cdef uint8_t *to
    cdef Py_ssize_t size, unique_bytes = 0
    cdef int64_t begun_ns, took_ns
    cdef int32_t waits = mq_read32(&sends.waits)
    cdef int host_bytes = conn_host(turn.conn, &host), outcome
    if not mq_read32(&sends.is_open) or host_bytes == 0 or not read_send(header, &fields):
        return MQ_HAND_OVER_IN_ORDER
    topic = find_topic(sends.topics, fields.topic.at, fields.topic.size)
    if topic == NULL or fields.queue_id < 0 or fields.queue_id >= <int32_t> mq_load32(<uint32_t *> &topic.queues):
        return MQ_HAND_OVER_IN_ORDER
    size = fields.properties.size
    if size == 0 or size > (ESCAPE_MAX if fields.properties.escaped else 1) * MAX_PROPERTIES:
        return MQ_HAND_OVER_IN_ORDER
    if fields.properties.escaped:
        size = unescape(fields.properties.at, size, state.properties)
    else:
        memcpy(state.properties, fields.properties.at, size)
    if state.properties[size - 1] != 2:
        state.properties[size] = 2
        size += 1
    if needs_slow_path(text, text + size, waits != 0, &unique, &unique_bytes):
        return MQ_HAND_OVER_IN_ORDER
    if not 0 < unique_bytes <= UNIQUE_MAX or not is_plain_text(<const uint8_t *> unique, unique_bytes):
        return MQ_HAND_OVER_IN_ORDER
    if turn.is_after_other:
        return MQ_LATER
    if waits and state.tail - state.head >= PARKED_MAX:
        mq_count(&state.full, 1)
        return MQ_HAND_OVER_IN_ORDER
    if waits & SLAVES and mq_load64(&log.written) + frame.body_bytes + size - mq_load64(&sends.reach) >= mq_load64(
            &sends.max_gap):
        return MQ_HAND_OVER_IN_ORDER        # too few slaves: the answer of Python says so
    answer.unique_bytes = <uint8_t> unique_bytes
    memcpy(answer.unique, unique, unique_bytes)
    memcpy(state.properties + size, sends.additions, sends.additions_bytes)
    d.queue_id = fields.queue_id
    d.flag = fields.flag
    d.sys_flag = (fields.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6)) | mq_read32(&topic.sys_flag)
    if host_bytes == 20:
        d.sys_flag |= BORN_HOST_V6
    if sends.store_host_bytes == 20:
        d.sys_flag |= STORE_HOST_V6
    d.born_timestamp = fields.born_timestamp
    d.reconsume_times = fields.reconsume_times
    d.born_host = host
    d.store_host = sends.store_host
    d.body = frame.body
    d.body_bytes = frame.body_bytes
    d.topic = topic.name
    d.topic_bytes = topic.name_bytes
    d.properties = state.properties
    d.properties_bytes = <int32_t> (size + sends.additions_bytes)
    begun_ns = log.os.monotonic_ns(log.os)
    outcome = put_without_gil(&sends.put, &d, &stored)
    if outcome == PUT_LEFT:
        return MQ_HAND_OVER_IN_ORDER
    if outcome == PUT_LOST:
        return MQ_CUT
    took_ns = log.os.monotonic_ns(log.os) - begun_ns
    note_put(state, &topic.counts[turn.index], stored.size, took_ns)
    answer.codec = <uint8_t> frame.codec
    answer.code = 0
    answer.opaque = header.opaque
    answer.queue_id = fields.queue_id
    answer.physical_offset = stored.physical_offset
    answer.queue_offset = stored.queue_offset
    if waits:
        parked = &state.parked[state.tail & (PARKED_MAX - 1)]
        conn_hold(turn.conn)
        parked.conn = turn.conn
        parked.waits = waits
        parked.end_offset = stored.physical_offset + stored.size
        parked.begun_ns = begun_ns
        parked.answer = answer
        parked.answer.code = header.code        # until the answer: the code of the request
        mq_store64(&state.tail, state.tail + 1)
        return MQ_SERVED
    note_latency(state, header.code, 0, took_ns)
    to = turn_room(turn, ANSWER_MAX)
    turn_add(turn, write_answer(&sends.parts, &answer, to))
    return MQ_SERVED


cdef int serve_pull_in_time(Sends *sends, mq_turn *turn, const mq_frame *frame, RawHeader *header) noexcept nogil:
    """Serve a pull, and note how long that took."""
    cdef ReactorState *state = &sends.states[turn.index]
    cdef mq_os *os = sends.put.state.os
    cdef int64_t begun_ns = os.monotonic_ns(os)
    cdef int outcome = serve_pull(sends.pulls, &state.pulls, turn, frame, header)
    if outcome == MQ_SERVED:
        note_latency(state, header.code, 0, os.monotonic_ns(os) - begun_ns)
    return outcome


cdef int serve(mq_service *service, mq_turn *turn, const mq_frame *frame) noexcept nogil:
    cdef RawHeader header
    if not read_header(frame.header, frame.header_bytes, frame.codec, &header):
        return MQ_HAND_OVER_IN_ORDER        # it may be a send
    if header.code == SEND or header.code == SEND_V2:
        if header.flag != 0:
            return MQ_HAND_OVER_IN_ORDER
        return serve_send(<Sends *> service, turn, frame, &header)
    if header.code == PULL or header.code == LITE_PULL:
        return serve_pull_in_time(<Sends *> service, turn, frame, &header)
    # in order: sends of any kind, and commits, which a later pull with a commit must not overtake
    return MQ_HAND_OVER_IN_ORDER if header.code in (SEND_BATCH, UPDATE_OFFSET) else MQ_HAND_OVER


# --- answers that wait ---

cdef void send_burst(ReactorState *state, mq_conn *conn, Py_ssize_t size) noexcept nogil:
    cdef iovec part
    if size:
        part.iov_base = state.burst
        part.iov_len = size
        conn_send(conn, &part, 1)


cdef void answer_parked(Sends *sends, ReactorState *state, int64_t now_ns, bint is_end) noexcept nogil:
    """Answer the messages that wait for nothing any more, or for too long.

    is_end: answer all. After a failure of the log, connections of messages that wait for the disk are cut: no answer
    is right.
    """
    cdef LogState *log = sends.put.state
    cdef bint is_lost = mq_load32(&log.flags) & LOG_FAILED != 0
    cdef int64_t durable = mq_load64(&log.flushed), acked = mq_load64(&sends.acked), age_ns
    cdef int64_t slave_timeout_ns = mq_load64(&sends.slave_timeout_ns)
    cdef Parked *parked
    cdef mq_conn *conn = NULL
    cdef Py_ssize_t size = 0
    cdef int32_t code
    cdef int outcome
    cdef bint on_disk, at_slaves
    while state.head < state.tail:
        parked = &state.parked[state.head & (PARKED_MAX - 1)]
        age_ns = EVERYTHING if is_end else now_ns - parked.begun_ns
        on_disk = not parked.waits & DISK or parked.end_offset <= durable
        at_slaves = not parked.waits & SLAVES or parked.end_offset <= acked
        if not (is_lost and not on_disk) and (not on_disk and age_ns < sends.timeout_ns
                                              or not at_slaves and age_ns < slave_timeout_ns):
            break
        if conn != parked.conn or size > BURST_BYTES - ANSWER_MAX:
            if conn != NULL:
                send_burst(state, conn, size)
            size = 0
        if conn != parked.conn:
            if conn != NULL:
                conn_release(conn)
            conn = parked.conn
            conn_hold(conn)
        if is_lost and not on_disk:
            conn_close(conn, 1)
        else:
            outcome = 2 if not at_slaves else 0 if on_disk else 1
            code = parked.answer.code
            parked.answer.code = CODES[outcome]
            size += write_answer(&sends.parts, &parked.answer, state.burst + size)
            note_latency(state, code, outcome, now_ns - parked.begun_ns)
        conn_release(parked.conn)
        mq_store64(&state.head, state.head + 1)
    if conn != NULL:
        send_burst(state, conn, size)
        conn_release(conn)


cdef void ask_for_commit(Sends *sends, ReactorState *state) noexcept nogil:
    """Let the log be synced and sent to slaves up to the newest message whose answer waits."""
    cdef Parked *newest = &state.parked[(state.tail - 1) & (PARKED_MAX - 1)]
    cdef uint64_t one = 1
    if (newest.waits & DISK and newest.end_offset > mq_load64(&sends.put.state.flushed)
            and mq_load32(&sends.sync_wanted) == 0):
        mq_store32(&sends.sync_wanted, 1)
        futex_wake_all(&sends.sync_wanted)
    if newest.waits & SLAVES and newest.end_offset > state.asked:
        state.asked = newest.end_offset
        if mq_cas32(&sends.slaves_wanted, 0, 1):
            write(sends.slaves_fd, &one, sizeof(one))


cdef int after_round(mq_service *service, mq_turn *turn) noexcept nogil:
    cdef Sends *sends = <Sends *> service
    cdef ReactorState *state = &sends.states[turn.index]
    cdef Parked *oldest
    cdef int64_t now_ns, due_ns = 0
    if state.head == state.tail:
        return -1
    now_ns = sends.put.state.os.monotonic_ns(sends.put.state.os)
    answer_parked(sends, state, now_ns, False)
    if state.head == state.tail:
        return -1
    ask_for_commit(sends, state)
    oldest = &state.parked[state.head & (PARKED_MAX - 1)]
    if oldest.waits & DISK and oldest.end_offset > mq_load64(&sends.put.state.flushed):
        due_ns = sends.timeout_ns
    if oldest.waits & SLAVES and oldest.end_offset > mq_load64(&sends.acked):
        due_ns = max(due_ns, mq_load64(&sends.slave_timeout_ns))
    now_ns = oldest.begun_ns + due_ns - now_ns
    return <int> min(now_ns // 1000000 + 1, WAIT_MS_MAX) if now_ns > 0 else 0


cdef void ended(mq_service *service, mq_turn *turn, mq_conn *conn) noexcept nogil:
    """Do nothing: a parked answer keeps the connection, and sends nothing after the end."""


cdef void wake_parked(Sends *sends) noexcept nogil:
    """Wake the reactors that have answers to give."""
    cdef int i
    for i in range(sends.reactors):
        if mq_load64(&sends.states[i].head) != mq_load64(&sends.states[i].tail):
            group_wake(sends.group, i)


cdef void sync_as_wanted(Sends *sends) noexcept nogil:
    """Sync the log whenever answers wait, and wake their reactors, until the service ends."""
    cdef LogState *log = sends.put.state
    while not mq_load32(&sends.ends):
        if mq_load32(&sends.sync_wanted) == 0:
            futex_wait(&sends.sync_wanted, 0, -1)
            continue
        mq_and32(&sends.sync_wanted, 0)
        flush_up_to(log, mq_load64(&log.written), -1)
        wake_parked(sends)


cdef class SendService(ReactorService):
    """The sends and pulls that reactors serve, with counters.

    Args: additions: properties that the broker adds; id_prefix: the first part of message ids; json_pairs,
    binary_pairs: the broker's fields of each answer, encoded; timeout_ms: the longest wait for the disk; slaves_fd:
    an eventfd, written when bytes must be sent to slaves.
    Thread: that of the event loop, but ``sync``.
    """

    cdef Sends *sends
    cdef Reactors reactors
    cdef Core core
    cdef TopicTable table
    cdef PullTable pulls
    cdef tuple kept
    cdef list counted           # latencies that were taken
    cdef list took

    def __cinit__(self):
        self.sends = <Sends *> calloc(1, sizeof(Sends))
        if self.sends == NULL:
            raise MemoryError()

    def __init__(self, Reactors reactors not None, Core core not None, TopicTable table not None,
                 PullTable pulls not None, *, bytes additions, str id_prefix, bytes store_host, bytes json_pairs,
                 bytes binary_pairs, int timeout_ms, int slaves_fd):
        cdef Sends *sends = self.sends
        cdef bytes prefix = id_prefix.encode()
        cdef int i
        if len(json_pairs) + len(prefix) > PAIRS_MAX or len(binary_pairs) + len(prefix) > PAIRS_MAX:
            raise UsageError(f"fields of answers: expected at most {PAIRS_MAX} bytes, found {len(json_pairs)}")
        self.reactors = reactors
        self.core = core
        self.table = table
        self.pulls = pulls
        self.kept = additions, prefix, store_host, json_pairs, binary_pairs
        self.counted = [0] * (SERVED_CODES * OUTCOMES * (LATENCY_STEPS + 1))
        self.took = [0] * TOOK_STEPS
        open_entry(core, &sends.put)
        sends.topics = &table.slots
        sends.pulls = &pulls.pulls
        sends.parts.json_pairs = json_pairs
        sends.parts.json_bytes = len(json_pairs)
        sends.parts.binary_pairs = binary_pairs
        sends.parts.binary_bytes = len(binary_pairs)
        sends.parts.id_prefix = prefix
        sends.parts.id_bytes = len(prefix)
        sends.additions = additions
        sends.additions_bytes = len(additions)
        sends.store_host = store_host
        sends.store_host_bytes = <int> len(store_host)
        sends.timeout_ns = <int64_t> timeout_ms * 1000000
        sends.slaves_fd = slaves_fd
        sends.reach = -EVERYTHING // 2
        sends.group = reactors.group
        sends.reactors = reactors.threads
        for i in range(reactors.threads):
            sends.states[i].properties = <uint8_t *> calloc(1, (ESCAPE_MAX + 1) * MAX_PROPERTIES + len(additions))
            sends.states[i].burst = <uint8_t *> calloc(1, BURST_BYTES)
            sends.states[i].parked = <Parked *> calloc(PARKED_MAX, sizeof(Parked))
            if (sends.states[i].properties == NULL or sends.states[i].burst == NULL
                    or sends.states[i].parked == NULL):
                raise MemoryError()
        sends.service.serve = serve
        sends.service.after_round = after_round
        sends.service.ended = ended
        self.service = &sends.service

    def __dealloc__(self):
        cdef int i
        for i in range(MQ_REACTORS_MAX):
            free(self.sends.states[i].properties)
            free(self.sends.states[i].burst)
            free(self.sends.states[i].parked)
            free(self.sends.states[i].pulls.hits.at)
        free(self.sends)

    def open(self, bint is_open, bint disk, bint slaves) -> None:
        """Serve sends or leave them to Python. Args: disk, slaves: what answers wait for."""
        mq_store32(<uint32_t *> &self.sends.waits, (DISK if disk else 0) | (SLAVES if slaves else 0))
        mq_store32(<uint32_t *> &self.sends.is_open, is_open)

    def set_slaves(self, int64_t acked, int64_t reach, int64_t max_gap_bytes, int64_t timeout_ms) -> None:
        """Note what slaves have, and answer the messages that they have.

        Args: acked: the offset that as many slaves as needed have reached; reach: the same of slaves that are connected
            now, -1 for too few of them; max_gap_bytes: a slave that is behind by so much counts as absent.
        """
        mq_store64(&self.sends.reach, reach if reach >= 0 else -EVERYTHING // 2)
        mq_store64(&self.sends.max_gap, max_gap_bytes)
        mq_store64(&self.sends.slave_timeout_ns, min(timeout_ms, EVERYTHING // 1000000) * 1000000)
        mq_store64(&self.sends.acked, acked)
        with nogil:
            wake_parked(self.sends)

    def slaves_woken(self) -> None:
        """Note that the event loop is about to send to slaves: a later message wakes the loop again."""
        mq_and32(&self.sends.slaves_wanted, 0)

    def sync(self) -> None:
        """Sync the log whenever answers wait; returns after ``close``. Thread: one of its own."""
        with nogil:
            sync_as_wanted(self.sends)

    def close(self) -> None:
        """Answer all parked messages, after a last sync; called when no reactor uses the service any more."""
        cdef Sends *sends = self.sends
        cdef LogState *log = sends.put.state
        cdef int i
        mq_store32(&sends.ends, 1)
        mq_add32(&sends.sync_wanted, 1)
        futex_wake_all(&sends.sync_wanted)
        with nogil:
            for i in range(sends.reactors):
                if sends.states[i].head == sends.states[i].tail:
                    continue
                if sends.waits & DISK:
                    flush_up_to(log, mq_load64(&log.written), -1)
                answer_parked(sends, &sends.states[i], log.os.monotonic_ns(log.os), True)

    def take_latencies(self) -> list:
        """Return (request code, response code, counts by step, sum of ms) since the last call."""
        cdef Latency sums
        cdef int i, k, code, outcome, at = 0
        cdef list rows = [], counts
        for code in range(SERVED_CODES):
            for outcome in range(OUTCOMES):
                counts = [0] * (LATENCY_STEPS + 1)
                for i in range(self.sends.reactors):
                    for k in range(LATENCY_STEPS):
                        counts[k] += mq_read(&self.sends.states[i].latencies[code][outcome].counts[k])
                    counts[LATENCY_STEPS] += mq_read(&self.sends.states[i].latencies[code][outcome].sum_ms)
                fresh = [now - before for now, before in zip(counts, self.counted[at:at + len(counts)])]
                self.counted[at:at + len(counts)] = counts
                at += len(counts)
                if any(fresh):
                    row = REQUESTS[code], CODES[outcome], fresh[:LATENCY_STEPS], fresh[LATENCY_STEPS]
                    rows.append(row)
        return rows

    def take_slow_puts(self) -> tuple:
        """Return the puts of a millisecond and more since the last call, by step, and the longest of all in ms."""
        cdef int i, step
        cdef list sums = [0] * TOOK_STEPS
        cdef int64_t most = 0
        for i in range(self.sends.reactors):
            for step in range(TOOK_STEPS):
                sums[step] += mq_read(&self.sends.states[i].took[step])
            most = max(most, mq_read(&self.sends.states[i].took_max_ms))
        fresh = [now - before for now, before in zip(sums, self.took)]
        self.took = sums
        return fresh, most

    @property
    def parked(self) -> int:
        """Return the number of answers that wait."""
        cdef int i
        return sum([
            mq_load64(&self.sends.states[i].tail) - mq_load64(&self.sends.states[i].head)
            for i in range(self.sends.reactors)
        ])

    @property
    def parked_full(self) -> int:
        """Return the number of sends that were left to Python since too many answers waited."""
        cdef int i
        return sum([mq_read(&self.sends.states[i].full) for i in range(self.sends.reactors)])
