"""A plain file between the directories of the queues, as a file manager leaves one, kept a store from opening; a FIFO
in the place of a file of the store let an open, a reader and verify wait for ever.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from pathlib import Path

import pytest

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import MqfastError
from mqfast.store.check.verify import verify
from mqfast.store.reader.store_reader import StoreReader


@pytest.mark.parametrize(
    "place", [".", "commitlog", "consumequeue", "consumequeue/T", "consumequeue/T/0", "index", "config"]
)
@pytest.mark.parametrize("killed", [False, True])
def test_they_are_left_alone(tmp_path: Path, place: str, killed: bool) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny()) as store:
        for i in range(10):
            store.put("T", b"%d" % i, keys=f"k{i}")
    if killed:
        (path / "abort").touch()
    (path / place / ".stranger").write_bytes(b"x")
    (path / place / ".strangers").mkdir()
    with StoreReader(path) as reader:
        assert len(reader.get("T", 0, 0)) == 10
    with mqfast.open(path) as store:
        assert [bytes(m.body) for m in store.get("T", 0, 0)] == [b"%d" % i for i in range(10)]
        assert len(store.query("T", "k3")) == 1
        assert store.topics() == ["T"]
    assert [d for d in verify(path).damages if str(d.severity) != "note"] == []
    assert (path / place / ".stranger").read_bytes() == b"x"


def test_a_directory_with_the_name_of_an_index_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny()) as store:
        store.put("T", b"one", keys="k")
    (path / "index" / "20260101000000000").mkdir()
    with mqfast.open(path) as store:
        store.put("T", b"two", keys="k")
        assert [bytes(m.body) for m in store.query("T", "k")] == [b"two", b"one"]
    assert verify(path).ok


def _ask(path: Path, answers: multiprocessing.SimpleQueue[list[str]]) -> None:
    """What an open, a reader and verify say: a name of an error, or nothing."""

    def read() -> None:
        with StoreReader(path) as reader:
            list(reader.scan())
            reader.query("T", "k")
            reader.queues()

    said = []
    for ask in (read, lambda: verify(path), lambda: mqfast.open(path).close()):
        try:
            ask()
        except MqfastError as error:
            said.append(f"{type(error).__name__}: {error}")
    answers.put(said)


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path))])
@pytest.mark.parametrize(
    "place", ["lock", "checkpoint", "config/topics.json", "consumequeue/T/0/*", "commitlog/*", "index/*"]
)
def test_a_fifo_or_a_socket_is_no_file_and_nobody_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, make: object
) -> None:
    path = tmp_path / "store"
    with mqfast.open(path, config=StoreConfig.tiny()) as store:
        store.put("T", b"one", keys="k")
    (file,) = path.glob(place)
    file.unlink()
    monkeypatch.chdir(file.parent)  # the name of a socket may have 107 bytes
    make(file)  # type: ignore[operator]
    context = multiprocessing.get_context("spawn")
    answers = context.SimpleQueue()
    child = context.Process(target=_ask, args=(path, answers))
    child.start()
    child.join(60)
    waits = child.is_alive()
    child.kill()
    child.join()
    assert not waits
    said = answers.get()
    assert all("expected a regular file, found a FIFO, a socket or a device" in text for text in said)
    if place not in ("checkpoint", "index/*"):  # which are made again
        assert any(file.name in text for text in said)
