# Columns of hits. `pins`: the holds on the files that the hits point into.
from mqfast.store.get.hits cimport Hits

cdef object fixed_fields(const Hits *hits, list pins)
cdef object arrow_schema()
cdef tuple arrow_array(const Hits *hits, list pins, object requested_schema)
cdef object arrow_stream(const Hits *hits, list pins, object requested_schema)
cdef object record_batch(const Hits *hits, list pins)
