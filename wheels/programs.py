"""Runs the programs of the documents with an installed wheel: the first one of the README, and the examples.

Run by wheels/try_wheel.py as ``python -P programs.py CHECKOUT``, by the Python of an environment that has the wheel
with the extra ``broker`` and pytest. Each program runs in an empty folder outside of the checkout, so that only the
installed package can be imported. The servers are those of the same environment.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

# As docs/examples/README.md starts the servers.
SETTINGS = ("enablePropertyFilter=true", "recallMessageEnable=true")


def environment(folder: Path, **more: str) -> dict[str, str]:
    """Return the variables for a program, without those that name modules of another place."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MQFAST_PURE")}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder), **more}


def output_of(command: list[str], folder: Path, **more: str) -> list[str]:
    """Return the lines that a program prints. Ends this program where the program fails."""
    done = subprocess.run(
        command, cwd=folder, env=environment(folder, **more), capture_output=True, text=True, check=False, timeout=180
    )
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout.splitlines()


@contextlib.contextmanager
def servers(folder: Path, *settings: str) -> Iterator[str]:
    """Run ``mqfast up`` of the environment; give the address of the name server."""
    command = [Path(sys.executable).with_name("mqfast"), "up", "--namesrv-port=0", "--broker-port=0"]
    with subprocess.Popen(
        [*command, "--store", folder / "store", *settings],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(folder),
        cwd=folder,
    ) as process:
        assert process.stdout is not None
        printed = []
        for line in process.stdout:
            printed.append(line)
            if "automatic topics" in line:  # the last line of a started broker
                break
        match = re.search(r"NAMESRV_ADDR=(\S+?:\d+)", "".join(printed))
        if match is None:
            sys.exit(f"mqfast up printed no address:\n{''.join(printed)}")
        try:
            yield match[1]
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()


def first_of_readme(checkout: Path, folder: Path) -> None:
    """Run the first program of the README."""
    match = re.search(r"^```python\n(.*?)^```$", (checkout / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL)
    if match is None:
        sys.exit("README.md: expected a box of python, found none")
    (folder / "first.py").write_text(match[1], "utf-8")
    printed = output_of([sys.executable, "first.py"], folder)
    if printed != ["0 b'two teapots'"]:
        sys.exit(f"README.md, first program: expected the stored message, found {printed}")


def example(path: Path, folder: Path, address: str) -> bool:
    """Run an example and compare what it prints with what it says. Returns: False where pyspark is missing."""
    text = path.read_text("utf-8")
    if "pyspark" in text and (importlib.util.find_spec("pyspark") is None or shutil.which("java") is None):
        return False
    expected = re.findall(r"^Prints: (.*)$", ast.get_docstring(ast.parse(text)) or "", re.MULTILINE)
    (folder / path.name).write_text(text, "utf-8")
    is_test = path.name.startswith("test_")
    command = [sys.executable, *(["-m", "pytest", "-q", "-p", "no:cacheprovider"] if is_test else []), path.name]
    printed = output_of(command, folder, NAMESRV_ADDR=address)
    if is_test:
        printed = re.findall(r"^\d+ passed", printed[-1])
    if printed != expected or not expected:
        sys.exit(f"{path.name}: expected {expected}, found {printed}")
    return True


def main() -> None:
    """Run all programs and say which ones."""
    checkout = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        first_of_readme(checkout, folder)
        with servers(folder, *SETTINGS) as address:
            paths = sorted((checkout / "docs" / "examples").glob("*.py"))
            done = [example(path, folder, address) for path in paths]
    print(f"first program of the README; {sum(done)} of {len(done)} examples of the documents, outside of the checkout")


if __name__ == "__main__":
    main()
