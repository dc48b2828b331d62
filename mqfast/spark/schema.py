"""The columns of every view: source of the Arrow schema, the StructType and their agreement.

pyarrow and pyspark are imported where types are built. Values come from the backend and the scanner.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConfigError
from mqfast.spark.options import Options, nearest_name

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

__all__ = ["STORE", "VIEWS", "Column", "arrow_schema", "columns_of_type", "chosen_columns", "struct_type"]


@dataclass(frozen=True)
class Column:
    """A column; ``kind`` is Spark's short name of the type."""

    name: str
    kind: str
    meaning: str
    nullable: bool = False


_MAP: Final = "map<string,string>"

MESSAGES: Final = (
    Column("topic", "string", "Topic of the queue."),
    Column("queueId", "int", "Queue."),
    Column("queueOffset", "bigint", "Offset in the queue, in messages."),
    Column("physicalOffset", "bigint", "Offset in the log, in bytes."),
    Column("msgSize", "int", "Bytes of the whole record."),
    Column("bodySize", "int", "Bytes of the body as stored."),
    Column("bornTimestamp", "timestamp", "When the producer created the message."),
    Column("storeTimestamp", "timestamp", "When the message was stored."),
    Column("bornHost", "string", "Host and port of the producer."),
    Column("storeHost", "string", "Host and port of the broker."),
    Column("flag", "int", "The application's own number."),
    Column("sysFlag", "int", "Bits: compressed body (of `body` as returned), transaction, IPv6 hosts, batch."),
    Column("reconsumeTimes", "int", "How often the message was sent back."),
    Column("preparedTransactionOffset", "bigint", "Physical offset of the half message of a transaction."),
    Column("bodyCrc", "int", "Checksum of the body in the record, 31 bits."),
    Column("tags", "string", "Property TAGS.", nullable=True),
    Column("keys", "string", "Property KEYS, separated by blanks.", nullable=True),
    Column("uniqKey", "string", "Property UNIQ_KEY, set by the producer.", nullable=True),
    Column("msgId", "string", "Message id: store host and physical offset."),
    Column("properties", _MAP, "All properties; with `properties=raw` the string as stored."),
    Column("body", "binary", "The body as the producer sent it; with `decompress=false` as stored."),
    Column("crcOk", "boolean", "True if the checksum agrees; only with `verifyCrc=mark`."),
)

# Left out unless named: slow and rarely needed.
_ON_REQUEST: Final = frozenset({"bornHost", "storeHost", "msgId"})

QUEUES: Final = (
    Column("topic", "string", "Topic."),
    Column("queueId", "int", "Queue."),
    Column("minOffset", "bigint", "First message still in the log."),
    Column("maxOffset", "bigint", "Behind the last message."),
    Column("messages", "bigint", "maxOffset - minOffset."),
    Column("minTimestamp", "timestamp", "Store time of the first message.", nullable=True),
    Column("maxTimestamp", "timestamp", "Store time of the last message.", nullable=True),
    Column("minPhysicalOffset", "bigint", "Physical offset of the first message.", nullable=True),
    Column("maxPhysicalOffset", "bigint", "Physical offset of the last message.", nullable=True),
)
FILES: Final = (
    Column("path", "string", "The file."),
    Column("startOffset", "bigint", "Physical offset of the first byte of the file."),
    Column("fileBytes", "bigint", "Length of the file."),
    Column("usedBytes", "bigint", "Bytes of the file that belong to the log so far."),
    Column("modified", "timestamp", "When the file was last written."),
    Column("minTimestamp", "timestamp", "Store time of the first message of the file.", nullable=True),
)
AUDIT: Final = (
    Column("path", "string", "The file."),
    Column("startOffset", "bigint", "Physical offset of the first byte that was checked."),
    Column("endOffset", "bigint", "Physical offset behind the last byte that was checked."),
    Column("records", "bigint", "Whole records with correct checksums."),
    Column("recordBytes", "bigint", "Bytes of these records."),
    Column("bodyBytes", "bigint", "Bytes of the bodies of these records."),
    Column("crcErrors", "bigint", "Whole records with wrong checksums."),
    Column("gaps", "bigint", "Places where a record should begin and none does."),
    Column("gapBytes", "bigint", "Bytes from these places to the next record."),
    Column("firstBadOffset", "bigint", "Physical offset of the first damage.", nullable=True),
    Column("firstBadReason", "string", "Kind of the first damage.", nullable=True),
    Column("minTimestamp", "timestamp", "Lowest store time.", nullable=True),
    Column("maxTimestamp", "timestamp", "Highest store time.", nullable=True),
)
CONSUMEQUEUE: Final = (
    Column("topic", "string", "Topic of the queue."),
    Column("queueId", "int", "Queue."),
    Column("queueOffset", "bigint", "Offset of the unit in the queue."),
    Column("physicalOffset", "bigint", "Physical offset of the record in the unit."),
    Column("msgSize", "int", "Length of the record in the unit."),
    Column("tagsCode", "bigint", "Hash of the tags; for delayed messages the delivery time."),
    Column("messages", "int", "Messages of the unit; above 1 in batch queues only."),
)
GROUPS: Final = (
    Column("group", "string", "Consumer group."),
    Column("topic", "string", "Topic."),
    Column("queueId", "int", "Queue."),
    Column("committedOffset", "bigint", "Next message that the group will read."),
    Column("minOffset", "bigint", "First message of the queue.", nullable=True),
    Column("maxOffset", "bigint", "Behind the last message of the queue.", nullable=True),
    Column("lag", "bigint", "Messages that the group has not read.", nullable=True),
)
VIEWS: Final[dict[str, tuple[Column, ...]]] = {
    "messages": MESSAGES,
    "queues": QUEUES,
    "files": FILES,
    "audit": AUDIT,
    "consumequeue": CONSUMEQUEUE,
    "groups": GROUPS,
}


