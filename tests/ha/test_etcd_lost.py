"""etcd comes back without its data, or with older ones: nobody leads who may lack what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from ha.etcd_members import NEEDS_ETCD
from ha.failover_pairs import Pair, in_sync, pair, until

from mqfast.broker.replication.failover_broker import FailoverBroker
from mqfast.cli.main import main
from mqfast.remoting.codes import RequestCode, ResponseCode

pytestmark = NEEDS_ETCD


async def second_alone(both: Pair) -> list[bytes]:
    """Broker 1 has followed epoch 2 of broker 2, and is away; broker 2 alone acknowledges. Returns: what it has."""
    one, two = await both.start(1), await both.start(2)
    await until(lambda: in_sync(one) == {1, 2})
    assert await both.send(1, b"epoch 1") == ResponseCode.SUCCESS
    await both.stop(1)
    await until(two.right.is_valid)
    assert await both.send(2, b"epoch 2") == ResponseCode.SUCCESS
    await both.start(1)
    await until(lambda: in_sync(two) == {1, 2})
    await both.stop(1)
    await until(lambda: in_sync(two) == {2})
    assert await both.send(2, b"of two alone") == ResponseCode.SUCCESS
    return [b"epoch 1", b"epoch 2", b"of two alone"]


async def told(both: Pair, one: FailoverBroker) -> dict[str, Any]:
    """What a slave tells of itself (mqfast ha status)."""
    address = "{}:{}".format(*one.broker.address)
    answer = await both.client.call(address, RequestCode.GET_BROKER_HA_STATUS)
    found: dict[str, Any] = json.loads(bytes(answer.body))["haClientRuntimeInfo"]
    return found


async def waits(both: Pair, one: FailoverBroker, text: str) -> None:
    """Until the broker says, in its status and to probes, what it waits for."""
    await until(lambda: one._is_open and text in (one.broker.parts.replicas.no_master or ""))  # it may change its role
    assert text in (await told(both, one))["error"]
    assert not one.right.is_active
    number = one._config["brokerId"]
    assert await both.send(number, b"x") == ResponseCode.SERVICE_NOT_AVAILABLE


def test_without_a_record_the_newest_copy_leads_once_a_majority_is_there(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            sent = await second_alone(both)
            await both.stop(2)
            both.etcd.lose_its_data()
            one = await both.start(1)
            await waits(both, one, "broker 1 of 1 and 2 is there, which is no majority; it waits for broker 2")
            two = await both.start(2)
            await until(two.right.is_valid)
            assert await both.send(2, b"after") == ResponseCode.SUCCESS
            await until(lambda: in_sync(two) == {1, 2})
            await until(lambda: both.bodies(1) == both.bodies(2) == [*sent, b"after"])
            assert (await told(both, one))["error"] is None
            assert two.broker.parts.replicas.epochs.last > 2

    asyncio.run(flow())


def test_a_record_that_is_lost_while_the_brokers_run(tmp_path: Path) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            both.etcd.lose_its_data()
            await until(lambda: any(broker.right.is_valid() and broker.right.epoch > 1 for broker in (one, two)))
            leader = 1 if one.right.is_valid() else 2
            assert await both.send(leader, b"y") == ResponseCode.SUCCESS
            await until(lambda: both.bodies(1) == both.bodies(2) == [b"x", b"y"])

    asyncio.run(flow())


def test_an_etcd_record_older_than_a_store_is_not_used(tmp_path: Path) -> None:
    """Broker 1 leads by a copy of etcd's data, until the broker comes that knows more."""

    async def flow() -> None:
        async with pair(tmp_path, haTruncateDiverged=True) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await until(lambda: len(both.bodies(2)) == 1)
            await both.stop(2)
            await both.stop(1)
            both.etcd.copy_its_data(tmp_path / "older")
            two = await both.start(2)
            await until(two.right.is_valid)
            await both.start(1)
            await until(lambda: in_sync(two) == {1, 2})
            await both.stop(1)
            await until(lambda: in_sync(two) == {2})
            assert await both.send(2, b"of two alone") == ResponseCode.SUCCESS
            await both.stop(2)
            both.etcd.lose_its_data(tmp_path / "older")
            one = await both.start(1)
            await waits(both, one, "it waits for broker 2")
            two = await both.start(2)
            await until(two.right.is_valid)
            assert await both.send(2, b"after") == ResponseCode.SUCCESS
            await until(lambda: both.bodies(1) == both.bodies(2) == [b"x", b"of two alone", b"after"])

    asyncio.run(flow())


