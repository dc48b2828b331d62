"""A coroutine function where a function is called and nobody awaits: an error at once, not one that never runs."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from mqfast.client import (
    AsyncProducer,
    AsyncPushConsumer,
    ClientHook,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
)
from mqfast.client.hooks import SendContext
from mqfast.errors import UsageError

NOBODY = "127.0.0.1:1"


async def awaited(*given: Any) -> Any:
    raise AssertionError("it is never called")


class Callback:
    name = "MINE"

    async def __call__(self, *given: Any) -> Any:
        raise AssertionError("it is never called")


class Hook(ClientHook):
    async def after_send(self, context: SendContext) -> None:  # type: ignore[override]
        raise AssertionError("it is never called")


class Store:
    async def load(self, queue: MessageQueue) -> int | None:
        raise AssertionError("it is never called")

    def save(self, offsets: Mapping[MessageQueue, int]) -> None:
        raise AssertionError("it is never called")


def in_a_loop(call: Callable[[AsyncProducer], object]) -> None:
    async def flow() -> None:
        async with AsyncProducer("g", NOBODY) as producer:
            call(producer)

    asyncio.run(flow())


CALLS: Sequence[tuple[str, Callable[[Any], object]]] = (
    ("selector", lambda given: Producer("g", NOBODY, selector=given)),
    ("selector", lambda given: Producer("g", NOBODY).send("t", b"x", selector=given)),
    ("check", lambda given: TransactionProducer("g", NOBODY, check=given)),
    (
        "local",
        lambda given: TransactionProducer("g", NOBODY, check=lambda one: True).send_in_transaction(
            Message("t", b"x"), given
        ),
    ),
    ("on_done", lambda given: Producer("g", NOBODY).send_future(Message("t", b"x"), on_done=given)),
    ("on_done", lambda given: in_a_loop(lambda one: one.send_nowait(Message("t", b"x"), on_done=given))),
    ("topic t", lambda given: PushConsumer("g", NOBODY).subscribe("t", given)),
)


@pytest.mark.parametrize(
    "given", [awaited, functools.partial(awaited, 1), Callback()], ids=["def", "partial", "object"]
)
@pytest.mark.parametrize("name, call", CALLS, ids=[f"{number} {name}" for number, (name, _) in enumerate(CALLS)])
def test_it_is_refused(name: str, call: Callable[[Any], object], given: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}: expected a function, found a coroutine function"):
        call(given)


@pytest.mark.parametrize("make", [PushConsumer, AsyncPushConsumer, PullConsumer])
def test_hooks_stores_and_strategies_too(make: Any) -> None:
    for arguments, name in (
        ({"hooks": [Hook()]}, "hooks: Hook.after_send"),
        ({"offset_store": Store()}, "offset_store: load"),
        ({"allocation": Callback()}, "allocation"),
    ):
        with pytest.raises(UsageError, match=f"{name}: expected a function, found a coroutine function"):
            make("g", NOBODY, topics="t", **arguments)
    with pytest.raises(UsageError, match=r"hooks: Hook\.after_send: expected a function"):
        Producer("g", NOBODY, hooks=[Hook()])
