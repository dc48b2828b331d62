"""What the golden tests share: a directory as it is, and a store beside Java's account of it.

Room: tests. It must never open a golden directory itself and never soften a comparison without saying which bug of
RocketMQ asks for that. What the accounts hold: ``tests/golden/README.md``.
"""

from __future__ import annotations

import hashlib
import ipaddress
from pathlib import Path
from typing import Any

from laboratory import lab, read_queue

# Written at every open and close, whatever the store holds: locks, times, and a summary of the topics.
TIMES_AND_MARKS = ("checkpoint", "abort", "lock", "config/topics.json", "config/topics.json.bak")


def files_of(store: Path) -> dict[str, bytes]:
    """Return relative name -> bytes of every file below ``store``."""
    return {str(path.relative_to(store)): path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file()}


def names_of(store: Path) -> set[str]:
    """Return the relative names of the files of log, queues and index."""
    rooms = ("commitlog", "consumequeue", "batchconsumequeue", "index")
    return {str(path.relative_to(store)) for room in rooms for path in (store / room).rglob("*") if path.is_file()}


def java_host(text: str) -> str:
    """Turn ``ip:port`` into Java's ``ip|port``; Java writes all eight groups of an IPv6 address."""
    address, _, port = text.rpartition(":")
    parsed = ipaddress.ip_address(address.strip("[]"))
    if parsed.version == 4:
        return f"{parsed}|{port}"
    return ":".join(f"{int(group, 16):x}" for group in parsed.exploded.split(":")) + f"|{port}"


def row_of(message: Any, topic: str, queue_id: int, tags_code: int) -> dict[str, Any]:
    """Return one message in the form of a ``messages`` row."""
    body = bytes(message.body)
    return {
        "topic": topic,
        "queueId": queue_id,
        "cqOffset": message.queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.size,
        "tagsCode": tags_code,
        "recordTopic": None if message.topic == topic else message.topic,
        "recordQueueId": message.queue_id,
        "queueOffset": message.record_queue_offset,
        "magic": f"{message.magic:08x}",
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": java_host(message.born_host),
        "storeHost": java_host(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "bodyLength": len(body),
        "bodySha256": hashlib.sha256(body).hexdigest(),
        "msgId": message.message_id,
        "properties": message.properties,
    }


def queue_rows(store: Any, expected: dict[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return the rows of every queue of ``expected`` as the open store gives them."""
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for queue in expected["queues"]:
        topic, queue_id = queue["topic"], queue["queueId"]
        units = lab(store).queues.get(topic, queue_id)
        rows[topic, queue_id] = []
        for message in read_queue(store, topic, queue_id, queue["minOffset"]):
            unit = units.unit(message.queue_offset)
            row = row_of(message, topic, queue_id, unit[2])
            if hasattr(unit, "batch_size") and message.sys_flag & 0x80:
                row["batchNum"] = unit.batch_size
            rows[topic, queue_id].append(row)
    return rows


def expected_rows(expected: dict[str, Any]) -> dict[tuple[str, int], list[dict[str, Any]]]:
    """Return Java's rows by queue; a queue without a unit has an empty list."""
    rows: dict[tuple[str, int], list[dict[str, Any]]] = {(q["topic"], q["queueId"]): [] for q in expected["queues"]}
    for row in expected["messages"]:
        rows[row["topic"], row["queueId"]].append(row)
    return rows
