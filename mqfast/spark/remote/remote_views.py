"""The views of a running cluster: queues, and the progress of groups.

``options.py`` refuses views of files. A value that brokers do not report is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from mqfast.client.admin.bodies import AllOffsetsBody
from mqfast.errors import ConfigError, NoRoute
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode
from mqfast.spark.backend import group_row
from mqfast.spark.options import Options, option_name
from mqfast.spark.plan import OffsetRange, Snapshot, Split
from mqfast.spark.schema import Column, arrow_schema
from mqfast.spark.selection import selected_queues

if TYPE_CHECKING:
    import pyarrow as pa

    from mqfast.spark.remote.cluster import RemoteCluster

__all__ = ["view_pieces", "view_rows"]

_QUEUES_AT_ONCE: Final = 1000
_BOUNDS: Final = (
    "starting_offsets", "ending_offsets", "starting_timestamp", "ending_timestamp", "starting_offsets_by_timestamp",
    "ending_offsets_by_timestamp",
)  # fmt: skip


def view_pieces(snapshot: Snapshot, options: Options) -> list[Split]:
    """Return the splits of the view. Raises: ConfigError."""
    for name in _BOUNDS:
        if getattr(options, name) is not None:
            raise ConfigError(f"option {option_name(name)}: view {options.view} does not have it")
    if options.view == "groups":  # a group may consume any topic
        options = replace(options, include_system_topics=True)
    queues = [OffsetRange(q.topic, q.queue_id, q.min_offset, q.max_offset) for q in selected_queues(snapshot, options)]
    if options.view == "groups":
        return [Split(queues=tuple(queues))]
    return [Split(queues=tuple(queues[i : i + _QUEUES_AT_ONCE])) for i in range(0, len(queues), _QUEUES_AT_ONCE)]


def view_rows(
    cluster: RemoteCluster, broker: str, piece: Split, columns: Sequence[Column], options: Options
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a split. Raises: ClientError."""
    import pyarrow as pa

    rows = _groups(cluster, broker, piece) if options.view == "groups" else _queues(cluster, broker, piece)
    if rows:
        schema = arrow_schema(columns)
        yield pa.RecordBatch.from_pylist([{c.name: row[c.name] for c in columns} for row in rows], schema=schema)


def _queues(cluster: RemoteCluster, broker: str, piece: Split) -> list[dict[str, Any]]:
    """Return rows from counts only: a pull needs the right to read, and a readable queue."""
    last_ms: dict[str, dict[int, int]] = {}

    def stats(topic: str) -> dict[int, int]:
        try:
            return {queue_id: last for queue_id, (_, _, last) in cluster.stats(broker, topic).items()}
        except NoRoute:
            return {}

    rows = []
    for q in piece.queues:
        if q.topic not in last_ms:
            last_ms[q.topic] = cluster.with_retry(f"broker {broker}", partial(stats, q.topic))
        first_ms = 0
        if q.start < q.end:
            asked = partial(cluster.earliest_time, broker, q.topic, q.queue_id)
            first_ms = cluster.with_retry(f"broker {broker}", asked)
        latest_ms = last_ms[q.topic].get(q.queue_id, 0) if q.start < q.end else 0
        rows.append({
            "topic": q.topic, "queueId": q.queue_id, "minOffset": q.start, "maxOffset": q.end,
            "messages": q.end - q.start,
            "minTimestamp": first_ms * 1000 if first_ms > 0 else None,
            "maxTimestamp": latest_ms * 1000 if latest_ms > 0 else None,
            "minPhysicalOffset": None, "maxPhysicalOffset": None,
        })  # fmt: skip
    return rows


def _groups(cluster: RemoteCluster, broker: str, piece: Split) -> list[dict[str, Any]]:
    bounds = {(q.topic, q.queue_id): (q.start, q.end) for q in piece.queues}

    def once() -> AllOffsetsBody:
        _, address = cluster.address(broker)
        answer = cluster.request(address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, "offsets of all groups")
        return decode_body(bytes(answer.body), AllOffsetsBody, "offsets")

    rows = []
    for name, queues in cluster.with_retry(f"broker {broker}", once).offset_table.items():
        topic, at, group = name.partition("@")
        topic, group = cluster.plain(topic), cluster.plain(group)
        for queue_id, offset in queues.items() if at else ():
            rows.append(group_row(group, topic, queue_id, offset, bounds.get((topic, queue_id))))
    return sorted(rows, key=lambda row: (row["group"], row["topic"], row["queueId"]))
