"""Shared fixtures: golden stores (always copied before use), the Java oracle, hypothesis profiles.

Room: tests. It must never import mqfast, so that the reference model and the oracle can be tested without a build, and
never hand out a golden directory for writing. What the golden data is: ``tests/golden/README.md``.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import lzma
import os
import random
import re
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).resolve().parent
GOLDEN = TESTS / "golden"
for room in (TESTS, TESTS / "kit", TESTS / "model", TESTS / "compat"):
    if str(room) not in sys.path:
        sys.path.insert(0, str(room))

from java_oracle import NEWEST, RELEASES, JavaOracle, copy_store  # noqa: E402  (its folder was just made importable)
from python_forms import use_python_forms  # noqa: E402
from sampling import LONG, WHOLE, Sample, choose, seed_of_the_run  # noqa: E402
from selector_threads import give_reactors  # noqa: E402

_CALM = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
# The suite draws the same every time, so that what fails in it failed because of the change; new ground is the business
# of the long lanes. print_blob: a failing run prints the seed (reproduce_failure) that repeats it.
settings.register_profile("default", deadline=None, max_examples=30, derandomize=True, suppress_health_check=_CALM)
settings.register_profile("long", deadline=None, max_examples=2000, print_blob=True, suppress_health_check=_CALM)
settings.load_profile("long" if LONG else "default")
seed_of_the_run()  # settled before there are other processes


_MEMORY = "/dev/shm"
_LEAST_FREE_BYTES = 6 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Folders of tests are in memory where there is room: else two thirds of the suite's time are syncs of a disk. What
    depends on a disk takes ``disk_path``; the long forms, and runs with PYTEST_DEBUG_TEMPROOT, are on the disk as well.
    """
    if not (WHOLE or config.getoption("basetemp")) and _free_memory() >= _LEAST_FREE_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", _MEMORY)
    use_python_forms()
    give_reactors()


