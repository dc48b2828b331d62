"""A running broker with access control: what its settings do, and messages that are asked for by their place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from event_loop import run
from running import Running, running_broker

from mqfast.errors import ConfigError
from mqfast.message import decode_message_id
from mqfast.remoting.command import RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.signature import sign


async def signed(one: Running, user: tuple[str, str], code: int, body: bytes = b"", **fields: str) -> RemotingCommand:
    return await one.call(code, body, **sign(fields, body, *user))


def letters(topic: str) -> dict[str, str]:
    return {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": "", "j": "0"}


def accounts(work: Path) -> str:
    path = work / "plain_acl.yml"
    content = {
        "accounts": [
            {"accessKey": "writer1", "secretKey": "12345678", "topicPerms": ["secret=PUB", "open=PUB|SUB"]},
            {"accessKey": "reader1", "secretKey": "12345678", "topicPerms": ["open=SUB"]},
        ]
    }
    path.write_text(yaml.safe_dump(content))
    return str(path)


def test_a_message_is_asked_for_by_its_place_only_where_its_topic_may_be_read(tmp_path: Path) -> None:
    writer, reader = ("writer1", "12345678"), ("reader1", "12345678")

    async def flow() -> None:
        async with running_broker(tmp_path / "s", aclEnable=True, aclFile=accounts(tmp_path)) as one:
            places = {}
            for topic in ("secret", "open"):
                answer = await signed(one, writer, 310, b"body", **letters(topic))
                assert answer.code == 0, answer.remark
                places[topic] = str(decode_message_id(answer.ext_fields["msgId"]).physical_offset)
            refused = await signed(one, reader, 33, offset=places["secret"], topic="open")
            assert refused.code == 1
            begin = "org.apache.rocketmq.acl.common.AclException: "
            assert refused.remark == f"{begin}reader1 has no permission for what is asked for"
            allowed = await signed(one, reader, 33, offset=places["open"])
            assert allowed.code == 0
            assert b"body" in bytes(allowed.body)
            nothing = await signed(one, reader, 33, offset="7")
            assert "can not find message by the offset, 7" in str(nothing.remark)
            info = await signed(one, writer, 52)
            assert str(info.remark).endswith("Need admin permission for request code=52, but accessKey=writer1 is not")
            assert (await one.call(28)).remark == (
                "org.apache.rocketmq.acl.common.AclException: No accessKey is configured"
            )

    run(flow())


def test_a_changed_file_counts_while_the_broker_runs(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "s", aclEnable=True, aclFile=accounts(tmp_path)) as one:
            newcomer = ("writer2", "12345678")
            assert (await signed(one, newcomer, 310, b"x", **letters("t"))).code == 1
            account = {"accessKey": "writer2", "secretKey": "12345678", "defaultTopicPerm": "PUB"}
            (tmp_path / "plain_acl.yml").write_text(yaml.safe_dump({"accounts": [account]}))
            while (await signed(one, newcomer, 310, b"x", **letters("t"))).code:
                await asyncio.sleep(0.02)

    run(flow())


def test_users_outlive_the_broker_and_settings_make_the_first(tmp_path: Path) -> None:
    settings = {
        "authenticationEnabled": True, "authorizationEnabled": True,
        "initAuthenticationUser": '{"username":"root","password":"root-secret"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
    }  # fmt: skip
    root, alice = ("root", "root-secret"), ("alice", "alice-secret")
    rule = {"policies": [{"entries": [{"resource": "Topic:t*", "actions": ["Pub"], "decision": "Allow"}]}]}

    async def first() -> None:
        async with running_broker(tmp_path / "s", **settings) as one:
            body = json.dumps({"username": "alice", "password": "alice-secret"}).encode()
            assert (await signed(one, root, 3001, body, username="alice")).code == 0
            assert (await signed(one, alice, 310, b"x", **letters("top"))).code == 16
            assert (await signed(one, root, 3006, json.dumps(rule).encode(), subject="User:alice")).code == 0
            assert (await signed(one, alice, 310, b"x", **letters("top"))).code == 0

    async def second() -> None:
        async with running_broker(tmp_path / "s", **settings) as one:
            assert (await signed(one, alice, 310, b"x", **letters("top"))).code == 0
            assert (await signed(one, alice, 310, b"x", **letters("other"))).code == 16
            found = await signed(one, root, 3005)
            assert [user["username"] for user in json.loads(found.body)] == ["alice", "inner", "root"]

    run(first())
    run(second())


def test_the_broker_signs_its_requests_to_name_servers(tmp_path: Path) -> None:
    async def flow() -> None:
        seen: list[dict[str, str]] = []
        processors = Processors()

        def take(_: object, request: RemotingCommand) -> RemotingCommand:
            seen.append(dict(request.ext_fields))
            return request.response()

        processors.register_default(take, ConcurrencyLimit("all"))
        names = RemotingServer(processors)
        await names.start()
        inner = '{"accessKey":"inner","secretKey":"inner-secret"}'
        address = "{}:{}".format(*names.address)
        async with running_broker(tmp_path / "s", namesrvAddr=address, innerClientAuthenticationCredentials=inner):
            pass
        await names.stop()
        assert {fields["AccessKey"] for fields in seen} == {"inner"}
        assert all(len(fields["Signature"]) == 28 for fields in seen)

    run(flow())


def test_what_protects_the_broker_is_never_changed_over_the_network(tmp_path: Path) -> None:
    names = [
        *("aclEnable", "aclFile", "aclTrustProxyProtocol", "authenticationEnabled", "authenticationWhitelist"),
        *("authorizationEnabled", "authorizationWhitelist", "initAuthenticationUser", "proxyProtocolEnable", "useTLS"),
        *("tls.server.mode", "tls.config.file", "bindAddress", "innerClientAuthenticationCredentials"),
    ]

    async def flow() -> None:
        async with running_broker(tmp_path / "s") as one:
            before = one.broker.config.text()
            for name in names:
                answer = await one.call(25, f"{name}=x\n".encode())
                assert answer.code == 16, name
                assert name in str(answer.remark)
            assert one.broker.config.text() == before

    run(flow())


def test_without_access_control_there_is_no_guard(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "s") as one:
            assert type(one.broker.processors) is Processors
            assert one.broker.access.policy == "none: everybody who connects may do everything"

    run(flow())


@pytest.mark.parametrize(
    "settings, says",
    [
        ({"aclEnable": True}, "aclEnable: expected aclFile or rocketmqHome"),
        ({"aclEnable": True, "rocketmqHome": "/no/such"}, "found no such file"),
        ({"authenticationEnabled": True}, "expected a user, found none"),
        ({"authenticationEnabled": True, "initAuthenticationUser": "root"}, "initAuthenticationUser: expected "),
        ({"authorizationWhitelist": "10,x", "authorizationEnabled": True, "initAuthenticationUser":
          '{"username":"r","password":"p"}'}, "authorizationWhitelist: expected request codes between commas"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used_are_errors_and_leave_no_lock(
    tmp_path: Path, settings: dict[str, Any], says: str
) -> None:
    async def flow() -> None:
        with pytest.raises(ConfigError, match=says):
            async with running_broker(tmp_path / "s", **settings):
                pass
        async with running_broker(tmp_path / "s"):
            pass

    run(flow())
