"""The console under attack: hostile messages, other sites, used forms, a cluster that changes, and slow clients.

Room: tests of the console.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shlex
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn
from console_asking import BEARER, ask, confirmed, cookie_of, data, form_of
from console_cluster import TOKEN, Console, commit, console
from members import ask as ask_broker
from members import send
from running import BrokerProcess
from starlette.requests import Request
from starlette.responses import Response
from waiting import until

from mqfast.client.admin.admin_client import AdminClient
from mqfast.console.guards import ImpatientProtocol
from mqfast.console.page import command
from mqfast.console.pages.brokers import shown_settings
from mqfast.remoting.codes import RequestCode

SCRIPT = "<script>alert(1)</script>"
BODIES = {
    "deep": b"[" * 60_000,
    "half": b'["\\ud800"]',
    "wide": (b"[" * 900 + b"]" * 900) * 36,
    "script": SCRIPT.encode(),
    "binary": bytes(range(256)),
    "long": b"x" * 200_000,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("safety")) as running, AdminClient(running.namesrv) as admin:
        for topic, queues in (("orders", 2), ("odd", 1), ("%DLQ%odd", 1)):
            admin.create_topic(topic, queues=queues)
        for group in ("billing", "odd"):
            admin.create_group(group)
        yield running


@pytest.fixture(scope="module")
def served(cluster: BrokerProcess) -> Iterator[Console]:
    with console(cluster.namesrv, "--allow-changes", "--public-name", "console.example") as running:
        until(lambda: {"odd", "billing"} <= {row["name"] for row in data(running, "/groups")["groups"]}, "a round")
        yield running


def put_hostile(cluster: BrokerProcess, topic: str) -> None:
    """Messages that no client of ours would send."""
    for key, body in BODIES.items():
        send(cluster.broker, topic, body, KEYS=key, TAGS=SCRIPT, UNIQ_KEY=f"\x1b[2J{SCRIPT}{key}")
    for born in (1 << 62, -(1 << 62), 253_402_300_800_000):
        answer = ask_broker(
            cluster.broker, RequestCode.SEND_MESSAGE_V2, b"born", a="makers", b=topic, c="TBW102", d=4, e=0, f=0,
            g=born, h=0, i=f"KEYS\x01born{born}\x02", j=0, k="false", m="false",
        )  # fmt: skip
        assert answer.code == 0, answer.remark


def test_no_message_hides_another(cluster: BrokerProcess, served: Console) -> None:
    put_hostile(cluster, "odd")
    put_hostile(cluster, "%DLQ%odd")
    cookie = cookie_of(served)
    count = len(BODIES) + 3
    assert len(data(served, "/messages?topic=odd")["messages"]) == count
    letters = data(served, "/dlq/odd")["letters"]
    assert len(letters) == count
    paths = [f"/messages/%25DLQ%25odd/{letter['offset_msg_id']}" for letter in letters]
    for path in ["/messages?topic=odd", "/dlq/odd", *paths]:
        status, text, _ = ask(served.url + path, Cookie=cookie)
        assert (status, SCRIPT in text, len(text) < 2_000_000) == (200, False, True), path
        status, text, _ = ask(served.url + path, **BEARER)
        assert (status, len(text) < 2_000_000) == (200, True), path


def test_an_export_has_every_byte(cluster: BrokerProcess, served: Console) -> None:
    if not data(served, "/dlq/odd")["letters"]:
        put_hostile(cluster, "%DLQ%odd")
    rows = [json.loads(line) for line in ask(f"{served.url}/dlq/odd/export", **BEARER)[1].splitlines()]
    bodies = {
        row["keys"][0]: row["body"].encode() if "body" in row else base64.b64decode(row["bodyBase64"]) for row in rows
    }
    assert {key: bodies[key] for key in BODIES} == BODIES


@pytest.mark.parametrize(
    "path",
    ["/messages?topic=odd&begin=0001-01-01", "/messages?topic=odd&end=9999-12-31T23:59", "/messages?topic=a%00b",
     "/messages?topic=odd&q=%ff%00", "/messages/odd/%1b", "/groups?page=999999999999999999", "/groups/%00",
     "/groups/odd/reset?topic=odd&to=time&time=0001-01-01",
     "/groups/odd/reset?topic=odd&to=offset&offset=9&queue=999999999999",
     "/clients?group=%0a", "/static/..%2fweb.py", "/static/%2e%2e/web.py", "/dlq/%2e%2e/export"],
)  # fmt: skip
def test_an_odd_address_is_an_answer(served: Console, path: str) -> None:
    status, text, _ = ask(served.url + path, **BEARER)
    assert (status in (200, 400, 404, 502), "Traceback" in text) == (True, False), (status, text)


def test_another_name_does_not_reach_the_console(served: Console) -> None:
    port = served.url.rpartition(":")[2]
    for host in (f"evil.example:{port}", "evil.example", "127.0.0.1.evil.example", "["):
        assert ask(f"{served.url}/", Host=host, **BEARER)[0] in (400, 421), host
    for host in (f"localhost:{port}", "[::1]:99", "10.0.0.9", "console.example"):
        assert ask(f"{served.url}/", Host=host, **BEARER)[0] == 200, host


def test_another_site_cannot_log_in_or_close_the_login(served: Console) -> None:
    for header in ({"Origin": "http://127.0.0.1:1"}, {"Origin": "null"}, {"Sec-Fetch-Site": "same-site"}):
        for _ in range(5):
            assert ask(f"{served.url}/login", form={"token": "wrong"}, **header)[0] == 403
        status, _, headers = ask(f"{served.url}/login", form={"token": TOKEN}, **header)
        assert (status, "set-cookie" in headers) == (403, False)
    assert ask(f"{served.url}/login", form={"token": TOKEN}, Origin="https://console.example")[0] == 303
    cookie_of(served)


def test_failed_logins_close_the_door_for_their_address_only(served: Console) -> None:
    answers = [
        ask(f"{served.url}/login", form={"token": f"wrong-{number}"}, X_Forwarded_For="10.9.9.9")[0]
        for number in range(11)
    ]
    assert answers == [403] * 10 + [429]
    assert ask(f"{served.url}/", X_Forwarded_For="10.9.9.9", **BEARER)[0] == 401
    assert ask(f"{served.url}/", **BEARER)[0] == 200


def test_a_session_belongs_to_the_port(served: Console) -> None:
    name, _, value = cookie_of(served).partition("=")
    assert name == f"mqfast_console_{served.url.rpartition(':')[2]}"
    assert ask(f"{served.url}/", Cookie=f"mqfast_console={value}")[0] == 303


def test_a_form_is_sent_once_at_a_time(cluster: BrokerProcess, served: Console) -> None:
    cookie = cookie_of(served)
    form = {**form_of(served, cookie, "/topics/orders"), "confirm": "orders", "body": "once", "key": "twice"}
    answers: list[int] = []

    def press() -> None:
        answers.append(ask(f"{served.url}/topics/orders/send", form=form, Cookie=cookie)[0])

    fingers = [threading.Thread(target=press) for _ in range(4)]
    for finger in fingers:
        finger.start()
    for finger in fingers:
        finger.join()
    assert sorted(answers) == [200, 403, 403, 403]
    assert len(data(served, "/messages?topic=orders&q=twice")["messages"]) == 1


# --- what was confirmed is what is done ---


def reset(served: Console, form: dict[str, str]) -> tuple[int, str]:
    return ask(f"{served.url}/groups/billing/reset", form=form, **BEARER)[:2]


def committed(cluster: BrokerProcess, topic: str) -> dict[int, int]:
    with AdminClient(cluster.namesrv) as admin:
        return {queue.queue_id: offset for queue, offset in admin.committed("billing", topic).items()}


def test_a_confirmed_plan_is_what_is_done(cluster: BrokerProcess, served: Console) -> None:
    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic("planned", queues=2)
    for queue_id in (0, 1):
        send(cluster.broker, "planned", *[b"1"] * 10, queue_id=queue_id)
        commit(cluster.broker, "billing", "planned", queue_id, 4)
    latest = confirmed(served, "billing", topic="planned", to="latest")
    earliest = confirmed(served, "billing", topic="planned", to="earliest")
    send(cluster.broker, "planned", *[b"2"] * 3)  # after the plan, which does not skip them
    commit(cluster.broker, "billing", "planned", 0, 12)  # what was to be skipped would be delivered again
    status, text = reset(served, latest)
    assert (status, "load the plan again" in text, committed(cluster, "planned")) == (403, True, {0: 12, 1: 4})
    commit(cluster.broker, "billing", "planned", 0, 3)  # a reset by another tool
    for plan in (earliest, latest):
        status, text = reset(served, plan)
        assert (status, "load the plan again" in text, committed(cluster, "planned")) == (403, True, {0: 3, 1: 4})
    commit(cluster.broker, "billing", "planned", 0, 4)
    commit(cluster.broker, "billing", "planned", 1, 6)  # a member goes on
    status, text = reset(served, latest)
    assert (status, committed(cluster, "planned")) == (200, {0: 10, 1: 10}), text


def test_a_plan_does_not_hold_for_other_queues(cluster: BrokerProcess, served: Console) -> None:
    with AdminClient(cluster.namesrv) as admin:
        admin.create_topic("grows", queues=1)
        send(cluster.broker, "grows", b"1", b"2")
        commit(cluster.broker, "billing", "grows", 0, 1)
        plan = confirmed(served, "billing", topic="grows", to="earliest")
        admin.create_topic("grows", queues=2)
    assert reset(served, plan)[0] == 403
    assert committed(cluster, "grows")[0] == 1
    for wrong in ("", "[]", "{}", '[["b"]]', '[["broker-a",0,0,1],["broker-a",0,0,2]]', "[" * 5000, f"[{'[' * 9}"):
        assert reset(served, {**plan, "plan": wrong})[0] == 400
    assert committed(cluster, "grows")[0] == 1


# --- what is shown ---


def test_secrets_of_settings_are_hidden() -> None:
    secret = {
        "initAuthenticationUser": '{"username":"root","password":"abc"}', "socksProxyConfig": '{"x":"password"}',
        "innerClientAuthenticationCredentials": '{"accessKey":"a"}', "tls.server.keyPassword": "abc",
        "metricsGrpcExporterHeader": "Authorization:Bearer abc", "unknownSetting": '{"secretKey":"abc"}',
    }  # fmt: skip
    shown = shown_settings({**secret, "brokerName": "a", "aclEnable": "true", "tls.server.keyPassword2": ""})
    assert {name: shown[name] for name in secret} == dict.fromkeys(secret, "(hidden)")
    assert (shown["brokerName"], shown["aclEnable"]) == ("a", "true")


@pytest.mark.parametrize(
    "word", ["plain", "it's", "\x1b[201~\nrm -rf x\n", "\u202eevil", "back\\slash\x07", "é\x00"[:1]]
)
def test_a_copied_command_has_no_control_character_and_means_the_same(word: str) -> None:
    line = command("topic", "show", word)
    assert line.isprintable()
    script = f"printf %s {line.removeprefix('mqfast admin topic show ')}"
    said = subprocess.run(["bash", "-c", script], stdout=subprocess.PIPE, check=True)
    assert said.stdout.decode() == word
    assert word != "plain" or shlex.split(line)[-1] == word


# --- clients that are slow ---


class Hasty(ImpatientProtocol):
    """Ends connections soon."""

    patience_s = 0.3


@pytest.fixture(scope="module")
def hasty() -> Iterator[int]:
    """A server with the protocol of the console. Yields: its port."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        path = Request(scope).url.path
        if path == "/slow":
            await asyncio.sleep(1)
        await Response(b"x" * (50_000_000 if path == "/large" else 1))(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, http=Hasty, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield listening.getsockname()[1]
    server.should_exit = True
    thread.join()


def connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=20)


