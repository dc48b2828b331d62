"""The job ``dlq``: dead letters come back to their topics, each once, and no more often than the cap allows."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import numpy as np
from conftest import copy_of, golden_cases

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, StoreLocked, StoreNotFound, TopicTooLong, UsageError
from mqfast.properties import DLQ_ATTEMPTS as ATTEMPTS
from mqfast.properties import attempts_of, origin_of
from mqfast.spark.jobs import dlq, dlq_selection
from mqfast.spark.jobs.dead_letters import SentLetters, offsets_of, runs_of
from mqfast.spark.jobs.dlq import DlqSettings, run, settings_of
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.local.commit import STAMP, SinkTransaction
from mqfast.store.check.verify import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONFIG = StoreConfig(mapped_file_bytes_commit_log=1 << 16, mapped_file_bytes_consume_queue=4000)


def bury(path: Path, group: str, count: int, *, first: int = 0, attempts: int | None = None, **more: str) -> None:
    """Dead letters as a broker leaves them: topic T0 or T1 by turns, tag t0 to t2, the number as key and body."""
    with mqfast.open(path, config=CONFIG) as store:
        for i in range(first, first + count):
            way = {"RETRY_TOPIC": f"T{i % 2}", "REAL_TOPIC": f"%RETRY%{group}", "REAL_QID": "0", "DELAY": "0"}
            tried = {} if attempts is None else {ATTEMPTS: str(attempts)}
            origin = {"ORIGIN_MESSAGE_ID": f"{i:032X}", "WAIT": "false", "own": f"p{i % 4}"}
            store.put(
                f"%DLQ%{group}", f"body {i}".encode(), queue_id=0, tags=f"t{i % 3}", keys=f"k{i}",
                properties={**way, **tried, **origin, **more}, reconsume_times=16,
            )  # fmt: skip


def living(path: Path) -> list[Any]:
    """What is in the log and no dead letter, in its order."""
    with mqfast.StoreReader(path) as reader:
        return [m for m in reader.scan() if not m.topic.startswith("%DLQ%")]


def numbers(path: Path) -> list[int]:
    """Which letters came back."""
    return sorted(int(bytes(m.body).decode().split()[-1]) for m in living(path))


def content(path: Path) -> dict[Path, bytes]:
    """Every file but the leases of readers."""
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file() and "spark-leases" not in str(file)}


def facts(report: JobReport, *names: str) -> tuple[Any, ...]:
    return tuple(report.facts[name] for name in names)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
def test_the_letter_of_a_broker_comes_back(spark: SparkSession, tmp_path: Path, release: str) -> None:
    (case,) = golden_cases(release, ("normal-clean",))
    (letter,) = (row for row in case.expected["messages"] if row["topic"].startswith("%DLQ%"))
    store = copy_of(case, tmp_path)
    with mqfast.StoreReader(store) as reader:
        end = reader.readable_range()[1]
    report = run(spark, DlqSettings(str(store), groups=("cg_retry",)))
    assert facts(report, "letters", "chosen", "sent") == (1, 1, 1)
    assert report.tables[0].rows == [("cg_retry", 1, 0, 0, 0, 0, 1)]
    assert report.tables[1].rows == [("RetryTopic", 1)]
    with mqfast.StoreReader(store) as reader:
        (message,) = reader.scan(end)
    kept = {name: letter["properties"][name] for name in ("KEYS", "TAGS", "UNIQ_KEY", "ORIGIN_MESSAGE_ID", "CLUSTER")}
    kept |= {name: letter["properties"][name] for name in ("MSG_REGION", "TRACE_ON") if name in letter["properties"]}
    assert {k: v for k, v in message.properties.items() if k != STAMP} == {**kept, ATTEMPTS: "1"}
    assert message.topic == "RetryTopic"
    assert hashlib.sha256(bytes(message.body)).hexdigest() == letter["bodySha256"]
    assert (message.reconsume_times, message.born_timestamp) == (0, letter["bornTimestamp"])
    assert verify(store).state == "clean"


def test_each_letter_is_sent_once_and_new_ones_later(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    bury(store, "a", 30)
    bury(store, "b", 20, first=100)
    assert facts(run(spark, DlqSettings(str(store), groups=("a",), tags=("t1",))), "chosen", "sent") == (10, 10)
    report = run(spark, DlqSettings(str(store)))
    assert facts(report, "letters", "sentBefore", "chosen", "sent") == (50, 10, 40, 40)
    assert report.tables[0].rows == [("a", 30, 0, 0, 0, 10, 20), ("b", 20, 0, 0, 0, 0, 20)]
    assert facts(run(spark, DlqSettings(str(store))), "sentBefore", "chosen", "sent") == (50, 0, 0)
    bury(store, "a", 5, first=200)
    assert facts(run(spark, DlqSettings(str(store))), "chosen", "sent") == (5, 5)
    assert numbers(store) == [*range(30), *range(100, 120), *range(200, 205)]
    for message in living(store):
        assert message.topic == f"T{int(bytes(message.body)[5:]) % 2}"
    # On purpose: another name sends all of them again.
    assert run(spark, DlqSettings(str(store), txn_id="again")).facts["sent"] == 55
    assert len(numbers(store)) == 110


def test_letters_go_to_another_store_in_their_order(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dlq_selection, "_LETTERS_PER_TASK", 7)
    store, other = tmp_path / "store", tmp_path / "other"
    bury(store, "a", 25)
    with mqfast.open(other, config=CONFIG) as target:
        target.put("Before", b"was here 999")
    with mqfast.open(store, config=CONFIG) as live:  # only the target must be free
        settings = DlqSettings(str(store), str(other), topic="Again")
        assert run(spark, settings).facts["sent"] == 25
        live.put("x", b"y")
    assert [m.topic for m in living(store)] == ["x"]
    found = [m for m in living(other) if m.topic != "Before"]
    assert [bytes(m.body) for m in found] == [f"body {i}".encode() for i in range(25)]
    assert {m.topic for m in found} == {"Again"}
    assert {m.properties["DLQ_ORIGIN_TOPIC"] for m in found} == {"T0", "T1"}
    assert run(spark, settings).facts["sent"] == 0
    with mqfast.open(other, config=CONFIG), pytest.raises(StoreLocked, match="one writer"):
        run(spark, settings)


def test_a_letter_that_died_too_often_is_counted_and_stays(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    for attempts, first in ((None, 0), (1, 10), (2, 20), (7, 30)):
        bury(store, "a", 4, first=first, attempts=attempts)
    bury(store, "a", 1, first=50, DLQ_ATTEMPTS="many")
    report = run(spark, DlqSettings(str(store), max_attempts=2))
    assert facts(report, "letters", "overCap", "sent") == (17, 8, 9)
    found = {int(bytes(m.body)[5:]): m.properties[ATTEMPTS] for m in living(store)}
    assert found == {**dict.fromkeys(range(4), "1"), **dict.fromkeys(range(10, 14), "2"), 50: "1"}
    assert facts(run(spark, DlqSettings(str(store), max_attempts=3)), "overCap", "sentBefore", "sent") == (4, 9, 4)


def test_filters(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    bury(store, "a", 12)
    with mqfast.StoreReader(store) as reader:
        stored = [m.store_timestamp for m in reader.scan()]

    def chosen(**settings: Any) -> tuple[int, int]:
        report = run(spark, DlqSettings(str(store), dry_run=True, **settings))
        assert report.facts["sent"] == 0
        assert report.facts["filteredOut"] + report.facts["chosen"] == report.facts["letters"]
        return facts(report, "filteredOut", "chosen")

    before = {
        path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file() and "lease" not in str(path)
    }
    assert chosen(tags=("t0", "t2")) == (4, 8)
    assert chosen(properties=(("own", "p1"), ("KEYS", "k5"))) == (11, 1)
    assert chosen(where="cast(body as string) LIKE '%1%' AND topic = '%DLQ%a'") == (9, 3)
    between = sum(stored[3] <= time < stored[8] for time in stored)
    assert chosen(since_ms=stored[3], until_ms=stored[8])[1] == between
    with pytest.raises(UsageError, match="where: expected a condition"):
        chosen(where="nonsense > 1")
    with pytest.raises(UsageError, match="where: expected a condition"):
        chosen(where="body >")
    with pytest.raises(UsageError, match=r"group aa: the store has no dead letters.*did you mean a\?"):
        chosen(groups=("aa",))
    after = {
        path: path.read_bytes() for path in sorted(store.rglob("*")) if path.is_file() and "lease" not in str(path)
    }
    assert after == before, "a dry run leaves no trace"


def test_letters_without_origin_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with mqfast.open(store, config=CONFIG) as made:
        made.put("%DLQ%a", b"body 0")
        made.put("%DLQ%a", b"body 1", properties={"RETRY_TOPIC": "%RETRY%a"})
        made.put("%DLQ%a", b"body 2", properties={"RETRY_TOPIC": "%DLQ%b", "DLQ_ORIGIN_TOPIC": "T"})
    report = run(spark, DlqSettings(str(store)))
    assert facts(report, "withoutOrigin", "sent") == (2, 1)
    assert [(m.topic, bytes(m.body)) for m in living(store)] == [("T", b"body 2")]
    assert run(spark, DlqSettings(str(store), topic="Lost")).facts["sent"] == 2
    assert numbers(store) == [0, 1, 2]


def test_stores_without_letters(spark: SparkSession, tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=CONFIG) as store:
        store.put("T", b"x")
    report = run(spark, DlqSettings(str(tmp_path / "store")))
    assert facts(report, "letters", "sent") == (0, 0)
    with pytest.raises(StoreNotFound):
        run(spark, DlqSettings(str(tmp_path / "nothing")))
    with pytest.raises(TopicTooLong):
        run(spark, DlqSettings(str(tmp_path / "store"), topic="T" * 300))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("step", ["intend", "intended", "appended", "marked"])
def test_a_run_that_is_cut_off_is_finished_by_the_next(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    store = tmp_path / "store"
    bury(store, "a", 20)
    real = SinkTransaction.commit

    class Killed(BaseException):
        pass

    def commit(self: SinkTransaction, batch: int, files: Any) -> Any:
        def crash(name: str) -> None:
            if name == step:
                raise Killed

        return real(self, batch, files, crash)

    monkeypatch.setattr(SinkTransaction, "commit", commit)
    with pytest.raises(Killed):
        run(spark, DlqSettings(str(store), tags=("t0", "t1")))
    monkeypatch.undo()
    bury(store, "a", 3, first=40)
    dry = run(spark, DlqSettings(str(store), dry_run=True))
    begun = step != "intend"
    assert facts(dry, "sentBefore", "chosen") == ((14, 9) if begun else (0, 23))
    report = run(spark, DlqSettings(str(store)))
    assert facts(report, "sentBefore", "chosen", "sent") == ((14, 9, 9) if begun else (0, 23, 23))
    assert report.facts["resumed"] == {"intended": 14}.get(step, 0), (
        "what was appended before it was cut off counts there"
    )
    assert numbers(store) == [*range(20), *range(40, 43)]
    assert run(spark, DlqSettings(str(store))).facts["sent"] == 0


def test_a_name_belongs_to_one_store(spark: SparkSession, tmp_path: Path) -> None:
    bury(tmp_path / "one", "a", 3)
    bury(tmp_path / "two", "a", 3)
    with mqfast.open(tmp_path / "target", config=CONFIG) as store:
        store.put("x", b"1")
    to = str(tmp_path / "target")
    run(spark, DlqSettings(str(tmp_path / "one"), to, txn_id="t"))
    with pytest.raises(UsageError, match="expected one query under it"):
        run(spark, DlqSettings(str(tmp_path / "two"), to, txn_id="t"))
    run(spark, DlqSettings(str(tmp_path / "two"), to))
    os.rename(tmp_path / "two", tmp_path / "gone")
    bury(tmp_path / "two", "a", 9)
    with pytest.raises(StoreNotFound, match="not the store"):
        run(spark, DlqSettings(str(tmp_path / "two"), to))


@pytest.mark.parametrize(
    "text", ["{", '{"version": 1}', '{"version": 1, "storeId": "empty", "before": {"x": 1}, "now": {}}']
)
def test_damaged_notes(tmp_path: Path, text: str) -> None:
    transaction = SinkTransaction(str(tmp_path), str(tmp_path / "staging"), "t")
    SentLetters().save(transaction, "empty", {("%DLQ%a", 0): [(0, 3)]}, {})
    (note,) = Path(transaction.directory).iterdir()
    assert json.loads(note.read_text())["now"] == {"%DLQ%a/0": [[0, 3]]}
    assert SentLetters.load(transaction) == SentLetters("empty", {}, 0), "it was never begun"
    note.write_text(text)
    with pytest.raises(CorruptFile, match="note"):
        SentLetters.load(transaction)


def test_runs_of_offsets() -> None:
    offsets = np.array([1, 2, 3, 7, 9, 10], np.int64)
    assert runs_of(offsets) == [(1, 4), (7, 8), (9, 11)]
    assert offsets_of(runs_of(offsets)).tolist() == offsets.tolist()
    assert runs_of(offsets[:0]) == []
    assert offsets_of([]).tolist() == []
    known = SentLetters()
    known.add({("q", 0): [(5, 9)]})
    known.add({("q", 0): [(3, 6), (9, 10)], ("p", 1): [(0, 1)]})
    assert known.sent == {("q", 0): [(3, 10)], ("p", 1): [(0, 1)]}


def test_origin_and_attempts_of_a_letter() -> None:
    assert origin_of({"RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "S"}) == "T"
    assert origin_of({"RETRY_TOPIC": "%RETRY%g", "DLQ_ORIGIN_TOPIC": "S"}) == "S"
    assert origin_of({"RETRY_TOPIC": ""}) is None
    assert [attempts_of({ATTEMPTS: text}) for text in ("3", "x", "", "9999999999", "\u0663")] == [3, 0, 0, 0, 0]


def test_the_command_line() -> None:
    parser = dlq.build_parser()
    line = ["s", "--to", "t", "--groups", "a,b", "--since", "5", "--until", "1970-01-01T00:00:01Z", "--tags", "x || y"]
    line += ["--property", "a=b", "--property", "c=", "--where", "flag = 1", "--topic", "T", "--max-attempts", "9"]
    line += ["--dry-run", "--txn-id", "i", "--staging", "d"]
    assert settings_of(parser.parse_args(line)) == DlqSettings(
        "s", "t", ("a", "b"), 5, 1000, ("x", "y"), (("a", "b"), ("c", "")), "flag = 1", "T", 9, "i", "d", True
    )
    assert settings_of(parser.parse_args(["s"])) == DlqSettings("s")
    for wrong in (["--since", "soon"], ["--property", "a"], ["--property", "=a"]):
        with pytest.raises(SystemExit):
            parser.parse_args(["s", *wrong])
