"""Messages as rows of pages: ids, times, properties, and the body as JSON, text or hex.

Must never hand out more of a body than ``BODY_SHOWN`` bytes for a message of a list.
"""

from __future__ import annotations

import json
from typing import Any, Final

from mqfast.client.delivery import Delivery
from mqfast.errors import MqfastError

__all__ = ["BODY_SHOWN", "body_text", "message_row"]

BODY_SHOWN: Final = 64 * 1024
_ROW_BYTES: Final = 200


def body_text(body: bytes, limit: int = BODY_SHOWN) -> tuple[str, str]:
    """Return the form of a body (``json``, ``text`` or ``hex``) and the body as text."""
    part = body[:limit]
    try:
        text = part.decode("utf-8")
    except UnicodeDecodeError:
        lines = [part[at : at + 16] for at in range(0, min(len(part), 4096), 16)]
        return "hex", "\n".join(f"{16 * number:06x}  {line.hex(' ')}" for number, line in enumerate(lines))
    if any(ord(letter) < 32 and letter not in "\t\r\n" for letter in text):
        return "hex", part[:4096].hex(" ")
    if len(part) == len(body) and text[:1] in ("{", "["):
        try:
            return "json", json.dumps(json.loads(text), indent=2, ensure_ascii=False)
        except ValueError:
            pass
    return "text", text


def message_row(message: Delivery, *, whole: bool = False) -> dict[str, Any]:
    """Return a message as a row. Args: whole: with all properties and the body."""
    try:
        body = message.body
        form, text = body_text(body, BODY_SHOWN if whole else _ROW_BYTES)
    except MqfastError as error:
        body, form, text = b"", "error", str(error)
    row: dict[str, Any] = {
        "topic": message.topic,
        "msg_id": message.msg_id,
        "offset_msg_id": message.offset_msg_id,
        "broker": message.queue.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "keys": list(message.keys),
        "tags": message.tags,
        "born_ms": message.born_timestamp,
        "stored_ms": message.store_timestamp,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "retries": message.reconsume_times,
        "bytes": len(body),
        "body_form": form,
        "body": text if whole else text[:_ROW_BYTES],
    }
    if whole:
        row["properties"] = dict(sorted(message.properties.items()))
        row["is_cut"] = len(body) > BODY_SHOWN
    return row
