# The reactors of a server, and what a service in C needs of them; see csrc/reactor.h.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef extern from "<sys/uio.h>" nogil:
    struct iovec:
        void *iov_base
        size_t iov_len

cdef extern from "reactor.h" nogil:
    ctypedef struct mq_group
    ctypedef struct mq_conn
    ctypedef struct mq_turn:
        mq_conn *conn
        int index
        int is_after_other
        int64_t now_ns
        int64_t sent
    ctypedef struct mq_frame:
        const uint8_t *header
        const uint8_t *body
        int32_t header_bytes
        int32_t body_bytes
        int codec
    ctypedef struct mq_service:
        int (*serve)(mq_service *, mq_turn *, const mq_frame *) noexcept nogil
        int (*after_round)(mq_service *, mq_turn *) noexcept nogil
        void (*ended)(mq_service *, mq_turn *, mq_conn *) noexcept nogil
    ctypedef struct mq_reactor_limits:
        int threads
        int64_t frame_bytes_max
        int64_t header_bytes_max
        int64_t buffered_bytes_max
        int64_t high
        int64_t low
    ctypedef struct mq_reactor_counts:
        int64_t served
        int64_t handed_over
        int64_t later
        int64_t inbox_full
        int64_t unread
        int64_t pieces
    enum:
        MQ_HAND_OVER
        MQ_SERVED
        MQ_HAND_OVER_IN_ORDER
        MQ_LATER
        MQ_CUT
        MQ_FRAME_SERVED_MAX
        MQ_REACTORS_MAX
        MQ_GOT_EOF
        MQ_GOT_DRAINED
        MQ_GOT_END
    mq_group *mq_group_new(const mq_reactor_limits *limits, int *signal_fd)
    void mq_group_set_service(mq_group *, mq_service *)
    void mq_group_quiesce(mq_group *)
    void mq_group_stop(mq_group *)
    void mq_reactor_run(mq_group *, int index)
    void mq_group_free(mq_group *)
    int64_t mq_group_buffered(const mq_group *)
    void mq_group_counts(const mq_group *, mq_reactor_counts *)
    void mq_group_clear_signal(mq_group *)
    void mq_group_wake(mq_group *, int index)
    mq_conn *mq_conn_adopt(mq_group *, int fd, void *user, const uint8_t *host, int host_bytes)
    mq_conn *mq_take_ready(mq_group *)
    size_t mq_conn_take(mq_conn *, uint8_t **data, int *got)
    void mq_conn_ack(mq_conn *)
    void mq_conn_pause(mq_conn *, int paused)
    int64_t mq_conn_send(mq_conn *, const iovec *parts, int count)
    void mq_conn_want_drained(mq_conn *)
    int64_t mq_conn_unsent(const mq_conn *)
    int64_t mq_conn_active_ns(const mq_conn *)
    void mq_conn_close(mq_conn *, int at_once)
    void mq_conn_hold(mq_conn *)
    void mq_conn_release(mq_conn *)
    void *mq_conn_user(const mq_conn *)
    int mq_conn_fd(const mq_conn *)
    uint8_t *mq_turn_room(mq_turn *, size_t bytes)
    void mq_turn_add(mq_turn *, size_t bytes)
    int mq_conn_host(const mq_conn *, const uint8_t **host)


# A service inside of the reactors: a subclass sets the functions, which need no GIL.
cdef class ReactorService:
    cdef mq_service *service


cdef class Reactors:
    cdef mq_group *group
    cdef object loop
    cdef int signal
    cdef readonly int threads
    cdef readonly bint stopped
    cdef int64_t high
    cdef int64_t low
    cdef set transports
    cdef object kept_service
    cdef list running


# For services: the C part is linked once, into this module.
cdef int64_t conn_send(mq_conn *conn, const iovec *parts, int count) noexcept nogil
cdef void conn_close(mq_conn *conn, int at_once) noexcept nogil
cdef void conn_hold(mq_conn *conn) noexcept nogil
cdef void conn_release(mq_conn *conn) noexcept nogil
cdef int conn_host(const mq_conn *conn, const uint8_t **host) noexcept nogil
cdef void group_wake(mq_group *group, int index) noexcept nogil
cdef void group_quiesce(mq_group *group) noexcept nogil
cdef uint8_t *turn_room(mq_turn *turn, size_t size) noexcept nogil
cdef void turn_add(mq_turn *turn, size_t size) noexcept nogil
