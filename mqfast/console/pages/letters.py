"""Pages of dead letters: groups with dead letters, and the letters of a group by error and minute.

Must never read more than ``LETTERS_MAX`` letters for a page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping
from itertools import islice
from typing import Any, Final

from mqfast.client.delivery import Delivery
from mqfast.console.message_rows import message_row
from mqfast.console.page import Console, Page, command, rows_of
from mqfast.console.pages.groups import known_group
from mqfast.console.pages.messages import time_of
from mqfast.console.pictures import histogram
from mqfast.console.state import known
from mqfast.console.values import clock_text
from mqfast.message import DLQ_PREFIX
from mqfast.properties import origin_of

__all__ = ["LETTERS_MAX", "dead_letters", "letter_groups", "letters_of"]

LETTERS_MAX: Final = 500


async def letter_groups(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the groups that have a topic of dead letters, groups with most letters first."""
    topics = [entry for name, entry in console.collector.state.topics.items() if name.startswith(DLQ_PREFIX)]
    topics.sort(key=lambda entry: (-known(entry.messages, 1e18), entry.name))
    part = rows_of(topics, wanted)
    data = {
        "groups": [{"name": entry.name.removeprefix(DLQ_PREFIX), "letters": entry.messages} for entry in part.rows],
        "page": part.page,
        "pages": part.pages,
        "total": part.total,
    }
    return Page("dlq.html", "Dead letters", data, command("dlq", "ls", "GROUP"))


def letters_of(console: Console, wanted: Mapping[str, str], name: str) -> AsyncIterator[Delivery]:
    """Return the dead letters of a group, the oldest first. Raises: UnknownName, ConfigError."""
    known_group(console, name)
    return console.admin.dead_letters(name, begin=time_of(wanted, "begin"), end=time_of(wanted, "end"))


async def dead_letters(console: Console, wanted: Mapping[str, str], name: str) -> Page:
    """Return the dead letters of a group: by minute, by topic, and in full."""
    rows: list[dict[str, Any]] = []
    is_cut = False
    async for letter in letters_of(console, wanted, name):
        if len(rows) == LETTERS_MAX:
            is_cut = True
            break
        row = message_row(letter)
        row["origin"] = origin_of(letter.properties)
        row["resends"] = letter.properties.get("DLQ_ATTEMPTS")
        rows.append(row)
    minutes = Counter(row["stored_ms"] // 60_000 for row in rows)
    newest = list(islice(sorted(minutes, reverse=True), 24))
    columns = [(clock_text(minute * 60)[:5], minutes[minute]) for minute in sorted(newest)]
    data = {
        "name": name,
        "letters": rows,
        "is_cut": is_cut,
        "by_topic": Counter(row["origin"] or "unknown" for row in rows).most_common(),
        "begin": wanted.get("begin", ""),
        "end": wanted.get("end", ""),
    }
    pictures = {"minutes": histogram(columns, f"dead letters of {name} by minute")} if rows else {}
    return Page("letters.html", f"Dead letters of {name}", data, command("dlq", "ls", name), pictures)
