"""put: from a Python call to a record in the log, and the bound producer (RocketMQ: DefaultMessageStore.putMessage).
Messages of any kind go through put_record.pyx.

No byte is written before every check has passed, and the put lock is never held during a wait for the GIL. A body that
changes during the copy never leaves a record with a wrong CRC. The bound producer is the hot loop: everything constant
is encoded once.
"""


cimport cython
from cpython.buffer cimport PyBuffer_Release
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcpy, memset
from mqfast.store.put.bodies cimport Bodies, bodies_of, borrow_body
from mqfast.store.core cimport Core, StoreBase, integer
from mqfast.store.log.append cimport Appended, Template, append_many, append_one, refused
from mqfast.store.queues.consume_queue cimport ConsumeQueue, QueueState
from mqfast.store.log.log_state cimport APPEND_OK, BLANK_BYTES, LOG_FAILED, LogState, try_to_lock_puts, unlock_puts
from mqfast.store.base.os_api cimport (
    mq_load32,
    mq_prefetchr,
    mq_prefetchw,
    mq_put32,
    refuse_nested,
)
from mqfast.store.put.put_record cimport MAX_INT, MAX_PROPERTIES, put_all, put_slow
from mqfast.store.put.put_result cimport BatchResult, PutResult, fill_result
from mqfast.store.record.record cimport MAGIC_V1

from mqfast import properties as _properties
from mqfast.errors import MessageIllegal, MessageTooLarge, PropertiesTooLong
from mqfast.message import Message, check_topic, join_keys, needs_version_2
from mqfast.store.put.put_result import Ticket
from mqfast.store.base.results import PutMessageStatus

cdef extern from "Python.h":
    const char *PyUnicode_AsUTF8AndSize(object text, Py_ssize_t *size) except NULL

cdef int OK = PutMessageStatus.PUT_OK
cdef object ZERO = 0


cdef list listed(object many, str what):
    """Return a separate list, so that the items stay referenced while the GIL is released."""
    try:
        return list(many)
    except TypeError:
        raise MessageIllegal(f"{what}: expected several, found {type(many).__name__}") from None


cdef object joined(object keys):
    try:
        return join_keys(keys)
    except TypeError:
        raise MessageIllegal(f"keys: expected a str or several, found {type(keys).__name__}") from None


cdef object no_text(object body):
    """Return the body of a put, which is bytes; only a Message's body may be a text."""
    if isinstance(body, str):
        raise MessageIllegal("body: expected a contiguous bytes-like object, found str")
    return body


cdef Py_ssize_t MOST_PRODUCERS = 4096       # cached for puts without an explicit producer: some 2 KB each


