"""Stock consumers of three releases on our broker: push, orderly, broadcasting, SQL92, pull and lite pull."""

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
    with our_process(tmp_path_factory.mktemp("ours"), "enablePropertyFilter=true") as address:
        yield address


@pytest.mark.slow
@pytest.mark.sampled(1, lane="make interop")
@pytest.mark.parametrize("release", ["5.5.0", "5.3.3", "4.9.7"])
def test_every_way_to_consume(names: str, older_clients: Callable[[str], Machine], release: str) -> None:
    machine = older_clients(release)
    compile_java(machine.home, HERE / "Consume.java")
    out = said_by(machine, names, f"c{release.replace('.', '')}", main="Consume")
    lines = [line for line in out.splitlines() if not line.startswith("pushed after")]
    ways = ["concurrently", "orderly", "broadcasting", "sql", "pulls", "lite pulls", "pushed", "done"]
    assert [line for line in lines if line in ways] == ways, out
