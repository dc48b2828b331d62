"""``mqfast store groups`` and ``reset-offsets``: lag, plans, and what is set under the store's lock.

Room: tests of the command line.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import copy_of, golden_cases
from store_command import run

import mqfast
from mqfast.cli.exit_codes import ExitCode


def rows(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqfast.open(path) as writer:
        for number in range(60):
            writer.put("Orders", b"%d" % number, number % 3)
        writer.put("Payments", b"one")
        writer.consumer_offsets.commit("billing", "Orders", 0, 5)
        writer.consumer_offsets.commit("billing", "Orders", 1, 20)
        writer.consumer_offsets.commit("billing", "Payments", 0, 1)
        writer.consumer_offsets.commit("audit", "Orders", 2, 7)
    return path


def offsets(path: Path, group: str = "billing", topic: str = "Orders") -> dict[int, int]:
    with mqfast.StoreReader(path) as reader:
        return reader.consumer_offsets(group).get(topic, {})


def test_groups_shows_offsets_and_lag(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, "groups", store, "--json")
    assert (code, said) == (ExitCode.OK, "")
    found = [(r["group"], r["topic"], r["queueId"], r["offset"], r["maxOffset"], r["lag"]) for r in rows(text)]
    assert found == [
        ("audit", "Orders", 0, None, 20, 20), ("audit", "Orders", 1, None, 20, 20), ("audit", "Orders", 2, 7, 20, 13),
        ("billing", "Orders", 0, 5, 20, 15), ("billing", "Orders", 1, 20, 20, 0),
        ("billing", "Orders", 2, None, 20, 20), ("billing", "Payments", 0, 1, 1, 0),
    ]  # fmt: skip
    code, text, _ = run(capsys, "groups", store, "audit")
    assert [line.split() for line in text.splitlines()] == [
        ["group", "topic", "queue", "offset", "min", "max", "lag"],
        ["audit", "Orders", "0", "-", "0", "20", "20"],
        ["audit", "Orders", "1", "-", "0", "20", "20"],
        ["audit", "Orders", "2", "7", "0", "20", "13"],
    ]
    code, text, said = run(capsys, "groups", store, "biling")
    assert (code, text) == (ExitCode.NOTHING_FOUND, "")
    assert "did you mean billing?" in said


def test_groups_of_a_brokers_store(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(golden_cases("5.3.3", ("normal-clean",))[0], tmp_path)
    with mqfast.StoreReader(store) as reader:
        known = reader.consumer_groups()
        ends = {(q.topic, q.queue_id): q.max_offset for q in reader.queues()}
        expected = {
            (g, t, q): o for g in known for t, some in reader.consumer_offsets(g).items() for q, o in some.items()
        }
    code, text, _ = run(capsys, "groups", store, "--json")
    assert code == ExitCode.OK
    found = {(r["group"], r["topic"], r["queueId"]): r["offset"] for r in rows(text) if r["offset"] is not None}
    assert found == expected
    assert all(r["lag"] <= ends.get((r["topic"], r["queueId"]), 0) for r in rows(text))


def test_an_offset_outside_of_its_queue_is_an_error(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(store) as writer:
        writer.consumer_offsets.commit("audit", "Orders", 2, 25)
    code, _, said = run(capsys, "groups", store, "audit")
    assert code == ExitCode.OK
    assert "group audit: messages 20 to 24 of Orders/2 are not in the store" in said


@pytest.mark.parametrize(
    ("to", "after"),
    [
        (("--to-earliest",), {0: 0, 1: 0, 2: 0}),
        (("--to-latest",), {0: 20, 1: 20, 2: 20}),
        (("--to-offset", 7), {0: 7, 1: 7, 2: 7}),
        (("--to-offset", 20, "--queue", 1), {1: 20}),
        (("--to-time", 0), {0: 0, 1: 0, 2: 0}),
        (("--to-time", "2999-01-01T00:00"), {0: 20, 1: 20, 2: 20}),
    ],
)
def test_a_reset_shows_a_plan_and_applies_the_plan_with_yes(
    to: tuple[object, ...], after: dict[int, int], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = offsets(store)
    picture = {p: p.read_bytes() for p in store.rglob("*") if p.is_file()}
    code, text, said = run(capsys, "reset-offsets", store, "billing", "Orders", *to, "--json")
    assert code == ExitCode.OK
    plan = [(r["queueId"], r["before"], r["after"], r["lag"], r["applied"]) for r in rows(text)]
    assert plan == [(queue, before.get(queue), offset, 20 - offset, False) for queue, offset in after.items()]
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == picture
    code, text, said = run(capsys, "reset-offsets", store, "billing", "Orders", *to)
    assert "nothing was changed; --yes does it" in said
    code, text, _ = run(capsys, "reset-offsets", store, "billing", "Orders", *to, "--apply", "--json")
    assert code == ExitCode.OK
    assert [(r["queueId"], r["before"], r["after"], r["lag"], r["applied"]) for r in rows(text)] == [
        (*change[:4], True) for change in plan
    ]
    assert offsets(store) == before | after
    assert offsets(store, topic="Payments") == {0: 1}
    assert offsets(store, "audit") == {2: 7}
    with mqfast.open(store) as writer:
        assert {queue: writer.consumer("billing", "Orders").position(queue) for queue in after} == after


def test_a_reset_to_a_time_begins_at_the_first_message_of_that_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = golden_cases("5.3.3", ("normal-clean",))[0]
    store = copy_of(case, tmp_path)
    with mqfast.StoreReader(store) as reader:
        queue = max(reader.queues(), key=lambda q: q.max_offset)
        times = [m.store_timestamp for m in reader.messages(queue.topic, queue.queue_id)]
    at = times[len(times) // 2]
    arguments = ("reset-offsets", store, "g", queue.topic, "--queue", queue.queue_id, "--to-time", at, "--json")
    (row,) = rows(run(capsys, *arguments)[1])
    assert row["after"] == queue.min_offset + sum(time < at for time in times)


def test_a_reset_of_an_unknown_group_or_topic_is_refused(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start = ("reset-offsets", store, "billing")
    code, _, said = run(capsys, *start, "Ordres", "--to-latest", "--apply")
    assert (code, "did you mean Orders?" in said) == (ExitCode.NOTHING_FOUND, True)
    code, _, said = run(capsys, *start, "Orders", "--to-offset", 21, "--apply")
    assert (code, "expected 0 to 20, as queue 0" in said) == (ExitCode.USAGE, True)
    assert run(capsys, *start, "Orders")[0] == ExitCode.USAGE
    assert run(capsys, *start, "Orders", "--to-latest", "--to-earliest")[0] == ExitCode.USAGE
    with mqfast.open(store):
        assert run(capsys, *start, "Orders", "--to-latest")[0] == ExitCode.OK
        assert run(capsys, *start, "Orders", "--to-latest", "--apply")[0] == ExitCode.LOCKED
    assert offsets(store) == {0: 5, 1: 20}
    code, _, said = run(capsys, "reset-offsets", store, "biling", "Orders", "--to-latest")
    assert (code, "group biling is new; did you mean billing?" in said) == (ExitCode.OK, True)
