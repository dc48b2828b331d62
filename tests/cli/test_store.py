"""``mqfast store`` on stores that brokers wrote, in this process and as a process of its own.

Room: tests. It never opens a golden store for writing; ``copy_of`` gives a copy.
"""

from __future__ import annotations

import io
import json
import os
import pty
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Case, copy_of, golden_cases
from store_command import run

import mqfast
from mqfast.cli.arguments import subcommands
from mqfast.cli.exit_codes import ExitCode, exit_code_of
from mqfast.cli.main import build_parser, main
from mqfast.cli.output import Output, body_text, visible
from mqfast.cli.rows import host_text

ROOT = Path(__file__).resolve().parents[2]
FIELDS = [
    "topic",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "size",
    "sysFlag",
    "flag",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "storeHost",
    "reconsumeTimes",
    "preparedTransactionOffset",
    "bodyCRC",
    "bodySha256",
    "properties",
    "msgId",
]


def rows_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def expected_rows(case: Case) -> dict[int, dict[str, Any]]:
    """What Java says of every queued record, by physical offset, in the fields of a dump."""
    rows = {}
    for message in case.expected["messages"]:
        row = {name: message[name] for name in FIELDS if name not in ("topic", "queueId")}
        row["topic"] = message["recordTopic"] or message["topic"]
        row["queueId"] = message["recordQueueId"]
        rows[message["physicalOffset"]] = row
    return rows


def assert_is_dump_of(case: Case, text: str) -> None:
    rows = rows_of(text)
    assert [list(row) for row in rows] == [FIELDS] * len(rows)
    places = [row["physicalOffset"] for row in rows]
    assert places == sorted(places)
    assert places == [row[0] for row in case.expected["log"] if "BLANK" not in row]
    found = {row["physicalOffset"]: row for row in rows}
    for place, row in expected_rows(case).items():
        assert found[place] == row


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    return copy_of(golden_cases("5.3.3", ("killed",))[0], tmp_path)


