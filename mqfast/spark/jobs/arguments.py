"""The command line of every job: common arguments, session, report, and exit codes of errors.

Errors of users, stores and disks never show a traceback.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from mqfast import errors
from mqfast.errors import CorruptFile, DataLoss, MqfastError, StorageError, StoreLocked, UsageError
from mqfast.spark.durable_files import DurableFile
from mqfast.spark.jobs.report import JobReport
from mqfast.spark.jobs.tasks import run_tasks
from mqfast.spark.options import instant_ms, size

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["JobExitCode", "run_job", "count", "instant", "job_parser", "names", "size_argument"]

S = TypeVar("S")


class JobExitCode(IntEnum):
    """The exit codes of jobs."""

    OK = 0
    """Done, nothing wrong was found."""
    DAMAGE = 1
    """Damage was found, or messages that should be there are gone."""
    USAGE = 2
    """Wrong arguments, or not the store or archive that was expected."""
    STORAGE = 3
    """The operating system refused a file operation."""
    LOCKED = 4
    """Another process has the store or the archive."""
    FAILED = 5
    """Spark failed."""
    INTERRUPTED = 130


_EPILOG: Final = (
    "Exit codes: 0 done; 1 damage found or messages gone; 2 wrong arguments or not the expected store or archive; "
    "3 a file operation was refused; 4 another process is at work there; 5 Spark failed; 130 interrupted. "
    "Under spark-submit, --master and --conf belong to spark-submit."
)
_ERROR: Final = re.compile(r"[A-Za-z_][\w.]*(:|$)")
_JAVA: Final = re.compile(r"\b((?:[a-z_]\w*\.)+[A-Z]\w*(?:Exception|Error)): (?=\S)")
_ENVELOPES: Final = ("org.apache.spark.SparkException", "py4j.protocol.Py4JJavaError")
# Spark's texts for a worker that ended during a call.
_LOST: Final = re.compile(r"^java\.(net\.SocketException|io\.EOFException)|Python worker (exited|failed)")
_ASKED: Final = 5
_OURS: Final = re.compile(r"^.*\bmqfast\.errors\.(\w+): (.*)$", re.MULTILINE)


def job_parser(name: str, text: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments of every job."""
    parser = argparse.ArgumentParser(prog=f"python -m mqfast.spark.jobs.{name}", description=text, epilog=_EPILOG)
    common = parser.add_argument_group("every job")
    common.add_argument("--json", action="store_true", help="print the report as one JSON object instead of tables")
    common.add_argument("--report", metavar="FILE", help="write the report as JSON to this file as well")
    common.add_argument("--master", metavar="URL", help="Spark's master (default: local[*])")
    common.add_argument(
        "--conf", action="append", default=[], metavar="NAME=VALUE", help="a setting of Spark; may be given repeatedly"
    )
    return parser


def names(text: str) -> tuple[str, ...]:
    """Return names separated by commas."""
    values = tuple(name.strip() for name in text.split(",") if name.strip())
    if not values:
        raise argparse.ArgumentTypeError("expected names separated by commas")
    return values


def size_argument(text: str) -> int:
    """Return ``128m`` as bytes."""
    try:
        return size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from None


