"""Values of admins: in the file when the call returns, whole at every moment, readable for Java and from it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mqfast.errors import CorruptFile
from mqfast.namesrv.kv_config import KvConfig


def test_values_are_kept_in_the_file_of_java(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    values = KvConfig(path)
    assert values.get("n", "k") is None
    assert values.all_of("n") is None
    values.put("n", "k", "v")
    values.put("n", "é", "ü\n")
    values.put("o", "k", "w")
    assert json.loads(path.read_text("utf-8")) == {"configTable": {"n": {"k": "v", "é": "ü\n"}, "o": {"k": "w"}}}
    again = KvConfig(path)
    assert (again.get("n", "é"), again.all_of("o")) == ("ü\n", {"k": "w"})
    again.delete("n", "k")
    again.delete("n", "not there")
    again.delete("not there", "k")
    assert KvConfig(path).all_of("n") == {"é": "ü\n"}
    assert json.loads((tmp_path / "namesrv" / "kvConfig.json.bak").read_text("utf-8"))["configTable"]["n"]["k"] == "v"


def test_a_file_of_fastjson(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":{"n":{1:"one","k":"v"}},"other":[1,{2:3}]}')
    assert KvConfig(path).all_of("n") == {"1": "one", "k": "v"}
    path.write_text("{}")
    assert KvConfig(path).all_of("n") is None


def test_a_missing_kv_config_file_is_replaced_by_its_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    values = KvConfig(path)
    values.put("n", "k", "v1")
    values.put("n", "k", "v2")
    path.unlink()
    assert KvConfig(path).get("n", "k") == "v1"


@pytest.mark.parametrize("text", ["", "{", '{"configTable":[]}', '{"configTable":{"n":"v"}}', "\0" * 50, "[" * 100000])
def test_a_damaged_file_is_named_and_not_replaced(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    with pytest.raises(CorruptFile, match=r"repair the file, or put kvConfig\.json\.bak in its place, file "):
        KvConfig(path)
    assert path.read_text() == text


def test_a_change_that_cannot_be_written_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    values = KvConfig(path)
    values.put("n", "k", "v")
    before = path.read_bytes()
    (tmp_path / "kvConfig.json.bak").mkdir()
    with pytest.raises(OSError, match=r"kvConfig\.json\.bak"):
        values.put("n", "k", "other")
    assert values.get("n", "k") == "v"
    assert path.read_bytes() == before


def test_without_a_path_nothing_is_written(tmp_path: Path) -> None:
    values = KvConfig(None)
    values.put("n", "k", "v")
    assert values.get("n", "k") == "v"
    assert list(tmp_path.iterdir()) == []


def test_a_file_without_values_does_not_bring_back_those_of_the_backup(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    values = KvConfig(path)
    values.put("ns", "key", "old")
    values.put("ns", "key", "new")
    assert path.with_name("kvConfig.json.bak").exists()
    path.write_text('{"configTable":{}}')
    assert KvConfig(path).get("ns", "key") is None
    path.unlink()
    assert KvConfig(path).get("ns", "key") == "old", "only a missing file is replaced by its backup"
