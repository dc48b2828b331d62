"""The jobs as commands: help, reports, exit codes; one whole run as a process of its own, as users start it.

Room: tests/spark. What each job does is in its own test.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
import mqfast
from mqfast import errors
from mqfast.config import StoreConfig
from mqfast.errors import CorruptFile, DataLoss, DiskFull, StoreLocked, UsageError
from mqfast.spark.jobs import arguments
from mqfast.spark.jobs.arguments import ExitCode, carry_out, job_parser
from mqfast.spark.jobs.files import DurableFile
from mqfast.spark.jobs.report import Report

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

    def job(found: SparkSession, settings: Namespace) -> Report:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[no-any-return]

    parser: ArgumentParser = job_parser("nothing", "Does nothing.")
    code = carry_out(parser, lambda a: a, job, list(more))
    assert session.stopped
    return code


@pytest.mark.parametrize(
    ("outcome", "code"),
    [
        (Report("x"), ExitCode.OK),
        (Report("x", damaged=True), ExitCode.DAMAGE),
        (UsageError("no"), ExitCode.USAGE),
        (StoreLocked("no"), ExitCode.LOCKED),
        (DiskFull(28, "full"), ExitCode.STORAGE),
        (PermissionError(13, "no"), ExitCode.STORAGE),
        (CorruptFile("no", path="p"), ExitCode.DAMAGE),
        (DataLoss("no"), ExitCode.DAMAGE),
        (RuntimeError("no"), ExitCode.FAILED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
        (RuntimeError("Traceback\n  x\nmqfast.errors.CorruptFile: bad\n at org.apache"), ExitCode.DAMAGE),
        (RuntimeError("[X] mqfast.errors.ConfigError: option foo"), ExitCode.USAGE),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, (BaseException, Report)) else str(value),
)
def test_exit_codes(
    outcome: Any, code: ExitCode, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_with(outcome, monkeypatch, None) == code
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err or isinstance(outcome, RuntimeError)
    assert len(shown.err.splitlines()) <= 1
    if "CorruptFile: bad" in str(outcome):
        assert shown.err.endswith(": bad\n")


def test_errors_of_ours_are_found_by_name() -> None:
    for name in errors.__all__:
        code, text = arguments._judge(RuntimeError(f"x\n  mqfast.errors.{name}: text of it\n y"))
        assert text == "text of it"
        assert code in ExitCode


def test_reports_as_text_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    report = Report("job", {"messages": 12345, "share": 0.5, "none": None, "sound": True})
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
