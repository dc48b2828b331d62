"""Messages as rows of pages: ids, times, properties, and the body as JSON, text or hex.

Producers choose every byte: a body, a property or a time of any form becomes a row. Must never keep more of a body than
``BODY_SHOWN`` bytes, or fail on what a producer wrote.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Final

from mqfast.client.decompression import BODY_BYTES_MAX, decompressed
from mqfast.client.delivery import Delivery
from mqfast.errors import MqfastError

__all__ = ["BODY_SHOWN", "body_text", "export_row", "message_row"]

BODY_SHOWN: Final = 64 * 1024
_ROW_BYTES: Final = 200
_UNPACKED_MAX: Final = 1 << 20  # of a body in a list; a few bytes may unpack to gigabytes
_DEPTH_MAX: Final = 64  # of JSON that is set out; spaces grow with depth times length


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
    if len(part) == len(body) and text[:1] in ("{", "[") and _depth(text) <= _DEPTH_MAX:
        try:
            return "json", _encodable(json.dumps(json.loads(text), indent=2, ensure_ascii=False))
        except ValueError:
            pass
    return "text", text


def _depth(text: str) -> int:
    """Return the nesting of brackets in a text, those in strings included."""
    depth = deepest = 0
    for letter in text:
        if letter in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif letter in "]}":
            depth -= 1
    return deepest


def _encodable(text: str) -> str:
    """Return a text with escapes for halves of characters, which no UTF-8 has."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def message_row(message: Delivery, *, whole: bool = False) -> dict[str, Any]:
    """Return a message as a row. Args: whole: with all properties and the body."""
    try:
        body = decompressed(message.view, message.sys_flag, BODY_BYTES_MAX if whole else _UNPACKED_MAX)
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


def export_row(message: Delivery) -> dict[str, Any]:
    """Return a message as a row with the whole body: ``body``, or ``bodyBase64`` for other bytes than UTF-8."""
    row = message_row(message, whole=True)
    for name in ("body", "body_form", "is_cut"):
        del row[name]
    try:
        body = decompressed(message.view, message.sys_flag)
    except MqfastError:
        row["compression_error"], body = True, bytes(message.view)
    try:
        row["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        row["bodyBase64"] = base64.b64encode(body).decode("ascii")
    return row
