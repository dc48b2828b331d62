"""Uses an installed wheel in an environment that has nothing else: imports all of it, and stores and reads messages.

Run by wheels/build.sh from a folder without the sources, first without an extra, then with ``--broker`` and the extra
of that name: then every room of the network is imported, and a message goes through a broker.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.metadata
import pkgutil
import subprocess
import sys
import tempfile
from pathlib import Path

import mqfast

# Rooms with dependencies that no step here installs, and those that need the extra mqfast[broker].
SKIPPED = ("mqfast.spark", "mqfast.contrib", "mqfast.testing.plugin")
OF_THE_NETWORK = (
    "mqfast.broker.",
    "mqfast.client",
    "mqfast.compat",
    "mqfast.namesrv",
    "mqfast.remoting",
    "mqfast.testing",
)


def import_everything(network: bool) -> int:
    """Import every module of the package, with or without the network; return how many of them are extensions."""
    extensions = 0
    skipped = SKIPPED if network else (*SKIPPED, *OF_THE_NETWORK)
    for found in pkgutil.walk_packages(mqfast.__path__, "mqfast.", onerror=lambda name: None):
        if found.name.startswith(skipped) or found.name.endswith("__main__"):
            continue
        module = importlib.import_module(found.name)
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
    version = importlib.metadata.version("mqfast")
    print(
        f"mqfast {version}: {extensions} extension modules imported, messages stored and read again, command line works"
    )


if __name__ == "__main__":
    main()
