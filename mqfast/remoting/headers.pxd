"""Declarations of headers.pyx for the send paths of broker and client: a send and its response, as C fields."""

from libc.stdint cimport int64_t
from mqfast.remoting.codec cimport RemotingCommand


cdef class SendHeader:
    cdef readonly str producer_group
    cdef readonly str topic
    cdef readonly str default_topic
    cdef readonly int default_topic_queue_nums
    cdef readonly int queue_id
    cdef readonly int sys_flag
    cdef readonly int64_t born_timestamp
    cdef readonly int flag
    cdef readonly bytes properties
    cdef readonly int reconsume_times
    cdef readonly bint unit_mode
    cdef readonly object max_reconsume_times
    cdef readonly bint batch
    cdef readonly object broker_name


cpdef SendHeader send_header(RemotingCommand command)


cdef class SendAnswer:
    cdef readonly str msg_id
    cdef readonly int queue_id
    cdef readonly int64_t queue_offset
    cdef readonly str transaction_id
    cdef readonly str recall_handle
    cdef readonly str region


cpdef SendAnswer send_answer(RemotingCommand command)
