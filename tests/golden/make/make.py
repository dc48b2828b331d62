"""Golden stores of a release: a real name server, real brokers and the stock client on loopback ports.

Room: tests/golden/make. It fetches the jars by name (``pom.xml``), runs one case after the other, ends every process
that it started, whatever happens, and lets the Java oracle of tests/compat say what is in each store. It never touches
a store that is there already unless it is asked to make it anew. How to run it: ``README.md`` beside this file.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import lzma
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent
sys.path[:0] = [str(GOLDEN.parent / "compat"), str(GOLDEN.parent / "kit")]

from free_ports import free_port  # noqa: E402
from java_oracle import MAVEN_TIMEOUT_S, NEWEST, OPENS, JavaOracle, cache_dir, copy_store  # noqa: E402
from maven import locked, run_maven  # noqa: E402

# Small, so that everything rolls. Sizes are part of the format, so these stand in every expected.json.
SIZES = {
    "mappedFileSizeCommitLog": 32768,
    "mappedFileSizeConsumeQueue": 1000,
    "maxHashSlotNum": 64,
    "maxIndexNum": 200,
    "mapperFileSizeBatchConsumeQueue": 230,
    "mappedFileSizeTimerLog": 1000,
    "mappedFileSizeConsumeQueueExt": 1024,
}
# 5.5 opens a RocksDB in every store, empty while no setting asks for it; its log names the machine.
LEFT_OUT = ("rocksdbstore",)
STEP_S = 120  # no step of a case takes longer
START_S = 240  # a server that runs gets so long to listen: a JVM starts slowly on a busy machine
STARTS = 3  # so often a server is started that ends before it listens: its start is not what is under test
EVER = 2**63 - 1


def jars(release: str, client: Path = HERE / "Client.java", *, timeout_s: float = MAVEN_TIMEOUT_S) -> Path:
    """Fetch what a broker needs, once, and compile the client; return the directory.

    Raises: MavenError; subprocess.TimeoutExpired.
    """
    home = cache_dir() / f"golden-{release}"
    with locked(home / "jars.lock"):  # parallel test runs fetch once
        if not (home / "jars.stamp").exists():
            shutil.copy(HERE / "pom.xml", home)
            copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={home / 'jars'}"]
            run_maven([f"-Drocketmq.version={release}", *copy], home, timeout_s)
            (home / "jars.stamp").touch()
    compile_java(home, client)
    return home


def compile_java(home: Path, source: Path) -> None:
    """Compile one file beside the client's classes, once for each content; other processes may use the classes."""
    classes = home / "classes"
    stamp = classes / f"{source.stem}.{hashlib.sha256(source.read_bytes()).hexdigest()[:16]}.stamp"
    if stamp.exists():
        return
    classes.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as fresh:
        command = ["javac", "-nowarn", "-encoding", "UTF-8", "-d", fresh, "-cp", f"{home}/jars/*:{classes}"]
        subprocess.run([*command, str(source)], check=True, timeout=STEP_S)
        for one in classes.glob(f"{source.stem}.*.stamp"):
            one.unlink(missing_ok=True)
        for compiled in Path(fresh).iterdir():
            compiled.replace(classes / compiled.name)
    stamp.touch()


class StepFailed(Exception):
    """A stock program does not start, or does not get to where the caller waits for it."""


