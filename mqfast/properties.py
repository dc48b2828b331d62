"""The property string of a message: names, values, their order on disk, and the hashes made from them.

A record carries its properties as text: ``name`` U+0001 ``value`` U+0002 for each pair, in UTF-8. The order is that of
a Java ``HashMap`` with 128 buckets, which a broker iterates. This module reproduces the order, so that equal messages
have equal bytes.

No file, clock or store is used. Format: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

from mqfast.errors import MessageIllegal, PropertiesTooLong, UsageError

__all__ = [
    "MAX_PROPERTIES_BYTES",
    "NAME_VALUE_SEPARATOR",
    "PROPERTY_SEPARATOR",
    "RESERVED",
    "TAG_KEY",
    "attempts_of",
    "decode",
    "encode",
    "index_entries",
    "index_hash",
    "index_key",
    "index_keys",
    "jhash",
    "light_queues",
    "origin_of",
    "of_user",
    "queue_pairs",
    "refuse_reserved",
    "revived",
    "split_keys",
    "tag_codes",
    "tags_code",
]

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"
# The length is a signed 16-bit field of the record.
MAX_PROPERTIES_BYTES: Final = 32767

# Prefix of index entries for tags: index type T of release 5.5.
TAG_KEY: Final = "T#"

# Names with a meaning for the store or for a broker. Each constant is spelled as RocketMQ's MessageConst has it.
KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
UNIQ_KEY: Final = "UNIQ_KEY"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
INNER_NUM: Final = "INNER_NUM"
INNER_BASE: Final = "INNER_BASE"
DUP_INFO: Final = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID: Final = "__transactionId__"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
INNER_MULTI_DISPATCH: Final = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET: Final = "INNER_MULTI_QUEUE_OFFSET"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_ENQUEUE_MS: Final = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS: Final = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES: Final = "TIMER_ROLL_TIMES"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
SHARDINGKEY: Final = "__SHARDINGKEY"
CRC32: Final = "__CRC32#"
POP_CK: Final = "POP_CK"
FIRST_POP_TIME: Final = "1ST_POP_TIME"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
# Names with this prefix live in memory only; a stored record should not have them.
TRANSIENT_PREFIX: Final = "__RMQ.TRANSIENT."

DLQ_ATTEMPTS: Final = "DLQ_ATTEMPTS"
"""Property of mqfast: count of resends of a dead letter. A consumer that fails again keeps the property on the message.
"""
STAMP: Final = "SPK"
"""Property of mqfast: the write of Spark, batch and partition of a row."""
ORIGINS: Final = (RETRY_TOPIC, DLQ_ORIGIN_TOPIC)
"""Properties that name the topic that a dead letter was first read from, in the order of preference."""
# Properties that brokers and clients add on the way to the dead letters; a new message must not repeat the way.
OF_THE_WAY: Final = frozenset(
    (
        WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, MAX_RECONSUME_TIMES, TIMER_DELAY_SEC, TIMER_DELAY_MS,
        TIMER_DELIVER_MS, TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS, TIMER_DEL_UNIQKEY,
        TRAN_MSG, INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, INNER_NUM, INNER_BASE, POP_CK, FIRST_POP_TIME,
        DLQ_ORIGIN_TOPIC, "RECONSUME_TIME", "CONSUME_START_TIME", "MIN_OFFSET", "MAX_OFFSET", DLQ_ATTEMPTS,
    )
)  # fmt: skip

_BY_ARGUMENTS: Final = {
    KEYS: "keys=", TAGS: "tags=", WAIT: "wait_store_ok=False", SHARDINGKEY: "sharding_key=", DELAY: "delay_level=",
    TIMER_DELAY_SEC: "delay_s=", TIMER_DELAY_MS: "delay_s=", TIMER_DELIVER_MS: "deliver_at=",
    TIMER_DEL_UNIQKEY: "recall()", TRAN_MSG: "a TransactionProducer", PGROUP: "a TransactionProducer",
    **dict.fromkeys(("CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "MSG_TYPE"), "request() and reply()"),
    "BORN_TIMESTAMP": "born_timestamp=", UNIQ_KEY: "keys=, the client makes the unique id",
}  # fmt: skip
_BY_NOBODY: Final = (
    TRACE_ON, MSG_REGION, RETRY_TOPIC, REAL_TOPIC, REAL_QID, "MIN_OFFSET", "MAX_OFFSET", "BUYER_ID", ORIGIN_MESSAGE_ID,
    "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "RECONSUME_TIME", MAX_RECONSUME_TIMES,
    "CONSUME_START_TIME", POP_CK, "POP_CK_OFFSET", FIRST_POP_TIME, TRAN_PREPARED_QUEUE_OFFSET, DUP_INFO,
    "EXTEND_UNIQ_INFO", "INSTANCE_ID", "ARRIVE_TIME", "PUSH_REPLY_TIME", CLUSTER, INNER_MULTI_QUEUE_OFFSET,
    TIMER_ENQUEUE_MS, TIMER_DEQUEUE_MS, TIMER_ROLL_TIMES, TIMER_OUT_MS, "TIMER_DELAY_LEVEL", "__BORNHOST",
    TRANSACTION_ID, TRANSACTION_CHECK_TIMES, INNER_NUM, INNER_BASE, CRC32, DLQ_ORIGIN_TOPIC, DLQ_ORIGIN_MESSAGE_ID,
    DLQ_ATTEMPTS,
)  # fmt: skip
RESERVED: Final[Mapping[str, str]] = {**dict.fromkeys(_BY_NOBODY, ""), **_BY_ARGUMENTS}
"""Names that mean something to RocketMQ or to mqfast -> what an application uses instead, "" where clients and brokers
alone set them. Source: MessageConst.STRING_HASH_SET, and names that are missing there.
"""

_FIRST_BUCKETS: Final = 128


def refuse_reserved(given: Iterable[object], allowed: Iterable[str] = ()) -> None:
    """Refuse a property name that steers a broker or a client, such as TRAN_MSG, with which a message is acknowledged
    and never delivered. Raises: MessageIllegal.
    """
    for name in given:
        if isinstance(name, str) and (name in RESERVED or name.startswith(TRANSIENT_PREFIX)) and name not in allowed:
            instead = RESERVED.get(name, "")
            more = f"use {instead}" if instead else "clients and brokers alone set it"
            raise MessageIllegal(
                f"properties: expected names of the application, found {name!r}, which is RocketMQ's own: {more}; to "
                "forward a message use Message.from_delivery or its user_properties"
            )


def of_user(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the application gave a stored message, without those of clients and brokers."""
    return {
        name: value
        for name, value in properties.items()
        if name not in RESERVED and name not in OF_THE_WAY and not name.startswith(TRANSIENT_PREFIX)
    }


