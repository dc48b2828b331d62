"""The page of clients: members of a group with versions and subscriptions, and producers.

Must never mix members of several groups in a request: a page is for a group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from mqfast.console.page import Console, Page, command
from mqfast.console.pages.groups import known_group
from mqfast.console.state import Unknown
from mqfast.errors import MqfastError

__all__ = ["clients"]


async def clients(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the members of a group, groups with another subscription marked; without a group the producers."""
    name = wanted.get("group", "").strip()
    data: dict[str, Any] = {"group": name, "members": None, "producers": None, "differ": []}
    if name:
        consumers = known_group(console, name)
        await console.collector.ask_members(console.collector.state, consumers)
        members = await console.members.of(consumers)
        if isinstance(members, Unknown):
            data["members"] = members
        else:
            usual = Counter(
                tuple(sorted(member.subscriptions.items()))
                for member in members
                if not isinstance(member.subscriptions, Unknown)
            ).most_common(1)
            data["members"] = [
                {
                    "client_id": member.client_id, "address": member.address, "language": member.language,
                    "version": member.version, "brokers": member.brokers, "subscriptions": member.subscriptions,
                    "is_different": not isinstance(member.subscriptions, Unknown)
                    and bool(usual) and tuple(sorted(member.subscriptions.items())) != usual[0][0],
                }
                for member in members
            ]  # fmt: skip
            data["differ"] = [row["client_id"] for row in data["members"] if row["is_different"]]
        return Page("clients.html", f"Clients of {name}", data, command("group", "show", name))
    try:
        data["producers"] = list(await console.admin.producers())
    except MqfastError as error:
        data["producers"] = Unknown(str(error))
    return Page("clients.html", "Clients", data, command("group", "ls"))