class Machine:
    """The processes of one case; all end with it."""

    def __init__(self, release: str, work: Path, client: Path = HERE / "Client.java") -> None:
        self.home = jars(release, client)
        self.work = work
        self.running: list[subprocess.Popen[str]] = []
        self.namesrv = f"127.0.0.1:{free_port()}"

    def java(self, *arguments: str, main: str, **more: str) -> subprocess.Popen[str]:
        """Start a JVM; its home directory is below the case's own."""
        command = ["java", "-Xmx400m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        command += [part for name in OPENS for part in ("--add-opens", f"{name}=ALL-UNNAMED")]
        command += [f"-Duser.home={self.work}", f"-Drocketmq.client.logRoot={self.work}", "-Dfile.encoding=UTF-8"]
        command += [f"-Drmq.logback.configurationFile={GOLDEN.parent / 'compat/java/logging-off.xml'}"]
        command += ["-Dsun.jnu.encoding=UTF-8", *(f"-D{name}={value}" for name, value in more.items())]
        command += ["-cp", f"{self.home / 'classes'}:{self.home / 'jars'}/*", main, *arguments]
        environment = {**os.environ, "LC_ALL": "C.UTF-8", "ROCKETMQ_HOME": str(self.work)}
        log = (self.work / f"{main.rpartition('.')[2]}-{len(self.running)}.log").open("w")
        with log:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment, cwd=self.work
            )
        self.running.append(process)
        return process

    def start_namesrv(self) -> None:
        """Start the name server and wait until it listens. Raises: StepFailed."""
        conf = self.work / "namesrv.properties"
        conf.write_text(f"listenPort={self.namesrv.rpartition(':')[2]}\nbindAddress=127.0.0.1\n")
        main = "org.apache.rocketmq.namesrv.NamesrvStartup"
        self._start("the name server", {int(self.namesrv.rpartition(":")[2])}, "-c", str(conf), main=main)

    def start_broker(self, store: Path, settings: dict[str, Any], port: int) -> subprocess.Popen[str]:
        """Start a broker and wait until it listens on all of its ports. Raises: StepFailed."""
        lines = {
            "brokerClusterName": "golden",
            "brokerName": "brk",
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.namesrv,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "timerWheelEnable": "false",
            "transactionTimeOut": 2000,
            "transactionCheckInterval": 4000,
            **settings,
        }
        conf = self.work / f"{store.name}.properties"
        conf.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        ports = {port, port - 2, int(lines["haListenPort"])}
        return self._start("the broker", ports, "-c", str(conf), main="org.apache.rocketmq.broker.BrokerStartup")

    def _start(self, what: str, ports: set[int], *arguments: str, main: str) -> subprocess.Popen[str]:
        """Start a server and wait until this process listens; start it again where it ended before."""
        end = time.monotonic() + START_S
        for _ in range(STARTS):
            process = self.java(*arguments, main=main)
            while process.poll() is None:
                if ports <= listening_ports(process.pid):
                    return process
                if time.monotonic() > end:
                    raise StepFailed(f"{what} does not listen at {ports} after {START_S} s:\n{self.logs(main)}")
                time.sleep(0.2)
        raise StepFailed(
            f"{what} ended {STARTS} times before it listened at {ports}, the last time with {process.returncode}:\n"
            f"{self.logs(main)}"
        )

    def logs(self, main: str = "Startup") -> str:
        """The end of what the servers wrote, or those of one main class."""
        paths = sorted(self.work.glob(f"*{main.rpartition('.')[2]}*.log"))
        return "\n".join(f"{path.name}: {path.read_text()[-2000:]}" for path in paths)

    def client(self, port: int, *action: str) -> subprocess.Popen[str]:
        """Start the client with an action of Client.java."""
        return self.java(self.namesrv, f"127.0.0.1:{port}", *action, main="Client")

    def act(self, port: int, *action: str) -> None:
        """Let the client carry out an action to its end."""
        process = self.client(port, *action)
        out, _ = process.communicate(timeout=STEP_S)
        if process.returncode != 0 or not out.endswith("done\n"):
            logs = "\n".join(path.read_text()[-3000:] for path in self.work.glob("Client*.log"))
            raise StepFailed(f"the client ended with {process.returncode} in {action}:\n{out[-1000:]}\n{logs}")

    def stop(self, process: subprocess.Popen[str]) -> None:
        """SIGTERM, and wait until the shutdown hook of the broker ran to its end."""
        process.send_signal(signal.SIGTERM)
        process.wait(STEP_S)

    def end_all(self) -> None:
        """End what this run started and nothing else."""
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait(200)
            if process.stdout is not None:
                process.stdout.close()


