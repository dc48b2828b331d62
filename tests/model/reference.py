"""A slow, plain reference of RocketMQ's store format, written only to be compared with.

Room: tests/model. It must never import mqfast and never be quick at the price of being obvious: lists, loops,
bytearrays. It follows the newest release, 5.5.0; ``ModelStore(release=...)`` writes as an older one does.
Formats: ``mqfast/store/FORMAT.md``; it is itself checked against real stores in ``test_reference.py``.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

MAGIC_V1, MAGIC_V2, MAGIC_BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
TRANSACTION_MASK, PREPARED, COMMIT, ROLLBACK = 0xC, 0x4, 0x8, 0xC
BORN_V6, STORE_V6 = 0x10, 0x20
CRC_NAME, CRC_BYTES = b"__CRC32#", 20
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
DELAYS_MS = [1000, 5000, 10000, 30000, *(m * 60000 for m in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120))]
FILLER_SIZE = 0x7FFFFFFF


# --- hashes and properties --------------------------------------------------------------------------------------------


def jhash(text: str) -> int:
    """Return Java's ``String.hashCode`` as a signed 32-bit number."""
    raw = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for i in range(0, len(raw), 2):
        value = (31 * value + int.from_bytes(raw[i : i + 2], "big")) & 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def crc31(data: bytes) -> int:
    """Return the zip CRC-32 of ``data`` without its sign bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def encode_properties(properties: dict[str, str]) -> bytes:
    """Return the stored text of ``properties`` in the given order."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()


def parse_properties(raw: bytes) -> dict[str, str]:
    """Return the properties as Java reads them: too short or half empty pairs are dropped, the last twin wins."""
    found = {}
    for part in raw.decode("utf-8", "replace").split("\x02"):
        name, bar, value = part.partition("\x01")
        if len(part) >= 3 and bar and name and value:
            found[name] = value
    return found


def java_map_order(names: Iterable[str], buckets: int = 128) -> list[str]:
    """Return ``names`` in the order in which a Java ``HashMap`` made with ``buckets`` lists them."""
    names = list(dict.fromkeys(names))
    while len(names) > buckets * 3 // 4:
        buckets *= 2
    spread = [(h ^ (h >> 16)) & (buckets - 1) for h in (jhash(name) & 0xFFFFFFFF for name in names)]
    return [names[i] for i in sorted(range(len(names)), key=lambda i: spread[i])]


# --- records ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Record:
    """One CommitLog record; ``properties`` are the raw bytes without the CRC property that ``with_crc`` stands for."""

    topic: str
    body: bytes = b""
    queue_id: int = 0
    properties: bytes = b""
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    born_host: tuple[str, int] = ("127.0.0.1", 0)
    store_host: tuple[str, int] = ("127.0.0.1", 10911)
    reconsume_times: int = 0
    prepared_transaction_offset: int = 0
    queue_offset: int = 0
    physical_offset: int = 0
    store_timestamp: int = 0
    with_crc: bool = False

    @property
    def magic(self) -> int:
        """Version 2 only for topics of more than 127 characters."""
        return MAGIC_V2 if len(self.topic.encode("utf-16-be")) // 2 > 127 else MAGIC_V1

    @property
    def property_map(self) -> dict[str, str]:
        """The properties as Java reads them."""
        return parse_properties(self.properties)

    @property
    def message_id(self) -> str:
        """Store host and physical offset in hexadecimal."""
        return (_host(self.store_host) + struct.pack(">q", self.physical_offset)).hex().upper()

    @property
    def tags_code(self) -> int:
        """What the queue unit carries: hash of TAGS, or the delivery time of a delayed message."""
        properties = self.property_map
        if self.topic == SCHEDULE_TOPIC and "DELAY" in properties:
            level = min(int(properties["DELAY"]), len(DELAYS_MS))
            if level > 0:
                return self.store_timestamp + DELAYS_MS[level - 1]
        return jhash(properties["TAGS"]) if "TAGS" in properties else 0

    def encode(self) -> bytes:
        """Return the record's bytes."""
        body, topic = self.body, self.topic.encode()
        topic_length = struct.pack(">h" if self.magic == MAGIC_V2 else ">b", len(topic))
        properties = self.properties
        born, store = _host(self.born_host), _host(self.store_host)
        extra = CRC_BYTES if self.with_crc else 0
        head = struct.pack(">IIiiqqiq", self.magic, crc31(body), self.queue_id, self.flag, self.queue_offset,
                           self.physical_offset, self.sys_flag, self.born_timestamp)  # fmt: skip
        head += born + struct.pack(">q", self.store_timestamp) + store
        head += struct.pack(">iqi", self.reconsume_times, self.prepared_transaction_offset, len(body))
        tail = topic_length + topic + struct.pack(">h", len(properties) + extra) + properties
        data = struct.pack(">i", 4 + len(head) + len(body) + len(tail) + extra) + head + body + tail
        return data + crc_property(data) if self.with_crc else data


