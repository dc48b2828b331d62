"""Sync and asyncio consumers have the same public calls, with the same arguments and docstrings."""

from __future__ import annotations

import inspect

import pytest

from mqfast.client.consumer.async_pull_consumer import AsyncPullConsumer
from mqfast.client.consumer.async_push_consumer import AsyncPushConsumer
from mqfast.client.consumer.call import Work, engine_call
from mqfast.client.consumer.pull_consumer import PullConsumer
from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.values import MessageQueue
from mqfast.errors import ClientUsageError

PAIRS = [(PullConsumer, AsyncPullConsumer), (PushConsumer, AsyncPushConsumer)]


def declared(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name, value in vars(base).items() if isinstance(value, engine_call)]


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=["pull", "push"])
def test_public_calls_of_sync_and_async_consumers_are_the_same(sync: type, asynchronous: type) -> None:
    names = [name for name in dir(sync) if not name.startswith("_")]
    assert names == [name for name in dir(asynchronous) if not name.startswith("_")]
    for name in names:
        blocking, coroutine = getattr(sync, name), getattr(asynchronous, name)
        if callable(blocking):
            assert list(inspect.signature(blocking).parameters) == list(inspect.signature(coroutine).parameters), name


@pytest.mark.parametrize(("sync", "asynchronous"), PAIRS, ids=["pull", "push"])
def test_a_declared_call_has_docstring_and_result_of_the_method(sync: type, asynchronous: type) -> None:
    names = declared(sync)
    assert names == declared(asynchronous)
    assert names
    for name in names:
        blocking, coroutine = getattr(sync, name), getattr(asynchronous, name)
        assert inspect.getdoc(blocking), name
        assert inspect.getdoc(blocking) == inspect.getdoc(coroutine)
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.iscoroutinefunction(coroutine)
        for function in (blocking, coroutine):
            assert Work.__name__ not in str(inspect.signature(function).return_annotation), name


def test_a_call_with_a_wrong_argument_fails_before_the_consumer_starts() -> None:
    consumer = PullConsumer("unstarted", "127.0.0.1:1")
    with pytest.raises(ClientUsageError, match="expected seconds from 0 to 60"):
        consumer.pull(MessageQueue("orders", "broker-a", 0), 0, wait_s=61)
    assert "not started" in repr(consumer)
