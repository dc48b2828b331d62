"""Replication as operators see it: 28, 907, metrics, and ``mqfast ha status`` of two real brokers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from broker.two_brokers import as_slave, end_of, name_server, run, until
from running import Running, running_broker

from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main
from mqfast.client.admin.admin_client import AdminClient
from mqfast.remoting.codes import RequestCode

METRICS = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}


@contextlib.asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[str, Running, Running]]:
    async with name_server(tmp_path) as namesrv:
        master_settings = {"namesrvAddr": namesrv, **METRICS}
        async with running_broker(tmp_path / "m", **master_settings) as master:
            assert (await master.send("T", bytes(1000))).code == 0
            async with running_broker(tmp_path / "s", **as_slave(namesrv, **METRICS)) as slave:
                await until(lambda: end_of(slave) == end_of(master))
                await until(lambda: master.parts.replicas.slaves[0].behind_bytes == 0)
                await until(lambda: slave.parts.replicas.following.state == "TRANSFER")
                yield namesrv, master, slave


async def table_of(one: Running) -> dict[str, str]:
    answer = await one.call(RequestCode.GET_BROKER_RUNTIME_INFO)
    return dict(json.loads(bytes(answer.body))["table"])


async def scraped(one: Running) -> dict[str, float]:
    await until(lambda: one.parts.admin.http is not None)
    assert one.parts.admin.http is not None
    url = "http://{}:{}/metrics".format(*one.parts.admin.http.address)
    text = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=10).read().decode())
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def value(samples: dict[str, float], name: str, label: str = "") -> float:
    (found,) = [number for key, number in samples.items() if key.partition("{")[0] == name and label in key]
    return found


def test_both_sides_tell_lag_in_bytes_and_ms(tmp_path: Path) -> None:
    async def flow() -> None:
        async with two(tmp_path) as (_, master, slave):
            (one,) = master.parts.replicas.slaves
            table = await table_of(master)
            assert (table["slaves"], table["slavesInSync"]) == ("1", "1")
            assert table[f"slaveBehindBytes_{one.address}"] == "0"
            assert table[f"slaveBehindMillis_{one.address}"] == "0"
            table = await table_of(slave)
            assert (table["followState"], table["followBehindBytes"], table["followBehindMillis"]) == (
                "TRANSFER", "0", "0",
            )  # fmt: skip
            body = json.loads(bytes((await master.call(RequestCode.GET_BROKER_HA_STATUS)).body))
            (row,) = body["haConnectionInfo"]
            assert (row["diff"], row["behindMillis"]) == (0, 0)
            assert 0 <= row["lastContactMillis"] < 60_000
            body = json.loads(bytes((await slave.call(RequestCode.GET_BROKER_HA_STATUS)).body))
            own = body["haClientRuntimeInfo"]
            assert (own["state"], own["behindBytes"], own["error"]) == ("TRANSFER", 0, None)
            assert own["lastReadTimestamp"] > 1_700_000_000_000
            assert own["lastWriteTimestamp"] > 1_700_000_000_000

    run(flow)


def test_metrics_of_both_sides(tmp_path: Path) -> None:
    async def flow() -> None:
        async with two(tmp_path) as (_, master, slave):
            (one,) = master.parts.replicas.slaves
            of_master, of_slave = await scraped(master), await scraped(slave)
            assert value(of_master, "mqfast_slaves") == value(of_master, "mqfast_slaves_in_sync") == 1
            label = f'slave="{one.address}"'
            assert value(of_master, "mqfast_slave_behind_bytes", label) == 0
            assert value(of_master, "mqfast_slave_behind_milliseconds", label) == 0
            assert value(of_master, "mqfast_slave_silent_milliseconds", label) < 60_000
            assert value(of_slave, "mqfast_following", 'state="transfer"') == 1
            assert value(of_slave, "mqfast_following", 'state="diverged"') == 0
            assert value(of_slave, "mqfast_following_behind_bytes") == 0
            assert not any(key.startswith("mqfast_slave") for key in of_slave)

    run(flow)


def test_a_slave_that_lags(tmp_path: Path) -> None:
    async def flow() -> None:
        async with running_broker(tmp_path / "m", haAllowedAddresses="127.0.0.1", **METRICS) as master:
            _, writer = await asyncio.open_connection("127.0.0.1", master.parts.replicas.port)
            writer.write(bytes(8))  # a slave that reports once, and never again
            await until(lambda: master.parts.replicas.slaves)
            assert (await master.send("T", bytes(1000))).code == 0
            await until(lambda: master.parts.replicas.slaves[0].behind_ms > 0)
            samples = await scraped(master)
            assert value(samples, "mqfast_slave_behind_bytes") == end_of(master) > 1000
            assert value(samples, "mqfast_slave_behind_milliseconds") > 0
            writer.close()
            await until(lambda: not master.parts.replicas.slaves)
            assert value(await scraped(master), "mqfast_slaves") == 0

    run(flow)


def test_ha_status_for_people_and_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*arguments: object) -> tuple[int, str, str]:
        code = main(["ha", "status", *map(str, arguments)])
        out = capsys.readouterr()
        return int(code), out.out, out.err

    async def flow() -> None:
        async with two(tmp_path) as (namesrv, master, slave):
            (one,) = master.parts.replicas.slaves
            code, out, _ = await asyncio.to_thread(said, "-n", namesrv, "--json")
            assert code == ExitCode.OK
            of_master, of_slave = (json.loads(line) for line in out.splitlines())
            end = end_of(master)
            expected: dict[str, Any] = {"broker": "broker-a", "offset": end, "behind": 0, "error": None}
            assert expected.items() <= of_master.items()
            assert expected.items() <= of_slave.items()
            assert (of_master["toldBy"], of_master["slave"], of_master["state"]) == ("master", one.address, "IN_SYNC")
            assert (of_slave["toldBy"], of_slave["slave"], of_slave["state"]) == ("slave", slave.address, "TRANSFER")
            assert of_master["lag"] == of_slave["lag"] == 0
            assert 0 <= of_master["lastContact"] < 60
            code, out, _ = await asyncio.to_thread(said, "-n", namesrv, "broker-a")
            heads, *rows = out.splitlines()
            assert heads.split()[:3] == ["broker", "told", "by"]
            assert "in sync" in rows[0]
            assert "follows" in rows[1]
            assert " ago" in rows[0]
            code, out, _ = await asyncio.to_thread(said, "-n", namesrv, slave.address, "--json")
            assert [json.loads(line)["toldBy"] for line in out.splitlines()] == ["slave"]
            code, _, err = await asyncio.to_thread(said, "-n", namesrv, "broker-x")
            assert code == ExitCode.USAGE
            assert "expected one of broker-a" in err

    run(flow)


def test_ha_status_where_no_slave_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def flow() -> None:
        async with name_server(tmp_path) as namesrv, running_broker(tmp_path / "m", namesrvAddr=namesrv):
            code = await asyncio.to_thread(main, ["ha", "status", "-n", namesrv])
            assert code == ExitCode.NOTHING_FOUND
            assert "no slave is connected" in capsys.readouterr().err

    run(flow)


def test_the_admin_client_tells_the_same(tmp_path: Path) -> None:
    async def flow() -> None:
        async with two(tmp_path) as (namesrv, master, slave):

            def ask() -> None:
                with AdminClient(namesrv) as admin:
                    status = admin.ha_status("broker-a")
                    assert (status.is_master, status.broker, status.end) == (True, master.address, end_of(master))
                    (one,) = status.slaves
                    assert (one.behind_bytes, one.behind) == (0, timedelta(0))
                    status = admin.ha_status(slave.address)
                    assert (status.is_master, status.master) == (
                        False, f"127.0.0.1:{master.parts.replicas.port}",
                    )  # fmt: skip

            await asyncio.to_thread(ask)

    run(flow)
