# The Python edge of a put: the cdef base of MessageStore and the bound producer.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.core cimport Core, StoreBase
from mqfast.store.log.append cimport Appended, Template
from mqfast.store.queues.consume_queue cimport ConsumeQueue, QueueState
from mqfast.store.log.log_state cimport LogState
from mqfast.store.put.put_result cimport PutResult


cdef class PutPath(StoreBase):
    cdef dict producers
    cdef object last_topic
    cdef object last_tags
    cdef int64_t last_queue_id
    cdef BoundProducer last_producer
    cdef bytes last_tail                # of the newest producer
    cdef inline PutResult fresh_result(self)
    cdef BoundProducer producer_of(self, object topic, int64_t queue_id, object tags)
    cdef PutResult put_plain(self, object topic, object body, object queue_id, object tags, object keys)


cdef class BoundProducer:
    cdef readonly PutPath store
    cdef Core engine
    cdef readonly str topic
    cdef readonly object tags
    cdef readonly ConsumeQueue queue
    cdef QueueState *q
    cdef LogState *state
    cdef bint general                   # records of other than the simple kind
    cdef int64_t most_bytes             # body and key up to this size are certainly not too large
    cdef bytes tail                     # owner of the template's tail
    cdef Template template
    cdef int fill_template(self, bytes topic, bytes properties) except -1
    cdef int rebind(self) except -1
    cdef int check_size(self, int64_t body_bytes, int64_t key_bytes) except -1
    cdef inline int append(self, object body, object key, Appended *out) except -1
    cdef int append_any(self, object body, object key, Appended *out) except -1
    cdef int append_bytes(self, const uint8_t *body, int64_t body_bytes, const uint8_t *key, int32_t key_bytes,
                          Appended *out) except -1
