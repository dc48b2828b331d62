"""What a slave has of its master besides the log: offsets, delays, the timer, modes; and what it may claim of them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from broker.two_brokers import as_slave, end_of, name_server, pull, run, until
from nonsense_server import Nonsense
from running import Running, running_broker

from mqfast.broker.pop.check_point import REVIVE_GROUP
from mqfast.broker.replication import metadata_sync as table_sync
from mqfast.broker.replication.epoch_check import Told
from mqfast.broker.replication.metadata_sync import name_new_topics
from mqfast.errors import MqfastError
from mqfast.ha.epoch_file import EpochEntry
from mqfast.ha.slave import Followed
from mqfast.remoting.codes import RequestCode
from mqfast.schedule.timer.checkpoint import TimerCheckpoint, load_checkpoint, write_checkpoint

LEVELS = {"messageDelayLevel": "1s 2s"}


def timed(in_ms: int) -> str:
    return f"TIMER_DELIVER_MS\x01{time.time_ns() // 1_000_000 + in_ms}\x02"


def checkpoint_of(one: Running) -> TimerCheckpoint:
    store = one.context.store
    return load_checkpoint(store.log.os_api, store.paths.timer_check) or TimerCheckpoint()


async def delivered(one: Running, topic: str) -> int:
    return await asyncio.to_thread(one.context.store.max_offset, topic, 0)


@contextlib.asynccontextmanager
async def gate(port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port that leads to another one. Before its event is set, only a master's history comes through."""
    is_open = asyncio.Event()
    copies: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, waits: bool) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if waits and not is_open.is_set():
                head = await reader.readexactly(12)
                writer.write(head + await reader.readexactly(int.from_bytes(head[8:], "big")))
                await is_open.wait()
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def lead(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", port)
        up, down = copy(reader, outer, waits=False), copy(inner, writer, waits=True)
        copies.update(asyncio.ensure_future(one) for one in (up, down))

    server = await asyncio.start_server(lead, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], is_open
    server.close()
    for one in copies:
        one.cancel()
    await asyncio.gather(*copies, return_exceptions=True)


def test_a_timed_message_is_delivered_once_also_by_a_slave_that_becomes_the_master(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
                due_ms = time.time_ns() // 1_000_000 + 1500
                assert (await master.send("T", b"near", properties=timed(1500))).code == 0
                assert (await master.send("T", b"far", properties=timed(3_600_000))).code == 0
                async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                    await until(lambda: master.context.store.max_offset("T", 0) == 1)
                    await until(lambda: checkpoint_of(slave).master_queue_offset == 2)
                    kept = checkpoint_of(slave)
                    assert kept.is_of_master
                    assert (kept.flushed, kept.queue_offset) == (0, 0)
                    assert kept.read_ms <= checkpoint_of(master).read_ms
                    await until(lambda: checkpoint_of(slave).read_ms >= due_ms)
                    await until(lambda: end_of(slave) == end_of(master))
            an_hour = 3_600_000
            now_ms = lambda: time.time_ns() // 1_000_000 + an_hour  # noqa: E731
            async with running_broker(tmp_path / "s", now_ms=now_ms) as former_slave:
                await until(lambda: former_slave.context.store.max_offset("T", 0) == 2)
                found = former_slave.context.store.get("T", 0, 0)
                assert [bytes(one.body) for one in found] == [b"near", b"far"]
                assert await delivered(former_slave, "rmq_sys_wheel_timer") == 2

    run(flow)


def test_a_slave_claims_nothing_that_its_log_does_not_have(tmp_path: Path) -> None:
    """The tables come over another connection than the log, and may be ahead of it."""

    async def flow() -> None:
        async with (
            name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "m", namesrvAddr=namesrv, **LEVELS) as master,
            gate(master.parts.replicas.port) as (port, opens),
        ):
            for number in range(3):
                assert (await master.send("T", b"%d" % number)).code == 0
            assert (await pull(master, "T")).code == 0  # the group is made
            committed = await master.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="T", queueId=0, commitOffset=3
            )
            assert committed.code == 0
            assert (await master.send("T", b"later", properties="DELAY\x011\x02")).code == 0
            await until(lambda: master.context.store.max_offset("T", 0) == 4)
            await until(lambda: master.context.tables.delays.offsets() == {1: 1})
            master.context.offsets.commit(REVIVE_GROUP, "T", 0, 3)
            settings = as_slave(namesrv, haMasterAddress=f"127.0.0.1:{port}", **LEVELS)
            async with running_broker(tmp_path / "s", **settings) as slave:
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.offsets.get("readers", "T", 0) >= 0)
                assert slave.context.offsets.get("readers", "T", 0) == 0  # the master consumed 3
                assert slave.context.offsets.get(REVIVE_GROUP, "T", 0) == -1  # 0: the first record is processed
                assert slave.context.tables.delays.offsets() == {}
                opens.set()
                await until(lambda: end_of(slave) == end_of(master))
                await until(lambda: slave.context.tables.delays.offsets() == {1: 1})
                await until(lambda: slave.context.offsets.get("readers", "T", 0) == 3)
                await until(lambda: slave.context.offsets.get(REVIVE_GROUP, "T", 0) == 3)

    run(flow)


