"""Python's side of the Java oracle: RocketMQ's own store classes, run in one JVM per release.

Room: tests/compat. The jars come from Maven Central by name (``java/pom.xml``) through ``mvn`` into a cache directory
(``$MQFAST_JAVA_CACHE``, else ``~/.cache/mqfast-tests``); the few Java files beside the pom are compiled there once.
Talk is one JSON line each way. It must never open a store in place for reading (:meth:`JavaOracle.dump` copies first)
and never end a process it did not start. Formats: ``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "kit"))

from maven import MavenError, locked, run_maven

__all__ = ["NEWEST", "RELEASES", "JavaOracle", "OracleError", "checkpoint_numbers", "copy_store", "list_files"]

HERE = Path(__file__).resolve().parent / "java"
# The newest first: what mqfast writes follows that one.
RELEASES = {"5.5.0": "v5", "5.3.3": "v5", "4.9.7": "v4"}
NEWEST = "5.5.0"
# RocketMQ unmaps buffers through JDK internals, which later Java versions close by default.
OPENS = [
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.base/jdk.internal.ref",
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/sun.misc",
]
MAVEN_TIMEOUT_S = 400


class OracleError(RuntimeError):
    """The Java side answered with an exception, or ended."""


def cache_dir() -> Path:
    """Where jars and classes are kept between runs."""
    return Path(os.environ.get("MQFAST_JAVA_CACHE") or Path.home() / ".cache" / "mqfast-tests")


def list_files(root: Path) -> set[str]:
    """Return the relative names of all plain files below ``root``."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def of_recovery(names: set[str]) -> set[str]:
    """Return ``names`` without what every opener makes: the lock, and the RocksDB that 5.5.0 opens and leaves empty."""
    return {name for name in names if name != "lock" and not name.startswith("rocksdbstore/")}


def copy_store(source: Path, target: Path) -> Path:
    """Copy a store keeping holes and times, and return ``target``."""
    done = subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], capture_output=True, check=False)
    if done.returncode != 0:  # a cp without these options
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(source, target)
    return target


def checkpoint_numbers(store: Path) -> dict[str, int]:
    """Return the numbers of the ``checkpoint`` file, zeros if there is none; before 5.5 the sixth is 0."""
    names = ["physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp"]
    names += ["masterFlushedOffset", "confirmPhyOffset", "logicsPhysicalOffset"]
    path = store / "checkpoint"
    raw = path.read_bytes()[:48] if path.exists() else b""
    return dict(zip(names, struct.unpack(">6q", raw.ljust(48, b"\0")), strict=True))


def build(release: str) -> Path:
    """Fetch the jars of ``release`` and compile the oracle once; return its directory in the cache.

    Raises: OracleError with Maven's or javac's own words.
    """
    sources = sorted((HERE / "common").glob("*.java")) + sorted((HERE / RELEASES[release]).glob("*.java"))
    digest = hashlib.sha256()
    for path in [HERE / "pom.xml", *sources]:
        digest.update(path.read_bytes())
    home = cache_dir() / f"rocketmq-{release}"
    home.mkdir(parents=True, exist_ok=True)
    with locked(home / "build.lock"):  # parallel test runs build once
        jars, classes, stamp = home / "jars", home / "classes", home / "stamp"
        pom = hashlib.sha256((HERE / "pom.xml").read_bytes()).hexdigest()
        if not (home / "jars.stamp").exists() or (home / "jars.stamp").read_text() != pom:
            shutil.rmtree(jars, ignore_errors=True)
            with tempfile.TemporaryDirectory() as work:
                shutil.copy(HERE / "pom.xml", work)
                copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"]
                try:
                    run_maven([f"-Drocketmq.version={release}", *copy], Path(work), MAVEN_TIMEOUT_S)
                except MavenError as error:
                    raise OracleError(str(error)) from None
            (home / "jars.stamp").write_text(pom)
            stamp.unlink(missing_ok=True)
        if not stamp.exists() or stamp.read_text() != digest.hexdigest():
            shutil.rmtree(classes, ignore_errors=True)
            classes.mkdir()
            _run(
                ["javac", "-nowarn", "-encoding", "UTF-8", "-d", str(classes), "-cp", f"{jars}/*", *map(str, sources)],
                home,
            )
            stamp.write_text(digest.hexdigest())
    return home