@cython.no_gc_clear
cdef class PutPath(StoreBase):
    """The fast part of a put; the base of MessageStore."""

    def _bind(self, Core engine not None):
        """Connect the engine. Called once, before the first put."""
        self.engine = engine
        self.producers = {}
        self.last_queue_id = -1

    cdef inline PutResult fresh_result(self):
        """Make the result before the append: after a MemoryError nothing is stored."""
        cdef PutResult r = PutResult.__new__(PutResult)
        r.host = self.engine.store_host
        return r

    def forget_producers(self) -> None:
        """Drop cached producers after queues were deleted."""
        self.last_producer = None
        self.last_topic = None
        self.producers = {}

    cdef BoundProducer producer_of(self, object topic, int64_t queue_id, object tags):
        cdef BoundProducer p
        if topic is self.last_topic and tags is self.last_tags and queue_id == self.last_queue_id:
            p = self.last_producer
        else:
            key = (topic, queue_id, tags)
            try:
                p = self.producers.get(key)
            except TypeError:       # neither text nor hashable: the producer raises the error
                p = None
            if p is None:
                p = BoundProducer(self, topic, queue_id, tags)
                if len(self.producers) >= MOST_PRODUCERS:
                    self.producers = {}
                self.producers[key] = p
            self.last_topic = topic
            self.last_tags = tags
            self.last_queue_id = queue_id
            self.last_producer = p
        return p

    def producer(self, topic, queue_id=0, tags=None) -> BoundProducer:
        """Create a producer with bound topic, queue and tags. ``producer.put(body)`` and ``producer.put(body, key)``
        are for hot loops.

        Raises: MessageIllegal, TopicTooLong.
        """
        return BoundProducer(self, topic, queue_id, tags)

    def put(self, topic, body, queue_id=0, tags=None, keys=None, properties=None, *, flag=0, sys_flag=0,
            born_timestamp=None, born_host=None,
            store_host=None, reconsume_times=0, prepared_transaction_offset=0, wait_store_ok=True):
        """Store a message.

        Args: body: bytes-like. keys: a key, or several (joined by blanks). properties: a mapping, or the encoded
        property string as bytes. born_timestamp: ms, default the store time. born_host, store_host: ``address:port``.
        wait_store_ok: with sync flush, wait for the disk. A call with a field behind ``properties`` is ``put_message``
        of a Message with all of the fields.
        Returns: PutResult. Raises: MessageIllegal (MessageTooLarge, PropertiesTooLong, TopicTooLong) before any byte is
        written; DiskFull, PageCacheBusy, PoolExhausted, NotMaster (nothing written); FlushError, StoreFailed,
        StoreClosed, StoreForked.
        Durability: async flush: the message survives a killed process; a power cut loses messages since the last flush
        (docs/durability.md). Sync flush: the message survives a power cut if the status is PUT_OK. With the transient
        pool and async flush a killed process loses the last commit interval.
        Source: DefaultMessageStore.putMessage.
        """
        if (properties is None and flag is ZERO and sys_flag is ZERO and born_timestamp is None and born_host is None
            and store_host is None
                and reconsume_times is ZERO and prepared_transaction_offset is ZERO and wait_store_ok is True):
            return self.put_plain(topic, body, queue_id, tags, keys)
        message = Message(topic, no_text(body), queue_id, tags, keys, properties, flag=flag, sys_flag=sys_flag,
                          born_timestamp=born_timestamp, born_host=born_host, store_host=store_host,
                          reconsume_times=reconsume_times, prepared_transaction_offset=prepared_transaction_offset,
                          wait_store_ok=wait_store_ok)
        return put_slow(self.engine, message, True)

    cdef PutResult put_plain(self, object topic, object body, object queue_id, object tags, object keys):
        """Put topic, body, queue, tags and keys, the arguments of most calls."""
        cdef PutResult r
        cdef Appended out
        cdef int outcome = OK
        cdef BoundProducer p = self.producer_of(
            topic, 0 if queue_id is ZERO else integer(queue_id, "queue_id", 0, MAX_INT), tags)
        if p.general:
            return put_slow(self.engine, Message(topic, no_text(body), queue_id, tags, keys), True)
        if keys is not None and type(keys) is not str:
            keys = joined(keys)
        r = self.fresh_result()
        p.append(body, keys or None, &out)
        if self.engine.sync_flush:
            outcome = self.engine.wait_durable(out.physical_offset + out.size, self.engine.sync_timeout_ns)
        fill_result(r, &out, outcome)
        return r

    def put_message(self, message: Message) -> PutResult:
        """Store a Message. Returns and raises the same as put."""
        return put_slow(self.engine, message, True)

    def put_nowait(self, topic, body, queue_id=0, tags=None, keys=None, properties=None, **options) -> Ticket:
        """Store a message without waiting for the disk. Args: the same as put. Returns: Ticket, which can wait."""
        ticket = Ticket(self.engine, None)
        ticket.result = put_slow(self.engine, Message(topic, no_text(body), queue_id, tags, keys, properties,
                                                      **options), False)
        return ticket

    def put_many(self, topic, bodies, queue_id=0, tags=None) -> BatchResult:
        """Store many independent messages of a queue. The GIL is released once for all of them.

        Args: bodies: a sequence of bytes-like objects, a two-dimensional array (a body per row), a one-dimensional
        array of fixed-size bytes, void or records (buffer protocol, numpy), or an Arrow array, chunked array or column
        of binary or text. Arrays need no object per body. All bodies are read before the call returns. Returns:
        BatchResult, in order.
        Raises: the same as put, for the first invalid body, before anything is written; DiskFull may leave a first part
        stored.
        """
        return self.producer_of(topic, integer(queue_id, "queue_id", 0, MAX_INT), tags).put_many(bodies)

    def put_batch(self, messages) -> BatchResult:
        """Store several messages as a unit: all of them or none, adjacent in the log, with the same store time.

        If a message is invalid, none is stored. A process that is killed during the append may leave the first
        messages, as in RocketMQ.

        Args: messages: Message objects; topics and queues may differ. Returns: BatchResult, in order.
        Raises: the same as put; MessageTooLarge if the messages together exceed ``max_message_bytes`` or a log file.
        Source: CommitLog.asyncPutMessages (classic batch).
        """
        return put_all(self.engine, listed(messages, "messages"), True)


