"""What a group has consumed is what was sent, whatever happens to members and to the broker; a message comes twice only
after a stated fault.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from push_tools import QUICK, Hand, Seen, a_cluster, fill, until

from mqfast.client.consumer.push_consumer import PushConsumer
from mqfast.client.producer.producer import Producer

MEMBER = """
import os, sys, time
from mqfast.client.consumer.push_consumer import PushConsumer
consumer = PushConsumer("killed-group", sys.argv[1], from_where="first")

@consumer.on("killed")
def handle(message):
    os.write(1, message.body + b"\\n")  # whole lines, from any thread
    time.sleep(0.002)

consumer.run()
"""


def test_while_members_join_and_leave_nothing_is_lost(tmp_path: Path) -> None:
    """Stated fault: a queue changes hands while a handler has one of its messages."""
    source = random.Random(7)
    with a_cluster(tmp_path, **QUICK) as cluster:
        hand, seen, sent = Hand(cluster), Seen(), list[bytes]()
        fill(hand, "moving", 4)
        sent += [b"%06d" % i for i in range(4)]
        members: list[PushConsumer] = []
        stop = threading.Event()

        def produce() -> None:
            with Producer("moving-makers", cluster.namesrv) as producer:
                while not stop.is_set():
                    body = b"%06d" % len(sent)
                    producer.send("moving", body)
                    sent.append(body)
                    time.sleep(0.002)

        maker = threading.Thread(target=produce)
        maker.start()
        try:
            for _ in range(24):
                if len(members) < 1 or (len(members) < 4 and source.random() < 0.5):
                    member = PushConsumer("moving-group", cluster.namesrv, from_where="first", threads=3)
                    member.subscribe("moving", seen)
                    members.append(member.start())
                else:
                    members.pop(source.randrange(len(members))).close()
                time.sleep(source.random() * 0.4)
        finally:
            stop.set()
            maker.join(20)
        if not members:
            member = PushConsumer("moving-group", cluster.namesrv, from_where="first")
            member.subscribe("moving", seen)
            members.append(member.start())
        until(lambda: len(set(seen.bodies)) == len(sent), "every message")
        for member in members:
            member.close()
    assert set(seen.bodies) == set(sent)
    twice = sum(count - 1 for count in seen.counts.values())
    assert twice < len(sent) * 0.25


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_broker_restart_loses_nothing(tmp_path: Path, how: int) -> None:
    """Stated fault: the broker forgets offsets of the last five seconds when it is killed."""
    with a_cluster(tmp_path, **QUICK) as cluster:
        hand, seen = Hand(cluster), Seen()
        sent = fill(hand, "lasting", 200)
        consumer = PushConsumer("lasting-group", cluster.namesrv, from_where="first", threads=2)

        @consumer.on("lasting")
        def handle(message: object) -> None:
            seen(message)  # type: ignore[arg-type]
            time.sleep(0.002)

        with consumer:
            seen.wait(40)
            cluster.end(how)
            time.sleep(0.3)
            cluster.start()
            sent += fill(hand, "lasting", 100, first=200)
            until(lambda: set(seen.bodies) == set(sent), "every message")
            assert seen.counts == dict.fromkeys(sent, 1), "the consumer itself forgets nothing"
            until(lambda: not any(consumer.lag().values()), "no lag")


def test_when_a_member_is_killed_the_others_take_its_messages(tmp_path: Path) -> None:
    """Stated fault: what the killed member had done since its last commit comes again."""
    with a_cluster(tmp_path, **QUICK) as cluster:
        hand = Hand(cluster)
        sent = fill(hand, "killed", 4)
        processes = [
            subprocess.Popen([sys.executable, "-c", MEMBER, cluster.namesrv], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        lines: list[list[str]] = [[], []]

        def listen(number: int) -> None:
            stream = processes[number].stdout
            assert stream is not None
            for line in stream:
                lines[number].append(line.strip())

        readers = [threading.Thread(target=listen, args=(number,), daemon=True) for number in range(2)]
        for reader in readers:
            reader.start()
        try:
            end = time.monotonic() + 60
            while not (lines[0] and lines[1]):  # until each has a share of the queues
                assert time.monotonic() < end
                sent.extend(fill(hand, "killed", 4, first=len(sent)))
                until(lambda: {*lines[0], *lines[1]} >= {one.decode() for one in sent}, "every message")
            before = len(lines[0])
            sent += fill(hand, "killed", 400, first=len(sent))
            until(lambda: len(lines[0]) > before, "messages of the first member")
            processes[0].kill()
            sent += fill(hand, "killed", 100, first=len(sent))
            until(lambda: {*lines[0], *lines[1]} >= {one.decode() for one in sent}, "every message")
        finally:
            for process in processes:
                process.send_signal(signal.SIGTERM)
            for process in processes:
                process.wait(200)
        assert set(Counter(lines[1])) <= {one.decode() for one in sent}