def count(text: str) -> int:
    """Return a whole number above 0."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError("expected a whole number above 0")
    return int(text)


def instant(text: str) -> int:
    """Return a time as milliseconds since the epoch."""
    try:
        return instant_ms(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"expected {error}") from None


def run_job(
    parser: argparse.ArgumentParser,
    settings_of: Callable[[argparse.Namespace], S],
    run: Callable[[SparkSession, S], JobReport],
    argv: Sequence[str] | None = None,
) -> int:
    """Parse, create a session, run, print the report; return the exit code."""
    # STORE is optional: positional arguments are assigned after parsing.
    arguments = parser.parse_intermixed_args(argv)
    spark: SparkSession | None = None
    try:
        settings = settings_of(arguments)
        spark = _session(parser.prog, arguments)
        start_s = time.monotonic()
        report = run(spark, settings)
        report.facts["seconds"] = round(time.monotonic() - start_s, 3)
        if arguments.report is not None:
            _write(arguments.report, report)
    except KeyboardInterrupt:
        return JobExitCode.INTERRUPTED
    except Exception as error:
        code, text = _exit_code_of(error)
        if spark is not None and _LOST.search(text):
            text = _probe_worker(spark) or text
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return code
    finally:
        if spark is not None:
            spark.stop()
    print(report.json() if arguments.json else report.text())
    return JobExitCode.DAMAGE if report.damaged else JobExitCode.OK


def _session(name: str, arguments: argparse.Namespace) -> SparkSession:
    from pyspark.sql import SparkSession

    from mqfast.spark import conf, register

    builder: Any = SparkSession.builder.appName(name.rpartition(" ")[2])
    if arguments.master is not None:
        builder = builder.master(arguments.master)
    for setting in arguments.conf:
        key, equals, value = setting.partition("=")
        if not (key and equals):
            raise UsageError(f"--conf: expected NAME=VALUE, found {setting!r}")
        builder = builder.config(key, value)
    spark = conf(builder).getOrCreate()
    register(spark)
    return spark


def _write(path: str, report: JobReport) -> None:
    file = DurableFile(path)
    try:
        file.write(report.json().encode("ascii"))
        file.commit()
    finally:
        file.discard()


def _exit_code_of(error: Exception) -> tuple[JobExitCode, str]:
    """Return the exit code and a line of text; errors of mqfast in a task or a plan are found in Spark's text."""
    if isinstance(error, MqfastError):
        return _code(type(error)), str(error)
    if isinstance(error, OSError):
        return JobExitCode.STORAGE, str(error)
    ours = _OURS.findall(str(error))
    if ours:
        kind, text = ours[-1]
        return _code(getattr(errors, kind, MqfastError)), text
    return JobExitCode.FAILED, _cause(str(error))


def _probe_worker(spark: SparkSession) -> str | None:
    """Return why a worker cannot start, if Spark reports only a lost worker; None if a worker starts."""
    for _ in range(_ASKED):
        try:
            run_tasks(spark, [None], _begin, "looking for the cause")
        except Exception as error:
            text = _cause(str(error))
            if not _LOST.search(text):
                return text
        else:
            return None
    return None


def _begin(item: None) -> None:
    """Do nothing: a task that every worker with mqfast can run."""


def _cause(text: str) -> str:
    """Return the cause in Spark's text: the error of a Python task, else the first Java error that is not Spark's
    envelope, else the first line.
    """
    lines = text.strip().splitlines()
    causes: list[str] = []
    block: int | None = None  # indentation of the present traceback
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if line.endswith("Traceback (most recent call last):"):
            block = depth
        elif block is not None and depth <= block and _ERROR.match(line.strip()):
            causes.append(line.strip())
            block = None
    if not causes:
        # The last error of a line is the cause; the first line with an error is the origin of the others.
        said = [[m for m in _JAVA.finditer(line) if m[1] not in _ENVELOPES] for line in lines]
        causes = [line[m[-1].start() :].strip() for line, m in zip(lines, said, strict=True) if m][:1]
    if not causes:
        return next((line.strip() for line in lines if line.strip()), "no reason was given")
    if "No module named" in causes[-1]:
        return f"{causes[-1]} (on a worker: install it on every node, or name another Python by PYSPARK_PYTHON)"
    return causes[-1]


def _code(kind: type[BaseException]) -> JobExitCode:
    for base, code in (
        (StoreLocked, JobExitCode.LOCKED),
        (UsageError, JobExitCode.USAGE),
        (StorageError, JobExitCode.STORAGE),
        (CorruptFile, JobExitCode.DAMAGE),
        (DataLoss, JobExitCode.DAMAGE),
    ):
        if issubclass(kind, base):
            return code
    return JobExitCode.FAILED