# --- dump ---


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_dump_of_the_store_as_it_lies_there_equals_what_java_saw(
    case: Case, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(capsys, "dump", case.store, "--json", "--sha256")
    assert_is_dump_of(case, text)
    torn = case.name.startswith("torn")
    assert code == (ExitCode.DAMAGE if torn else ExitCode.OK)
    assert ("the log is damaged at physical offset" in error) == torn


@pytest.mark.parametrize("case", golden_cases(), ids=str)
def test_dump_of_a_recovered_copy_equals_what_java_saw(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copy_of(case, tmp_path)
    mqfast.open(copy).close()
    code, text, error = run(capsys, "dump", copy, "--json", "--sha256")
    assert_is_dump_of(case, text)
    assert (code, error) == (ExitCode.OK, "")


def test_dump_as_text_is_one_line_a_record(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "dump", killed)
    assert code == ExitCode.OK
    assert len(text.splitlines()) == 291
    assert text.splitlines()[0].split()[:3] == ["0", "286", "KillA/2@0"]


def test_reading_changes_not_one_byte(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def picture() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in sorted(killed.rglob("*")) if p.is_file()}

    before = picture()
    for arguments in (("ls",), ("stat",), ("dump",), ("verify",)):
        run(capsys, arguments[0], killed)
    run(capsys, "cat", killed, "KillA")
    run(capsys, "query", killed, "KillA", "ka1")
    assert picture() == before


# --- looking ---


@pytest.mark.parametrize("case", golden_cases(names=("normal-clean", "batch-cq", "lmq", "ha-slave")), ids=str)
def test_ls_tells_the_offsets_that_java_tells(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "ls", case.store, "--json")
    assert code == ExitCode.OK
    found = {(r["topic"], r["queueId"]): (r["minOffset"], r["maxOffset"], r["count"]) for r in rows_of(text)}
    for queue in case.expected["queues"]:
        first, last = max(0, queue["minOffset"]), queue["maxOffset"]
        if last > 0:
            assert found[queue["topic"], queue["queueId"]] == (first, last, last - first)


def test_ls_as_text_has_a_line_for_each_queue(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "ls", killed)
    assert code == ExitCode.OK
    lines = [line.split() for line in text.splitlines()]
    assert lines[0] == ["topic", "queue", "min", "max", "messages"]
    assert ["KillB", "0", "0", "92", "92"] in lines
    assert "\x1b" not in text


def test_stat_tells_sizes_checkpoint_and_need_of_recovery(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "stat", killed, "--json")
    assert code == ExitCode.OK
    (row,) = rows_of(text)
    assert row["files"]["commitlog"]["files"] == 5
    assert row["files"]["commitlog"]["bytes"] == 5 * 32768
    assert (row["minPhysicalOffset"], row["maxPhysicalOffset"]) == (0, 117377)
    assert row["checkpoint"]["physicMsgTimestamp"] == 1795254277411
    assert row["abort"] is True
    assert row["needsRecovery"] is True
    assert row["config"]["mapped_file_bytes_commit_log"] == 32768
    assert row["config"]["max_hash_slot_num"] == 64
    mqfast.open(killed).close()
    (row,) = rows_of(run(capsys, "stat", killed, "--json")[1])
    assert row["needsRecovery"] is False
    assert "recovery needed  no" in run(capsys, "stat", killed)[1]


def test_stat_names_damage(capsys: pytest.CaptureFixture[str]) -> None:
    case = golden_cases("5.3.3", ("torn-flip",))[0]
    code, text, _ = run(capsys, "stat", case.store, "--json")
    assert code == ExitCode.DAMAGE
    (row,) = rows_of(text)
    assert row["damage"] == {
        "physicalOffset": case.expected["maxPhyOffset"],
        "found": "the content of the record does not agree with its CRC",
    }


def test_cat_selects_queue_offset_count_and_tags(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "cat", killed, "KillA", "--queue", 1, "--offset", 10, "--count", 5, "--json")
    assert code == ExitCode.OK
    assert [(row["queueId"], row["queueOffset"]) for row in rows_of(text)] == [(1, n) for n in range(10, 15)]
    _, text, _ = run(capsys, "cat", killed, "KillA", "--offset", -2, "--json")
    assert [(row["queueId"], row["queueOffset"]) for row in rows_of(text)] == [
        (0, 60), (0, 61), (1, 63), (1, 64), (2, 64), (2, 65),
    ]  # fmt: skip
    _, text, _ = run(capsys, "cat", killed, "KillA", "--count", 0, "--tags", "T1 || T2", "--json")
    tags = [row["properties"]["TAGS"] for row in rows_of(text)]
    every = rows_of(run(capsys, "cat", killed, "KillA", "--count", 0, "--json")[1])
    assert len(every) == 62 + 65 + 66
    assert tags == [row["properties"]["TAGS"] for row in every if row["properties"]["TAGS"] in ("T1", "T2")]
    assert {"T1", "T2"} == set(tags)


def test_tail_prints_messages_as_they_are_written(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=1 << 20) as store:
        store.put("T", b"before", tags="A")
        command = [sys.executable, "-m", "mqfast.cli", "store", "tail", str(tmp_path / "store"), "T", "--json"]
        with subprocess.Popen([*command, "--tags", "A", "--count", "2"], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for number in range(1000):  # until the other process looks: it begins at the end of the log
                store.put("T", b"%d" % number, 1, tags="A")
                store.put("T", b"other", 1, tags="B")
                try:
                    child.wait(0.05)
                except subprocess.TimeoutExpired:
                    continue
                break
            rows = rows_of(child.stdout.read())
        assert child.returncode == ExitCode.OK
    assert [row["properties"]["TAGS"] for row in rows] == ["A", "A"]
    assert rows[1]["queueOffset"] == rows[0]["queueOffset"] + 2


def test_tail_that_waits_sleeps(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    run(capsys, "tail", killed, "Nothing", "--seconds", 1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 1000  # one wait of 20 us makes 10,000


def test_tail_ends_when_nothing_is_written(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, "tail", killed, "--seconds", 0.01, "--json")
    assert (code, text) == (ExitCode.NOTHING_FOUND, "")
    assert "nothing was found" in said
    _, text, _ = run(capsys, "tail", killed, "KillA", "--from", 286, "--queue", 0, "--count", 3, "--json")
    assert [row["queueOffset"] for row in rows_of(text)] == [0, 1, 2]


def test_cat_shows_the_stored_body(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "cat", killed, "KillA", "--count", 1, "--queue", 0)
    assert code == ExitCode.OK
    assert "KillA/0@0" in text
    assert "line 639 golden data\\nline 147" in text
    _, text, _ = run(capsys, "cat", killed, "KillA", "--count", 1, "--queue", 0, "--body", "hex")
    assert b"line 639".hex(" ") in text
    _, text, _ = run(capsys, "cat", killed, "KillA", "--count", 1, "--queue", 0, "--body", "none")
    assert "golden data" not in text


def test_get_takes_all_three_kinds_of_place(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = [
        run(capsys, "get", killed, where, "--json")
        for where in ("286", "KillA/0/0", "7F000001000051AF000000000000011E")
    ]
    assert answers[0][0] == ExitCode.OK
    assert answers[0] == answers[1] == answers[2]
    assert rows_of(answers[0][1])[0]["physicalOffset"] == 286


@pytest.mark.parametrize(
    "where", ["287", "99999999", "KillA/0/62", "KillA/9/0", "None/0/0", "7F000001000051AF00000000000001FF"]
)
def test_get_of_nothing_is_its_own_exit_code_and_one_line(
    where: str, killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, error = run(capsys, "get", killed, where)
    assert (code, text) == (ExitCode.NOTHING_FOUND, "")
    assert error.startswith("mqfast: ")
    assert error.count("\n") == 1


def test_query_finds_keys_and_unique_keys_in_a_time_range(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "query", killed, "KillA", "ka1", "--json")
    assert code == ExitCode.OK
    (row,) = rows_of(text)
    assert row["physicalOffset"] == 286
    _, text, _ = run(capsys, "query", killed, "KillA", row["properties"]["UNIQ_KEY"], "--json")
    assert rows_of(text) == [row]
    at = row["storeTimestamp"]
    assert run(capsys, "query", killed, "KillA", "ka1", "--begin", at - 1000, "--end", at)[0] == ExitCode.OK
    assert run(capsys, "query", killed, "KillA", "ka1", "--begin", at + 1)[:2] == (ExitCode.NOTHING_FOUND, "")
    _, text, _ = run(capsys, "query", killed, "KillA", "group1", "--max", 3, "--json")
    assert len(rows_of(text)) == 3


# --- putting ---


def test_put_stores_the_given_message(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    put = ("put", store, "Orders", "grüße", "--queue", 2, "--tags", "new", "--keys", "a b", "--property", "colour=red")
    code, _, error = run(capsys, *put)
    assert code == ExitCode.USAGE
    assert str(store) in error
    assert not store.exists()
    code, text, _ = run(capsys, *put, "--create", "--json")
    assert code == ExitCode.OK
    (row,) = rows_of(text)
    assert (row["topic"], row["queueId"], row["queueOffset"], row["status"]) == ("Orders", 2, 0, "PUT_OK")
    (found,) = rows_of(run(capsys, "query", store, "Orders", "b", "--json")[1])
    assert found["body"] == "grüße"
    assert found["properties"] == {"TAGS": "new", "KEYS": "a b", "colour": "red"}
    assert found["msgId"] == row["msgId"]


def test_put_reads_any_bytes_from_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    body = bytes(range(256))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
    assert run(capsys, "put", tmp_path / "store", "T", "--create")[0] == ExitCode.OK
    with mqfast.open(tmp_path / "store") as store:
        assert store.get("T", 0, 0).bodies() == [body]


def test_put_recovers_a_killed_store_first(killed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "put", killed, "KillA", "more", "--json")
    assert code == ExitCode.OK
    assert rows_of(text)[0]["physicalOffset"] == 117377
    assert not (killed / "abort").exists()


def test_put_beside_another_writer_is_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"first")
        code, text, error = run(capsys, "put", tmp_path / "store", "T", "second")
        assert (code, text) == (ExitCode.LOCKED, "")
        assert error.count("\n") == 1
        # Reading beside a writer is what the other commands are for.
        assert run(capsys, "ls", tmp_path / "store")[0] == ExitCode.OK


# --- bad input ---


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["store"],
        ["store", "nonsense"],
        ["store", "ls"],
        ["store", "cat", "PATH", "T", "--count", "-1"],
        ["store", "query", "PATH", "T", "k", "--begin", "yesterday"],
        ["store", "put", "PATH", "T", "b", "--property", "novalue"],
        ["store", "ls", "/nonexistent/store"],
        ["store", "get", "PATH", "T/x/1"],
    ],
)
def test_wrong_arguments_are_exit_code_2_and_one_line(
    arguments: list[str], killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(killed) if a == "PATH" else a for a in arguments])
    said = capsys.readouterr()
    assert (code, said.out) == (ExitCode.USAGE, "")
    assert said.err.startswith("mqfast: ")
    assert said.err.count("\n") == 1


def test_a_damaged_log_is_an_error_of_one_line_that_names_the_place(
    killed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = killed / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes())
    data[286 + 100] ^= 1
    log.write_bytes(data)
    code, _, error = run(capsys, "get", killed, "KillA/0/0")
    assert code == ExitCode.DAMAGE
    assert error.count("\n") == 1
    assert "286" in error
    assert str(log) in error


def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["store", "--help"]) == ExitCode.OK
    listed = capsys.readouterr().out
    for name in subcommands(subcommands(build_parser())["store"]):
        assert name in listed
        assert main(["store", name, "--help"]) == ExitCode.OK
        text = capsys.readouterr().out
        assert "--json" in text
        assert "exit codes:" in text


def test_every_error_has_its_documented_exit_code() -> None:
    errors = mqfast.errors
    assert exit_code_of(errors.StoreLocked("x")) == ExitCode.LOCKED
    assert exit_code_of(errors.PageCacheBusy("x")) == ExitCode.LOCKED
    assert exit_code_of(errors.DiskFull(28, "x")) == ExitCode.STORAGE
    assert exit_code_of(errors.FlushError(5, "x")) == ExitCode.STORAGE
    assert exit_code_of(PermissionError(13, "x")) == ExitCode.STORAGE
    assert exit_code_of(errors.CorruptFile("x")) == ExitCode.DAMAGE
    assert exit_code_of(errors.OffsetError("x")) == ExitCode.NOTHING_FOUND
    assert exit_code_of(errors.ConfigError("x")) == ExitCode.USAGE
    assert exit_code_of(errors.StoreNotFound(2, "x")) == ExitCode.USAGE
    assert exit_code_of(errors.InternalError("x")) == ExitCode.INTERNAL


def test_a_hostile_message_cannot_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"\x1b[2J gone", tags="\x1b]0;title\x07", properties={"a\x1b": "\x9b1m"})
    code, text, _ = run(capsys, "cat", tmp_path / "store", "T", "--body", "text")
    assert code == ExitCode.OK
    assert not set(text) & {chr(c) for c in [*range(10), *range(11, 32), *range(127, 160)]}
    assert "\\x1b[2J gone" in text


def test_bodies_and_names_for_people() -> None:
    assert body_text(b"plain") == "plain"
    assert body_text(b"\x00\xff") == "00 ff"
    assert body_text("äö".encode() * 10, limit=3) == "ä ... 38 more bytes"
    assert body_text(b"\xff" * 10, limit=3) == "ff ff ff ... 7 more bytes"
    assert body_text(b"a\xffb", "text") == "a\\xffb"
    assert visible("a\tb\u2028") == "a\\tb\\u2028"
    assert host_text("127.0.0.1:80") == "127.0.0.1|80"
    assert host_text("[2001:db8::1]:80") == "2001:db8:0:0:0:0:0:1|80"
    assert host_text("[::ffff:10.0.0.1]:80") == "10.0.0.1|80"


# --- verify and repair ---


@pytest.mark.parametrize("case", golden_cases("5.3.3", ("normal-clean", "killed", "torn-flip", "torn-middle")), ids=str)
def test_verify_distinguishes_whole_and_damaged_stores(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "verify", case.store)
    assert str(case.store) in text
    report = mqfast.verify(case.store)
    assert code == (ExitCode.OK if report.ok else ExitCode.DAMAGE)
    (row,) = rows_of(run(capsys, "verify", case.store, "--json")[1])
    assert row["state"] == report.state
    assert (row["state"] == "clean") == (case.name == "normal-clean")
    # A flip in the last record is what recovery cuts; one in the middle of a file loses the good records behind it.
    assert (code == ExitCode.OK) == (case.name != "torn-middle")


def test_repair_asks_first_and_says_what_was_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(golden_cases("5.3.3", ("torn-middle",))[0], tmp_path)

    def picture() -> dict[str, bytes]:
        return {str(p.relative_to(store)): p.read_bytes() for p in sorted(store.rglob("*")) if p.is_file()}

    before = picture()
    code, text, _ = run(capsys, "repair", store, "--dry-run")
    assert code == ExitCode.OK
    assert text
    assert picture() == before
    # Nobody can be asked here, so nothing happens either.
    code, _, error = run(capsys, "repair", store)
    assert code == ExitCode.USAGE
    assert "--yes" in error
    assert picture() == before
    code, text, _ = run(capsys, "repair", store, "--yes", "--json")
    assert code == ExitCode.OK
    assert len(rows_of(text)) == 1
    assert picture() != before
    mqfast.open(store).close()
    code, _, _ = run(capsys, "verify", store)
    assert code == ExitCode.OK


def test_salvage_puts_back_what_an_open_has_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copy_of(golden_cases("5.3.3", ("torn-middle",))[0], tmp_path)
    (store / "abort").touch()
    with mqfast.open(store) as opened:
        kept = opened.recovery.kept_records
        queues = sum(high for _, _, _, high in opened.queues())
    assert kept > 0
    code, text, _ = run(capsys, "verify", store)
    assert code == ExitCode.OK
    assert f"{kept} whole records, not put back" in text
    (row,) = rows_of(run(capsys, "repair", store, "--salvage", "--dry-run", "--json")[1])
    assert row["salvaged"] == kept
    (row,) = rows_of(run(capsys, "repair", store, "--salvage", "--yes", "--json")[1])
    assert row["salvaged"] == kept
    assert "put back already" in run(capsys, "verify", store)[1]
    assert run(capsys, "repair", store, "--salvage", "--yes")[0] == ExitCode.OK
    with mqfast.open(store) as opened:
        assert sum(high for _, _, _, high in opened.queues()) == queues + kept


def test_repair_beside_a_writer_is_exit_code_4(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"x")
        assert run(capsys, "repair", tmp_path / "store", "--yes")[0] == ExitCode.LOCKED


def test_the_doctor_checks_the_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor", str(tmp_path / "store"), "--json"])
    rows = rows_of(capsys.readouterr().out)
    assert {"name", "found", "verdict", "advice"} == set(rows[0])
    dangers = [row for row in rows if row["verdict"] == "danger"]
    assert code == (ExitCode.DAMAGE if dangers else ExitCode.OK)
    main(["doctor", str(tmp_path / "store")])
    text = capsys.readouterr().out
    # Each look measures anew, and a busy machine may be another finding.
    assert all(
        re.search(rf"^(ok|advice|danger|unknown) +{re.escape(row['name'])}: ", text, re.MULTILINE) for row in rows
    )
    assert list(tmp_path.iterdir()) == []


# --- as a process ---


def process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "mqfast.cli", "store", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False, **options)


def test_the_command_as_a_process(killed: Path) -> None:
    done = process("ls", killed)
    assert (done.returncode, done.stderr) == (0, "")
    assert "KillB" in done.stdout
    done = process("get", killed, 287)
    assert (done.returncode, done.stdout) == (6, "")
    assert "Traceback" not in done.stderr


def on_a_terminal(*arguments: object, answer: bytes = b"") -> tuple[int, str]:
    """Run the command on a terminal of its own; its exit code and what the terminal got, stderr among it."""
    try:
        main_end, their_end = pty.openpty()
    except OSError as error:
        pytest.skip(f"this system gives no terminal: {error}")
    environment = dict(os.environ, PYTHONPATH=str(ROOT), TERM="xterm-256color", COLUMNS="200")
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "mqfast.cli", "store", *map(str, arguments)]
    child = subprocess.Popen(command, stdin=their_end, stdout=their_end, stderr=their_end, env=environment)
    os.close(their_end)
    os.write(main_end, answer)
    got = b""
    try:
        while piece := os.read(main_end, 65536):
            got += piece
    except OSError:
        pass  # the other end was closed
    os.close(main_end)
    return child.wait(60), got.decode()


