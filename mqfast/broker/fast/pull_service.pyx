"""Pulls inside of reactors: answers with messages of a published group, in memory, in one file of the queue.

Without the GIL. No pull is refused or held: every other pull goes to Python, without a trace here. A file stays mapped
until the round of the reactor ends: see ``pull_table.pyx``.
Source: PullMessageProcessor, DefaultMessageStore.getMessage.
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy
from mqfast.broker.fast.pull_request cimport (
    COMMIT_OFFSET,
    LITE_PULL,
    PULL_ANSWER_MAX,
    PullAnswer,
    PullFields,
    read_pull,
    write_pull_answer,
)
from mqfast.broker.fast.pull_table cimport (
    Entry,
    LogFiles,
    MappedBytes,
    Pulls,
    Route,
    find_entry,
    is_usable,
    log_file_of,
    log_files_of,
    note_pull,
    route_of,
)
from mqfast.remoting.raw_header cimport RawHeader
from mqfast.remoting.reactor.reactor cimport (
    MQ_HAND_OVER,
    MQ_SERVED,
    conn_send,
    iovec,
    mq_frame,
    mq_turn,
    turn_add,
    turn_room,
)
from mqfast.store.base.os_api cimport mq_get64, mq_load32, mq_load64, mq_store32
from mqfast.store.get.get_records cimport LEAST_BYTES, MOST_BYTES
from mqfast.store.get.hits cimport Hit, Hits
from mqfast.store.get.unit_walk cimport WALK_BEYOND, WALK_END, WALK_FILE, WALK_FULL, WALK_SCANNED, UnitWalk, walk_units
from mqfast.store.log.log_state cimport LOG_CLOSED, LOG_FORKED, LogState
from mqfast.store.queues.consume_queue cimport UNIT_BYTES, QueueState

cdef enum:
    COUNT_MAX = 1024            # a larger request has limits of its own
    COPIED_MAX = 32 << 10       # bytes of records that are sent with the other answers of the round
    PARTS_MAX = 64              # of an answer

cdef int64_t I32_MAX = 2147483647
cdef int64_t NO_PAUSE = (<int64_t> 1 << 62) // UNIT_BYTES      # its byte added to that of any unit fits 63 bits


cdef inline void ask(uint32_t *flag) noexcept nogil:
    """Request another file from Python, which serves the pull and then reads the flag."""
    if not mq_load32(flag):
        mq_store32(flag, 1)


cdef void begin_walk(UnitWalk *w, Hits *hits, const Route *route, const PullFields *f, const LogState *log,
                     int64_t end) noexcept nogil:
    cdef int64_t most_bytes = f.max_bytes if f.max_bytes > 0 else I32_MAX
    hits.count = hits.total_bytes = 0
    w.queue = route.queue
    w.units = route.units.base
    w.units_start = route.units.start
    w.units_end = min(end, route.units.start + route.units.bytes)
    w.at = f.queue_offset * UNIT_BYTES
    w.readable_end = mq_load64(&log.written)
    w.file = NULL
    w.file_start = w.file_bytes = 0
    w.removed_until = INT64_MIN
    w.by_unit = route.by_unit
    w.by_record = route.by_record
    w.context = route.context
    w.ask = False
    w.limits = route.limits
    w.limits.count = f.max_count
    w.limits.bytes = min(max(most_bytes, LEAST_BYTES), MOST_BYTES)
    w.limits.scan_bytes = max(w.limits.scan_bytes, w.limits.count * UNIT_BYTES)
    w.scan_end = w.at + min(w.limits.scan_bytes, INT64_MAX - w.at)
    w.in_memory_from = w.readable_end - w.limits.memory_bytes
    w.pause = NO_PAUSE
    w.decided = w.allowed = -1
    w.hits = hits
    w.last_physical = 0
    w.rejected = False


cdef bint find_messages(Pulls *pulls, UnitWalk *w) noexcept nogil:
    """Walk as a broker's get does. Returns: False if the pull is left to Python."""
    cdef const LogFiles *files = log_files_of(pulls)
    cdef const MappedBytes *file
    cdef const MappedBytes *used[4]
    cdef int count = 0, stop, i
    while True:
        stop = walk_units(w)
        if stop == WALK_FILE:
            file = log_file_of(files, w.physical)
            if file == NULL or not is_usable(file) or count == 4:
                ask(&pulls.asks)
                return False
            used[count] = file
            count += 1
            w.file = file.base
            w.file_start = file.start
            w.file_bytes = file.bytes
        elif stop == WALK_END or stop == WALK_FULL or stop == WALK_SCANNED or stop == WALK_BEYOND:
            break
        else:
            return False
    for i in range(count):
        if not is_usable(used[i]):
            return False
    return w.hits.count > 0


