"""A cluster with the troubles of a working day, and a console over it, for tests.

Room: tests. Group ``billing`` lags because a member is stuck in a message, ``audit`` has dead letters, ``mailing`` is
up to date. Orders have the keys ``order-0`` to ``order-59``.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from members import ask, send, until
from running import BrokerProcess

from mqfast.client import Delivery, PushConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.remoting.codes import RequestCode

TOKEN = "a-token-for-tests-0123456789"
ORDERS = 60
LETTERS = 12


class Console:
    """``mqfast console`` as a process. Attributes: url."""

    def __init__(self, namesrv: str, *options: str) -> None:
        command = [sys.executable, "-m", "mqfast.cli", "console", "-n", namesrv, "--port", "0", *options]
        self.process = subprocess.Popen(
            command, env={**os.environ, "MQFAST_CONSOLE_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("CONSOLE=http://"), line
        self.url = line.strip().removeprefix("CONSOLE=")

    def end(self) -> int:
        """End it. Returns: its exit code."""
        self.process.terminate()
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def console(namesrv: str, *options: str) -> Iterator[Console]:
    """A console that asks every quarter of a second; a member is stuck after a second."""
    running = Console(namesrv, "--interval", "0.25", "--stuck-after", "1", *options)
    try:
        yield running
    finally:
        assert running.end() == 0


def commit(address: str, group: str, topic: str, queue_id: int, offset: int) -> None:
    """Commit an offset without a member."""
    answer = ask(
        address, RequestCode.UPDATE_CONSUMER_OFFSET, consumerGroup=group, topic=topic, queueId=queue_id,
        commitOffset=offset,
    )  # fmt: skip
    assert answer.code == 0, answer.remark


def many(address: str, count: int) -> None:
    """So many topics and groups, by a request for each thousand."""
    topics = [
        {"topicName": f"topic-{number}", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6} for number in range(count)
    ]
    groups = [{"groupName": f"group-{number}"} for number in range(count)]
    for first in range(0, count, 1000):
        for code, body in (
            (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, {"topicConfigList": topics[first : first + 1000]}),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, {"groupConfigList": groups[first : first + 1000]}),
        ):
            answer = ask(address, code, json.dumps(body).encode())
            assert answer.code == 0, answer.remark


def letter(address: str, group: str, number: int) -> None:
    """A message as a broker stores it in the topic of dead letters."""
    send(
        address, f"%DLQ%{group}", b'{"order": %d, "error": "card refused"}' % number, KEYS=f"order-{number}",
        UNIQ_KEY=f"DD{number:030d}", RETRY_TOPIC="orders", DLQ_ORIGIN_TOPIC="orders",
    )  # fmt: skip


@contextlib.contextmanager
def seeded(work: Path) -> Iterator[BrokerProcess]:
    """A cluster of a name server and a broker, with its troubles."""
    with BrokerProcess(work) as cluster, AdminClient(cluster.namesrv) as admin:
        for topic, queues in (("orders", 4), ("mails", 2), ("invoices", 2), ("%DLQ%audit", 1)):
            admin.create_topic(topic, queues=queues)
        for group in ("billing", "mailing", "audit"):
            admin.create_group(group)
        for number in range(ORDERS):
            body = b'{"order": %d, "amount": %d, "currency": "EUR"}' % (number, 100 + number)
            send(cluster.broker, "orders", body, queue_id=number % 4, KEYS=f"order-{number}", TAGS="new",
                 UNIQ_KEY=f"AB{number:030d}")  # fmt: skip
        send(cluster.broker, "invoices", b"invoice 1", KEYS="invoice")
        send(cluster.broker, "mails", *(b"mail %d" % number for number in range(8)), KEYS="mail")
        for level, count in ((14, 5), (16, 9), (17, 4), (18, 2)):
            send(cluster.broker, "mails", *(b"later" for _ in range(count)), DELAY=str(level))
        for number in range(LETTERS):
            letter(cluster.broker, "audit", number)
        for queue_id in range(4):
            commit(cluster.broker, "audit", "orders", queue_id, ORDERS // 4)
            commit(cluster.broker, "billing", "orders", queue_id, 2 + queue_id)
        commit(cluster.broker, "mailing", "mails", 0, 8)
        until(lambda: admin.groups() and sum(lag.behind for lag in admin.lag("billing").values()) > 0, "the lag")
        yield cluster


@contextlib.contextmanager
def stuck_member(cluster: BrokerProcess, group: str = "billing", topic: str = "orders") -> Iterator[str]:
    """A member whose handler does not return. Yields: its client id."""
    leave, inside = threading.Event(), threading.Event()

    def handle(message: Delivery) -> Any:
        inside.set()
        leave.wait()

    consumer = PushConsumer(group, cluster.namesrv, threads=1, from_where="earliest", instance_name=f"stuck-{group}")
    consumer.subscribe(topic, handle)
    consumer.start()
    try:
        assert inside.wait(30)
        with AdminClient(cluster.namesrv) as admin:
            (member,) = admin.connections(group)
        yield str(member["client_id"])
    finally:
        leave.set()
        consumer.close()
