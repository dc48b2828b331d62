"""The scripts of docs/spark-tables.md as files, and how they are run, killed and run again.

It must never change a script: what is tested is what is printed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import mqfast
from mqfast.config import StoreConfig
from mqfast.testing import Broker

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "spark-tables.md"
TOPIC = "orders"
QUEUES = 3
_BLOCK = re.compile(r'^```python\n("""(\w+\.py) .*?)^```', re.MULTILINE | re.DOTALL)
_LONGEST_S = 1200
# Maven Central alone: a local repository of Maven may have the description of a jar and not the jar.
_REPOSITORIES = """<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""


def scripts() -> dict[str, str]:
    """The text of each script, by the name of its file."""
    return {name: text for text, name in _BLOCK.findall(DOCUMENT.read_text(encoding="utf-8"))}


def packages(script: str) -> list[str]:
    """Maven coordinates that a script names."""
    return sorted(set(re.findall(r"[\w.-]+:[\w.-]+_2\.13:[\w.]+", scripts()[script])))


def order(number: int, *, note: bool = False) -> dict[str, int | str]:
    """The body of one message; ``note``: with the field that came later."""
    body: dict[str, int | str] = {"id": number, "cents": number * 7 % 10_000}
    return {**body, "note": f"n{number}"} if note else body


def put(store: Path, numbers: Iterable[int], encode: Callable[[int], bytes], **properties: str) -> None:
    """Messages into a store, dealt out to the queues."""
    with mqfast.open(store, config=StoreConfig(mapped_file_bytes_commit_log=1 << 20)) as opened:
        for number in numbers:
            opened.put(TOPIC, encode(number), queue_id=number % QUEUES, properties=properties)


def put_to_broker(broker: Broker, numbers: Iterable[int], encode: Callable[[int], bytes], **properties: str) -> None:
    """The same to a broker."""
    by_queue: dict[int, list[bytes]] = {}
    for number in numbers:
        by_queue.setdefault(number % QUEUES, []).append(encode(number))
    for queue_id, bodies in by_queue.items():
        broker.send(TOPIC, *bodies, queue_id=queue_id, properties=properties)


def as_json(*, note: bool = False) -> Callable[[int], bytes]:
    """Orders as JSON."""
    return lambda number: json.dumps(order(number, note=note)).encode()


def zigzag(number: int) -> bytes:
    """A whole number as Avro has it."""
    left, found = (number << 1) ^ (number >> 63), bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def as_avro(*, note: bool = False) -> Callable[[int], bytes]:
    """Orders as Avro: long id, int cents, and then a note, null or string."""

    def encode(number: int) -> bytes:
        body = order(number, note=note)
        text = str(body.get("note", "")).encode()
        tail = zigzag(1) + zigzag(len(text)) + text if note else b""  # the second type of the union
        return zigzag(int(body["id"])) + zigzag(int(body["cents"])) + tail

    return encode


class Lab:
    """A directory with the scripts, and an environment in which they find mqfast and nothing of the tests."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.table = path / "table"
        path.mkdir(parents=True, exist_ok=True)
        for name, text in scripts().items():
            (path / name).write_text(text, encoding="utf-8")
        (path / "ivysettings.xml").write_text(_REPOSITORIES, encoding="utf-8")
        jars = f"--conf spark.jars.ivySettings={path}/ivysettings.xml --conf spark.jars.ivy={ROOT}/build/ivy"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "PYTHONPATH": str(ROOT),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "PYSPARK_SUBMIT_ARGS": f"{jars} --conf spark.ui.enabled=false --conf spark.driver.memory=1g "
            "--conf spark.sql.shuffle.partitions=2 --conf spark.ui.showConsoleProgress=false pyspark-shell",
        }

    def start(self, script: str, *arguments: object) -> subprocess.Popen[str]:
        """A script in a process group of its own, its output in a file beside it."""
        with open(self.path / f"{script}.log", "w", encoding="utf-8") as log:
            return subprocess.Popen(
                [sys.executable, script, *map(str, arguments)],
                cwd=self.path, env=self.environment, stdout=log, stderr=subprocess.STDOUT, text=True,
                start_new_session=True,
            )  # fmt: skip

    def output(self, script: str) -> str:
        """What the last run of a script printed."""
        return (self.path / f"{script}.log").read_text(encoding="utf-8", errors="replace")

    def run(self, script: str, *arguments: object) -> str:
        """A whole run. Returns: what it printed."""
        process = self.start(script, *arguments)
        try:
            code = process.wait(_LONGEST_S)
        finally:
            kill(process)
        text = self.output(script)
        assert code == 0, text[-6000:]
        return text

    def run_and_kill(self, when: Callable[[], bool], script: str, *arguments: object) -> bool:
        """A run that is killed as soon as a condition holds. Returns: whether it was killed before its end."""
        process = self.start(script, *arguments)
        until = time.monotonic() + _LONGEST_S
        try:
            while process.poll() is None and not when():
                assert time.monotonic() < until, self.output(script)[-6000:]
                time.sleep(0.02)
            alive = process.poll() is None
            assert alive or process.returncode == 0, self.output(script)[-6000:]
            return alive
        finally:
            kill(process)


def kill(process: subprocess.Popen[str]) -> None:
    """SIGKILL to a script and its JVM."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def committed(checkpoint: Path) -> int:
    """How many batches a checkpoint says are done."""
    folder = checkpoint / "commits"
    return len([path for path in folder.iterdir() if path.name.isdigit()]) if folder.is_dir() else 0


def cannot_be_had(lab: Lab, names: Iterable[str]) -> str | None:
    """Let Spark fetch packages, as it does for a script. Returns: why they cannot be had, or None."""
    (lab.path / "fetch.py").write_text(
        "from pyspark.sql import SparkSession\n"
        f"SparkSession.builder.master('local[1]').config('spark.jars.packages', {','.join(names)!r}).getOrCreate()\n",
        encoding="utf-8",
    )
    try:
        lab.run("fetch.py")
    except AssertionError:
        said = lab.output("fetch.py")
        found = re.findall(r"^.*(?:unresolved dependency|download failed|Server access error).*$", said, re.MULTILINE)
        if not found:
            raise
        return f"jars cannot be had: {found[0].strip()[:200]}"
    return None
