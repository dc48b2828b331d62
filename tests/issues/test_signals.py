"""Signal handlers that close, put and get, or raise, at random moments of whatever the store does. Nothing hangs,
nothing is lost, and what cannot be done is a NestedCall.

The moments are random; a run that failed prints its seed, with which the program can be run again.
"""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from laboratory import lab
from sampling import Sample

import mqfast
from mqfast.errors import NestedCall

PROGRAM = Path(__file__).with_name("signal_rounds.py")
DEADLINE_S = 240


def run(name: str, rounds: int, base: Path, seed: int | None = None) -> subprocess.CompletedProcess[str]:
    seed = random.randrange(1 << 30) if seed is None else seed
    command = [sys.executable, str(PROGRAM), name, str(seed), str(rounds), str(base)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"it hangs: {' '.join(command)}")
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr, f"{' '.join(command)}\n{done.stderr}"
    return done


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("close_in_a_handler", 40),
        ("close_within_close", 40),
        ("calls_in_a_handler", 4000),
        ("exceptions_of_a_handler", 200),
    ],
)
def test_handlers_at_random_moments(tmp_path: Path, name: str, whole: int, sample: Sample) -> None:
    rounds = whole if sample.whole else whole // 4
    sample.note(rounds, whole, f"rounds of {name}")
    print(run(name, rounds, tmp_path).stdout)


@pytest.mark.parametrize("number", range(5))
def test_a_service_that_is_told_to_end_closes_its_store(tmp_path: Path, number: int) -> None:
    run("exit_in_a_handler", 1, tmp_path)
    assert not (tmp_path / "store" / "abort").exists()
    assert mqfast.verify(tmp_path / "store").ok


def test_what_is_called_inside_a_call_is_refused_or_left_to_a_thread(tmp_path: Path) -> None:
    """A handler at the worst moment: the interrupted call has the dispatch lock."""
    store = mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=64 << 10, message_index_enable=False)
    store.put("T", b"x")
    store.get("T", 0, 0)
    with lab(store).dispatcher.locked():
        assert store.put("T", b"needs no lock").queue_offset == 1
        assert store.get("T", 0, 1).bodies() == [b"needs no lock"]
        store.put("T", b"waits for the dispatcher", keys="k")
        for call in (
            lambda: store.put("new topic", b"y"),
            lambda: store.put("T", b"y", properties={"a": "b"}),
            lambda: store.get("T", 0, 2),
            lambda: store.min_offset("T", 0),
            lambda: store.topics(),
            lambda: store.flush(),
            lambda: store.delete_topic("T"),
            lambda: store.consumer("G", "T"),
        ):
            with pytest.raises(NestedCall):
                call()
        store.close()
        store.close()
        assert store.state == "closed"
        closer = lab(store).closer
        assert closer is not None
    closer.join()
    store.close()
    with mqfast.open(tmp_path / "store") as store:
        assert store.recovery.clean
        assert store.get("T", 0, 0).bodies() == [b"x", b"needs no lock", b"waits for the dispatcher"]