def crc_property(record_before: bytes) -> bytes:
    """Return the 20 bytes that close a record which carries its own CRC: the digits stand least significant first."""
    return CRC_NAME + b"\x01" + str(crc31(record_before))[::-1].ljust(10, "0").encode() + b"\x02"


def _host(host: tuple[str, int]) -> bytes:
    return ipaddress.ip_address(host[0]).packed + struct.pack(">i", host[1])


def blank(left: int) -> bytes:
    """Return the record that closes a file with ``left`` bytes unused (its first 8 bytes; the rest stays as it was)."""
    return struct.pack(">iI", left, MAGIC_BLANK)


def check(
    data: bytes, position: int = 0, *, check_crc: bool = True, force_crc_property: bool = False
) -> tuple[int, bool, Record | None]:
    """Parse one record as recovery does.

    Returns: (size, True, record) if good; (0, True, None) for a blank; (size, False, None) for a wrong length;
        (-1, False, None) for anything else.
    """
    rest = data[position:]
    if len(rest) <= 4:
        return -1, False, None
    size = struct.unpack_from(">i", rest)[0]
    if len(rest) - 4 < size - 4:
        return -1, False, None
    try:
        (magic,) = struct.unpack_from(">I", rest, 4)
        if magic == MAGIC_BLANK:
            return 0, True, None
        if magic not in (MAGIC_V1, MAGIC_V2):
            return -1, False, None
        body_crc, queue_id, flag, queue_offset, physical_offset, sys_flag, born_ms = struct.unpack_from(
            ">Iiiqqiq", rest, 8
        )
        at = 48
        born, at = _parse_host(rest, at, bool(sys_flag & BORN_V6))
        (store_ms,) = struct.unpack_from(">q", rest, at)
        store, at = _parse_host(rest, at + 8, bool(sys_flag & STORE_V6))
        reconsumed, prepared, body_length = struct.unpack_from(">iqi", rest, at)
        body, at = _take(rest, at + 16, max(body_length, 0))
        topic_format, topic_width = (">h", 2) if magic == MAGIC_V2 else (">b", 1)
        topic, at = _take(rest, at + topic_width, struct.unpack_from(topic_format, rest, at)[0])
        properties, at = _take(rest, at + 2, max(struct.unpack_from(">h", rest, at)[0], 0))
    except (struct.error, ValueError):
        return -1, False, None
    crc_at = max(size - CRC_BYTES, 0)
    with_crc = properties[-CRC_BYTES:][:9] == CRC_NAME + b"\x01" and rest[crc_at:size] == crc_property(rest[:crc_at])
    if check_crc and not (with_crc if force_crc_property else not body or crc31(body) == body_crc):
        return -1, False, None
    if at != size:
        return size, False, None
    return size, True, Record(
        topic.decode(), body, queue_id, properties[:-CRC_BYTES] if with_crc else properties, flag, sys_flag, born_ms,
        born, store, reconsumed, prepared, queue_offset, physical_offset, store_ms, with_crc,
    )  # fmt: skip


def _take(data: bytes, at: int, length: int) -> tuple[bytes, int]:
    if length < 0 or at + length > len(data):
        raise ValueError("the field ends behind the data")
    return data[at : at + length], at + length


def _parse_host(data: bytes, at: int, six: bool) -> tuple[tuple[str, int], int]:
    width = 16 if six else 4
    raw, end = _take(data, at, width)
    return (str(ipaddress.ip_address(raw)), struct.unpack_from(">i", data, end)[0]), end + 4


def scan(files: dict[int, bytes], *, force_crc_property: bool = False) -> Iterator[tuple[int, int, Record | None]]:
    """Walk log files (start -> bytes) up to the first damage; yield (physical offset, size, record or None)."""
    for start in sorted(files):
        position = 0
        while True:
            size, good, record = check(files[start], position, force_crc_property=force_crc_property)
            if not good:
                return
            if record is None:
                yield start + position, len(files[start]) - position, None
                break
            yield start + position, size, record
            position += size


