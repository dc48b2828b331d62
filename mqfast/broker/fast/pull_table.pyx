"""The pulls that reactors may serve, and what reactors have done: written by the event loop and by reactors.

A key is a group, a queue and the filter of the pull, or the filter of the group's heartbeat. Its route holds all that
Python has checked: a reactor only looks whether there is a route. Python withdraws routes before anything changes on
which they depend, and waits until no reactor uses them.
"""

from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp, memcpy
from mqfast.broker.fast.pull_request cimport OWN_SUBSCRIPTION, PullFields
from mqfast.remoting.codec cimport Span
from mqfast.remoting.reactor.reactor cimport Reactors, group_quiesce
from mqfast.store.base.mapped_file cimport FilePin, MappedFile, pin_file
from mqfast.store.base.os_api cimport mq_add64, mq_cas32, mq_load32, mq_load64, mq_store32, mq_store64
from mqfast.store.core cimport Core
from mqfast.store.get.get_records cimport GetLimits
from mqfast.store.queues.consume_queue cimport UNIT_BYTES, ConsumeQueue
from mqfast.store.record.filter cimport UnitFilter

cdef enum:
    SLOTS = 2 * POSITIONS_MAX
    ENTRIES_MAX = POSITIONS_MAX
    REGISTERED = 0              # the filter of a heartbeat
    OWN = 1                     # or bits: the filter of the pull itself
    OWN_TEXT = 2
    OWN_TYPE = 4

cdef extern from *:
    """
    #define mq_load_any(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define mq_store_any(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
    #define mq_exchange_any(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)
    #define mq_is_owned(p) __atomic_load_n(p, __ATOMIC_RELAXED)
    #define mq_see_any(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
    #define mq_or64(p, v) __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST)
    #define mq_lowest_bit(v) __builtin_ctzll(v)
    """
    Entry *mq_load_entry "mq_load_any"(Entry **p) noexcept nogil
    Route *mq_load_route "mq_load_any"(Route **p) noexcept nogil
    LogFiles *mq_load_files "mq_load_any"(LogFiles **p) noexcept nogil
    void mq_store_entry "mq_store_any"(Entry **p, Entry *v) noexcept nogil
    Route *mq_exchange_route "mq_exchange_any"(Route **p, Route *v) noexcept nogil
    LogFiles *mq_exchange_files "mq_exchange_any"(LogFiles **p, LogFiles *v) noexcept nogil
    uint64_t mq_exchange_bits "mq_exchange_any"(uint64_t *p, uint64_t v) noexcept nogil
    uint64_t mq_see_bits "mq_see_any"(uint64_t *p) noexcept nogil
    uint32_t mq_see32 "mq_see_any"(uint32_t *p) noexcept nogil
    int mq_lowest_bit(uint64_t v) noexcept nogil
    void mq_or64(uint64_t *p, uint64_t v) noexcept nogil
    int64_t mq_exchange64 "mq_exchange_any"(int64_t *p, int64_t v) noexcept nogil
    uint32_t mq_exchange32 "mq_exchange_any"(uint32_t *p, uint32_t v) noexcept nogil
    int32_t mq_is_owned(const int32_t *p) noexcept nogil


# --- the side of reactors ---

cdef inline uint64_t hash_more(uint64_t h, const uint8_t *at, Py_ssize_t n) noexcept nogil:
    """Return the FNV-1a hash of more bytes."""
    cdef Py_ssize_t i
    for i in range(n):
        h = (h ^ at[i]) * 1099511628211U
    return h


cdef inline bint is_part(const uint8_t **at, const uint8_t *end, const Span *part) noexcept nogil:
    """Compare the next part of a key, and step over the part."""
    if part.size and (end - at[0] < part.size or memcmp(at[0], part.at, part.size) != 0):
        return False
    at[0] += part.size
    return True


cdef inline int kind_of(const PullFields *fields) noexcept nogil:
    if not fields.sys_flag & OWN_SUBSCRIPTION:
        return REGISTERED
    return (OWN | (OWN_TEXT if fields.subscription.at != NULL else 0)
            | (OWN_TYPE if fields.expression_type.at != NULL else 0))


