"""Encoding of the rows that Spark passes to the sink: columns, types, queues, properties.

Runs in tasks, with a ``RowWriter`` each. ``COLUMNS`` says what each column means. The sink accepts all columns of the
source; columns about the stored message (offsets, store time) are ignored. The record format is in ``row_encoder.pyx``.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from mqfast import properties as _properties
from mqfast.config import StoreConfig
from mqfast.errors import ConfigError, MessageIllegal
from mqfast.message import check_topic, parse_host
from mqfast.spark.options import Options, nearest_name
from mqfast.spark.row_encoder import PLAIN_COLUMNS, RowEncoder, java_hashes, merge_properties
from mqfast.store.put.staged import property_texts
from mqfast.store.record.record import java_hash

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from pyspark.sql.types import StructType

__all__ = ["COLUMNS", "PLACES", "RowWriter", "check_columns", "refuse_complete"]

_TEXT: Final = ("string",)
_WHOLE: Final = ("int", "bigint")
COLUMNS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "topic": (_TEXT, "Topic; the option `topic` is for rows without one."),
    "body": (("binary", "string"), "Body; the only required column."),
    "tags": (_TEXT, "Tag; replaces TAGS among the properties."),
    "keys": (
        ("string", "array<string>"),
        "Keys, separated by blanks or as an array, whose nulls are left out; replace KEYS.",
    ),
    "properties": (("map<string,string>", "string"), "Other properties, or the string that `properties=raw` returns."),
    "queueId": (_WHOLE, "Queue; otherwise queueSelector decides."),
    "shardingKey": (_TEXT, "Selects the queue, so that equal keys keep their order; stored as __SHARDINGKEY."),
    "delayLevel": (_WHOLE, "Delay level 1 to 18, delivered by the broker that opens the store; 0 is none."),
    "delayTimeMs": (_WHOLE, "Delay in milliseconds, at most three days; delivered by that broker as well."),
    "flag": (_WHOLE, "The application's own number."),
    "sysFlag": (_WHOLE, "Bits of the record; the bits of transactions and hosts are replaced."),
    "bornTimestamp": (
        ("timestamp", "timestamp_ntz"),
        "Kept with preserveTimestamps (timestamp only); else the time of the write.",
    ),
    "bornHost": (_TEXT, "`address:port` of the producer."),
    "reconsumeTimes": (_WHOLE, "How often the message was sent back."),
    "uniqKey": (_TEXT, "Kept with preserveIds, as is UNIQ_KEY among the properties."),
}
"""Column -> Spark's types for it, and its meaning."""
PLACES: Final = frozenset(
    (
        *("queueOffset", "physicalOffset", "msgSize", "bodySize", "storeTimestamp", "storeHost"),
        *("preparedTransactionOffset", "bodyCrc", "msgId", "crcOk", "store"),
    )
)
"""Columns of the source that say where a message was: accepted, and left out."""

_TEXTS: Final = {"tags": _properties.TAGS, "keys": _properties.KEYS, "shardingKey": _properties.SHARDINGKEY}
_SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
_TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
_MOST_LEVELS: Final = 18
_MOST_DELAY_MS: Final = 3 * 86_400_000
_TIMER_STEP_MS: Final = 1000
_MOST_ORDERS: Final = 4096
# RocketMQ's properties that a new message may have: columns have the same meaning, or clients set them. Properties that
# brokers set have no meaning in a write; a message that is sent again may have them.
_TAKEN: Final = (*_TEXTS.values(), _properties.UNIQ_KEY, _properties.WAIT)
# Properties with a meaning for a broker or a client, and the replacement.
_INSTEAD: Final = {
    **{
        name: f"use {instead} of mqfast.client"
        for name, instead in _properties.RESERVED.items()
        if instead and name not in _TAKEN
    },
    _properties.DELAY: "use the column delayLevel",
    **dict.fromkeys(
        (_properties.TIMER_DELAY_MS, _properties.TIMER_DELAY_SEC, _properties.TIMER_DELIVER_MS),
        "use the column delayTimeMs",
    ),
}
_DELAYS: Final = (
    _properties.DELAY, _properties.TIMER_DELAY_MS, _properties.TIMER_DELAY_SEC, _properties.TIMER_DELIVER_MS,
)  # fmt: skip


