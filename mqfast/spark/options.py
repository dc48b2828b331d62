"""The options of the Spark source and sink: name, type, default, scope and meaning of each.

The fields of ``Options`` declare the options by ``SettingSpec``: parsing, errors with the nearest name and the
reference in ``docs/spark/reference.md`` derive from the fields. Parsing reads no store: ``selection.py`` checks topics
and offsets.
Imports neither Spark nor Arrow.
"""

# ruff: noqa: RUF009  (every default is made by _option, which is the point)

from __future__ import annotations

import dataclasses
import enum
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from mqfast.errors import ConfigError
from mqfast.settings.declaration import SettingSpec, read_setting, specs_of, text_setting
from mqfast.util.near_names import did_you_mean
from mqfast.util.offset_words import end_word

__all__ = ["BATCH", "SINK", "STREAM", "Options", "check_brokers", "describe", "of_broker", "parse", "stores_of"]

BATCH: Final = "batch"
STREAM: Final = "stream"
SINK: Final = "sink"
READ: Final = (BATCH, STREAM)
EVERYWHERE: Final = (BATCH, STREAM, SINK)


class Scope(enum.Flag):
    """The scope of an option: for a directory only, for a cluster only, part of the key of a connection."""

    DIRECTORY = enum.auto()
    CLUSTER = enum.auto()
    CONNECTION = enum.auto()
    EVERYWHERE = 0


# Options that Spark adds to those of a source or sink.
_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})
_SIZE: Final = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)", re.IGNORECASE)
_FACTORS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MILLISECONDS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}

# (text) -> value; raises ValueError with the expected form.
Reader = Callable[[str], Any]


# --- kinds of values -------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("a text that is not empty")
    return text


def _flag(text: str) -> bool:
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise ValueError("true or false")
    return word == "true"


def _number(text: str) -> int:
    word = text.strip()
    if not (word.isascii() and word.isdigit() and int(word) > 0):
        raise ValueError("a whole number above 0")
    return int(word)


def size(text: str) -> int:
    """Return the bytes of ``"134217728"``, ``"128m"`` or ``"1g"``.

    Raises: ValueError with the expected form.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise ValueError("a size such as 128m or a number of bytes")
    return int(match[1]) * _FACTORS[match[2].lower()]


def duration_ms(text: str) -> int:
    """Return the milliseconds of ``"500ms"``, ``"30s"``, ``"15m"``, ``"1h"`` or ``"7d"``.

    Raises: ValueError with the expected form.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ValueError("a duration such as 500ms, 30s, 15m, 1h or 7d")
    return int(match[1]) * _MILLISECONDS[match[2].lower()]


def instant_ms(text: str) -> int:
    """Return milliseconds since the epoch, given as a number or in ISO 8601; a time without a zone is UTC.

    Raises: ValueError with the expected form.
    """
    word = text.strip()
    if word.isascii() and word.isdigit():
        return int(word)
    try:
        moment = datetime.fromisoformat(word)
    except ValueError:
        raise ValueError("milliseconds since the epoch, or a time such as 2026-01-31T12:00:00Z") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise ValueError("names separated by commas")
    if len(set(names)) < len(names):
        raise ValueError("each name once")
    return names


def _stores(text: str) -> tuple[tuple[str, str], ...]:
    """Return (name, path) pairs of ``a,b``, ``["a", "b"]`` (Spark's list of paths) or ``{"name": "a"}``."""
    stores: list[tuple[Any, Any]]
    if text.lstrip().startswith("["):
        try:
            stores = [(path, path) for path in json.loads(text)]
        except json.JSONDecodeError as error:
            raise ValueError(f"a JSON array ({error})") from None
    elif text.lstrip().startswith("{"):
        stores = list(_json_object(text).items())
    else:
        stores = [(path, path) for path in _names(text)]
    names = [name for name, _ in stores]
    if not stores or not all(isinstance(path, str) and path.strip() for _, path in stores):
        raise ValueError('directories of stores: a,b or ["a", "b"] or {"name": "a"}')
    if len(set(names)) < len(names) or len({path for _, path in stores}) < len(stores):
        raise ValueError("each store once")
    return tuple(stores)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise ValueError(f"a regular expression ({error})") from None


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"a JSON object ({error})") from None
    if not isinstance(value, dict):
        raise ValueError("a JSON object")
    return value


