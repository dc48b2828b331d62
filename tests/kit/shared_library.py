"""C sources of the tests as shared libraries, compiled once for all processes of a run and kept for the next one.

Room: tests. It must never compile what only one test loads (that goes below its ``tmp_path``), and never import mqfast.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

__all__ = ["NoCompiler", "shared_library"]

_WARNINGS = ("-Wall", "-Wextra", "-Werror")


class NoCompiler(RuntimeError):
    """This machine has no C compiler."""


def shared_library(name: str, sources: Sequence[Path], flags: Sequence[str], headers: Sequence[Path] = ()) -> Path:
    """Compile ``sources`` in the order given, unless a library of the same sources, headers and flags is there.

    Args:
        flags: options of the compiler; ``-l`` and ``-L`` go behind the sources.
        headers: files that the sources include; only their content matters.
    Returns: the path of the library. Raises: NoCompiler; CalledProcessError when the compiler refuses.
    """
    digest = hashlib.sha256(repr(flags).encode())
    for path in (*sources, *headers):
        digest.update(path.read_bytes())
    library = Path(tempfile.gettempdir()) / f"mqfast-{name}-{os.getuid()}-{digest.hexdigest()[:16]}.so"
    with open(library.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            compiler = shutil.which(os.environ.get("CC", "cc")) or shutil.which("gcc")
            if compiler is None:
                raise NoCompiler("no C compiler found: expected cc or gcc")
            fresh = library.with_suffix(".part")
            before = [flag for flag in flags if not flag.startswith(("-l", "-L"))]
            behind = [flag for flag in flags if flag.startswith(("-l", "-L"))]
            command = [compiler, "-std=c11", *_WARNINGS, "-fPIC", "-shared", *before, *map(str, sources), *behind]
            subprocess.run([*command, "-o", str(fresh)], check=True)
            fresh.replace(library)
    return library