def listening_ports(pid: int) -> set[int]:
    """The ports at which a process listens; none where the process has ended."""
    import psutil  # of the tests; java_client.py runs without it

    with contextlib.suppress(psutil.Error):
        connections = psutil.Process(pid).net_connections("tcp")
        return {one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN}
    return set()


def wait_for(done: Callable[[], bool], what: str, seconds: float = STEP_S) -> None:
    """Ask five times a second, for as long as a step may take. Raises: StepFailed."""
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise StepFailed(f"{what} is not there after {seconds:.0f} s")
        time.sleep(0.2)


# --- the cases --------------------------------------------------------------------------------------------------------

Stores = dict[str, tuple[Path, dict[str, Any]]]


def one_broker(machine: Machine, settings: dict[str, Any], *action: str, **broker: Any) -> Path:
    """A broker that serves one action and is stopped."""
    store, port = machine.work / "store", free_port()
    process = machine.start_broker(store, settings | broker, port)
    machine.act(port, *action)
    machine.stop(process)
    return store


def normal_clean(machine: Machine) -> Stores:
    settings = SIZES | {"mappedFileSizeCommitLog": 131072}
    return {"normal-clean": (one_broker(machine, settings, "normal"), settings)}


def killed(machine: Machine) -> Stores:
    store, port = machine.work / "store", free_port()
    broker = machine.start_broker(store, SIZES, port)
    client = machine.client(port, "kill", "2000")
    assert client.stdout is not None
    for line in client.stdout:
        if line.strip() == "sent 290":
            broker.kill()
            break
    broker.wait(30)
    client.kill()
    without = machine.work / "without"
    shutil.copytree(store, without)
    shutil.rmtree(without / "consumequeue")
    shutil.rmtree(without / "index")
    return {"killed": (store, SIZES), "killed-no-queues": (without, SIZES)}


def batch_cq(machine: Machine) -> Stores:
    return {"batch-cq": (one_broker(machine, SIZES, "batch"), SIZES)}


def timer(machine: Machine) -> Stores:
    return {"timer": (one_broker(machine, SIZES, "timer", timerWheelEnable="true"), SIZES)}


def transient_pool(machine: Machine) -> Stores:
    store = one_broker(machine, SIZES, "plain", "0", "240", transientStorePoolEnable="true", transientStorePoolSize=3)
    return {"transient-pool": (store, SIZES)}


