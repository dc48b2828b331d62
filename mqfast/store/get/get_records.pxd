# The limits of a get for a broker.
from libc.stdint cimport int64_t
from mqfast.store.get.unit_walk cimport ReadLimits

cdef int64_t LEAST_BYTES
cdef int64_t MOST_BYTES         # maximum of a get, whatever is requested


cdef class GetLimits:
    cdef ReadLimits limits
