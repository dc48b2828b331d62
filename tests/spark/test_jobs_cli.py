"""The jobs as commands: help, reports, exit codes; one whole run as a process of its own, as users start it.

What each job does is in its own test.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
import venv
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import mqfast
from mqfast import errors
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DataLoss, DiskFull, StoreLocked, UsageError
from mqfast.spark.durable_files import DurableFile
from mqfast.spark.jobs import arguments
from mqfast.spark.jobs.arguments import JobExitCode, job_parser, run_job
from mqfast.spark.jobs.report import JobReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted(path.stem for path in (ROOT / "mqfast" / "spark" / "jobs").glob("*.py") if "__main__" in path.read_text())


@pytest.mark.parametrize("job", JOBS)
def test_help_and_wrong_arguments(job: str, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = importlib.import_module(f"mqfast.spark.jobs.{job}")
    with pytest.raises(SystemExit) as end:
        module.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert f"mqfast.spark.jobs.{job}" in text
    assert "Exit codes" in text
    with pytest.raises(SystemExit) as end:
        module.main(["--no-such-option"])
    assert end.value.code == 2


@pytest.mark.slow
@pytest.mark.sampled(1, group="programs that start Spark themselves")
def test_a_job_as_a_process(tmp_path: Path) -> None:
    """No register, no session: nothing but the command. Under spark-submit it is the same file."""
    pytest.importorskip("pyarrow")
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(50):
            store.put("T", b"body", queue_id=i % 2)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [
            sys.executable, "-m", "mqfast.spark.jobs.archive", str(tmp_path / "store"), str(tmp_path / "archive"),
            "--master", "local[1]", "--conf", "spark.ui.enabled=false", "--json", "--report", "report.json",
        ],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["facts"]["messages"] == 50
    assert json.loads((tmp_path / "report.json").read_text()) == report
    assert len(list((tmp_path / "archive").rglob("*.parquet"))) == 1


def run_with(outcome: Any, monkeypatch: pytest.MonkeyPatch, spark: Any, *more: str) -> int:
    """The exit code of a job that ends so."""

    class Session:
        """Ours, which a job must not stop."""

        stopped = False

        def stop(self) -> None:
            self.stopped = True

    session = Session()
    monkeypatch.setattr(arguments, "_session", lambda name, a: session)

    def job(found: SparkSession, settings: Namespace) -> JobReport:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    parser: ArgumentParser = job_parser("nothing", "Does nothing.")
    code = run_job(parser, lambda a: a, job, list(more))
    assert session.stopped
    return code


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (JobReport("x"), JobExitCode.OK),
        (JobReport("x", damaged=True), JobExitCode.DAMAGE),
        (UsageError("no"), JobExitCode.USAGE),
        (StoreLocked("no"), JobExitCode.LOCKED),
        (DiskFull(28, "full"), JobExitCode.STORAGE),
        (PermissionError(13, "no"), JobExitCode.STORAGE),
        (CorruptFile("no", path="p"), JobExitCode.DAMAGE),
        (DataLoss("no"), JobExitCode.DAMAGE),
        (RuntimeError("no"), JobExitCode.FAILED),
        (KeyboardInterrupt(), JobExitCode.INTERRUPTED),
        (RuntimeError("Traceback\n  x\nmqfast.errors.CorruptFile: bad\n at org.apache"), JobExitCode.DAMAGE),
        (RuntimeError("[X] mqfast.errors.ConfigError: option foo"), JobExitCode.USAGE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (BaseException, JobReport)) else str(value),
)
def test_exit_codes(
    outcome: Any, code: JobExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(outcome, monkeypatch, None) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err or isinstance(outcome, RuntimeError)
    assert len(shown.err.splitlines()) <= 1
    if "CorruptFile: bad" in str(outcome):
        assert shown.err.endswith(": bad\n")


LOST = "An error occurred while calling o54.collect.\n: org.apache.spark.SparkException: Job aborted: "


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            LOST + "Lost task 0.0 (TID 0): org.apache.spark.SparkException: \nError from python worker:\n"
            '  Traceback (most recent call last):\n    File "x", line 1\n      import y\n'
            "  ModuleNotFoundError: No module named 'mqfast'\nPYTHONPATH was:\n  /x\njava.io.EOFException: gone",
            "ModuleNotFoundError: No module named 'mqfast' (on a worker: install it on every node, or name another "
            "Python by PYSPARK_PYTHON)",
        ),
        (
            LOST
            + "Lost task 0.0 (TID 0): org.apache.spark.api.python.PythonException: Traceback (most recent call last):"
            '\n  File "worker.py", line 9, in main\n    go()\nMemoryError\n\n\tat org.apache.spark.Task.run(T)',
            "MemoryError",
        ),
        (
            "[UNKNOWN] Traceback (most recent call last):\n  File 'a'\nKeyError: 'a'\n\nDuring handling of the above "
            "exception, another exception occurred:\n\nTraceback (most recent call last):\n  File 'b'\nzlib.error: bad",
            "zlib.error: bad",
        ),
        (
            LOST + 'Lost task 0.0 (TID 0): java.io.IOException: Cannot run program "/nowhere": error=2, No such file\n'
            "\tat java.base/java.lang.ProcessBuilder.start\nCaused by: java.io.IOException: error=2, No such file",
            'java.io.IOException: Cannot run program "/nowhere": error=2, No such file',
        ),
        ("only\none of these", "only"),
        ("", "no reason was given"),
    ],
)
def test_the_line_that_a_job_ends_with_is_the_cause(text: str, line: str) -> None:
    assert arguments._exit_code_of(RuntimeError(text)) == (JobExitCode.FAILED, line)


@pytest.mark.slow
@pytest.mark.sampled(1, group="programs that start Spark themselves")
def test_workers_without_mqfast(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        store.put("T", b"body")
    venv.create(tmp_path / "bare")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(tmp_path / "bare" / "bin" / "python")}
    # The driver finds the package however it is found here, and its workers do not.
    driver = (
        f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); "
        "runpy.run_module('mqfast.spark.jobs.audit', run_name='__main__', alter_sys=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", driver, str(tmp_path / "store"), "--no-index", "--master", "local[1]"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == JobExitCode.FAILED
    # A worker of its own may write its traceback to the same place behind it.
    causes = [line for line in done.stderr.splitlines() if "on a worker: install it" in line]
    assert len(causes) == 1, done.stderr
    assert "ModuleNotFoundError: No module named 'mqfast'" in causes[0]


@pytest.mark.slow
def test_an_archive_over_spark_connect(tmp_path: Path) -> None:
    """A process of its own: a session is either classic or of Connect."""
    for module in ("pyarrow", "grpc", "grpc_status", "pandas"):
        pytest.importorskip(module, reason="Spark Connect needs it")
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(300):
            store.put("T", b"%d" % i, queue_id=i % 2)
    program = f"""
