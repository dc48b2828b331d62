"""What Java says about a golden store, as rows of the view ``messages``.

It must never read a store.
"""

from __future__ import annotations

import ipaddress
from typing import Any

# Spark's columns beside the body, which Java reports by its hash.
PLAIN = (
    "topic", "queueId", "queueOffset", "physicalOffset", "msgSize", "bodySize", "bornTimestamp", "storeTimestamp",
    "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes", "preparedTransactionOffset", "bodyCrc", "tags",
    "keys", "uniqKey", "msgId", "properties",
)  # fmt: skip


def host(text: str) -> str:
    """Java's ``address|port`` as ours."""
    address, _, port = text.partition("|")
    parsed = ipaddress.ip_address(address)
    return f"{address}:{port}" if parsed.version == 4 else f"[{parsed}]:{port}"


def row_of(row: dict[str, Any]) -> dict[str, Any]:
    """A row of ``expected.json`` under our names; times in ms, the body as its SHA-256."""
    properties = row["properties"]
    return {
        "topic": row["topic"],
        "queueId": row["queueId"],
        "queueOffset": row["cqOffset"],
        "physicalOffset": row["physicalOffset"],
        "msgSize": row["size"],
        "bodySize": row["bodyLength"],
        "bornTimestamp": row["bornTimestamp"],
        "storeTimestamp": row["storeTimestamp"],
        "bornHost": host(row["bornHost"]),
        "storeHost": host(row["storeHost"]),
        "flag": row["flag"],
        "sysFlag": row["sysFlag"],
        "reconsumeTimes": row["reconsumeTimes"],
        "preparedTransactionOffset": row["preparedTransactionOffset"],
        "bodyCrc": row["bodyCRC"],
        "tags": properties.get("TAGS"),
        "keys": properties.get("KEYS"),
        "uniqKey": properties.get("UNIQ_KEY"),
        "msgId": row["msgId"],
        "properties": properties,
        "body": row["bodySha256"],
    }


def expected_rows(expected: dict[str, Any], light: bool = True) -> list[dict[str, Any]]:
    """All rows, sorted by place in the log and queue; ``light``: those of light queues as well."""
    rows = [row_of(row) for row in expected["messages"] if light or not row["topic"].startswith("%LMQ%")]
    return sorted(rows, key=key_of)


def key_of(row: dict[str, Any]) -> tuple[int, str, int]:
    """Sorts rows whatever order they were read in."""
    return row["physicalOffset"], row["topic"], row["queueId"]