def _queues(text: str) -> tuple[tuple[str, int], ...]:
    """Return (topic, queue id) pairs of ``{"T": [0, 1]}`` or ``T/0,T/1``."""
    expected = 'queues such as T/0,T/1 or {"T": [0, 1]}'
    queues: list[tuple[str, int]] = []
    if text.lstrip().startswith("{"):
        for topic, queue_ids in _json_object(text).items():
            if not isinstance(queue_ids, list) or not all(type(i) is int and i >= 0 for i in queue_ids):
                raise ValueError(expected)
            queues += [(topic, i) for i in queue_ids]
    else:
        for name in _names(text):
            topic, _, queue_id = name.rpartition("/")
            if not topic or not (queue_id.isascii() and queue_id.isdigit()):
                raise ValueError(expected)
            queues.append((topic, int(queue_id)))
    if not queues or len(set(queues)) < len(queues):
        raise ValueError(expected + ", each once")
    return tuple(sorted(queues))


_WORDS: Final = frozenset({"earliest", "latest", "group"})
# These two numbers in JSON offsets mean the words, as in Kafka's connector.
_NUMBERS: Final = {-2: "earliest", -1: "latest"}


def _one_offset(value: object) -> int | str:
    if isinstance(value, str) and end_word(value) in _WORDS:
        return str(end_word(value))
    if type(value) is int and value in _NUMBERS:
        return _NUMBERS[value]
    if type(value) is int and value >= 0:
        return value
    raise ValueError("offsets of JSON to be earliest (-2), latest (-1), group or a number from 0 on")


@dataclass(frozen=True)
class Bound:
    """A start or an end of a read.

    Exactly one of ``word`` (earliest, latest, group), ``back_count`` (messages before the end), ``back_ms``
    (milliseconds before the end) and ``by_queue`` is set; ``others`` (a word) goes with ``by_queue``. ``by_store``: a
    bound for each of several stores. ``of_archive``: the offsets by queue are the ends of an archive.
    """

    word: str | None = None
    back_count: int | None = None
    back_ms: int | None = None
    by_queue: Mapping[tuple[str, int], int | str] | None = None
    others: int | str | None = None
    by_store: Mapping[str, Bound] | None = None
    of_archive: bool = False


def _of_stores(table: dict[str, Any]) -> bool:
    """Return whether a table has the form ``{"store": {"T/0": v}}`` rather than ``{"T": {"0": v}}``."""
    inner = [value for value in table.values() if isinstance(value, dict)]
    return bool(inner) and any(not (name.isascii() and name.isdigit()) for value in inner for name in value)


def _by_queue(table: dict[str, Any], convert: Callable[[object], Any]) -> tuple[dict[tuple[str, int], Any], Any]:
    """Return ``{"T/0": v, "*": w}`` or ``{"T": {"0": v}}`` as ((topic, queue id) -> v, w)."""
    values: dict[tuple[str, int], Any] = {}
    others = None
    for name, value in table.items():
        if name == "*":
            others = convert(value)
            continue
        entries = value.items() if isinstance(value, dict) else [(name.rpartition("/")[2], value)]
        topic = name if isinstance(value, dict) else name.rpartition("/")[0]
        for queue_id, entry in entries:
            if not topic or not (queue_id.isascii() and queue_id.isdigit()):
                raise ValueError('JSON by queue, {"T/0": 5} or {"T": {"0": 5}}')
            values[topic, int(queue_id)] = convert(entry)
    return values, others


