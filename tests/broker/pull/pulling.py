"""What consumers send, for tests of pulls: pulls and heartbeats with any field changed, and what answers carry."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

from running import Running

from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.loop import runner
from mqfast.store.record.record import decode_record

COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4


def run(work: Coroutine[Any, Any, None]) -> None:
    """In the loop that a broker runs in: uvloop where it is there."""
    with runner() as loop:
        loop.run(asyncio.wait_for(work, 300))


def pull_fields(**changed: Any) -> dict[str, str]:
    fields = {
        "consumerGroup": "g", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": SUBSCRIPTION,
        "commitOffset": 0, "suspendTimeoutMillis": 20_000, "subscription": "*", "subVersion": 0,
        "expressionType": "TAG",
    }  # fmt: skip
    return {name: str(value) for name, value in {**fields, **changed}.items() if value is not None}


async def pull(
    one: Running, *, code: int = 11, client: RemotingClient | None = None, **changed: Any
) -> RemotingCommand:
    return await (client or one.client).call(one.address, code, pull_fields(**changed), timeout_ms=30_000)


async def heartbeat(
    one: Running,
    *subscriptions: dict[str, Any],
    group: str = "g",
    client: RemotingClient | None = None,
    model: str = "CLUSTERING",
    kind: str = "CONSUME_PASSIVELY",
) -> RemotingCommand:
    body = {
        "clientID": "client-1",
        "consumerDataSet": [
            {
                "groupName": group, "consumeType": kind, "messageModel": model, "unitMode": False,
                "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet": list(subscriptions),
            }
        ],
    }  # fmt: skip
    return await (client or one.client).call(one.address, 34, {}, json.dumps(body).encode())


def subscription(
    expression: str = "*", *, topic: str = "T", version: int = 100, kind: str = "TAG", codes: tuple[int, ...] = ()
) -> dict[str, Any]:
    return {
        "topic": topic, "subString": expression, "subVersion": version, "expressionType": kind,
        "codeSet": list(codes), "tagsSet": [], "classFilterMode": False,
    }  # fmt: skip


def bodies(answer: RemotingCommand) -> list[bytes]:
    """The bodies of the messages of an answer."""
    data, at, found = bytes(answer.body), 0, []
    while at < len(data):
        found.append(bytes(decode_record(data, at).body))
        at += int.from_bytes(data[at : at + 4], "big")
    return found


def offsets(answer: RemotingCommand) -> tuple[int, int, int]:
    """next, min and max offset."""
    return tuple(int(answer.ext_fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))  # type: ignore[return-value]
