"""Runs leave nothing behind: no object, no descriptor, no message at the exit; and need no greenlet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_HERE = Path(__file__).resolve().parent
_RUNS = 100 if os.environ.get("MQFAST_WHOLE") else 12

_MANY = """
import gc, os, sys
import scenarios
from mqfast.broker.server import Broker
from mqfast.sim import run_seed
from mqfast.sim.world import World

def resident_mib():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGESIZE") >> 20

for seed in range(int(sys.argv[2])):
    assert run_seed(getattr(scenarios, sys.argv[1]), seed, kinds=sys.argv[3:]).failure is None
    if seed == 3:
        before = len(os.listdir("/proc/self/fd")), resident_mib()
left = [o for o in gc.get_objects() if isinstance(o, (Broker, World))]
print(len(left), len(os.listdir("/proc/self/fd")) - before[0], resident_mib() - before[1])
"""

_HASH = """
import sys
if len(sys.argv) > 1:
    sys.modules[sys.argv[1]] = None  # an import raises ImportError
from scenarios import fail_over
from mqfast.sim import run_seed
print(run_seed(fail_over, 7).hash)
"""


def _run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter, which must end well."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=_HERE, capture_output=True, text=True, check=True
    )


@pytest.mark.parametrize(("scenario", "kinds"), [("one_broker", ("kill", "stop")), ("popped", ("kill",))])
def test_brokers_that_end_leave_nothing_behind(scenario: str, kinds: tuple[str, ...]) -> None:
    done = _run(_MANY, scenario, str(_RUNS), *kinds)
    objects, descriptors, mib = map(int, done.stdout.split())
    assert (objects, descriptors) == (0, 0)
    assert mib < 64  # one run at a time; a leak of stores is 50 MiB a run
    assert done.stderr == ""


_POWER = """
import os
import scenarios
from mqfast.sim import run_seed
run_seed(scenarios.send_and_consume, 0, plan=())
before = os.listdir("/proc/self/fd")
run_seed(scenarios.popped, 12, kinds=("kill", "power"))
assert len(os.listdir("/proc/self/fd")) == len(before)
"""


def test_a_start_that_a_power_cut_ends_makes_no_event_loop() -> None:
    """A simulation ended the process with SIGABRT after some thousand such event loops."""
    assert _run(_POWER).stderr == ""


def test_without_greenlet_real_threads_give_the_same_run() -> None:
    assert _run(_HASH).stdout == _run(_HASH, "greenlet").stdout
