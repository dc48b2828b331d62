"""A server behind a guard, and clients that sign: for the tests of this folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple

from mqfast.broker.acl.guard import Guard, GuardedProcessors
from mqfast.remoting.channel import Channel
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.command import FrameDecoder, RemotingCommand
from mqfast.remoting.processors import Lane, Processors
from mqfast.remoting.server import RemotingServer
from mqfast.remoting.settings import RemotingSettings
from mqfast.remoting.signature import sign


class Ask(NamedTuple):
    """One request; ``user``: access key and secret."""

    code: int
    fields: dict[str, Any] = {}  # noqa: RUF012
    body: bytes = b""
    user: tuple[str, str] | None = None
    version: int = 477
    late: dict[str, str] = {}  # noqa: RUF012


def answers(
    guard: Guard,
    *asks: Ask,
    register: Callable[[Processors], None] = lambda _: None,
    before: Callable[[int], None] = id,
) -> list[tuple[int, str | None, bytes]]:
    """Code, remark and body of each answer. A request that passes the guard gets code 0 and ``passed``."""

    def passed(channel: Channel, request: RemotingCommand) -> RemotingCommand:
        return request.response(0, remark="passed")

    async def main() -> list[tuple[int, str | None, bytes]]:
        processors = GuardedProcessors(guard)
        processors.register_default(passed, Lane("all"))
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
                    fields = sign(fields, ask.body, *ask.user)
                fields.update(ask.late)
                answer = await client.call(address, ask.code, fields, ask.body, version=ask.version)
                found.append((answer.code, answer.remark, bytes(answer.body)))
        finally:
            await client.close()
            await server.stop()
        return found

    return asyncio.run(main())


def raw_answer(guard: Guard, sent: bytes) -> RemotingCommand:
    """The first answer to these bytes."""

    async def main() -> RemotingCommand:
        processors = GuardedProcessors(guard)
        processors.register_default(lambda _, request: request.response(), Lane("all"))
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
