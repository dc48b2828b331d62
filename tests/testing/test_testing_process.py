"""Broker(process=True): the same face over a child process, which a kill ends for real."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from asking import send

from mqfast.errors import CallTimeout, ClientError, ConfigError, UsageError
from mqfast.testing import Broker


def test_a_broker_in_a_process_of_its_own() -> None:
    with Broker(topics={"orders": 2}, process=True) as broker:
        assert isinstance(broker, Broker)
        address = broker.addresses["broker-a"]
        broker.send("orders", "42", tags="new")
        (message,) = broker.assert_sent("orders", body="42", times=1)
        assert message.tags == "new"
        with broker.producer() as producer:
            producer.send("orders", b"43")
        broker.wait_for("orders", 2, timeout_s=60)
        assert [one.name for one in broker.requests(310)] == ["SEND_MESSAGE_V2"]
        with broker.faults.lose_answers(times=1), pytest.raises(CallTimeout):
            send(address, "orders", b"44", timeout_ms=1000)
        broker.assert_sent("orders", body=b"44", times=1)
        with pytest.raises(AssertionError, match="expected 9 messages in orders") as caught:
            broker.wait_for("orders", 9, timeout_s=0.01)
        assert "orders: 3 messages" in str(caught.value)
        with pytest.raises(UsageError, match="queue_id"):
            broker.send("orders", "42", queue_id=7)

        child = broker._child.pid  # type: ignore[attr-defined]
        broker.kill(power_loss=True)
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)
        with pytest.raises(ClientError, match="expected restart"):
            broker.messages("orders")
        broker.restart()
        assert broker.addresses["broker-a"] == address
        assert sorted(one.body for one in broker.messages("orders")) == [b"42", b"43", b"44"]
        broker.reset()
        broker.assert_nothing_sent("orders")
    with pytest.raises(UsageError, match="a broker that is started"):
        broker.messages("orders")


def test_time_in_another_process() -> None:
    with Broker(topics=["orders"], virtual_time=True, process=True) as broker:
        broker.send("orders", "42", delay_level=18)
        before = broker.clock.now()
        assert broker.clock.advance_to_next() == timedelta(hours=2)
        assert broker.clock.now() - before == timedelta(hours=2)
        broker.assert_sent("orders", body="42", times=1)


def test_calls_to_the_child_process_have_the_same_results() -> None:
    with Broker(topics=["orders"], process=True) as broker:
        broker.send("orders", memoryview(b"42"), bytearray(b"43"))
        broker.assert_sent("orders", body=memoryview(b"42"), times=1)
        with pytest.raises(UsageError, match="slow: expected 0 to 3600 seconds, found -1"):
            broker.faults.slow(-1)
        with pytest.raises(AttributeError, match="no attribute 'slo'"):
            broker.faults.slo(1)  # type: ignore[attr-defined]

        async def in_a_loop() -> None:
            broker.wait_for("orders", 3, timeout_s=0.01)

        with pytest.raises(AssertionError, match=r"(?s)expected 3 messages .* asyncio.to_thread.* the brokers at"):
            asyncio.run(in_a_loop())


def test_wrong_arguments_start_no_process() -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        Broker(process=True, config={"maxMesageSize": "1"})


class _Interrupt(Exception):
    pass


def _interrupt(_number: int, _frame: object) -> None:
    raise _Interrupt


def test_a_call_after_an_interrupted_call_gets_the_right_response() -> None:
    with Broker(topics=["orders"], process=True) as broker, broker.producer() as producer:
        before = signal.signal(signal.SIGALRM, _interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(_Interrupt):
                broker.wait_for("orders", 1, timeout_s=120)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        producer.send("orders", b"42")  # ends the wait in the other process
        assert broker.addresses.keys() == {"broker-a"}
        assert [one.body for one in broker.messages("orders")] == [b"42"]


def test_threads_ask_side_by_side_and_get_their_own_answers() -> None:
    with Broker(topics={f"t{number}": 1 for number in range(4)}, process=True) as broker:
        for number in range(4):
            broker.send(f"t{number}", str(number))

        def look(number: int) -> bool:
            for _ in range(20):
                (message,) = broker.messages(f"t{number}")
                assert message.text() == str(number)
                assert broker.clock.now_ms() > 0
            return True

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(look, range(4)))