# --- queue units ------------------------------------------------------------------------------------------------------


def unit(physical_offset: int, size: int, tags_code: int) -> bytes:
    """Return one 20-byte consume queue unit."""
    return struct.pack(">qiq", physical_offset, size, tags_code)


def batch_unit(
    physical_offset: int, size: int, tags_code: int, store_ms: int, base: int, count: int, compacted: int = -1
) -> bytes:
    """Return one 46-byte batch consume queue unit."""
    return struct.pack(">qiqqqhii", physical_offset, size, tags_code, store_ms, base, count, compacted, 0)


def ext_record(tags_code: int, store_ms: int, bitmap: bytes = b"") -> bytes:
    """Return one consume queue extension record."""
    return struct.pack(">hqqh", 20 + len(bitmap), tags_code, store_ms, len(bitmap)) + bitmap


class ModelQueue:
    """The units of one topic and queue id, filled with fillers below where it began."""

    def __init__(self, file_bytes: int) -> None:
        self.file_units = -(-file_bytes // 20)
        self.units: list[tuple[int, int, int]] = []
        self.first_file = self.min_offset = 0  # both in units
        self.max_physical = -1

    @property
    def max_offset(self) -> int:
        """The offset of the next unit."""
        return self.first_file + len(self.units)

    def put(self, offset: int, physical_offset: int, size: int, tags_code: int) -> None:
        """Append a unit unless the queue already covers it."""
        if physical_offset + size <= self.max_physical:
            return
        if not self.units and offset:
            self.first_file = offset - offset % self.file_units
            self.units = [(0, FILLER_SIZE, 0)] * (offset - self.first_file)
            self.min_offset = offset
        if offset and offset < self.max_offset:
            return
        self.units.append((physical_offset, size, tags_code))
        self.max_physical = physical_offset + size

    def files(self) -> dict[int, bytes]:
        """Return start byte -> bytes of every file."""
        found = {}
        for i in range(0, len(self.units), self.file_units):
            data = b"".join(unit(*row) for row in self.units[i : i + self.file_units])
            found[(self.first_file + i) * 20] = data.ljust(self.file_units * 20, b"\0")
        return found

    def offset_by_time(self, time_ms: int, boundary: str, store_time: dict[int, int], log_min: int = 0) -> int:
        """Return the queue offset for ``time_ms``; boundary LOWER or UPPER; ``store_time``: physical offset -> time."""
        if not self.units:
            return 0
        times = [store_time.get(row[0], -1) if row[1] != FILLER_SIZE else -1 for row in self.units]
        starts = list(range(0, len(times), self.file_units))
        if boundary == "LOWER":
            fits = [s for s in starts[:-1] if times[s + self.file_units - 1] >= time_ms]
            file = fits[0] if fits else starts[-1]
        else:
            fits = [s for s in starts if times[s] <= time_ms]
            file = fits[-1] if fits else -1
        answer = 0 if file < 0 else self.first_file + self._in_file(file, times, time_ms, boundary, log_min)
        return min(max(answer, self.min_offset), self.max_offset)

    def _in_file(self, file: int, times: list[int], time_ms: int, boundary: str, log_min: int) -> int:
        end = min(file + self.file_units, len(times))
        low = max(file, self.min_offset - self.first_file)
        if times[end - 1] < time_ms:
            return end if boundary == "LOWER" else end - 1
        if times[low] > time_ms:
            return file if boundary == "LOWER" else -self.first_file
        older = [i for i in range(low, end) if self.units[i][0] < log_min or times[i] < time_ms]
        equal = [i for i in range(low, end) if i not in older and times[i] == time_ms]
        if boundary == "LOWER":
            return equal[0] if equal else (older[-1] + 1 if older else low)
        return equal[-1] if equal else older[-1]


# --- index ------------------------------------------------------------------------------------------------------------


def index_hash(text: str) -> int:
    """Return the non-negative hash of ``topic#key``."""
    value = abs(jhash(text))
    return 0 if value > 0x7FFFFFFF else value


class ModelIndexFile:
    """One hash index file over its bytes."""

    def __init__(self, slots: int, entries: int, data: bytes | None = None) -> None:
        self.slots, self.entries = slots, entries
        self.data = bytearray(data if data is not None else bytes(40 + slots * 4 + entries * 20))
        if self.count < 1:
            self.count = 1

    def _get(self, at: int, kind: str) -> int:
        return int(struct.unpack_from(">" + kind, self.data, at)[0])

    @property
    def begin_ms(self) -> int:
        """Store time of the first entry."""
        return self._get(0, "q")

    @property
    def end_ms(self) -> int:
        """Store time of the last entry."""
        return self._get(8, "q")

    @property
    def end_physical(self) -> int:
        """Physical offset of the last entry."""
        return self._get(24, "q")

    @property
    def count(self) -> int:
        """The number of the next entry; entry 0 is never used."""
        return self._get(36, "i")

    @count.setter
    def count(self, value: int) -> None:
        struct.pack_into(">i", self.data, 36, value)

    def put(self, text: str, physical_offset: int, store_ms: int) -> None:
        """Add one entry; the caller has seen that the file is not full."""
        number, key_hash = self.count, index_hash(text)
        slot_at = 40 + key_hash % self.slots * 4
        previous = self._get(slot_at, "i")
        if not 0 < previous <= number:
            previous = 0
        seconds = min(max((store_ms - self.begin_ms) // 1000, 0), 0x7FFFFFFF) if self.begin_ms > 0 else 0
        entry = struct.pack(">iqii", key_hash, physical_offset, seconds, previous)
        self.data[self._entry_at(number) : self._entry_at(number + 1)] = entry
        struct.pack_into(">i", self.data, slot_at, number)
        if number <= 1:  # the diff above was against the preset header of a follow-up file
            struct.pack_into(">q", self.data, 0, store_ms)
            struct.pack_into(">q", self.data, 16, physical_offset)
        if not previous:
            struct.pack_into(">i", self.data, 32, self._get(32, "i") + 1)
        self.count = number + 1
        struct.pack_into(">q", self.data, 8, store_ms)
        struct.pack_into(">q", self.data, 24, physical_offset)

    def _entry_at(self, number: int) -> int:
        return 40 + self.slots * 4 + number * 20

    def select(self, text: str, limit: int, begin_ms: int, end_ms: int, found: list[int]) -> None:
        """Append matching physical offsets to ``found``, newest first, until it holds ``limit``."""
        key_hash = index_hash(text)
        number = self._get(40 + key_hash % self.slots * 4, "i")
        if not 0 < number <= self.count or self.count <= 1:
            return
        while len(found) < limit:
            hashed, physical_offset, seconds, previous = struct.unpack_from(">iqii", self.data, self._entry_at(number))
            if seconds < 0:
                return
            time_ms = self.begin_ms + seconds * 1000
            if hashed == key_hash and begin_ms <= time_ms <= end_ms:
                found.append(physical_offset)
            if previous <= 0 or previous > self.count or previous == number or time_ms < begin_ms:
                return
            number = previous


# --- the store --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Got:
    """The answer of :meth:`ModelStore.get`."""

    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[Record]


class ModelStore:
    """A whole store in memory: put records, look at the bytes of every file.

    Args: sizes as RocketMQ has them. first_offset: where the log begins (a slave's may begin later). release: whose
        habits; 5.5 has an index entry for the tags of a record, and adds nothing to the elements of a batch.
    """

    def __init__(
        self,
        *,
        commit_log_bytes: int = 65536,
        consume_queue_bytes: int = 1000,
        slots: int = 64,
        entries: int = 200,
        with_crc: bool = False,
        multi_dispatch: bool = False,
        first_offset: int = 0,
        release: str = "5.5.0",
    ) -> None:
        self.is_5_5 = release >= "5.5"
        self.commit_log_bytes, self.consume_queue_bytes = commit_log_bytes, consume_queue_bytes
        self.slots, self.entries = slots, entries
        self.with_crc, self.multi_dispatch = with_crc, multi_dispatch
        self.first_offset = self.end = first_offset
        self.log: dict[int, bytearray] = {}
        self.records: dict[int, tuple[Record, int]] = {}
        self.queues: dict[tuple[str, int], ModelQueue] = {}
        self.index: list[ModelIndexFile] = []
        self.next_offset: dict[tuple[str, int], int] = {}

    # -- writing --

    def put(self, record: Record, queue_offset: int | None = None) -> Record:
        """Append and dispatch ``record``; offsets, IPv6 bits and CRC are filled in, the store time is its own."""
        return self._append([record], queue_offset)[0]

    def put_batch(self, records: Sequence[Record], batch_properties: bytes = b"") -> list[Record]:
        """Append records that stay together in one file; before 5.5 each gets the batch's properties behind its own."""
        joined = []
        batch_properties = b"" if self.is_5_5 else batch_properties
        for record in records:
            properties = record.properties
            if properties and batch_properties and not properties.endswith(b"\x02"):
                properties += b"\x02"
            joined.append(dataclasses.replace(record, properties=properties + batch_properties))
        return self._append(joined, None, batch=True)

    def _append(self, records: list[Record], queue_offset: int | None, batch: bool = False) -> list[Record]:
        key = (records[0].topic, records[0].queue_id)
        ready = [self._ready(record, batch) for record in records]
        total = sum(len(record.encode()) for record in ready)
        if total + 8 > self.commit_log_bytes:
            raise ValueError(f"{total} bytes never fit into a log file of {self.commit_log_bytes}")
        left = self.commit_log_bytes - self.end % self.commit_log_bytes
        if total + 8 > left:
            self._write(blank(left))
            self.end += left - 8
        done = []
        for record in ready:
            counted = record.sys_flag & TRANSACTION_MASK in (0, COMMIT)
            offset = self.next_offset.get(key, 0) if queue_offset is None else queue_offset
            final = dataclasses.replace(record, queue_offset=offset if counted else 0, physical_offset=self.end)
            data = final.encode()
            self._write(data)
            if counted:
                self.next_offset[key] = offset + 1
            self.records[final.physical_offset] = (final, len(data))
            self.dispatch(final, len(data))
            done.append(final)
        return done

    def _ready(self, record: Record, batch: bool) -> Record:
        six = [":" in host[0] for host in (record.born_host, record.store_host)]
        properties = record.properties
        if self.with_crc and properties and not batch and not properties.endswith(b"\x02"):
            properties += b"\x02"
        return dataclasses.replace(
            record,
            sys_flag=record.sys_flag | BORN_V6 * six[0] | STORE_V6 * six[1],
            properties=properties,
            with_crc=self.with_crc,
        )

    def _write(self, data: bytes) -> None:
        start = self.end - self.end % self.commit_log_bytes
        file = self.log.setdefault(start, bytearray(self.commit_log_bytes))
        file[self.end - start : self.end - start + len(data)] = data
        self.end += len(data)

    def dispatch(self, record: Record, size: int) -> None:
        """Put the queue units and index entries of one record."""
        kind = record.sys_flag & TRANSACTION_MASK
        properties = record.property_map
        if kind in (0, COMMIT):
            targets = [(record.topic, record.queue_id, record.queue_offset)]
            if (
                self.multi_dispatch
                and "INNER_MULTI_DISPATCH" in properties
                and "INNER_MULTI_QUEUE_OFFSET" in properties
            ):
                names = properties["INNER_MULTI_DISPATCH"].split(",")
                offsets = properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
                targets += [
                    (name, 0 if name.startswith("%LMQ%") else record.queue_id, int(offset))
                    for name, offset in zip(names, offsets, strict=True)
                ]
            for topic, queue_id, offset in targets:
                queue = self.queues.setdefault((topic, queue_id), ModelQueue(self.consume_queue_bytes))
                queue.put(offset, record.physical_offset, size, record.tags_code)
        if record.physical_offset < self._index_file().end_physical or kind == ROLLBACK:
            return
        keys = [properties["UNIQ_KEY"]] if "UNIQ_KEY" in properties else []
        keys += [key for key in properties.get("KEYS", "").split(" ") if key]
        if self.is_5_5 and "TAGS" in properties:
            keys.append(f"T#{properties['TAGS']}")
        for key in keys:
            self._index_file().put(f"{record.topic}#{key}", record.physical_offset, record.store_timestamp)

    def _index_file(self) -> ModelIndexFile:
        if not self.index or self.index[-1].count >= self.entries:
            file = ModelIndexFile(self.slots, self.entries)
            if self.index:
                last = self.index[-1]
                struct.pack_into(">qqqq", file.data, 0, last.end_ms, last.end_ms, last.end_physical, last.end_physical)
            self.index.append(file)
        return self.index[-1]

    # -- reading --

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Return the smallest queue offset."""
        queue = self.queues.get((topic, queue_id))
        return queue.min_offset if queue else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Return the next queue offset."""
        queue = self.queues.get((topic, queue_id))
        return queue.max_offset if queue else 0

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, boundary: str = "LOWER") -> int:
        """Return the queue offset for a store time."""
        times = {offset: record.store_timestamp for offset, (record, _) in self.records.items()}
        queue = self.queues.get((topic, queue_id))
        return queue.offset_by_time(time_ms, boundary, times, self.first_offset) if queue else 0

    def get(
        self,
        topic: str,
        queue_id: int,
        offset: int,
        max_count: int = 32,
        tags: str | None = None,
        max_bytes: int = 1 << 27,
    ) -> Got:
        """Read messages as RocketMQ's getMessage does on a master, everything being in memory."""
        queue = self.queues.get((topic, queue_id))
        low, high = self.min_offset(topic, queue_id), self.max_offset(topic, queue_id)
        if queue is None or high == 0:
            return Got("NO_MESSAGE_IN_QUEUE", 0, low, high, [])
        if offset < low:
            return Got("OFFSET_TOO_SMALL", low, low, high, [])
        if offset >= high:
            return Got("OFFSET_OVERFLOW_ONE" if offset == high else "OFFSET_OVERFLOW_BADLY", high, low, high, [])
        wanted = None if tags in (None, "", "*") else {jhash(t.strip()) for t in str(tags).split("||") if t.strip()}
        found: list[Record] = []
        total, at = 0, offset
        file_end = offset - offset % queue.file_units + queue.file_units
        while at < min(high, file_end) and (at - offset) * 20 < max(16000, max_count * 20):
            physical_offset, size, code = queue.units[at - queue.first_file]
            if found and (len(found) + 1 > max_count or total + size > min(max_bytes, 262144) or len(found) > 31):
                break
            at += 1
            if wanted is None or _low32(code) in wanted:
                found.append(self.records[physical_offset][0])
                total += size
        return Got("FOUND" if found else "NO_MATCHED_MESSAGE", at, low, high, found)

    def query_offsets(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Return physical offsets from the index, newest first, collisions included."""
        found: list[int] = []
        limit = min(max_count, 64)
        for file in reversed(self.index):
            if file.count > 1 and begin_ms <= file.end_ms and end_ms >= file.begin_ms:
                file.select(f"{topic}#{key}", limit, begin_ms, end_ms, found)
            if file.begin_ms < begin_ms or len(found) >= limit:
                break
        return found

    # -- files --

    def files(self) -> dict[str, bytes]:
        """Return relative name -> bytes; index files, whose names are times, are numbered in 17 digits"""
        found = {f"commitlog/{start:020}": bytes(data) for start, data in self.log.items()}
        for (topic, queue_id), queue in self.queues.items():
            found |= {f"consumequeue/{topic}/{queue_id}/{start:020}": data for start, data in queue.files().items()}
        return found | {f"index/{i:017}": bytes(file.data) for i, file in enumerate(self.index)}

    def dump(self, directory: Path) -> None:
        """Write all files below ``directory``."""
        for name, data in self.files().items():
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def differences(self, directory: Path, rooms: Sequence[str] = ("commitlog", "consumequeue", "index")) -> list[str]:
        """Return a line per file below ``directory`` that is missing, too many or different; spare zero files pass."""
        ours = {name: data for name, data in self.files().items() if name.split("/")[0] in rooms}
        theirs: dict[str, bytes] = {}
        for room in rooms:
            paths = sorted(path for path in (directory / room).rglob("*") if path.is_file())
            for i, path in enumerate(paths):
                theirs[f"index/{i:017}" if room == "index" else str(path.relative_to(directory))] = path.read_bytes()
        lines = []
        for name in sorted(ours.keys() | theirs.keys()):
            if name not in theirs:
                lines.append(f"{name} is missing")
            elif name not in ours:
                if theirs[name].strip(b"\0"):
                    lines.append(f"{name} is too many")
            elif ours[name] != theirs[name]:
                pairs = enumerate(zip(ours[name], theirs[name], strict=False))
                at = next((i for i, (a, b) in pairs if a != b), min(len(ours[name]), len(theirs[name])))
                want, have = ours[name][at : at + 16].hex(), theirs[name][at : at + 16].hex()
                lines.append(f"{name} differs at {at}: expected {want}, found {have}")
        return lines


def _low32(code: int) -> int:
    code &= 0xFFFFFFFF
    return code - (1 << 32) if code >> 31 else code
