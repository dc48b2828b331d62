"""Faults of mqfast.testing.Broker: what a client meets, what is stored, what the list of requests says."""

from __future__ import annotations

import asyncio
import socket
import threading
import time

import pytest
from asking import call, send

from mqfast.errors import BrokerError, CallTimeout, ConnectionLost, RemotingError, UsageError
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand
from mqfast.testing import Broker

SEND = RequestCode.SEND_MESSAGE_V2


@pytest.fixture(scope="module")
def one() -> Broker:  # type: ignore[misc]
    """A broker for tests that leave it as it was."""
    with Broker(topics=["orders"]) as broker:
        yield broker


@pytest.fixture
def broker(one: Broker) -> Broker:
    one.reset()
    return one


def sent(broker: Broker, body: bytes = b"42", timeout_ms: int = 120_000) -> RemotingCommand:
    return send(broker.addresses["broker-a"], "orders", body, timeout_ms=timeout_ms)


def test_a_lost_answer_is_a_message_that_is_stored(broker: Broker) -> None:
    with broker.faults.lose_answers(times=1):
        with pytest.raises(CallTimeout):
            sent(broker, timeout_ms=1000)
        assert sent(broker, b"43").code == 0
    broker.assert_sent("orders", body=b"42", times=1)
    first, second = broker.requests(SEND)
    assert (first.answer, first.fault) == (None, "the answer is lost")
    assert (second.answer, second.fault) == (0, "")


def test_a_lost_request_is_a_message_that_is_not_stored(broker: Broker) -> None:
    with broker.faults.lose_requests(only=[SEND]):
        with pytest.raises(CallTimeout):
            sent(broker, timeout_ms=1000)
        fields = {"topic": "orders", "queueId": 0}
        assert call(broker.addresses["broker-a"], RequestCode.GET_MAX_OFFSET, **fields).code == 0
    broker.assert_nothing_sent("orders")
    assert sent(broker).code == 0


def test_the_answer_fault_replaces_the_service_of_a_request(broker: Broker) -> None:
    with broker.faults.answer(ResponseCode.NO_PERMISSION, "closed today", only=[SEND], times=1):
        answer = sent(broker)
        assert (answer.code, answer.remark) == (ResponseCode.NO_PERMISSION, "closed today")
        assert sent(broker, b"43").code == 0
    broker.assert_sent("orders", body=b"42", times=0)
    with broker.faults.busy(times=1):
        answer = sent(broker)
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert answer.remark is not None
    assert answer.remark.startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")


def test_a_slow_broker_answers_later(broker: Broker) -> None:
    with broker.faults.slow(0.2, only=SEND):
        began = time.monotonic()
        assert sent(broker).code == 0
        assert time.monotonic() - began >= 0.2
    assert broker.requests(SEND)[0].fault == "0.2 s late"


def test_faults_of_requests_do_not_apply_to_calls_of_the_test(broker: Broker) -> None:
    with broker.faults.lose_answers(times=1), broker.faults.lose_requests():
        assert broker.send("orders", "43")[0].ok
    broker.assert_sent("orders", body="43", times=1)
    assert broker.requests() == []


def test_connections_are_cut_and_refused(broker: Broker) -> None:
    address = broker.addresses["broker-a"]

    async def flow() -> None:
        client = RemotingClient()
        channel = await client.channel(address)
        fields = {"topic": "orders", "queueId": "0"}
        assert (await channel.call(RequestCode.GET_MAX_OFFSET, fields)).code == 0
        with broker.faults.refuse_connections():
            assert (await channel.call(RequestCode.GET_MAX_OFFSET, fields)).code == 0  # those that are there stay
            assert broker.faults.drop_connections() >= 1
            with pytest.raises(ConnectionLost):
                for _ in range(1000):
                    await channel.call(RequestCode.GET_MAX_OFFSET, fields)
                    await asyncio.sleep(0.01)
            with pytest.raises(RemotingError):
                await client.call(address, RequestCode.GET_MAX_OFFSET, fields)
        assert (await client.call(address, RequestCode.GET_MAX_OFFSET, fields)).code == 0
        await client.close()

    asyncio.run(flow())
    assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").code == 0


def test_a_fault_ends_with_its_context(broker: Broker) -> None:
    with pytest.raises(ZeroDivisionError):
        with broker.faults.lose_requests(), broker.faults.refuse_connections(), broker.faults.disk_full():
            assert "faults: lose requests; connections are refused; disk full" in broker.describe()
            raise ZeroDivisionError
    assert "faults: none" in broker.describe()
    assert sent(broker).code == 0


