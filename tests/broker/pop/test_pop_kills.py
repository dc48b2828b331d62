"""POP and SIGKILL: after kills of the broker's process every message is delivered until an ack was answered.

A message may come twice where the group's offset was not on the disk yet.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from free_ports import free_port
from selector_threads import reactor_settings

sys.path.append(str(Path(__file__).resolve().parent))

import asking
from popping import ACK, POP, messages, real_topic

from mqfast.errors import MqfastError
from mqfast.remoting.client import RemotingClient

IS_WHOLE = bool(os.environ.get("MQFAST_WHOLE"))
ROUNDS = 20 if IS_WHOLE else 1
GROUP = "g"


class Killed:
    """A broker process that is killed and started again, and what its only consumer has seen."""

    def __init__(self, work: Path, seed: int) -> None:
        self.work, self.random = work, random.Random(seed)
        self.port = free_port()
        self.process: subprocess.Popen[str] | None = None
        self.sent: set[bytes] = set()
        self.acked: Counter[bytes] = Counter()
        self.deliveries: Counter[bytes] = Counter()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mqfast.cli", "broker", f"listenPort={self.port}", "brokerName=broker-a"]
        command += [f"storePathRootDir={self.work / 'store'}", "mappedFileSizeCommitLog=1048576"]
        command += ["flushConsumerOffsetInterval=300", "brokerIP1=127.0.0.1", "grpcServerPort=0"]
        command += [f"{name}={value}" for name, value in reactor_settings().items()]
        with (self.work / "broker.log").open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if "access control" in line:
                return
        raise AssertionError((self.work / "broker.log").read_text())

    def kill(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(200)
        self.process.stdout.close()

    def send(self, bodies: list[bytes]) -> None:
        for position, body in enumerate(bodies):
            assert asking.send(self.address, "T", body, queue_id=position % 4).code == 0
        self.sent |= set(bodies)

    async def consume(self, pops: int, ack_share: float, invisible_ms: int, wait_ms: int) -> int:
        """Pop so often, ack a share of what came. Returns: the count of messages."""
        client, count = RemotingClient(), 0
        try:
            for _ in range(pops):
                size = str(self.random.choice((1, 8, 32)))
                fields = {
                    "consumerGroup": GROUP, "topic": "T", "queueId": "-1", "maxMsgNums": size, "initMode": "0",
                    "invisibleTime": str(invisible_ms), "pollTime": str(wait_ms), "bornTime": "0",
                }  # fmt: skip
                answer = await client.call(self.address, POP, fields, timeout_ms=30_000)
                for popped in messages(answer) if answer.code == 0 else ():
                    count += 1
                    self.deliveries[popped.body] += 1
                    if self.random.random() < ack_share:
                        parts = popped.handle.split(" ")
                        fields = {
                            "consumerGroup": GROUP, "topic": real_topic(popped.handle), "queueId": parts[6],
                            "extraInfo": popped.handle, "offset": parts[7],
                        }  # fmt: skip
                        done = await client.call(self.address, ACK, fields, timeout_ms=30_000)
                        assert done.code == 0, (done.code, done.remark)
                        self.acked[popped.body] += 1
        except MqfastError:
            raise AssertionError((self.work / "broker.log").read_text()) from None
        finally:
            await client.close()
        return count


@pytest.mark.parametrize("seed", range(10) if IS_WHOLE else [1])
def test_nothing_is_lost_by_kills_of_the_broker(tmp_path: Path, seed: int) -> None:
    one = Killed(tmp_path, seed)
    one.start()
    try:
        for number in range(ROUNDS):
            one.send([b"%d-%d" % (number, position) for position in range(24)])
            asyncio.run(one.consume(4, ack_share=0.5, invisible_ms=500, wait_ms=0))
            one.kill()
            one.start()
        quiet = 0
        while not one.sent <= set(one.acked):
            quiet = 0 if asyncio.run(one.consume(8, ack_share=1, invisible_ms=5000, wait_ms=500)) else quiet + 1
            assert quiet < 5, f"lost: {sorted(one.sent - set(one.acked))}"
        assert one.sent == set(one.acked)
        asyncio.run(one.consume(1, ack_share=1, invisible_ms=5000, wait_ms=0))
    finally:
        one.kill()
