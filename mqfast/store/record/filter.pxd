# The messages that a reader requests: a test of the unit, and of its record if the unit does not decide.
from libc.stdint cimport int32_t, int64_t, uint8_t
from mqfast.store.record.record cimport PropertyRefs, Record

cdef enum Verdict:
    LEAVE = 0
    TAKE = 1
    ASK_RECORD = 2              # the unit does not decide: by_record does

cdef int64_t LEAST_TAGS_CODE    # smaller values are addresses of the extension file

# Both may run without the GIL, in any thread, and must not raise.
ctypedef int (*unit_test)(const void *context, int64_t tags_code) noexcept nogil
ctypedef bint (*record_test)(const void *context, const Record *record) noexcept nogil


cdef class UnitFilter:
    cdef unit_test by_unit      # NULL: everything matches
    cdef record_test by_record  # of units with the answer ASK_RECORD
    cdef const void *context


cdef struct TagTexts:
    int count
    int32_t hashes[64]
    int32_t lengths[64]
    const uint8_t *texts[64]


cdef class TagFilter(UnitFilter):
    cdef TagTexts tags
    cdef frozenset texts
    cdef tuple kept             # owners of the memory that the pointers point into


cdef struct CodeTable:          # open addressing
    int64_t mask
    int32_t *codes
    uint8_t *used


cdef class TagCodes(UnitFilter):
    cdef CodeTable table


cdef bint has_tag(const TagTexts *tags, const uint8_t *tag, int32_t n) noexcept nogil
cdef bint may_have_tag(const TagTexts *tags, int64_t tags_code) noexcept nogil
cpdef TagFilter tag_filter(object expression)
