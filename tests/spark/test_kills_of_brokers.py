"""A stream into a broker, and from a broker into Parquet, with kills on the way: ``make broker-kills`` in short.

Each case takes two starts of Spark or one: the suite takes one case a day, of these and of ``test_kills_of_spark.py``.
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
import landing_kills

LOCAL, EXECUTORS = broker_kills.LOCAL, broker_kills.EXECUTORS
LANE = "make spark-kills, make broker-kills"


@pytest.mark.slow
@pytest.mark.sampled(1, group="kills under Spark", lane=LANE)
@pytest.mark.parametrize(
    ("kind", "sink", "master"),
    [
        (broker_kills.BrokerRun, "broker", LOCAL),
        (landing_kills.LandingRun, "files", LOCAL),
        (landing_kills.LandingRun, "each", LOCAL),
        (broker_kills.BrokerRun, "broker", EXECUTORS),
        (landing_kills.LandingRun, "files", EXECUTORS),
    ],
)
def test_kills_lose_and_repeat_nothing(
    kind: type[broker_kills.BrokerRun], sink: str, master: str, tmp_path: Path
) -> None:
    """With MQFAST_WHOLE=1 a driver as well, which takes two more starts of Spark."""
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as place:
        planned = ["broker", "task" if master == LOCAL else "executor"]
        planned += ["broker", "driver"] if os.environ.get("MQFAST_WHOLE") == "1" else []
        run = kind(
            Path(place), sink, 2000, planned, random.Random(6), master=master, limit=250, most_delay_s=1.0,
            most_away_s=0.2,
        )  # fmt: skip
        try:
            run.carry_out()
            run.check()
        finally:
            run.end()
        assert sum(run.done.values()) == len(planned)
        assert run.lives >= 1 + run.done["driver"]
