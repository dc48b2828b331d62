"""What users mistype or misunderstand: an error or a hint of one line that names the mistake, and its exit code.

Room: tests of the command line, and of the library's answers to the same mistakes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from laboratory import lab
from store_command import run

import mqfast
from mqfast.cli.exit_codes import ExitCode
from mqfast.errors import OffsetError, StoreNotFound, UsageError

ROOT = Path(__file__).resolve().parents[2]
UNIQUE = "7F0000010000000000000000000F423F"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqfast.open(path) as writer:
        for number in range(8):
            writer.put(
                "Orders", b"body %d" % number, number % 4, tags="a", keys=f"k{number}",
                properties={"UNIQ_KEY": UNIQUE} if number == 5 else None,
            )  # fmt: skip
        writer.put("Payments", b"paid")
    return path


# --- looking for what is not there ---


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("query", "STORE", "Ordres", "k1"), "topic Ordres: no such topic in STORE; did you mean Orders?"),
        (("query", "STORE", "orders", "k1"), "did you mean Orders?"),
        (("cat", "STORE", "Ordres"), "did you mean Orders?"),
        (("cat", "STORE", "Orders", "Zzz"), "topic Zzz: no such topic in STORE; there are Orders, Payments"),
        (("get", "STORE", "Ordres/0/0"), "did you mean Orders?"),
        (("get", "STORE", "Orders/9/0"), "expected a queue of 0 to 3, found 9"),
        (("cat", "STORE", "Orders", "--queue", "99999"), "expected a queue of 0 to 3, found 99999"),
        (("get", "STORE", "5"), "physical offset 5 (of the log; a queue offset is another number)"),
        (("get", "STORE", UNIQUE[:-1] + "E"), "expected an offset message id, a unique key or another key"),
        (("query", "STORE", "Orders", "none"), "nothing was found"),
        (("cat", "STORE", "Orders", "--offset", "100"), "the last offset is 1, found 100"),
    ],
)
def test_a_missing_name_has_its_exit_code_and_is_in_the_error(
    arguments: tuple[str, ...], named: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, said = run(capsys, *(str(store) if word == "STORE" else word for word in arguments))
    assert (code, text) == (ExitCode.NOTHING_FOUND, "")
    assert named.replace("STORE", str(store)) in said


def test_damage_has_another_exit_code(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = store / "commitlog" / f"{0:020}"
    data = bytearray(log.read_bytes()[:200])
    data[data.index(b"body 0")] ^= 1
    with log.open("r+b") as file:
        file.write(data)
    for arguments in (("cat", store, "Orders"), ("get", store, "0"), ("get", store, "Orders/0/0"), ("dump", store)):
        code, text, said = run(capsys, *arguments)
        assert (code, text) == (ExitCode.DAMAGE, ""), arguments
        assert "CRC" in said or "crc" in said


def test_a_query_of_a_store_without_an_index_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.open(tmp_path / "store", message_index_enable=False) as writer:
        writer.put("Orders", b"body", keys="k")
    code, _, said = run(capsys, "query", tmp_path / "store", "Orders", "k")
    assert (code, "the store has no index file" in said) == (ExitCode.NOTHING_FOUND, True)


def test_tail_of_an_unknown_topic_prints_a_note_and_waits(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, said = run(capsys, "tail", store, "Ordres", "Orders", "--seconds", 0.01)
    assert (code, text) == (ExitCode.NOTHING_FOUND, "")
    assert "topic Ordres: no such topic" in said
    assert "did you mean Orders?" in said
    assert "waiting" in said
    assert "topic Orders:" not in said


def test_get_finds_a_unique_key_as_a_key(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "get", store, UNIQUE)
    assert code == ExitCode.OK
    assert "body 5" in text
    assert run(capsys, "query", store, "Orders", UNIQUE)[1] == text
    assert run(capsys, "get", store, "k6")[1].endswith("body 6\n")


@pytest.mark.parametrize("expression", ["a && b", "a&&b", "a | b"])
def test_two_tags_at_once_are_no_tag_expression(
    expression: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (("cat", store, "Orders"), ("tail", store, "Orders", "--seconds", 0)):
        code, text, said = run(capsys, *command, "--tags", expression)
        assert (code, text) == (ExitCode.USAGE, "")
        assert f"expected tags joined by || ('A || B'), found {expression!r}" in said


# --- paths ---


@pytest.mark.parametrize("path", ["", "FILE", "FILE/below", "NOTHING", "EMPTY"])
def test_a_path_without_a_store_is_named(path: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "FILE").write_text("x")
    (tmp_path / "EMPTY").mkdir()
    where = str(tmp_path / path) if path else ""
    for arguments in (("ls", where), ("cat", where, "T"), ("verify", where), ("put", where, "T", "b")):
        code, text, said = run(capsys, *arguments)
        assert (code, text) == (ExitCode.USAGE, ""), arguments
        assert said.count("\n") == 1
        assert (str(tmp_path / "FILE") if "FILE" in path else where or "found an empty one") in said
        if "FILE" in path:
            assert "expected the directory of a store, found a file" in said
    for attempt in (mqfast.open, mqfast.StoreReader, mqfast.verify, mqfast.repair):
        if path in ("NOTHING", "EMPTY") and attempt is mqfast.open:
            continue
        with pytest.raises((UsageError, OSError)) as caught:
            attempt(where)
        if path == "FILE":
            assert isinstance(caught.value, StoreNotFound)
    assert sorted(os.listdir(tmp_path)) == ["EMPTY", "FILE"]
    assert os.listdir(tmp_path / "EMPTY") == []


@pytest.mark.parametrize("path", [5, None, 1.5])
def test_a_value_that_is_no_path_is_a_usage_error(path: object) -> None:
    for attempt in (mqfast.open, mqfast.StoreReader, mqfast.verify, mqfast.repair):
        with pytest.raises(UsageError, match="path: expected a path, found"):
            attempt(path)  # type: ignore[operator]


def test_a_path_of_bytes_is_a_path(store: Path) -> None:
    with mqfast.open(os.fsencode(store)) as writer, mqfast.StoreReader(os.fsencode(store)) as reader:  # type: ignore[arg-type]
        assert writer.topics() == [*dict.fromkeys(queue.topic for queue in reader.queues())]


# --- the library ---


def test_get_by_offset_names_the_arguments_that_it_takes(store: Path) -> None:
    with mqfast.open(store) as writer, mqfast.StoreReader(store) as reader:
        for get in (writer.get_by_offset, reader.get_by_offset):
            with pytest.raises(OffsetError, match="of the log; a queue offset is another number"):
                get(5)
            with pytest.raises(OffsetError, match=r"unique key has the same form and is found by query\(topic, key\)"):
                get(UNIQUE)
            for wrong in (True, 1.5, None):
                with pytest.raises(OffsetError, match="expected a physical offset"):
                    get(wrong)  # type: ignore[arg-type]


def test_a_queue_id_far_behind_the_others_is_a_warning(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, said = run(capsys, "put", store, "Orders", "x", "--queue", 4)
    assert (code, "queue 4 of topic Orders is new; there are 0 to 3" in said) == (ExitCode.OK, True)
    code, _, said = run(capsys, "put", store, "Ordres", "x")
    assert (code, "topic Ordres is new; did you mean Orders?" in said) == (ExitCode.OK, True)
    with mqfast.open(store) as writer:
        assert writer.get("Orders", 99999, 0).status.name == "NO_MATCHED_LOGIC_QUEUE"
        writer.put("Orders", b"far", 99999)
        writer.topics()
        lab(writer).persist_topics()  # what its thread does every five seconds
        (warning,) = [text for text in writer.stats()["warnings"] if "99999" in text]
    assert "now counts 100000 queues" in warning


# --- streams ---


def shell(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", script, "sh", sys.executable, *map(str, arguments)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)


def test_a_closed_standard_output_is_an_error_before_anything_is_done(store: Path) -> None:
    for command in ("ls", "dump", "put"):
        done = shell(f'"$1" -m mqfast.cli store {command} "$2" Other body >&-' if command == "put" else
                     f'"$1" -m mqfast.cli store {command} "$2" >&-', store)  # fmt: skip
        assert (done.returncode, done.stdout) == (ExitCode.STORAGE, "")
        assert done.stderr.startswith("mqfast: standard output is closed")
        assert done.stderr.count("\n") == 1
    with mqfast.StoreReader(store) as reader:
        assert "Other" not in {queue.topic for queue in reader.queues()}


def test_a_closed_standard_input_is_no_empty_message(store: Path) -> None:
    for command in ('put "$2" Other', 'import "$2"'):
        done = shell(f'"$1" -m mqfast.cli store {command} <&-', store)
        assert (done.returncode, done.stdout) == (ExitCode.USAGE, "")
        assert "an open standard input; found neither" in done.stderr
    with mqfast.StoreReader(store) as reader:
        assert "Other" not in {queue.topic for queue in reader.queues()}


@pytest.mark.parametrize("closed", ["2>&-", "<&-", "<&- 2>&-"])
def test_other_closed_streams_are_no_obstacle_and_no_file_gets_their_number(closed: str, store: Path) -> None:
    done = shell(f'"$1" -m mqfast.cli store put "$2" Other body {closed}', store)
    assert (done.returncode, done.stderr) == (0, "") if "2>" in closed else done.returncode == 0
    done = shell(f'"$1" -m mqfast.cli store get "$2" nonsense {closed}', store)
    assert (done.returncode, done.stdout) == (ExitCode.NOTHING_FOUND, "")
    assert mqfast.verify(store).state == "clean"


def test_a_closed_pipe_is_no_error(store: Path) -> None:
    with mqfast.open(store) as writer:
        writer.put_many("Orders", [b"x" * 1000] * 2000)
    for command in ("cat", "dump", "ls", "get"):
        rest = {"cat": "Orders --count 0", "dump": "", "ls": "", "get": "0"}[command]
        script = f'{{ "$1" -m mqfast.cli store {command} "$2" {rest}; echo $? >&2; }} | head -c 20'
        done = shell(script, store)
        assert done.stderr == "0\n", command


def test_a_locale_that_has_not_every_character_is_no_error(store: Path) -> None:
    with mqfast.open(store) as writer:
        writer.put("Orders", "\u20ac \U0001f600".encode(), 3, properties={"ü": "ß"})
    script = 'PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 PYTHONIOENCODING=latin-1 "$1" -m mqfast.cli store %s "$2" %s'
    done = shell(script % ("cat", "Orders --queue 3 --offset -1 | iconv -f latin1 -t utf-8"), store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u20ac \\U0001f600" in done.stdout
    assert "ü=ß" in done.stdout
    done = shell(script % ("export", "--format csv --topic Orders --queue 3"), store)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\u20ac \U0001f600" in done.stdout


def test_the_environment_names_a_store_in_any_locale(tmp_path: Path) -> None:
    path = tmp_path / "größe"
    with mqfast.open(path) as writer:
        writer.put("Orders", b"body", keys="k")
    plain = 'LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 MQFAST_STORE="$2" "$1" -m mqfast.cli store '
    for command in ("get Orders/0/0 --body raw", "query Orders k --body raw --separator ''"):
        done = shell(plain + command, path)
        assert (done.returncode, done.stdout, done.stderr) == (0, "body", "")
    done = shell(plain + "query Orders none", path)
    assert (done.returncode, done.stderr) == (ExitCode.NOTHING_FOUND, "mqfast: nothing was found\n")


def test_a_full_standard_output_is_one_line(store: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full")
    done = shell('"$1" -m mqfast.cli store ls "$2" >/dev/full', store)
    assert done.returncode == ExitCode.STORAGE
    assert done.stderr.count("\n") == 1
    assert "No space left" in done.stderr


def test_the_package_runs_as_the_command() -> None:
    """Where the installed script is on no PATH."""
    command = [sys.executable, "-m", "mqfast", "--version"]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"mqfast {mqfast.__version__}\n"
    )
