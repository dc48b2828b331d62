"""Pages of brokers: the list, and a broker with its disk, latencies, replication and settings.

Must never show the value of a setting whose name says that the value is a secret.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from mqfast.client.admin.checks import nearest
from mqfast.client.admin.secret_settings import is_secret
from mqfast.console.findings import DISK_MARKS
from mqfast.console.history import SPARK_SLOTS
from mqfast.console.page import Console, Page, command
from mqfast.console.pictures import line, meter
from mqfast.console.state import BrokerState, Unknown, known
from mqfast.errors import MqfastError, UnknownName

__all__ = ["broker", "brokers", "shown_settings"]


def _row(broker: BrokerState) -> dict[str, Any]:
    runtime = broker.runtime
    version: Any = runtime if isinstance(runtime, Unknown) else runtime.get("brokerVersionDesc", "")
    return {
        "name": broker.name,
        "cluster": broker.cluster,
        "addresses": {str(number): address for number, address in sorted(broker.addresses.items())},
        "version": version,
        "in": broker.number("putTps"),
        "out": broker.number("getTransferredTps"),
        "p99_ms": broker.number("putLatency99"),
        "disk": broker.number("commitLogDiskRatio"),
        "today": broker.number("msgPutTotalTodayNow"),
        "behind_bytes": broker.number("dispatchBehindBytes"),
        "errors": broker.errors,
    }


def shown_settings(config: Mapping[str, str]) -> dict[str, str]:
    """Return settings, secrets hidden."""
    return {name: "(hidden)" if value and is_secret(name, value) else value for name, value in config.items()}


async def brokers(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return all brokers."""
    state, history = console.collector.state, console.collector.history
    rows = [_row(state_of) for _, state_of in sorted(state.brokers.items())]
    pictures = {
        "disks": {row["name"]: meter(known(row["disk"]), DISK_MARKS, f"disk of {row['name']}") for row in rows},
        "lines": {
            row["name"]: line(history.values("in", row["name"], SPARK_SLOTS), f"messages into {row['name']}")
            for row in rows
        },
    }
    return Page("brokers.html", "Brokers", {"brokers": rows, "error": state.error}, command("cluster"), pictures)


async def broker(console: Console, wanted: Mapping[str, str], name: str) -> Page:
    """Return a broker."""
    state, history = console.collector.state, console.collector.history
    state_of = state.brokers.get(name)
    if state_of is None:
        raise UnknownName(f"broker: expected a known name, found {name!r}{nearest(name, state.brokers)}")
    settings, replication = await asyncio.gather(
        _settings(console, state_of.address), _replication(console, state_of.address)
    )
    runtime: Any = state_of.runtime if isinstance(state_of.runtime, Unknown) else dict(sorted(state_of.runtime.items()))
    data = {
        **_row(state_of),
        "settings": settings,
        "replication": replication,
        "runtime": runtime,
        "history": {
            "times": history.times(), "in": history.values("in", name), "out": history.values("out", name),
            "p99": history.values("p99", name),
        },
    }  # fmt: skip
    pictures = {
        "disk": meter(known(data["disk"]), DISK_MARKS, f"disk of {name}"),
        "in": line(history.values("in", name), f"messages into {name}", width=900, height=120),
    }
    return Page("broker.html", name, data, command("broker", "show", name), pictures)


def _seconds(behind: timedelta | None) -> Any:
    return Unknown("the broker does not report the age") if behind is None else behind.total_seconds()


async def _settings(console: Console, address: str) -> dict[str, str] | Unknown:
    try:
        return shown_settings(await console.admin.broker_config(address))
    except MqfastError as error:
        return Unknown(str(error))


async def _replication(console: Console, address: str) -> list[dict[str, Any]] | Unknown:
    try:
        status = await console.admin.ha_status(address)
    except MqfastError as error:
        return Unknown(str(error))
    return [
        {"address": slave.address, "state": slave.state, "behind_bytes": slave.behind_bytes,
         "behind_s": _seconds(slave.behind), "error": slave.error}
        for slave in status.slaves
    ]  # fmt: skip
