"""One Spark session for all tests of the adapter, which finds the source by itself as in an installation.

It must never hand out a golden directory: reading writes leases.
"""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[2]
# Last, so that ``conftest`` stays the one of all tests.
sys.path.append(str(Path(__file__).resolve().parent))


def _missing(name: str) -> str | None:
    """Why the tests of a file cannot run here; None where they can."""
    for module in ("pyspark", "pyarrow"):
        try:
            importlib.import_module(module)
        except ImportError:
            return f"needs {module}"
    if shutil.which("java") is None:
        return "needs Java 17"
    if name.startswith("test_stream"):
        try:
            importlib.import_module("pyspark.sql.streaming.datasource")
        except ImportError:
            return "streams need pyspark 4.2"
    return None


class _Skipped(pytest.Module):
    """A file of which not even the imports work."""

    why: str

    def collect(self) -> Any:
        pytest.skip(self.why, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip with a reason what cannot run here."""
    why = _missing(module_path.name)
    if why is None:
        return None
    module: _Skipped = _Skipped.from_parent(parent, path=module_path)
    module.why = why
    return module


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two slots; tasks are not tried again, as always with ``local[n]``."""
    from pyspark.sql import SparkSession

    from mqfast.spark import conf

    base = tmp_path_factory.mktemp("spark")
    # As a wheel installs it: a top-level module beside the package.
    (base / "path").mkdir()
    (base / "path" / "pyspark_mqfast").symlink_to(ROOT / "mqfast" / "spark" / "autoload")
    environment = {
        "PYTHONPATH": f"{base / 'path'}:{ROOT}",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "1g",
        # A JVM that lives for minutes: the optimising compiler takes more time than its code saves.
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "Asia/Shanghai",
        "spark.sql.warehouse.dir": str(base / "warehouse"),
        "spark.local.dir": str(base / "local"),
    }
    builder: Any = SparkSession.builder.master("local[2]").appName("mqfast tests")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = conf(builder).getOrCreate()
    try:
        yield session
    finally:
        session.stop()
        for name, old in before.items():
            if old is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = old
