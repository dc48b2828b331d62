"""The log of a broker process: one line an event, as text or JSON; nothing changes by the import."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mqfast.broker.config.broker_logs import start_logging


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


def logged(json_lines: bool, message: str, *args: object, **more: object) -> list[str]:
    out = io.StringIO()
    start_logging(json_lines=json_lines, stream=out)
    logging.getLogger("mqfast.broker").warning(message, *args, **more)  # type: ignore[arg-type]
    return out.getvalue().splitlines()


def test_a_line_of_json_has_time_level_logger_and_message(root: logging.Logger) -> None:
    (line,) = logged(True, "topic %s", "a\nb", extra={"fields": {"topic": "a", "level": "mine"}})
    found = json.loads(line)
    assert found.pop("time").endswith("Z")
    assert found == {"level": "WARNING", "logger": "mqfast.broker", "message": "topic a\nb", "topic": "a"}


def test_a_traceback_stands_in_the_same_line_of_json(root: logging.Logger) -> None:
    try:
        raise ValueError("why")
    except ValueError:
        (line,) = logged(True, "failed", exc_info=True)
    assert "ValueError: why" in json.loads(line)["error"]


@pytest.mark.parametrize("text", ["a\nb", "a\r\nb", "a\u2028b", "a\x1b[31mb", "a\x85b", "a\x7fb"])
def test_a_line_of_text_stays_one_line_without_controls(root: logging.Logger, text: str) -> None:
    (line,) = logged(False, "topic %s", text)
    assert " WARNING mqfast.broker topic a" in line
    assert line.isprintable()


def test_a_second_call_replaces_the_first_and_leaves_other_handlers(root: logging.Logger) -> None:
    before = list(root.handlers)
    first, second = io.StringIO(), io.StringIO()
    start_logging(stream=first)
    start_logging(stream=second, level="error")
    logging.getLogger("x").error("once")
    assert (first.getvalue(), second.getvalue().count("once")) == ("", 1)
    assert root.level == logging.ERROR
    assert root.handlers[: len(before)] == before


def test_the_import_changes_nothing() -> None:
    code = (
        "import logging; before = (list(logging.root.handlers), logging.root.level);"
        "import mqfast.broker.config.broker_logs;"
        "assert before == (list(logging.root.handlers), logging.root.level)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=200)


def test_an_unknown_level_is_an_error(root: logging.Logger) -> None:
    before = list(root.handlers)
    with pytest.raises(ValueError, match="LOUD"):
        start_logging(level="loud")
    assert root.handlers == before