def test_a_terminal_gets_colour_and_an_answer_is_waited_for(tmp_path: Path) -> None:
    pytest.importorskip("rich")
    store = copy_of(golden_cases("5.3.3", ("torn-middle",))[0], tmp_path)
    code, text = on_a_terminal("ls", store)
    assert code == ExitCode.OK
    assert "\x1b[" in text
    assert "KillB" in text
    before = (store / "checkpoint").read_bytes()
    code, text = on_a_terminal("repair", store, answer=b"n\n")
    assert code == ExitCode.OK
    assert "carry this out?" in text
    assert "nothing was changed" in text
    assert (store / "checkpoint").read_bytes() == before
    code, text = on_a_terminal("repair", store, answer=b"y\n")
    assert code == ExitCode.OK
    assert not (store / "checkpoint").exists()


def test_a_progress_bar_is_drawn_and_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", screen)
    ticks = iter(range(100))
    monkeypatch.setattr("mqfast.cli.output.time.monotonic", lambda: float(next(ticks)))
    with Output(as_json=True).progress("reading") as progress:
        assert progress is not None
        progress(1, 2)
        progress(3, 0)
    text = screen.getvalue()
    assert "\rreading [###############...............]  50%" in text
    assert text.endswith("\r" + " " * len("reading [..............................]  50%") + "\r")
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    with Output(as_json=True).progress("reading") as progress:
        assert progress is None


def test_a_broken_pipe_is_silent(killed: Path) -> None:
    # A pipe whose reader has gone before the first byte.
    reading, writing = os.pipe()
    os.close(reading)
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "mqfast.cli", "store", "dump", str(killed), "--json"]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, env=environment, timeout=300, check=False)
    os.close(writing)
    assert done.stderr == b""
    assert done.returncode == 0


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process's memory is read from /proc")
def test_dump_needs_no_more_memory_for_a_longer_log(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=32 << 20) as store:
        producer = store.producer("T")
        for _ in range(3000):
            producer.put(bytes(64 << 10))
    script = (
        "import sys, os; sys.stdout = open(os.devnull, 'w')\n"
        "from mqfast.cli.main import main\n"
        "code = main(['store', 'dump', sys.argv[1], '--json'])\n"
        "most = next(line for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(code, most.split()[1], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "store")],
        capture_output=True, text=True, env=dict(os.environ, PYTHONPATH=str(ROOT)), timeout=300, check=True,
    )  # fmt: skip
    code, kilobytes = map(int, done.stderr.split())
    assert code == 0
    assert kilobytes < 100 << 10  # the log holds 190 MiB
