"""``mqfast explain --store``: the life of messages in the stores of Java brokers and in one of ours, also damaged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import Case, copy_of, golden_cases

import mqfast
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.main import main


def life(capsys: pytest.CaptureFixture[str], *words: object) -> list[tuple[str, str]]:
    assert main(["explain", *map(str, words), "--json"]) == ExitCode.OK
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [(row["kind"], row["text"]) for row in rows]


def of_topic(store: Path, topic: str) -> list[str]:
    """The unique ids of the messages of a topic."""
    with mqfast.StoreReader(store) as reader:
        return [record.properties["UNIQ_KEY"] for record in reader.scan() if record.topic == topic]


@pytest.mark.parametrize("case", golden_cases(None, ("normal-clean",)), ids=str)
def test_retries_of_a_java_broker(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(case, tmp_path)
    unique = of_topic(store, "%RETRY%cg_retry")[0]
    events = life(capsys, unique, "--store", store)
    kinds = [kind for kind, _ in events]
    assert kinds[:4] == ["born", "put", "delayed", "retry"]
    assert "for topic %RETRY%cg_retry, after 1 failed deliveries" in events[2][1]
    assert "ready for delivery 2 to group cg_retry" in events[3][1]
    assert all("; a unit of the queue names the record" in text for kind, text in events if kind in ("put", "retry"))
    assert kinds[-1] == "unknown"
    assert life(capsys, unique, "--store", store, "--scan") == events


@pytest.mark.parametrize("case", golden_cases(None, ("timer",)), ids=str)
def test_timed_messages_of_a_java_broker(case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(case, tmp_path)
    with mqfast.StoreReader(store) as reader:
        record = next(record for record in reader.scan() if record.topic == "rmq_sys_wheel_timer")
    events = life(capsys, record.properties["UNIQ_KEY"], "--store", store)
    assert ("timed", "waits in the timer for topic TimerTopic; a unit of the queue names the record") in events


def test_a_record_without_its_unit_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    with mqfast.open(store) as opened:
        opened.put("orders", b"1", properties={"UNIQ_KEY": "AB" * 16})
        opened.put("orders", b"2", properties={"UNIQ_KEY": "CD" * 16})
    queue = next((store / "consumequeue" / "orders" / "0").iterdir())
    data = bytearray(queue.read_bytes())
    data[20:40] = bytes(20)
    queue.write_bytes(data)
    assert "; a unit of the queue names" in life(capsys, "AB" * 16, "--store", store)[1][1]
    assert "NO unit of the queue names the record" in life(capsys, "CD" * 16, "--store", store)[1][1]
    assert main(["explain", "EF" * 16, "--store", str(store)]) == ExitCode.NOTHING_FOUND
    assert "--scan reads the whole log" in capsys.readouterr().err
    assert main(["explain", "x", "--store", str(tmp_path / "none")]) == ExitCode.USAGE
