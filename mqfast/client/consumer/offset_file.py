"""The offset file of a broadcasting consumer, in the place and format of the Java client.

``<root>/<client id>/<group>/offsets.json``, with the previous state beside it as ``offsets.json.bak``. Both files are
always whole: a new state is written to a third file, synced and renamed. A damaged file is an error, not an empty
table, and never replaces a good backup. Source: LocalFileOffsetStore, OffsetSerializeWrapper.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from operator import index
from pathlib import Path
from typing import Final

from mqfast.client.values import MessageQueue
from mqfast.errors import CorruptFile
from mqfast.util.atomic_file import replace_file
from mqfast.util.fastjson import object_keys, standard

__all__ = ["LocalFileOffsetStore", "root_directory"]

_ROOT_VARIABLE: Final = "rocketmq.client.localOffsetStoreDir"
_FILE_BYTES_MAX: Final = 64 << 20
_OFFSET_MAX: Final = 2**63 - 1


def root_directory() -> Path:
    """Return ``$rocketmq.client.localOffsetStoreDir`` (the Go client's variable, Java's property), else
    ``~/.rocketmq_offsets``.
    """
    given = os.environ.get(_ROOT_VARIABLE)
    return Path(given) if given else Path.home() / ".rocketmq_offsets"


class LocalFileOffsetStore:
    """The file of one client id and group.

    Args: root: the directory, localOffsetStoreDir in Java.
    Thread: one thread at a time. Durability: a saved state survives a power loss.
    """

    def __init__(self, client_id: str, group: str, root: Path | None = None) -> None:
        self.path: Final = (root or root_directory()) / client_id / group / "offsets.json"
        self._backup: Final = self.path.with_name("offsets.json.bak")

    def load(self) -> dict[MessageQueue, int]:
        """Return all offsets, empty without a file. The backup is read in place of a damaged file.

        Raises: CorruptFile where a file is damaged and the other one is missing or damaged; OSError.
        """
        damage: CorruptFile | None = None
        for path in (self.path, self._backup):
            try:
                offsets = _read(path)
            except CorruptFile as error:
                damage = damage or error
                continue
            if offsets is not None:
                return offsets
        if damage is not None:
            raise damage
        return {}

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Merge these offsets into the file.

        Raises: CorruptFile as ``load``, before anything is written; OSError.
        """
        if not offsets:
            return
        merged = {**self.load(), **offsets}
        with contextlib.suppress(CorruptFile, FileNotFoundError):
            if _read(self.path) is not None:
                replace_file(self._backup, self.path.read_bytes(), mode=None)
        replace_file(self.path, encode(merged), mode=None)


def encode(offsets: Mapping[MessageQueue, int]) -> bytes:
    """Encode offsets as the JSON of Java's client: each key is a queue as an object."""
    entries = []
    for topic, broker_name, queue_id in sorted(offsets):
        key = json.dumps(
            {"brokerName": broker_name, "queueId": queue_id, "topic": topic}, separators=(",", ":"), ensure_ascii=False
        )
        entries.append((key.encode("utf-8", "replace"), b"%d" % offsets[MessageQueue(topic, broker_name, queue_id)]))
    return b'{"offsetTable":' + object_keys(entries) + b"}"


def decode(data: bytes, path: str = "") -> dict[MessageQueue, int]:
    """Decode a file of any release of the Java client, or of ``encode``. Raises: CorruptFile."""
    try:
        table = json.loads(standard(data)).get("offsetTable") or {}
        offsets = {}
        for text, offset in table.items():
            key = json.loads(text)
            offsets[MessageQueue(str(key["topic"]), str(key["brokerName"]), index(key["queueId"]))] = index(offset)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise CorruptFile(
            "offsets of a broadcasting consumer are damaged; remove the file to begin as a new consumer",
            path=path,
            expected='{"offsetTable":{{"brokerName":...,"queueId":...,"topic":...}:offset}}',
            found=f"{data[:60]!r} ({type(error).__name__}: {error})",
        ) from None
    for queue, offset in offsets.items():
        if not -1 <= offset <= _OFFSET_MAX:
            raise CorruptFile(
                "offsets of a broadcasting consumer are damaged",
                path=path,
                expected=f"an offset of {queue}",
                found=offset,
            )
    return {queue: offset for queue, offset in offsets.items() if offset >= 0}


def _read(path: Path) -> dict[MessageQueue, int] | None:
    """Return the offsets of a file; None: no file, or, as in Java, an empty file."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(data) > _FILE_BYTES_MAX:
        raise CorruptFile("file too large", path=str(path), expected=f"at most {_FILE_BYTES_MAX} bytes", found="more")
    return decode(data, str(path)) if data.strip() else None
