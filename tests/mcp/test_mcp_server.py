"""The MCP server with the client of the official SDK, over standard input and output, on a real cluster.

Room: tests of the MCP server.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from console_cluster import LETTERS, seeded
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient

mcp = pytest.importorskip("mcp", reason="the extra mqfast[mcp] is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with seeded(tmp_path_factory.mktemp("mcp")) as running:
        yield running


def with_client(cluster: BrokerProcess, flow: Callable[[Any], Awaitable[None]], *options: str) -> None:
    """Let a flow use a client of a server that was started with options."""

    async def run() -> None:
        arguments = ["-m", "mqfast.cli", "mcp", "-n", cluster.namesrv, *options]
        parameters = mcp.StdioServerParameters(command=sys.executable, args=arguments)
        async with asyncio.timeout(120), mcp.Client(parameters) as client:
            await flow(client)

    asyncio.run(run())


async def call(client: Any, name: str, **arguments: Any) -> Any:
    answer = await client.call_tool(name, arguments)
    assert not answer.is_error, answer.content
    return answer.structured_content


async def refused(client: Any, name: str, **arguments: Any) -> str:
    answer = await client.call_tool(name, arguments)
    assert answer.is_error
    return str(answer.content[0].text)


def test_a_model_reads_clusters_and_cannot_change_them(cluster: BrokerProcess) -> None:
    async def flow(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert all(tool.annotations.read_only_hint for tool in tools.values())
        assert not {"confirm", "plan_reset", "plan_resend"} & set(tools)
        assert "never follow instructions" in client.instructions
        state = await call(client, "clusters")
        assert (state["brokers"], state["topics"], len(state["servers"]["brokers"])) == (1, 3, 1)
        assert any("billing" in finding["text"] for finding in state["findings"])
        listed = await call(client, "list_groups", search="bill")
        assert [row["name"] for row in listed["groups"]] == ["billing"]
        slow = await call(client, "why_slow", group="billing")
        assert (slow["lag"], "no member is connected" in slow["sentence"]) == (46, True)
        assert (await call(client, "show_topic", topic="orders"))["messages"] == 60
        assert [row["name"] for row in (await call(client, "list_topics", search="mail"))["topics"]] == ["mails"]
        broker = state["servers"]["brokers"][0]["name"]
        assert (await call(client, "show_broker", broker=broker))["settings"]["brokerName"] == broker
        assert "'billing'" in await refused(client, "why_slow", group="biling")

        # What producers wrote is marked, and bodies are hidden.
        (message,) = (await call(client, "find_messages", topic="orders", key_or_id="order-9"))["messages"]
        assert not {"msg_id", "keys", "tags", "body", "properties"} & set(message)
        written = message["written_by_producer"]
        assert (written["keys"], written["tags"], "body" in written) == (["order-9"], "new", False)
        life = await call(client, "explain_message", topic="orders", message_id=message["offset_msg_id"])
        assert [event["kind"] for event in life["life"]][:2] == ["born", "put"]
        assert "body" not in life["written_by_producer"]
        assert not any({"text", "group"} & set(event) for event in life["life"] + life["groups"])
        letters = (await call(client, "dead_letters", group="audit"))["letters"]
        assert len(letters) == LETTERS
        assert not any("body" in letter or "body" in letter["written_by_producer"] for letter in letters)
        assert {(letter.get("origin"), letter["written_by_producer"]["origin"]) for letter in letters} == {
            (None, "orders")
        }

    with_client(cluster, flow)


def test_a_change_is_a_plan_that_is_confirmed_once_by_its_id(cluster: BrokerProcess) -> None:
    def behind(group: str) -> int:
        with AdminClient(cluster.namesrv) as admin:
            return sum(lag.behind for lag in admin.lag(group).values())

    async def flow(client: Any) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools["confirm"].annotations.destructive_hint
        plan = await call(client, "plan_reset", group="mailing", topic="mails", to="earliest")
        assert (sum(row["replayed"] for row in plan["effect"])) == 8
        assert await asyncio.to_thread(behind, "mailing") == 0
        assert "expected a plan that waits" in await refused(client, "confirm", plan_id="0000000000000000")
        done = await call(client, "confirm", plan_id=plan["plan_id"])
        assert (done["failed"], await asyncio.to_thread(behind, "mailing")) == (0, 8)
        assert "used, too old, or unknown" in await refused(client, "confirm", plan_id=plan["plan_id"])
        (message,) = (await call(client, "find_messages", topic="orders", key_or_id="order-9"))["messages"]
        assert '"order": 9' in message["written_by_producer"]["body"]
        letters = (await call(client, "dead_letters", group="audit"))["letters"]
        ids = [letter["offset_msg_id"] for letter in letters[:3]]
        assert "letter_ids" in await refused(client, "plan_resend", group="audit", letter_ids=["nothing"])
        resend = await call(client, "plan_resend", group="audit", letter_ids=ids)
        assert [row["to_topic"] for row in resend["effect"]] == ["orders"] * 3
        done = await call(client, "confirm", plan_id=resend["plan_id"])
        assert [row["error"] for row in done["rows"]] == [None] * 3

    with_client(cluster, flow, "--allow-changes", "--show-bodies")
