"""An installed mqfast is found by Spark itself: ``format("mqfast")`` without ``register``.

The packages are those that a wheel is made of, by setup.py's own word; only the compiled modules are
taken from where they were built. That a wheel has them all is ``wheels/smoke.py``'s business.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")
pytest.importorskip("setuptools")
pytest.importorskip("Cython")
import mqfast
from mqfast.config import StoreConfig

ROOT = Path(__file__).resolve().parents[2]

# The driver never imports mqfast: what knows the format is a Python worker of Spark, which looks for modules pyspark_*.
SCRIPT = """
import json, sys
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
spark = builder.config("spark.driver.memory", "512m").config("spark.log.level", "ERROR").getOrCreate()
try:
    rows = spark.read.format("mqfast").option("columns", "keys").load(sys.argv[1]).collect()
finally:
    spark.stop()
print(json.dumps([sorted(row["keys"] for row in rows), "mqfast" in sys.modules]))
"""


def installed(target: Path) -> Path:
    """A directory with what ``pip install`` puts into site-packages."""
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=300)
    for module in (ROOT / "mqfast").rglob("*.so"):
        (target / module.relative_to(ROOT)).symlink_to(module)
    return target


@pytest.mark.slow
@pytest.mark.sampled(1, group="programs that start Spark themselves")
def test_spark_finds_the_format_of_an_installed_package(tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(5):
            store.put("T", b"body", keys=f"k{i}")
    site = installed(tmp_path / "site")
    assert (site / "pyspark_mqfast" / "__init__.py").is_file()
    environment = {
        **os.environ, "PYTHONPATH": str(site), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "store")],
        capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [[f"k{i}" for i in range(5)], False]
