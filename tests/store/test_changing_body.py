"""A body that lies in memory of several processes and changes while it is put.

Within one process the GIL keeps Python from changing a body between its copy and its checksum; memory that another
process writes to has no such keeper. Written for a line that could be broken without any test failing
(``tests/mutation``).
"""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqfast
from mqfast import Message

SIZE = 64 << 10
CHANGES = 40
MOST_PUTS = 1500

WAYS: dict[str, Callable[[Any, mmap.mmap], object]] = {
    "put": lambda store, body: store.put("T", body),
    "general": lambda store, body: store.put("T", body, flag=1),
    "many": lambda store, body: store.put_many("T", [body]),
    "batch": lambda store, body: store.put_batch([Message("T", memoryview(body))]),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_body_that_another_process_changes_has_the_checksum_of_what_was_stored(tmp_path: Path, way: str) -> None:
    body = mmap.mmap(-1, SIZE)
    child = os.fork()
    if child == 0:
        try:
            while True:
                for value in range(256):
                    body[:] = bytes([value]) * SIZE
        finally:
            os._exit(1)
    try:
        with mqfast.open(tmp_path / "store", mappedFileSizeCommitLog=16 << 20, messageIndexEnable=False) as store:
            while body[0] == body[-1] == 0:
                pass  # until it has begun
            changes = number = 0
            while changes < CHANGES and number < MOST_PUTS:
                before = body[-1]
                WAYS[way](store, body)
                changes += body[-1] != before
                assert store.get("T", 0, number)[0].check_crc(), number
                number += 1
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not changes:
        pytest.skip("the other process never ran during a put")