def test_a_slave_hears_at_once_how_far_a_delay_level_is(tmp_path: Path) -> None:
    """Without this, a slave that becomes the master delivers once more what its master delivered since its last sync of
    the disk.
    """

    async def flow() -> None:
        rare = {"flushIntervalCommitLog": 3_600_000, "flushCommitLogThoroughInterval": 3_600_000}
        async with name_server(tmp_path) as namesrv:
            settings = {"namesrvAddr": namesrv, **LEVELS, **rare}
            async with running_broker(tmp_path / "m", **settings) as master:
                async with running_broker(tmp_path / "s", **as_slave(namesrv, **LEVELS)) as slave:
                    assert (await master.send("T", b"later", properties="DELAY\x011\x02")).code == 0
                    await until(lambda: slave.context.store.max_offset("T", 0) == 1)
                    assert master.context.tables.delays.offsets() == {}
                    await until(lambda: slave.context.tables.delays.offsets() == {1: 1})
            async with running_broker(tmp_path / "s", **LEVELS) as former_slave:
                delays = former_slave.parts.delays
                assert delays.is_delivering
                assert delays.service.offset(1) == 1
                assert await delivered(former_slave, "T") == 1, "its first turn is over"

    run(flow)


def test_a_slave_has_modes_and_what_is_deleted_at_the_master_goes(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            for topic in ("T", "U"):
                await master.send(topic, b"x")
            body = json.dumps({"topic": "T", "consumerGroup": "g", "mode": "PULL"}).encode()
            assert (await master.call(RequestCode.SET_MESSAGE_REQUEST_MODE, body)).code == 0
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                await until(lambda: "U" in slave.context.tables.topics)

                async def modes() -> bytes:
                    return bytes((await slave.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)).body)

                async with asyncio.timeout(100):
                    while b'"consumerGroup":"g"' not in await modes():
                        await asyncio.sleep(0.05)
                assert (await master.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="U")).code == 0
                await until(lambda: "U" not in slave.context.tables.topics)

    run(flow)


def test_what_is_forbidden_to_a_group_at_the_master_is_forbidden_at_the_slave_that_follows(tmp_path: Path) -> None:
    async def flow() -> None:
        async with (
            name_server(tmp_path) as namesrv,
            running_broker(tmp_path / "m", namesrvAddr=namesrv) as master,
            running_broker(tmp_path / "s", **as_slave(namesrv)) as slave,
        ):
            assert (await master.call(353, group="g", topic="T", readable="false")).code == 0
            await until(lambda: not slave.context.groups.may_read("g", "T"))
            assert slave.context.groups.table.data_version == master.context.groups.table.data_version
            assert (await master.call(353, group="g", topic="T", readable="true")).code == 0
            await until(lambda: slave.context.groups.may_read("g", "T"))

    run(flow)


def test_a_master_that_changes_while_the_one_before_is_asked_is_asked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            sync, asked = slave.parts.replicas._sync, []
            assert sync is not None

            async def ask(master: str) -> None:
                asked.append(master)
                if master == "old:1":
                    sync.set_master("new:1")

            monkeypatch.setattr(table_sync, "_INTERVAL_S", 3600.0)
            monkeypatch.setattr(sync, "sync_once", ask)
            sync.set_master("old:1")
            await until(lambda: asked == ["old:1", "new:1"])

    run(flow)


def test_what_another_master_delivered_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1, timerWheelEnable=False, **LEVELS) as slave:
            sync = slave.parts.replicas._sync
            assert sync is not None

            async def ask(master: str, _code: int, kind: type[Any]) -> Any:
                return kind({1: 50 if master == "old:1" else 3})

            async def bounds(master: str) -> tuple[int, int]:
                return 0, 100 if master == "old:1" else 0

            monkeypatch.setattr(sync, "_request", ask)
            monkeypatch.setattr(sync, "_bounds", bounds)
            await sync._sync_deliveries("old:1", {})
            assert slave.context.tables.delays.offsets() == {}, "the log does not go so far"
            await sync._sync_deliveries("new:1", {})
            assert slave.context.tables.delays.offsets() == {1: 3}

    run(flow)


