"""The MCP server: tools that read clusters by the queries of the console, and changes as plans.

Must never write to standard output, which belongs to the protocol, or answer an error with a traceback.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, Final

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import ToolAnnotations

from mqfast.console import changes
from mqfast.console.page import Console, Page
from mqfast.console.pages import brokers, groups, letters, messages, now, resets, topics
from mqfast.console.values import json_value
from mqfast.errors import MqfastError
from mqfast.mcp.marking import INSTRUCTIONS, marked, marked_life, marked_messages
from mqfast.mcp.plans import Plans

__all__ = ["mcp_server"]

_FRESH_S: Final = 10.0
_READS: Final = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
_PLANS: Final = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=False, open_world_hint=False
)
_CHANGES: Final = ToolAnnotations(
    read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False
)


def mcp_server(console: Console, *, show_bodies: bool = False) -> MCPServer:
    """Return the server. Args: show_bodies: include bodies of messages."""
    server = MCPServer("mqfast", instructions=INSTRUCTIONS, log_level="WARNING")
    _add_state(server, console)
    _add_messages(server, console, show_bodies=show_bodies)
    if console.allow_changes:
        _add_changes(server, console, Plans(console.allow_changes))
    return server


async def _answer(page: Awaitable[Page]) -> dict[str, Any]:
    """Return the data of a page as JSON, with the same as a command. Raises: ToolError with the text of an error."""
    try:
        done = await page
    except MqfastError as error:
        raise ToolError(str(error)) from None
    data: dict[str, Any] = json_value(done.data)
    data.pop("history", None)
    return {**data, "command": done.command}


class _Rounds:
    """Rounds of the collector on demand: the numbers of an answer are at most ten seconds old."""

    def __init__(self, console: Console) -> None:
        self._collector = console.collector
        self._one_round = asyncio.Lock()

    async def fresh(self) -> None:
        """Make a round if the last round is too old."""
        async with self._one_round:
            if time.time() - self._collector.state.at_s > _FRESH_S or self._collector.state.error:
                await self._collector.collect()


def _add_state(server: MCPServer, console: Console) -> None:
    rounds = _Rounds(console)

    @server.tool(annotations=_READS)
    async def clusters() -> dict[str, Any]:
        """Tell the state of all clusters: rates, disk, the worst lag, and what is wrong, in sentences."""
        await rounds.fresh()
        return await _answer(now.now(console, {})) | {"servers": await _answer(brokers.brokers(console, {}))}

    @server.tool(annotations=_READS)
    async def list_groups(search: str = "", sort: str = "lag", page: int = 1) -> dict[str, Any]:
        """List consumer groups with lag in messages and seconds, 50 a page. sort: lag, age, rate or name."""
        await rounds.fresh()
        return await _answer(groups.groups(console, {"q": search, "sort": sort, "page": str(page)}))

    @server.tool(annotations=_READS)
    async def why_slow(group: str) -> dict[str, Any]:
        """Tell why a consumer group is behind: lag by queue, members, and messages in which a member is stuck."""
        await rounds.fresh()
        return await _answer(groups.group(console, {}, group))

    @server.tool(annotations=_READS)
    async def list_topics(search: str = "", sort: str = "lag", page: int = 1) -> dict[str, Any]:
        """List topics with rate, groups and lag, 50 a page. sort: lag, rate or name."""
        await rounds.fresh()
        return await _answer(topics.topics(console, {"q": search, "sort": sort, "page": str(page)}))

    @server.tool(annotations=_READS)
    async def show_topic(topic: str) -> dict[str, Any]:
        """Show a topic: queues, the place of every group, settings."""
        await rounds.fresh()
        return await _answer(topics.topic(console, {}, topic))

    @server.tool(annotations=_READS)
    async def show_broker(broker: str) -> dict[str, Any]:
        """Show a broker: measurements, replication, settings. Values of secrets are hidden."""
        await rounds.fresh()
        return await _answer(brokers.broker(console, {}, broker))


def _add_messages(server: MCPServer, console: Console, *, show_bodies: bool) -> None:
    @server.tool(annotations=_READS)
    async def find_messages(topic: str, key_or_id: str = "", begin: str = "", end: str = "") -> dict[str, Any]:
        """Find at most 64 messages of a topic by a key or id; without one, those stored from begin to end.

        begin and end are times such as 2026-01-31T12:00, in UTC; begin is 15 minutes ago by default.
        """
        wanted = {"topic": topic, "q": key_or_id, "begin": begin, "end": end}
        return marked_messages(await _answer(messages.find(console, wanted)), "messages", show_bodies=show_bodies)

    @server.tool(annotations=_READS)
    async def explain_message(topic: str, message_id: str) -> dict[str, Any]:
        """Tell the life of a message: sent, stored, deliveries, retries, dead letter, and which groups consumed it."""
        data = await _answer(messages.message(console, {}, topic, message_id))
        return marked(marked_life(data), show_bodies=show_bodies)

    @server.tool(annotations=_READS)
    async def dead_letters(group: str, begin: str = "", end: str = "") -> dict[str, Any]:
        """List the dead letters of a consumer group, at most 500, with the topics that the letters came from."""
        if not console.collector.state.at_s:
            await console.collector.collect()
        data = await _answer(letters.dead_letters(console, {"begin": begin, "end": end}, group))
        del data["by_topic"]  # names of producers, which each letter has under the mark
        return marked_messages(data, "letters", show_bodies=show_bodies)


def _add_changes(server: MCPServer, console: Console, plans: Plans) -> None:
    @server.tool(annotations=_PLANS)
    async def plan_reset(
        group: str, topic: str, to: str, time: str = "", offset: str = "", broker: str = "", queue: str = ""
    ) -> dict[str, Any]:
        """Plan a reset of the offsets of a group in a topic. Changes nothing.

        to: earliest, latest, time (with time, UTC) or offset (with offset, broker and queue).
        """
        await console.collector.collect()
        wanted = {"topic": topic, "to": to, "time": time, "offset": offset, "broker": broker, "queue": queue}
        effect = await _answer(resets.reset_plan(console, wanted, group))
        text = f"reset group {group} in topic {topic} to {to}: {effect['replayed']} again, {effect['skipped']} skipped"

        async def run() -> Page:
            return await changes.reset(console, {**wanted, "confirm": group, "plan": effect["confirmed"]}, group)

        return plans.add(text, effect["plan"], run).row()

    @server.tool(annotations=_PLANS)
    async def plan_resend(group: str, letter_ids: list[str]) -> dict[str, Any]:
        """Plan to send dead letters again to the topics that they came from. letter_ids: their offset_msg_id."""
        await console.collector.collect()
        known = await _answer(letters.dead_letters(console, {}, group))
        origins = {row["offset_msg_id"]: row["origin"] for row in known["letters"]}
        if unknown := [name for name in letter_ids if name not in origins]:
            raise ToolError(f"letter_ids: expected ids of dead letters of group {group}, found {unknown[:5]}")
        topics_known = console.collector.state.topics  # a producer may have written another text as the origin
        effect = [
            {"letter": name, "to_topic": origins[name] if origins[name] in topics_known else None}
            for name in letter_ids
        ]

        async def run() -> Page:
            return await changes.resend(console, {"confirm": group}, group, letter_ids)

        return plans.add(f"send {len(letter_ids)} dead letters of group {group} again", effect, run).row()

    @server.tool(annotations=_CHANGES)
    async def confirm(plan_id: str) -> dict[str, Any]:
        """Do a change that was planned, once. Call this only after a person has agreed to the plan."""
        try:
            plan = plans.claim(plan_id)
        except MqfastError as error:
            raise ToolError(str(error)) from None
        return {"done": plan.text, **await _answer(plan.run())}