@cython.no_gc_clear
@cython.final
cdef class BoundProducer:
    """A producer with a bound topic, queue and tags, which are checked and encoded once. Thread: any; threads may share
    a producer.
    """

    def __init__(self, PutPath store, topic, queue_id=0, tags=None):
        if type(topic) is not str:
            raise MessageIllegal(f"topic: expected str, found {type(topic).__name__}")
        integer(queue_id, "queue_id", 0, MAX_INT)
        if tags is not None and type(tags) is not str:
            raise MessageIllegal(f"tags: expected str or None, found {type(tags).__name__}")
        self.store = store
        self.engine = store.engine
        self.topic = topic
        self.tags = tags
        self.engine.log.raise_state()
        refuse_nested()
        text = check_topic(topic)
        self.state = self.engine.state
        self.general = (needs_version_2(topic) or len(text) > 127 or len(self.engine.store_host) == 20
                        or len(self.engine.born_host) == 20
                        or self.engine.state.crc_property)
        self.queue = self.engine.queues.find_or_create(topic, queue_id)
        self.q = &self.queue.state
        if not self.general:
            self.fill_template(text, _properties.encode({_properties.TAGS: tags}) if tags else b"")

    @property
    def queue_id(self) -> int:
        """The queue id."""
        return self.queue.queue_id

    cdef int fill_template(self, bytes topic, bytes properties) except -1:
        cdef Template *t = &self.template
        cdef bytes tail = bytes([len(topic)]) + topic + len(properties).to_bytes(2, "big") + properties
        if tail == self.store.last_tail:
            tail = self.store.last_tail         # the many queues of a topic share a copy in the cache
        self.store.last_tail = self.tail = tail
        t.tail = <const uint8_t *> PyBytes_AS_STRING(tail)
        t.tail_bytes = <int32_t> PyBytes_GET_SIZE(tail)
        t.topic_bytes = <int32_t> PyBytes_GET_SIZE(topic) + 1
        t.properties_bytes = <int32_t> PyBytes_GET_SIZE(properties)
        t.tags_code = _properties.tags_code(self.tags)
        # tags have an entry in the index, which only the dispatcher puts
        t.dispatch_later = (self.topic == "SCHEDULE_TOPIC_XXXX"
                            or (bool(self.tags) and self.engine.dispatcher.index is not None)
                            or self.engine.queues.is_batch(self.topic))
        memset(t.header, 0, 88)
        mq_put32(t.header + 4, MAGIC_V1)
        mq_put32(t.header + 12, self.queue.queue_id)
        memcpy(t.header + 48, PyBytes_AS_STRING(self.engine.born_host), 8)
        memcpy(t.header + 64, PyBytes_AS_STRING(self.engine.store_host), 8)
        self.most_bytes = min(self.engine.max_body, self.engine.log.file_bytes - BLANK_BYTES - 88 - t.tail_bytes)
        return 0

    cdef int rebind(self) except -1:
        """Bind the current queue after the bound queue was deleted. Other threads may put with this
        producer meanwhile.
        """
        if self.queue.state.deleted:
            refuse_nested()
            self.queue = self.engine.queues.find_or_create(self.topic, self.queue.queue_id)
            self.q = &self.queue.state
        return 0

    cdef int check_size(self, int64_t body_bytes, int64_t key_bytes) except -1:
        """Raise MessageTooLarge if a record of these sizes would not fit; the producer's own limit is stricter."""
        cdef int64_t total = 88 + body_bytes + self.template.tail_bytes + key_bytes
        if body_bytes > self.engine.max_body:
            raise MessageTooLarge(f"body: expected at most {self.engine.max_body} bytes, found {body_bytes}")
        if total + BLANK_BYTES > self.engine.log.file_bytes:
            raise MessageTooLarge(f"record: expected at most {self.engine.log.file_bytes - BLANK_BYTES} bytes (a log "
                                  "file less its"
                                  f" end mark), found {total}")
        return 0

    cdef inline int append(self, object body, object key, Appended *out) except -1:
        """Append a body: bytes without a key directly, other bodies by the general path."""
        if key is None and PyBytes_CheckExact(body):
            return self.append_bytes(<const uint8_t *> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), NULL, 0, out)
        return self.append_any(body, key, out)

    cdef int append_any(self, object body, object key, Appended *out) except -1:
        cdef Py_buffer view
        cdef const uint8_t *key_text = NULL
        cdef Py_ssize_t key_bytes = 0
        if key is not None:
            if type(key) is not str:
                raise MessageIllegal(f"key: expected str, found {type(key).__name__}")
            try:
                key_text = <const uint8_t *> PyUnicode_AsUTF8AndSize(key, &key_bytes)
            except UnicodeEncodeError as error:
                raise MessageIllegal(f"key: expected text that has a UTF-8 form, found {key!r}") from error
            if key_bytes == 0:
                key_text = NULL
            elif key_bytes + self.template.properties_bytes + 6 > MAX_PROPERTIES:
                raise PropertiesTooLong(f"properties: expected at most {MAX_PROPERTIES} bytes,"
                                        f" found {key_bytes + 6 + self.template.properties_bytes}")
            elif memchr(key_text, 1, key_bytes) != NULL or memchr(key_text, 2, key_bytes) != NULL:
                raise MessageIllegal(f"key: expected text without U+0001 and U+0002, found {key!r}")
        if PyBytes_CheckExact(body):
            return self.append_bytes(<const uint8_t *> PyBytes_AS_STRING(body), PyBytes_GET_SIZE(body), key_text,
                                     <int32_t> key_bytes, out)
        try:
            borrow_body(body, &view)
        except (TypeError, BufferError, ValueError) as error:
            raise MessageIllegal(f"body: expected a contiguous bytes-like object, found "
                                 f"{type(body).__name__}") from error
        try:
            return self.append_bytes(<const uint8_t *> view.buf, view.len, key_text, <int32_t> key_bytes, out)
        finally:
            PyBuffer_Release(&view)

    cdef int append_bytes(self, const uint8_t *body, int64_t body_bytes, const uint8_t *key, int32_t key_bytes,
                          Appended *out) except -1:
        """Append in the hot loop: no Python object is touched except to raise."""
        cdef LogState *s = self.state
        cdef QueueState *q = self.q
        cdef int64_t extra = key_bytes + 6 if key != NULL else 0
        cdef int rc
        # with thousands of producers, this producer's and its queue's lines are in no cache: prefetched before the
        # lock, which loads wait for
        mq_prefetchw(q)
        mq_prefetchw(<uint8_t *> q + 64)
        mq_prefetchr(&self.template)
        mq_prefetchr(<uint8_t *> &self.template + 64)
        if body_bytes + extra > self.most_bytes:
            self.check_size(body_bytes, extra)
        while True:
            if not try_to_lock_puts(s):
                self.engine.contended()
                continue
            q = self.q              # under the lock: another thread may have rebound this producer
            if refused(s, q):
                unlock_puts(s)
                self.engine.log.raise_state()
                self.rebind()
                continue
            rc = append_one(s, q, &self.template, body, <int32_t> body_bytes, key, key_bytes, s.os.clock_ms(s.os), out)
            unlock_puts(s)
            if rc == APPEND_OK:
                break
            self.engine.log.roll(88 + body_bytes + self.template.tail_bytes + extra)
        if mq_load32(&s.flags) & LOG_FAILED:  # the record's page may be lost; the word is in the cache line of the lock
            self.engine.log.raise_state()
        return 0

    @cython.binding(False)
    def __reduce__(self):
        raise TypeError("a BoundProducer cannot be pickled: it belongs to its store, which one process writes")

    def put(self, body, key=None, /):
        """Store a message; ``key`` is stored as KEYS and indexed. As MessageStore.put."""
        cdef Appended out
        cdef PutResult r
        cdef int outcome = OK
        if self.general:
            return put_slow(self.engine, Message(self.topic, no_text(body), self.queue.queue_id, self.tags, key), True)
        r = self.store.fresh_result()
        self.append(body, key, &out)
        if self.engine.sync_flush:
            outcome = self.engine.wait_durable(out.physical_offset + out.size, self.engine.sync_timeout_ns)
        fill_result(r, &out, outcome)
        return r

    def message_of(self, body) -> Message:
        """Return a message of this producer's topic, queue and tags."""
        return Message(self.topic, body, self.queue.queue_id, self.tags)

    def put_many(self, bodies) -> BatchResult:
        """Store many independent messages; as MessageStore.put_many."""
        cdef Bodies given = bodies_of(bodies)
        cdef Py_ssize_t n = given.count, done = 0
        cdef BatchResult result = BatchResult.__new__(BatchResult)
        cdef LogState *s = self.state
        result.host = self.engine.store_host
        if n == 0:
            return result
        if self.general:
            return put_all(self.engine, list(map(self.message_of, given.objects())), False)
        self.engine.log.raise_state()
        cdef QueueState *q = self.q
        cdef bint prefault = self.engine.log.prefault_window > 0 and not s.pooled
        given.fill(self.most_bytes)
        result.items = <Appended *> PyMem_Malloc(n * sizeof(Appended))
        if result.items == NULL:
            raise MemoryError()
        while done < n:
            with nogil:
                done = append_many(s, q, &self.template, prefault, &given.list_, result.items, done, n)
            if done < n or mq_load32(&s.flags) & LOG_FAILED:
                self.engine.log.raise_state()    # a close behind the last message is no failure of this put
            if done < n:
                if q.deleted:
                    self.rebind()
                    q = self.q
                else:
                    self.engine.log.roll(88 + self.template.tail_bytes + given.size_of(done))
        result.count = n
        if self.engine.sync_flush:
            result.outcome = self.engine.wait_durable(result.end_offset, self.engine.sync_timeout_ns)
        return result

    def __repr__(self):
        return f"<BoundProducer {self.topic}/{self.queue.queue_id}>"
