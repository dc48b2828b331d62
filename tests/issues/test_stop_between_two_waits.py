"""A stop of the dispatcher's thread came when its first wait in a turn ended, which took the event: the second wait was
without an end, and so was a close.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from laboratory import lab, open_still

from mqfast.store.dispatch.reput import ReputMessageService


class Meanwhile:
    """The dispatcher of a store, whose first wait ends with something to dispatch; the service is stopped meanwhile."""

    def __init__(self, dispatcher: Any) -> None:
        self._dispatcher = dispatcher
        self.stopper: threading.Thread | None = None
        self.waited = threading.Event()
        self.service: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dispatcher, name)

    def wait_for_records(self, event: Any, seconds: float) -> bool:
        if self.stopper is None:
            word_set = threading.Event()
            self.service._end_turn = word_set.set  # called behind the set of the event
            self.stopper = threading.Thread(target=self.service.stop, daemon=True)
            self.stopper.start()
            assert word_set.wait(60)
            self.waited.set()
        self._dispatcher.wait_for_records(event, 0.0)
        return True


def test_a_stop_while_the_thread_goes_from_one_wait_to_the_next_ends_it(tmp_path: Path) -> None:
    with open_still(tmp_path / "store", dispatch="background") as store:
        store.put("T", b"x")
        dispatcher = Meanwhile(lab(store).dispatcher)
        reput = ReputMessageService(store.log, dispatcher)  # type: ignore[arg-type]
        dispatcher.service = reput.service
        reput.service.start()
        assert dispatcher.waited.wait(60)
        assert dispatcher.stopper is not None
        dispatcher.stopper.join(60)
        assert not dispatcher.stopper.is_alive(), "the thread sleeps for ever"
