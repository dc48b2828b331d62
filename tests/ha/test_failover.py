"""Two brokers and a real etcd: one master at a time, taken over in time, no acknowledged message lost."""

from __future__ import annotations

import asyncio
import errno
import shutil
import subprocess
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_ports
from ha.etcd_members import NEEDS_ETCD, one_etcd
from ha.failover_pairs import CALL_MS, cut_off, in_sync, pair, until
from running import broker_config

from mqfast.broker.replication import failover_broker as failover
from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.broker.replication.metadata_sync import TableSync
from mqfast.errors import ConfigError, FieldError
from mqfast.ha.failover.etcd import Compare, Etcd, EtcdUnreachable
from mqfast.remoting.codes import RequestCode, ResponseCode

WATCH_S = failover._WATCH_S


@NEEDS_ETCD
def test_a_slave_takes_over_once_the_old_master_refuses_and_the_old_master_follows(tmp_path: Path) -> None:
    """How long it takes: test_failover_partitions.py."""

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            sent = [f"m{number}".encode() for number in range(50)]
            for body in sent:
                assert await both.send(1, body) == ResponseCode.SUCCESS
            assert await both.send(2, b"to the slave") == ResponseCode.SERVICE_NOT_AVAILABLE
            cut_off(one)
            began = time.monotonic()
            while await both.send(2, b"after") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.01)
            assert await both.send(1, b"too late") == ResponseCode.SERVICE_NOT_AVAILABLE
            refuses_ms = (time.time() + one.right.left_s) * 1000
            assert refuses_ms > 0, "the time of the last renewal is known"
            taken_ms = two.broker.context.store.get("T", 0, 50)[0].store_timestamp
            assert taken_ms > refuses_ms, "the old master refuses before the new one takes"
            await both.is_named(two)
            await until(lambda: one.broker.parts.replicas.fenced)
            one._tasks[0] = asyncio.ensure_future(one._run())
            await until(lambda: one.broker.config.is_slave and in_sync(two) == {1, 2})
            for body in (b"again", b"and again"):
                assert await both.send(2, body) == ResponseCode.SUCCESS
            await until(lambda: len(both.bodies(1)) == len(both.bodies(2)) == 53)
            assert both.bodies(1) == both.bodies(2) == [*sent, b"after", b"again", b"and again"]
            assert [entry.epoch for entry in two.broker.parts.replicas.epochs.file.entries] == [1, 2]
            began = time.monotonic()
            await both.stop(2)  # in order: the lease is given back
            while await both.send(1, b"last") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.01)

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_slave_that_lacks_messages_does_not_take_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The set in etcd has the master alone once the slave was away for long; its messages come back with it."""

    async def flow() -> None:
        async with pair(tmp_path, slaveTimeout=CALL_MS) as both:
            one, _ = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            await both.stop(2)
            codes = [await both.send(1, b"x")]
            await until(lambda: in_sync(one) == {1})
            codes.append(await both.send(1, b"acknowledged by one"))
            assert codes == [ResponseCode.SUCCESS, ResponseCode.SUCCESS], "the first one waited for the set to shrink"
            await both.stop(1)
            two = await both.start(2)
            await until(lambda: "may lack acknowledged messages: in sync are [1]" in caplog.text)
            assert not two.right.is_active
            assert two.broker.config.is_slave
            assert await both.send(2, b"x") == ResponseCode.SERVICE_NOT_AVAILABLE
            one = await both.start(1)
            await until(one.right.is_valid)
            assert await both.send(1, b"back") == ResponseCode.SUCCESS
            await until(lambda: both.bodies(2) == [b"x", b"acknowledged by one", b"back"])

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_master_with_a_failed_store_revokes_its_lease(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            one.broker.context.store.log.fail(errno.EIO)
            began = time.monotonic()
            while await both.send(2, b"y") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.01)
            await until(lambda: in_sync(two) == {1, 2})  # reopened, and recovered, as a slave
            assert one.broker.config.is_slave
            await until(lambda: both.bodies(1) == both.bodies(2))

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_failed_change_of_role_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The port is taken for a while when the slave becomes master."""

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            stop, taken, address = two.broker.stop, [], two.broker.address

            async def stop_and_lose_the_port() -> None:
                await stop()
                taken.append(await asyncio.start_server(lambda _, one: one.close(), *address))
                asyncio.get_running_loop().call_later(1.0, taken[0].close)

            monkeypatch.setattr(two.broker, "stop", stop_and_lose_the_port)
            await both.stop(1)
            began = time.monotonic()
            while await both.send(2, b"y") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.05)
            assert taken

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_broker_can_be_stopped_during_a_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            stop, begun, goes_on = two.broker.stop, asyncio.Event(), asyncio.Event()

            async def slowly() -> None:
                begun.set()
                await goes_on.wait()
                await stop()

            monkeypatch.setattr(two.broker, "stop", slowly)
            await both.stop(1)
            await asyncio.wait_for(begun.wait(), 300)
            asyncio.get_running_loop().call_later(0.3, goes_on.set)
            await asyncio.wait_for(both.stop(2), 300)
            await both.start(2)  # its store was closed

    asyncio.run(flow())


