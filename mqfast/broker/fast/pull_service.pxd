# Pulls inside of reactors.
from libc.stdint cimport uint8_t
from mqfast.broker.fast.pull_table cimport Pulls
from mqfast.remoting.raw_header cimport RawHeader
from mqfast.remoting.reactor.reactor cimport mq_frame, mq_turn
from mqfast.store.get.hits cimport Hits

# Of one reactor.
cdef struct PullState:
    Hits hits


cdef int serve_pull(Pulls *pulls, PullState *state, mq_turn *turn, const mq_frame *frame,
                    RawHeader *header) noexcept nogil
