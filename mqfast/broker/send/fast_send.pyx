"""The fast path of a send: a single message without delay, transaction or other special properties, to a known topic
with write permission.

Nothing is refused here: all other requests go to ``send_message.py``, which has RocketMQ's rules.
Source: SendMessageProcessor.sendMessage.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memchr, memcmp, memcpy
from mqfast.remoting.codec cimport RemotingCommand
from mqfast.remoting.headers cimport SendHeader, send_header
from mqfast.store.put.put_result cimport PutResult


cdef class SendTopic:
    """The fields of a topic that a send needs."""

    def __init__(self, str topic, int queues, int write_queues, int sys_flag, bint is_plain):
        self.topic = topic
        self.encoded = topic.encode()
        self.queues = queues
        self.write_queues = write_queues
        self.sys_flag = sys_flag
        self.is_plain = is_plain


cdef inline bint begins(const char *at, const char *end, const char *name, Py_ssize_t size) noexcept nogil:
    return end - at >= size and memcmp(at, name, size) == 0


cdef bint needs_slow_path(
    const char *at, const char *end, bint waits, const char **unique, Py_ssize_t *unique_bytes
) noexcept nogil:
    """Return True for a property that the broker acts on or replaces. Also finds the value of UNIQ_KEY.

    waits: responses wait for the disk or for slaves, unless WAIT has a value other than "true".
    """
    cdef const char *stop
    unique_bytes[0] = 0
    while at < end:
        if at[0] == c'U':
            if begins(at, end, b"UNIQ_KEY\x01", 9):
                stop = <const char *> memchr(at, 2, end - at)
                unique[0] = at + 9
                unique_bytes[0] = (end if stop == NULL else stop) - at - 9
        elif at[0] == c'D':
            if begins(at, end, b"DELAY\x01", 6):
                return True
        elif at[0] == c'T':
            if begins(at, end, b"TIMER_", 6) or begins(at, end, b"TRAN_MSG\x01", 9):
                return True
            if begins(at, end, b"TRACE_ON\x01", 9):
                return True
        elif at[0] == c'P':
            if begins(at, end, b"POP_CK\x01", 7):
                return True
        elif at[0] == c'I':
            if begins(at, end, b"INNER_MULTI_DISPATCH\x01", 21):
                return True
        elif at[0] == c'M':
            if begins(at, end, b"MSG_REGION\x01", 11):
                return True
        elif at[0] == c'C':
            if begins(at, end, b"CLUSTER\x01", 8):
                return True
        elif at[0] == c'_':
            if begins(at, end, b"_SYS_MSG_PRIORITY_\x01", 19):
                return True
        elif at[0] == c'W' and waits:
            if begins(at, end, b"WAIT\x01", 5) and not begins(at, end, b"WAIT\x01true\x02", 10):
                return True
        stop = <const char *> memchr(at, 2, end - at)
        if stop == NULL:
            break
        at = stop + 1
    return False


cdef class SendPath:
    """The fast path of a broker.

    Args: put: ``Engine.put_encoded``; additions: properties that the broker adds, each followed by a separator;
    id_prefix: the first part of message ids; answer_fields: in all responses; count: called with (topic, 1, bytes).
    Attributes: ``routes``: topic -> route, cleared after changes of topics; ``is_open``: False passes all requests to
    the slow path; ``waits``: responses wait until the log is committed up to ``end_offset``, the end of the last
    message; ``waiting``: (topic, queue id) with held pulls; ``notify`` is called for a message in such a queue.
    Thread: that of the event loop.
    """

    def __init__(self, put, bytes store_host, bytes additions, str id_prefix, dict answer_fields, count):
        self.put = put
        self.store_host = store_host
        self.additions = additions
        self.id_prefix = id_prefix
        self.answer_fields = answer_fields
        self.count = count
        self.routes = {}
        self.hosts = {}
        self.is_open = True
        self.waits = False
        self.end_offset = 0
        self.waiting = {}
        self.notify = None

    def send(self, channel, RemotingCommand request not None):
        """Store the message of a request. Returns: the response; None for a request of the slow path.

        Raises: FieldError; as ``Engine.put_encoded``.
        """
        cdef SendHeader header
        cdef SendTopic route
        cdef PutResult result
        cdef const char *unique = NULL
        cdef Py_ssize_t unique_bytes = 0
        cdef const char *given
        cdef Py_ssize_t size
        cdef bint ends
        cdef bytes properties
        cdef char *to
        if not self.is_open or request.code == 320:
            return None
        header = send_header(request)
        route = self.routes.get(header.topic)
        if route is None or not route.is_plain or header.batch or not 0 <= header.queue_id < route.queues:
            return None
        given = PyBytes_AS_STRING(header.properties)
        size = PyBytes_GET_SIZE(header.properties)
        if needs_slow_path(given, given + size, self.waits, &unique, &unique_bytes) or unique_bytes == 0:
            return None
        host = self.hosts.get(channel)
        if host is None:
            return None
        ends = given[size - 1] == 2
        properties = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(self.additions) + (not ends))
        to = PyBytes_AS_STRING(properties)
        memcpy(to, given, size)
        if not ends:
            to[size] = 2
            size += 1
        memcpy(to + size, PyBytes_AS_STRING(self.additions), PyBytes_GET_SIZE(self.additions))
        result = self.put(
            route.encoded, header.queue_id, request.body, properties, header.flag, header.sys_flag | route.sys_flag,
            header.born_timestamp, host, self.store_host, header.reconsume_times, 0, False,
        )
        self.end_offset = result.physical_offset + result.size
        self.count(route.topic, 1, result.size)
        if self.waiting:
            queue = route.topic, header.queue_id
            if queue in self.waiting:
                self.notify(queue)
        fields = self.answer_fields.copy()
        fields["msgId"] = "%s%016X" % (self.id_prefix, result.physical_offset)
        fields["queueId"] = header.queue_id
        fields["queueOffset"] = result.queue_offset
        fields["transactionId"] = unique[:unique_bytes].decode("utf-8", "replace")
        return request.response(0, fields)
