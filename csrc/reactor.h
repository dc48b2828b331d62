/* Reactors: threads that own plain TCP connections, without the interpreter. Never includes Python.h.
 *
 * A reactor reads frames (length word, header, body), offers each whole frame to the service, and hands over every
 * frame that the service does not serve, as bytes, to the owner of the group: an event loop. A reactor knows no request
 * code and refuses nothing: bytes that are no frames are handed over as they come, and so is everything of a connection
 * that begins with TLS or a PROXY preamble.
 *
 * Two threads touch a connection: its reactor and the event loop. Shared fields are under the lock of the connection.
 * Nobody sends commands to a reactor: the loop changes fields under the lock and then the events that epoll reports.
 * Memory is bounded: a connection is not read while more than MQ_INBOX_MAX handed-over bytes wait for the loop, nor
 * while its peer leaves more than `high` bytes unread. */
#ifndef MQ_REACTOR_H
#define MQ_REACTOR_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct mq_group mq_group;
typedef struct mq_conn mq_conn;
typedef struct mq_turn mq_turn;
typedef struct mq_service mq_service;

enum {
    MQ_FRAME_SERVED_MAX = 256 * 1024, /* longer frames are handed over in pieces */
    MQ_INBOX_MAX = 256 * 1024,
    MQ_TURN_BYTES = 1024 * 1024,
    MQ_REACTORS_MAX = 64,
};

/* Outcomes of the service. */
enum {
    MQ_HAND_OVER = 0,
    MQ_SERVED = 1,
    MQ_HAND_OVER_IN_ORDER = 2, /* frames of this kind are served only after the loop has served this one */
    MQ_LATER = 3,              /* such a frame: offer it again after the loop has served those before */
    MQ_CUT = 4,                /* cut the connection: no answer would be right */
};

typedef struct {
    const uint8_t *header, *body;
    int32_t header_bytes, body_bytes;
    int codec; /* of the header: 0 JSON, 1 binary */
} mq_frame;

/* What serves frames inside of a reactor. */
struct mq_service {
    int (*serve)(mq_service *, mq_turn *, const mq_frame *);
    /* after each round of events: waiting answers. Returns the ms until the next call is due, -1: no time. */
    int (*after_round)(mq_service *, mq_turn *);
    /* a connection ended: forget it */
    void (*ended)(mq_service *, mq_turn *, mq_conn *);
};

/* A reactor, as the service sees it. */
struct mq_turn {
    mq_conn *conn;      /* of the frame */
    int index;          /* of the reactor, from 0 */
    int is_after_other; /* a frame handed over in order is not yet served by the loop */
    int64_t now_ns;     /* monotonic, when the round began */
    int64_t sent;       /* bytes of long answers, by the service; after MQ_TURN_BYTES other connections have a turn */
};

typedef struct {
    int threads;
    int64_t frame_bytes_max, header_bytes_max; /* a longer one is left to the loop */
    int64_t buffered_bytes_max;                /* of incomplete frames of the group; beyond, the loop gets the pieces */
    int64_t high, low;                         /* unsent bytes of a connection */
} mq_reactor_limits;

typedef struct {
    int64_t served, handed_over; /* frames; bytes of pieces count as one */
    int64_t later, inbox_full, unread,
        pieces; /* how often a connection had to wait, and frames handed over in pieces */
} mq_reactor_counts;

/* --- the owner's side: any thread but a reactor --- */

/* Returns NULL and sets errno. `signal_fd` becomes readable when mq_take_ready has something. */
mq_group *mq_group_new(const mq_reactor_limits *limits, int *signal_fd);
/* Exchange the service; returns when no reactor uses the former one. */
void mq_group_set_service(mq_group *, mq_service *);
/* Return when every reactor has ended the round that runs now. */
void mq_group_quiesce(mq_group *);
/* Let the threads end all connections, and return. The connections stay readable by mq_take_ready. */
void mq_group_stop(mq_group *);
/* Be a reactor until mq_group_stop: a thread calls this for each index, without the GIL. */
void mq_reactor_run(mq_group *, int index);
/* Free the group; not before the last mq_conn_release. */
void mq_group_free(mq_group *);
int64_t mq_group_buffered(const mq_group *);
void mq_group_counts(const mq_group *, mq_reactor_counts *);
void mq_group_clear_signal(mq_group *);
/* Wake a reactor, so that after_round is called. Any thread. */
void mq_group_wake(mq_group *, int index);

/* Give a socket to a reactor, which closes it. Returns NULL and sets errno. */
mq_conn *mq_conn_adopt(mq_group *, int fd, void *user, const uint8_t *host, int host_bytes);
/* The next connection that has something for the loop, NULL: none. */
mq_conn *mq_take_ready(mq_group *);

enum { MQ_GOT_EOF = 1, MQ_GOT_DRAINED = 2, MQ_GOT_END = 4 };
/* Take the handed-over bytes (free them with free), and what else happened: MQ_GOT_ flags. */
size_t mq_conn_take(mq_conn *, uint8_t **data, int *got);
/* All taken bytes were served: frames in order may be served again. */
void mq_conn_ack(mq_conn *);
void mq_conn_pause(mq_conn *, int paused);
/* Send, or keep what the socket does not take. Any thread. Returns the bytes that are kept, -1 after the end. */
int64_t mq_conn_send(mq_conn *, const struct iovec *parts, int count);
/* Ask for MQ_GOT_DRAINED once the kept bytes are below `low`. */
void mq_conn_want_drained(mq_conn *);
int64_t mq_conn_unsent(const mq_conn *);
int64_t mq_conn_active_ns(const mq_conn *);
/* End the connection, after the kept bytes are sent or at once. */
void mq_conn_close(mq_conn *, int at_once);
void mq_conn_hold(mq_conn *);
void mq_conn_release(mq_conn *);
void *mq_conn_user(const mq_conn *);
int mq_conn_fd(const mq_conn *);

/* --- the service's side: inside of a reactor --- */

/* Room for an answer to the frame's connection; NULL: longer than an answer may be. The bytes are sent with those of
 * the other frames of the round. */
uint8_t *mq_turn_room(mq_turn *, size_t bytes);
void mq_turn_add(mq_turn *, size_t bytes);
/* Address and port of the peer in the form of records: 8 or 20 bytes, 0: unknown. */
int mq_conn_host(const mq_conn *, const uint8_t **host);

#endif
