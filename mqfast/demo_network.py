"""The network part of ``python -m mqfast.demo``: a name server and a broker in one process, and clients.

The Python client and a stock Java client send messages, which are then read from the store. Without the extra
mqfast[broker] the part is skipped with a line, and without Java the Java part as well.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["NetworkFailed", "network"]

TOPIC: Final = "DemoOrders"
GROUP: Final = "demo-readers"
MESSAGES: Final = 20_000
JAVA_TOPIC: Final = "DemoJava"
JAVA_MESSAGES: Final = 200
JAVA_CLIENT: Final = Path(__file__).resolve().parents[1] / "tests" / "interop" / "java_client.py"
_PATIENCE_S: Final = 120.0  # of one send
_DEADLINE_S: Final = 600.0  # a machine may be busy; only a fault takes this long
_NOT_THERE: Final = 3  # exit code: Java or the network is missing
_BODY: Final = b"an order that a client sent by RocketMQ's own protocol".ljust(256, b".")

Say = Callable[[str], None]


class NetworkFailed(Exception):
    """Failure of the round trip, with the reason as text."""


def network(work: Path, step: Say, say: Say, good: Say) -> None:
    """Start both servers, send, pull, stop, and look into the store. Raises: NetworkFailed."""
    step("a name server and a broker in one process, and clients of RocketMQ's protocol")
    try:
        import mqfast.broker.server  # noqa: F401
    except ModuleNotFoundError as error:
        say(f"left out: it needs {error.name}; pip install 'mqfast[broker]'")
        return
    store = work / "network"
    with _up(store) as (address, ready_ms):
        good(f"mqfast up was ready after {ready_ms:.0f} ms: NAMESRV_ADDR={address}")
        _round_trip(address, good)
        topics = [TOPIC, *_java_client(address, say, good)]
    listed = subprocess.run(
        [sys.executable, "-m", "mqfast.cli", "store", "ls", str(store)],
        capture_output=True,
        text=True,
        env=_environment(),
    )
    head, *rows = listed.stdout.splitlines() or [""]
    shown = [row for row in rows if row.split()[0] in topics]
    if listed.returncode != 0 or {row.split()[0] for row in shown} != set(topics):
        raise NetworkFailed(f"mqfast store ls {store} does not show {topics}:\n{listed.stdout}{listed.stderr}")
    good("the same messages in the store: mqfast store ls")
    for row in (head, *shown):
        say(f"  {row}")


def _environment() -> dict[str, str]:
    # The processes must import this very package, from any place.
    root = str(Path(__file__).resolve().parents[1])
    return dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))))


@contextmanager
def _up(store: Path) -> Iterator[tuple[str, float]]:
    started_s = time.perf_counter()
    log = store.with_suffix(".log")
    command = ["up", "--namesrv-port", "0", "--broker-port", "0", "--store", str(store)]
    with log.open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "mqfast.cli", *command],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=_environment(),
        )
    assert process.stdout is not None
    try:
        banner = process.stdout.readline()
        ready_ms = (time.perf_counter() - started_s) * 1000
        if not banner.startswith("NAMESRV_ADDR="):
            raise NetworkFailed(f"mqfast up said {banner!r}, expected its address:\n{log.read_text()}")
        yield banner.removeprefix("NAMESRV_ADDR=").strip(), ready_ms
        process.send_signal(signal.SIGTERM)
        if process.wait(_DEADLINE_S) != 0:
            raise NetworkFailed(f"mqfast up ended with exit code {process.returncode}:\n{log.read_text()}")
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stdout.close()


def _java_client(namesrv: str, say: Say, good: Say) -> list[str]:
    """Send and receive with a stock Java client. Returns: the topic; empty without such a client."""
    if not JAVA_CLIENT.exists():
        say(f"left out: a stock Java client; {JAVA_CLIENT} is part of the source checkout")
        return []
    say("a stock Java client; the first time it is fetched from Maven Central")
    done = subprocess.run(
        [sys.executable, str(JAVA_CLIENT), namesrv, JAVA_TOPIC, "demo-java", str(JAVA_MESSAGES)],
        capture_output=True,
        text=True,
    )
    last = done.stdout.splitlines()[-1:]
    if done.returncode == 0:
        good(last[0])
        return [JAVA_TOPIC]
    if done.returncode != _NOT_THERE or not last:
        raise NetworkFailed(f"{JAVA_CLIENT.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    say(f"left out: {last[0]}")
    return []


def _round_trip(namesrv: str, good: Say) -> None:
    """Send with a Producer, receive with a PushConsumer: every message once and unchanged."""
    from mqfast.client import Message, Producer, PushConsumer, SendResult

    started_s = time.perf_counter()
    with Producer("demo", namesrv, send_timeout_s=_PATIENCE_S) as producer:
        messages = (Message(TOPIC, _BODY, keys=f"order-{number}", tags="demo") for number in range(MESSAGES))
        sent: set[str] = set()
        for result in producer.send_many(messages):
            if not isinstance(result, SendResult):
                raise NetworkFailed(f"a message was refused: {result}")
            sent.update(result.msg_ids)
    took = time.perf_counter() - started_s
    good(f"{len(sent):,} messages sent and acknowledged, {MESSAGES / took:,.0f} a second from a Producer")
    received: set[str] = set()
    started_s = time.perf_counter()
    with PushConsumer(GROUP, namesrv, topics={TOPIC: "demo"}, from_where="earliest") as consumer:
        for message in consumer:
            if message.msg_id in sent and message.body == _BODY:
                received.add(message.msg_id)
            if len(received) == MESSAGES:
                break
            if time.perf_counter() - started_s > _DEADLINE_S:
                raise NetworkFailed(f"{MESSAGES} messages were acknowledged, {len(received)} came: {consumer.stats()}")
    took = time.perf_counter() - started_s
    good(f"all of them received by a PushConsumer of group {GROUP}, {MESSAGES / took:,.0f} a second")
