"""A slave's store becomes a master's: what is refused, what is written, and what the old master hears."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from running import Running, broker_config, running_broker
from waiting import until_async as until

import mqfast
from mqfast.ha.divergence import Divergence, load_divergence, note_divergence
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.promotion import carry_out, plan_promotion
from mqfast.ha.slave import FollowState
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.checkpoint import StoreCheckpoint

SIZES = {"mapped_file_bytes_commit_log": 1 << 20, "mapped_file_bytes_consume_queue": 20_000}
QUICK = {"registerNameServerPeriod": 10_000, "haSendHeartbeatInterval": 200}


@contextlib.asynccontextmanager
async def name_server(work: Path) -> AsyncIterator[str]:
    config = NamesrvConfig()
    paths = {"kvConfigPath": f"{work}/kvConfig.json", "configStorePath": f"{work}/namesrv.properties"}
    config.update({**paths, "listenPort": "0"}, "test")
    server = NameServer(config)
    await server.start()
    try:
        yield "{}:{}".format(*server.address)
    finally:
        await server.stop()


def master(path: Path, namesrv: str, **settings: Any) -> Any:
    return running_broker(path, namesrvAddr=namesrv, **QUICK, **settings)


def slave(path: Path, namesrv: str, **settings: Any) -> Any:
    return master(path, namesrv, brokerRole="SLAVE", brokerId=1, slaveReadEnable=True, **settings)


async def fill(one: Running, prefix: str, count: int) -> None:
    for number in range(count):
        answer = await one.send("T", f"{prefix}{number}".encode() * 20, queue_id=number % 4)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


async def is_level(one: Running, two: Running) -> None:
    end = one.context.store.engine.raw.end
    await until(lambda: two.context.store.engine.raw.end == end)


def bodies(store: mqfast.MessageStore) -> list[bytes]:
    return sorted(bytes(one.body) for queue in range(4) for one in store.get("T", queue, 0, max_count=10_000))


def put(path: Path, count: int, role: str = "ASYNC_MASTER") -> int:
    with mqfast.open(path, broker_role=role, **SIZES) as store:
        for number in range(count):
            store.put("T", b"x" * 100, queue_id=number % 4)
        return store.engine.raw.end


def test_a_store_is_promoted_with_the_next_epoch_from_the_end_of_its_log_on(tmp_path: Path) -> None:
    end = put(tmp_path, 50)
    config = broker_config(tmp_path).store_config()
    plan = plan_promotion(str(tmp_path), config)
    assert not plan.refusals
    assert (plan.end, plan.new_epoch) == (end, 1)
    assert "no end that is known here" in str(plan)
    assert "compare the end" in str(plan)
    assert not (tmp_path / "epochFileCheckpoint").exists(), "a plan writes nothing"
    carry_out(plan, config)
    assert EpochFile.load(OsApi(), str(tmp_path)).entries == [(1, end)]
    with mqfast.open(tmp_path, **SIZES) as store:
        store.put("T", b"of epoch 1")
        end = store.engine.raw.end
    plan = plan_promotion(str(tmp_path), config)
    carry_out(plan, config)
    assert EpochFile.load(OsApi(), str(tmp_path)).entries[-1] == (2, end)
    assert mqfast.verify(tmp_path).ok


def test_a_store_that_lags_is_refused_unless_the_loss_is_accepted(tmp_path: Path) -> None:
    end = put(tmp_path, 10)
    checkpoint = StoreCheckpoint.load(OsApi(), str(tmp_path / "checkpoint"))
    checkpoint.master_flushed_offset = end + 1234
    checkpoint.flush()
    config = broker_config(tmp_path).store_config()
    plan = plan_promotion(str(tmp_path), config)
    assert f"was known to end at {end + 1234}" in str(plan)
    assert not plan.warnings
    assert [str(end + 1234) in text and "1234 bytes" in text for text in plan.refusals] == [True]
    with pytest.raises(mqfast.errors.UsageError, match="1234 bytes"):
        carry_out(plan, config)
    plan = plan_promotion(str(tmp_path), config, accept_loss=True)
    assert not plan.refusals
    assert "1234 bytes" in str(plan)


def test_a_store_of_another_history_is_refused_unless_the_loss_is_accepted(tmp_path: Path) -> None:
    end = put(tmp_path, 10)
    config = broker_config(tmp_path).store_config()
    note_divergence(OsApi(), str(tmp_path), Divergence(100, end, end + 900, "10.0.0.1:10912", 1))
    plan = plan_promotion(str(tmp_path), config)
    (text,) = plan.refusals
    assert "another history than that of its master 10.0.0.1:10912" in text
    assert f"loses the master's {end + 800} bytes from 100 on" in text
    plan = plan_promotion(str(tmp_path), config, accept_loss=True)
    assert not plan.refusals
    assert f"{end + 800} bytes" in str(plan)
    carry_out(plan, config)
    assert load_divergence(OsApi(), str(tmp_path)) is None, "its history is the one that counts from now on"
    (tmp_path / "divergedFromMaster").write_bytes(b"?")
    assert "divergedFromMaster" in plan_promotion(str(tmp_path), config).refusals[0]


def test_a_diverged_slave_reports_it_while_its_master_is_unreachable(tmp_path: Path) -> None:
    """And takes no table of the master whose log it does not follow; here an empty one."""

    async def flow() -> None:
        async with name_server(tmp_path) as namesrv:
            async with master(tmp_path / "a", namesrv) as old:
                await fill(old, "x", 4)
                async with slave(tmp_path / "b", namesrv) as one:
                    await is_level(old, one)
                    await until(lambda: one.context.topics.get("T") is not None)
            async with master(tmp_path / "empty", namesrv) as wrong, slave(tmp_path / "b", namesrv) as one:
                following = lambda: one.parts.replicas.following  # noqa: E731
                await until(lambda: following().state is FollowState.DIVERGED)
                sync = one.parts.replicas._sync
                assert sync is not None
                await sync.sync_once(wrong.address)
                assert one.context.topics.get("T") is not None
            async with slave(tmp_path / "b", namesrv) as one:
                assert following().state is FollowState.DIVERGED
                assert "of another history" in str(following().error)
            plan = plan_promotion(str(tmp_path / "b"), broker_config(tmp_path / "b").store_config())
            assert any("of another history" in text for text in plan.refusals)

    asyncio.run(flow())


def test_a_damaged_store_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    put(tmp_path, 200)
    (log,) = (one for one in (tmp_path / "commitlog").iterdir() if one.name == "0" * 20)
    data = bytearray(log.read_bytes())
    data[5000] ^= 1
    log.write_bytes(data)
    plan = plan_promotion(str(tmp_path), broker_config(tmp_path).store_config())
    assert any("mqfast store verify" in text for text in plan.refusals)
    assert log.read_bytes() == data


def test_an_open_store_and_none_are_refused(tmp_path: Path) -> None:
    config = broker_config(tmp_path).store_config()
    assert "no store" in plan_promotion(str(tmp_path / "none"), config).refusals[0]
    with mqfast.open(tmp_path, **SIZES) as store:
        store.put("T", b"x")
        assert "open" in plan_promotion(str(tmp_path), config).refusals[0]


def test_epochs_that_begin_behind_the_log_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    end = put(tmp_path, 10)
    config = broker_config(tmp_path).store_config()
    EpochFile.load(OsApi(), str(tmp_path)).begin(3, end + 1)
    assert "epoch 3 begins" in plan_promotion(str(tmp_path), config).refusals[0]
    (tmp_path / "epochFileCheckpoint").write_bytes(b"nonsense")
    assert "damaged" in plan_promotion(str(tmp_path), config).refusals[0]


def test_an_epoch_of_a_damaged_file_is_not_assigned_again(tmp_path: Path) -> None:
    put(tmp_path, 10)
    epochs = EpochFile.load(OsApi(), str(tmp_path))
    epochs.begin(1, 0)
    epochs.begin(2, 100)
    (tmp_path / "epochFileCheckpoint").write_bytes(b"nonsense")
    assert EpochFile.load(OsApi(), str(tmp_path)).entries == [(1, 0)], "the one before it"
    plan = plan_promotion(str(tmp_path), broker_config(tmp_path).store_config())
    assert any("epochFileCheckpoint" in text and "damaged" in text for text in plan.refusals)


def test_the_old_master_is_fenced_and_comes_back_as_a_slave(tmp_path: Path) -> None:
    """The way of an operator: the master dies with a tail that the slave has not, the slave is promoted, the old master
    comes back as master and is refused, then as slave.
    """

    async def flow() -> None:
        a, b = tmp_path / "a", tmp_path / "b"
        async with name_server(tmp_path) as namesrv:
            async with master(a, namesrv) as old:
                await fill(old, "common", 40)
                async with slave(b, namesrv) as one:
                    await is_level(old, one)
                    known = one.context.store.engine.raw
                    await until(lambda: known.master_flushed_offset == known.end)
                await fill(old, "tail", 5)
                old.context.offsets.commit("g", "T", 0, old.context.store.max_offset("T", 0))
            config = broker_config(b).store_config()
            plan = plan_promotion(str(b), config)
            assert not plan.refusals, plan
            carry_out(plan, config)
            async with master(b, namesrv) as new:
                await fill(new, "new", 10)
                async with master(a, namesrv) as back:
                    assert back.parts.replicas.fenced is not None
                    assert "brokerRole=SLAVE" in back.parts.replicas.fenced
                    answer = await back.send("T", b"refused")
                    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
                    assert "replaced as master" in answer.remark
                    cluster = await new.client.call(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO)
                    assert new.address.encode() in bytes(cluster.body)
                    assert back.address.encode() not in bytes(cluster.body)
                async with slave(a, namesrv) as back:
                    following = lambda: back.parts.replicas.following  # noqa: E731
                    await until(lambda: following().state is FollowState.DIVERGED)
                async with slave(a, namesrv, haTruncateDiverged=True) as back:
                    await is_level(new, back)
                    assert back.context.offsets.get("g", "T", 0) == 10, "behind it are other messages now"
                    await until(lambda: back.parts.replicas.epochs.last == 1)
                    await until(lambda: sum(back.context.store.max_offset("T", one) for one in range(4)) == 50)
                    assert bodies(back.context.store) == bodies(new.context.store)
        kept = [one for one in a.iterdir() if one.name.startswith("repair-")]
        assert len(kept) == 1
        assert b"tail4tail4" in b"".join(one.read_bytes() for one in (kept[0] / "commitlog").iterdir())
        assert mqfast.verify(a).ok

    asyncio.run(flow())


def test_a_replaced_master_is_fenced_while_it_runs(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, master(tmp_path / "a", namesrv) as old:
            await fill(old, "x", 4)
            put(tmp_path / "b", 4)
            config = broker_config(tmp_path / "b").store_config()
            carry_out(plan_promotion(str(tmp_path / "b"), config), config)
            async with master(tmp_path / "b", namesrv) as new:
                old.context.registration.register_soon()
                await until(lambda: old.parts.replicas.fenced)
                assert (await old.send("T", b"x")).code == ResponseCode.SERVICE_NOT_AVAILABLE
                await fill(new, "y", 4)

    asyncio.run(flow())


def test_a_slave_does_not_follow_a_master_with_an_older_epoch(tmp_path: Path) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, master(tmp_path / "a", namesrv) as old:
            await fill(old, "x", 20)
            async with slave(tmp_path / "b", namesrv) as one:
                await is_level(old, one)
            end = put(tmp_path / "b", 0, "SLAVE")
            EpochFile.load(OsApi(), str(tmp_path / "b")).begin(1, end)
            async with slave(tmp_path / "b", namesrv) as one:
                sync = one.parts.replicas._sync
                await until(lambda: sync is not None and sync.master is not None and sync._has_old_epoch)
                await fill(old, "y", 4)
                assert one.context.store.engine.raw.end == end

    asyncio.run(flow())


def test_1007_returns_the_epochs(tmp_path: Path) -> None:
    put(tmp_path, 4)
    config = broker_config(tmp_path).store_config()

    async def ask(**settings: Any) -> tuple[int, bytes]:
        async with running_broker(tmp_path, **settings) as one:
            answer = await one.call(RequestCode.GET_BROKER_EPOCH_CACHE)
            return answer.code, bytes(answer.body or b"")

    assert asyncio.run(ask(brokerRole="SLAVE", brokerId=1))[0] == ResponseCode.SYSTEM_ERROR
    code, body = asyncio.run(ask())
    assert code == ResponseCode.SUCCESS
    assert b'"epoch":0' in body, "the first start of a master"
    carry_out(plan_promotion(str(tmp_path), config), config)
    code, body = asyncio.run(ask())
    assert code == ResponseCode.SUCCESS
    assert re.search(rb'"epochList":\[\{"epoch":1,"startOffset":\d+,"endOffset":9223372036854775807\}\]', body), body


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mqfast.cli", "broker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, stdin=subprocess.DEVNULL)


def settings_of(path: Path, *more: str) -> list[str]:
    given = ("brokerRole=SLAVE", "brokerId=1", "listenPort=0", "mappedFileSizeCommitLog=1048576", *more)
    return [f"storePathRootDir={path}", *given]


def test_the_promote_command_shows_its_plan_and_writes_only_on_request(tmp_path: Path) -> None:
    end = put(tmp_path, 30)
    done = run("--promote", "--dry-run", *settings_of(tmp_path))
    assert done.returncode == 0
    assert f"epoch: none so far, 1 from physical offset {end} on" in done.stderr
    done = run("--promote", *settings_of(tmp_path))
    assert done.returncode == 2
    assert "expected --yes or --dry-run" in done.stderr
    assert not (tmp_path / "epochFileCheckpoint").exists()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        away = f"127.0.0.1:{silent.getsockname()[1]}"
    arguments = ["--promote", "--yes", "-n", away, *settings_of(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-m", "mqfast.cli", "broker", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    banner = process.stdout.readline()
    found = re.search(r"listens on (\S+)", banner)
    try:
        assert found, banner
        code = asyncio.run(_send_one(found[1]))
        assert code == ResponseCode.SUCCESS
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=200)
    assert "promoted: epoch 1. Write brokerRole=ASYNC_MASTER and brokerId=0" in err
    assert EpochFile.load(OsApi(), str(tmp_path)).entries == [(1, end)]


async def _send_one(address: str) -> int:
    client = RemotingClient()
    fields = {
        "a": "p", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0", "i": "",
        "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    try:
        return (await client.call(address, RequestCode.SEND_MESSAGE_V2, fields, b"x")).code
    finally:
        await client.close()


def test_etcd_is_not_overruled(tmp_path: Path) -> None:
    put(tmp_path, 3)
    done = run("--promote", "--yes", *settings_of(tmp_path, "haEtcdEndpoints=127.0.0.1:1"))
    assert done.returncode == 2
    assert "haEtcdEndpoints is set" in done.stderr


def test_the_command_refuses_while_the_master_answers(tmp_path: Path) -> None:
    put(tmp_path / "b", 3)

    async def flow() -> subprocess.CompletedProcess[str]:
        async with name_server(tmp_path) as namesrv, master(tmp_path / "a", namesrv):
            more = ("--promote", "--yes", "-n", namesrv, "brokerName=broker-a")
            return await asyncio.to_thread(run, *more, *settings_of(tmp_path / "b"))

    done = asyncio.run(flow())
    assert done.returncode == 1
    assert "answers; end that broker first" in done.stderr
    assert not os.path.exists(tmp_path / "b" / "epochFileCheckpoint")