def _bound(text: str) -> Bound:
    word = text.strip()
    if (plain := end_word(word.lower())) in _WORDS:
        return Bound(word=plain)
    if word.startswith("{"):
        table = _json_object(word)
        if not _of_stores(table):
            by_queue, others = _by_queue(table, _one_offset)
            return Bound(by_queue=by_queue, others=others)
        bounds: dict[str, Bound] = {}
        for name, value in table.items():
            by_queue, others = _by_queue(value if name != "*" else {"*": value}, _one_offset)
            bounds[name] = Bound(by_queue=by_queue, others=others)
        return Bound(by_queue={}, others=bounds.pop("*", Bound()).others, by_store=bounds)
    if word.startswith("-") and word[1:].isascii() and word[1:].isdigit():
        return Bound(back_count=int(word[1:]))
    if word.startswith("-") and _DURATION.fullmatch(word[1:]):
        return Bound(back_ms=duration_ms(word[1:]))
    raise ValueError("earliest, latest, group, -1000 (messages), -10m (time) or JSON by queue")


def _one_instant(value: object) -> int:
    if isinstance(value, str):
        return instant_ms(value)
    if type(value) is int and value >= 0:
        return value
    raise ValueError("times in milliseconds or as text")


def _instants(text: str) -> Mapping[tuple[str, int], int]:
    times, others = _by_queue(_json_object(text), _one_instant)
    if others is not None:
        raise ValueError("times of named queues; startingTimestamp or endingTimestamp is for the others")
    return times