def test_a_reset_ends_faults(broker: Broker) -> None:
    with broker.faults.lose_requests(), broker.faults.slow_disk(0.1), broker.faults.refuse_connections():
        broker.reset()
        assert "faults: none" in broker.describe()
        assert sent(broker).code == 0


def test_faults_of_one_request_act_together_and_in_order(broker: Broker) -> None:
    with broker.faults.slow(0.1), broker.faults.busy(times=1), broker.faults.slow(0.2, only=[SEND]):
        began = time.monotonic()
        assert sent(broker).code == ResponseCode.SYSTEM_BUSY
        assert time.monotonic() - began >= 0.3
        assert sent(broker, b"43").code == 0
    with broker.faults.lose_answers(), broker.faults.answer(1, "no"), pytest.raises(CallTimeout):
        sent(broker, timeout_ms=1000)
    with broker.faults.busy(), broker.faults.lose_requests(times=1), broker.faults.slow(0.01):
        with pytest.raises(CallTimeout):
            sent(broker, timeout_ms=1000)
        assert sent(broker).code == ResponseCode.SYSTEM_BUSY
    assert [one.fault for one in broker.requests(SEND)] == [
        "0.3 s late, answered by a fault", "0.3 s late", "answered by a fault, the answer is lost", "0.01 s late, lost",
        "0.01 s late, answered by a fault",
    ]  # fmt: skip
    broker.assert_sent("orders", body=b"42", times=0)


def test_duplicate_deliveries_reach_a_pull_consumer(broker: Broker) -> None:
    broker.send("orders", "42", queue_id=0)
    fields = {
        "consumerGroup": "billing", "topic": "orders", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0, "expressionType": "TAG",
    }  # fmt: skip
    address = broker.addresses["broker-a"]
    with broker.faults.duplicate_deliveries():
        nexts = [call(address, RequestCode.PULL_MESSAGE, **fields).ext_fields["nextBeginOffset"] for _ in range(3)]
    assert nexts == ["0", "1", "1"]
    with pytest.raises(AssertionError, match="offsets 0 to 0 of queue 0 delivered twice"):
        broker.assert_consumed_once("billing", "orders")


def test_a_full_disk_is_the_brokers_answer(broker: Broker) -> None:
    with broker.faults.disk_full():
        assert sent(broker).code == ResponseCode.SERVICE_NOT_AVAILABLE
        with pytest.raises(BrokerError) as caught:
            broker.send("orders", "42")
        assert caught.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert sent(broker).code == 0


def test_a_slow_disk_makes_acknowledged_sends_slow(broker: Broker) -> None:
    with broker.faults.slow_disk(0.2):
        began = time.monotonic()
        assert sent(broker).code == 0
        assert time.monotonic() - began >= 0.2


def test_a_slow_disk_ends_with_its_block(broker: Broker) -> None:
    """Also for the sync that is under way: else the sends behind the block would wait for it."""
    done: list[int] = []
    assert sent(broker, b"before").code == 0  # the log has its file
    with broker.faults.slow_disk(600):
        thread = threading.Thread(target=lambda: done.append(sent(broker, b"slow", timeout_ms=300_000).code))
        thread.start()
        broker.wait_until(lambda: len(broker.requests(SEND)) == 2, timeout_s=60)
    assert sent(broker, b"after", timeout_ms=120_000).code == 0
    thread.join(120)
    assert done == [0]


def test_a_failed_flush_is_no_acknowledgement_and_needs_a_restart() -> None:
    with Broker(topics=["orders"]) as broker:
        assert sent(broker, b"before").code == 0
        with broker.faults.failing_flush():
            assert sent(broker).code != 0
        assert sent(broker).code != 0
        broker.kill()
        broker.restart()
        assert sent(broker, b"after").code == 0
        broker.assert_sent("orders", body="before", times=1)


@pytest.mark.parametrize("power_loss", [False, True])
def test_a_power_cut_of_all_takes_those_that_run(power_loss: bool) -> None:
    with Broker(topics=["orders"], brokers=2) as broker:
        broker.kill("broker-a", power_loss=power_loss)
        broker.kill(power_loss=power_loss)
        assert "broker-b: killed" in broker.describe()
        if power_loss:
            with pytest.raises(UsageError, match="expected a running broker for power_loss, found none"):
                broker.kill(power_loss=True)
        broker.restart()
        broker.send("orders", "42")
        broker.assert_sent("orders", body="42", times=1)


