"""A stream into a store whose task and driver are killed on the way: the short form of ``make spark-kills``."""

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
import kills


@pytest.mark.slow
@pytest.mark.sampled(1, group="kills under Spark", lane="make spark-kills, make broker-kills")
def test_killed_tasks_and_drivers_lose_and_repeat_nothing(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path) as place:
        run = kills.Run(Path(place), "store", 3000, ["task", "driver"], random.Random(6), limit=200, most_delay_s=1.0)
        run.carry_out()
        run.check()
        assert run.done == {"task": 1, "driver": 1}
        assert run.lives > 1


def test_the_check_sees_what_is_lost_and_what_is_repeated(tmp_path: Path) -> None:
    run = kills.Run(tmp_path, "store", 40, [], random.Random(6))
    with kills.small_store(run.target) as store:
        for queue in range(kills.QUEUES):
            store.put_many("t", [b"%d " % n for n in range(queue, 36, kills.QUEUES)], queue)
    with pytest.raises(AssertionError, match="4 lost, 0 repeated"):
        run.check()
    with kills.small_store(run.target) as store:
        for n in (36, 37, 38, 39, 39):
            store.put("t", b"%d " % n, n % kills.QUEUES)
    with pytest.raises(AssertionError, match="1 repeated"):
        run.check()
