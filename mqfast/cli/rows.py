"""One message as people and programs see it: the fields of a row, and its lines of text.

What a record looks like in JSON is in ``record_row`` alone. It must never read a store.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.output import Output, body_text, time_text, visible
from mqfast.message import SysFlag

if TYPE_CHECKING:
    from mqfast.store._record import StoredMessage

__all__ = ["host_text", "record_row", "show"]

_MAX_UNPACKED: Final = 1 << 20


def host_text(host: str) -> str:
    """``ip|port`` of ``ip:port`` or ``[v6]:port``, the address as Java prints it (no ``::``)."""
    address, _, port = host.rpartition(":")
    if address.startswith("["):
        import ipaddress

        v6 = ipaddress.IPv6Address(address[1:-1])
        if v6.ipv4_mapped is not None:
            address = str(v6.ipv4_mapped)
        else:
            address = ":".join(f"{int(group, 16):x}" for group in v6.exploded.split(":"))
    return f"{address}|{port}"


def record_row(message: StoredMessage) -> dict[str, Any]:
    """The fields of one record for ``dump``; the body as it is stored, by its sums."""
    return {
        "topic": message.topic,
        "queueId": message.queue_id,
        "queueOffset": message.record_queue_offset,
        "physicalOffset": message.physical_offset,
        "size": message.size,
        "sysFlag": message.sys_flag,
        "flag": message.flag,
        "bornTimestamp": message.born_timestamp,
        "storeTimestamp": message.store_timestamp,
        "bornHost": host_text(message.born_host),
        "storeHost": host_text(message.store_host),
        "reconsumeTimes": message.reconsume_times,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "bodyCRC": message.body_crc,
        "bodySha256": hashlib.sha256(message.body).hexdigest(),
        "properties": dict(sorted(message.properties.items())),
        "msgId": message.message_id,
    }


def _unpacked(message: StoredMessage) -> tuple[bytes, str]:
    """The body for showing, and what was done to it. Only zlib is in the standard library."""
    body = bytes(message.body)
    kind = SysFlag.compression(message.sys_flag)
    if kind is None:
        return body, ""
    if kind == "zlib":
        try:
            # Bounded: a few bytes may stand for gigabytes.
            return zlib.decompressobj().decompress(body, _MAX_UNPACKED), ", zlib"
        except zlib.error:
            return body, ", damaged zlib"
    return body, f", {kind}, shown as stored"


def show(out: Output, message: StoredMessage, style: str) -> None:
    if out.as_json:
        row = record_row(message)
        row["queueOffset"] = message.queue_offset
        body = bytes(message.body)
        try:
            row["body"] = body.decode("utf-8")
        except UnicodeDecodeError:
            row["bodyBase64"] = base64.b64encode(body).decode("ascii")
        out.json(row)
        return
    body, packing = _unpacked(message)
    out.line(
        f"{visible(message.topic)}/{message.queue_id}@{message.queue_offset}  {time_text(message.store_timestamp)}",
        "bold cyan",
    )
    out.line(
        f"  physical offset {message.physical_offset}, {message.size} bytes, body {len(message.body)} bytes{packing}, "
        f"id {message.message_id}",
        "dim",
    )
    text = "  ".join(f"{visible(name)}={visible(value)}" for name, value in message.properties.items())
    if text:
        out.line(f"  {text}", "dim")
    if style != "none":
        out.line(f"  {body_text(body, style)}")
