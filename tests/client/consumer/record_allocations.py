"""Records what Java's allocation strategies answer, into ``allocations.json`` beside this file.

Run it by hand after a change of the cases: ``.venv/bin/python tests/client/consumer/record_allocations.py``. It needs
Java and Maven; the tests read the file only.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parents[1]
ANSWERS = HERE / "allocations.json"
STRATEGIES = ("AVG", "AVG_BY_CIRCLE", "CONSISTENT_HASH")
ROOMS = ("r1", "r2", "r3")


def cases() -> list[dict[str, Any]]:
    """The same ones every time: all sizes that matter, then random ones."""
    found: list[dict[str, Any]] = []

    def add(strategy: str, queues: list[tuple[str, str, int]], members: list[str], **more: Any) -> None:
        found.append({"strategy": strategy, "queues": queues, "members": members, **more})

    def of(names: list[str], each: int) -> list[tuple[str, str, int]]:
        return [("orders", name, number) for name in names for number in range(each)]

    for strategy in STRATEGIES:
        for count in range(1, 7):
            ids = [f"10.0.0.{number}@{4000 + number}#x" for number in range(1, count + 1)]
            for queues in (1, 4, 7, 12):
                add(strategy, of(["broker-a"], queues), ids)
            add(strategy, of(["broker-b", "broker-a"], 4), ids[::-1])
        add(strategy, of(["größe", "\U0001f600", "\uff5e"], 3), ["\U0001f600@1", "\uff5e@1", "a@1", "B@1"])
        add(strategy, of(["b"], 4), ["same@1", "same@1", "other@1"])
        add(strategy, of(["b"], 4), [])
        add(strategy, [], ["one@1"])
        nearby = f"MACHINE_ROOM_NEARBY-{strategy}"
        add(nearby, of(["r1@a", "r2@b", "r3@c"], 5), ["r1@1", "r1@2", "r2@1"])
        add(nearby, of(["r1@a", "r2@b"], 4), ["r3@1", "r3@2", "r3@3"])
        add(nearby, of(["r1@a", "none"], 4), ["r1@1"])
        add(nearby, of(["r1@a"], 4), ["r1@1", "nowhere"])
    for names in (["r1@a", "r2@b"], ["r1@a", "r9@b", "plain"], ["r1@a@", "@b", "r2@b@c", "r2@"]):
        for count in (1, 2, 3, 5):
            add("MACHINE_ROOM", of(names, 4), [f"m{number}@1" for number in range(count)], rooms=ROOMS)
    add("CONFIG", of(["a"], 4), ["m@1", "n@1"], config=[("orders", "a", 2), ("orders", "gone", 7), ("paid", "a", 0)])
    dice = random.Random(36)
    for _ in range(60):
        names = [f"{dice.choice(ROOMS)}@{number}" for number in range(dice.randint(1, 5))]
        queues = [("orders", name, number) for name in names for number in range(dice.randint(1, 8))]
        members = [f"{dice.choice(ROOMS)}@{dice.randrange(10**6)}" for _ in range(dice.randint(1, 9))]
        kind = dice.choice([*STRATEGIES, *(f"MACHINE_ROOM_NEARBY-{one}" for one in STRATEGIES), "MACHINE_ROOM"])
        add(kind, queues, members, rooms=dice.sample(ROOMS, 2))
    return found


def record() -> None:
    """Ask Java, and write the file."""
    sys.path[:0] = [str(TESTS / "golden" / "make"), str(TESTS / "compat")]
    from make import Machine

    with tempfile.TemporaryDirectory() as work:
        machine = Machine("5.5.0", Path(work), HERE / "Allocate.java")
        command = ["java", "-Dfile.encoding=UTF-8", "-cp", f"{machine.home / 'classes'}:{machine.home / 'jars'}/*"]
        lines = "".join(json.dumps(case) + "\n" for case in cases())
        done = subprocess.run(
            [*command, f"-Duser.home={work}", "Allocate"], input=lines.encode(), capture_output=True, check=True
        )
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    rows = [{**case, **answer, "sent": case["members"]} for case, answer in zip(cases(), answers, strict=True)]
    text = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in rows)
    ANSWERS.write_text(f'{{"release":"5.5.0","cases":[\n{text}\n]}}\n', encoding="ascii")
    print(f"{len(rows)} cases in {ANSWERS}")


if __name__ == "__main__":
    record()
