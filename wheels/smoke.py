"""Uses an installed wheel in an environment that has nothing else: imports all of it, and stores and reads messages.

Run by wheels/try_wheel.py from a folder without the sources, first without an extra, then with ``--broker`` and the
extra of that name. Then every room of the network is imported, and messages go through a broker of this process,
through ``mqfast up``, and through the fixture for pytest.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import pkgutil
import re
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import mqfast

# Rooms with dependencies that no step here installs, stand-ins of compiled modules, and rooms that
# need the extra mqfast[broker].
SKIPPED = ("mqfast.spark", "mqfast.contrib", "mqfast.testing.plugin", "mqfast.console", "mqfast.mcp", "mqfast.pure.")
OF_THE_NETWORK = (
    "mqfast.broker.",
    "mqfast.client",
    "mqfast.compat",
    "mqfast.namesrv",
    "mqfast.remoting",
    "mqfast.testing",
    "mqfast.grpc",
    "mqfast.sim",
)
IMPORT_MS_MAX = 120
TEST = """
def test_a_message_arrives(rocketmq_producer, rocketmq_consumer):
    rocketmq_producer().send("Smoke", b"through a fixture")
    assert bytes(next(iter(rocketmq_consumer(topics="Smoke"))).body) == b"through a fixture"
"""


def import_everything(network: bool) -> int:
    """Import every module of the package, with or without the network; return how many of them are extensions."""
    extensions = 0
    skipped = SKIPPED if network else (*SKIPPED, *OF_THE_NETWORK)
    for info in pkgutil.walk_packages(mqfast.__path__, "mqfast.", onerror=lambda name: None):
        if info.name.startswith(skipped) or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        extensions += isinstance(module.__loader__, importlib.machinery.ExtensionFileLoader)
    return extensions


def store_and_read(path: Path) -> None:
    """Put messages, close, open again, read them back."""
    bodies = [b"body %d" % number for number in range(100)]
    with mqfast.open(path) as store:
        for body in bodies:
            store.put("Smoke", body, tags="TagA", keys="k")
        assert [bytes(message.body) for message in store.get("Smoke", 0, 0, max_count=100)] == bodies
    with mqfast.open(path) as store:
        assert [bytes(message.body) for message in store.get("Smoke", 0, 0, max_count=100)] == bodies
        assert store.put("Smoke", b"after").queue_offset == len(bodies)


def send_and_consume() -> None:
    """Send a message to a broker of this process and consume it."""
    from mqfast.testing import Broker

    with Broker() as broker:
        with broker.producer() as producer:
            producer.send("Smoke", b"through a broker")
        with broker.consumer(topics="Smoke") as consumer:
            assert bytes(next(iter(consumer)).body) == b"through a broker"


def import_ms() -> float:
    """Return the processor time of ``import mqfast`` in a new process, beyond the start of Python: the least of some
    runs. Other processes of the machine do not count.
    """

    def least(code: str) -> float:
        times = []
        for _ in range(7):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-P", "-c", code], check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return min(times)

    return max(0.0, 1000 * (least("import mqfast") - least("pass")))


def use_up(folder: Path) -> None:
    """Start ``mqfast up``, send a message, receive the message, and end the servers."""
    from mqfast.client import Producer, PullConsumer

    command = [Path(sys.executable).with_name("mqfast"), "up", "--namesrv-port=0", "--broker-port=0", "--store", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as servers:
        assert servers.stdout is not None
        printed = []
        for line in servers.stdout:
            printed.append(line)
            if "automatic topics" in line:  # the last line of a started broker
                break
        match = re.search(r"NAMESRV_ADDR=(\S+?:\d+)", "".join(printed))
        assert match is not None, "".join(printed)
        address = match[1]
        with Producer("smoke", address) as producer:
            producer.send("Smoke", b"through mqfast up")
        with PullConsumer("smoke", address, topics="Smoke", from_where="earliest") as consumer:
            assert bytes(next(iter(consumer)).body) == b"through mqfast up"
        servers.send_signal(signal.SIGTERM)
        servers.stdout.read()
    assert servers.returncode == 0, f"mqfast up ended with {servers.returncode}"


def use_fixture(folder: Path) -> None:
    """Run a test that uses the fixtures of the plug-in."""
    test = folder / "test_smoke.py"
    test.write_text(TEST)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main() -> None:
    """Run all checks and say what was used."""
    network = "--broker" in sys.argv[1:]
    where = Path(mqfast.__file__).resolve().parent
    assert where.parent.name == "site-packages", f"not the installed package: {where}"
    extensions = import_everything(network)
    assert extensions > 0, "no extension module was found"
    with tempfile.TemporaryDirectory() as folder:
        store_and_read(Path(folder) / "store")
        command = Path(sys.executable).with_name("mqfast")
        listing = subprocess.run(
            [command, "store", "ls", str(Path(folder) / "store")], capture_output=True, text=True, check=True
        ).stdout
        assert "Smoke" in listing, listing
        if network:
            send_and_consume()
            use_up(Path(folder) / "up")
            use_fixture(Path(folder))
    took_ms = import_ms()
    assert took_ms <= IMPORT_MS_MAX, f"import mqfast: {took_ms:.0f} ms, expected at most {IMPORT_MS_MAX}"
    version = importlib.metadata.version("mqfast")
    used = "broker, mqfast up and fixture of pytest" if network else "store and command line"
    print(f"mqfast {version}: {extensions} extension modules; import mqfast {took_ms:.0f} ms; {used} work")


if __name__ == "__main__":
    main()
