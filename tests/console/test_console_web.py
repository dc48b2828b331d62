"""The console over HTTP: login, forms, headers, JSON of every page, read-only, unknown numbers, one file for a ticket.

Room: tests of the console.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from console_asking import BEARER, ask, confirmed, cookie_of, data, form_of
from console_cluster import LETTERS, TOKEN, Console, commit, console, seeded, stuck_member
from running import BrokerProcess
from waiting import until

from mqfast.cli.main import build_parser, main
from mqfast.console.rendering import STATIC
from mqfast.testing import Broker


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with seeded(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def served(cluster: BrokerProcess) -> Iterator[Console]:
    with console(cluster.namesrv, "--allow-changes") as running:
        until(lambda: data(running, "/groups")["total"] >= 3, "a round")
        yield running


def test_nothing_is_shown_without_a_login(served: Console) -> None:
    for path in ("/", "/groups", "/topics/orders", "/dlq/audit/export"):
        status, text, headers = ask(served.url + path)
        assert (status, text) == (303, "")
        assert headers["location"].startswith("/login?next=")
    assert ask(f"{served.url}/groups", Accept="application/json")[0] == 401
    assert ask(f"{served.url}/groups", Accept="application/json", Authorization="Bearer wrong")[0] == 401
    assert ask(f"{served.url}/login", form={"token": "wrong"})[0] == 403


@pytest.mark.parametrize("path", ["//evil.example", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"])
def test_a_login_leads_nowhere_else(served: Console, path: str) -> None:
    assert ask(f"{served.url}/login", form={"token": TOKEN, "next": path})[2]["location"] == "/"


def test_scripts_and_styles_of_a_page_come_from_the_console_only(served: Console) -> None:
    _, text, headers = ask(f"{served.url}/groups/billing", Cookie=cookie_of(served))
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert re.findall(r"<script(?! src=)|\sstyle=|<style|\son\w+=", text) == []
    assert re.findall(r'(?:src|href)="https?:', text) == []


def test_the_scripts_of_the_console_stay_small() -> None:
    lines = [len((STATIC / name).read_text("utf-8").splitlines()) for name in ("console.js", "theme.js")]
    assert sum(lines) < 1500


def test_a_reset_of_a_queue_begins_with_its_offset(served: Console) -> None:
    text = ask(f"{served.url}/groups/billing", Cookie=cookie_of(served))[1]
    link = re.search(r'href="(/groups/billing/reset\?[^"]*queue=3[^"]*)"', text)
    assert link
    plan = data(served, link[1].replace("&amp;", "&"))
    assert (plan["wanted"]["offset"], [row["to"] for row in plan["plan"]]) == ("5", [5])


def test_every_page_is_json_under_the_same_path(served: Console) -> None:
    now = data(served, "/")
    assert (now["brokers"], now["groups"]) == (1, 3)
    (billing,) = (row for row in data(served, "/groups")["groups"] if row["name"] == "billing")
    assert (billing["lag"], billing["topics"]) == (46, ["orders"])
    assert data(served, "/groups/billing")["queues"][0]["committed"] == 2
    orders = data(served, "/topics/orders")
    assert (orders["messages"], len(orders["queue_rows"]), orders["groups"]) == (60, 4, ["audit", "billing"])
    (order,) = data(served, "/messages?topic=orders&q=order-7")["messages"]
    assert (order["keys"], json.loads(order["body"])["order"]) == (["order-7"], 7)
    life = data(served, f"/messages/orders/{order['offset_msg_id']}")
    assert [event["kind"] for event in life["life"]][:2] == ["born", "put"]
    letters = data(served, "/dlq/audit")["letters"]
    assert ([row["origin"] for row in letters]) == ["orders"] * LETTERS
    (broker,) = data(served, "/brokers")["brokers"]
    assert data(served, f"/brokers/{broker['name']}")["settings"]["brokerName"] == broker["name"]
    assert data(served, "/clients?group=billing")["members"] == []
    assert {band["group"] for band in data(served, "/flow")["bands"]} == {"audit", "billing", "mailing"}
    assert data(served, "/delayed")["waiting"] == 20
    lines = ask(f"{served.url}/dlq/audit/export", **BEARER)[1].splitlines()
    assert [json.loads(line)["topic"] for line in lines] == ["%DLQ%audit"] * LETTERS


def test_the_lag_of_a_group_without_an_offset_is_unknown_in_the_list_and_exact_on_its_page(
    cluster: BrokerProcess, served: Console
) -> None:
    with stuck_member(cluster, group="fresh", topic="invoices") as client_id:
        until(lambda: any(row["name"] == "fresh" for row in data(served, "/groups")["groups"]), "the group")
        page = data(served, "/groups/fresh")
        assert (page["lag"], page["members"]) == (1, 1)
        assert client_id in page["member_rows"][0]["client_id"]


def test_the_command_of_every_page_is_one(served: Console) -> None:
    paths = ["/", "/groups", "/groups/billing", "/groups/billing/reset", "/topics", "/topics/orders", "/messages"]
    paths += [
        "/messages?topic=orders",
        "/messages?topic=orders&q=order-7",
        "/dlq",
        "/dlq/audit",
        "/brokers",
        "/clients",
    ]
    paths += [f"/groups/billing/reset?topic=orders&{to}" for to in ("to=latest", "to=offset&offset=3&queue=1&broker=b")]
    for path in [*paths, "/clients", "/flow", "/delayed"]:
        text = ask(served.url + path, **BEARER)[1]
        program, *words = shlex.split(json.loads(text).get("command", "mqfast admin cluster"))
        assert program == "mqfast"
        build_parser().parse_args(words)


def test_an_unknown_name_is_404_with_the_nearest_and_a_wrong_field_400(served: Console) -> None:
    status, text, _ = ask(f"{served.url}/groups/biling", **BEARER)
    assert (status, "'billing'" in text) == (404, True)
    assert ask(f"{served.url}/topics/ordes", **BEARER)[0] == 404
    assert ask(f"{served.url}/groups?page=x", **BEARER)[0] == 400
    assert ask(f"{served.url}/messages?topic=orders&begin=soon", **BEARER)[0] == 400
    status, text, _ = ask(f"{served.url}/topics/%3Cscript%3Ealert(1)%3C%2Fscript%3E", Cookie=cookie_of(served))
    assert (status, "<script>alert" in text) == (404, False)


def test_a_change_needs_the_secret_of_the_form_and_the_typed_name(served: Console) -> None:
    cookie = cookie_of(served)
    url, hidden = f"{served.url}/topics/mails/send", form_of(served, cookie, "/topics/mails")
    form = {**hidden, "confirm": "mails", "body": "hello", "key": "web-1"}
    assert ask(url, form={**form, "form_secret": "another"}, Cookie=cookie)[0] == 403
    assert ask(url, form=form, Cookie=cookie, Origin="https://evil.example")[0] == 403
    status, text, _ = ask(url, form={**form, "confirm": "mail"}, Cookie=cookie)
    assert (status, "nothing was changed" in text) == (400, True)
    assert data(served, "/messages?topic=mails&q=web-1")["messages"] == []
    status, text, _ = ask(url, form=form, Cookie=cookie, Origin=served.url)
    assert (status, "SEND_OK" in text) == (200, True)
    status, text, _ = ask(url, form=form, Cookie=cookie, Origin=served.url)
    assert (status, "not sent before" in text) == (403, True)
    assert len(data(served, "/messages?topic=mails&q=web-1")["messages"]) == 1


def test_each_letter_of_a_resend_has_its_own_outcome(served: Console) -> None:
    letter = data(served, "/dlq/audit")["letters"][0]
    form = {"confirm": "audit", "letter": [letter["offset_msg_id"], "7F00000100002A9F0000000000FFFFFF"]}
    status, text, _ = ask(f"{served.url}/dlq/audit/resend", form=form, **BEARER)
    assert status == 200
    sent, failed = json.loads(text)["data"]["rows"]
    assert (sent["topic"], sent["error"]) == ("orders", None)
    assert failed["error"] == "no dead letter has this id"


def test_a_reset_is_read_back(served: Console) -> None:
    form = confirmed(served, "mailing", topic="mails", to="earliest")
    status, text, _ = ask(f"{served.url}/groups/mailing/reset", form=form, **BEARER)
    assert status == 200, text
    assert [row["stored"] for row in json.loads(text)["data"]["rows"]] == [0, 0]


def test_a_console_is_read_only_unless_told_otherwise(cluster: BrokerProcess) -> None:
    with console(cluster.namesrv) as served:
        form = {"confirm": "mailing", "topic": "mails", "to": "earliest"}
        until(lambda: data(served, "/groups")["total"] >= 3, "a round")
        for path, more in (("/groups/mailing/reset", form), ("/topics/mails/send", {"confirm": "mails"})):
            status, text, _ = ask(served.url + path, form=more, **BEARER)
            assert (status, "read-only" in text) == (403, True)


def test_a_snapshot_is_one_file_without_scripts(cluster: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "out.html"
    assert main(["console", "-n", cluster.namesrv, "--snapshot", str(path)]) == 0
    text = path.read_text(encoding="utf-8")
    assert "billing" in text
    assert re.findall(r"<script|<form|<link", text) == []


def test_what_a_dead_broker_does_not_tell_is_unknown_and_not_zero() -> None:
    with Broker(topics=["orders"], groups=["billing"]) as cluster, console(cluster.namesrv_addr) as served:
        commit(next(iter(cluster.addresses.values())), "billing", "orders", 0, 0)
        until(lambda: data(served, "/")["brokers"] == 1, "a round")
        (broker,) = data(served, "/brokers")["brokers"]
        assert broker["disk"] >= 0
        assert data(served, "/groups/billing")["lag"] == 0
        cluster.kill()
        until(lambda: "unknown" in str(data(served, "/brokers")["brokers"][0]["in"]), "a round without the broker")
        (row,) = (row for row in data(served, "/groups")["groups"] if row["name"] == "billing")
        assert "do not list the broker" in row["lag"]["unknown"]
        assert any(broker["name"] in finding["text"] for finding in data(served, "/")["findings"])
        assert 'class="unknown"' in ask(f"{served.url}/groups", Cookie=cookie_of(served))[1]


def test_a_dead_name_server_is_said_and_the_last_numbers_stay(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as cluster, console(cluster.namesrv) as served:
        until(lambda: data(served, "/")["brokers"] == 1, "a round")
        cluster.end(9)
        until(lambda: "did not answer" in str(data(served, "/")["findings"]), "a round without the name server")
        assert data(served, "/")["brokers"] == 1


def test_ten_failed_logins_close_the_door_for_a_minute(cluster: BrokerProcess) -> None:
    with console(cluster.namesrv) as served:
        answers = [ask(f"{served.url}/login", form={"token": f"wrong-{number}"})[0] for number in range(11)]
        assert answers == [403] * 10 + [429]
        assert ask(f"{served.url}/login", form={"token": TOKEN})[0] == 429


def test_a_short_token_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MQFAST_CONSOLE_TOKEN", "short")
    assert main(["console", "-n", "127.0.0.1:1"]) == 2
    assert "MQFAST_CONSOLE_TOKEN: expected at least 16 characters, found 5" in capsys.readouterr().err
