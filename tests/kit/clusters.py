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

from running import BrokerProcess

from mqfast.errors import CallTimeout, ConnectionLost
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode

OURS = "mqfast"
RELEASES = ("5.5.0", "5.3.3", "4.9.7")
_TESTS = Path(__file__).resolve().parents[1]
# The delays of the levels, short: retries and delayed messages come within a test's time.
LEVELS = "1s 1s 1s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s 2s"


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
    from make import Machine, free_port, wait_for  # type: ignore[import-not-found]

    machine = Machine(name, work, _TESTS / "interop/Flow.java")
    (work / "conf").mkdir()  # where 4.9 looks for the settings of its logs
    for program in ("namesrv", "broker"):
        shutil.copy(_TESTS / "compat/java/logging-off.xml", work / f"conf/logback_{program}.xml")
    try:
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
        machine.start_broker(work / "store", settings_of_java, free_port())
        wait_for(lambda: _is_registered(machine.namesrv), "the broker's registration")
        yield machine.namesrv
    finally:
        machine.end_all()


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
