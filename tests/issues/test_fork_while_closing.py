"""A child that is forked while another thread closes the store gets StoreForked, and its own close returns."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

import mqfast
from mqfast.errors import StoreForked

WAIT_S = 30


@pytest.mark.parametrize("step", ["first", "last"])
def test_a_child_of_a_store_that_is_being_closed(tmp_path: Path, step: str) -> None:
    store = mqfast.open(tmp_path / "store", mapped_file_bytes_commit_log=64 << 10)
    store.put("T", b"x")
    inside, go_on = threading.Event(), threading.Event()
    of, name = (store.retention, "close") if step == "first" else (store, "forget_producers")
    carry_out = getattr(of, name)

    def slowly() -> None:
        inside.set()
        assert go_on.wait(WAIT_S)
        carry_out()

    setattr(of, name, slowly)
    closer = threading.Thread(target=store.close)
    closer.start()
    try:
        assert inside.wait(WAIT_S)
        pid = os.fork()
        if pid == 0:
            signal.alarm(WAIT_S)  # ends a child that hangs
            code = 1
            try:
                for operation in (lambda: store.put("T", b"y"), lambda: store.get("T", 0, 0)):
                    try:
                        operation()
                    except StoreForked:
                        continue
                    os._exit(2)
                store.close()
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
    finally:
        go_on.set()
        closer.join(WAIT_S)
    assert status == 0
    with mqfast.open(tmp_path / "store") as again:
        assert again.get("T", 0, 0).bodies() == [b"x"]
