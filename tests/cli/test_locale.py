"""Locales that are not UTF-8: names of topics are directories, and RocketMQ's are UTF-8 whatever the locale says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mqfast

TOPIC, KEY, TAG, BODY = "注文-é", "ké", "ä", "grüße"
C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **C, **environment}, capture_output=True, check=False
    )


def cli(*arguments: str, **environment: str) -> tuple[int, str]:
    code = "import sys; from mqfast.cli.main import main; sys.exit(main())"
    done = run("-c", code, *arguments, **environment)
    assert b"Traceback" not in done.stderr, done.stderr.decode()
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "surrogateescape")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "lädt-注"
    with mqfast.open(path) as store:
        store.put(TOPIC, BODY.encode(), keys=KEY, tags=TAG)
    return path


PROGRAM = """
import os, sys
assert sys.getfilesystemencoding() == "ascii", sys.getfilesystemencoding()
import mqfast
path = sys.argv[1]
topic, key, tag, body = (ascii_text.encode().decode("unicode_escape") for ascii_text in sys.argv[2:])
for _ in range(2):
    with mqfast.open(path) as store:
        before = len(store.get(topic, 0, 0))
        store.put(topic, body.encode("utf-8"), keys=key, tags=tag)
        assert len(store.get(topic, 0, 0, tags=tag)) == len(store.query(topic, key)) == before + 1
        assert store.topics() == [topic]
        consumer = store.consumer("g", topic)
        assert bytes(next(iter(consumer)).body) == body.encode("utf-8")
        consumer.commit()
with mqfast.StoreReader(path) as reader:
    assert [q.topic for q in reader.queues()] == [topic]
    assert len(reader.query(topic, key)) == 3
assert mqfast.verify(path).state == "clean"
with mqfast.open(path) as store:
    store.delete_topic(topic)
    assert store.topics() == []
"""


def test_topics_of_any_name_in_the_c_locale(path: Path) -> None:
    """The message was stored, and its queue could not be made: dispatch stood still with a UnicodeEncodeError."""
    names = [text.encode("unicode_escape").decode() for text in (TOPIC, KEY, TAG, BODY)]
    done = run("-c", PROGRAM, str(path), *names)
    assert done.returncode == 0, done.stderr.decode()
    assert not (path / "consumequeue" / TOPIC).exists()


def test_a_new_store_in_the_c_locale_is_a_store_elsewhere(tmp_path: Path) -> None:
    code = "import mqfast, sys\nwith mqfast.open(sys.argv[1]) as s: s.put('\\u6ce8', b'x', keys='k')"
    done = run("-c", code, str(tmp_path / "neu-ü"))
    assert done.returncode == 0, done.stderr.decode()
    assert (tmp_path / "neu-ü" / "consumequeue" / "注" / "0").is_dir()
    with mqfast.open(tmp_path / "neu-ü") as store:
        assert [bytes(m.body) for m in store.query("注", "k")] == [b"x"]


def test_the_command_line_in_the_c_locale(path: Path, tmp_path: Path) -> None:
    where = str(path)
    assert cli("store", "put", where, TOPIC, BODY, "--tags", TAG, "--keys", KEY)[0] == 0
    for command in (
        ["ls", where],
        ["cat", where, TOPIC],
        ["query", where, TOPIC, KEY],
        ["dump", where],
        ["get", where, f"{TOPIC}/0/1"],
    ):
        code, said = cli("store", *command)
        assert code == 0, said
        assert TOPIC in said
    assert BODY in cli("store", "cat", where, TOPIC)[1]
    rows = [json.loads(line) for line in cli("store", "cat", where, TOPIC, "--json")[1].splitlines()]
    assert [(row["topic"], row["body"]) for row in rows] == [(TOPIC, BODY)] * 2
    for command in (["stat", where], ["verify", where], ["groups", where]):
        assert cli("store", *command)[0] in (0, 1, 6)  # no group is there
    code, said = cli("store", "cat", where, "没有")
    assert code != 0
    assert "没有" in said
    out = tmp_path / "ausgäng.jsonl"
    assert cli("store", "export", where, str(out), "--topic", TOPIC)[0] == 0
    assert out.exists()
    assert cli("store", "import", str(tmp_path / "zweiter-ü"), str(out), "--create")[0] == 0
    with mqfast.open(tmp_path / "zweiter-ü") as store:
        assert [bytes(m.body).decode() for m in store.get(TOPIC, 0, 0)] == [BODY] * 2


@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "ascii"])
def test_streams_of_few_characters_get_escapes_and_no_traceback(path: Path, encoding: str) -> None:
    environment: dict[str, Any] = {"LC_ALL": "C.UTF-8", "PYTHONIOENCODING": encoding}
    for command in (["ls", str(path)], ["cat", str(path), TOPIC], ["dump", str(path)]):
        code, said = cli("store", *command, **environment)
        assert code == 0, said
        assert ("\\u6ce8" in said) is (encoding != "ascii")
        assert (TOPIC in said) is (encoding == "ascii")  # taken for a locale that says nothing: UTF-8
