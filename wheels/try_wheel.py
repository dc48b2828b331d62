"""Installs a wheel into new environments and uses the wheel there (wheels/smoke.py); prints what was proved.

Run as ``python wheels/try_wheel.py WHEEL [--lowest]`` by the Python that the wheel is for. The environments: the wheel
alone, the wheel with the extra ``broker`` and pytest, and with ``--lowest`` the same with the lowest version of every
dependency. Each environment must pass ``pip check``. Exits 1 with the output of the step that failed.
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

SMOKE = Path(__file__).with_name("smoke.py")
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


def use(folder: Path, what: list[str], network: bool) -> str:
    """Make an environment with the requirements, check and use the environment; return what the smoke printed."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    run(python, *PIP, "install", "--only-binary=:all:", *what, cwd=folder)
    run(python, "-m", "pip", "--disable-pip-version-check", "check", cwd=folder)
    # From another folder, so that the sources here cannot be imported by mistake.
    return run(python, "-P", str(SMOKE), *(["--broker"] if network else []), cwd=folder)


def main() -> int:
    """Use the wheel in each environment."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--lowest", action="store_true", help="the lowest versions of the dependencies as well")
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
        with tempfile.TemporaryDirectory() as folder:
            said = use(Path(folder), what, network)
        print(f"{name}: pip check; {said} ({time.monotonic() - started_s:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
