"""Filters of messages: by a unit's tags code first, by the record's tag if the code does not decide.

The only implementation of the rule of tags: for get, tail, the column scan and a broker's get. No file is read, a test
needs no GIL, and a tag is compared by its text, not only its hash. ``UnitFilter`` is the hook for a test in C: a
subclass in Cython sets ``by_unit`` and ``by_record``.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp
from mqfast.store.record.record cimport PropertyRefs, Record, find_properties, jhash

from mqfast.errors import UsageError

MAX_TAGS = 64
cdef int64_t LEAST_TAGS_CODE = -2147483648


cdef class UnitFilter:
    """A test of units in C, and of records if the unit does not decide. This base class accepts everything."""


cdef bint has_tag(const TagTexts *tags, const uint8_t *tag, int32_t n) noexcept nogil:
    """Return True if this text is a requested tag. ``tag``: NULL for a message without a tag."""
    cdef int i
    if tag == NULL:
        return False
    for i in range(tags.count):
        if tags.lengths[i] == n and memcmp(tags.texts[i], tag, n) == 0:
            return True
    return False


cdef bint may_have_tag(const TagTexts *tags, int64_t tags_code) noexcept nogil:
    """Return True if a message of this tags code can have a requested tag. An address of the extension file does not
    decide.
    """
    cdef int i
    if tags_code < LEAST_TAGS_CODE:
        return True
    for i in range(tags.count):
        if tags.hashes[i] == <int32_t> tags_code:
            return True
    return False


cdef int unit_may_have_tag(const void *context, int64_t tags_code) noexcept nogil:
    return ASK_RECORD if may_have_tag(<const TagTexts *> context, tags_code) else LEAVE


cdef bint record_has_tag(const void *context, const Record *record) noexcept nogil:
    cdef PropertyRefs f
    find_properties(record.properties, record.properties_bytes, &f)
    return has_tag(<const TagTexts *> context, f.tags, f.tags_bytes)


@cython.final
cdef class TagFilter(UnitFilter):
    """A filter of messages with one of these tags: the text itself is compared, not only its hash.

    Args: tags: 1 to 64 texts. Raises: UsageError for another number of texts.
    """

    def __init__(self, tags):
        cdef int i
        cdef bytes text
        self.texts = frozenset(tags)
        self.kept = tuple(map(str.encode, tags))
        if len(self.kept) > MAX_TAGS:
            raise UsageError(f"tags: expected at most {MAX_TAGS}, found {len(self.kept)}")
        self.tags.count = <int> len(self.kept)
        for i in range(self.tags.count):
            text = self.kept[i]
            self.tags.texts[i] = text
            self.tags.lengths[i] = <int32_t> len(text)
            self.tags.hashes[i] = jhash(text, len(text), 0)
        self.by_unit = unit_may_have_tag
        self.by_record = record_has_tag
        self.context = &self.tags

    def has(self, tag) -> bool:
        """Return True if this text, or None for no tag, is a requested tag."""
        return tag in self.texts

    def may_have(self, int64_t tags_code) -> bool:
        """Return True if a message of this tags code can have a requested tag. An address of the extension file does
        not decide.
        """
        return may_have_tag(&self.tags, tags_code)


cdef inline bint has_code(const CodeTable *table, int32_t code) noexcept nogil:
    cdef int64_t at = (<uint32_t> code * <uint32_t> 2654435769) & table.mask
    while table.used[at]:
        if table.codes[at] == code:
            return True
        at = (at + 1) & table.mask
    return False


cdef int unit_has_code(const void *context, int64_t tags_code) noexcept nogil:
    if tags_code < LEAST_TAGS_CODE:
        return ASK_RECORD
    return TAKE if has_code(<const CodeTable *> context, <int32_t> tags_code) else LEAVE


cdef bint record_has_code(const void *context, const Record *record) noexcept nogil:
    cdef PropertyRefs f
    find_properties(record.properties, record.properties_bytes, &f)
    return has_code(<const CodeTable *> context, jhash(f.tags, f.tags_bytes, 0) if f.tags != NULL else 0)


@cython.final
cdef class TagCodes(UnitFilter):
    """A filter of messages by tags code, as a broker compares; the client compares the text of the tag.

    A unit with an address of the extension file in place of the code is decided by the tag of its record.
    Args: codes: any number of Java hash codes of tags (32 bits, signed); those of other length raise UsageError.
    Source: DefaultMessageFilter.isMatchedByConsumeQueue.
    """

    def __cinit__(self, codes):
        cdef int64_t room = 16, at
        cdef int32_t number
        given = list(codes)
        while room < 2 * len(given):
            room *= 2
        self.table.mask = room - 1
        self.table.codes = <int32_t *> calloc(room, sizeof(int32_t))
        self.table.used = <uint8_t *> calloc(room, 1)
        if self.table.codes == NULL or self.table.used == NULL:
            raise MemoryError()
        for code in given:
            if not isinstance(code, int) or not -2147483648 <= code <= 2147483647:
                raise UsageError(f"codes: expected Java hash codes, -2^31 to 2^31 - 1, found {code!r:.80}")
            number = code
            at = (<uint32_t> number * <uint32_t> 2654435769) & self.table.mask
            while self.table.used[at]:
                at = (at + 1) & self.table.mask
            self.table.used[at] = 1
            self.table.codes[at] = number
        self.by_unit = unit_has_code
        self.by_record = record_has_code
        self.context = &self.table

    def __dealloc__(self):
        free(self.table.codes)
        free(self.table.used)


cdef dict _filters = {}


cpdef TagFilter tag_filter(object expression):
    """Return the filter of the tags in ``"A || B"``; None for None, empty and ``*``. Raises: UsageError for an invalid
    text, or beyond 64 tags.
    """
    if expression is None:
        return None
    try:
        found = _filters.get(expression)
    except TypeError:
        found = None
    if found is not None:
        return <TagFilter> found
    if type(expression) is not str:
        raise UsageError(f"tags: expected text that has a UTF-8 form or None, found {expression!r:.80}")
    if expression.strip() in ("", "*"):
        return None
    tags = list(dict.fromkeys(filter(None, map(str.strip, expression.split("||")))))
    if not tags:
        return None
    try:
        found = TagFilter(tags)
    except UnicodeEncodeError:
        raise UsageError(f"tags: expected text that has a UTF-8 form or None, found {expression!r:.80}") from None
    if len(_filters) >= 1024:
        _filters.clear()
    _filters[expression] = found
    return <TagFilter> found
