"""The topics whose sends reactors may serve: written by the event loop, read by reactors without a lock.

An entry is never removed or moved, so that a reader needs no protection; a topic that must not be served has no queues.
A change costs the same with any number of topics.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memcmp, memcpy

cdef extern from *:
    """
    #define mq_load_pointer(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define mq_store_pointer(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
    #define mq_load_count(p) __atomic_load_n(p, __ATOMIC_RELAXED)
    #define mq_store_int(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
    """
    TopicSlots *mq_load_pointer(TopicSlots **p) noexcept nogil
    Topic *mq_load_entry "mq_load_pointer"(Topic **p) noexcept nogil
    void mq_store_pointer(TopicSlots **p, TopicSlots *v) noexcept nogil
    void mq_store_entry "mq_store_pointer"(Topic **p, Topic *v) noexcept nogil
    int64_t mq_load_count(const int64_t *p) noexcept nogil
    void mq_store_int(int32_t *p, int32_t v) noexcept nogil


cdef inline uint64_t hash_of(const uint8_t *name, Py_ssize_t n) noexcept nogil:
    """Return the FNV-1a hash."""
    cdef uint64_t h = 14695981039346656037U
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ name[i]) * 1099511628211U
    return h ^ h >> 29


cdef Topic *find_topic(TopicSlots **table, const uint8_t *name, Py_ssize_t n) noexcept nogil:
    """Find a topic by the bytes of its name. NULL: there is none."""
    cdef uint64_t h = hash_of(name, n)
    cdef TopicSlots *slots = mq_load_pointer(table)
    cdef int64_t i = <int64_t> (h & <uint64_t> slots.mask)
    cdef Topic *topic
    while True:
        topic = mq_load_entry(&slots.at[i])
        if topic == NULL:
            return NULL
        if topic.hash == h and topic.name_bytes == n and memcmp(topic.name, name, n) == 0:
            return topic
        i = (i + 1) & slots.mask


cdef void insert(TopicSlots *slots, Topic *topic) noexcept:
    cdef int64_t i = <int64_t> (topic.hash & <uint64_t> slots.mask)
    while slots.at[i] != NULL:
        i = (i + 1) & slots.mask
    mq_store_entry(&slots.at[i], topic)


cdef class TopicTable:
    """Topics by name. Args: reactors: number of threads that count. Thread: that of the event loop; readers: any."""

    def __cinit__(self, int reactors):
        self.reactors = reactors
        self.topics = {}
        self.slots = self._fresh(64)

    def __dealloc__(self):
        cdef TopicSlots *gone
        cdef Py_ssize_t i
        while self.slots != NULL:
            gone = self.slots
            self.slots = gone.older
            free(gone)
        for i in range(self.count):
            free(self.all[i].counts)
            free(self.all[i].seen)
            free(<void *> self.all[i].name)
            free(self.all[i])
        free(self.all)

    def __len__(self):
        return self.count

    cdef TopicSlots *_fresh(self, int64_t size) except NULL:
        cdef TopicSlots *made = <TopicSlots *> calloc(1, sizeof(TopicSlots) + size * sizeof(Topic *))
        if made == NULL:
            raise MemoryError()
        made.mask = size - 1
        return made

    cdef Topic *_of(self, bytes name) except NULL:
        cdef Topic *topic
        cdef TopicSlots *made
        cdef Topic **larger
        cdef uint8_t *copy
        cdef Py_ssize_t i, n = len(name)
        known = self.topics.get(name)
        if known is not None:
            return self.all[<Py_ssize_t> known]
        if self.count == self.room:
            larger = <Topic **> realloc(self.all, (2 * self.room + 64) * sizeof(Topic *))
            if larger == NULL:
                raise MemoryError()
            self.all = larger
            self.room = 2 * self.room + 64
        if (self.count + 1) * 2 > self.slots.mask:
            made = self._fresh((self.slots.mask + 1) * 2)
            for i in range(self.count):
                insert(made, self.all[i])
            made.older = self.slots         # a reader may still use the former one
            mq_store_pointer(&self.slots, made)
        topic = <Topic *> calloc(1, sizeof(Topic))
        copy = <uint8_t *> calloc(1, n + 1)
        if topic != NULL:
            topic.counts = <TopicCounts *> calloc(self.reactors, sizeof(TopicCounts))
            topic.seen = <TopicCounts *> calloc(1, sizeof(TopicCounts))
        if topic == NULL or copy == NULL or topic.counts == NULL or topic.seen == NULL:
            if topic != NULL:
                free(topic.counts)
                free(topic.seen)
            free(copy)
            free(topic)
            raise MemoryError()
        memcpy(copy, <const char *> name, n)
        topic.name = copy
        topic.name_bytes = <int32_t> n
        topic.hash = hash_of(copy, n)
        self.all[self.count] = topic
        self.topics[name] = self.count
        self.count += 1
        insert(self.slots, topic)
        return topic

    def publish(self, str name, int queues, int sys_flag) -> None:
        """Let reactors serve sends to the queues of a topic."""
        cdef Topic *topic = self._of(name.encode())
        mq_store_int(&topic.sys_flag, sys_flag)
        mq_store_int(&topic.queues, queues)

    def withdraw(self, str name) -> None:
        """Leave the sends of a topic to the event loop."""
        known = self.topics.get(name.encode())
        if known is not None:
            mq_store_int(&self.all[<Py_ssize_t> known].queues, 0)

    def withdraw_all(self) -> None:
        """Leave all sends to the event loop."""
        cdef Py_ssize_t i
        for i in range(self.count):
            mq_store_int(&self.all[i].queues, 0)

    def take_counts(self) -> list:
        """Return (topic, messages, bytes, messages by size) of what reactors have stored since the last call."""
        cdef TopicCounts sums
        cdef TopicCounts *one
        cdef Topic *topic
        cdef Py_ssize_t i
        cdef int k, step
        cdef int64_t puts
        cdef list found = []
        for i in range(self.count):
            topic = self.all[i]
            puts = 0
            for k in range(self.reactors):
                puts += mq_load_count(&topic.counts[k].puts)
            if puts == topic.seen.puts:
                continue
            sums.puts = sums.bytes = 0
            for step in range(SIZE_STEPS):
                sums.sizes[step] = 0
            for k in range(self.reactors):
                one = &topic.counts[k]
                for step in range(SIZE_STEPS):
                    sums.sizes[step] += mq_load_count(&one.sizes[step])
                sums.bytes += mq_load_count(&one.bytes)
            for step in range(SIZE_STEPS):      # the messages are those of the steps, whatever is stored meanwhile
                sums.puts += sums.sizes[step]
            found.append((
                topic.name[:topic.name_bytes].decode(), sums.puts - topic.seen.puts, sums.bytes - topic.seen.bytes,
                [sums.sizes[step] - topic.seen.sizes[step] for step in range(SIZE_STEPS)],
            ))
            topic.seen[0] = sums
        return found