def test_an_answer_of_the_master_before_says_nothing_of_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            sync = slave.parts.replicas._sync
            assert sync is not None
            sync.master = "old:1"

            async def epochs(_client: object, _address: str) -> Told:
                sync.set_master("new:1")
                return Told([EpochEntry(1, 0)])

            monkeypatch.setattr(table_sync, "epochs_of", epochs)
            with contextlib.suppress(MqfastError):
                await sync.sync_once("old:1")
            assert sync._has_old_epoch is None, "nobody knows yet"

    run(flow)


_RIGHT = {
    RequestCode.GET_BROKER_EPOCH_CACHE: b'{"epochList":[{"epoch":3,"startOffset":0}]}',
    RequestCode.GET_BROKER_RUNTIME_INFO: b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"0"}}',
    RequestCode.GET_ALL_TOPIC_CONFIG: b'{"dataVersion":{"counter":7},"topicConfigTable":{"T":{"perm":6}}}',
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: b'{"dataVersion":{"counter":7},"subscriptionGroupTable":{}}',
    RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@g":{"0":0}}}',
    RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{"1":0}}',
    RequestCode.GET_TIMER_CHECK_POINT: bytes(32),
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: b"{}",
}
_WRONG = [
    (RequestCode.GET_BROKER_EPOCH_CACHE, b'{"epochList":[{"epoch":5,"startOffset":9},{"epoch":7,"startOffset":4}]}'),
    (RequestCode.GET_BROKER_EPOCH_CACHE, b'{"epochList":[{"epoch":5,"startOffset":-9}]}'),
    (RequestCode.GET_BROKER_RUNTIME_INFO, b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"-1"}}'),
    (RequestCode.GET_BROKER_RUNTIME_INFO, b'{"table":{"commitLogMinOffset":"x"}}'),
    (RequestCode.GET_ALL_TOPIC_CONFIG, b'{"dataVersion":null,"topicConfigTable":{"T":1}}'),
    (RequestCode.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{"x":1}}'),
    (RequestCode.GET_TIMER_CHECK_POINT, bytes(31)),
    (RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, b'{"messageRequestModeMap":[]}'),
    *((code, body) for code in _RIGHT for body in (b"", b"[]", b"\xff{")),
]


def test_a_master_that_answers_nonsense_is_asked_again(tmp_path: Path) -> None:
    async def flow(master: Nonsense) -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1, **LEVELS) as slave:
            sync, tables = slave.parts.replicas._sync, slave.context.tables
            assert sync is not None
            sync.master = master.address
            sync.followed = lambda: Followed(1, "")
            for code, body in _WRONG:
                master.answers = {one: (0, {}, right) for one, right in _RIGHT.items()}
                master.answers[code] = (0, {}, body)
                with pytest.raises(MqfastError):
                    await sync.sync_once(master.address)
            master.answers = {one: (0, {}, right) for one, right in _RIGHT.items()}
            await sync.sync_once(master.address)
            assert "T" in tables.topics

    with Nonsense() as master:
        run(lambda: flow(master))


def test_a_transaction_has_ended_when_the_log_of_the_slave_says_so(tmp_path: Path) -> None:
    """Its message comes with the log; a slave that leads before would neither have that nor ask the producer."""
    half, group = "RMQ_SYS_TRANS_HALF_TOPIC", "CID_RMQ_SYS_TRANS"

    async def flow(master: Nonsense) -> None:
        async with running_broker(tmp_path) as one:
            properties = "TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            assert (await one.send("T", b"x", f=4, properties=properties)).code == 0
            assert one.context.store.max_offset(half, 0) == 1
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            sync, end = slave.parts.replicas._sync, end_of(slave)
            assert sync is not None
            sync.master = master.address
            sync.followed = lambda: Followed(1, "")
            master.answers = {one: (0, {}, right) for one, right in _RIGHT.items()}
            offsets = b'{"offsetTable":{"%s@%s":{"0":1}}}' % (half.encode(), group.encode())
            master.answers[RequestCode.GET_ALL_CONSUMER_OFFSET] = (0, {}, offsets)
            for further, noted in ((1, 0), (0, 1)):
                bounds = b'{"table":{"commitLogMinOffset":"0","commitLogMaxOffset":"%d"}}' % (end + further)
                master.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = (0, {}, bounds)
                sync._delivered = None
                await sync.sync_once(master.address)
                assert max(0, slave.context.offsets.get(group, half, 0)) == noted

    with Nonsense() as master:
        run(lambda: flow(master))


