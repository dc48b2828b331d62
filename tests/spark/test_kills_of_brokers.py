"""A stream into a broker that is killed on the way, as is a task: ``make broker-kills`` in short.

Room: tests.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

sys.path.append(str(Path(__file__).resolve().parent))
import broker_kills


def test_killed_brokers_and_tasks_lose_and_repeat_nothing(tmp_path: Path) -> None:
    """With MQFAST_WHOLE=1 a driver as well, which takes two more starts of Spark."""
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as place:
        planned = ["broker", "task", *(["broker", "driver"] if os.environ.get("MQFAST_WHOLE") == "1" else [])]
        run = broker_kills.BrokerRun(
            Path(place), "broker", 2000, planned, random.Random(6), limit=250, most_delay_s=1.0, most_away_s=0.2
        )
        try:
            run.carry_out()
            run.check()
        finally:
            run.end()
        assert sum(run.done.values()) == len(planned)
        assert run.lives >= 1 + run.done["driver"]
