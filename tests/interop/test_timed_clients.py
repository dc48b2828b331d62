"""Stock clients of two releases send timed messages to our broker, call some back and receive the others in time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))

from our_broker import our_process, said_by
from real_programs import HERE, NEEDS_JAVA, Machine, compile_java, older_clients

__all__ = ["older_clients"]  # a fixture

pytestmark = NEEDS_JAVA


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with our_process(tmp_path_factory.mktemp("ours"), "recallMessageEnable=true") as address:
        yield address


@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3"])
def test_any_delay_and_recall(names: str, older_clients: Callable[[str], Machine], release: str) -> None:
    machine = older_clients(release)
    compile_java(machine.home, HERE / "Timed.java")
    out = said_by(machine, names, f"Later{release.replace('.', '')}", main="Timed")
    assert out.splitlines() == ["refused 13", "received 20 of them called back 0", "done"]
