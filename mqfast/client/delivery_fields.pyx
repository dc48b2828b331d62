"""What a delivery has when it comes: its record, where it is from, and three fields of the consumer that has it.

Room: client. It must never do I/O; see ``delivery.py``, which has all the rest.
"""


cdef class Received:
    """The base of ``Delivery``.

    Attributes: ``again``: how often it was tried again without the broker. ``arrived_s``: when it came, in seconds
    since the epoch (0: there is no hook that asks for it). ``begun_s``: when it was handed out, by the consumer's clock
    (0: it was not).
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
        """Place in that queue."""
        return self._record.queue_offset

    @property
    def store_size(self):
        """Length of the record, bytes."""
        return self._record.size
