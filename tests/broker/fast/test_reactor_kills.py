"""Reactors and SIGKILL: each answered send is stored, once, where its answer says, in the order of its connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
from pathlib import Path

import pytest
from raw_frames import Raw, json_frame, letters
from running import BrokerProcess
from sampling import WHOLE

import mqfast

pytestmark = [pytest.mark.slow, pytest.mark.skipif("sys.platform != 'linux'", reason="reactors need epoll")]

PARTS, ROUNDS = (10, 20) if WHOLE else (1, 2)
PRODUCERS = 4
UNDER_WAY = 16


class Killed:
    """A broker with reactors, its producers, and what was acknowledged: number -> (queue id, queue offset).

    ``connections``: the numbers that each connection has sent, in order.
    """

    def __init__(self, broker: BrokerProcess) -> None:
        self.broker = broker
        self.acknowledged: dict[int, tuple[int, int]] = {}
        self.connections: list[list[int]] = []
        self.next = 0

    async def produce(self, queue_id: int, kill_after: int) -> None:
        """Send until the connection ends."""
        raw = await Raw.to("{}:{}".format(*self.broker.address))
        sent: list[int] = []
        self.connections.append(sent)

        def send() -> None:
            number = self.next
            self.next += 1
            sent.append(number)
            extra = "TRACE_ON\x01false\x02" if number % 11 == 5 else ""  # these are stored by the event loop
            fields = letters(number, queue_id=queue_id, properties=f"{extra}UNIQ_KEY\x01id{number:09}\x02")
            raw.send(json_frame(fields, b"%d" % number, opaque=number))

        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            for _ in range(UNDER_WAY):
                send()
            while True:
                frame = await raw.receive()
                answer = json.loads(frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
                assert answer["code"] == 0, answer
                fields = answer["extFields"]
                self.acknowledged[answer["opaque"]] = int(fields["queueId"]), int(fields["queueOffset"])
                if len(self.acknowledged) >= kill_after and self.broker.process.poll() is None:
                    self.broker.process.send_signal(signal.SIGKILL)
                send()
        raw.close()

    async def round(self, chance: random.Random) -> None:
        kill_after = len(self.acknowledged) + chance.randrange(1, 3000)
        await asyncio.gather(*(self.produce(number % 2, kill_after) for number in range(PRODUCERS)))
        self.broker.end(signal.SIGKILL)

    def check(self) -> None:
        """Compare what was acknowledged with what is stored."""
        stored: dict[int, tuple[int, int]] = {}
        with mqfast.open(self.broker.store) as store:
            for queue_id in range(2):
                at = store.min_offset("T", queue_id)
                while messages := list(store.get("T", queue_id, at, 1000)):
                    for message in messages:
                        number = int(bytes(message.body))
                        assert number not in stored, f"message {number} is stored twice"
                        stored[number] = queue_id, message.queue_offset
                    at = messages[-1].queue_offset + 1
        for sent in self.connections:
            places = [stored[number][1] for number in sent if number in stored]
            assert places == sorted(places)
        lost = {number: place for number, place in self.acknowledged.items() if stored.get(number) != place}
        assert not lost, f"{len(lost)} of {len(self.acknowledged)} acknowledged messages are not where they were"


@pytest.mark.parametrize("part", range(PARTS))
def test_acknowledged_sends_survive_kills(tmp_path: Path, part: int) -> None:
    chance = random.Random(46 + part)
    with BrokerProcess(tmp_path, serverSelectorThreads=2) as broker:
        killed = Killed(broker)
        for number in range(ROUNDS):
            if number:
                broker.start()
            asyncio.run(asyncio.wait_for(killed.round(chance), 120))
            if number % 5 == 1:
                killed.check()
        killed.check()
        assert len(killed.acknowledged) > 100 * ROUNDS
        broker.start()
