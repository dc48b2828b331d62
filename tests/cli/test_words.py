"""The words of the command line are the same in all commands, and one table of exit codes holds for them.

Room: tests/cli. Older words stay accepted.
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

import pytest
from free_ports import free_port

import mqfast
from mqfast.cli.admin.old_names import ABSENT, OLD
from mqfast.cli.arguments import Parser, subcommands
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode, exit_code_of
from mqfast.cli.main import build_parser, main


def commands(parser: Parser, words: tuple[str, ...] = ()) -> dict[tuple[str, ...], Parser]:
    """Words -> parser of every command that has no further ones."""
    found: dict[tuple[str, ...], Parser] = {}
    for name, sub in subcommands(parser).items():
        inner = commands(sub, (*words, name))
        found |= inner or {(*words, name): sub}
    return found


ALL = commands(build_parser())


def options(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: action for action in parser._actions for name in action.option_strings}


@pytest.mark.parametrize("words", sorted(ALL), ids=" ".join)
def test_a_command_has_the_words_of_all(words: tuple[str, ...]) -> None:
    known = options(ALL[words])
    is_of_rocketmq = words[0] == "admin" and words[1] in (*OLD, *ABSENT)
    for word, older in (
        () if is_of_rocketmq else (("--yes", "--apply"), ("--max", "--count"), ("--to-earliest", "--to-first"))
    ):
        if older in known:
            assert known[word] is known[older], f"{words}: {older} without {word}"
    if "--yes" in known:
        assert "--dry-run" in known, words
    if "--to-earliest" in known:
        assert {"--to-latest", "--to-first", "--to-last"} <= set(known), words
    if words[0] not in ("completion",):
        assert EXIT_CODES in str(ALL[words].epilog), f"{words}: another table of exit codes"


@pytest.mark.parametrize("words", sorted(words for words in ALL if words[0] == "admin"), ids=" ".join)
def test_the_example_of_a_command_is_a_line_of_it(words: tuple[str, ...]) -> None:
    """Only hidden former words and names that are not here have none."""
    found = re.search(r"^example:\n  mqfast (.*)$", str(ALL[words].epilog), re.MULTILINE)
    if found is None:
        assert words[-1] in ABSENT or words[1:] in (("topic", "names"), ("group", "names"), ("topic", "stats"),
                                                   ("dlq", "list"), ("broker", "config"))  # fmt: skip
        return
    parsed = build_parser().parse_args(shlex.split(found[1]))
    assert parsed.command == " ".join(words)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with mqfast.open(tmp_path / "store") as opened:
        for number in range(3):
            opened.put("orders", b"%d" % number, keys=f"k{number}")
        consumer = opened.consumer("billing", "orders")
        consumer.poll()
        consumer.commit()
    with mqfast.open(tmp_path / "empty"):
        pass
    return tmp_path / "store"


def run(*words: object) -> int:
    return main([str(word) for word in words])


def test_exit_codes_of_the_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = store.with_name("empty")
    nothing = [
        ("ls", empty), ("cat", empty, "orders"), ("groups", empty), ("export", empty), ("cat", store, "oders"),
        ("groups", store, "biling"), ("get", store, "orders/0/99"), ("get", store, "5"),
        ("query", store, "orders", "x"), ("query", store, "orders", "--id", "x"),
    ]  # fmt: skip
    for words in nothing:
        assert run("store", *words) == ExitCode.NOTHING_FOUND, words
    usage = [
        ("ls", store.with_name("none")),
        ("get", store),
        ("query", store, "orders"),
    ]
    for words in usage:
        assert run("store", *words) == ExitCode.USAGE, words
    done = [
        ("ls", store),
        ("groups", store),
        ("cat", store, "orders", "--max", "1"),
        ("cat", store, "orders", "--count", "1"),
    ]
    for words in done:
        assert run("store", *words) == ExitCode.OK, words
    capsys.readouterr()


def test_one_message_is_found_by_the_words_of_both(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with mqfast.StoreReader(store) as reader:
        (message,) = reader.query("orders", "k1")
    said = []
    for words in (("get", store, message.message_id), ("query", store, "orders", "--id", message.message_id)):
        assert run("store", *words) == ExitCode.OK
        said.append(capsys.readouterr().out)
    assert message.message_id in said[1]
    for words in (("query", store, "orders", "k1"), ("query", store, "orders", "--key", "k1")):
        assert run("store", *words) == ExitCode.OK
        said.append(capsys.readouterr().out)
    assert said[2] == said[3] != ""
    assert run("store", "query", store, "orders", "k1", "--key", "k1") == ExitCode.USAGE


@pytest.mark.parametrize("word", ["--yes", "--apply"])
def test_a_plan_is_carried_out_by_both_words(word: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reset = ("store", "reset-offsets", store, "billing", "orders")
    for plan in (("--to-latest",), ("--to-last", "--dry-run")):
        assert run(*reset, *plan) == ExitCode.OK
        assert "nothing was changed; --yes does it" in capsys.readouterr().err
    assert run(*reset, "--to-latest", "--yes", "--dry-run") == ExitCode.USAGE
    assert run(*reset, "--to-latest", word) == ExitCode.OK
    with mqfast.StoreReader(store) as reader:
        assert reader.consumer_offsets("billing")["orders"][0] == 3
    capsys.readouterr()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("stor",), "store"),
        (("store", "exprt"), "export"),
        (("admin", "topc"), "topic"),
        (("admin", "dlq", "resnd"), "resend"),
    ],
)
def test_a_mistyped_command_is_an_error_with_the_nearest_command(
    words: tuple[str, ...], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*words) == ExitCode.USAGE
    said = capsys.readouterr().err
    assert f"did you mean {meant}?" in said
    assert said.count("\n") == 1


def test_health_says_that_a_server_does_not_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("health", "--port", free_port()) == ExitCode.NO_ANSWER
    assert "no answer" in capsys.readouterr().out


def test_an_unknown_name_in_a_cluster_is_exit_code_nothing_found() -> None:
    assert exit_code_of(mqfast.errors.UnknownName("group: found 'x'")) == ExitCode.NOTHING_FOUND
    assert issubclass(mqfast.errors.UnknownName, mqfast.errors.ConfigError)
