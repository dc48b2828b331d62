"""Small files that are replaced whole: what a file is for others stays as it was."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mqfast.util.atomic_file import replace_file


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize("given", [0o600, 0o640, 0o644, 0o664])
def test_mode_and_owner_stay(tmp_path: Path, given: int) -> None:
    path = tmp_path / "a.conf"
    path.write_text("old")
    path.chmod(given)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
    before = path.stat()
    replace_file(path, b"new")
    after = path.stat()
    assert path.read_text() == "new"
    assert (mode(path), after.st_uid, after.st_gid) == (given, before.st_uid, before.st_gid)
    assert os.listdir(tmp_path) == ["a.conf"]


def test_a_new_file_is_for_its_owner(tmp_path: Path) -> None:
    replace_file(tmp_path / "sub" / "a", b"x")
    assert mode(tmp_path / "sub" / "a") == 0o600
    replace_file(tmp_path / "b", b"x", mode=0o644)
    assert mode(tmp_path / "b") == 0o644


def test_without_a_mode_a_new_file_has_that_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("x")
    replace_file(tmp_path / "c", b"x", mode=None)
    assert mode(tmp_path / "c") == mode(tmp_path / "plain")


def test_without_parents_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "sub" / "a", b"x", make_parents=False)
    assert os.listdir(tmp_path) == []


def test_links_stay(tmp_path: Path) -> None:
    target, link, other = tmp_path / "real" / "a.conf", tmp_path / "a.conf", tmp_path / "second"
    target.parent.mkdir()
    target.write_text("a much longer old content")
    link.symlink_to("real/a.conf")
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    os.link(target, other)
    replace_file(link, b"hard")
    assert other.read_text() == target.read_text() == "hard"
    assert os.listdir(target.parent) == ["a.conf"]


def test_attributes_stay(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    try:
        os.setxattr(path, "user.note", b"mine")
    except OSError:
        pytest.skip("no attributes on this file system")
    replace_file(path, b"new")
    assert os.getxattr(path, "user.note") == b"mine"


def test_a_backup_has_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "kv.json"
    for number in range(3):
        replace_file(path, str(number).encode(), mode=0o644, backup=".bak")
    assert (path.read_text(), (tmp_path / "kv.json.bak").read_text()) == ("2", "1")
    assert path.stat().st_ino != (tmp_path / "kv.json.bak").stat().st_ino


def test_a_foreign_link_in_place_of_the_backup_is_not_followed(tmp_path: Path) -> None:
    path, victim = tmp_path / "kv.json", tmp_path / "victim"
    path.write_text("old")
    victim.write_text("precious")
    (tmp_path / "kv.json.bak").symlink_to(victim)
    with pytest.raises(OSError, match=r"kv\.json\.bak"):
        replace_file(path, b"new", backup=".bak")
    assert (victim.read_text(), path.read_text()) == ("precious", "old")


def test_a_path_that_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="expected a file"):
        replace_file(tmp_path, b"x")
    assert os.listdir(tmp_path) == []
