"""``mqfast store verify`` and ``repair``: checks and repairs of a store.

``repair`` is the only command that removes data, and asks for confirmation first.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from mqfast.cli.arguments import Commands
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.cli.stores import config_of
from mqfast.errors import UsageError

if TYPE_CHECKING:
    from mqfast.store.check.repair_report import RepairReport
    from mqfast.store.check.verify import Report

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """Add ``verify`` and ``repair``."""
    commands.add(
        verify,
        "check the whole store and print a damage map",
        more="Reads every record, unit and index entry. Exit code 1: there is damage.",
    )
    mend = commands.add(
        repair,
        "cut or rebuild what is damaged",
        more="Only torn ends are cut and derived files rebuilt; what is cut is kept aside, and --salvage puts its "
        "whole messages back at the end of the log, each once.",
    )
    how = mend.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="do not ask")
    how.add_argument("--dry-run", action="store_true", help="only say what would be done")
    mend.add_argument(
        "--salvage", action="store_true", help="put kept messages back as new ones, also those that an open kept"
    )


def _tell(out: Output, report: Report | RepairReport) -> None:
    if out.as_json:
        out.json(json.loads(report.to_json()))
    else:
        out.text(str(report))


def verify(arguments: argparse.Namespace) -> ExitCode:
    """Check the whole store."""
    import mqfast

    out = Output(arguments.json)
    with out.progress("checking") as progress:
        report = mqfast.verify(arguments.path, config=config_of(arguments), progress=progress)
    _tell(out, report)
    return ExitCode.OK if report.ok else ExitCode.DAMAGE


def _agreed(question: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError("repair: expected --yes or --dry-run where nobody can be asked, found neither")
    print(question, end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def repair(arguments: argparse.Namespace) -> ExitCode:
    """Truncate or rebuild damaged files."""
    import mqfast

    out = Output(arguments.json)
    config = config_of(arguments)
    if not arguments.yes:
        report = mqfast.repair(arguments.path, dry_run=True, salvage=arguments.salvage, config=config)
        if arguments.dry_run or not report.actions:
            _tell(out, report)
            return ExitCode.OK
        for line in str(report).splitlines():
            print(line, file=sys.stderr)
        if not _agreed("carry this out? [y/N]"):
            out.note("nothing was changed")
            return ExitCode.OK
    report = mqfast.repair(arguments.path, salvage=arguments.salvage, config=config)
    _tell(out, report)
    return ExitCode.OK
