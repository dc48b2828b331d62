"""The offsets of broadcasting consumers in their file: Java's place and form, and what crashes and damage leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqfast.client.consumer.offset_file import LocalFileOffsetStore, decode, encode, root_directory
from mqfast.client.values import MessageQueue
from mqfast.errors import CorruptFile

ONE, TWO = MessageQueue("orders", "broker-a", 0), MessageQueue('quo"ted', "größe", 3)
# What fastjson wrote with its pretty form: releases 4.9.7 and 5.3.3, then 5.5.0.
PRETTY = (
    b'{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"orders"\n\t\t}:12'
    b',{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"orders"\n\t\t}:7\n\t}\n}'
)


@pytest.fixture
def file(tmp_path: Path) -> LocalFileOffsetStore:
    return LocalFileOffsetStore("10.0.0.1@DEFAULT", "billing", tmp_path)


def test_the_file_is_where_java_has_it(file: LocalFileOffsetStore, tmp_path: Path) -> None:
    assert file.load() == {}
    file.save({ONE: 5})
    assert file.path == tmp_path / "10.0.0.1@DEFAULT" / "billing" / "offsets.json"
    assert file.path.read_bytes() == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:5}}'


def test_the_root_follows_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", "/x/y")
    assert root_directory() == Path("/x/y")
    monkeypatch.delenv("rocketmq.client.localOffsetStoreDir")
    monkeypatch.setenv("HOME", "/home/somebody")
    assert root_directory() == Path("/home/somebody/.rocketmq_offsets")


def test_saved_offsets_are_loaded_beside_other_queues(file: LocalFileOffsetStore) -> None:
    file.save({ONE: 5})
    file.save({TWO: 2**63 - 1})
    file.save({ONE: 4})
    file.save({})
    assert file.load() == {ONE: 4, TWO: 2**63 - 1}
    assert sorted(os.listdir(file.path.parent)) == ["offsets.json", "offsets.json.bak"]
    assert decode(file.path.with_name("offsets.json.bak").read_bytes()) == {ONE: 5, TWO: 2**63 - 1}


def test_javas_pretty_form_is_read() -> None:
    assert decode(PRETTY) == {ONE: 12, ONE._replace(queue_id=1): 7}
    assert decode(b'{"offsetTable":{}}') == decode(b"{}") == {}
    assert decode(encode({ONE: 1, TWO: 2})) == {ONE: 1, TWO: 2}
    assert decode(b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"orders"}:-1}}') == {}


@pytest.mark.parametrize("damage", [b"", b"\0" * 40, b'{"offsetTable":{{"brokerName":"b', b"[]", b'{"offsetTable":7}'])
def test_a_damaged_file_is_passed_over_for_its_backup(file: LocalFileOffsetStore, damage: bytes) -> None:
    file.save({ONE: 5})
    file.save({ONE: 6})
    file.path.write_bytes(damage)
    assert file.load() == {ONE: 5}
    file.save({ONE: 9})
    assert file.load() == {ONE: 9}
    assert decode(file.path.with_name("offsets.json.bak").read_bytes()) == {ONE: 5}, "damage never becomes the backup"


def test_damage_without_a_backup_raises_and_is_not_overwritten(file: LocalFileOffsetStore) -> None:
    file.save({ONE: 5})
    file.path.write_bytes(b'{"offsetTable":{{')
    for call in (file.load, lambda: file.save({ONE: 7})):
        with pytest.raises(CorruptFile, match=r"offsets\.json.*expected.*offsetTable"):
            call()
    assert file.path.read_bytes() == b'{"offsetTable":{{'


@pytest.mark.parametrize("offset", ["1e3", "-2", "9223372036854775808", '"x"', "null"])
def test_an_invalid_offset_in_the_file_is_damage(offset: str) -> None:
    with pytest.raises(CorruptFile):
        decode(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:' + offset.encode() + b"}}")


@pytest.mark.parametrize("fails_at", range(1, 9))
def test_a_crash_at_any_step_leaves_a_whole_state(
    file: LocalFileOffsetStore, fails_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every call that changes the disk fails in turn: what is loaded then is the state before or after."""
    file.save({ONE: 1})
    file.save({ONE: 2})
    calls = 0

    def counted(real):  # type: ignore[no-untyped-def]
        def call(*arguments, **keywords):  # type: ignore[no-untyped-def]
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(28, "No space left on device")
            return real(*arguments, **keywords)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, counted(getattr(os, name)))
    try:
        file.save({ONE: 3})
    except OSError:
        assert file.load() in ({ONE: 2}, {ONE: 3})
    else:
        assert file.load() == {ONE: 3}
    monkeypatch.undo()
    file.save({ONE: 4})
    assert file.load() == {ONE: 4}
    assert sorted(os.listdir(file.path.parent)) == ["offsets.json", "offsets.json.bak"]
