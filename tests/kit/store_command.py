"""``mqfast store`` in the process of a test: exit code, standard output, standard error."""

from __future__ import annotations

import pytest

from mqfast.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """Run a command and return the exit code and what the command printed."""
    code = main(["store", *map(str, arguments)])
    printed = capsys.readouterr()
    return int(code), printed.out, printed.err
