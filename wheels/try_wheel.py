"""Installs a wheel into new environments and uses the wheel there (wheels/smoke.py); prints what was proved.

Run as ``python wheels/try_wheel.py WHEEL [--lowest] [--clients WHEEL]`` by the Python that the wheel is for. The
environments: the wheel alone, the wheel with the extra ``broker`` and pytest, and with ``--lowest`` the same with the
lowest version of every dependency. With the extra, the programs of the documents run as well. ``--clients`` names the
wheel without compiled code: installed alone, its clients use the servers of the other wheel. Each environment must pass
``pip check``. Exits 1 with the output of the step that failed.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

WHEELS = Path(__file__).resolve().parent
SMOKE = WHEELS / "smoke.py"
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def lowest(wheel: Path) -> list[str]:
    """Return the lowest versions that the wheel allows of its dependencies, and of those of the extra ``broker``."""
    with zipfile.ZipFile(wheel) as opened:
        name = next(name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = opened.read(name).decode()
    pins = []
    for requirement, marker in re.findall(r"^Requires-Dist: ([^;\n]+);?(.*)$", metadata, re.MULTILINE):
        match = re.match(r"([A-Za-z0-9_.-]+)[^>]*>=([0-9.]+)", requirement)
        if match is not None and ("extra ==" not in marker or re.search(r"extra == [\"']broker[\"']", marker)):
            pins.append(f"{match[1]}=={match[2]}")
    return sorted(set(pins))


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """Run a step in an environment; end this program with the output where the step fails."""
    done = subprocess.run([python, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(arguments)}\n{done.stdout}{done.stderr}")
    return done.stdout.strip()


def environment(folder: Path, what: list[str]) -> Path:
    """Make and check an environment with the requirements; return its Python."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, *PIP, "install", "--only-binary=:all:", *what, cwd=folder)
    run(python, "-m", "pip", "--disable-pip-version-check", "check", cwd=folder)
    return python


def use(folder: Path, what: list[str], network: bool, clients: Path | None) -> list[str]:
    """Make an environment and use it; return what was proved."""
    python = environment(folder / "venv", what)
    # From another folder, so that the sources here cannot be imported by mistake.
    said = [run(python, "-P", str(SMOKE), *(["--broker"] if network else []), cwd=folder)]
    if network:
        said.append(run(python, "-P", str(WHEELS / "programs.py"), str(WHEELS.parent), cwd=folder))
    if clients is not None:
        alone = environment(folder / "clients", [f"{clients}[client]"])
        command = [str(alone), "-P", str(WHEELS / "clients.py")]
        said.append(run(python, "-P", str(WHEELS / "beside_servers.py"), *command, cwd=folder))
    return said


def main() -> int:
    """Use the wheel in each environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--lowest", action="store_true", help="the lowest versions of the dependencies as well")
    parser.add_argument("--clients", type=Path, help="the wheel without compiled code")
    arguments = parser.parse_args()
    wheel = arguments.wheel.resolve()
    pins = lowest(wheel)
    steps: list[tuple[str, list[str], bool]] = [
        ("the wheel alone", [str(wheel)], False),
        ("with the extra broker", [f"{wheel}[broker]", "pytest>=8"], True),
    ]
    if arguments.lowest:
        steps.append((f"lowest versions: {' '.join(pins)}", [f"{wheel}[broker]", "pytest==8.0.0", *pins], True))
    for name, what, network in steps:
        started_s = time.monotonic()
        clients = arguments.clients.resolve() if arguments.clients and name == "with the extra broker" else None
        with tempfile.TemporaryDirectory() as folder:
            said = use(Path(folder), what, network, clients)
        print(f"{name}: pip check; {'; '.join(said)} ({time.monotonic() - started_s:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