cdef int ranges_of(const Hits *hits, const UnitWalk *w, iovec *parts) noexcept nogil:
    """Describe the records, adjacent ones as one part. Returns: the number of parts, 0 for too many parts."""
    cdef const Hit *hit
    cdef uint8_t *behind = NULL
    cdef Py_ssize_t i
    cdef int n = 0
    for i in range(hits.count):
        hit = &hits.at[i]
        if n and hit.record == behind:
            parts[n - 1].iov_len += hit.size
        elif n == PARTS_MAX:
            return 0
        else:
            parts[n].iov_base = <void *> hit.record
            parts[n].iov_len = hit.size
            n += 1
        behind = <uint8_t *> hit.record + hit.size
    return n


cdef void send(mq_turn *turn, const PullAnswer *answer, int64_t body_bytes, iovec *parts, int count) noexcept nogil:
    """Send an answer. Args: parts: of the body, from the second part on."""
    cdef uint8_t head[PULL_ANSWER_MAX]
    cdef uint8_t *to
    cdef Py_ssize_t size
    cdef int i
    if body_bytes > COPIED_MAX:
        parts[0].iov_base = head
        parts[0].iov_len = write_pull_answer(answer, body_bytes, head)
        conn_send(turn.conn, parts, count + 1)
        turn.sent += body_bytes
        return
    to = turn_room(turn, PULL_ANSWER_MAX + COPIED_MAX)
    size = write_pull_answer(answer, body_bytes, to)
    for i in range(1, count + 1):
        memcpy(to + size, parts[i].iov_base, parts[i].iov_len)
        size += parts[i].iov_len
    turn_add(turn, size)


cdef Route *permitted(Pulls *pulls, RawHeader *header, const PullFields *f, Entry **entry) noexcept nogil:
    """Return the published route of a pull. NULL: the pull is left to Python."""
    cdef Route *route
    entry[0] = find_entry(pulls, f)
    route = NULL if entry[0] == NULL else route_of(entry[0])
    if (route == NULL or f.sub_version > route.sub_version or not 0 <= f.max_count <= COUNT_MAX
            or (header.code == LITE_PULL and not route.is_for_lite)):
        return NULL
    return route


cdef int serve_pull(Pulls *pulls, PullState *state, mq_turn *turn, const mq_frame *frame,
                    RawHeader *header) noexcept nogil:
    cdef LogState *log = pulls.state
    cdef const QueueState *queue
    cdef iovec parts[PARTS_MAX + 1]
    cdef PullFields f
    cdef PullAnswer answer
    cdef UnitWalk w
    cdef Entry *entry
    cdef Route *route
    cdef int64_t end, first
    cdef int count
    if header.flag != 0 or not read_pull(header, &f):
        return MQ_HAND_OVER
    if f.sys_flag & COMMIT_OFFSET and turn.is_after_other:
        return MQ_HAND_OVER         # a commit before, which Python has not served
    route = permitted(pulls, header, &f, &entry)
    if route == NULL or mq_load32(&log.flags) & (LOG_CLOSED | LOG_FORKED) or mq_load64(&log.confirm) != INT64_MAX:
        return MQ_HAND_OVER
    queue = route.queue
    end = mq_load64(&queue.end)
    first = mq_load64(&queue.min_logic) // UNIT_BYTES
    if not first <= f.queue_offset < end // UNIT_BYTES:
        return MQ_HAND_OVER
    if not (0 <= f.queue_offset * UNIT_BYTES - route.units.start < route.units.bytes) or not is_usable(&route.units):
        ask(&entry.asks)
        return MQ_HAND_OVER
    begin_walk(&w, &state.hits, route, &f, log, end)
    if mq_get64(w.units + (w.at - w.units_start)) < w.in_memory_from or not find_messages(pulls, &w):
        return MQ_HAND_OVER
    count = ranges_of(&state.hits, &w, parts + 1)
    if count == 0 or not is_usable(&route.units):
        return MQ_HAND_OVER
    answer.opaque = header.opaque
    answer.codec = <uint8_t> frame.codec
    answer.next_offset = w.at // UNIT_BYTES
    answer.min_offset = first
    answer.max_offset = end // UNIT_BYTES
    answer.broker_id = route.far_broker_id if w.last_physical < w.in_memory_from else route.broker_id
    answer.topic_sys_flag = route.topic_sys_flag
    answer.group_sys_flag = route.group_sys_flag
    if not mq_load32(&entry.used):
        mq_store32(&entry.used, 1)
    note_pull(pulls, route.position, answer.next_offset,
              f.commit_offset if f.sys_flag & COMMIT_OFFSET and f.commit_offset >= 0 else -1, state.hits.count,
              state.hits.total_bytes)
    send(turn, &answer, state.hits.total_bytes, parts, count)
    return MQ_SERVED
