"""docs/client.md: every block of Python is run as a program, beside a broker of ours."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent / "consumer"))

from consumer_cluster import Hand, a_cluster

import mqfast
from mqfast.client import Producer, PullConsumer

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "client.md").read_text(encoding="utf-8")
ADDRESS = "127.0.0.1:9876"


def blocks() -> list[tuple[str, str]]:
    """(heading, code) of every block of Python."""
    found = []
    for section in re.split(r"^##+ ", PAGE, flags=re.MULTILINE)[1:]:
        heading = section.partition("\n")[0]
        found += [(heading, code) for code in re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)]
    return found


BLOCKS = blocks()


def missing(code: str) -> str:
    """What the block imports and this installation does not have."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and node.module == "mqfast":
            for alias in node.names:
                if not hasattr(mqfast, alias.name):
                    return f"mqfast.{alias.name}"
        elif isinstance(node, ast.ImportFrom):
            try:
                if importlib.util.find_spec(str(node.module)) is None:
                    return str(node.module)
            except ModuleNotFoundError:
                return str(node.module)
    return ""


@pytest.fixture(scope="module")
def hand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hand]:
    with a_cluster(tmp_path_factory.mktemp("page")) as one:
        hand = Hand(one)
        hand.send("orders", *(b"%d" % number for number in range(5)), properties="TAGS\x01new\x02")
        yield hand


# What is done with a block that only defines something.
DRIVERS: dict[str, str] = {
    "FastAPI": """
from fastapi.testclient import TestClient
with TestClient(app) as client:
    answer = client.post("/orders/42")
    assert answer.status_code == 200, answer.text
    print("msg_id", answer.json()["msg_id"])
""",
    "Django": """
import django
from django.conf import settings
from django.core.management import call_command
settings.configure()
django.setup()
call_command(Command(), count=2)
print("msg_id")
""",
    "gunicorn and uWSGI": """
import os
def request():
    heard = []
    body = application({"PATH_INFO": "/42"}, lambda status, headers: heard.append(status))
    assert heard == ["200 OK"] and len(body[0]) >= 32, (heard, body)
request()
children = []
for _ in range(3):
    child = os.fork()
    if child == 0:
        request()
        os._exit(0)
    children.append(child)
assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
request()
print("msg_id")
""",
}


def run(code: str, hand: Hand, place: Path, *, wait_for: str, ends_by_signal: bool) -> str:
    """Run a program. Returns: what it printed. Fails unless it ends well."""
    program = place / "program.py"
    program.write_text(code.replace(ADDRESS, hand.namesrv))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NAMESRV_ADDR": hand.namesrv, "HOME": str(place)}
    with (place / "errors").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-W", "error::ResourceWarning", str(program)],
            stdout=subprocess.PIPE, stderr=errors, text=True, cwd=place, env=environment,
        )  # fmt: skip
        assert process.stdout is not None
        out = ""
        if ends_by_signal:
            for line in process.stdout:
                out += line
                if wait_for in line:
                    break
            process.send_signal(signal.SIGTERM)
        try:
            rest, _ = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        errors.seek(0)
        assert process.returncode == 0, f"{code}\n{errors.read()}"
    return out + rest


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_of_the_page_runs(number: int, hand: Hand, tmp_path: Path) -> None:
    heading, code = BLOCKS[number]
    hand.send("orders", b"0", properties="TAGS\x01new\x02")  # blocks before may have consumed all for their group
    lacks = missing(code)
    if lacks:
        pytest.skip(f"{lacks} is not there")
    if heading in DRIVERS:
        out = run(code + DRIVERS[heading], hand, tmp_path, wait_for="msg_id", ends_by_signal=False)
        assert "msg_id" in out
    elif "consumer.run()" in code:
        assert "b'0'" in run(code, hand, tmp_path, wait_for="b'0'", ends_by_signal=True)
    elif "add_signal_handler" in code:
        out = run(code, hand, tmp_path, wait_for="done 0", ends_by_signal=True)
        assert "done 0" in out
    else:
        assert run(code, hand, tmp_path, wait_for="", ends_by_signal=False).strip()


def test_the_page_has_a_block_for_each_promise() -> None:
    headings = [heading for heading, _ in BLOCKS]
    for wanted in ("Five minutes", "Pull consumers", "What may be delivered twice", "From Java", *DRIVERS):
        assert wanted in headings, wanted
    assert headings.count("Five minutes") == 3
    for wanted in ("Transactions", "Order", "Request and reply", "Delay and recall", "Forward a message"):
        assert wanted in headings, wanted
    assert "Offsets in the own database" in headings


def test_the_table_of_defaults_is_what_the_classes_have() -> None:
    made = {**inspect.signature(Producer.__init__).parameters, **inspect.signature(PullConsumer.__init__).parameters}
    expected = {
        "send_timeout_s": 3.0, "retries": 2, "max_message_bytes": 4 << 20, "latency_fault": False, "linger_ms": 0,
        "max_in_flight": 16_384, "max_in_flight_bytes": 64 << 20, "pull_batch": 10, "from_where": "latest",
        "max_cached_messages": 1000, "max_cached_bytes": 100 << 20, "tls": False, "close_timeout_s": 5.0,
        "auto_commit_s": 5.0, "compress_over_bytes": 4096, "compression": "zlib", "compress_level": 5,
    }  # fmt: skip
    assert {name: made[name].default for name in expected if name in made} == {
        name: value for name, value in expected.items() if name in made
    }
    assert {"send_timeout_s", "auto_commit_s", "max_in_flight"} <= made.keys()
