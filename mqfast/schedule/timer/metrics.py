"""``config/timermetrics``: the number of parked messages by topic (RocketMQ: TimerMetrics).

The counts are for operators and do not affect deliveries. A damaged file is logged as a warning; the counts restart
at 0.
"""

from __future__ import annotations

import json
import logging
from typing import Any

from mqfast.errors import CorruptFile
from mqfast.store.base.paths import OsFiles
from mqfast.store.meta.config_file import ConfigFile

__all__ = ["TimerMetrics"]

_log = logging.getLogger("mqfast.schedule")


class TimerMetrics:
    """Count and time of the latest change for each topic.

    Thread: one thread counts; ``persist`` of a result of ``text`` may run in another thread.
    """

    def __init__(self, os_api: OsFiles, path: str) -> None:
        self._os_api = os_api
        self._path = path
        self._counts: dict[str, list[int]] = {}
        self._counter = 0
        self._timestamp = 0
        self._state_version = 0
        self._written: bytes | None = None
        try:
            self._read(ConfigFile(os_api, path).load())
        except (CorruptFile, TypeError, ValueError, AttributeError) as error:
            _log.warning("%s: counting begins anew: %s", path, error)
            self._counts.clear()

    def _read(self, loaded: dict[Any, Any]) -> None:
        for topic, pair in loaded.get("timingCount", {}).items():
            self._counts[str(topic)] = [int(pair["count"]), int(pair["timeStamp"])]
        version = loaded.get("dataVersion", {})
        self._counter, self._timestamp = int(version.get("counter", 0)), int(version.get("timestamp", 0))
        self._state_version = int(version.get("stateVersion", 0))

    def add(self, topic: str, change: int, now_ms: int) -> None:
        """Add ``change`` to the count of a topic."""
        pair = self._counts.setdefault(topic, [0, 0])
        pair[0] += change
        pair[1] = self._timestamp = now_ms
        self._counter += 1

    def count(self, topic: str) -> int:
        """Return the number of parked messages of a topic."""
        pair = self._counts.get(topic)
        return 0 if pair is None else pair[0]

    def counts(self) -> dict[str, int]:
        """Return the number of parked messages of every topic."""
        return {topic: pair[0] for topic, pair in self._counts.items()}

    def text(self) -> bytes:
        """Return the content of the file: one line, in RocketMQ's format."""
        version = {"counter": self._counter, "stateVersion": self._state_version, "timestamp": self._timestamp}
        counts = {topic: {"count": pair[0], "timeStamp": pair[1]} for topic, pair in self._counts.items()}
        return json.dumps({"dataVersion": version, "timingCount": counts}, separators=(",", ":")).encode()

    def persist(self, text: bytes) -> None:
        """Write a text to disk unless the file has the same text; the previous file becomes the ``.bak``.

        Raises: StorageError.
        """
        if text == self._written:
            return
        self._os_api.makedirs(self._path.rpartition("/")[0])
        temporary = self._path + ".tmp"
        self._os_api.write_file(temporary, text)
        if self._os_api.exists(self._path):
            self._os_api.rename(self._path, self._path + ".bak")
        self._os_api.rename(temporary, self._path)
        self._os_api.fsync_dir(self._path.rpartition("/")[0])
        self._written = text