@pytest.mark.parametrize("power_loss", [False, True])
def test_acknowledged_messages_survive_a_kill(power_loss: bool) -> None:
    with Broker(topics=["orders"]) as broker:
        address = broker.addresses["broker-a"]
        for number in range(20):
            assert sent(broker, b"%d" % number).code == 0
        broker.send("later", "44", delay_level=3, queue_id=0)
        broker.kill(power_loss=power_loss)
        assert broker.messages("orders") == []
        with pytest.raises(ConnectionLost):
            sent(broker)
        broker.restart()
        assert broker.addresses["broker-a"] == address
        assert [one.body for one in broker.messages("orders")] == [b"%d" % number for number in range(20)]
        assert sent(broker, b"after").code == 0
        broker.wait_for("later", body="44", timeout_s=60)


def test_a_power_cut_loses_unsynced_messages() -> None:
    config = {"flushDiskType": "ASYNC_FLUSH", "flushIntervalCommitLog": "600000"}
    with Broker(topics=["orders"], config=config) as broker:
        assert sent(broker, b"first").code == 0
        broker.kill()
        broker.restart()
        broker.assert_sent("orders", body="first", times=1)  # a killed process loses nothing
        assert sent(broker, b"second").code == 0
        broker.kill(power_loss=True)
        broker.restart()
        assert b"second" not in [one.body for one in broker.messages("orders")]
        assert sent(broker, b"third").code == 0
        broker.assert_sent("orders", body="third", times=1)


def test_ports_of_stopped_servers_stay_reserved() -> None:
    with Broker(topics=["orders"]) as broker:
        ports = [int(address.rpartition(":")[2]) for address in (broker.addresses["broker-a"], broker.namesrv_addr)]
        broker.stop("broker-a")
        broker.kill("namesrv-1")
        for port in ports:
            with socket.socket() as other, pytest.raises(OSError):
                other.bind(("127.0.0.1", port))
            with socket.socket() as client, pytest.raises(ConnectionRefusedError):
                client.connect(("127.0.0.1", port))
        broker.restart("namesrv-1")
        broker.restart("broker-a")
        assert sent(broker).code == 0


def test_a_stop_is_orderly_and_a_name_server_may_be_away() -> None:
    with Broker(topics=["orders"]) as broker:
        broker.stop("namesrv-1")
        with pytest.raises(ConnectionLost):
            call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders")
        assert sent(broker).code == 0
        broker.restart("namesrv-1")
        assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").code == 0
        broker.stop()
        assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").code == 17
        broker.restart()
        assert call(broker.namesrv_addr, RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="orders").code == 0
        broker.assert_sent("orders", body="42", times=1)


def test_wrong_faults_are_an_error(broker: Broker) -> None:
    faults = broker.faults
    with pytest.raises(UsageError, match=r"slow: expected 0 to 3600 seconds, found -1"):
        faults.slow(-1)
    with pytest.raises(UsageError, match="times: expected a whole number from 1 to"):
        faults.lose_answers(times=0)
    with pytest.raises(UsageError, match="only: expected a whole number"):
        faults.lose_answers(only=["send"])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="every: expected a whole number"):
        faults.duplicate_deliveries(0)
    with pytest.raises(UsageError, match="answer: expected a whole number"):
        faults.answer("busy")  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [3600, -3600, -0.5])
def test_a_clock_that_is_set_ahead_or_back(broker: Broker, seconds: float) -> None:
    before = broker.clock.now_ms()
    with broker.faults.clock_jump(seconds):
        moved = broker.clock.now_ms()
        assert abs(moved - before - seconds * 1000) < 60_000
        assert f"faults: clocks jumped by {seconds:+g} s" in broker.describe()
        for i in range(4):
            assert sent(broker, b"jumped %d" % i).code == 0
        assert abs(broker.wait_for("orders", 4, timeout_s=60)[0].store_timestamp - moved) < 60_000
    assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
    assert sent(broker, b"after").code == 0
    assert [one.body for one in broker.wait_for("orders", 5, timeout_s=60)][-1] == b"after" or seconds > 0


def test_a_clock_that_jumps_is_right_after_a_reset(broker: Broker) -> None:
    with broker.faults.clock_jump(7200):
        broker.reset()
        assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
        assert "faults: none" in broker.describe()
    assert abs(broker.clock.now_ms() - time.time() * 1000) < 60_000
    for wrong in ("soon", True, 1e9, float("nan")):
        with pytest.raises(UsageError, match="clock_jump: expected"):
            with broker.faults.clock_jump(wrong):  # type: ignore[arg-type]
                pass
