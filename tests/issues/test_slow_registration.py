"""A broker of tests is ready when the name servers know its topics, also where the broker itself stopped waiting."""

from __future__ import annotations

import asyncio

import pytest

from mqfast.broker.metadata.registration import Registration
from mqfast.client import Message, Producer
from mqfast.testing import Broker


def test_topics_are_known_though_the_registration_takes_longer_than_a_broker_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    register = Registration._register_all

    async def register_later(self: Registration, address: str) -> None:
        await asyncio.sleep(1.5)  # a machine with much to do
        await register(self, address)

    monkeypatch.setattr(Registration, "_register_all", register_later)
    with (
        Broker(topics={"T": 1}, auto_create_topics=False) as broker,
        Producer("g", broker.namesrv_addr, retries=0) as producer,
    ):
        assert producer.send(Message("T", b"x")).ok
