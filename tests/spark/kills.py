"""Drivers, executors and tasks killed at random moments: what arrives is what was sent, each message once.

``make spark-kills`` runs the long form, ``test_kills_of_spark.py`` the short one. A source store is read
as a stream into Parquet files or into a second store, or copied by a batch job, by a driver of its own process group.
Kinds of kills:

    driver      the whole process group at once
    jvm         the driver's JVM alone: a Python process that is appending goes on without it
    executor    the JVM of one executor (local-cluster)
    task        one Python worker
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import select
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

import mqfast

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

ROOT = Path(__file__).resolve().parents[2]
QUEUES = 4
SINKS = ("store", "files", "batch")
START_TIMEOUT_S = 180
END_TIMEOUT_S = 600
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
KINDS = {"local[2,100]": ("driver", "task", "jvm", "task"), "local-cluster[2,1,1024]": ("executor", "driver", "task")}


def small_store(path: Path) -> mqfast.MessageStore:
    """A store whose files are small."""
    sizes = {"mapped_file_bytes_consume_queue": 200_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return mqfast.open(path, mapped_file_bytes_commit_log=4 << 20, **sizes)


def fill(path: Path, rows: int) -> None:
    """Rows numbered from 0 on, dealt out to queues."""
    with small_store(path) as store:
        store.put("first", b"", keys="first")
        for queue in range(QUEUES):
            store.put_many("t", [b"%d " % n + b"x" * (n % 400) for n in range(queue, rows, QUEUES)], queue)


# --- the driver's side -----------------------------------------------------------------------------------------------


def drive(task: dict[str, Any]) -> None:
    """One life of a driver: goes on where the last one was stopped, and ends when everything is copied."""
    from pyspark.sql import SparkSession

    from mqfast.spark import conf, register

    builder = conf(SparkSession.builder).master(task["master"]).config("spark.ui.enabled", "false")
    for name, value in {
        "spark.driver.memory": "700m",
        "spark.executor.memory": "512m",
        "spark.task.maxFailures": "100",
        "spark.deploy.maxExecutorRetries": "-1",
        "spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"],
        "spark.sql.shuffle.partitions": "2",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    print("started", flush=True)
    if task["sink"] == "batch":
        rows = spark.read.format("mqfast").option("subscribe", "t").option("minPartitions", "4").load(task["source"])
        rows.write.format("mqfast").mode("append").option("txnId", "copy").save(task["target"])
    else:
        stream = (
            spark.readStream.format("mqfast")
            .option("subscribe", "t")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", str(task["limit"]))
            .option("minPartitions", "3")
            .options(**task["reads"])
            .load()
        )
        if task["sink"] == "broker":
            stream = stream.select("topic", "queueId", "body")
        writing = stream.writeStream.option("checkpointLocation", task["checkpoint"]).options(**task["options"])
        if task["sink"] == "each":

            def write(rows: DataFrame, batch: int) -> None:
                rows.write.mode("overwrite").parquet(f"{task['target']}/batch={batch}")

            writing = writing.foreachBatch(write)
        else:
            writing = writing.format("parquet" if task["sink"] == "files" else "mqfast")
            writing = writing.option("path", task["target"]) if task["target"] else writing
        if task["until"] is None:
            writing.trigger(availableNow=True).start().awaitTermination()
        else:
            query = writing.start()
            while not os.path.exists(task["until"]):
                query.awaitTermination(0.2)
            query.processAllAvailable()
            query.stop()
    print("finished", flush=True)
    spark.stop()


# --- the killer's side -----------------------------------------------------------------------------------------------


@dataclass
class Run:
    """One copy of a store, through as many lives of a driver as its kills make."""

    directory: Path
    sink: str
    rows: int
    kills: list[str]
    chance: random.Random
    master: str = "local[2,100]"
    order: str = "queue"
    limit: int = 2000
    most_delay_s: float = 8.0
    done: collections.Counter[str] = field(default_factory=collections.Counter)
    lives: int = 0

    def __post_init__(self) -> None:
        self.source = self.directory / "source"
        self.target = self.directory / "target"
        self.directory.mkdir(parents=True, exist_ok=True)
        fill(self.source, self.rows)
        if self.sink != "files":
            with small_store(self.target) as store:
                store.put("first", b"", keys="first")

    def _start(self) -> subprocess.Popen[str]:
        task = {
            "sink": self.sink,
            "master": self.master,
            "source": str(self.source),
            "target": str(self.target),
            "checkpoint": str(self.directory / "checkpoint"),
            "reads": {"path": str(self.source), "order": self.order},
            "limit": self.limit,
            "until": None,  # a file that says that there is no more to come
            "options": {},
            **self._more(),
        }
        self.lives += 1
        with open(self.directory / "driver.log", "ab") as log:
            return subprocess.Popen(
                [sys.executable, __file__, "--drive", json.dumps(task)],
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYSPARK_PYTHON": sys.executable,
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
            )

    def _more(self) -> dict[str, Any]:
        """What a driver of this run is told beside the rest."""
        return {}

    def _all_killed(self) -> None:
        """Nothing is killed any more; the driver goes on to its end."""

    def _kill(self, pid: int, kind: str) -> bool:
        return _kill(pid, kind, self.chance)

    def carry_out(self) -> None:
        """Kill as planned, then let it finish."""
        left = list(self.kills)
        while True:
            driver = self._start()
            try:
                finished = self._live(driver, left)
            finally:
                _end_group(driver)
            if finished and not (left and self.sink == "batch"):
                return  # a job that is repeated under its id adds nothing, killed or not
            if self.lives >= 3 * len(self.kills) + 10:
                said = (self.directory / "driver.log").read_text(errors="replace")  # it goes with the test's directory
                raise AssertionError(f"the copy does not come to an end; the drivers said last:\n{said[-4000:]}")

    def _live(self, driver: subprocess.Popen[str], left: list[str]) -> bool:
        """One life of the driver; what was killed leaves the list. Returns: did it finish?"""
        assert driver.stdout is not None
        assert _line(driver, START_TIMEOUT_S) in ("started", ""), "expected the driver to start"
        while left:
            if _line(driver, self.chance.uniform(0.1, self.most_delay_s)) == "finished":
                return True
            if driver.poll() is not None:
                return False  # it gave up by itself; the next life goes on
            kind = left[0]
            if not self._kill(driver.pid, kind):
                continue  # there was none at this moment
            left.pop(0)
            self.done[kind] += 1
            if kind in ("driver", "jvm"):
                # A worker that outlives its JVM meets the next life.
                return False
        self._all_killed()
        return _line(driver, END_TIMEOUT_S) == "finished"

    def check(self) -> None:
        """Each row once, and in the order of its queue where the sink keeps one."""
        found = files_of(self.target) if self.sink == "files" else messages_of(self.target)
        counts = collections.Counter(n for queue in found.values() for n in queue)
        lost = [n for n in range(self.rows) if n not in counts]
        repeated = [n for n, count in counts.items() if count > 1]
        assert not lost, f"{len(lost)} lost, {len(repeated)} repeated; the first lost: {lost[:5]}"
        assert not repeated, f"{len(repeated)} repeated: {repeated[:5]}"
        assert len(counts) == self.rows
        if self.sink != "files":
            for queue_id, numbers in found.items():
                assert numbers == list(range(queue_id, self.rows, QUEUES)), f"queue {queue_id} is out of order"


def _line(driver: subprocess.Popen[str], timeout_s: float) -> str:
    """The next line that the driver prints, or nothing."""
    assert driver.stdout is not None
    ready, _, _ = select.select([driver.stdout], [], [], timeout_s)
    return driver.stdout.readline().strip() if ready else ""


def _processes(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""


def _kill(pid: int, kind: str, chance: random.Random) -> bool:
    """One kill; False when there is nothing of the kind at this moment."""
    if kind == "driver":
        os.killpg(pid, signal.SIGKILL)
        return True
    commands = [(process, _command(process)) for process in _processes(pid)]
    if kind == "jvm":
        found = [p for p, command in commands if "SparkSubmit" in command]
    elif kind == "executor":
        found = [p for p, command in commands if "CoarseGrainedExecutorBackend" in command]
    else:
        # Workers are forked from the daemon, under the same command line.
        daemons = {p.pid for p, command in commands if "pyspark.daemon" in command}
        found = [p for p, command in commands if "pyspark.daemon" in command and p.ppid() in daemons]
    if not found:
        return False
    try:
        chance.choice(found).kill()
    except psutil.NoSuchProcess:
        return False
    return True


def _end_group(driver: subprocess.Popen[str]) -> None:
    """Nothing of this driver is left but, after its JVM alone was killed, workers that end by themselves."""
    if driver.poll() is None:
        try:
            driver.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    if driver.stdout is not None:
        driver.stdout.close()


def messages_of(store: Path) -> dict[int, list[int]]:
    """Row numbers by queue, in the order of the log."""
    found: dict[int, list[int]] = {}
    with mqfast.StoreReader(store) as reader:
        for message in reader.scan():
            if message.topic == "t":
                found.setdefault(message.queue_id, []).append(int(bytes(message.body).split()[0]))
    return found


def files_of(directory: Path) -> dict[int, list[int]]:
    """Row numbers by queue of a streaming file sink: its log names the files that count."""
    import pyarrow.parquet as pq

    found: dict[int, list[int]] = {}
    for name in named_files(directory):
        table = pq.read_table(name, columns=["queueId", "body"], partitioning=None)
        for queue_id, body in zip(*(column.to_pylist() for column in table.columns), strict=True):
            found.setdefault(queue_id, []).append(int(body.split()[0]))
    return found


def named_files(directory: Path) -> list[str]:
    """The files of a streaming file sink that count."""
    names: dict[str, bool] = {}
    log = directory / "_spark_metadata"
    whole = {p.name.removesuffix(".compact") for p in log.iterdir() if p.name.endswith(".compact")}
    newest = max(map(int, whole), default=-1)
    for entry in sorted(log.iterdir(), key=lambda p: int(p.name.split(".")[0]) if p.name[0].isdigit() else -1):
        if entry.name.startswith(".") or (int(entry.name.split(".")[0]) < newest):
            continue
        for line in entry.read_text().splitlines()[1:]:
            said = json.loads(line)
            names[said["path"].removeprefix("file://")] = said["action"] == "add"
    return [name for name, is_added in names.items() if is_added]


def plan(crashes: int, rows: int, seed: int, directory: Path) -> list[Run]:
    """Runs of every sink, on one JVM and on a cluster of two executors, whose kills add up to ``crashes``."""
    chance = random.Random(seed)
    runs = []
    each = -(-crashes // (len(SINKS) * len(KINDS)))
    for sink in SINKS:
        for number, (master, wanted) in enumerate(KINDS.items()):
            kills = [wanted[i % len(wanted)] for i in range(each)]
            order = ("queue", "commitlog")[number % 2]
            delay = 3.0 if sink == "batch" else 8.0
            name = f"{sink}-{master.split('[')[0]}"
            runs.append(Run(directory / name, sink, rows, kills, chance, master, order, rows // 20, delay))
    return runs


def main() -> None:
    """The long form."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--drive", help=argparse.SUPPRESS)
    parser.add_argument("--crashes", type=int, default=54)
    parser.add_argument("--rows", type=int, default=20_000, help="rows of each of the six copies")
    parser.add_argument("--seed", type=int, default=None)
    given = parser.parse_args()
    if given.drive is not None:
        drive(json.loads(given.drive))
        return
    seed = given.seed if given.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    total: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory(prefix="mqfast-kills-") as name:
        for run in plan(given.crashes, given.rows, seed, Path(name)):
            began = time.monotonic()
            run.carry_out()
            run.check()
            total += run.done
            print(
                f"{run.sink:6} {run.master:24} {run.order:10} {run.rows} rows, {run.lives} lives, {dict(run.done)}:"
                f" 0 lost, 0 repeated ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
    rows = given.rows * 6
    print(f"{sum(total.values())} kills {dict(total)}, {rows} rows: 0 lost, 0 repeated")


if __name__ == "__main__":
    main()
