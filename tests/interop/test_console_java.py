"""Every page of the console, its changes and its snapshot on brokers and name servers of RocketMQ, by release.

Room: tests/interop. A page works, or says what the broker cannot answer. ``make test`` takes one release.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from clusters import RELEASES, cluster
from console_asking import BEARER, ask, confirmed, cookie_of, data
from console_cluster import Console, console
from members import send
from real_programs import NEEDS_JAVA
from sampling import WHOLE, seed_of_the_run
from waiting import until

from mqfast.cli.main import main
from mqfast.client import Delivery, Producer, PushConsumer
from mqfast.client.admin.admin_client import AdminClient
from mqfast.message import Message

pytestmark = [*NEEDS_JAVA, pytest.mark.slow]
TODAY = RELEASES[seed_of_the_run() % len(RELEASES)]


@pytest.fixture(scope="module", params=RELEASES if WHOLE else [TODAY])
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with cluster(request.param, tmp_path_factory.mktemp("console-java")) as address:
        fill(address)
        yield address


def fill(namesrv: str) -> None:
    """Topics, groups, orders, a delayed message, dead letters, and a place of a group."""
    with AdminClient(namesrv, timeout_s=30) as admin:
        for topic in ("orders", "%DLQ%billing"):
            admin.create_topic(topic, queues=2)
        for group in ("billing", "idle"):
            admin.create_group(group)
        until(lambda: {"orders", "%DLQ%billing"} <= set(admin.topics()), "the topics", 60)
        with Producer("makers", namesrv) as producer:
            for number in range(20):
                producer.send(Message("orders", b'{"order": %d}' % number, keys=f"order-{number}"))
            producer.send(Message("orders", b"later", delay_level=18))
        broker = next(iter(admin.topic_stats("orders"))).broker_name
        address = next(iter(admin.clusters().values()))[broker][0]
        send(address, "%DLQ%billing", b"letter", KEYS="letter", RETRY_TOPIC="orders", DLQ_ORIGIN_TOPIC="orders")
        until(lambda: admin.find("orders", key="order-7"), "the index", 60)


@pytest.fixture(scope="module")
def served(namesrv: str) -> Iterator[Console]:
    held: list[str] = []

    def handle(message: Delivery) -> None:
        held.append(message.msg_id)

    member = PushConsumer("billing", namesrv, from_where="earliest")
    member.subscribe("orders", handle)
    with member:
        until(lambda: len(held) >= 21, "all orders", 90)
        with console(namesrv, "--allow-changes", "--timeout", "20") as running:
            until(lambda: any(row["name"] == "billing" for row in data(running, "/groups")["groups"]), "a round", 60)
            yield running


def test_every_page_answers(served: Console) -> None:
    cookie = cookie_of(served)
    broker = data(served, "/brokers")["brokers"][0]["name"]
    (order,) = data(served, "/messages?topic=orders&q=order-7")["messages"]
    paths = [
        "/", "/groups?all=1", "/groups/billing", "/groups/billing/reset?topic=orders&to=earliest", "/groups/idle",
        "/topics?all=1", "/topics/orders", "/messages", "/messages?topic=orders", "/dlq", "/dlq/billing", "/brokers",
        f"/messages/orders/{order['offset_msg_id']}", f"/messages/orders/{order['msg_id']}", f"/brokers/{broker}",
        "/clients?group=billing", "/clients", "/flow", "/delayed",
    ]  # fmt: skip
    for path in paths:
        for headers in ({"Cookie": cookie}, BEARER):
            status, text, _ = ask(served.url + path, **headers)
            assert status == 200, (path, text[-400:])
    assert data(served, "/brokers")["brokers"][0]["version"].startswith("V")
    life = data(served, f"/messages/orders/{order['msg_id']}")["life"]
    assert [event["kind"] for event in life][:2] == ["born", "put"]
    assert data(served, "/delayed")["waiting"] in (0, 1)
    assert data(served, f"/brokers/{broker}")["settings"]["brokerName"] == broker


def test_a_number_that_the_broker_does_not_have_has_its_cause(served: Console) -> None:
    idle = data(served, "/groups/idle")
    assert "has not committed" in idle["lag"]["unknown"]
    producers = data(served, "/clients")["producers"]
    assert isinstance(producers, list) or producers["unknown"]


def test_a_group_with_a_running_member_is_reset_as_planned(served: Console) -> None:
    until(lambda: data(served, "/groups/billing")["lag"] == 0, "the end", 60, pause_s=0.3)
    form = confirmed(served, "billing", topic="orders", to="earliest")
    status, text, _ = ask(f"{served.url}/groups/billing/reset", form=form, **BEARER)
    assert status == 200, text
    assert [row["to"] for row in json.loads(text)["data"]["rows"]] == [0, 0]


def test_a_letter_is_resent_and_exported(served: Console) -> None:
    (letter,) = data(served, "/dlq/billing")["letters"]
    form = {"confirm": "billing", "letter": letter["offset_msg_id"]}
    status, text, _ = ask(f"{served.url}/dlq/billing/resend", form=form, **BEARER)
    assert (status, '"error":null' in text) == (200, True), text
    assert '"body":"letter"' in ask(f"{served.url}/dlq/billing/export", **BEARER)[1]


def test_a_snapshot_is_written(namesrv: str, served: Console, tmp_path: Path) -> None:
    assert main(["console", "-n", namesrv, "--timeout", "20", "--snapshot", str(tmp_path / "out.html")]) == 0
    assert "orders" in (tmp_path / "out.html").read_text("utf-8")
