"""The message request modes of groups (401, 402), and ``config/messageRequestMode.json``.

Source: MessageRequestModeManager.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from mqfast.remoting.bodies import build_tables

if TYPE_CHECKING:
    from mqfast.store.meta.json_table import JsonTable

__all__ = ["RequestMode", "RequestModes", "load_modes", "store_modes"]


class RequestMode(Struct, rename="camel"):
    """The mode by which a group consumes a topic."""

    consumer_group: str
    mode: str
    topic: str
    pop_share_queue_num: int = 0


RequestModes = dict[str, dict[str, RequestMode]]
"""Modes by topic and group."""

_KEY = "messageRequestModeMap"


def load_modes(table: JsonTable) -> RequestModes:
    """Return the modes of the file; an entry of another form is left out."""
    modes: RequestModes = {}
    raw = table.root.get(_KEY)
    for topic, groups in raw.items() if isinstance(raw, dict) else ():
        for group, entry in groups.items() if isinstance(groups, dict) else ():
            try:
                modes.setdefault(str(topic), {})[str(group)] = msgspec.convert(entry, RequestMode)
            except msgspec.ValidationError:
                table.warnings.append(f"{_KEY}.{topic}.{group}: expected a mode, found {entry!r:.100}")
    return modes


def store_modes(table: JsonTable, modes: RequestModes) -> None:
    """Set the content of the file; the broker persists the table."""
    table.changed({_KEY: to_file(modes)})


def to_file(modes: RequestModes) -> dict[str, Any]:
    """Return the modes as values of the file."""
    return {
        topic: {group: msgspec.to_builtins(mode) for group, mode in groups.items()} for topic, groups in modes.items()
    }


build_tables(__name__)
