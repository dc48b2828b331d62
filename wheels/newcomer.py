"""Runs the two commands of docs/install.md, "The first message", in another system: from a wheel to a received message.

Run as root: ``python wheels/newcomer.py ROOT WHEEL``. ROOT is the folder of a system with sh and python3, as made by
debootstrap; a system of another architecture needs qemu-user-static. The name of the package is replaced by the file of
the wheel, nothing else. A folder in place of WHEEL: the wheel there that fits the system. pip uses this machine's
settings and variables (``PIP_NO_INDEX`` and ``PIP_FIND_LINKS`` for a folder of wheels below ROOT). Must leave no mount
behind: mounts are made in a namespace of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

INSTALL = Path(__file__).resolve().parents[1] / "docs" / "install.md"
EXPECTED = "received: first message"
# The network of this machine: names, certificates, the settings of pip.
NETWORK = ("/etc/resolv.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/pip.conf")
INSIDE = """
mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && exec chroot "$1" /bin/sh -e -c "cd /root && $2"
"""


def commands() -> list[str]:
    """Return the commands of the section; a command may have several lines."""
    section = INSTALL.read_text(encoding="utf-8").partition("## The first message\n")[2].partition("\n## ")[0]
    block = section.split("```")[1].strip()
    return re.split(r"\n(?=\S+/bin/)", block)


def prepare(root: Path) -> None:
    """Give the system the network of this machine, and take the environment of an earlier run away."""
    for name in NETWORK:
        if Path(name).exists():
            (root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(name, root / name[1:])
    for name in ("proc", "dev", "root", "tmp"):
        (root / name).mkdir(exist_ok=True)
    shutil.rmtree(root / "root" / "mq", ignore_errors=True)


def fitting(root: Path, wheels: Path) -> Path:
    """Return the wheel in a folder that fits the Python, the processor and the C library of the system."""
    code = "import os, sys; print('cp%d%d' % sys.version_info[:2], os.uname().machine)"
    number, machine = run(root, f'python3 -c "{code}"').split()
    platform = "musllinux" if any(root.glob("lib/ld-musl-*")) else "manylinux"
    found = sorted(wheels.glob(f"*-{number}-{number}-*{platform}*_{machine}*.whl"))
    if len(found) != 1:
        sys.exit(f"{root}: expected a {platform} wheel of {number} for {machine} in {wheels}, found {found}")
    return found[0]


def run(root: Path, command: str) -> str:
    """Run a command in the system; return its output. Ends this program where the command fails."""
    kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    environment = {**kept, "HOME": "/root", "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "LANG": "C.UTF-8"}
    inside = ["unshare", "--mount", "sh", "-c", INSIDE, "sh", str(root), command]
    done = subprocess.run(inside, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"failed in {root}: {command}\n{done.stdout}")
    return done.stdout.strip()


def main() -> None:
    """Run the commands and say what was received."""
    root, wheel = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    prepare(root)
    if wheel.is_dir():
        wheel = fitting(root, wheel)
    shutil.copy(wheel, root / "root")
    two = [command.replace("mqfast[broker]", f"/root/{wheel.name}[broker]") for command in commands()]
    said = [run(root, command) for command in two]
    if len(two) != 2 or EXPECTED not in said[-1]:
        sys.exit(f"expected two commands and {EXPECTED!r}, found {two} and {said}")
    system = run(root, ". /etc/os-release; echo $PRETTY_NAME, $(mq/bin/python -VV)")
    print(f"{wheel.name}: two commands to a received message on {system}")


if __name__ == "__main__":
    main()
