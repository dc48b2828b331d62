"""A store in which every edge comes every few messages, and what its tests ask of it.

It must never hold an expectation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from laboratory import open_still

from mqfast.config import StoreConfig
from mqfast.store.base.os_api import OsApi
from mqfast.store.message_store import MessageStore

SMALL: dict[str, Any] = {
    "mappedFileSizeCommitLog": 4096,
    "mappedFileSizeConsumeQueue": 400,
    "maxHashSlotNum": 16,
    "maxIndexNum": 200,
}
POOL: dict[str, Any] = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}


def still(path: Path, os_api: OsApi | None = None, **settings: Any) -> MessageStore:
    """A store without threads."""
    config = StoreConfig.tiny(**{"mapped_file_bytes_commit_log": 1 << 20, **settings})
    return open_still(path, config=config, os_api=os_api)


def eventually(condition: Callable[[], bool]) -> bool:
    """Does it come true within 20 seconds?"""
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def in_threads(count: int, work: Callable[[int], None]) -> None:
    """Run ``work(number)`` in threads that start together; the first failure of any is raised."""
    barrier, failures = threading.Barrier(count), []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