from pyspark.sql import SparkSession
from mqfast.errors import UsageError
from mqfast.spark import register
from mqfast.spark.jobs import archive
from mqfast.spark.jobs.tasks import context_of
spark = SparkSession.builder.remote("local[1]").config("spark.ui.enabled", "false").getOrCreate()
register(spark)
store = {str(tmp_path / "store")!r}
report = archive.run(spark, archive.ArchiveSettings(store, {str(tmp_path / "archive")!r}, partition_bytes=4096))
print(report.facts["messages"])
try:
    context_of(spark, "rebuild")  # which goes by RDDs
except UsageError as error:
    print(error)
spark.stop()
"""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-2] == "300"
    assert "found one of Spark Connect" in lines[-1]


def test_errors_of_ours_are_found_by_name() -> None:
    for name in errors.__all__:
        code, text = arguments._exit_code_of(RuntimeError(f"x\n  mqfast.errors.{name}: text of it\n y"))
        assert text == "text of it"
        assert code in JobExitCode


def test_reports_as_text_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = JobReport("job", {"messages": 12345, "share": 0.5, "none": None, "sound": True})
    report.table("table", ("name", "count"), [("a\x1b[2J", 7), ("bb", 123456)])
    report.table("nothing", ("x",), [])
    assert run_with(report, monkeypatch, None) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:5] == ["job", "  messages  12,345", "  share     0.50", "  none      -", "  sound     yes"]
    assert lines[-4:] == ["table", "  name        count", "  a\\x1b[2J        7", "  bb        123,456"]
    assert run_with(report, monkeypatch, None, "--json") == 0
    assert json.loads(capsys.readouterr().out)["tables"][0]["rows"][1] == ["bb", 123456]


def test_settings_of_spark_are_checked() -> None:
    with pytest.raises(UsageError, match="expected NAME=VALUE"):
        arguments._session("x", Namespace(master=None, conf=["a"]))


def test_a_durable_file_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    file = DurableFile(str(tmp_path / "new" / "file"))
    assert file.write(b"abc") == 3
    assert [path.name for path in (tmp_path / "new").iterdir()] != ["file"]
    file.discard()
    assert list((tmp_path / "new").iterdir()) == []
    file = DurableFile(str(tmp_path / "new" / "file"))
    file.write(memoryview(b"abc"))
    file.write(b"d")
    file.commit()
    file.discard()
    assert (tmp_path / "new" / "file").read_bytes() == b"abcd"
    assert (file.bytes, file.crc) == (4, 0xED82CD11)


@pytest.mark.parametrize("job", ["analytics", "archive", "audit", "compact", "dlq", "rebuild", "replay"])
def test_the_former_name_of_job_settings_warns_and_works(job: str) -> None:
    module = importlib.import_module(f"mqfast.spark.jobs.{job}")
    with pytest.warns(DeprecationWarning, match=f"is {job.capitalize()}Settings now"):
        assert module.Settings is getattr(module, f"{job.capitalize()}Settings")
    with pytest.raises(AttributeError, match="no attribute 'Missing'"):
        _ = module.Missing