@NEEDS_ETCD
def test_an_unreplicated_topic_exists_after_the_take_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            asked = two.broker.parts.replicas._sync
            assert asked is not None

            async def nothing(_master: str) -> None:
                pass

            monkeypatch.setattr(asked, "sync_once", nothing)
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await until(lambda: two.broker.context.engine.raw.end == one.broker.context.engine.raw.end)
            await both.stop(1)
            await until(two.right.is_valid)
            topic = two.broker.context.topics.get("T")
            assert topic is not None
            assert topic.write_queue_nums == two.broker.config["defaultTopicQueueNums"]

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_topic_that_was_deleted_does_not_come_back_with_a_new_master(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await until(lambda: "T" in two.broker.context.tables.topics)
            address = "{}:{}".format(*one.broker.address)
            answer = await both.client.call(address, RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
            assert answer.code == ResponseCode.SUCCESS
            await until(lambda: "T" not in two.broker.context.tables.topics)
            await both.stop(1)
            await until(two.right.is_valid)
            assert two.broker.context.topics.get("T") is None
            assert two.broker.context.store.max_offset("T", 0) == 1

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_master_with_a_revoked_lease_accepts_messages_after_the_next_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets that one before the watch has seen the end of the first."""

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one = await both.start(1)
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            assert one._leader is not None
            epoch, lease = one._leader.epoch, one._leader.lease
            monkeypatch.setattr(failover, "_WATCH_S", 1.0)
            await asyncio.sleep(2 * WATCH_S)
            etcd = Etcd([both.etcd.endpoint], 2.0)
            await asyncio.to_thread(etcd.revoke, lease)
            etcd.close()
            await until(lambda: one.right.is_valid() and one.right.epoch > epoch)
            began = time.monotonic()
            while await both.send(1, b"y") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.05)
            assert both.bodies(1) == [b"x", b"y"]

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_new_slave_has_the_tables_before_it_may_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups would begin anew, behind messages that they never had."""
    refused: list[int] = []
    ask = TableSync._request

    async def without_offsets(self: TableSync, master: str, code: int, *more: Any, **named: Any) -> Any:
        if code == RequestCode.GET_ALL_CONSUMER_OFFSET:
            refused.append(code)
            raise FieldError("offsets", "an answer", "none")
        return await ask(self, master, code, *more, **named)

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one = await both.start(1)
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            with monkeypatch.context() as patched:
                patched.setattr(TableSync, "_request", without_offsets)
                two = await both.start(2)
                await until(lambda: len(both.bodies(2)) == 1 and two.broker.parts.replicas.epochs.last == 1)
                tried = len(refused)
                await until(lambda: len(refused) > tried)
                assert in_sync(one) == {1}
            await until(lambda: in_sync(one) == {1, 2})

    asyncio.run(flow())


@NEEDS_ETCD
def test_a_new_slave_has_the_whole_log_before_it_may_lead(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path, mappedFileSizeCommitLog=1 << 20) as both:
            one = await both.start(1)
            bodies = [b"%d " % number + bytes(100_000) for number in range(25)]
            for body in bodies:
                assert await both.send(1, body) == ResponseCode.SUCCESS
            assert one.broker.context.engine.raw.end > 2 << 20
            await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            await both.stop(1)
            began = time.monotonic()
            while await both.send(2, b"last") != ResponseCode.SUCCESS:
                assert time.monotonic() - began < 300
                await asyncio.sleep(0.01)
            await until(lambda: len(both.bodies(2)) > len(bodies))
            assert both.bodies(2) == [*bodies, b"last"]

    asyncio.run(flow())


@NEEDS_ETCD
def test_an_empty_store_under_the_name_of_a_member_does_not_lead(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def flow() -> None:
        async with pair(tmp_path, haMaxTimeSlaveNotCatchup=600_000) as both:
            one, _ = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await both.stop(2)
            await both.stop(1)
            shutil.rmtree(tmp_path / "b2")
            two = await both.start(2)
            await until(lambda: "may lack acknowledged messages: in sync are [1, 2]" in caplog.text)
            assert two.broker.config.is_slave
            assert not two.right.is_active

    asyncio.run(flow())


@NEEDS_ETCD
def test_broker_1_is_the_first_master_and_registers_only_when_it_accepts_messages(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path, brokerRole="ASYNC_MASTER") as both:
            two = await both.start(2)
            assert two.broker.config.is_slave
            one = await both.start(1)
            await until(one.right.is_valid)
            await both.is_named(one)
            assert await both.send(1, b"x") == ResponseCode.SUCCESS

    asyncio.run(flow())


@NEEDS_ETCD
def test_calls_of_etcd(tmp_path: Path) -> None:
    with one_etcd(tmp_path) as member:
        dead = f"127.0.0.1:{free_ports(1)}"
        no_name = "a" * 70
        etcd = Etcd([dead, no_name, member.endpoint], 1.0)
        assert etcd.read("a", "b") == [None, None]
        revision = etcd.write([Compare("a", 0)], [("a", b"one", 0), ("b", b"", 0)])
        assert revision is not None
        assert etcd.write([Compare("a", 0)], [("a", b"two", 0)]) is None
        second = etcd.write([Compare("a", revision, True)], [("a", b"two", 0)])
        assert second is not None
        found, other = etcd.read("a", "b")
        assert found == (b"two", revision, second, 0)
        assert other is not None
        lease = etcd.grant(60)
        assert etcd.keep_alive(lease) == 60
        etcd.write([], [("c", b"x", lease)])
        etcd.revoke(lease)
        etcd.revoke(lease)
        assert etcd.keep_alive(lease) == 0
        with pytest.raises(EtcdUnreachable, match="lease"):
            etcd.write([], [("c", b"x", lease)])
        assert etcd.read("c") == [None]
        member.end()
        began = time.monotonic()
        with pytest.raises(EtcdUnreachable, match=dead):
            etcd.read("a")
        assert time.monotonic() - began < 300
        etcd.close()


@pytest.mark.parametrize("text", [b"{}", b"[]", b'{"result": []}', b'{"code": null, "error": 1}', b"", b"\xff"])
def test_a_member_that_answers_nonsense_gave_no_answer(text: bytes) -> None:
    """A lease is renewed in a thread that would end otherwise."""

    class Nonsense(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        etcd = Etcd([f"127.0.0.1:{server.server_port}"], 5.0)
        calls: list[Callable[[], object]] = [
            lambda: etcd.keep_alive(1), lambda: etcd.grant(3), lambda: etcd.read("a", "b"),
        ]  # fmt: skip
        for call in calls:
            with pytest.raises(EtcdUnreachable):
                call()
        etcd.close()
        server.shutdown()


@NEEDS_ETCD
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not here to make certificates")
def test_etcd_over_tls(tmp_path: Path) -> None:
    files = (str(tmp_path / "etcd.pem"), str(tmp_path / "etcd.key"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=etcd", "-addext",
         "subjectAltName=IP:127.0.0.1", "-out", files[0], "-keyout", files[1]],
        check=True, capture_output=True,
    )  # fmt: skip

    async def flow(endpoint: str) -> None:
        settings = {"brokerId": 1, "listenPort": free_ports(8) + 4, "haEtcdEndpoints": endpoint}
        one = FailoverBroker(broker_config(tmp_path / "b1", **settings, haEtcdCaFile=files[0]))
        await one.start()
        await until(one.right.is_valid)
        await one.stop()
        stranger = FailoverBroker(broker_config(tmp_path / "b1", **settings))
        with pytest.raises(EtcdUnreachable, match="certificate"):
            stranger.etcd.read("x")
        stranger._close()

    with one_etcd(tmp_path, files) as member:
        asyncio.run(flow(member.endpoint))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"brokerId": 0}, "brokerId"),
        ({"brokerRole": "SLAVE"}, "brokerRole"),
        ({"listenPort": 0}, "listenPort"),
        ({"haMasterAddress": "127.0.0.1:10912"}, "haMasterAddress"),
        ({"haLeaseSeconds": 1}, "haLeaseSeconds"),
        ({"haLeaseMarginMs": 1500}, "haLeaseMarginMs"),
        ({"haEtcdEndpoints": "a:b"}, "haEtcdEndpoints"),
    ],
)
def test_settings_without_which_there_is_no_failover(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    given = {"brokerId": 1, "listenPort": 10911, "haEtcdEndpoints": "127.0.0.1:1", **settings}

    async def make() -> None:
        FailoverBroker(broker_config(tmp_path, **given))

    with pytest.raises(ConfigError, match=named):
        asyncio.run(make())
