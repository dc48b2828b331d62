"""A cluster with the troubles of a working day, and a console over it, for tests.

Room: tests. Group ``billing`` lags because a member is stuck in a message, ``audit`` has dead letters, ``mailing`` is
up to date. Orders have the keys ``order-0`` to ``order-59``.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from members import ask, until
from running import BrokerProcess

from mqfast.client import Delivery, PushConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.remoting.client import RemotingClient
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
        code = self.process.wait(200)
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


async def _put(
    client: RemotingClient, address: str, topic: str, body: bytes, queue_id: int = 0, **properties: str
) -> None:
    """One message, over a connection that stays."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items())
    letters = {
        "a": "makers", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
        "g": str(int(time.time() * 1000)), "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
    }  # fmt: skip
    answer = await client.call(address, RequestCode.SEND_MESSAGE_V2, letters, body, timeout_ms=10_000)
    assert answer.code == 0, answer.remark


async def _fill(address: str) -> None:
    """Orders, mails, delayed mails, an invoice, dead letters of ``audit``, and the places of the groups."""
    client = RemotingClient()
    try:
        for number in range(ORDERS):
            body = b'{"order": %d, "amount": %d, "currency": "EUR"}' % (number, 100 + number)
            names = {"KEYS": f"order-{number}", "TAGS": "new", "UNIQ_KEY": f"AB{number:030d}"}
            await _put(client, address, "orders", body, number % 4, **names)
        for number in range(8):
            await _put(client, address, "mails", b"mail %d" % number, KEYS="mail")
        for level, count in ((14, 5), (16, 9), (17, 4), (18, 2)):
            for _ in range(count):
                await _put(client, address, "mails", b"later", DELAY=str(level))
        await _put(client, address, "invoices", b"invoice 1", KEYS="invoice")
        for number in range(LETTERS):  # as a broker stores a message that it gives up
            names = {"KEYS": f"order-{number}", "UNIQ_KEY": f"DD{number:030d}", "RETRY_TOPIC": "orders"}
            body = b'{"order": %d, "error": "card refused"}' % number
            await _put(client, address, "%DLQ%audit", body, **names, DLQ_ORIGIN_TOPIC="orders")
        places = [("mailing", "mails", 0, 8)]
        places += [("audit", "orders", queue_id, ORDERS // 4) for queue_id in range(4)]
        places += [("billing", "orders", queue_id, 2 + queue_id) for queue_id in range(4)]
        for group, topic, queue_id, offset in places:
            fields = {
                "consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset),
            }  # fmt: skip
            assert (await client.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, fields)).code == 0
    finally:
        await client.close()


@contextlib.contextmanager
def seeded(work: Path) -> Iterator[BrokerProcess]:
    """A cluster of a name server and a broker, with its troubles."""
    with BrokerProcess(work) as cluster, AdminClient(cluster.namesrv) as admin:
        for topic, queues in (("orders", 4), ("mails", 2), ("invoices", 2), ("%DLQ%audit", 1)):
            admin.create_topic(topic, queues=queues)
        for group in ("billing", "mailing", "audit"):
            admin.create_group(group)
        asyncio.run(_fill(cluster.broker))
        until(lambda: sum(lag.behind for lag in admin.lag("billing").values()) == 46, "the lag")
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