def prop_crc(machine: Machine) -> Stores:
    settings = SIZES | {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
    java = {name: str(value).lower() for name, value in settings.items()}
    return {"prop-crc": (one_broker(machine, java, "plain", "0", "90"), settings)}


def ha(machine: Machine) -> Stores:
    """The slave comes when the master is in its second log file: its log begins there, its queues with fillers."""
    master, slave = machine.work / "master", machine.work / "slave"
    port = free_port()
    first = machine.start_broker(master, SIZES, port)
    machine.act(port, "plain", "0", "130")
    wait_for(lambda: (master / "commitlog" / f"{32768:020}").exists(), "the second log file")
    other = free_port()
    # No haMasterAddress: a slave that has one never connects, it is set before there is a client to connect with.
    second = machine.start_broker(slave, SIZES | {"brokerRole": "SLAVE", "brokerId": 1}, other)
    wait_for(lambda: logs(slave) != {}, "the first file of the slave")
    machine.act(port, "plain", "130", "130")
    wait_for(lambda: all(data == logs(master).get(name) for name, data in logs(slave).items()), "the end of the log")
    time.sleep(5)  # the queues of the slave follow its log
    machine.stop(second)
    machine.stop(first)
    return {"ha-master": (master, SIZES), "ha-slave": (slave, SIZES)}


def logs(store: Path) -> dict[str, bytes]:
    """Name -> bytes of every log file that is not empty."""
    files = (store / "commitlog").glob("*")
    return {path.name: data for path in files if (data := path.read_bytes()).strip(b"\0")}


CASES: dict[str, Callable[[Machine], Stores]] = {
    "normal-clean": normal_clean,
    "killed": killed,
    "batch-cq": batch_cq,
    "timer": timer,
    "transient-pool": transient_pool,
    "prop-crc": prop_crc,
    "ha": ha,
}


# --- what Java says of them -------------------------------------------------------------------------------------------


def questions(answer: dict[str, Any]) -> Iterator[list[Any]]:
    """What to ask the index: every seventh unique key, all keys and tags of each topic, and some that are not there."""
    asked: dict[str, set[str]] = {}
    unique: dict[str, list[str]] = {}
    for row in answer["log"]:
        if row[2]:
            keys = asked.setdefault(row[2], {"no such key", "T#no such tag"})
            keys.update((row[10] or "").split())
            if row[9]:
                unique.setdefault(row[2], []).append(row[9])
    for row in answer["messages"]:
        tags = row.get("properties", {}).get("TAGS")
        if tags:
            asked.setdefault(row["recordTopic"] or row["topic"], set()).add(f"T#{tags}")
    times = sorted(row[6] for row in answer["log"] if row[2])
    middle = times[len(times) // 2]
    for topic in sorted(asked):
        for key in [*sorted(asked[topic]), *unique.get(topic, [])[::7]]:
            yield [topic, key, 64, 0, EVER]
        for key in sorted(asked[topic])[:3]:
            yield from ([topic, key, 64, 0, middle], [topic, key, 64, middle, EVER], [topic, key, 3, 0, EVER])


def keep(oracle: JavaOracle, release: str, name: str, store: Path, settings: dict[str, Any]) -> None:
    """Put a store and Java's account of it into tests/golden."""
    target = GOLDEN / f"golden-{release}" / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    copy_store(store, target / "store")
    for room in LEFT_OUT:
        shutil.rmtree(target / "store" / room, ignore_errors=True)
    for directory in sorted((target / "store").rglob("*"), reverse=True):
        if directory.is_dir() and not any(directory.iterdir()):
            directory.rmdir()  # no checkout keeps them
    wheel = target / "store" / "timerwheel"
    if wheel.exists():
        (target / "timerwheel.xz").write_bytes(lzma.compress(wheel.read_bytes(), preset=9))
        wheel.unlink()
    first = oracle.dump(target / "store", settings)
    answer = oracle.dump(target / "store", settings, index=questions(first))
    answer.pop("gets")
    (target / "expected.json").write_text(as_text(answer), encoding="utf-8")


def as_text(answer: dict[str, Any]) -> str:
    """JSON with one row of a table in a line."""

    def dumped(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

    parts = []
    for name, value in {"readBy": answer["readBy"], "settings": answer["settings"], **answer}.items():
        rows = isinstance(value, list) and bool(value) and not name.endswith("Columns")
        text = "[\n" + ",\n".join(f"  {dumped(row)}" for row in value) + "]" if rows else dumped(value)
        parts.append(f" {dumped(name)}:{text}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Make the cases that are named, or all."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("case", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--release", default=NEWEST)
    parser.add_argument("--fetch", action="store_true", help="only fetch the jars and compile")
    arguments = parser.parse_args()
    with JavaOracle(arguments.release) as oracle:
        jars(arguments.release)
        if arguments.fetch:
            oracle.fetch()
            return
        for case in arguments.case or CASES:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="mqfast-golden-") as work:
                machine = Machine(arguments.release, Path(work))
                try:
                    machine.start_namesrv()
                    stores = CASES[case](machine)
                finally:
                    machine.end_all()
                for name, (store, settings) in stores.items():
                    keep(oracle, arguments.release, name, store, settings)
            print(f"{case}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