def _free_memory() -> int:
    """Bytes that files in memory may take."""
    if not os.access(_MEMORY, os.W_OK):
        return 0
    found = re.search(r"^MemAvailable: +(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return min(shutil.disk_usage(_MEMORY).free, int(found[1]) << 10 if found else 0)


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """An empty folder on the disk, for what a file system in memory does otherwise: holes, file times, a real sync."""
    with tempfile.TemporaryDirectory(prefix="mqfast-test-", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Lanes that meet thousands of failures switch logging off for the process: not for the tests behind them."""
    before = logging.root.manager.disable
    yield
    logging.disable(before)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Of a random workload: always the same for a test, another one in the long lanes."""
    return random.SystemRandom().randrange(1 << 30) if LONG else zlib.crc32(request.node.nodeid.encode()) >> 2


@pytest.fixture
def sample(request: pytest.FixtureRequest) -> Iterator[Sample]:
    """Of a sweep that the suite cannot run whole; the test is marked ``sampled``."""
    assert request.node.get_closest_marker("sampled"), "make sweeps runs the tests that are marked as sampled"
    taken = Sample(request.node.nodeid)
    yield taken
    request.node.user_properties += [("sampled", line) for line in taken.lines]


@dataclasses.dataclass(frozen=True)
class Case:
    """One golden store: where it is, how to open it and what Java sees in it."""

    name: str
    release: str
    dir: Path

    @functools.cached_property
    def expected(self) -> dict[str, Any]:
        """What the Java store classes report; see tests/golden/README.md."""
        loaded: dict[str, Any] = json.loads((self.dir / "expected.json").read_text(encoding="utf-8"))
        return loaded

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration that the store was written with, under RocketMQ's names."""
        return dict(self.expected["settings"])

    @property
    def store(self) -> Path:
        """The golden store directory itself: read only."""
        return self.dir / "store"

    def __str__(self) -> str:
        return f"{self.release}-{self.name}"


def golden_cases(release: str | None = None, names: tuple[str, ...] = ()) -> list[Case]:
    """Return the golden cases, of one release or of all, of the given names or of all."""
    return [
        Case(path.name, folder.name.removeprefix("golden-"), path)
        for folder in sorted(GOLDEN.glob(f"golden-{release or '[0-9]*'}"))
        for path in sorted(folder.iterdir())
        if path.is_dir() and (not names or path.name in names)
    ]


def copy_of(case: Case, tmp_path: Path) -> Path:
    """Copy the store of ``case`` below ``tmp_path`` and return the copy, with file times as if just written.

    A checkout loses file times, but 4.x searches by time through them (when a queue file was last changed, which for a
    mapped file is about when it was made). Each queue file therefore gets the store time of its first unit and a bit.
    """
    target = copy_store(case.store, tmp_path / f"{case}")
    logs = sorted((target / "commitlog").iterdir())
    for path in (target / "consumequeue").glob("*/*/*"):
        with path.open("rb") as file:
            physical_offset, size = struct.unpack(">qi", file.read(12))
        log = next((log for log in reversed(logs) if int(log.name) <= physical_offset), None)
        if log is None or size <= 0:
            continue
        with log.open("rb") as file:
            file.seek(physical_offset - int(log.name) + 36)
            sys_flag = int.from_bytes(file.read(4), "big")
            file.seek(physical_offset - int(log.name) + (68 if sys_flag & 0x10 else 56))
            store_ms = int.from_bytes(file.read(8), "big")
        os.utime(path, ns=((store_ms + 10) * 1_000_000,) * 2)
    return target


@pytest.fixture
def timer_store(tmp_path: Path) -> Path:
    """A copy of the store of a broker whose timer was at work, with its wheel unpacked."""
    (case,) = golden_cases("5.3.3", ("timer",))
    directory = copy_of(case, tmp_path)
    (directory / "timerwheel").write_bytes(lzma.decompress((case.dir / "timerwheel.xz").read_bytes()))
    return directory


def copy_of_open(directory: Path | str, target: Path | str) -> None:
    """Copy the directory of a store that is open, as a kill of its process would leave it. Files that get their names
    only now (a new index file, a table that is saved) may be gone before they are read: then once more.
    """
    while True:
        try:
            shutil.copytree(directory, target)
            return
        except shutil.Error:
            shutil.rmtree(target)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``golden_case`` runs once per golden store."""
    if "golden_case" in metafunc.fixturenames:
        cases = golden_cases()
        metafunc.parametrize("golden_case", cases, ids=[str(case) for case in cases])


# --- the suite in several processes (pytest-xdist, where it is installed) ---------------------------------------------

# What the machine or the run has once belongs to one process, whose tests run one after the other: an oracle of each
# release, the real programs of a file, the processors, a Spark session. Any other test goes to a process that is free.
_SHARED_FOLDERS = {"compat": "java"}
_OF_SPARK = ("job_analytics", "job_archive", "job_audit", "job_compact", "job_dlq", "job_rebuild", "job_replay")
_OF_SPARK += (
    "cluster_jobs",
    "jobs_of_java",
    "remote_sink",
    "sink",
    "source",
    "stores",
    "spark_tables",
    "archive_then_live",
    "stream_queries",
    "stream_of_cluster",
)
# So does what a file makes once for all of its tests, where that takes seconds.
_SHARED_FILES = {
    **{f"test_{name}.py": "spark" for name in _OF_SPARK},
    "test_crc32.py": "crc32",
    "test_latency.py": "processors",
    "test_processors.py": "processors",
    "test_rivals.py": "processors",
}


def _share_of(nodeid: str) -> str | None:
    path = Path(nodeid.partition("::")[0])
    if path.parent.name == "interop":
        return path.name
    if path.parent.name == "flows":  # each starts one cluster
        return f"{path.name} {nodeid.partition('[')[2]}"
    return _SHARED_FOLDERS.get(path.parent.name) or _SHARED_FILES.get(path.name)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """For ``-n logical``: two processes more than there are processors, since many tests wait for others or a disk."""
    if os.environ.get("PYTEST_XDIST_AUTO_NUM_WORKERS"):
        return None  # xdist takes that number
    return 2 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give out tests one by one, those of one share together; the largest share first."""
    from xdist.scheduler import LoadScopeScheduling

    class ByShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _share_of(nodeid) or nodeid

    return ByShare(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of sampled cases the run's choice is left; in several processes the long tests begin first."""
    items[:], left_out = choose(items)
    of_another_day = set(_of_another_day(items))
    left_out += of_another_day
    if QUICK:
        long = [item for item in items if any(item.get_closest_marker(name) for name in ("slow", "interop", "sampled"))]
        of_another_day.update(long)
        left_out += long
    items[:] = [item for item in items if item not in of_another_day]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ())) - set(getattr(getattr(item, "callspec", None), "params", ()))
        if "oracle_of" in fixtures and _share_of(item.nodeid) != "java":
            raise pytest.UsageError(f"{item.nodeid} uses the Java oracle: it belongs to tests/compat")
        if "spark" in fixtures and _share_of(item.nodeid) != "spark":
            raise pytest.UsageError(f"{item.nodeid} uses the Spark session: name its file in _OF_SPARK of {__file__}")
    if hasattr(config, "workerinput"):
        long = ("slow", "interop")  # real programs are waited for, so that others run beside them
        items.sort(key=lambda item: not any(item.get_closest_marker(name) for name in long))


# --- make test-quick: no Java, no Spark, no process of its own --------------------------------------------------------

QUICK = os.environ.get("MQFAST_QUICK") == "1"
_QUICK_FOLDERS = frozenset(
    (
        "broker",
        "client",
        "contrib",
        "issues",
        "linearity",
        "namesrv",
        "remoting",
        "schedule",
        "store",
        "testing",
        "traps",
        "util",
    )
)
# Files whose tests wait for real seconds.
_WAITS = frozenset(
    f"test_{name}.py"
    for name in (
        "clock_jumps",
        "cut_of_a_running_slave",
        "deleted_topic",
        "forged",
        "full_disk",
        "idle",
        "loops",
        "many_at_once",
        "missing_package",
        "orderly_restart",
        "replica_tables",
        "replicas",
        "slave_signs",
        "slow_disk",
        "start_waits",
        "testing_clients",
        "user_callbacks",
    )
)
_NOT_QUICK = re.compile(r"^import (?:subprocess|multiprocessing)|\bos\.fork\(|real_programs|certificates", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out of the quick lane what needs another program, or a folder of a long lane."""
    if not QUICK or not collection_path.is_relative_to(TESTS) or collection_path == TESTS:
        return None
    folder = collection_path.relative_to(TESTS).parts[0]
    if collection_path.is_dir():
        return folder not in _QUICK_FOLDERS or collection_path.name == "flows" or None
    if collection_path.suffix != ".py":
        return None
    if collection_path.name in _WAITS:
        return True
    return bool(_NOT_QUICK.search(collection_path.read_text(encoding="utf-8"))) or None


def pytest_report_header() -> str:
    """Name the hypothesis profile and the seed, so that a log says how hard it looked."""
    return f"mqfast tests: hypothesis profile {'long' if LONG else 'default'}, MQFAST_SEED={seed_of_the_run()}"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A failure in a sample says how the same sample is taken again."""
    outcome: Any = yield
    report = outcome.get_result()
    if report.failed and item.get_closest_marker("sampled"):
        report.sections.append(("sample", f"repeat with MQFAST_SEED={seed_of_the_run()}"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say what the run took of each sweep."""
    lines = {
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", ())
        if name == "sampled"
    }
    if lines:
        terminalreporter.section(f"sampled, with MQFAST_SEED={seed_of_the_run()}")
        for line in sorted(lines):
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def oracle_of() -> Iterator[Callable[[str], JavaOracle]]:
    """RocketMQ of a release, in one JVM for the whole run; skips where Java or Maven is missing."""
    made: dict[str, JavaOracle] = {}

    def oracle(release: str) -> JavaOracle:
        present, reason = JavaOracle.available()
        if not present:
            pytest.skip(reason)
        return made.setdefault(release, JavaOracle(release))

    yield oracle
    for one in made.values():
        one.close()


@pytest.fixture(scope="session")
def java_oracle(oracle_of: Callable[[str], JavaOracle]) -> JavaOracle:
    """The newest release: what mqfast writes follows it."""
    return oracle_of(NEWEST)


@pytest.fixture(params=RELEASES)
def each_oracle(request: pytest.FixtureRequest, oracle_of: Callable[[str], JavaOracle]) -> JavaOracle:
    """Every release, the newest first: a test that takes it runs once for each."""
    return oracle_of(request.param)


_OURS = "mqfast"
_RELEASES_OF_FLOWS = ("5.5.0", "5.3.3", "4.9.7")


def _of_another_day(items: list[pytest.Item]) -> list[pytest.Item]:
    """The flows of clients on releases that this run does not take: one a day, all of them in the long form."""
    sample = Sample("cluster_address")
    chosen = sample.of(_RELEASES_OF_FLOWS, 1, "releases of RocketMQ for the flows of clients", "make interop")
    left_out = []
    for item in items:
        release = getattr(getattr(item, "callspec", None), "params", {}).get("cluster_address", _OURS)
        if release != _OURS:
            item.user_properties += [("sampled", line) for line in sample.lines]
            if release not in chosen:
                left_out.append(item)
    return left_out


@pytest.fixture(
    scope="module",
    params=[_OURS, *(pytest.param(name, marks=pytest.mark.interop) for name in _RELEASES_OF_FLOWS)],
)
def cluster_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server of a running cluster: ours, and one of each release of Apache RocketMQ. See clusters.py."""
    import clusters

    if request.param != clusters.OURS:
        there, why = JavaOracle.available()
        if not there:
            pytest.skip(why or "Java is needed")
    with clusters.cluster(request.param, tmp_path_factory.mktemp("cluster")) as address:
        yield address