def test_a_master_by_an_older_record_ends_when_the_newer_store_comes(tmp_path: Path) -> None:
    """Broker 1 cannot know: its store was away during the newer epoch. What both took since is for an operator."""

    async def flow() -> None:
        async with pair(tmp_path, haTruncateDiverged=True) as both:
            one, two = await both.start(1), await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await both.stop(1)
            shutil.copytree(tmp_path / "b1", tmp_path / "older-b1")
            both.etcd.copy_its_data(tmp_path / "older")
            await until(two.right.is_valid)
            assert await both.send(2, b"of two") == ResponseCode.SUCCESS
            await both.stop(2)
            both.etcd.lose_its_data(tmp_path / "older")
            one = await both.start(1)
            await until(one.right.is_valid)
            assert await both.send(1, b"of one") == ResponseCode.SUCCESS
            two = await both.start(2)
            await until(lambda: not one.right.is_active)
            await waits(both, one, "two histories")
            await waits(both, two, "two histories")
            assert both.bodies(2) == [b"x", b"of two"], "nothing was cut"
            assert both.bodies(1) == [b"x", b"of one"]
            settings = [f"haEtcdEndpoints={both.etcd.endpoint}", f"brokerName={two._config['brokerName']}"]
            choose = ["ha", "bootstrap", *settings, "--leader", "2"]
            assert await asyncio.to_thread(main, choose) == 1, "refused without --accept-loss"
            assert await asyncio.to_thread(main, [*choose, "--accept-loss"]) == 0
            assert not two.right.is_active, "only a plan"
            assert await asyncio.to_thread(main, [*choose, "--accept-loss", "--yes"]) == 0
            await until(two.right.is_valid)
            await until(lambda: in_sync(two) == {1, 2})
            await until(lambda: both.bodies(1) == both.bodies(2) == [b"x", b"of two"])
            assert list((tmp_path / "b1").glob("repair-*")), "what was cut is kept"

    asyncio.run(flow())


def test_bootstrap_chooses_a_leader_without_the_only_in_sync_broker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def flow() -> None:
        async with pair(tmp_path) as both:
            sent = await second_alone(both)
            await both.stop(2)
            shutil.rmtree(tmp_path / "b2")
            one = await both.start(1)
            await waits(both, one, "may lack acknowledged messages: in sync are [2]")
            settings = [f"haEtcdEndpoints={both.etcd.endpoint}", f"brokerName={one._config['brokerName']}"]
            assert await asyncio.to_thread(main, ["ha", "bootstrap", *settings]) == 1
            assert "what broker 2 alone has is lost" in capsys.readouterr().out
            assert await asyncio.to_thread(main, ["ha", "bootstrap", *settings, "--accept-loss", "--yes"]) == 0
            await until(one.right.is_valid)
            assert await asyncio.to_thread(main, ["ha", "bootstrap", *settings, "--accept-loss", "--yes"]) == 1
            assert "broker 1 is the master" in capsys.readouterr().out
            assert await both.send(1, b"y") == ResponseCode.SUCCESS
            await both.start(2)
            await until(lambda: in_sync(one) == {1, 2})
            await until(lambda: both.bodies(1) == both.bodies(2) == [*sent[:2], b"y"])

    asyncio.run(flow())


def test_a_store_with_epochs_is_no_first_master(tmp_path: Path) -> None:
    """It was never under fail-over, so nobody knows of other brokers: settings or an operator name them."""

    async def flow() -> None:
        async with pair(tmp_path) as both:
            one = await both.start(1)
            await until(one.right.is_valid)
            assert await both.send(1, b"x") == ResponseCode.SUCCESS
            await both.stop(1)
            (tmp_path / "b1" / "failoverState.json").unlink()
            (tmp_path / "b1" / "epochHistory").unlink()
            both.etcd.lose_its_data()
            one = await both.start(1)
            await waits(both, one, "no store and no setting (haBrokerIds) names the brokers")
            await both.stop(1)
            one = await both.start(1, haBrokerIds="1")
            await until(one.right.is_valid)
            assert both.bodies(1) == [b"x"]

    asyncio.run(flow())
