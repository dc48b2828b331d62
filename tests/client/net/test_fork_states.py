"""Forks at any moment of a process whose threads send, consume, ask, and make and close clients all the time.

30 forks; 1,000 with MQFAST_WHOLE=1. Each child sends by the parent's producers, is told that the parent's consumers are
not its own, and ends by itself; the parent goes on, and its group gets every message of parent and children.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from running import BrokerProcess
from sampling import WHOLE

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is needed")
FORKS = 1000 if WHOLE else 30

PROGRAM = """
    import os, random, signal, sys, threading, time, traceback, warnings
    warnings.simplefilter("ignore")
    from mqfast.client import AdminClient, Message, Producer, PullConsumer, PushConsumer, TransactionProducer
    from mqfast.errors import ClientClosed, ClientForked

    address, forks, chance = sys.argv[1], int(sys.argv[2]), random.Random(int(sys.argv[3]))
    stop, failures, sent, seen = threading.Event(), [], set(), set()
    producer = Producer("senders", address, send_timeout_s=20)
    fresh = Producer("never-started", address, send_timeout_s=20)
    payer = TransactionProducer("payers", address, check=lambda message: None, send_timeout_s=20)
    admin = AdminClient(address, timeout_s=20)
    admin.create_topic("forked", queues=4)
    puller = PullConsumer("pullers", address, topics="forked", from_where="first").start()
    unstarted = PushConsumer("children", address, from_where="first")
    unstarted.subscribe("forked", lambda message: heard.set())
    heard = threading.Event()
    pusher = PushConsumer("pushers", address, from_where="first", threads=4)
    pusher.subscribe("forked", lambda message: seen.add(message.msg_id))
    pusher.start()

    def always(work):
        def run():
            while not stop.is_set():
                try:
                    work()
                except Exception:
                    failures.append(traceback.format_exc())
                time.sleep(0.002)
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread

    def short_lived():
        one = PushConsumer("short-lived", address)
        one.subscribe("short", lambda message: None)
        with Producer("short-lived", address, send_timeout_s=20) as other, one:
            other.send("short", b"x")

    def pay():
        with payer.transaction(Message("forked", b"paid")) as transaction:
            sent.add(transaction.msg_id)

    threads = [always(work) for work in (
        lambda: sent.add(producer.send("forked", b"sync").msg_id),
        lambda: sent.add(producer.send_future(Message("forked", b"future")).result(20).msg_id),
        lambda: sent.update(one.msg_id for one in producer.send_many([Message("forked", b"many")] * 3)),
        pay,
        lambda: admin.topic_stats("forked"),
        lambda: puller.poll(timeout_s=0.05),
        short_lived,
    )]

    def child(number, write):
        signal.alarm(100)
        ids = [producer.send("forked", b"child").msg_id]
        ids.append(producer.send_future(Message("forked", b"child")).result(20).msg_id)
        if number % 3 == 0:
            ids.append(fresh.send("forked", b"child").msg_id)
            assert "forked" in admin.topics()
            with payer.transaction(Message("forked", b"child")) as transaction:
                ids.append(transaction.msg_id)
        for call in (lambda: puller.poll(timeout_s=0), puller.commit, pusher.lag, pusher.start):
            try:
                call()
            except (ClientForked, ClientClosed):
                continue
            raise AssertionError("a consumer of the parent was used")
        pusher.close()
        puller.close()
        if number % 5 == 0:
            with unstarted:
                assert heard.wait(60)
        os.write(write, "\\n".join(ids).encode())
        producer.close()

    def fork(number):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child(number, write)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                if number % 2:  # as a process that ends by itself
                    sys.stderr.flush()
                    sys.exit(status)
                os._exit(status)
        os.close(write)
        return pid, read

    running = []

    def reap():
        pid, read = running.pop(0)
        ids = b""
        while data := os.read(read, 10_000):
            ids += data
        os.close(read)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert status == 0, f"a child ended with {status}"
        assert not sent & set(ids.decode().split()), "an id was given twice"
        sent.update(ids.decode().split())

    for number in range(forks):
        time.sleep(chance.random() * 0.02)
        running.append(fork(number))
        if len(running) == 3:
            reap()
    while running:
        reap()
    stop.set()
    for one in threads:
        one.join(60)
        assert not one.is_alive()
    assert not failures, failures[0]
    end = time.monotonic() + 60
    while sent - seen and time.monotonic() < end:
        time.sleep(0.05)
    assert not sent - seen, f"{len(sent - seen)} of {len(sent)} messages did not come"
    for one in (pusher, puller, payer, producer, admin):
        one.close()
    print("ok", len(sent))
"""


def test_forks_in_every_state(tmp_path: Path) -> None:
    script = textwrap.dedent(PROGRAM)
    seed = random.Random().randrange(1 << 30)
    with BrokerProcess(tmp_path) as cluster:
        done = subprocess.run(
            [sys.executable, "-c", script, cluster.namesrv, str(FORKS), str(seed)],
            capture_output=True, text=True, timeout=120 + 6 * FORKS,
        )  # fmt: skip
    assert done.returncode == 0, f"seed {seed}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    assert done.stdout.startswith("ok")
