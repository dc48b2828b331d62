"""The log of a broker process: lines of text, or one JSON object per line.

Importing the module changes nothing; only a process of mqfast calls ``start_logging``, never a library. Text of a peer
never makes more than a single line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Final, TextIO

__all__ = ["JsonLines", "TextLines", "start_logging"]

_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), 127, 0x85, 0x2028, 0x2029)} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
}


class TextLines(logging.Formatter):
    """``time level logger message``; control characters of the message are escaped, a traceback follows on separate
    lines.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without the traceback."""
        record.message = record.message.translate(_CONTROLS)
        return super().formatMessage(record)


class JsonLines(logging.Formatter):
    """A JSON object per line: ``time`` (UTC, ISO 8601), ``level``, ``logger``, ``message``; ``error`` is a traceback.

    The fields of ``extra={"fields": {...}}`` of a call are added; these never replace the former.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields = getattr(record, "fields", None)
        if isinstance(fields, dict):
            line = {**fields, **line}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class _Ours(logging.StreamHandler[TextIO]):
    """The handler of ``start_logging``: a second call replaces it."""


def start_logging(*, json_lines: bool = False, level: str = "INFO", stream: TextIO | None = None) -> None:
    """Write the log of this process to a stream, by default stderr, from this level on.

    Other handlers stay. Raises: ValueError for an unknown level.
    """
    root = logging.getLogger()
    handler = _Ours(stream or sys.stderr)
    handler.setFormatter(JsonLines() if json_lines else TextLines())
    root.setLevel(level.upper())
    for old in [other for other in root.handlers if isinstance(other, _Ours)]:
        root.removeHandler(old)
    root.addHandler(handler)
