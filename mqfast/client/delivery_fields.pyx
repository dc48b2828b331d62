"""The base of ``Delivery``: record, origin, and three fields of the consumer. No I/O; see ``delivery.py``."""


cdef class Received:
    """The base of ``Delivery``.

    Attributes: ``again``: retries without the broker. ``arrived_s``: time of arrival, seconds since the epoch (0: no
    hook is registered). ``begun_s``: time of the call of the handler, by the consumer's clock (0: not called).
    """

    cdef readonly object _record
    cdef readonly object _source
    cdef public int again
    cdef public double arrived_s
    cdef public double begun_s

    def __init__(self, record, source):
        self._record = record
        self._source = source

    @property
    def queue_offset(self):
        """Return the queue offset."""
        return self._record.queue_offset

    @property
    def store_size(self):
        """Return the size of the record, bytes."""
        return self._record.size
