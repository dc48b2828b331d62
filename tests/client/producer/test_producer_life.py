"""The life of a producer: start, close, fork, the end of the process, a broker that goes, hooks, arguments."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from client.net.raw_server import SEND_OK, Connection, RawServer
from running import BrokerProcess

from mqfast.client.hooks import ClientHook, SendContext
from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.producer.producer import Producer
from mqfast.client.values import Credentials, MessageQueue, SendResult
from mqfast.errors import (
    Backlog,
    BrokerBusy,
    BrokerError,
    ClientClosed,
    ClientError,
    ConfigError,
    ConnectError,
    MessageIllegal,
    MessageTooLarge,
    NoRoute,
    SendFailed,
    SendTimeout,
    UsageError,
)
from mqfast.message import Message
from mqfast.remoting.command import RemotingCommand, encode


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("cluster")) as one:
        yield one


def ok(one: Connection, request: RemotingCommand) -> None:
    one.answer(request)


def silent(one: Connection, request: RemotingCommand) -> None:
    pass


def nobody() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


# -- begin and end -----------------------------------------------------------------------------------------------------


def test_the_first_send_starts_a_producer_and_close_ends_it(cluster: BrokerProcess) -> None:
    producer = Producer("g", cluster.namesrv)
    assert producer.stats()["client_id"] is None
    assert producer.send("T", b"x").ok
    assert "@" in producer.stats()["client_id"]
    producer.close()
    producer.close()
    with pytest.raises(ClientClosed, match="group g: it is closed"):
        producer.send("T", b"x")
    with pytest.raises(ClientClosed):
        producer.start()
    assert producer.stats()["closed"]


def test_a_producer_that_is_closing_takes_no_further_send() -> None:
    with RawServer(silent) as server:
        producer = Producer("g", server.address, send_timeout_s=2.0)
        future = producer.send_future(Message("T", b"x"))
        closing = threading.Thread(target=producer.close, args=(1.0,))
        closing.start()
        while not producer.stats()["closed"]:
            time.sleep(0.001)
        for send in (producer.send_oneway, producer.send_future, producer.send):
            with pytest.raises(ClientClosed):
                send(Message("T", b"y"))
        closing.join(10)
        assert isinstance(future.exception(10), ClientError)


def test_a_send_that_begins_while_its_producer_is_closed_starts_nothing() -> None:
    class Gate:
        """A lock whose first owner waits before it has it."""

        def __init__(self) -> None:
            self.arrived, self.may_go = threading.Event(), threading.Event()
            self._lock = threading.Lock()

        def __enter__(self) -> None:
            if not self.arrived.is_set():
                self.arrived.set()
                assert self.may_go.wait(20)
            self._lock.acquire()

        def __exit__(self, *exc: object) -> None:
            self._lock.release()

    ends: list[Any] = []

    def send() -> None:
        try:
            ends.append(producer.send("T", b"x"))
        except ClientError as error:
            ends.append(error)

    with RawServer(ok) as server:
        producer = Producer("g", server.address)
        gate = producer._starting = Gate()  # type: ignore[assignment]
        sending = threading.Thread(target=send, daemon=True)
        sending.start()
        assert gate.arrived.wait(20)
        producer.close()
        gate.may_go.set()
        sending.join(20)
        assert isinstance(ends[0], ClientClosed)
        assert producer._instance is None
        assert server.requests == []


@pytest.mark.parametrize("timeout_s", ["1", -1])
def test_a_close_that_is_refused_closes_nothing(cluster: BrokerProcess, timeout_s: Any) -> None:
    with Producer("g", cluster.namesrv) as producer:
        with pytest.raises(ConfigError, match="timeout_s"):
            producer.close(timeout_s)
        assert producer.send("T", b"x").ok


def test_several_producers_of_a_process_share_their_connection(cluster: BrokerProcess) -> None:
    with Producer("g1", cluster.namesrv) as first, Producer("g2", cluster.namesrv) as second:
        assert first.send("T", b"x").ok
        assert second.send("T", b"x").ok
        assert first.stats()["client_id"] == second.stats()["client_id"]
        first.close()
        assert second.send("T", b"x").ok


def test_a_send_waits_no_longer_than_its_time() -> None:
    with RawServer(silent) as server, Producer("g", server.address, send_timeout_s=300) as producer:
        begin = time.monotonic()
        with pytest.raises(SendTimeout, match="gave no answer") as caught:
            producer.send("T", b"x", timeout_s=0.3)
        assert time.monotonic() - begin < 100
        assert caught.value.maybe_stored
        assert caught.value.msg_id in str(caught.value)


def test_an_async_send_waits_no_longer_than_its_time() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address, send_timeout_s=300) as producer:
            begin = time.monotonic()
            with pytest.raises(SendTimeout, match="gave no answer"):
                await producer.send("T", b"x", timeout_s=0.3)
            assert time.monotonic() - begin < 100

    with RawServer(silent) as server:
        asyncio.run(main(server.address))


def test_cancelled_send_has_its_msg_id() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address, close_timeout_s=0.2) as producer:
            task = asyncio.ensure_future(producer.send("T", b"x"))
            while not server.requests:
                await asyncio.sleep(0.005)
            task.cancel()
            with pytest.raises(asyncio.CancelledError) as caught:
                await task
            msg_id = server.requests[0].ext_fields["i"].partition("\x01")[2].partition("\x02")[0]
            assert caught.value.msg_id == msg_id  # type: ignore[attr-defined]

    with RawServer(silent) as server:
        asyncio.run(main(server.address))


@pytest.mark.parametrize("face", ["sync", "async"])
def test_close_is_bounded(face: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main(address: str) -> float:
        producer = await AsyncProducer("g", address, close_timeout_s=0.3).start()
        for _ in range(3):
            producer.send_nowait(Message("T", b"x"))
        begin = time.monotonic()
        await producer.close()
        return time.monotonic() - begin

    with RawServer(silent) as server:
        if face == "async":
            took = asyncio.run(main(server.address))
        else:
            producer = Producer("g", server.address, close_timeout_s=0.3)
            futures = [producer.send_future(Message("T", b"x")) for _ in range(3)]
            assert producer.flush(0.05) == 3
            begin = time.monotonic()
            producer.close()
            took = time.monotonic() - begin
            with pytest.raises((ClientError, OSError)):
                futures[0].result(10)
        assert took < 100
    assert "closed while 3 messages are on their way" in caplog.text


def test_a_forgotten_producer_warns_and_is_closed(cluster: BrokerProcess) -> None:
    producer = Producer("forgotten", cluster.namesrv)
    producer.send("T", b"x")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del producer
        gc.collect()
    assert [one for one in caught if "producer of group forgotten was not closed" in str(one.message)]


def test_a_forgotten_async_producer_warns_and_is_closed() -> None:
    async def main(address: str) -> None:
        producer = AsyncProducer("forgotten", address)
        await producer.send("T", b"x")
        instance = producer._instance
        assert instance is not None
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            del producer
            gc.collect()
        assert [one for one in caught if "producer of group forgotten was not closed" in str(one.message)]
        deadline = time.monotonic() + 10
        while instance._users and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert instance._users == 0

    with RawServer(ok) as server:
        asyncio.run(main(server.address))


def test_a_sync_send_in_an_event_loop_warns_once(cluster: BrokerProcess) -> None:
    async def main(producer: Producer) -> None:
        producer.send("T", b"x")
        producer.send("T", b"x")

    with Producer("g", cluster.namesrv) as producer, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(main(producer))
    assert len([one for one in caught if "use AsyncProducer" in str(one.message)]) == 1


def test_asyncio_starts_no_thread(cluster: BrokerProcess) -> None:
    script = f"""
        import asyncio, threading
        from mqfast.client import AsyncProducer
        async def main():
            async with AsyncProducer("g", {cluster.namesrv!r}) as producer:
                await producer.send("T", b"x")
                print(threading.active_count())
        asyncio.run(main())
    """
    assert run(script) == "1"


# -- the end of the process, fork --------------------------------------------------------------------------------------


def run(script: str, timeout_s: float = 60) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=timeout_s
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_process_exits_with_an_open_producer(cluster: BrokerProcess) -> None:
    script = f"""
        from mqfast import Message
        from mqfast.client import Producer
        producer = Producer("g", {cluster.namesrv!r})
        print(producer.send("ends", b"x").ok)
        for i in range(100):
            producer.send_future(Message("ends", b"%d" % i))
    """
    assert run(script) == "True"
    with Producer("g", cluster.namesrv) as producer:
        queues = producer.queues("ends")
        total = sum(producer.send("ends", b"x", queue=queue).queue_offset for queue in queues)
        assert total == 101  # the end waited for what was on its way


def test_a_process_ends_though_its_broker_says_nothing() -> None:
    with RawServer(silent) as server:
        script = f"""
            from mqfast import Message
            from mqfast.client import Producer
            producer = Producer("g", {server.address!r})
            producer.send_future(Message("T", b"x"))
        """
        begin = time.monotonic()
        run(script)
        assert time.monotonic() - begin < 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is needed")
def test_parent_and_children_send_after_a_fork(cluster: BrokerProcess) -> None:
    """Forks while the producer is new, started, sending on other threads, and closed; every process goes on."""
    script = f"""
        import os, sys, threading, warnings
        warnings.simplefilter("ignore")
        from mqfast import Message
        from mqfast.client import Producer

        address = {cluster.namesrv!r}
        stop = threading.Event()
        failures = []

        def child(producer, loud):
            pid = os.fork()
            if pid == 0:
                status = 1
                try:
                    assert producer.send("forked", b"child").ok
                    assert producer.send_future(Message("forked", b"child")).result(20).ok
                    status = 0
                finally:
                    if loud:  # as a process that ends by itself
                        sys.exit(status)
                    os._exit(status)
            return pid

        def wait(pid):
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

        def busy():
            while not stop.is_set():
                try:
                    producer.send("forked", b"busy")
                    producer.send_future(Message("forked", b"busy")).result(20)
                except Exception as error:
                    failures.append(error)

        producer = Producer("g", address)
        wait(child(producer, False))
        ids = {{producer.send("forked", b"parent").msg_id}}
        first = producer.stats()["client_id"]
        wait(child(producer, True))
        assert producer.send("forked", b"parent").ok
        assert producer.send_future(Message("forked", b"parent")).result(20).ok
        threads = [threading.Thread(target=busy, daemon=True) for _ in range(3)]
        for one in threads:
            one.start()
        for i in range(10):
            wait(child(producer, i % 2 == 0))
        stop.set()
        for one in threads:
            one.join(20)
        assert not failures, failures
        assert producer.send_future(Message("forked", b"parent")).result(20).ok
        assert producer.stats()["client_id"] == first
        producer.close()
        print("ok")
    """
    assert run(script, 120) == "ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is needed")
def test_a_child_has_ids_and_a_client_id_of_its_own(cluster: BrokerProcess) -> None:
    script = f"""
        import os
        from mqfast.client import Producer
        producer = Producer("g", {cluster.namesrv!r})
        ids = [producer.send("T", b"x").msg_id, producer.stats()["client_id"]]
        read, write = os.pipe()
        if os.fork() == 0:
            os.write(write, f"{{producer.send('T', b'x').msg_id}} {{producer.stats()['client_id']}}".encode())
            os._exit(0)
        theirs = os.read(read, 1000).decode().split()
        os.wait()
        print(theirs[0][:20] != ids[0][:20], theirs[1] != ids[1])
        producer.close()
    """
    assert run(script) == "True True"


# -- a broker that goes ------------------------------------------------------------------------------------------------


def test_a_broker_that_goes_and_comes_back(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as cluster, Producer("g", cluster.namesrv, send_timeout_s=2) as producer:
        assert producer.send("T", b"x").ok
        cluster.end(signal.SIGKILL)
        with pytest.raises((SendFailed, SendTimeout, ConnectError)) as caught:
            producer.send("T", b"x")
        assert "127.0.0.1" in str(caught.value)
        cluster.start()
        deadline = time.monotonic() + 30
        while True:
            try:
                assert producer.send("T", b"x").ok
                break
            except ClientError:
                assert time.monotonic() < deadline
                time.sleep(0.1)


def test_error_without_name_server_names_the_addresses() -> None:
    address = nobody()
    with Producer("g", address) as producer, pytest.raises(ConnectError, match=f"route of topic T.*{address}"):
        producer.send("T", b"x")


def test_no_route_says_that_brokers_make_no_topics(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, autoCreateTopicEnable=False) as cluster:
        with Producer("g", cluster.namesrv) as producer:
            with pytest.raises(NoRoute, match=r"(?s)topic T: .*nor has a broker topic TBW102"):
                producer.send("T", b"x")
            assert isinstance(next(producer.send_many([Message("T", b"x")])), NoRoute)


def test_retry_after_a_lost_response_keeps_the_unique_id() -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        if one.number <= 1:
            one.cut()
        else:
            one.answer(request)

    with RawServer(serve) as server, Producer("g", server.address) as producer:
        result = producer.send("T", b"x")
        ids = {request.ext_fields["i"] for request in server.requests}
        assert ids == {f"UNIQ_KEY\x01{result.msg_id}\x02"}
        assert len(server.requests) >= 2
        assert producer.stats()["retried"] >= 1


def test_an_async_send_is_tried_again_on_a_busy_broker_with_another_queue() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address) as producer:
            assert (await producer.send("T", b"x")).ok

    answers = iter([2, 2, 0])
    with RawServer(lambda one, request: one.answer(request, next(answers))) as server:
        asyncio.run(main(server.address))
        assert len({request.ext_fields["e"] for request in server.requests}) == 3


def test_max_message_size(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, mappedFileSizeCommitLog=32 << 20) as cluster:
        with Producer("g", cluster.namesrv, compress_over_bytes=None, send_timeout_s=20) as producer:
            assert producer.send("T", bytes(4 << 20)).ok
            with pytest.raises(MessageTooLarge, match=r"at most 4194304 bytes \(max_message_bytes\), found 4194305"):
                producer.send("T", bytes((4 << 20) + 1))
        with Producer("g", cluster.namesrv, max_message_bytes=5 << 20, compress_over_bytes=None) as producer:
            with pytest.raises(BrokerError, match="answered code 13") as caught:
                producer.send("T", bytes((4 << 20) + 1))
            assert caught.value.code == 13


@pytest.mark.parametrize("nonsense", [{}, {"msgId": "x"}, {"msgId": "x", "queueId": "y", "queueOffset": "0"}], ids=str)
def test_a_broker_that_answers_nonsense(nonsense: dict[str, str]) -> None:
    def serve(one: Connection, request: RemotingCommand) -> None:
        one.send(encode(request.response(0, nonsense)))

    with RawServer(serve) as server, Producer("g", server.address) as producer:
        with pytest.raises(BrokerError, match=f"{server.address} answered code 0 without a valid"):
            producer.send("T", b"x")
        server.serve = ok
        assert producer.send("T", b"x").ok


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_more_than_may_be_on_its_way_is_refused() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address, max_in_flight=5, close_timeout_s=0.1) as producer:
            for _ in range(5):
                producer.send_nowait(Message("T", b"x"))
            with pytest.raises(Backlog, match=r"5 messages .* are on their way .max_in_flight 5") as caught:
                producer.send_nowait(Message("T", b"x"))
            assert caught.value.msg_id
            begin = time.monotonic()
            with pytest.raises(SendTimeout, match="nothing was sent"):
                await producer.send("T", b"x", timeout_s=0.2)
            assert time.monotonic() - begin < 100

    with RawServer(silent) as server:
        asyncio.run(main(server.address))


def test_a_future_waits_for_room_and_no_longer_than_its_time() -> None:
    with RawServer(silent) as server:
        with Producer("g", server.address, max_in_flight=2, send_timeout_s=0.5, close_timeout_s=0.1) as producer:
            futures = [producer.send_future(Message("T", b"x")) for _ in range(2)]
            for one in futures:
                with pytest.raises(SendTimeout):
                    one.result(10)
            server.serve = ok
            assert producer.send_future(Message("T", b"x")).result(10).ok


def test_room_is_given_in_order() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address, max_in_flight=1) as producer:
            results = await asyncio.gather(*(producer.send("T", f"{i}") for i in range(20)))
            assert len(results) == 20

    with RawServer(ok) as server:
        asyncio.run(main(server.address))
        assert [bytes(one.body) for one in server.requests] == [f"{i}".encode() for i in range(20)]


def test_memory_of_waiting_sends_is_bounded_without_a_broker() -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address, max_in_flight_bytes=100_000, close_timeout_s=0.1) as producer:
            refused = 0
            for _ in range(1000):
                try:
                    producer.send_nowait(Message("T", bytes(1000)))
                except Backlog:
                    refused += 1
            assert refused >= 895
            assert producer.stats()["in_flight_bytes"] <= 100_000

    with RawServer(silent) as server:
        asyncio.run(main(server.address))


# -- credentials -------------------------------------------------------------------------------------------------------


def test_requests_are_signed_and_credentials_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from mqfast.remoting.signature import sign

    def check(request: RemotingCommand, access: str, secret: str, token: str = "") -> None:
        fields = dict(request.ext_fields)
        signature = fields.pop("Signature")
        assert fields["AccessKey"] == access
        assert sign(fields, bytes(request.body), access, secret, token)["Signature"] == signature

    with RawServer(ok) as server:
        with Producer("g", server.address, credentials=Credentials("ak", "sk", "token")) as producer:
            assert producer.send("T", b"x").ok
            check(server.requests[-1], "ak", "sk", "token")
            assert server.requests[-1].ext_fields["SecurityToken"] == "token"
            assert producer.send_future(Message("T", b"x")).result(10).ok
            check(server.requests[-1], "ak", "sk", "token")
        monkeypatch.setenv("ROCKETMQ_ACCESS_KEY", "env")
        monkeypatch.setenv("ROCKETMQ_SECRET_KEY", "secret")
        with Producer("g", server.address) as producer:
            assert producer.send("T", b"x").ok
            check(server.requests[-1], "env", "secret")
    assert "sk" not in repr(Credentials("ak", "sk"))


def test_a_namespace_is_on_the_wire_and_not_in_the_result() -> None:
    with RawServer(ok) as server, Producer("g", server.address, namespace="ns") as producer:
        result = producer.send("T", b"x")
        fields = server.requests[-1].ext_fields
        assert (fields["a"], fields["b"], fields["c"]) == ("ns%g", "ns%T", "TBW102")
        assert result.message_queue.topic == "T"
        assert {queue.topic for queue in producer.queues("T")} == {"T"}
        assert producer.send("T", b"x", queue=result.message_queue).message_queue == result.message_queue


# -- hooks -------------------------------------------------------------------------------------------------------------


class Recorder(ClientHook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext]] = []

    def before_send(self, context: SendContext) -> None:
        self.seen.append(("before", context))
        context.message.properties = {"traceparent": "00-1"}

    def after_send(self, context: SendContext) -> None:
        self.seen.append(("after", context))


class Broken(ClientHook):
    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("broken hook")

    after_send = before_send


def test_hooks_get_every_send_and_may_add_properties(caplog: pytest.LogCaptureFixture) -> None:
    hook = Recorder()
    with RawServer(ok) as server, Producer("g", server.address, hooks=[Broken(), hook]) as producer:
        result = producer.send("T", b"x")
        assert "traceparent\x0100-1" in server.requests[-1].ext_fields["i"]
        (before, context), (after, same) = hook.seen
        assert (before, after) == ("before", "after")
        assert context is same
        assert (context.result, context.queue, context.error) == (result, result.message_queue, None)
        assert context.group == "g"
        assert context.seconds > 0
        hook.seen.clear()
        server.serve = lambda one, request: one.answer(request, 13, remark="no")
        with pytest.raises(BrokerError) as caught:
            producer.send("T", b"x")
        assert hook.seen[-1][1].error is caught.value
        server.serve = ok
        for work in (
            lambda: producer.send_future(Message("T", b"x")).result(10),
            lambda: producer.send_oneway(Message("T", b"x")),
            lambda: list(producer.send_many([Message("T", b"x")])),
        ):
            hook.seen.clear()
            work()
            assert [what for what, _ in hook.seen] == ["before", "after"]
            assert hook.seen[1][1].error is None
        server.close()
        with pytest.raises(ClientError) as caught_oneway:
            while True:  # the end of the connection may come after the first
                producer.send_oneway(Message("T", b"x"))
        assert hook.seen[-1][1].error is caught_oneway.value
        producer.close(1.0)
    assert "broken hook" in caplog.text


def test_hooks_of_an_async_producer_get_every_end() -> None:
    async def main(address: str) -> None:
        hook = Recorder()
        async with AsyncProducer("g", address, hooks=[hook]) as producer:
            await producer.send("T", b"x")
            producer.send_nowait(Message("T", b"x"))
            await producer.flush()
            await producer.send_oneway(Message("T", b"x"))
            assert [one async for one in producer.send_many([Message("T", b"x"), Message("T", b"y")])]
        assert [what for what, _ in hook.seen].count("before") == 5
        assert [what for what, _ in hook.seen].count("after") == 5

    with RawServer(ok) as server:
        asyncio.run(main(server.address))


def test_exception_of_a_callback_is_isolated(caplog: pytest.LogCaptureFixture) -> None:
    async def main(address: str) -> None:
        async with AsyncProducer("g", address) as producer:
            producer.send_nowait(Message("T", b"x"), on_done=lambda outcome: 1 // 0)  # type: ignore[arg-type, return-value]
            assert await producer.flush(10) == 0
            assert (await producer.send("T", b"x")).ok

    with RawServer(ok) as server:
        asyncio.run(main(server.address))
    assert "ZeroDivisionError" in caplog.text


def test_exception_of_a_callback_ends_no_other_send() -> None:
    """CancelledError is no Exception: out of a protocol it would end the connection, and all that waits there."""

    def cancelled(outcome: object) -> None:
        raise asyncio.CancelledError

    async def main(address: str) -> None:
        async with AsyncProducer("g", address) as producer:
            await producer.send("T", b"the route, the connection")
            producer.send_nowait(Message("T", b"x"), on_done=cancelled)
            assert (await producer.send("T", b"y")).ok

    held: list[RemotingCommand] = []

    def both_at_once(one: Connection, request: RemotingCommand) -> None:
        if bytes(request.body) == b"x":
            held.append(request)
            return
        one.send(b"".join(encode(each.response(0, dict(SEND_OK))) for each in (*held, request)))

    with RawServer(both_at_once) as server:
        asyncio.run(main(server.address))
        assert len(server.requests) == 3
        assert len(server.connections) == 1


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), ValueError()], ids=lambda one: type(one).__name__
)
def test_the_loop_of_all_sync_clients_outlives_a_callback_of_a_future(error: BaseException) -> None:
    may_answer, called = threading.Event(), threading.Event()

    def serve(one: Connection, request: RemotingCommand) -> None:
        assert may_answer.wait(20)
        one.answer(request)

    def callback(future: object) -> None:
        called.set()
        raise error

    with RawServer(serve) as server, Producer("g", server.address) as producer:
        future = producer.send_future(Message("T", b"x"))
        future.add_done_callback(callback)
        may_answer.set()
        assert called.wait(20)
        assert future.result(20).ok
        assert producer.send_future(Message("T", b"x")).result(20).ok
        assert len(server.connections) == 1


# -- arguments ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, match",
    [
        ({"send_timeout": 3}, r"no setting is named 'send_timeout'; did you mean send_timeout_s\?"),
        ({"retrys": 3}, r"did you mean retries\?"),
        ({"send_timeout_s": 0}, "send_timeout_s: expected 0.001 to 86400 seconds, found 0"),
        ({"send_timeout_s": "3"}, "send_timeout_s: expected a number of seconds, found '3'"),
        ({"retries": -1}, "retries: expected 0 to 100"),
        ({"retries": True}, "retries: expected int"),
        ({"compression": "zlip"}, r"compression: expected zlib, lz4 or zstd, found 'zlip'; did you mean zlib\?"),
        ({"compress_level": 10}, "compress_level: expected 0 to 9 for zlib"),
        ({"max_message_bytes": 0}, "max_message_bytes: expected 1 to"),
        ({"credentials": ("a", "b")}, "credentials: expected Credentials, found tuple"),
        ({"tls": "yes"}, "tls: expected True, False or an ssl.SSLContext"),
        ({"namespace": ""}, "namespace: expected a text"),
        ({"latency_fault": "6"}, "latency_fault: expected True, False"),
        ({"namespace": "a b"}, "namespace: expected the characters"),
        ({"latency_fault": []}, "latency_fault: expected True, False"),
        ({"hooks": ClientHook()}, "hooks: expected a list, found ClientHook"),
        ({"retry_response_codes": 3}, "retry_response_codes: expected a list, found int"),
        ({"max_message_bytes": 1 << 30}, "max_message_bytes: expected 1 to 16711680 bytes, found 1073741824"),
        ({"hooks": [object()]}, "hooks: expected ClientHook objects"),
        ({"selector": 5}, "selector: expected a function"),
        ({"retry_response_codes": ["2"]}, "retry_response_codes: expected response codes"),
        ({"group": ""}, "group: expected 1 to 120"),
        ({"group": "a b"}, "group: expected 1 to 120"),
        ({"group": "x" * 121}, "found 121"),
        ({"group": 5}, "group: expected str"),
        ({"group": "DEFAULT_PRODUCER"}, "reserves"),
        ({"namesrv_addr": "a:b:c:"}, "namesrv_addr"),
        ({"namesrv_addr": 5}, "namesrv_addr: expected text or a list"),
    ],
)
@pytest.mark.parametrize("kind", [Producer, AsyncProducer])
def test_wrong_arguments_are_refused(kind: Any, arguments: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        kind(**{"group": "g", "namesrv_addr": "127.0.0.1:9876", **arguments})


def test_no_address_at_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(ConfigError, match="NAMESRV_ADDR"):
        Producer("g")


@pytest.mark.parametrize(
    "arguments, keywords, match",
    [
        ((Message("T", b"x"), b"y"), {}, "expected a Message alone"),
        ((Message("T", b"x"),), {"tags": "a"}, "expected a Message alone"),
        (("T",), {}, "expected a Message, or topic and body"),
        (("T", b"x"), {"timeout_s": 0}, "timeout_s: expected 0.001"),
        (("T", b"x"), {"queue": MessageQueue("U", "b", 0)}, "queue of topic 'T'"),
        (("T", b"x"), {"queue": MessageQueue("T", "b", -1)}, "queue_id of 0 or more, found -1"),
        (("T", b"x"), {"queue": MessageQueue("T", "b", "0")}, "queue_id of 0 or more, found '0'"),  # type: ignore[arg-type]
        (("T", b"x"), {"keys": 3}, "keys: expected a str or several, found int"),
        (("T", b"x"), {"queue": MessageQueue("T", "b", 0), "selector": max}, "found both"),
        (("T", b"x"), {"selector": 5}, "selector: expected a function"),
    ],
)
def test_wrong_sends_are_refused(arguments: Any, keywords: Any, match: str) -> None:
    with RawServer(ok) as server, Producer("g", server.address) as producer:
        with pytest.raises((UsageError, MessageIllegal), match=match):
            producer.send(*arguments, **keywords)
        assert not server.requests


def test_single_message_is_refused_as_a_batch() -> None:
    one: Any = Message("T", b"x")
    with RawServer(ok) as server, Producer("g", server.address) as producer:
        with pytest.raises(MessageIllegal, match="messages: expected several, found Message"):
            producer.send_batch(one)
        with pytest.raises(MessageIllegal, match="messages: expected several, found Message"):
            list(producer.send_many(one))
        assert not server.requests


def test_a_producer_by_javas_names() -> None:
    with RawServer(ok) as server:
        producer = Producer.from_java(
            {
                "producerGroup": "g",
                "namesrvAddr": server.address,
                "sendMsgTimeout": 1500,
                "retryTimesWhenSendFailed": "5",
                "compressMsgBodyOverHowmuch": 100,
                "maxMessageSize": 1000,
                "accessKey": "ak",
                "secretKey": "sk",
                "retryAnotherBrokerWhenNotStoreOK": "true",
            }
        )
        with producer:
            producer.send("T", b"x" * 500)
            assert server.requests[-1].ext_fields["f"] == str(0x301)
            assert server.requests[-1].ext_fields["AccessKey"] == "ak"
            with pytest.raises(MessageTooLarge, match="at most 1000"):
                producer.send("T", bytes(1001))
            server.serve = lambda one, request: one.answer(request, 2)
            server.requests.clear()
            with pytest.raises(SendFailed, match="6 attempts"):
                producer.send("T", b"x")


@pytest.mark.parametrize(
    "settings, match",
    [
        (
            {"producerGroup": "g", "sendMsgTimout": 3},
            r"no setting is named 'sendMsgTimout'; did you mean sendMsgTimeout\?",
        ),
        ({"sendMsgTimeout": 3}, "expected producerGroup, found none"),
        ({"producerGroup": "g", "sendMsgTimeout": "soon"}, "sendMsgTimeout: expected a whole number"),
        ({"producerGroup": "g", "useTLS": "maybe"}, "useTLS: expected true or false"),
        ({"producerGroup": "g", "accessKey": "a"}, "expected both"),
        (
            {"producerGroup": "g", "retryTimesWhenSendFailed": 1, "retryTimesWhenSendAsyncFailed": 2},
            "expected one value",
        ),
    ],
)
def test_wrong_names_of_java_are_refused(settings: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        Producer.from_java(settings)


def test_a_busy_broker_at_the_only_attempt() -> None:
    with RawServer(lambda one, request: one.answer(request, 2, remark="[TIMEOUT_CLEAN_QUEUE]broker busy")) as server:
        with Producer("g", server.address, retries=0) as producer:
            with pytest.raises(BrokerBusy, match="TIMEOUT_CLEAN_QUEUE"):
                producer.send("T", b"x")


def test_results_of_many_threads_are_counted() -> None:
    with RawServer(ok) as server, Producer("g", server.address) as producer:
        results: list[SendResult] = []
        work = lambda: results.extend(producer.send("T", b"x") for _ in range(25))  # noqa: E731
        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(60)
        assert len({one.msg_id for one in results}) == 200
        assert producer.stats()["sent"] == 200
