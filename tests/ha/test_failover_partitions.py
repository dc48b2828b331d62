"""Fail-over under partitions, kills and pauses in network namespaces, with a checker of what the clients saw."""

from __future__ import annotations

import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import pytest
from ha.history import Leading, Send, Stored, faults_of, figures_of, read_history
from ha.partitions import BROKERS, NEEDS_NAMESPACES, Network, running_network
from sampling import WHOLE

import mqfast

SCHEDULES = int(os.environ.get("MQFAST_SCHEDULES", "100" if WHOLE else "1"))
FIRST_SEED = int(os.environ.get("MQFAST_FIRST_SCHEDULE", "1"))
OF_ONE_CLUSTER = 5
FAULTS_S = 8.0
KILLS = 10


def check(network: Network, *, may_lose: bool = False) -> dict[str, Any]:
    """End everything; what the clients saw must be true of the final logs, which are the same."""
    masters = network.masters()
    network.end_clients()
    network.until_level()
    network.end_brokers()
    sends, leading = read_history(network.work / "history")
    stored = {name: network.stored(name) for name in BROKERS}
    assert stored["b1"] == stored["b2"]
    assert network.epochs("b1") == network.epochs("b2")
    faults = faults_of(sends, stored["b1"], network.epochs("b1"), masters, may_lose=may_lose)
    assert not faults, "\n".join(faults[:20])
    for name in BROKERS:
        assert mqfast.verify(network.work / name).ok
    return figures_of(sends, leading, stored["b1"])._asdict()


def test_the_checker_finds_what_cannot_be() -> None:
    def send(body: str, broker: int, at: int, began_s: float) -> Send:
        return Send(began_s, began_s + 0.1, 0, body, broker, 0, at, at * 100)

    stored = {0: [Stored("a", 0, 0), Stored("b", 1, 100), Stored("c", 2, 200)]}
    epochs, masters = [(1, 0), (2, 200)], {1: 1, 2: 2}
    good = [send("a", 1, 0, 1.0), send("b", 1, 1, 2.0), send("c", 2, 2, 3.0)]
    assert faults_of(good, stored, epochs, masters) == []
    for wrong, named in (
        ([*good, send("d", 2, 3, 4.0)], "lost"),
        ([send("b", 1, 1, 1.0), send("a", 1, 0, 2.0)], "order"),
        ([send("a", 2, 0, 1.0)], "epoch 1 is of broker 1"),
        ([send("b", 1, 1, 5.0), send("c", 2, 2, 3.0)], "after epoch 2 did"),
        ([send("a", 1, 1, 1.0)], "another place"),
    ):
        assert any(named in text for text in faults_of(wrong, stored, epochs, masters)), named
    twice = {0: [*stored[0], Stored("a", 3, 300)]}
    assert "2 times" in faults_of(good, twice, epochs, masters)[0]
    leading = [Leading(0.0, 1, 1), Leading(2.5, None, 1), Leading(2.9, 2, 2)]
    figures = figures_of(good, leading, stored)
    assert (figures.acknowledged, figures.lost, figures.epochs) == (3, 0, 2)
    assert figures.take_overs_s == pytest.approx([0.6])


@NEEDS_NAMESPACES
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + SCHEDULES, OF_ONE_CLUSTER))
def test_no_acknowledged_message_is_lost_under_partitions(seed: int, disk_path: Path) -> None:
    """With SYNC_MASTER: random faults, then all is healed, and so on; at the end the history is checked."""
    with running_network(disk_path) as network:
        done = []
        for number in range(seed, min(seed + OF_ONE_CLUSTER, FIRST_SEED + SCHEDULES)):
            done.append(network.schedule(number, FAULTS_S))
            network.heal_all()
            healed_s = time.monotonic()
            network.until(lambda at=healed_s: network.acknowledged_since(at), "sends go through again")
            network.until(network.both_in_sync, "both are in sync again")
        figures = check(network)
    _write(seed, done, figures)
    assert figures["acknowledged"] > 0
    assert figures["lost"] == 0


@NEEDS_NAMESPACES
@pytest.mark.skipif(not WHOLE, reason="two minutes: make ha")
def test_a_killed_master_is_replaced_within_five_seconds_of_its_lease(disk_path: Path) -> None:
    """From the moment at which etcd shows no leader to the first acknowledged send, with nothing else in the way."""
    with running_network(disk_path) as network:
        done = []
        for _ in range(KILLS):
            master = f"b{network.leader()}"
            network.signal(master, signal.SIGKILL)
            network.brokers[master].wait(30)
            killed_s = time.monotonic()
            network.until(lambda at=killed_s: network.acknowledged_since(at, 5), "the other broker takes messages")
            network.start(master)
            network.until(network.both_in_sync, "both are in sync again")
            done.append([f"kill {master}"])
        figures = check(network)
    times = figures["take_overs_s"]
    _write(-2, done, figures)
    assert len(times) >= KILLS
    assert statistics.median(times) <= 5.0
    assert max(times) <= 30.0, "a machine that is busy may stand still for a while"


@NEEDS_NAMESPACES
@pytest.mark.skipif(not WHOLE, reason="a minute: make ha")
def test_what_async_loses_is_what_the_slave_did_not_have(disk_path: Path) -> None:
    """With ASYNC_MASTER the same faults may lose the end of what the old master took; all else stays true."""
    with running_network(disk_path, brokerRole="ASYNC_MASTER") as network:
        done = []
        for seed in range(FIRST_SEED + 1000, FIRST_SEED + 1000 + OF_ONE_CLUSTER):
            done.append(network.schedule(seed, FAULTS_S))
            network.heal_all()
            healed_s = time.monotonic()
            network.until(lambda at=healed_s: network.acknowledged_since(at), "sends go through again")
            network.until(network.both_in_sync, "both are in sync again")
        figures = check(network, may_lose=True)
    _write(-1, done, figures)
    # The slave leaves the set after three seconds (see partitions.py), or the lease ends, of three seconds too. Between
    # them a look at etcd may wait for each of its members, and a write for one, a second each.
    assert max(figures["loss_windows_s"], default=0.0) <= 3.0 + 3.0 + 5.0


def _write(seed: int, done: list[list[str]], figures: dict[str, Any]) -> None:
    """Figures of the long form, one line a cluster, into the file that MQFAST_FIGURES names."""
    times = sorted(figures.pop("take_overs_s"))
    row = {
        "seed": seed, "schedules": len(done), **figures, "take_overs": len(times),
        "p50_s": round(statistics.median(times), 2) if times else None, "max_s": round(times[-1], 2) if times else None,
        "times": [round(one, 2) for one in times], "faults": done,
    }  # fmt: skip
    if path := os.environ.get("MQFAST_FIGURES"):
        with open(path, "a") as file:
            file.write(json.dumps(row) + "\n")