def refuse_complete(overwrite: bool) -> None:
    """Raise ConfigError for a stream with output mode complete: the sinks append."""
    if overwrite:
        raise ConfigError(
            "outputMode: expected append, found complete, which would write everything again with every batch; "
            "write such results by foreachBatch with a txnId of the batch"
        )


def check_columns(schema: StructType, options: Options) -> None:
    """Check that rows of this schema can be written.

    Raises: ConfigError naming the column, what was expected and the nearest name.
    """
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        type_name = field.dataType.simpleString()
        if field.name in COLUMNS:
            kinds = COLUMNS[field.name][0]
            if type_name not in kinds:
                raise ConfigError(f"column {field.name}: expected {' or '.join(kinds)}, found {type_name}")
            if type_name == "timestamp_ntz" and options.preserve_timestamps:
                raise ConfigError(
                    f"column {field.name}: expected timestamp, found timestamp_ntz, which names no instant: "
                    f"CAST({field.name} AS timestamp) takes it in the session's time zone"
                )
        elif field.name not in PLACES and not options.ignore_extra_columns:
            near = nearest_name(field.name, list(COLUMNS))
            raise ConfigError(f"column {field.name}: the sink knows none of this name{near}; or set ignoreExtraColumns")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns: expected each name once, found {', '.join(names)}")
    if "body" not in names:
        raise ConfigError(f"column body: expected it, found {', '.join(names) or 'no column'}")
    if "topic" not in names and options.topic is None:
        raise ConfigError("topic: expected a column or the option topic, found neither")
    if options.queue_selector == "column" and "queueId" not in names:
        raise ConfigError("option queueSelector: column needs the column queueId, which is not there")
    if options.topic is not None:
        check_topic(options.topic)


