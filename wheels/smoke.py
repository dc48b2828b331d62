"""Uses an installed wheel in an environment that has nothing else: imports all of it, and stores and reads messages.

Run by wheels/build.sh from a folder without the sources. Any exception is a failure.
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

SKIPPED = ("mqfast.spark",)  # the one room with a dependency of its own


def import_everything() -> int:
    """Import every module of the package; return how many of them are extensions."""
    extensions = 0
    for found in pkgutil.walk_packages(mqfast.__path__, "mqfast."):
        if found.name.startswith(SKIPPED) or found.name.endswith("__main__"):
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


def main() -> None:
    """Run all checks and say what was used."""
    where = Path(mqfast.__file__).resolve().parent
    assert where.parent.name == "site-packages", f"not the installed package: {where}"
    extensions = import_everything()
    assert extensions > 0, "no extension module was found"
    with tempfile.TemporaryDirectory() as folder:
        store_and_read(Path(folder) / "store")
        command = Path(sys.executable).with_name("mqfast")
        listing = subprocess.run(
            [command, "store", "ls", str(Path(folder) / "store")], capture_output=True, text=True, check=True
        ).stdout
        assert "Smoke" in listing, listing
    version = importlib.metadata.version("mqfast")
    print(
        f"mqfast {version}: {extensions} extension modules imported, messages stored and read again, command line works"
    )


if __name__ == "__main__":
    main()
