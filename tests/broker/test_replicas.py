"""A master and a slave as brokers with a name server: one log, one set of tables, reads without the master."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path

import pytest
from broker.two_brokers import as_slave, end_of, name_server, pull, run, until
from running import broker_config, running_broker

from mqfast.broker.server import Broker
from mqfast.errors import ConfigError
from mqfast.remoting.codes import RequestCode

KNOWN = {"haAllowedAddresses": "127.0.0.1"}  # no name server names the slaves of these tests


def test_a_slave_has_messages_topics_groups_and_offsets(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            answer = await master.send("T", b"first")
            assert answer.code == 0
            assert (await pull(master, "T")).code == 0  # the group is made
            await master.call(
                RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup="readers", topic="T", queueId=0, commitOffset=1
            )
            async with running_broker(tmp_path / "s", **as_slave(namesrv, slaveReadEnable=True)) as slave:
                await until(lambda: end_of(slave) == end_of(master))
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.offsets.get("readers", "T", 0) == 1)
                await until(lambda: slave.context.store.max_offset("T", 0) == 1)
                found = await pull(slave, "T")
                assert (found.code, b"first" in bytes(found.body)) == (0, True)
                refused = await slave.send("T", b"no")
                assert refused.code == 14
                status = await master.call(907)
                assert b'"inSyncSlaveNums":1' in status.body
                route = await master.client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
                assert slave.address.encode() in route.body
                assert master.address.encode() in route.body
                await master.broker.stop()
                found = await pull(slave, "T")
                assert (found.code, b"first" in bytes(found.body)) == (0, True)

    run(flow)


def test_a_slave_without_the_message_at_an_offset_sends_the_group_back_to_the_master(tmp_path: Path) -> None:
    """It began later, or is behind: nothing is passed over, and nothing comes again."""

    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            while end_of(master) <= 1 << 20:
                assert (await master.send("T", bytes(100_000))).code == 0
            async with running_broker(tmp_path / "s", **as_slave(namesrv, slaveReadEnable=True)) as slave:
                await until(lambda: "T" in slave.context.tables.topics)
                end = master.context.store.max_offset("T", 0)
                await until(lambda: slave.context.store.max_offset("T", 0) == end)
                first = slave.context.store.min_offset("T", 0)
                assert 1 < first < end, "a slave without a log begins with the last file of its master"
                for offset, code in ((1, 20), (first, 0), (end, 19), (end + 5, 20)):
                    found = await pull(slave, "T", offset)
                    assert (found.code, found.ext_fields["suggestWhichBrokerId"]) == (code, "0")
                    if code != 0:
                        assert found.ext_fields["nextBeginOffset"] == str(offset)
                assert (await pull(master, "T", 1)).code == 0
                assert (await pull(master, "T", end + 5)).code == 21

    run(flow)


def test_a_slave_locks_no_queues(tmp_path: Path) -> None:
    """Else a client that does not know the new master yet reads a queue beside one that does."""

    async def flow() -> None:
        queue = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
        body = json.dumps({"clientId": "c", "consumerGroup": "g", "mqSet": [queue]}).encode()
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            assert (await master.send("T", b"x")).code == 0
            group = {"groupName": "g", "subscriptionDataSet": []}
            heartbeat = json.dumps({"clientID": "c", "consumerDataSet": [group]}).encode()
            assert (await master.call(RequestCode.HEART_BEAT, heartbeat)).code == 0
            granted = await master.call(RequestCode.LOCK_BATCH_MQ, body)
            assert (granted.code, json.loads(granted.body)) == (0, {"lockOKMQSet": [queue]})
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                refused = await slave.call(RequestCode.LOCK_BATCH_MQ, body)
                assert (refused.code, "master" in refused.remark) == (1, True)
                assert (await slave.call(RequestCode.UNLOCK_BATCH_MQ, body)).code == 0

    run(flow)


def test_a_slave_that_is_not_read_from_names_the_master_and_the_same_offset(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv) as master:
            await master.send("T", b"first")
            async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                await until(lambda: "T" in slave.context.tables.topics)
                await until(lambda: slave.context.store.max_offset("T", 0) == 1)
                found = await pull(slave, "T")
                assert found.code == 20
                assert found.ext_fields["suggestWhichBrokerId"] == "0"
                assert found.ext_fields["nextBeginOffset"] == "0"

    run(flow)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_sync_master_answers_when_its_slave_has_the_message(tmp_path: Path, flush: str) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 9000, "flushDiskType": flush}
        async with name_server(tmp_path) as namesrv:
            async with running_broker(tmp_path / "m", namesrvAddr=namesrv, **settings) as master:
                alone = await master.send("T", b"alone")
                assert alone.code == 11  # SLAVE_NOT_AVAILABLE
                assert alone.ext_fields["queueOffset"] == "0"
                assert (await master.send("T", b"waits not", properties="WAIT\x01false\x02")).code == 0
                async with running_broker(tmp_path / "s", **as_slave(namesrv)) as slave:
                    await until(lambda: end_of(slave) == end_of(master))
                    await until(lambda: master.parts.replicas.in_sync() == 1)
                    for number in range(20):
                        assert (await master.send("T", b"%d" % number)).code == 0
                        assert end_of(slave) == end_of(master)

    run(flow)


def test_every_answer_of_a_sync_master_waits_also_for_plain_messages_to_known_topics(tmp_path: Path) -> None:
    """Those have a short way through the broker."""

    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 50, **KNOWN}
        async with running_broker(tmp_path / "m", **settings) as master:
            codes = [(await master.send("T", b"x", properties=f"UNIQ_KEY\x01{n:032X}\x02")).code for n in range(4)]
            assert codes == [11] * 4
            wait = "WAIT\x01{}\x02UNIQ_KEY\x01k\x02"
            codes = [(await master.send("T", b"x", properties=wait.format(n))).code for n in ("true", "false", "TRUE")]
            assert codes == [11, 0, 11]
            _, writer = await asyncio.open_connection("127.0.0.1", master.parts.replicas.port)
            writer.write(bytes(8))
            await until(lambda: master.parts.replicas.in_sync() == 1)
            codes = [(await master.send("T", b"x", properties=f"UNIQ_KEY\x01{n:032X}\x02")).code for n in range(4)]
            assert codes == [12] * 4
            writer.close()

    run(flow)


def test_a_slave_that_does_not_confirm_in_time(tmp_path: Path) -> None:
    async def flow() -> None:
        settings = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2, "slaveTimeout": 50, **KNOWN}
        async with running_broker(tmp_path / "m", **settings) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", master.parts.replicas.port)
            writer.write(bytes(8))  # a slave that reports once, and never again
            await until(lambda: master.parts.replicas.in_sync() == 1)
            assert (await master.send("T", b"x")).code == 12  # FLUSH_SLAVE_TIMEOUT
            writer.close()

    run(flow)


def test_settings_of_acknowledgements_act_at_once(tmp_path: Path) -> None:
    """inSyncReplicas and slaveTimeout of a running master, also for plain messages and for a send that waits."""

    async def flow() -> None:
        async with running_broker(tmp_path / "m", brokerRole="SYNC_MASTER", slaveTimeout=90_000, **KNOWN) as master:
            plain = {"properties": f"UNIQ_KEY\x01{7:032X}\x02"}

            async def change(text: bytes) -> None:
                assert (await master.call(RequestCode.UPDATE_BROKER_CONFIG, text)).code == 0

            assert (await master.send("T", b"x", **plain)).code == 0
            await change(b"inSyncReplicas=2")
            assert (await master.send("T", b"x", **plain)).code == 11, "no slave is there"
            _, writer = await asyncio.open_connection("127.0.0.1", master.parts.replicas.port)
            writer.write(bytes(8))  # a slave that reports once, and never again
            await until(lambda: master.parts.replicas.in_sync() == 1)
            waiting = asyncio.ensure_future(master.send("T", b"waits", **plain))
            await until(lambda: master.context.store.max_offset("T", 0) == 3)
            await change(b"inSyncReplicas=1")
            assert (await waiting).code == 0, "nobody is waited for any more"
            assert (await master.send("T", b"x", **plain)).code == 0
            await change(b"inSyncReplicas=2\nslaveTimeout=50")
            assert (await master.send("T", b"x", **plain)).code == 12
            await change(b"haMaxGapNotInSync=1")
            assert (await master.send("T", b"x", **plain)).code == 11, "it is too far behind to count"
            writer.close()

    run(flow)


def test_the_loop_turns_while_the_thread_of_a_slave_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path, brokerRole="SLAVE", brokerId=1) as slave:
            thread, turned, seen = slave.parts.replicas._slave, threading.Event(), []
            assert thread is not None
            stop = thread.stop

            def slowly() -> None:
                seen.append(turned.wait(60))
                stop()

            monkeypatch.setattr(thread, "stop", slowly)
            asyncio.get_running_loop().call_later(0.01, turned.set)
            await slave.parts.replicas.stop()
            assert seen == [True]

    run(flow)


def test_a_slave_needs_a_number(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="brokerId: expected at least 1 for a slave"):
        Broker(broker_config(tmp_path, brokerRole="SLAVE"))
    with pytest.raises(ConfigError, match="haMasterAddress"):
        run(lambda: Broker(broker_config(tmp_path, brokerRole="SLAVE", brokerId=1, haMasterAddress="x")).start())
