"""A server behind a guard, and clients that sign: for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from mqfast.broker.acl.acl_filter import AclFilter, GuardedProcessors
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.processors import ConcurrencyLimit, Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.signature import sign

LETTERS: dict[str, Any] = {"a": "p", "c": "TBW102", "d": 4, "e": 0, "f": 0, "g": 1, "h": 0}
_LONG = {
    "producerGroup": "p", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4, "queueId": 0, "sysFlag": 0,
    "bornTimestamp": 1, "flag": 0,
}  # fmt: skip
_PULL = {
    "queueId": 0, "queueOffset": 0, "maxMsgNums": 1, "sysFlag": 0, "commitOffset": 0, "suspendTimeoutMillis": 0,
    "subVersion": 0,
}  # fmt: skip
WHOLE: dict[int, dict[str, Any]] = {
    310: LETTERS, 320: LETTERS, 325: LETTERS, 10: _LONG, 324: _LONG, 11: _PULL, 361: _PULL,
}  # fmt: skip
"""What the headers of hot codes have besides the names that a test is about."""


class Ask(NamedTuple):
    """One request; ``user``: access key and secret."""

    code: int
    fields: dict[str, Any] = {}  # noqa: RUF012
    body: bytes = b""
    user: tuple[str, str] | None = None
    version: int = 477
    late: dict[str, str] = {}  # noqa: RUF012


def answers(
    guard: AclFilter,
    *asks: Ask,
    register: Callable[[Processors], None] = lambda _: None,
    before: Callable[[int], None] = id,
) -> list[tuple[int, str | None, bytes]]:
    """Code, remark and body of each answer. A request that passes the guard gets code 0 and ``passed``."""

    def passed(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.response(0, remark="passed")

    async def main() -> list[tuple[int, str | None, bytes]]:
        processors = GuardedProcessors(guard)
        processors.register_default(passed, ConcurrencyLimit("all"))
        register(processors)
        server = RemotingServer(processors, RemotingSettings())
        await server.start()
        address = "{}:{}".format(*server.address)
        client = RemotingClient()
        found = []
        try:
            for number, ask in enumerate(asks):
                before(number)
                fields = dict(ask.fields)
                if ask.user is not None:
                    fields = sign({**WHOLE.get(ask.code, {}), **fields}, ask.body, *ask.user)
                fields.update(ask.late)
                answer = await client.call(address, ask.code, fields, ask.body, version=ask.version)
                found.append((answer.code, answer.remark, bytes(answer.body)))
        finally:
            await client.close()
            await server.stop()
        return found

    return asyncio.run(main())


def raw_answer(guard: AclFilter, sent: bytes) -> RemotingCommand:
    """The first answer to these bytes."""

    async def main() -> RemotingCommand:
        processors = GuardedProcessors(guard)
        processors.register_default(lambda _, request: request.response(), ConcurrencyLimit("all"))
        server = RemotingServer(processors, RemotingSettings())
        await server.start()
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(sent)
        decoder, found = FrameDecoder(), []
        while not found:
            found = decoder.feed(await reader.read(65536))
        writer.close()
        await server.stop()
        return found[0]

    return asyncio.run(main())