def is_ended(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_a_connection_without_a_request_ends(hasty: int) -> None:
    with connection(hasty) as silent, connection(hasty) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\n")
        assert is_ended(silent)
        assert is_ended(slow)


def test_a_client_that_does_not_read_its_answer_is_left(hasty: int) -> None:
    with connection(hasty) as deaf:
        deaf.sendall(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(1.5)
        count = 0
        with pytest.raises(ConnectionResetError):
            while part := deaf.recv(1 << 20):
                count += len(part)
            raise ConnectionResetError
        assert count < 50_000_000


def test_a_slow_answer_and_a_client_that_comes_again_are_served(hasty: int) -> None:
    with connection(hasty) as client:
        for path in ("/slow", "/", "/slow"):
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert client.recv(4096).startswith(b"HTTP/1.1 200")


def test_an_address_has_half_of_all_connections(served: Console) -> None:
    port = int(served.url.rpartition(":")[2])
    held = [connection(port) for _ in range(130)]
    try:
        ended = 0
        for client in held:
            client.settimeout(0.02)
            try:
                ended += is_ended(client)
            except TimeoutError:
                continue
        assert 30 <= ended <= 40
    finally:
        for client in held:
            client.close()
    until(lambda: ask(f"{served.url}/", **BEARER)[0] == 200, "an answer")
