"""A running broker whose messages are read by its files or by its answers, as Spark would call the readers.

It must never start a Spark process.
"""

from __future__ import annotations

import json
import pickle
from typing import Any

from mqfast.message import Message
from mqfast.spark import options as table
from mqfast.spark.schema import VIEWS, chosen_columns
from mqfast.spark.source import BatchReader
from mqfast.spark.stream import StreamReader
from mqfast.spark.stream_of_stores import StreamOfStores
from mqfast.testing import Broker

EVERY = ",".join(column.name for column in VIEWS["messages"] if column.name != "crcOk")
TOPIC, OTHER = "orders", "stock"


class Place:
    """A broker of a test, and the options that reach its messages in one of two ways."""

    def __init__(self, broker: Broker, root: str, way: str) -> None:
        self.broker = broker
        self.way = way
        self.options = {"path": root} if way == "files" else {"namesrv": broker.namesrv_addr}

    @classmethod
    def of_cluster(cls, namesrv: str) -> Place:
        """A cluster of which the test has the name server alone."""
        place = cls.__new__(cls)
        place.way, place.options = "broker", {"namesrv": namesrv}
        return place

    def batch(self, **options: Any) -> list[dict[str, Any]]:
        parsed = table.parse({**self.options, **{name: str(value) for name, value in options.items()}}, table.BATCH)
        reader = BatchReader(parsed, chosen_columns(parsed))
        parts = pickle.loads(pickle.dumps(reader.partitions()))
        found = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        for row in found:
            row.pop("store", None)
            if isinstance(row.get("properties"), list):
                row["properties"] = dict(row["properties"])
        return sorted(found, key=repr)

    def stream(self, **options: Any) -> Any:
        given = {**self.options, "columns": "body", **{name: str(value) for name, value in options.items()}}
        parsed = table.parse(given, table.STREAM)
        kind = StreamOfStores if parsed.has_stores else StreamReader
        return kind(parsed, chosen_columns(parsed))


def fill(broker: Broker, first: int, end: int, topic: str = TOPIC) -> None:
    producer = broker.producer()
    for n in range(first, end):
        body = b"%06d" % n + b"x" * (n % 7 * 50)
        producer.send(Message(topic, body, tags=f"tag{n % 3}", keys=f"k{n}", properties={"n": str(n)}))


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["body"][:6]) for row in rows)


def read(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    parts = pickle.loads(pickle.dumps(reader.partitions(start, end)))
    return sorted(int(body[:6]) for part in parts for batch in reader.read(part) for body in batch[-1].to_pylist())


def to_the_end(reader: Any, start: dict[str, Any]) -> tuple[list[list[int]], dict[str, Any]]:
    batches = []
    for _ in range(300):
        end = json.loads(json.dumps(reader.latestOffset(start, reader.getDefaultReadLimit())))
        if json.dumps(end) == json.dumps(start):
            return batches, end
        batches.append(read(reader, start, end))
        start = end
    raise AssertionError("the stream never reaches its end")


def flat(batches: list[list[int]]) -> list[int]:
    return sorted(n for batch in batches for n in batch)
