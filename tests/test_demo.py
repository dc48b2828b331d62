"""The demo runs to its end on a small scale, and says clearly what is missing.

Room: tests. The full size is ``make demo``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from array import array
from pathlib import Path

import pytest

from mqfast import demo
from mqfast.demo_network import JAVA_CLIENT, network

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: object, **environment: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mqfast.demo", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=dict(os.environ, PYTHONPATH=str(ROOT), **{name: str(value) for name, value in environment.items()}),
        timeout=1200,
        check=False,
    )


def test_the_demo_recovers_kills_recovers_and_finds_every_message(tmp_path: Path) -> None:
    work, tools = tmp_path / "work", tmp_path / "tools"
    work.mkdir()
    done = run("--messages", 30_000, "--dir", work, PATH=tools)
    assert (done.returncode, done.stderr) == (0, "")
    for line in (
        "ok read 291 messages of 6 queues",
        "query KillA for key 'ka1': 1 message(s)",
        "ok SIGKILL after",
        "are there, byte for byte",
        "copy + CRC",
        "ok 20,000 messages sent and acknowledged",
        "ok all of them received by a PushConsumer of group demo-readers",
        "left out: the Java client of Apache RocketMQ 5.5.0: it needs java, javac and mvn",
        "ok the same messages in the store: mqfast store ls",
    ):
        assert line in done.stdout
    assert "\x1b" not in done.stdout
    assert list(work.iterdir()) == []


def test_without_a_network_one_line_says_that_there_is_no_java_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven is there and fetches nothing."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("java", "javac", "mvn"):
        (tools / name).write_text("#!/bin/sh\nexit 1\n")
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    monkeypatch.setenv("MQFAST_JAVA_CACHE", str(tmp_path / "cache"))
    lines: list[str] = []
    network(tmp_path, lines.append, lines.append, lines.append)
    (left_out,) = (line for line in lines if line.startswith("left out: "))
    assert "cannot be fetched from Maven Central" in left_out
    assert any(line.split()[:3] == ["DemoOrders", "0", "0"] for line in lines)
    assert not any("DemoJava" in line for line in lines)


def test_a_missing_store_is_an_error_of_one_line(tmp_path: Path) -> None:
    done = run("--store", tmp_path / "nothing", "--dir", tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert str(tmp_path / "nothing") in done.stderr
    assert "source checkout" in done.stderr


def test_the_comparison_would_notice_a_lost_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forge(path: Path, count: int) -> tuple[array[int], list[float]]:
        places, speeds = kill(path, count)
        places[-1] += 1
        return places, speeds

    kill = demo.kill_a_writer
    monkeypatch.setattr(demo, "kill_a_writer", forge)
    with pytest.raises(demo.DemoFailed, match=r"expected at least|does not hold"):
        demo.big_store(tmp_path, 5_000)


def test_the_demo_is_smaller_or_refused_with_little_disk_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def with_free(free: int) -> None:
        monkeypatch.setattr(demo.shutil, "disk_usage", lambda _: _Usage(free))

    with_free(1 << 40)
    assert demo.affordable(1_000_000, tmp_path) == 1_000_000
    with_free(demo.SPARE_BYTES + (512 << 20))
    count = demo.affordable(1_000_000, tmp_path)
    assert 10_000 <= count < 1_000_000
    assert f"{count:,} messages instead of 1,000,000" in capsys.readouterr().out
    with_free(demo.SPARE_BYTES)
    with pytest.raises(demo.DemoFailed, match="not enough disk space"):
        demo.affordable(1_000_000, tmp_path)


class _Usage:
    def __init__(self, free: int) -> None:
        self.free = free


def test_the_java_client_of_the_demo_needs_the_standard_library_alone(tmp_path: Path) -> None:
    """An environment of ``make demo`` has nothing that only tests need; without Java the program says so."""
    command = [sys.executable, "-S", "-E", str(JAVA_CLIENT), "127.0.0.1:1", "T", "G", "1"]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "")
    assert "it needs java, javac and mvn" in done.stdout