# --- columns ---------------------------------------------------------------------------------------------------------


STORE: Final = Column(
    "store", "string", "Store of the row: its name in `paths`, the broker's name with `namesrv`, otherwise the path."
)
"""A column of every view, there when it is named or when several stores are read."""


def _available(options: Options) -> dict[str, Column]:
    columns = {STORE.name: STORE}
    for column in VIEWS[options.view]:
        if column.name == "crcOk" and options.view == "messages" and options.verify_crc != "mark":
            continue
        if column.name == "properties" and options.properties != "map":
            if options.properties == "none":
                continue
            column = replace(column, kind="string")
        columns[column.name] = column
    return columns


def _named(name: str, available: dict[str, Column], options: Options) -> Column:
    column = available.get(name)
    if column is not None:
        return column
    if name == "crcOk" and options.view == "messages":
        raise ConfigError("column crcOk: it is there with verifyCrc=mark only")
    if name == "properties" and options.view == "messages":
        raise ConfigError("column properties: properties=none leaves it out")
    raise ConfigError(f"column {name}: view {options.view} has none of this name{nearest_name(name, list(available))}")


def chosen_columns(options: Options) -> tuple[Column, ...]:
    """Return the columns that the options select, of any view.

    Raises: ConfigError for a column that the view does not have.
    """
    available = _available(options)
    if options.columns is not None:
        return tuple(_named(name, available, options) for name in options.columns)
    left_out = set(_ON_REQUEST) if options.view == "messages" else set()
    if not options.has_stores:
        left_out.add(STORE.name)
    if not options.include_body:
        left_out.add("body")
    return tuple(column for name, column in available.items() if name not in left_out)


def columns_of_type(schema: StructType, options: Options) -> tuple[Column, ...]:
    """Return the columns that a user's schema names, in the order of the schema.

    Raises: ConfigError for unknown names and for types other than the column's.
    """
    available = _available(options)
    columns = []
    for field in schema.fields:
        column = _named(field.name, available, options)
        if field.dataType.simpleString() != column.kind:
            raise ConfigError(
                f"column {column.name}: expected type {column.kind}, found {field.dataType.simpleString()}"
            )
        if not field.nullable and column.nullable:
            raise ConfigError(f"column {column.name}: it may be null; the schema says not null")
        columns.append(replace(column, nullable=field.nullable))
    if not columns:
        raise ConfigError("schema: expected at least one column, found none")
    if len({column.name for column in columns}) < len(columns):
        raise ConfigError("schema: expected each column once")
    return tuple(columns)


# --- schemas --------------------------------------------------------------------------------------------------------


def struct_type(columns: Iterable[Column]) -> StructType:
    """Return Spark's schema of these columns."""
    from pyspark.sql import types as t

    kinds: dict[str, DataType] = {
        "string": t.StringType(),
        "int": t.IntegerType(),
        "bigint": t.LongType(),
        "timestamp": t.TimestampType(),
        "binary": t.BinaryType(),
        "boolean": t.BooleanType(),
        _MAP: t.MapType(t.StringType(), t.StringType(), True),
    }
    return t.StructType([t.StructField(c.name, kinds[c.kind], c.nullable) for c in columns])


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """Return Arrow's schema of these columns, as Spark expects for their StructType."""
    import pyarrow as pa

    entries = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True))
    kinds = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "binary": pa.binary(),
        "boolean": pa.bool_(),
        _MAP: entries,
    }
    return pa.schema([pa.field(c.name, kinds[c.kind], c.nullable) for c in columns])
