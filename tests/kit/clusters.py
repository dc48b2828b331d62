"""Clusters that a client is tried against: ours, and brokers of Apache RocketMQ by release, on loopback ports.

Room: tests. Each is started once for the tests that use it, and ended with them. Without Java ours alone is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from running import BrokerProcess

from mqfast.errors import CallTimeout, ConnectionLost
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

OURS = "mqfast"
RELEASES = ("5.5.0", "5.3.3", "4.9.7")
_TESTS = Path(__file__).resolve().parents[1]
# The delays of the levels, short: retries and delayed messages come within a test's time.
LEVELS = "1s 1s 1s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s"

REGISTERED_S = 50
"""A broker that listens registers every ten seconds; one that does not get through is started again."""


@contextlib.contextmanager
def cluster(name: str, work: Path) -> Iterator[str]:
    """A name server and a broker that makes topics by itself. Yields: the name server's address."""
    if name == OURS:
        with BrokerProcess(
            work, messageDelayLevel=LEVELS, transactionTimeOut=2000, transactionCheckInterval=1000
        ) as one:
            yield one.namesrv
        return
    sys.path[:0] = [path for path in (str(_TESTS / "golden/make"), str(_TESTS / "compat")) if path not in sys.path]
    from make import STARTS, StepFailed  # type: ignore[import-not-found]

    for tries_left in reversed(range(STARTS)):
        folder = work / f"start-{tries_left}"
        folder.mkdir()
        machine = _machine(name, folder)
        try:
            _start(machine)
            break
        except StepFailed as error:  # the start of a stock program is not what is under test
            if not tries_left:
                raise StepFailed(f"{error}\n{machine.logs()}") from None
            machine.end_all()
        except BaseException:
            machine.end_all()
            raise
    try:
        yield machine.namesrv
    finally:
        machine.end_all()


def _machine(name: str, work: Path) -> Any:
    """A machine of a release, with ports of its own."""
    from make import Machine

    (work / "conf").mkdir()  # where 4.9 looks for the settings of its logs
    for program in ("namesrv", "broker"):
        shutil.copy(_TESTS / "compat/java/logging-off.xml", work / f"conf/logback_{program}.xml")
    return Machine(name, work, _TESTS / "interop/Flow.java")


def _start(machine: Any) -> None:
    """Start a name server and a broker, and wait until both know each other. Raises: StepFailed."""
    from make import StepFailed, free_port, wait_for

    machine.start_namesrv()
    settings_of_java = {
        "messageDelayLevel": LEVELS,
        "timerWheelEnable": "true",
        "autoCreateTopicEnable": "true",
        "enablePropertyFilter": "true",
        "registerNameServerPeriod": 10_000,
        "transactionCheckInterval": 1000,
        "notifyConsumerIdsChangedEnable": "true",
    }
    broker = machine.start_broker(machine.work / "store", settings_of_java, free_port())
    wait_for(
        lambda: _is_registered(machine.namesrv) or broker.poll() is not None, "the broker's registration", REGISTERED_S
    )
    if broker.poll() is not None:
        raise StepFailed(f"the broker ended with {broker.returncode} before it was registered")


def _is_registered(namesrv: str) -> bool:
    async def ask() -> bool:
        client = RemotingClient()
        try:
            answer = await client.call(namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        except (CallTimeout, ConnectionLost):  # a machine with much to do
            return False
        finally:
            await client.close()
        return answer.code == 0 and b"brk" in answer.body

    return asyncio.run(ask())