def test_an_error_of_any_kind_does_not_end_the_asking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            sync, asked = slave.parts.replicas._sync, []
            assert sync is not None

            async def ask(master: str) -> None:
                asked.append(master)
                raise ValueError(master)

            monkeypatch.setattr(table_sync, "_INTERVAL_S", 0.01)
            monkeypatch.setattr(sync, "sync_once", ask)
            sync.set_master("no address")
            await until(lambda: len(asked) > 2)

    run(flow)


def test_tables_claim_nothing_of_a_log_that_was_cut(tmp_path: Path) -> None:
    """What a master noted of messages that its slave never had must not hide those that come in their place."""

    async def flow() -> None:
        async with running_broker(tmp_path, **LEVELS) as one:
            for number in range(4):
                assert (await one.send("T", b"%d" % number)).code == 0
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1, **LEVELS) as slave:
            context, raw = slave.context, slave.context.engine.raw
            raw.master_flushed_offset = raw.end
            context.offsets.commit("g", "T", 0, 4)
            context.tables.delays.set(1, 9)
            os_api, timer = context.store.log.os_api, context.store.paths.timer_check
            write_checkpoint(
                os_api, timer, TimerCheckpoint(read_ms=5, flushed=100, queue_offset=7, master_queue_offset=7)
            )
            end = raw.last_boundary(raw.end // 2)
            kept = sum(one.physical_offset < end for one in context.store.get("T", 0, 0))
            assert 0 < kept < 4
            await asyncio.to_thread(raw.truncate_to, end)
            slave.parts.replicas._on_truncated(end)
            assert context.offsets.get("g", "T", 0) == kept
            assert context.tables.delays.get(1) == 0
            assert checkpoint_of(slave).is_of_master, "everything is parked anew"
            path = context.config.store_path
        assert f"0:{kept}" in Path(path, "config", "consumerOffset.json").read_text().replace(" ", "")

    run(flow)


def test_a_slave_knows_after_a_restart_up_to_where_topics_were_told(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path) as one:
            assert (await one.send("T", b"x")).code == 0
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            raw = slave.context.engine.raw
            raw.master_flushed_offset = end = raw.end
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            assert slave.parts.replicas.topics_end == end
            async with slave.context.topics.leaving("T"):
                pass
            name_new_topics(slave.context, end)
            assert slave.context.topics.get("T") is None
            name_new_topics(slave.context, end - 1)
            assert slave.context.topics.get("T") is None
            name_new_topics(slave.context, 0)
            assert slave.context.topics.get("T") is not None

    run(flow)


def test_a_topic_that_is_younger_than_the_tables_is_there_after_a_promotion(tmp_path: Path) -> None:
    """A topic that was deleted at the master is not: its last message is older than the tables."""

    few = {"autoCreateTopicEnable": False, "defaultTopicQueueNums": 2}

    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
                for topic in ("Old", "Known"):
                    assert (await master.send(topic, b"x")).code == 0
                async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                    await until(lambda: {"Old", "Known"} <= set(slave.context.tables.topics))
                    assert (await master.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Old")).code == 0
                    await until(lambda: "Old" not in slave.context.tables.topics)
                    sync = slave.parts.replicas._sync
                    assert sync is not None
                    await sync.stop()
                    assert (await master.send("Young", b"young", queue_id=7, queues=8)).code == 0
                    await until(lambda: end_of(slave) == end_of(master))
                    assert "Young" not in slave.context.tables.topics
            async with running_broker(tmp_path / "s", namesrvAddr=namesrv, **few) as former_slave:
                topics = former_slave.context.tables.topics
                assert ("Old" in topics, "Known" in topics, "Young" in topics) == (False, True, True)
                found = former_slave.context.topics.get("Young")
                assert found is not None
                assert (found.perm, found.write_queue_nums) == (6, 8)
                pulled = await pull(former_slave, "Young", queue_id=7)
                assert (pulled.code, b"young" in bytes(pulled.body)) == (0, True)
                route = await former_slave.client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Young"})
                assert former_slave.address.encode() in bytes(route.body)
                assert (await former_slave.send("Young", b"more")).code == 0

    run(flow)