cdef Entry *find_entry(Pulls *pulls, const PullFields *fields) noexcept nogil:
    """Find the entry of a pull. NULL: there is none."""
    cdef int32_t sizes[6]
    cdef uint64_t h = 14695981039346656037U
    cdef const uint8_t *at
    cdef const uint8_t *end
    cdef Entry *entry
    cdef Span head
    cdef uint64_t i
    cdef int kind = kind_of(fields)
    sizes[0] = kind
    sizes[1] = fields.queue_id
    sizes[2] = <int32_t> fields.group.size
    sizes[3] = <int32_t> fields.topic.size
    sizes[4] = <int32_t> fields.expression_type.size if kind else 0
    sizes[5] = <int32_t> fields.subscription.size if kind else 0
    head.at = <const uint8_t *> sizes
    head.size = sizeof(sizes)
    h = hash_more(hash_more(hash_more(h, head.at, head.size), fields.group.at, fields.group.size), fields.topic.at,
                  fields.topic.size)
    if kind:
        h = hash_more(hash_more(h, fields.expression_type.at, sizes[4]), fields.subscription.at, sizes[5])
    h ^= h >> 29
    i = h & pulls.mask
    while True:
        entry = mq_load_entry(&pulls.slots[i])
        if entry == NULL:
            return NULL
        if entry.hash == h:
            at = entry.key
            end = at + entry.key_bytes
            if (is_part(&at, end, &head) and is_part(&at, end, &fields.group) and is_part(&at, end, &fields.topic)
                    and (not kind or (is_part(&at, end, &fields.expression_type)
                                      and is_part(&at, end, &fields.subscription))) and at == end):
                return entry
        i = (i + 1) & pulls.mask


cdef Route *route_of(Entry *entry) noexcept nogil:
    return mq_load_route(&entry.route)


cdef LogFiles *log_files_of(Pulls *pulls) noexcept nogil:
    return mq_load_files(&pulls.files)


cdef const MappedBytes *log_file_of(const LogFiles *files, int64_t physical) noexcept nogil:
    """Find the file of the log with this byte. NULL: it is left to Python."""
    cdef int i
    for i in range(files.count - 1, -1, -1):
        if files.at[i].start <= physical < files.at[i].start + files.at[i].bytes:
            return &files.at[i]
    return NULL


cdef bint is_usable(const MappedBytes *file) noexcept nogil:
    """Return True if the file was not removed, and what was read through the mapping was in the file."""
    return mq_is_owned(file.owned) != 0 and mq_load32(file.lost) == 0


cdef inline void mark(Waiting *waiting, int64_t number) noexcept nogil:
    """Mark a position after its value was stored: Python takes the marks in the other order."""
    cdef uint64_t bit = <uint64_t> 1 << (number & 63)
    if not mq_see_bits(&waiting.bits[number >> 6]) & bit:
        mq_or64(&waiting.bits[number >> 6], bit)
    if not mq_see32(&waiting.any):
        mq_exchange32(&waiting.any, 1)


cdef void note_pull(Pulls *pulls, Position *position, int64_t next_offset, int64_t commit_offset, int64_t messages,
                    int64_t size) noexcept nogil:
    """Note a pull that was answered. Args: commit_offset: -1 for none."""
    mq_add64(&position.messages, messages)
    mq_add64(&position.bytes, size)
    mq_add64(&position.pulls, 1)
    mark(&pulls.counts, position.number)
    mq_exchange64(&position.pulled, next_offset)
    mark(&pulls.pulled, position.number)
    if commit_offset >= 0:
        mq_exchange64(&position.commit, commit_offset)
        mark(&pulls.commits, position.number)


# --- the side of the event loop ---

cdef bytes key_of(int kind, int queue_id, bytes group, bytes topic, bytes expression_type, bytes subscription):
    cdef int32_t[6] sizes = [kind, queue_id, <int32_t> len(group), <int32_t> len(topic),
                             <int32_t> len(expression_type), <int32_t> len(subscription)]
    return (<const char *> sizes)[:sizeof(sizes)] + group + topic + expression_type + subscription