def _order(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the order in which a broker writes these names. Raises: MessageIllegal."""
    return tuple(_properties.decode(_properties.encode(dict.fromkeys(names, "x"))))


class RowWriter:
    """The encoder of the batches of a task.

    Args: stamp: see RowEncoder; first_turn: the first queue of the task's round robin; queues_of: number of queues of a
        topic; parks: delayed rows go to the topic where a broker would put them, instead of carrying a delay property.
    Thread: one.
    """

    def __init__(
        self,
        options: Options,
        stamp: bytes,
        first_turn: int,
        queues_of: Callable[[str], int],
        *,
        parks: bool = True,
    ) -> None:
        config = StoreConfig()
        self._options: Final = options
        self._queues_of: Final = queues_of
        self._turn = first_turn
        self._parks: Final = parks
        # Properties of the record that was read: a new record gets new ones.
        renewed = () if options.preserve_ids else (_properties.UNIQ_KEY,)
        old = (_properties.STAMP, _properties.CRC32, *renewed)
        self._dropped: Final = frozenset(old)
        self._orders: dict[tuple[str, ...], tuple[str, ...]] = {}
        host = parse_host(config.store_host)
        record = config.mapped_file_bytes_commit_log
        dropped = tuple(name.encode("ascii") for name in old)
        born = parse_host(config.born_host)
        self._encoder: Final = RowEncoder(born, host, stamp, config.max_message_bytes, record, dropped)

    @property
    def rows(self) -> int:
        """Return the number of rows encoded so far."""
        return self._encoder.rows

    def encode(self, batch: pa.RecordBatch) -> memoryview:
        """Return the records of an Arrow batch; valid until the next call.

        Raises: MessageIllegal naming the row of the task.
        """
        if batch.num_rows == 0:
            return memoryview(b"")
        columns = dict(zip(batch.schema.names, batch.columns, strict=True))
        if _is_plain(columns):
            return self.copy([batch])
        if (simple := self._without_objects(batch, columns)) is not None:
            return self.copy([simple])
        n, now_ms = batch.num_rows, time.time_ns() // 1_000_000
        topics = self._topics(columns.get("topic"), n)
        rows = self._properties(columns, n)
        queues = self._queues(columns, topics, rows, n)
        if "delayLevel" in columns or "delayTimeMs" in columns:
            self._delay(columns, topics, queues, rows, now_ms)
        texts = self._property_texts(rows)
        names = list(dict.fromkeys(topics))
        index = {name: i for i, name in enumerate(names)}
        offsets, data = self._bodies(columns["body"])
        return self._encoder.encode(
            [self._topic_bytes(name) for name in names],
            _int32([index[topic] for topic in topics]),
            self._queue_numbers(queues),
            offsets,
            data,
            texts,
            _numbers(columns.get("flag"), n),
            _numbers(columns.get("sysFlag"), n),
            self._born(columns.get("bornTimestamp"), n, now_ms),
            _numbers(columns.get("reconsumeTimes"), n),
            self._hosts(columns.get("bornHost")),
        )

    def copy(
        self, batches: Sequence[pa.RecordBatch], order: np.ndarray[Any, np.dtype[np.int64]] | None = None
    ) -> memoryview:
        """Return the records of rows that are copies of messages: stored properties, a queue for each row, no
        additions.

        No Python object is made for a row. Valid until the next call.

        Args: order: see RowEncoder.encode_plain; without an order there is a single batch.
        Raises: MessageIllegal naming the row of the task.
        """
        plain = [self._plain(batch) for batch in batches]
        now_ms = time.time_ns() // 1_000_000
        return self._encoder.encode_plain(plain, order, now_ms, self._topic_bytes, parse_host)

    def _plain(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the present columns of PLAIN_COLUMNS, in the types of PLAIN_COLUMNS."""
        import pyarrow as pa

        kinds = {"u": pa.string(), "i": pa.int32(), "l": pa.int64(), "z": pa.binary()}
        columns = {name: batch.column(name) for name in PLAIN_COLUMNS if name in batch.schema.names}
        columns["topic"] = self._topic_column(columns.get("topic"), batch.num_rows)
        for name, what in (("queueId", "a queueId"), ("body", "a body")):
            if columns[name].null_count:
                raise self._refuse(_first_null(columns[name]), f"expected {what}, found null")
        if columns["queueId"].type != pa.int32():
            columns["queueId"] = pa.array(self._queue_numbers(columns["queueId"].to_pylist()))
        if not self._options.preserve_timestamps:
            columns.pop("bornTimestamp", None)
        elif "bornTimestamp" in columns and columns["bornTimestamp"].type.unit != "us":
            columns["bornTimestamp"] = columns["bornTimestamp"].cast(
                pa.timestamp("us", columns["bornTimestamp"].type.tz)
            )
        arrays = [column.cast(kinds[PLAIN_COLUMNS[name]]) for name, column in columns.items()]
        return pa.RecordBatch.from_arrays(arrays, list(columns))

    def _without_objects(self, batch: pa.RecordBatch, columns: dict[str, pa.Array]) -> pa.RecordBatch | None:
        """Return the rows as copies of messages if each row has texts beside the body only; None for other columns.

        Properties and queues come from Arrow's memory, without a Python object for a row.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        named = [(target, columns[name]) for name, target in _TEXTS.items() if name in columns]
        if (
            any(name in columns for name in ("properties", "delayLevel", "delayTimeMs", "queueId"))
            or (self._options.preserve_ids and "uniqKey" in columns)
            or self._options.queue_selector == "column"
            or not all(pa.types.is_string(column.type) for _, column in named)
        ):
            return None
        texts = {}
        for target, column in named:
            if any(pc.any(pc.match_substring(column, mark)).as_py() for mark in ("\x01", "\x02")):
                return None  # row by row, so that the error names the row
            texts[target] = pc.if_else(pc.equal(pc.binary_length(column), 0), None, column)
        topics = self._topic_column(columns.get("topic"), batch.num_rows)
        key = None
        if self._options.queue_selector == "hash":
            keys = [texts[name] for name in (_properties.SHARDINGKEY, _properties.KEYS) if name in texts]
            key = pc.coalesce(*keys) if keys else None
        made = {name: columns[name] for name in PLAIN_COLUMNS if name in columns}
        made |= {"topic": topics, "queueId": self._queues_by(key, topics)}
        if texts:
            order = _order(tuple(texts))
            # The join gets no null: some releases of Arrow return another number of rows then.
            joined = [
                pc.binary_join_element_wise(f"{name}\x01", pc.fill_null(texts[name], ""), "\x02", "") for name in order
            ]
            pairs = [pc.if_else(pc.is_valid(texts[name]), text, "") for name, text in zip(order, joined, strict=True)]
            made["properties"] = pairs[0] if len(pairs) == 1 else pc.binary_join_element_wise(*pairs, "")
        return pa.RecordBatch.from_arrays(list(made.values()), list(made))

    def _queues_by(self, key: pa.Array | None, topics: pa.Array) -> pa.Array:
        """Return a queue for each row: by the hash of the key, round-robin without a key."""
        import numpy as np
        import pyarrow as pa

        n = len(topics)
        numbers = np.empty(n, np.int64)
        without = np.ones(n, np.bool_)
        if key is not None:
            _, ends, data = key.buffers()
            java_hashes(np.frombuffer(ends, np.int32)[key.offset : key.offset + n + 1], data or b"", numbers)
            without = np.asarray(key.is_null())
        count = int(np.count_nonzero(without))
        numbers[without] = np.arange(self._turn, self._turn + count)
        self._turn += count
        coded = topics.dictionary_encode()
        counts = np.array([self._queues_of(topic) for topic in coded.dictionary.to_pylist()], np.int64)
        return pa.array((numbers % counts[np.asarray(coded.indices)]).astype(np.int32))

    def _topic_column(self, column: pa.Array | None, n: int) -> pa.Array:
        import pyarrow as pa

        usual = self._options.topic
        if column is None:
            return pa.repeat(pa.scalar(usual or "", pa.string()), n)
        if column.null_count == 0:
            return column
        if usual is None:
            what = "expected a topic, found null; the option topic is for such rows"
            raise self._refuse(_first_null(column), what)
        return column.fill_null(usual)

    def _refuse(self, i: int, what: str) -> MessageIllegal:
        return MessageIllegal(f"row {self.rows + i}: {what}")

    def _topic_bytes(self, topic: str) -> bytes:
        return check_topic(topic)

    def _topics(self, column: pa.Array | None, n: int) -> list[str]:
        return self._topic_column(column, n).to_pylist()  # type: ignore[no-any-return]

    def _bodies(self, column: pa.Array) -> tuple[Any, Any]:
        """Return offsets and bytes of the bodies in Arrow's memory."""
        import numpy as np
        import pyarrow as pa

        if column.null_count:
            raise self._refuse(_first_null(column), "expected a body, found null")
        if not (pa.types.is_binary(column.type) or pa.types.is_string(column.type)):
            column = column.cast(pa.binary())
        _, offsets, data = column.buffers()
        return np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1], data or b""

    # --- properties ---

    def _properties(self, columns: dict[str, pa.Array], n: int) -> list[dict[str, str]]:
        names, values, ends = _pairs(columns["properties"]) if "properties" in columns else (None, None, None)
        if names is not None and ends is not None and not PLACES.intersection(columns):
            self._refuse_steering(columns["properties"], names, ends)
        named = [("tags", _properties.TAGS), ("keys", _properties.KEYS), ("shardingKey", _properties.SHARDINGKEY)]
        if self._options.preserve_ids:
            named.append(("uniqKey", _properties.UNIQ_KEY))
        extras = [(target, _joined(columns[name])) for name, target in named if name in columns]
        return merge_properties(n, names, values, ends, extras, self._dropped)

    def _refuse_steering(self, column: pa.Array, names: list[str], ends: list[int]) -> None:
        """Refuse properties of new messages with a meaning for brokers.

        Rows with the offsets of a message are copies of messages, and so are stored property strings: brokers have
        already acted on these properties.
        """
        import pyarrow as pa

        if not pa.types.is_map(column.type) or _INSTEAD.keys().isdisjoint(names):
            return
        for at in range(ends[0], ends[-1]):
            if (name := names[at]) in _INSTEAD:
                row = bisect.bisect_right(ends, at) - 1
                raise self._refuse(
                    row, f"property {name!r} is RocketMQ's own: {_INSTEAD[name]}; of messages that were read keep the "
                    "column queueOffset, or leave the property out",
                )  # fmt: skip

    def _property_texts(self, rows: list[dict[str, str]]) -> list[bytes]:
        if len(self._orders) > _MOST_ORDERS:
            self._orders = {}  # names that are data, not names

        def slow(i: int, row: dict[str, str]) -> bytes:
            try:
                return _properties.encode(row)
            except MessageIllegal as error:
                raise type(error)(f"row {self.rows + i}: {error}") from None

        def order_of(names: tuple[str, ...]) -> tuple[str, ...]:
            try:
                return _order(names)
            except MessageIllegal:
                return names  # the slow path names the row

        return property_texts(rows, self._orders, order_of, slow)

    # --- queues ---

    def _queues(
        self, columns: dict[str, pa.Array], topics: Sequence[str], texts: Sequence[dict[str, str]], n: int
    ) -> list[int]:
        given: list[int | None] = columns["queueId"].to_pylist() if "queueId" in columns else [None] * n
        if None not in given:
            return given  # type: ignore[return-value]
        selector = self._options.queue_selector
        chosen: list[int] = []
        for i, queue_id in enumerate(given):
            if queue_id is not None:
                chosen.append(queue_id)
                continue
            if selector == "column":
                raise self._refuse(i, "expected a queueId, found null; queueSelector=column allows nothing else")
            key = None
            if selector == "hash":
                key = texts[i].get(_properties.SHARDINGKEY) or texts[i].get(_properties.KEYS)
            if key is None:
                number = self._turn
                self._turn += 1
            else:
                number = abs(java_hash(key))
            chosen.append(number % self._queues_of(topics[i]))
        return chosen

    def _queue_numbers(self, queues: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
        try:
            return _int32(queues)
        except OverflowError:
            i = next(i for i, queue_id in enumerate(queues) if not -(1 << 31) <= queue_id < 1 << 31)
            raise self._refuse(i, f"expected a queue id below 2^31, found {queues[i]}") from None

    # --- delay ---

    def _delay(
        self,
        columns: dict[str, pa.Array],
        topics: list[str],
        queues: list[int],
        texts: Sequence[dict[str, str]],
        now_ms: int,
    ) -> None:
        """Put delayed rows into the topics from which a broker's schedule or timer delivers messages."""
        n = len(topics)
        levels = columns["delayLevel"].to_pylist() if "delayLevel" in columns else [None] * n
        delays = columns["delayTimeMs"].to_pylist() if "delayTimeMs" in columns else [None] * n
        for i, (level, delay_ms) in enumerate(zip(levels, delays, strict=True)):
            if not self._parks:
                self._say_delay(i, level, delay_ms, texts[i])
                continue
            if level is not None and level > 0:
                level = min(level, _MOST_LEVELS)
                target, queue_id, noted = _SCHEDULE_TOPIC, level - 1, {_properties.DELAY: str(level)}
            elif delay_ms is not None and delay_ms > 0:
                self._checked_delay(i, delay_ms)
                # A broker rounds down to the timer's precision; a multiple of the precision becomes the step before.
                out_ms = (now_ms + delay_ms - 1) // _TIMER_STEP_MS * _TIMER_STEP_MS
                noted = {_properties.TIMER_DELAY_MS: str(delay_ms), _properties.TIMER_OUT_MS: str(out_ms)}
                target, queue_id = _TIMER_TOPIC, 0
            else:
                continue
            texts[i].update({**noted, _properties.REAL_TOPIC: topics[i], _properties.REAL_QID: str(queues[i])})
            topics[i], queues[i] = target, queue_id

    def _say_delay(self, i: int, level: int | None, delay_ms: int | None, properties: dict[str, str]) -> None:
        """Add the properties that make a broker delay a message; the delay of the message that was read is over."""
        for name in (*_DELAYS, _properties.TRAN_MSG, _properties.PGROUP):  # a send would act on these
            properties.pop(name, None)
        if level is not None and level > 0:
            properties[_properties.DELAY] = str(level)
        elif delay_ms is not None and delay_ms > 0:
            properties[_properties.TIMER_DELAY_MS] = str(self._checked_delay(i, delay_ms))

    def _checked_delay(self, i: int, delay_ms: int) -> int:
        if delay_ms > _MOST_DELAY_MS:
            raise self._refuse(i, f"expected a delay of at most {_MOST_DELAY_MS} ms, found {delay_ms}")
        return delay_ms

    # --- the rest ---

    def _born(self, column: pa.Array | None, n: int, now_ms: int) -> Any:
        import numpy as np
        import pyarrow as pa

        if column is None or not self._options.preserve_timestamps:
            return np.full(n, now_ms, np.int64)
        return np.ascontiguousarray(column.cast(pa.int64()).fill_null(now_ms * 1000).to_numpy() // 1000)

    def _hosts(self, column: pa.Array | None) -> list[bytes | None] | None:
        if column is None:
            return None
        known: dict[str | None, bytes | None] = {None: None}
        hosts = column.to_pylist()
        for i, host in enumerate(hosts):
            if host not in known:
                try:
                    known[host] = parse_host(host)
                except MessageIllegal as error:
                    raise self._refuse(i, str(error)) from None
        return [known[host] for host in hosts]


def _first_null(column: pa.Array) -> int:
    return column.is_null().to_pylist().index(True)  # type: ignore[no-any-return]


def _is_plain(columns: dict[str, pa.Array]) -> bool:
    """Return whether the rows are copies: stored property strings or none, no additions, and a queue for each row."""
    import pyarrow as pa

    added = ("tags", "keys", "shardingKey", "uniqKey", "delayLevel", "delayTimeMs")
    return (
        ("properties" not in columns or not pa.types.is_map(columns["properties"].type))
        and "queueId" in columns
        and columns["queueId"].null_count == 0
        and not any(name in columns for name in added)
    )


def _pairs(column: pa.Array) -> tuple[list[str], list[str | None], list[int]]:
    """Return names and values of a column of maps or of property strings, and the row of each pair."""
    import pyarrow as pa

    if pa.types.is_map(column.type):
        return column.keys.to_pylist(), column.items.to_pylist(), column.offsets.to_pylist()
    rows = [_properties.decode(text.encode("utf-8")) if text else {} for text in column.to_pylist()]
    ends = list(accumulate(map(len, rows), initial=0))
    return [name for row in rows for name in row], [value for row in rows for value in row.values()], ends


def _joined(column: pa.Array) -> list[str | None]:
    import pyarrow as pa

    values = column.to_pylist()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return values  # type: ignore[no-any-return]
    there = [[key for key in value if key is not None] if value else None for value in values]
    return [" ".join(keys) if keys else None for keys in there]


def _int32(values: Iterable[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    import numpy as np

    return np.fromiter(values, np.int32)


def _numbers(column: pa.Array | None, n: int) -> Any:
    """Return a column of whole numbers; null and a missing column are 0. Raises: ArrowInvalid for a number above 32
    bits.
    """
    import numpy as np
    import pyarrow as pa

    if column is None:
        return np.zeros(n, np.int32)
    return np.ascontiguousarray(column.cast(pa.int32()).fill_null(0).to_numpy())