def _choice(*words: str) -> Reader:
    def read(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(" or ".join(words) + nearest_name(word, words))
        return word

    read.__name__ = "|".join(words)
    return read


_KINDS: Final[dict[Reader, str]] = {
    _text: "text",
    _flag: "true, false",
    _number: "number",
    size: "size",
    duration_ms: "duration",
    instant_ms: "time",
    _names: "names",
    _stores: "paths",
    _pattern: "regular expression",
    _queues: "queues",
    _bound: "offsets",
    _instants: "JSON",
}


# --- the table -------------------------------------------------------------------------------------------------------


def _option(
    read: Reader,
    default: Any,
    where: tuple[str, ...],
    meaning: str,
    *,
    shown: str = "",
    secret: bool = False,
    scope: Scope = Scope.EVERYWHERE,
) -> Any:
    kind = _KINDS.get(read, read.__name__)
    spec = SettingSpec(kind, default=default, doc=meaning, read=read, shown=shown, optional=default is None)
    return text_setting(spec, secret=secret, where=where, scope=scope)


@dataclass(frozen=True)
class Options:
    """The parsed options; a field has the option's name in snake case."""

    # the store
    path: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "Root directory of the store; `load(path)` sets it.",
        scope=Scope.DIRECTORY | Scope.CONNECTION,
    )
    paths: tuple[tuple[str, str], ...] | None = _option(
        _stores, None, READ, "Several stores instead of one: `a,b`, or by name `{\"broker-a\": \"/var/lib/a\"}`; "
        "`load([\"a\", \"b\"])` sets it.", scope=Scope.DIRECTORY,
    )  # fmt: skip
    store_path_commit_log: tuple[str, ...] | None = _option(
        _names, None, READ, "Directories of a log outside of the store: the values of RocketMQ's keys of this name and "
        "`readOnlyCommitLogStorePaths`, separated by commas.", scope=Scope.DIRECTORY | Scope.CONNECTION,
    )  # fmt: skip

    # the cluster
    namesrv: str | None = _option(
        _text, None, EVERYWHERE, "Name servers of a running cluster, `host:9876;host2:9876`, instead of path: messages "
        "come from its brokers over the network.", scope=Scope.CONNECTION,
    )  # fmt: skip
    brokers: tuple[str, ...] | None = _option(
        _names,
        None,
        READ,
        "Only these brokers of the cluster, by name; it is an error if one is not there.",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    namespace: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "Namespace of topics and groups in the cluster; rows have the names without it.",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    namespace_v2: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "Namespace of RocketMQ 5, a field of every request; names stay as they are.",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    access_key: str | None = _option(
        _text, None, EVERYWHERE, "Access key that signs every request; with secretKey.", secret=True,
        shown="ROCKETMQ_ACCESS_KEY", scope=Scope.CLUSTER | Scope.CONNECTION,
    )  # fmt: skip
    secret_key: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "Secret key that signs every request.",
        secret=True,
        shown="ROCKETMQ_SECRET_KEY",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    security_token: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "Token of temporary keys.",
        secret=True,
        shown="ROCKETMQ_SECURITY_TOKEN",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    tls: bool = _option(_flag, False, EVERYWHERE, "Connect with TLS.", scope=Scope.CLUSTER | Scope.CONNECTION)
    tls_ca: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "File of certificates that sign those of the servers.",
        shown="those of the system",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    tls_cert: str | None = _option(
        _text,
        None,
        EVERYWHERE,
        "File of the client's own certificate, with tlsKey.",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    tls_key: str | None = _option(
        _text, None, EVERYWHERE, "File of the key of tlsCert.", scope=Scope.CLUSTER | Scope.CONNECTION
    )
    tls_verify: bool = _option(
        _flag,
        True,
        EVERYWHERE,
        "Check certificates and host names of servers; false: anybody can read along.",
        scope=Scope.CONNECTION,
    )
    broker_timeout: int = _option(
        duration_ms, 60_000, EVERYWHERE, "How long a broker or name server that does not answer is asked again before "
        "the read or write fails.", shown="60s", scope=Scope.CLUSTER | Scope.CONNECTION,
    )  # fmt: skip
    broker_away: str = _option(
        _choice("fail", "wait"), "fail", (STREAM,),
        "A broker that is away for longer than brokerTimeout: the stream fails, or waits for the broker while others "
        "go on.", scope=Scope.CLUSTER | Scope.CONNECTION,
    )  # fmt: skip
    pull_group: str = _option(
        _text,
        "TOOLS_CONSUMER",
        READ,
        "Consumer group in whose name brokers are asked. Its offsets do not change.",
        scope=Scope.CLUSTER | Scope.CONNECTION,
    )
    pull_bytes: int = _option(
        size, 4 << 20, READ, "Bytes asked for in one pull; limits of the broker, `maxTransferBytesOnMessageInMemory` "
        "and its like, may be lower.", shown="4m", scope=Scope.CLUSTER | Scope.CONNECTION,
    )  # fmt: skip

    # the messages
    view: str = _option(
        _choice("messages", "queues", "files", "audit", "consumequeue", "groups"), "messages", (BATCH,),
        "What the rows are: messages, queues with their bounds, files of the log, a check of each file of the log, "
        "units of the queues, or the progress of consumer groups.",
    )  # fmt: skip
    columns: tuple[str, ...] | None = _option(
        _names,
        None,
        READ,
        "Columns to read, in this order; fewer columns are much faster. `.schema(...)` does the same.",
    )
    include_body: bool = _option(_flag, True, READ, "Include `body` if no columns are named.")
    decompress: bool = _option(
        _flag, True, READ, "Decompress bodies that a client compressed (zlib, lz4, zstd); false: return stored bodies."
    )
    max_body_bytes: int = _option(
        size, 32 << 20, READ,
        "Bytes of a decompressed body. A larger one is treated as a damaged one: it stays as it is stored, or as "
        "`verifyCrc` says.", shown="32m",
    )  # fmt: skip
    properties: str = _option(
        _choice("map", "raw", "none"), "map", READ,
        "Properties as a map, as the stored string, or none.",
    )  # fmt: skip
    subscribe: tuple[str, ...] | None = _option(
        _names, None, READ, "Topics to read. One of subscribe, assign and subscribePattern, or none for all topics "
        "except light queues.",
    )  # fmt: skip
    assign: tuple[tuple[str, int], ...] | None = _option(
        _queues, None, READ, 'Queues to read: `T/0,T/1` or `{"T": [0, 1]}`.'
    )
    subscribe_pattern: re.Pattern[str] | None = _option(
        _pattern, None, READ, "Topics to read, by a pattern for the whole name."
    )
    exclude_topics: tuple[str, ...] | None = _option(
        _names, None, READ, "Topics to leave out of all topics or of subscribePattern, such as those that the account "
        "may not read; `x*` leaves out all that begin with x.",
    )  # fmt: skip
    include_system_topics: bool = _option(
        _flag, False, READ, "Also read topics of the broker itself (half messages, delayed messages, state) and "
        "`%RETRY%` topics; otherwise only if subscribe or assign names them.",
    )  # fmt: skip
    starting_offsets: Bound | None = _option(
        _bound, None, READ,
        "First message of each queue: `earliest`, `latest`, `group` (see group), `-1000` (messages before the end), "
        '`-10m` (before now), or JSON such as `{"T/0": 17, "T/1": "latest", "*": "earliest"}`; -2 and -1 are earliest '
        "and latest; `*` is for all other queues, by default earliest (endingOffsets: latest).",
        shown="batch earliest, stream latest",
    )  # fmt: skip
    ending_offsets: Bound | None = _option(
        _bound, None, (BATCH,), "End of each queue, not included; the same forms as startingOffsets.", shown="latest"
    )
    starting_from: str | None = _option(
        _text, None, (STREAM,), "`archive:PATH`: first read the archive that the job `archive` wrote there, then go on "
        "from exactly the offsets at which the archive ends.",
    )  # fmt: skip
    starting_timestamp: int | None = _option(
        instant_ms, None, READ, "Start at the first message that was stored at or after this time."
    )
    ending_timestamp: int | None = _option(instant_ms, None, (BATCH,), "Read messages stored before this time.")
    starting_offsets_by_timestamp: Mapping[tuple[str, int], int] | None = _option(
        _instants, None, READ, 'startingTimestamp for single queues: `{"T/0": 1767225600000}`.'
    )
    ending_offsets_by_timestamp: Mapping[tuple[str, int], int] | None = _option(
        _instants, None, (BATCH,), "endingTimestamp for single queues."
    )
    starting_offsets_by_timestamp_strategy: str = _option(
        _choice("latest", "error"), "latest", READ,
        "For a queue without a message at or after its starting time: begin at its end, or fail.",
    )  # fmt: skip
    group: str | None = _option(_text, None, READ, "Consumer group for the offsets `group`.")
    tag_filter: str | None = _option(_text, None, READ, "Only messages with one of these tags: `A || B`.")
    sql_filter: str | None = _option(
        _text, None, READ, "Only messages whose properties fulfil this SQL92 expression. Brokers evaluate it "
        "(`enablePropertyFilter=true`), so it needs namesrv.", scope=Scope.CLUSTER,
    )  # fmt: skip
    pushdown: bool = _option(
        _flag, False, (BATCH,), "Evaluate filters while reading; needs `spark.sql.python.filterPushdown.enabled=true`, "
        "and a `load()` for each query (see Filters)."
    )  # fmt: skip

    # the execution
    order: str = _option(
        _choice("auto", "queue", "commitlog"), "auto", READ,
        "Read along the queues, along the log, or in the order that reads less.",
    )  # fmt: skip
    partition_bytes: int = _option(size, 128 << 20, READ, "Bytes of log that one task reads.", shown="128m")
    min_partitions: int | None = _option(
        _number, None, READ, "Smallest number of tasks, if there is enough to read; of each store or broker."
    )
    max_partitions: int | None = _option(_number, None, READ, "Largest number of tasks, of each store or broker.")
    batch_bytes: int = _option(size, 1 << 20, READ, "Bytes of log in one Arrow batch.", shown="1m")
    verify_crc: str = _option(
        _choice("off", "fail", "skip", "mark"), "off", READ,
        "For a wrong body checksum: not checked; the task fails; the message is skipped; the column `crcOk` is false. "
        "Bytes that are no record are skipped with skip and mark, and fail the task with off and fail.",
    )  # fmt: skip
    fail_on_data_loss: bool = _option(
        _flag,
        True,
        READ,
        "Fail if messages that should be read are missing; false: skip them with a warning.",
    )
    lease_ttl: int = _option(
        duration_ms, 3_600_000, READ,
        "How long mqfast's retention keeps the planned files before a task reads them. The lease ends with the query; "
        "0s: no lease.", shown="1h",
    )  # fmt: skip

    # streams
    max_offsets_per_trigger: int | None = _option(_number, None, (STREAM,), "Most messages in one batch.")
    max_bytes_per_trigger: int | None = _option(size, None, (STREAM,), "Most bytes of log in one batch.")
    min_offsets_per_trigger: int | None = _option(
        _number, None, (STREAM,), "Wait for so many messages before the next batch, but no longer than maxTriggerDelay."
    )
    max_trigger_delay: int = _option(
        duration_ms, 900_000, (STREAM,), "Longest wait for minOffsetsPerTrigger.", shown="15m"
    )
    state_dir: str | None = _option(
        _text, None, (STREAM,), "Directory for the first offsets, so that a restart before the first batch begins at "
        "the same offsets.",
    )  # fmt: skip
    commit_group: str | None = _option(
        _text, None, (STREAM,), "Write the progress into the store as the offsets of this consumer group."
    )

    # the sink
    topic: str | None = _option(_text, None, (SINK,), "Topic of rows without a column `topic`.")
    queue_selector: str = _option(
        _choice("hash", "round_robin", "column"), "hash", (SINK,),
        "Queue of a row without `queueId`: by the hash of its sharding key or keys, round-robin, or an error.",
    )  # fmt: skip
    preserve_timestamps: bool = _option(_flag, False, (SINK,), "Keep `bornTimestamp` of the rows.")
    preserve_ids: bool = _option(_flag, False, (SINK,), "Keep `uniqKey` of the rows.")
    ignore_extra_columns: bool = _option(_flag, False, (SINK,), "Ignore columns that the sink does not know.")
    txn_id: str | None = _option(
        _text, None, (SINK,), "Name under which a write counts once; use the same name for a repeated job.",
        shown="query id, job id",
    )  # fmt: skip
    staging: str | None = _option(
        _text, None, (SINK,), "Directory for records that tasks have written and the driver has not yet appended.",
        shown="<store>/spark-staging", scope=Scope.DIRECTORY,
    )  # fmt: skip
    staging_ttl: int = _option(
        duration_ms,
        604_800_000,
        (SINK,),
        "Age at which staged files without an intent are removed.",
        shown="7d",
        scope=Scope.DIRECTORY,
    )
    delivery: str | None = _option(
        _choice("exactly_once", "at_least_once"), None, (SINK,), "Delivery guarantee after a restart. With namesrv, "
        "exactly_once refuses brokers that cannot hold it (RocketMQ's); without the option they get at_least_once, "
        "with a warning.", shown="exactly_once",
    )  # fmt: skip
    max_in_flight: int = _option(
        size, 32 << 20, (SINK,), "Bytes of one task that are on their way to brokers.", shown="32m", scope=Scope.CLUSTER
    )
    send_bytes: int = _option(
        size, 512 << 10, (SINK,), "Bytes of rows in one request to a broker.", shown="512k", scope=Scope.CLUSTER
    )

    @property
    def has_stores(self) -> bool:
        """Return whether there may be several stores: directories, or brokers of a cluster."""
        return self.paths is not None or self.namesrv is not None

    @property
    def place(self) -> tuple[object, ...]:
        """Return the values by which two reads of the same store with the same rights agree."""
        return tuple(getattr(self, name) for name in _of_scope(Scope.CONNECTION))


def option_name(field: str) -> str:
    """Return the option's name as users write it: ``partition_bytes`` is ``partitionBytes``."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _of_scope(scope: Scope) -> list[str]:
    """Return the names of the fields of a scope."""
    return [field.name for field in dataclasses.fields(Options) if field.metadata["scope"] & scope]


_SPECS: Final = specs_of(Options)
_FIELDS: Final = {option_name(field.name).lower(): field for field in dataclasses.fields(Options)}


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean x?"`` with the nearest known name in any case, or an empty text."""
    return did_you_mean(name, known, ignore_case=True)


# Options that Spark adds to those of a catalog table.
_OF_A_TABLE: Final = frozenset(("location", "provider", "owner"))
_NO_TABLE: Final = (
    "Spark gives the tables of its catalog no options where they are read, so a store cannot be one; use "
    "CREATE TEMPORARY VIEW name USING mqfast OPTIONS (path '...')"
)


def parse(given: Mapping[str, str], *where: str) -> Options:
    """Check and convert the options of a user; names in any case.

    Args: where: BATCH, STREAM or SINK, or several of them while the kind of read or write is unknown.
    Raises: ConfigError naming the option, what was expected and the nearest name.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        key = name.lower()
        if key in _SPARKS_OWN:
            continue
        if key in _OF_A_TABLE or key.startswith("option."):
            raise ConfigError(f"CREATE TABLE ... USING mqfast: {_NO_TABLE}")
        field = _FIELDS.get(key)
        here = [option_name(f.name) for f in _FIELDS.values() if set(where) & set(f.metadata["where"])]
        if field is None:
            raise ConfigError(f"option {name}: there is none of this name{nearest_name(name, here)}")
        proper = option_name(field.name)
        if not set(where) & set(field.metadata["where"]):
            places = " and ".join(field.metadata["where"])
            raise ConfigError(f"option {proper}: it is for {places}, not for {' and '.join(where)}")
        values[field.name] = read_setting(f"option {proper}", str(text), _SPECS[field.name])
    options = Options(**values)
    _check_together(options)
    return options


def _check_together(o: Options) -> None:
    if o.paths is not None:
        _check_stores(o)
    elif o.path is None and o.namesrv is None:
        raise ConfigError(
            "option path: expected the root directory of a store, or namesrv, found neither (if this is a table of the "
            f"catalog: {_NO_TABLE})"
        )
    _check_cluster(o)
    for bound, name in ((o.starting_offsets, "startingOffsets"), (o.ending_offsets, "endingOffsets")):
        if not o.has_stores and bound is not None and bound.by_store is not None:
            raise ConfigError(f"option {name}: offsets by store are for several stores (option paths)")
    ways = ("subscribe", "assign", "subscribe_pattern")
    chosen = [option_name(name) for name in ways if getattr(o, name) is not None]
    if len(chosen) > 1:
        raise ConfigError(f"options {' and '.join(chosen)}: expected one of them")
    if o.exclude_topics is not None and chosen and o.subscribe_pattern is None:
        raise ConfigError(f"options excludeTopics and {chosen[0]}: expected one of them: name the wanted topics alone")
    if o.exclude_topics is not None and len(o.exclude_topics) > _MOST_EXCLUDED:
        raise ConfigError(
            f"option excludeTopics: expected at most {_MOST_EXCLUDED} names, found {len(o.exclude_topics)}; `x*` "
            "stands for all that begin with x, and subscribe names the wanted topics"
        )
    for way in ("starting", "ending"):
        names = (f"{way}_offsets", f"{way}_timestamp", f"{way}_offsets_by_timestamp")
        given = [option_name(name) for name in names if getattr(o, name) is not None]
        if len(given) > 1 and given != [f"{way}Timestamp", f"{way}OffsetsByTimestamp"]:
            raise ConfigError(f"options {' and '.join(given)}: expected one of them")
    for bound, name in ((o.starting_offsets, "startingOffsets"), (o.ending_offsets, "endingOffsets")):
        bounds = [bound, *(bound.by_store or {}).values()] if bound is not None else []
        words = {word for b in bounds for word in (b.word, b.others, *(b.by_queue or {}).values())}
        if "group" in words and o.group is None:
            raise ConfigError(f"option {name}: group needs the option group, the consumer group's name")
    if o.tag_filter is not None and not o.tag_filter.replace("||", "").strip():
        raise ConfigError(f"option tagFilter: expected tags joined by ||, or *, found {o.tag_filter!r}")
    if o.min_partitions is not None and o.max_partitions is not None and o.min_partitions > o.max_partitions:
        raise ConfigError(
            f"option minPartitions: expected at most maxPartitions ({o.max_partitions}), found {o.min_partitions}"
        )


# A scan of the log compares each record with all excluded names.
_MOST_EXCLUDED: Final = 50
_VIEWS_OF_FILES: Final = ("files", "audit", "consumequeue")


def _check_cluster(o: Options) -> None:
    defaults = {name: spec.default for name, spec in _SPECS.items()}
    if o.namesrv is None:
        for name in _of_scope(Scope.CLUSTER):
            if getattr(o, name) != defaults[name]:
                raise ConfigError(f"option {option_name(name)}: it is for a cluster, whose name servers namesrv gives")
        return
    for name in _of_scope(Scope.DIRECTORY):
        if getattr(o, name) != defaults[name]:
            raise ConfigError(f"options namesrv and {option_name(name)}: expected one of them")
    if o.lease_ttl not in (0, defaults["lease_ttl"]):
        raise ConfigError("option leaseTtl: brokers take no leases, so their retention does not wait; it needs path")
    if o.order == "commitlog":
        raise ConfigError("option order: brokers hand out messages by queue; commitlog needs path")
    if o.view in _VIEWS_OF_FILES:
        raise ConfigError(f"option view: {o.view} shows files of a store; it needs path")
    if (o.access_key is None) != (o.secret_key is None):
        raise ConfigError("options accessKey and secretKey: expected both, found one")
    if o.security_token is not None and o.access_key is None:
        raise ConfigError("option securityToken: it goes with accessKey and secretKey")
    if (o.tls_cert is None) != (o.tls_key is None):
        raise ConfigError("options tlsCert and tlsKey: expected both, found one")
    if not o.tls:
        for name in ("tls_ca", "tls_cert", "tls_verify"):
            if getattr(o, name) != defaults[name]:
                raise ConfigError(f"option {option_name(name)}: it needs tls=true")
    if o.sql_filter is not None and o.tag_filter not in (None, "*"):
        raise ConfigError("options tagFilter and sqlFilter: expected one of them")


def _check_stores(o: Options) -> None:
    assert o.paths is not None
    names = [name for name, _ in o.paths]
    for other in ("path", "store_path_commit_log"):
        if getattr(o, other) is not None:
            raise ConfigError(f"options paths and {option_name(other)}: expected one of them")
    for field in ("starting_offsets_by_timestamp", "ending_offsets_by_timestamp"):
        if getattr(o, field) is not None:
            raise ConfigError(f"option {option_name(field)}: it is for one store; several have startingTimestamp")
    for bound, name in ((o.starting_offsets, "startingOffsets"), (o.ending_offsets, "endingOffsets")):
        if bound is None:
            continue
        if bound.by_queue:
            raise ConfigError(f'option {name}: expected the offsets of each store, {{"{names[0]}": {{"T/0": 5}}}}')
        for store in bound.by_store or {}:
            if store not in names:
                raise ConfigError(f"option {name}: there is no store {store}{nearest_name(store, names)}")


def stores_of(o: Options) -> list[tuple[str, Options]]:
    """Return each store's name with the options for that store alone."""
    if o.paths is None:
        return [(o.path or "", o)]
    return [(name, dataclasses.replace(o, path=path, paths=None, **_bounds_of(o, name))) for name, path in o.paths]


def _bounds_of(o: Options, name: str) -> dict[str, Any]:
    bounds: dict[str, Any] = {}
    for field in ("starting_offsets", "ending_offsets"):
        bound = getattr(o, field)
        if bound is not None and bound.by_store is not None:
            bounds[field] = bound.by_store.get(name, dataclasses.replace(bound, by_store=None))
    return bounds


def of_broker(o: Options, name: str) -> Options:
    """Return the options for a single broker of a cluster."""
    return dataclasses.replace(o, brokers=(name,), **_bounds_of(o, name))


def check_brokers(o: Options, names: Sequence[str]) -> None:
    """Refuse offsets of a missing broker, and offsets without a broker's name for several brokers.

    Raises: ConfigError.
    """
    for bound, option in ((o.starting_offsets, "startingOffsets"), (o.ending_offsets, "endingOffsets")):
        for name in (bound.by_store or {}) if bound is not None else ():
            if name not in names:
                raise ConfigError(f"option {option}: there is no broker {name}{nearest_name(name, list(names))}")
        if bound is not None and bound.by_queue and len(names) > 1:
            raise ConfigError(
                f'option {option}: expected the offsets of each broker, {{"{names[0]}": {{"T/0": 5}}}}: there are '
                f"{', '.join(names)}"
            )


@dataclass(frozen=True)
class Described:
    """A row of the reference."""

    name: str
    kind: str
    default: str
    where: str
    meaning: str


def describe() -> list[Described]:
    """Return every option, in the order of the table."""
    rows = []
    for field in dataclasses.fields(Options):
        spec, where = _SPECS[field.name], field.metadata["where"]
        places = ", ".join(where) if where != EVERYWHERE else "all"
        rows.append(Described(option_name(field.name), spec.kind, spec.shown_default, places, spec.doc))
    return rows