def _run(command: Sequence[str], where: Path) -> None:
    done = subprocess.run(command, cwd=where, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OracleError(f"{command[0]} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")


class JavaOracle:
    """One JVM with RocketMQ's store classes; started on first use, started again after a halt.

    Args:
        release: one of ``RELEASES``.
        heap: -Xmx of the JVM.
        for_speed: full optimiser, for figures; else a quick start, for checks.
    Thread: one caller at a time.
    """

    def __init__(self, release: str = NEWEST, *, heap: str = "512m", for_speed: bool = False) -> None:
        if release not in RELEASES:
            raise ValueError(f"release is one of {', '.join(RELEASES)}, not {release!r}")
        self.release = release
        self.heap = heap
        self.for_speed = for_speed
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[bytes] | None = None

    @staticmethod
    def available() -> tuple[bool, str]:
        """Say whether java, javac and mvn are here; the reason is empty if so."""
        missing = [tool for tool in ("java", "javac", "mvn") if shutil.which(tool) is None]
        return (False, f"the Java oracle needs {', '.join(missing)}") if missing else (True, "")

    def __enter__(self) -> JavaOracle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM; the oracle may be used again."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def fetch(self) -> None:
        """Fetch and compile now, so that later calls need no network. Raises: OracleError."""
        build(self.release)

    def dump(
        self,
        store_dir: str | os.PathLike[str],
        settings: Mapping[str, Any] | None = None,
        *,
        index: Iterable[Sequence[Any]] = (),
        times: Mapping[tuple[str, int], Sequence[int]] | None = None,
        gets: Iterable[Sequence[Any]] = (),
    ) -> dict[str, Any]:
        """Return what Java sees after ``load()`` on a copy, in the shape of a golden ``expected.json``.

        Args:
            settings: RocketMQ's names, e.g. ``mappedFileSizeCommitLog``.
            index: ``[topic, key, max, begin_ms, end_ms]`` rows to ask of the index.
            times: (topic, queue id) -> times to search; else a few are chosen per queue.
            gets: ``[topic, queue_id, offset, max_count, tags or None]`` rows for getMessage; answers in ``gets``.
        """
        with tempfile.TemporaryDirectory(prefix="mqfast-oracle-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")) as work:
            copy = copy_store(Path(store_dir), Path(work) / "store")
            before, had_abort, checkpoint = list_files(copy), (copy / "abort").exists(), checkpoint_numbers(copy)
            answer: dict[str, Any] = self._ask(
                op="dump",
                store=str(copy),
                settings=dict(settings or {}),
                index=[list(row) for row in index],
                gets=[list(row) for row in gets],
                times=None if times is None else {f"{t}|{q}": list(asked) for (t, q), asked in times.items()},
            )
            after = list_files(copy)
        answer |= {
            "settings": dict(settings or {}),
            "abortFileBefore": had_abort,
            "checkpointFileBefore": checkpoint,
            "filesDeletedByLoad": sorted(of_recovery(before - after)),
            "filesCreatedByLoad": sorted(of_recovery(after - before)),
        }
        return answer

    def put(
        self,
        store_dir: str | os.PathLike[str],
        settings: Mapping[str, Any] | None,
        script: Iterable[Mapping[str, Any]],
        *,
        stop: str = "clean",
        batch_topics: Iterable[str] = (),
    ) -> list[dict[str, Any]]:
        """Open ``store_dir`` in place (load and start), carry out ``script``, stop; return a row per put.

        A step is ``{"op": "put" | "batch" | "flush" | "dispatched" | "tick" | "checkpoint", ...}``; put is the
        default; tick waits for dispatch and the next millisecond, because Java names index files by the millisecond and
        loses entries if two files get one name. A put has ``topic``, ``body`` (bytes) and may have ``queueId tags keys
        properties propertiesString flag sysFlag bornTimestamp bornHost storeHost reconsumeTimes
        preparedTransactionOffset`` (hosts as ``ip|port``); a batch has ``messages``, each with body, flag, properties,
        tags, keys.

        Args:
            stop: "clean" shuts the store down (takes Java some 4 s); "halt" ends the JVM at once, as a kill would.
            batch_topics: topics with ``queue.type=BatchCQ``.
        """
        if stop not in ("clean", "halt"):
            raise ValueError(f"stop is clean or halt, not {stop!r}")
        rows = self._ask(
            op="put",
            store=str(store_dir),
            settings=dict(settings or {}),
            script=[_wire(step) for step in script],
            stop=stop,
            batchTopics=list(batch_topics),
        )
        if stop == "halt":
            self._ended()
        return list(rows)

    def bench(
        self,
        store_dir: str | os.PathLike[str],
        *,
        count: int,
        body_size: int = 1024,
        threads: int = 1,
        flush: str = "ASYNC_FLUSH",
        key_queries: int = 1000,
        warm_up: int = 50_000,
        settings: Mapping[str, Any] | None = None,
        recovery: bool = True,
    ) -> dict[str, Any]:
        """Measure a fresh store: put rate and percentiles, getMessage rate, key query time, recovery after a halt.

        Make the oracle with ``for_speed``. The store is left as the halt left it.

        Returns: open_s, put_per_s, put_p50_ns, put_p99_ns, put_p999_ns, put_max_ns, dispatch_tail_s, get_per_s,
            query_us, and with ``recovery`` also recovery_s, recovery_bytes.
        """
        given = {"flushDiskType": flush, **(settings or {})}
        row = dict(
            self._ask(
                op="bench",
                store=str(store_dir),
                settings=given,
                count=count,
                bodySize=body_size,
                threads=threads,
                keyQueries=key_queries,
                warmUp=warm_up,
                stop="halt",
            )
        )
        self._ended()
        if recovery:
            # Without checkpoint Java's recovery reads the whole log, so that bytes over seconds is a rate.
            (Path(store_dir) / "checkpoint").unlink(missing_ok=True)
            load = self._ask(op="load", store=str(store_dir), settings=given)
            row |= {"recovery_s": load["load_s"], "recovery_bytes": load["maxPhyOffset"]}
        return row

    def settings(self, files: Iterable[bytes]) -> list[dict[str, Any]]:
        """What a broker makes of each broker.conf: ``pairs`` of the loader, ``values`` by property after the setters
        and whether ``deleteWhen`` can be read when it is needed; or ``refused`` with the loader's words.
        """
        encoded = [base64.b64encode(data).decode("ascii") for data in files]
        return list(self._ask(op="settings", files=encoded))

    # -- the wire ------------------------------------------------------------------------------------------------------

    def _start(self) -> subprocess.Popen[str]:
        home = build(self.release)
        log = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the JVM; close() closes it)
        command = ["java", f"-Xmx{self.heap}"] + (
            [] if self.for_speed else ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        )
        command += [part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
        command += [
            f"-Doracle.release={self.release}",
            f"-Drmq.logback.configurationFile={HERE / 'logging-off.xml'}",
            f"-Duser.home={home}",  # both releases like to create files below the home directory
            f"-Drocketmq.client.logRoot={home}",
            "-Dfile.encoding=UTF-8",
            "-Dsun.jnu.encoding=UTF-8",
            "-cp",
            f"{home / 'classes'}:{home / 'jars'}/*",
            "mqfast.oracle.Main",
        ]
        # Topic names are directory names: without a UTF-8 locale Java would mangle non-ASCII ones.
        environment = {**os.environ, "LC_ALL": "C.UTF-8"}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            encoding="utf-8",
            env=environment,
        )
        self._process, self._log = process, log
        return process

    def _ask(self, **request: Any) -> Any:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise OracleError(f"the JVM ended with {process.wait()} during {request['op']}:\n{self._ended()}")
        answer = json.loads(line)
        if not answer["ok"]:
            if request.get("stop") == "halt":
                self._ended()
            raise OracleError(answer["error"])
        return answer["result"]

    def _ended(self) -> str:
        """Reap a JVM that ended by itself; return the tail of what it said on stderr."""
        text = ""
        if self._process is not None:
            self._process.wait(30)
        if self._log is not None:
            self._log.seek(0)
            text = self._log.read()[-4000:].decode("utf-8", "replace")
        self.close()
        return text


def _wire(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the step as JSON can carry it: bytes become base64."""
    wire = dict(step)
    if "body" in wire:
        wire["body"] = base64.b64encode(bytes(wire["body"])).decode("ascii")
    if "messages" in wire:
        wire["messages"] = [_wire(message) for message in wire["messages"]]
    return wire
