"""Writes a store with mqfast from a list of steps, in this process or as a child that is to be killed.

Room: tests/compat. As a program it reads one JSON object (path, settings, steps) from stdin and prints one JSON line
per answered step at once, so that its parent knows what was acknowledged when it kills it. It must never end by itself
in that role: it waits to be killed with the store open. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import base64
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

LONG_TOPIC = "%RETRY%" + "g" * 150
TAGS = ["A", "B", "标签", "\U0001f600", "C D"]
NOTHING: dict[str, Any] = {}


def make_steps(
    count: int, seed: int, *, batches: bool = False, long_topic: bool = False, six: bool = False
) -> list[dict[str, Any]]:
    """Return ``count`` puts and maybe batches between them, the same for the same arguments; bodies all differ."""
    rng = random.Random(seed)
    steps: list[dict[str, Any]] = []
    for number in range(count):
        step = _message(rng, f"{seed}.{number}")
        step["topic"] = LONG_TOPIC if long_topic and number % 3 == 0 else rng.choice(["TopicA", "TopicB"])
        step["queue_id"] = rng.randrange(3)
        if six:
            step["born_host"], step["store_host"] = rng.choice(
                [("[2001:db8::1]:77", "[fe80::2]:1"), ("10.1.2.3:5555", "[::1]:10911"), ("[::1]:9", "127.0.0.1:10911")]
            )
        steps.append(step)
        if batches and number % 10 == 4:
            messages = [_message(rng, f"{seed}.{number}.{i}") for i in range(rng.randrange(1, 9))]
            for message in messages:
                message |= {"topic": "Batch", "queue_id": number % 2}
            steps.append({"batch": messages})
    return steps


def _message(rng: random.Random, name: str) -> dict[str, Any]:
    message: dict[str, Any] = {
        "body": name.encode() + b":" + rng.randbytes(rng.choice([0, 1, 30, 400, 2000])),
        "flag": rng.randrange(-9, 9),
        "born_timestamp": 1_700_000_000_000 + rng.randrange(1 << 20),
    }
    if rng.random() < 0.7:
        message["tags"] = rng.choice(TAGS)
    if rng.random() < 0.7:
        message["keys"] = [f"k{rng.randrange(30)}" for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.5:
        message["properties"] = {"UNIQ_KEY": name, "colour": rng.choice(["red", "grün"])}
    return message


def messages_of(steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return every single message of ``steps`` in order."""
    return [message for step in steps for message in step.get("batch", [step])]


def carry_out(store: Any, steps: Iterable[dict[str, Any]], answered: Callable[[dict[str, Any]], None]) -> None:
    """Put every step into the open ``store``; call ``answered`` with the result of each once it is acknowledged."""
    from mqfast.message import Message

    for step in steps:
        if "batch" in step:
            store.put_batch([Message(**message) for message in step["batch"]])
            answered(NOTHING)
            continue
        rest = dict(step)
        result = store.put(rest.pop("topic"), rest.pop("body"), **rest)
        answered(
            {
                "physicalOffset": result.physical_offset,
                "queueOffset": result.queue_offset,
                "msgId": result.message_id,
                "size": result.size,
                "storeTimestamp": result.store_timestamp,
                "status": result.status.name,
            }
        )


def write(path: Path, settings: dict[str, Any], steps: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Open, put, close; return the answers."""
    import mqfast

    answers: list[dict[str, Any]] = []
    with mqfast.open(path, **settings) as store:
        carry_out(store, steps, answers.append)
    return answers


def write_and_be_killed(
    path: Path, settings: dict[str, Any], steps: list[dict[str, Any]], kill_after: int
) -> list[dict[str, Any]]:
    """Let a child put ``steps`` and SIGKILL it once it acknowledged ``kill_after`` of them; return all its answers."""
    order = json.dumps({"path": str(path), "settings": settings, "steps": [_wire(step) for step in steps]})
    child = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve())], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    with child.stdin, child.stdout:
        child.stdin.write(order.encode() + b"\n")
        child.stdin.flush()
        lines = []
        for line in child.stdout:
            lines.append(line)
            if len(lines) == kill_after:
                child.send_signal(signal.SIGKILL)
    code = child.wait()
    if code != -signal.SIGKILL:
        raise AssertionError(f"the writer ended with {code} after {len(lines)} answers instead of being killed")
    return [json.loads(line) for line in lines if line.endswith(b"\n")]


def _wire(step: dict[str, Any]) -> dict[str, Any]:
    if "batch" in step:
        return {"batch": [_wire(message) for message in step["batch"]]}
    return {**step, "body": base64.b64encode(step["body"]).decode()}


def _unwire(step: dict[str, Any]) -> dict[str, Any]:
    if "batch" in step:
        return {"batch": [_unwire(message) for message in step["batch"]]}
    return {**step, "body": base64.b64decode(step["body"])}


def main() -> None:
    """Be the child."""
    import mqfast

    order = json.loads(sys.stdin.buffer.readline())
    store = mqfast.open(order["path"], **order["settings"])
    steps = [_unwire(step) for step in order["steps"]]
    carry_out(store, steps, lambda answer: print(json.dumps(answer), flush=True))
    signal.pause()


if __name__ == "__main__":
    main()