cdef void fill(MappedBytes *to, FilePin pin) noexcept:
    to.base = pin.base
    to.start = pin.file.start_offset
    to.bytes = pin.file.file_bytes
    to.lost = &pin.file.damage.hits
    to.owned = <const int32_t *> &pin.file.owned


cdef class PullTable:
    """Routes of pulls, the positions of their groups, and the files of the log that reactors read.

    Thread: that of the event loop; ``take_commits``: any. Reactors read and count.
    """

    def __cinit__(self, Reactors reactors not None, Core core not None):
        self.reactors = reactors
        self.group = reactors.group
        self.core = core
        self.entries = {}
        self.kept = []
        self.log_files = []
        self.names = []
        self.numbers = {}
        self.counted = {}
        self.routes = {}
        self.pulls.state = core.state
        self.pulls.mask = SLOTS - 1
        self.pulls.slots = <Entry **> calloc(SLOTS, sizeof(Entry *))
        self.pulls.files = <LogFiles *> calloc(1, sizeof(LogFiles))
        self.all = <Entry **> calloc(ENTRIES_MAX, sizeof(Entry *))
        self.positions = <Position **> calloc(ENTRIES_MAX, sizeof(Position *))
        if self.pulls.slots == NULL or self.pulls.files == NULL or self.all == NULL or self.positions == NULL:
            raise MemoryError()

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(ENTRIES_MAX):
            if self.all != NULL and self.all[i] != NULL:
                free(<void *> self.all[i].key)
                free(self.all[i].route)
                free(self.all[i])
            if self.positions != NULL:
                free(self.positions[i])
        free(self.all)
        free(self.positions)
        free(self.pulls.files)
        free(self.pulls.slots)

    def __len__(self):
        """Return the number of routes."""
        return sum([1 for kept in self.kept if kept is not None])

    @property
    def is_possible(self) -> bool:
        """Return whether reactors can serve pulls of this store: they read up to the end of the log."""
        return not (self.core.log.hide_unflushed or self.core.state.pooled)

    cdef int _quiesce(self) except -1:
        """Return when no reactor uses what was exchanged before."""
        with nogil:
            group_quiesce(self.group)
        return 0

    cdef int _exchange(self, int number, Route *route, object kept) except -1:
        cdef Route *former = mq_exchange_route(&self.all[number].route, route)
        former_kept = self.kept[number]
        self._note_route(number, kept)
        if former != NULL:
            self._quiesce()
            free(former)
        del former_kept         # here, and not before: a pin keeps a file mapped
        return 0

    cdef int _note_route(self, int number, object kept) except -1:
        former = self.kept[number]
        self.kept[number] = kept
        for place, kind in ((3, "group"), (4, "topic")):
            if former is not None and kept is None:
                numbers = self.routes[kind, former[place]]
                numbers.discard(number)
                if not numbers:
                    del self.routes[kind, former[place]]
            elif former is None and kept is not None:
                self.routes.setdefault((kind, kept[place]), set()).add(number)
        return 0

    cdef int _position_of(self, str group, str topic, int queue_id) except -1:
        cdef Position *made
        name = group, topic, queue_id
        known = self.numbers.get(name)
        if known is not None:
            return known
        made = <Position *> calloc(1, sizeof(Position))
        if made == NULL:
            raise MemoryError()
        made.commit = made.pulled = -1
        made.number = len(self.names)
        self.positions[len(self.names)] = made
        self.numbers[name] = len(self.names)
        self.names.append(name)
        return len(self.names) - 1

    cdef int _entry_of(self, bytes key) except -1:
        """Return the number of an entry, -2 if there is no room."""
        cdef Entry *made
        cdef uint8_t *copy
        cdef Py_ssize_t n = len(key)
        cdef uint64_t i
        known = self.entries.get(key)
        if known is not None:
            return known
        if len(self.entries) >= ENTRIES_MAX:
            return -2
        made = <Entry *> calloc(1, sizeof(Entry))
        copy = <uint8_t *> calloc(1, n)
        if made == NULL or copy == NULL:
            free(made)
            free(copy)
            raise MemoryError()
        memcpy(copy, <const char *> key, n)
        made.key = copy
        made.key_bytes = <int32_t> n
        made.hash = hash_more(14695981039346656037U, copy, n)
        made.hash ^= made.hash >> 29
        self.all[len(self.entries)] = made
        self.kept.append(None)
        self.entries[key] = len(self.entries)
        i = made.hash & self.pulls.mask
        while self.pulls.slots[i] != NULL:
            i = (i + 1) & self.pulls.mask
        mq_store_entry(&self.pulls.slots[i], made)
        return len(self.entries) - 1

    cdef int _pin_log(self) except -1:
        """Let reactors read the newest files of the log, and no file that was removed."""
        cdef LogFiles *made = <LogFiles *> calloc(1, sizeof(LogFiles))
        cdef LogFiles *former
        cdef FilePin pin
        cdef list pins = []
        if made == NULL:
            raise MemoryError()
        try:
            for file in self.core.log.files[-FILES_MAX:]:
                pin = pin_file(file)
                pins.append(pin)
                fill(&made.at[made.count], pin)
                made.count += 1
        except BaseException:
            free(made)
            raise
        former = mq_exchange_files(&self.pulls.files, made)
        former_pins, self.log_files = self.log_files, pins
        self._quiesce()
        free(former)
        del former_pins
        return 0

    def publish(self, str group, str topic, int queue_id, expression_type, subscription, bint is_own, *,
                int64_t offset, int64_t sub_version, UnitFilter wanted, GetLimits limits not None, bint is_for_lite,
                int64_t broker_id, int64_t far_broker_id, int64_t topic_sys_flag, int64_t group_sys_flag) -> None:
        """Let reactors serve pulls of a group from a queue.

        Args: is_own: the filter is that of the pull, else that of the group; offset: that of the next pull;
            sub_version: the version of the group's filter.
        """
        cdef bytes type_text = b"" if expression_type is None or not is_own else (<str> expression_type).encode()
        cdef bytes text = b"" if subscription is None or not is_own else (<str> subscription).encode()
        cdef int kind = REGISTERED
        cdef int number
        cdef Entry *entry
        if is_own:
            kind = OWN | (0 if subscription is None else OWN_TEXT) | (0 if expression_type is None else OWN_TYPE)
        number = self._entry_of(key_of(kind, queue_id, group.encode(), topic.encode(), type_text, text))
        if number < 0:
            return
        entry = self.all[number]
        if mq_load32(&self.pulls.asks) or not self.log_files:
            mq_store32(&self.pulls.asks, 0)
            self._pin_log()
        if entry.route != NULL and not mq_load32(&entry.asks):
            return
        mq_store32(&entry.asks, 0)
        mq_store32(&entry.used, 1)
        self._publish(number, group, topic, queue_id, offset, wanted, limits,
                      (sub_version, broker_id, far_broker_id, topic_sys_flag, group_sys_flag, is_for_lite))

    def _publish(self, int number, str group, str topic, int queue_id, int64_t offset, UnitFilter wanted,
                 GetLimits limits, tuple rest):
        cdef ConsumeQueue queue = self.core.table.queues.get((topic, queue_id))
        cdef MappedFile file
        cdef FilePin pin
        cdef Route *made
        if queue is None or queue.state.deleted or not self.is_possible:
            return
        if mq_load64(&queue.state.end) == 0:
            return
        file = queue.file_of(min(offset * UNIT_BYTES, mq_load64(&queue.state.end) - UNIT_BYTES))
        if file is None:
            return
        pin = pin_file(file)
        made = <Route *> calloc(1, sizeof(Route))
        if made == NULL:
            raise MemoryError()
        made.position = self.positions[self._position_of(group, topic, queue_id)]
        made.queue = &queue.state
        fill(&made.units, pin)
        if wanted is not None:
            made.by_unit = wanted.by_unit
            made.by_record = wanted.by_record
            made.context = wanted.context
        made.limits = limits.limits
        made.sub_version = rest[0]
        made.broker_id = rest[1]
        made.far_broker_id = rest[2]
        made.topic_sys_flag = rest[3]
        made.group_sys_flag = rest[4]
        made.is_for_lite = rest[5]
        self._exchange(number, made, (pin, queue, wanted, group, topic))

    def withdraw(self, str group=None, str topic=None) -> None:
        """Leave the pulls of a group, from a topic, or all of them to Python; no reactor serves any of them when this
        returns.
        """
        if group is None and topic is None:
            self._withdraw([i for i, kept in enumerate(self.kept) if kept is not None])
            return
        numbers = self.routes.get(("topic", topic) if group is None else ("group", group), ())
        self._withdraw([i for i in numbers if topic is None or self.kept[i][4] == topic])

    def _withdraw(self, list numbers):
        cdef Py_ssize_t i, n = len(numbers)
        cdef Route **former
        cdef list kept = []
        if not numbers:
            return
        former = <Route **> calloc(n, sizeof(Route *))
        if former == NULL:
            raise MemoryError()
        for i in range(n):
            former[i] = mq_exchange_route(&self.all[<Py_ssize_t> numbers[i]].route, NULL)
            kept.append(self.kept[<Py_ssize_t> numbers[i]])
            self._note_route(numbers[i], None)
        self._quiesce()
        for i in range(n):
            free(former[i])
        free(former)
        del kept

    def release_files(self, bint idle) -> None:
        """Let go files that were removed. Args: idle: and the routes that were not used since the last such call."""
        cdef FilePin pin
        cdef list numbers = []
        cdef Py_ssize_t i
        for i in range(len(self.kept)):
            if self.kept[i] is not None:
                pin = self.kept[i][0]
                if not pin.file.owned or (idle and not mq_exchange32(&self.all[i].used, 0)):
                    numbers.append(i)
        self._withdraw(numbers)
        for i in range(len(self.log_files)):
            pin = self.log_files[i]
            if not pin.file.owned:
                self._pin_log()
                return

    def close(self) -> None:
        """Leave all pulls to Python, and let go all files."""
        cdef LogFiles *made = <LogFiles *> calloc(1, sizeof(LogFiles))
        if made == NULL:
            raise MemoryError()
        self.withdraw()
        made = mq_exchange_files(&self.pulls.files, made)
        self._quiesce()
        free(made)
        self.log_files = []

    # --- what reactors have done ---

    cdef list _waiting(self, Waiting *waiting):
        """Return the numbers of the marked positions, and take the marks."""
        cdef uint64_t bits
        cdef int word
        cdef list found = []
        if not mq_see32(&waiting.any):
            return found
        mq_exchange32(&waiting.any, 0)
        for word in range(POSITIONS_MAX >> 6):
            if not mq_see_bits(&waiting.bits[word]):
                continue
            bits = mq_exchange_bits(&waiting.bits[word], 0)
            while bits:
                found.append((word << 6) + mq_lowest_bit(bits))
                bits &= bits - 1
        return found

    def take_commits(self) -> list:
        """Return (group, topic, queue id, offset) of what groups have committed by pulls since the last call."""
        cdef int64_t value
        cdef list found = []
        for number in self._waiting(&self.pulls.commits):
            value = mq_exchange64(&self.positions[<Py_ssize_t> number].commit, -1)
            if value >= 0:
                row = *self.names[number], value
                found.append(row)
        return found

    def take_pulled(self) -> list:
        """Return (group, topic, queue id, offset behind the last pull) of the pulls since the last call."""
        cdef int64_t value
        cdef list found = []
        for number in self._waiting(&self.pulls.pulled):
            value = mq_exchange64(&self.positions[<Py_ssize_t> number].pulled, -1)
            if value >= 0:
                row = *self.names[number], value
                found.append(row)
        return found

    def take_counts(self) -> list:
        """Return (topic, group, pulls, messages, bytes) since the last call."""
        cdef Position *position
        cdef list found = []
        for number in self._waiting(&self.pulls.counts):
            position = self.positions[<Py_ssize_t> number]
            now = mq_load64(&position.pulls), mq_load64(&position.messages), mq_load64(&position.bytes)
            before = self.counted.get(number, (0, 0, 0))
            self.counted[number] = now
            group, topic, _ = self.names[number]
            row = topic, group, now[0] - before[0], now[1] - before[1], now[2] - before[2]
            found.append(row)
        return found
