"""A running broker with access control of either kind, and accounts: for the tests of this folder.

``owner`` may do everything; ``nobody`` has no right at all; ``other`` has every right on topics and groups, but for
``secret_topic`` and ``secret_group``, which are denied.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import yaml
from running import Running, running_broker

from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.signature import sign

__all__ = ["ACCOUNTS", "Kind", "Signing", "guarded_broker"]

Kind = Literal["1.0", "2.0"]
ACCOUNTS = {name: (f"{name}-key", f"{name}-password") for name in ("owner", "nobody", "other")}
PLAIN = {
    "accounts": [
        {"accessKey": "owner-key", "secretKey": "owner-password", "admin": True},
        {"accessKey": "nobody-key", "secretKey": "nobody-password"},
        {
            "accessKey": "other-key",
            "secretKey": "other-password",
            "defaultTopicPerm": "PUB|SUB",
            "defaultGroupPerm": "PUB|SUB",
            "topicPerms": ["secret_topic=DENY"],
            "groupPerms": ["secret_group=DENY"],
        },
    ]
}


class Signing:
    """Requests to a running broker, signed by the account that each names."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.context = running.context

    async def call(self, who: str, code: int, body: bytes = b"", **fields: Any) -> RemotingCommand:
        texts = {name: str(value) for name, value in fields.items()}
        return await self.running.call(code, body, **sign(texts, body, *ACCOUNTS[who]))

    async def send(
        self, who: str, topic: str, body: bytes = b"body", properties: str = "", **more: Any
    ) -> RemotingCommand:
        letters: dict[str, Any] = {
            "a": "producers", "b": topic, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": 1_700_000_000_000, "h": 0,
            "i": properties, "j": 0, "k": "false", "m": "false", **more,
        }  # fmt: skip
        return await self.call(who, 310, body, **letters)


async def _make_users(one: Signing) -> None:
    for name in ("nobody", "other"):
        key, password = ACCOUNTS[name]
        body = json.dumps({"username": key, "password": password}).encode()
        assert (await one.call("owner", 3001, body, username=key)).code == 0
    rules = [("Topic:*", "Allow"), ("Group:*", "Allow"), ("Topic:secret_topic", "Deny"), ("Group:secret_group", "Deny")]
    entries = [{"resource": name, "actions": ["All"], "decision": decision} for name, decision in rules]
    body = json.dumps({"policies": [{"entries": entries}]}).encode()
    assert (await one.call("owner", 3006, body, subject="User:other-key")).code == 0


@contextlib.asynccontextmanager
async def guarded_broker(work: Path, kind: Kind, **settings: Any) -> AsyncIterator[Signing]:
    """A broker that compares what the accounts ask."""
    if kind == "1.0":
        (work / "plain_acl.yml").write_text(yaml.safe_dump(PLAIN))
        settings |= {"aclEnable": True, "aclFile": str(work / "plain_acl.yml")}
    else:
        key, password = ACCOUNTS["owner"]
        first = json.dumps({"username": key, "password": password})
        settings |= {"authorizationEnabled": True, "initAuthenticationUser": first}
    async with running_broker(work / "store", **settings) as running:
        one = Signing(running)
        if kind == "2.0":
            await _make_users(one)
        yield one