def jhash(text: str) -> int:
    """Return Java's ``String.hashCode``: signed 32 bit, over UTF-16 code units (a character above U+FFFF counts as
    two).

    Source: java.lang.String.
    """
    h = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            h = (31 * h + unit) & 0xFFFFFFFF
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        for i in range(0, len(units), 2):
            h = (31 * h + (units[i] | units[i + 1] << 8)) & 0xFFFFFFFF
    return h - 0x100000000 if h & 0x80000000 else h


@lru_cache(maxsize=1024)
def _spread(name: str) -> int:
    # HashMap folds the upper half into the lower because a bucket number uses only the low bits.
    h = jhash(name) & 0xFFFFFFFF
    return h ^ (h >> 16)


def _hash_map_order(names: Iterable[str], count: int, buckets: int) -> list[str]:
    # Growing keeps the relative order inside a bucket, so a stable sort at the final size equals all the steps
    # between.
    while count > buckets * 3 // 4:
        buckets *= 2
    mask = buckets - 1
    return sorted(names, key=lambda name: _spread(name) & mask)


def _text(name: str, value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    raise MessageIllegal(f"property {name!r}: expected str, int or bool, found {type(value).__name__}")


def encode(mapping: Mapping[str, str | int | bool | None], *, buckets: int = _FIRST_BUCKETS) -> bytes:
    """Return the property string of ``mapping`` in RocketMQ's order; a value of None leaves the property out.

    ``buckets`` (a power of two) is the first size of the Java table: 128 where a 5.x broker parsed a request, 16 in
    4.x brokers, clients and messages that a broker makes itself. 4.x brokers also leave the last separator out.
    Integers become decimal text, booleans ``true`` and ``false``. More than seven names that fall into one bucket
    keep insertion order (Java may move one of them to the front).

    Raises: MessageIllegal for an empty name or value (a reader drops such a pair), a separator inside a name or
        value, a wrong type, or text that has no UTF-8 form; PropertiesTooLong above 32,767 bytes.
    Source: MessageDecoder.messageProperties2String.
    """
    texts: dict[str, str] = {}
    for name, raw in mapping.items():
        if raw is None:
            continue
        if not isinstance(name, str):
            raise MessageIllegal(f"property name: expected str, found {type(name).__name__}")
        value = _text(name, raw)
        if not name or not value:
            raise MessageIllegal(f"property {name!r}: expected a name and a value, found {value!r}")
        for text in (name, value):
            if NAME_VALUE_SEPARATOR in text or PROPERTY_SEPARATOR in text:
                raise MessageIllegal(f"property {name!r}: expected no U+0001 and no U+0002, found {text!r}")
        texts[name] = value
    order = texts if len(texts) < 2 else _hash_map_order(texts, len(texts), buckets)
    try:
        data = "".join([f"{name}\x01{texts[name]}\x02" for name in order]).encode("utf-8")
    except UnicodeEncodeError as error:
        bad = error.object[error.start]
        raise MessageIllegal(f"properties: expected text that has a UTF-8 form, found {bad!r}") from None
    if len(data) > MAX_PROPERTIES_BYTES:
        raise PropertiesTooLong(f"properties: expected at most {MAX_PROPERTIES_BYTES} bytes, found {len(data)}")
    return data


def decode(data: bytes | bytearray | memoryview) -> dict[str, str]:
    """Return the pairs of a property string. A later duplicate wins; pairs with an empty name or value are dropped.

    All bytes are accepted. Bytes that are not UTF-8 become U+FFFD, as in Java; the last separator may be missing.

    Source: MessageDecoder.string2messageProperties.
    """
    result: dict[str, str] = {}
    for pair in str(data, "utf-8", "replace").split(PROPERTY_SEPARATOR):
        name, _, value = pair.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            result[name] = value
    return result


def tags_code(tags: str | None) -> int:
    """Return the tags code of a ConsumeQueue unit (i64): 0 without tags, else the signed 32-bit hash of the text."""
    return jhash(tags) if tags else 0


def tag_codes(expression: str | None) -> frozenset[int] | None:
    """Return the hashes that a tag expression such as ``"A || B"`` accepts; None for all tags (None, empty or ``*``).

    The filter compares them with the low 32 bits of a unit's tags code, as signed i32. Different tags with equal hashes
    pass; the caller compares the texts.

    Raises: UsageError when the expression names no tag at all.
    Source: FilterAPI.buildSubscriptionData.
    """
    if expression is None or expression == "" or expression == "*":
        return None
    if not isinstance(expression, str):
        raise UsageError(f"tag expression: expected str, found {type(expression).__name__}")
    # Java's trim() removes all characters up to the blank, not Unicode white space.
    blank = "".join(map(chr, range(0x21)))
    tags = [tag for tag in (part.strip(blank) for part in expression.split("||")) if tag]
    if not tags:
        raise UsageError(f"tag expression: expected '*' or tags joined by '||', found {expression!r}")
    return frozenset(jhash(tag) for tag in tags)


def queue_pairs(properties: Mapping[str, str], queue_id: int) -> Iterator[tuple[str, int, str]]:
    """Return the further queues of a record: topic, queue id, and the text of the queue offset there.

    Args: queue_id: of the record; a light queue has id 0.
    """
    names = properties.get(INNER_MULTI_DISPATCH, "").split(",")
    offsets = properties.get(INNER_MULTI_QUEUE_OFFSET, "").split(",")
    for name, offset in zip(names, offsets, strict=False):
        if name:
            yield name, 0 if name.startswith("%LMQ%") else queue_id, offset


def light_queues(properties: bytes) -> list[str]:
    """Return all topics that a property string names besides the message's own, by any INNER_MULTI_DISPATCH."""
    head = f"{INNER_MULTI_DISPATCH}{NAME_VALUE_SEPARATOR}".encode()
    values = [
        pair.removeprefix(head) for pair in properties.split(PROPERTY_SEPARATOR.encode()) if pair.startswith(head)
    ]
    return [name for text in values for name in text.decode("utf-8", "replace").split(",") if name]


def split_keys(keys: str | None) -> list[str]:
    """Return the single keys of a KEYS property: separated by blanks, empty keys dropped, duplicates kept."""
    return [key for key in keys.split(" ") if key] if keys else []


def index_keys(properties: Mapping[str, str]) -> list[str]:
    """Return all keys by which a message is indexed, in the order of its index entries: UNIQ_KEY, then KEYS."""
    unique = properties.get(UNIQ_KEY)
    keys = split_keys(properties.get(KEYS))
    return [unique, *keys] if unique else keys


def index_entries(properties: Mapping[str, str]) -> list[str]:
    """Return all index entries of a message in release 5.5: the keys, then the tags as ``T#TAGS``."""
    tags = properties.get(TAGS)
    return [*index_keys(properties), *([TAG_KEY + tags] if tags else [])]


def index_key(topic: str, key: str) -> str:
    """Return the text that the index hashes for ``key`` of a message stored under ``topic``."""
    return f"{topic}#{key}"


def index_hash(text: str) -> int:
    """Return the non-negative hash of an index entry; -2^31, which has no positive counterpart, becomes 0."""
    h = jhash(text)
    return 0 if h == -0x80000000 else abs(h)


# --- timed messages ---


def delete_key(topic: str | None, unique_key: str) -> str:
    """Name the target of a delete message by its topic and its unique key (appendTopicForTimerDeleteKey).

    Source: TimerMessageStore.buildDeleteKey.
    """
    return f"{topic}+{unique_key}"


# --- dead letters ---


def origin_of(properties: Mapping[str, str]) -> str | None:
    """Return the topic that a dead letter was first read from; None without such a property."""
    for name in ORIGINS:
        topic = properties.get(name)
        if topic and not topic.startswith(("%RETRY%", "%DLQ%")):
            return topic
    return None


def attempts_of(properties: Mapping[str, str]) -> int:
    """Return the count of earlier resends of a dead letter."""
    text = properties.get(DLQ_ATTEMPTS, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def revived(properties: Mapping[str, str], topic: str) -> dict[str, str]:
    """Return the properties of a dead letter that is sent to ``topic`` as a new message.

    Keys, tags, unique key and the application's properties stay. The count of attempts increases; the consumer's own
    count begins at zero.
    """
    kept = {name: value for name, value in properties.items() if name not in OF_THE_WAY}
    kept[DLQ_ATTEMPTS] = str(attempts_of(properties) + 1)
    origin = origin_of(properties)
    if origin is not None and origin != topic:
        kept[DLQ_ORIGIN_TOPIC] = origin
    return kept
