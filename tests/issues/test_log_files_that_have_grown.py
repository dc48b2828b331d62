"""A log file that is longer than its size: open refused it, repair did not mend it, and the advice was for a short one.

Room: tests/issues.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.errors import CorruptFile

FILE = 65536


def store_of(path: Path, messages: int) -> Path:
    with mqfast.open(path, mapped_file_bytes_commit_log=FILE) as store:
        for number in range(messages):
            store.put("T", b"%d " % number + bytes(1000), keys=f"k{number}")
    return path


def bodies(path: Path) -> list[int]:
    with mqfast.open(path) as store:
        return [int(m.body.tobytes().split()[0]) for m in store.get("T", 0, 0, 1000, max_bytes=1 << 30)]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("more", [b"x", b"x" * 1024, bytes(5000), b"y" * FILE])
@pytest.mark.parametrize("which", [0, 1, -1])
def test_repair_brings_it_back_and_keeps_what_is_too_much(
    tmp_path: Path, which: int, more: bytes, killed: bool
) -> None:
    path = store_of(tmp_path / "s", 150)
    file = sorted((path / "commitlog").iterdir())[which]
    with file.open("ab") as stream:
        stream.write(more)
    if killed:
        (path / "abort").touch()
    with pytest.raises(CorruptFile, match="has grown") as raised:
        mqfast.open(path)
    assert raised.value.path == str(file)
    assert "log.size" in {damage.kind for damage in mqfast.verify(path).damages}
    before = file.read_bytes()
    plan = mqfast.repair(path, dry_run=True)
    assert any("bring" in action for action in plan.actions)
    assert file.read_bytes() == before
    report = mqfast.repair(path)
    assert report.cut_at is None
    assert report.messages_lost == 0
    assert file.read_bytes() == before[:FILE]
    assert (Path(report.kept_in) / "commitlog" / f"{file.name}.from-{FILE}").read_bytes() == more
    assert bodies(path) == list(range(150))
    assert mqfast.verify(path).state == "clean"


def test_the_only_file(tmp_path: Path) -> None:
    """The notes of the store name the size; no other file does."""
    path = store_of(tmp_path / "s", 20)
    (file,) = (path / "commitlog").iterdir()
    with file.open("ab") as stream:
        stream.write(b"tail")
    with pytest.raises(CorruptFile, match="has grown"):
        mqfast.open(path)
    mqfast.repair(path)
    assert bodies(path) == list(range(20))
