"""Failures: found by a seed, repeated by the seed, with few faults; and mutants of the product."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

import scenarios
from finder import MUTANTS, ROOT, broken

from mqfast.sim import DEFAULT_KINDS, Cluster, Fault, SimulationFailed, explore, run_seed

_WHOLE = bool(os.environ.get("MQFAST_WHOLE"))


async def _charge_twice(c: Cluster) -> None:
    """Break the invariant of a user: a handler that counts deliveries."""
    counts: dict[bytes, int] = {}

    def count(message: Any) -> None:
        body = bytes(message.body)
        counts[body] = counts.get(body, 0) + 1

    await c.brokers("a")
    producer = await c.producer("p")
    await c.consumer("g", "T", count)
    c.invariant("once", lambda: all(number == 1 for number in counts.values()))
    for number in range(30):
        await producer.try_send("T", b"%d" % number)
        await c.sleep(c.rng.random())
    await c.heal()
    await c.settled()


def test_a_handler_that_is_not_idempotent_is_found_repeated_and_shrunk() -> None:
    with pytest.raises(SimulationFailed) as caught:
        explore(_charge_twice, range(200))
    failure = caught.value.failure
    assert failure.invariant == "once"
    whole = run_seed(_charge_twice, failure.seed)
    assert whole.failure is not None
    assert len(failure.plan) <= len(whole.failure.plan)
    again = Cluster.replay(_charge_twice, failure.seed, plan=failure.plan)
    assert again == failure


def test_a_promise_that_takes_for_ever_is_a_failure() -> None:
    async def stays_down(c: Cluster) -> None:
        await c.brokers("a")
        c.servers["a"].kill()
        await c.settled(within_s=20)

    failure = run_seed(stays_down, 1, plan=()).failure
    assert failure is not None
    assert failure.invariant == "well in time"


def test_a_scenario_that_waits_for_nothing_ends() -> None:
    async def waits(c: Cluster) -> None:
        await c.loop.create_future()

    failure = run_seed(waits, 1).failure
    assert failure is not None
    assert failure.invariant == "the scenario ends"


def test_other_threads_of_the_process_sleep_and_read_real_clocks() -> None:
    """During a run ``time.sleep`` of a thread of the host called itself until the stack was full."""
    seen: list[float] = []

    def of_the_host() -> None:
        began = time.monotonic()
        time.sleep(0.01)
        seen.extend((time.monotonic() - began, time.time(), float(len(os.urandom(4))), random.Random().random()))

    async def scenario(c: Cluster) -> None:
        thread = threading.Thread(target=of_the_host)
        thread.start()
        thread.join()

    real_s = time.time()
    assert run_seed(scenario, 1, kinds=()).failure is None
    slept_s, now_s, size, _ = seen
    assert slept_s >= 0.01
    assert real_s <= now_s <= time.time()
    assert size == 4


def test_callbacks_that_run_without_end_are_a_failure() -> None:
    async def spins(c: Cluster) -> None:
        while True:
            await asyncio.sleep(0)

    failure = run_seed(spins, 1).failure
    assert failure is not None
    assert failure.invariant == "the scenario ends"
    assert "the last ones of scenario" in failure.text


def test_a_crash_between_two_system_calls_keeps_what_was_acknowledged() -> None:
    """Crash in front of the n-th call after each send, for many n."""

    async def crashes(c: Cluster) -> None:
        await c.brokers("a", flushDiskType="SYNC_FLUSH")
        producer = await c.producer("p")
        for number in range(8):
            await producer.try_send("T", b"%d" % number)
        await c.heal()
        await c.settled()

    for seed in range(40 if _WHOLE else 10):
        plan = [Fault(0.3 + 0.7 * number, "power", 0, 0, 0.2, 4 * (7 * seed + number) + 1) for number in range(6)]
        assert run_seed(crashes, seed, plan=plan).failure is None


@pytest.mark.parametrize(
    "name",
    [
        "one_broker", "pulled", "popped", "popped_in_order", "transactions", "fail_over", "failing_handler", "orderly",
        "members", "retried", "dead_letters", "levels", "rows", "rows_fail_over",
        "popped_fail_over",
    ],
)  # fmt: skip
def test_promises_hold_with_faults(name: str) -> None:
    for seed in range(1000, 1300 if _WHOLE else 1013):
        outcome = run_seed(getattr(scenarios, name), seed)
        assert outcome.failure is None, str(outcome.failure)


@pytest.mark.parametrize("name", ["popped", "popped_in_order"])
def test_promises_of_pop_hold_with_faults(name: str) -> None:
    """Leave stops out: a redelivery shortly before a stop is repeated by the next process, as after a kill."""
    kinds = [kind for kind in DEFAULT_KINDS if kind != "stop"]
    for seed in range(1000, 1300 if _WHOLE else 1011):
        outcome = run_seed(getattr(scenarios, name), seed, kinds=kinds)
        assert outcome.failure is None, str(outcome.failure)


@pytest.mark.parametrize(
    ("name", "seeds"),
    [
        ("take_overs", 4),
        ("joins", 2),
        ("late_writes", 2),
        ("disk_replaced", 2),
        ("available", 2),
        ("diverged_slave", 2),
        ("transactions_fail_over", 3),
        ("same_master", 1),
        ("absent_slave", 1),
    ],
)
def test_no_bad_moment_of_a_master_breaks_a_promise(name: str, seeds: int) -> None:
    """Run seeds that found faults: in seed 1 of ``take_overs`` and of ``joins`` a new master's timer gave messages up
    that were behind the confirm offset; in seeds 0 and 2 of ``transactions_fail_over`` transactions were committed
    twice.
    """
    for seed in range(300 if _WHOLE else seeds):
        outcome = run_seed(getattr(scenarios, name), seed, plan=())
        assert outcome.failure is None, str(outcome.failure)


def test_a_message_that_only_an_old_master_has_is_not_taken_back() -> None:
    """An old master answered a send-back although no slave had the message: the group never got the message again."""
    outcome = run_seed(scenarios.take_overs, 119, plan=())
    assert outcome.failure is None, str(outcome.failure)


def test_a_push_consumer_starts_although_the_name_server_ends_in_the_middle_of_the_start() -> None:
    outcome = run_seed(scenarios.rows_fail_over, 2033)
    assert outcome.failure is None, str(outcome.failure)


def test_a_promotion_by_hand_loses_nothing() -> None:
    for seed in range(100 if _WHOLE else 10):
        outcome = run_seed(scenarios.promoted_by_hand, seed, plan=())
        assert outcome.failure is None, str(outcome.failure)


def test_a_revoked_orderly_queue_whose_handler_fails_stops_no_worker() -> None:
    outcome = run_seed(scenarios.orderly, 100)
    assert outcome.failure is None, str(outcome.failure)


@pytest.mark.parametrize("kind", ["etcd lost", "etcd backup"])
def test_promises_hold_when_etcd_loses_data(kind: str) -> None:
    for seed in range(100 if _WHOLE else 2):
        outcome = run_seed(scenarios.fail_over, seed, kinds=(kind, "kill", "isolate"))
        assert outcome.failure is None, str(outcome.failure)


def test_promises_hold_in_power_cuts() -> None:
    for seed in range(300 if _WHOLE else 15):
        outcome = run_seed(scenarios.power_cuts, seed, kinds=("power", "kill"))
        assert outcome.failure is None, str(outcome.failure)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_each_mutant_applies(mutant: Any) -> None:
    texts: dict[str, str] = {}
    for part in mutant.parts:
        before = texts.get(part.file) or (ROOT / part.file).read_text(encoding="utf-8")
        texts[part.file] = broken(part, before)
        assert texts[part.file] != before
        compile(texts[part.file], part.file, "exec")


@pytest.mark.parametrize("name", ["dead_letters", "levels", "orderly", "members", "rows"])
def test_without_faults_nothing_is_delivered_twice_or_given_up_early(name: str) -> None:
    for seed in range(300 if _WHOLE else 8):
        outcome = run_seed(getattr(scenarios, name), seed, plan=())
        assert outcome.failure is None, str(outcome.failure)


@pytest.mark.parametrize(
    "name",
    [
        "etcd-without-its-record-believed", "pop-ack-forgotten", "promoted-though-diverged", "ended-batch-goes-on",
        "lock-granted-to-anyone", "dead-letter-a-try-early",
    ],
)  # fmt: skip
def test_a_mutant_is_found(name: str) -> None:
    finder = Path(__file__).with_name("finder.py")
    command = [sys.executable, str(finder), name, "--seeds", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "1 of 1 mutants are found" in done.stdout


@pytest.mark.parametrize("name", ["long_away", "large_and_again"])
def test_what_replication_once_lost_is_kept(name: str) -> None:
    outcome = run_seed(getattr(scenarios, name), 0, plan=())
    assert outcome.failure is None, str(outcome.failure)
