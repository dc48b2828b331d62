"""The scanner for the columns of a read; the same for files and for broker responses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mqfast.spark.backend import ReadSettings
from mqfast.spark.bodies import NEEDED
from mqfast.spark.schema import Column
from mqfast.store.reader.gather import Gather

__all__ = ["gather_of", "decompresses"]

_MOST_BATCH_BYTES: Final = 64 << 20
_BATCH_ROWS: Final = 1 << 16
# The scanner's name of each column.
_SCANNER: Final = {
    "topic": "topic",
    "queueId": "queue_id",
    "queueOffset": "queue_offset",
    "physicalOffset": "physical_offset",
    "msgSize": "size",
    "bodySize": "body_size",
    "bornTimestamp": "born_timestamp",
    "storeTimestamp": "store_timestamp",
    "bornHost": "born_host",
    "storeHost": "store_host",
    "flag": "flag",
    "sysFlag": "sys_flag",
    "reconsumeTimes": "reconsume_times",
    "preparedTransactionOffset": "prepared_transaction_offset",
    "bodyCrc": "body_crc",
    "tags": "tags",
    "keys": "keys",
    "uniqKey": "uniq_key",
    "msgId": "message_id",
    "properties": "properties",
    "body": "body",
    "crcOk": "crc_ok",
}


def decompresses(columns: Sequence[Column], settings: ReadSettings) -> bool:
    """Return whether a read with these columns decompresses bodies."""
    return settings.decompress and any(column.name == "body" for column in columns)


def gather_of(columns: Sequence[Column], settings: ReadSettings) -> Gather:
    """Return a scanner for these columns; NEEDED comes first if bodies are decompressed."""
    names = [(name, name, False) for name in NEEDED] if decompresses(columns, settings) else []
    for column in columns:
        name = _SCANNER[column.name]
        names.append(
            ("raw_" + name if column.kind == "string" and name == "properties" else name, column.name, column.nullable)
        )
    return Gather(
        names,
        batch_bytes=min(settings.batch_bytes, _MOST_BATCH_BYTES),
        batch_rows=_BATCH_ROWS,
        micros=True,
        check_crc=settings.verify_crc != "off",
        bad={"skip": "skip", "mark": "mark"}.get(settings.verify_crc, "stop"),
        queues=settings.queues,
        hidden=settings.hidden,
        tags=settings.tags,
        stored_from=settings.stored_from,
        stored_before=settings.stored_before,
        queued_only=settings.queued_only,
    )
