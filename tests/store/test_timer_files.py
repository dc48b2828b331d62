"""A broker's timer files: what does not agree is found and named, and nothing of it is changed.

Real files against RocketMQ's own account: traps 48 to 51. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import lzma
import random
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Case, copy_of, golden_cases
from golden_checks import files_of

import mqfast
from mqfast.store.check.verify import Damage


def patch(path: Path, at: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def damages(directory: Path) -> list[Damage]:
    return [damage for damage in mqfast.verify(directory).damages if damage.kind.startswith("timer")]


def first(directory: Path) -> Path:
    return directory / "timerlog" / f"{0:020}"


def second_log_file_later(directory: Path) -> None:
    (directory / "timerlog" / f"{1000:020}").rename(directory / "timerlog" / f"{2000:020}")


FINDINGS: dict[str, tuple[Callable[[Path], object], tuple[str, str, int | None, str]]] = {
    "a record that starts elsewhere": (
        lambda store: patch(first(store), 52 + 28, struct.pack(">q", 329)),
        ("timer.unit", "a parked record at 329", 52, "no record"),
    ),
    "a record of another size": (
        lambda store: patch(first(store), 52 + 36, struct.pack(">i", 327)),
        ("timer.unit", "a parked record at 328", 52, "length"),
    ),
    "a record that is not parked": (
        lambda store: patch(first(store), 52 + 28, struct.pack(">qi", 6648, 272)),
        ("timer.unit", "a parked record at 6648", 52, "one of TimerTopic"),
    ),
    "another topic": (
        lambda store: patch(first(store), 52 + 40, struct.pack(">i", 7)),
        ("timer.unit", "hash -650349302 of TimerTopic", 52, "7"),
    ),
    "another time": (
        lambda store: patch(first(store), 52 + 24, struct.pack(">i", 4000)),
        ("timer.unit", "due at 1795255618000", 52, "1795255619000"),
    ),
    "a record before the log": (
        lambda store: patch(first(store), 52 + 28, struct.pack(">q", -5)),
        ("timer.unit", "a parked record at -5", 52, "none"),
    ),
    "a record behind the log": (
        lambda store: patch(first(store), 52 + 28, struct.pack(">q", 1 << 40)),
        ("timer.beyond", "records below 9663", 52, "1099511627776"),
    ),
    "no unit": (
        lambda store: patch(first(store), 52, struct.pack(">i", 51)),
        ("timer.log", "a unit, a blank or zeros", 52, "bytes 00000033ffffffffffffffff00000001"),
    ),
    "zeros where units were": (
        lambda store: patch(first(store), 52, bytes(948)),
        ("timer.log", "a unit, a blank or zeros", 52, "zeros, and units in the next file"),
    ),
    "a chain that goes forward": (
        lambda store: patch(first(store), 52 + 4, struct.pack(">q", 52)),
        ("timer.log", "a unit, a blank or zeros", 52, "bytes 00000034000000000000003400000001"),
    ),
    "a file that is missing": (
        second_log_file_later,
        ("timer.gap", "a file that starts at 1000", None, "2000"),
    ),
    "a wheel of another length": (
        lambda store: patch(store / "timerwheel", 38_707_200, b"?"),
        ("timer.wheel", "38707200 bytes", None, "38707201"),
    ),
    "a claim of more than there is": (
        lambda store: patch(store / "config/timercheck", 8, struct.pack(">q", 1157)),
        ("timer.check", "a position up to 1156", 8, "1157"),
    ),
    "a checkpoint cut short": (
        lambda store: (store / "config/timercheck").write_bytes(bytes(55)),
        ("timer.check", "at least 56 bytes", None, "55"),
    ),
}


@pytest.mark.parametrize("what", FINDINGS)
def test_what_does_not_agree_is_named(timer_store: Path, what: str) -> None:
    assert damages(timer_store) == []
    change, (kind, expected, offset, found) = FINDINGS[what]
    change(timer_store)
    before = files_of(timer_store)
    named = [(d.kind, d.expected, d.offset, d.found) for d in damages(timer_store)]
    assert (kind, expected, offset, found) in named
    assert not mqfast.verify(timer_store).ok
    assert files_of(timer_store) == before


def test_files_that_cannot_be_read_are_a_finding(timer_store: Path) -> None:
    (timer_store / "config/timercheck").unlink()
    (timer_store / "config/timercheck").mkdir()
    assert [damage.kind for damage in damages(timer_store)] == ["timer.file"]


def test_a_wheel_without_its_log_and_a_log_without_its_wheel(timer_store: Path) -> None:
    (timer_store / "timerwheel").rename(timer_store / "wheel")
    assert damages(timer_store) == []
    (timer_store / "wheel").rename(timer_store / "timerwheel")
    for path in (timer_store / "timerlog").iterdir():
        path.unlink()
    assert {damage.kind for damage in damages(timer_store)} == {"timer.slot", "timer.check"}


def test_timer_units_below_retention_are_no_damage(timer_store: Path) -> None:
    with mqfast.open(timer_store) as store:
        store.put("T", bytes(20_000))  # the log goes on in its second file
        store.put("T", bytes(20_000))
        assert store.max_physical_offset > 32768
    (timer_store / "commitlog" / f"{0:020}").unlink()
    assert damages(timer_store) == []


def test_random_damage_never_ends_verify(timer_store: Path) -> None:
    rng = random.Random(7)
    (timer_store / "timerwheel").unlink()  # it is large, and its slots are in the other tests
    files = [*sorted((timer_store / "timerlog").iterdir()), timer_store / "config/timercheck"]
    whole = {path: path.read_bytes() for path in files}
    told = 0
    for _ in range(300):
        for path in rng.sample(files, 2):
            data = bytearray(whole[path])
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(min(len(data), 1100))
                data[at : at + 8] = rng.choice([rng.randbytes(8), bytes(8), b"\xff" * 8, struct.pack(">q", 1 << 62)])
            path.write_bytes(data[: rng.choice([len(data), rng.randrange(len(data))])])
        told += bool(damages(timer_store))
        for path, data in whole.items():
            path.write_bytes(data)
    assert told > 150
    assert damages(timer_store) == []


@pytest.mark.parametrize("case", golden_cases(names=("timer",)), ids=str)
def test_timer_files_of_every_release_are_sound(case: Case, tmp_path: Path) -> None:
    """Also the delete: of topic and key in 5.3.3, of the key alone in 5.5.0."""
    directory = copy_of(case, tmp_path)
    (directory / "timerwheel").write_bytes(lzma.decompress((case.dir / "timerwheel.xz").read_bytes()))
    report = mqfast.verify(directory)
    assert report.ok
    assert damages(directory) == []
    assert report.counts["timer units"] > 15
    deletes = [message.properties.get("TIMER_DEL_UNIQKEY") for message in mqfast.StoreReader(directory).scan()]
    (target,) = [target for target in deletes if target]
    assert ("+" in target) is (case.release < "5.5")
