"""Checks the files of the sdist and the wheels of a folder: complete, nothing generated, no debug data.

Run by wheels/build.sh as ``python wheels/check_files.py wheels/dist``; exits 1 with a line for each fault.
"""

from __future__ import annotations

import re
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# A wheel of 3.11 has some 2.0 MB of extensions and 1.2 MB of Python, stubs and .pxd; numpy's wheel has 15 MB.
WHEEL_BYTES_MAX = 4 << 20

GLIBC = (2, 28)  # of the oldest systems that the wheel is to run on


def tree(*patterns: str) -> set[str]:
    """Return the matching files of the project, as paths from the top of the project."""
    return {str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)}


def check_wheel(path: Path) -> list[str]:
    """Return the faults of one wheel."""
    faults = []
    is_compiled = not path.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        text = re.compile(r"\.(debug_info|symtab)\x00")
        for name in names:
            section = text.search(wheel.read(name).decode("latin-1")) if name.endswith(".so") else None
            if section is not None and (section[1] == "debug_info" or sys.platform == "linux"):
                faults.append(f"{name}: not stripped, has a section .{section[1]}")
    wanted = tree("mqfast/**/*.py", "mqfast/**/*.pyi", "mqfast/py.typed", "mqfast/**/FORMAT.md")
    wanted |= tree("mqfast/**/*.pxd") if is_compiled else set()
    tools = tree("mqfast/demo*.py", "mqfast/spark/demo*.py")
    faults += [f"a tool of the project, for a checkout only: {name}" for name in sorted(tools & names)]
    wanted -= tools
    faults += [f"missing: {name}" for name in sorted(wanted - names)]
    for module in sorted(tree("mqfast/**/*.pyx")) if is_compiled else ():
        stem = module.removesuffix(".pyx")
        if not any(name.startswith(f"{stem}.") and name.endswith(".so") for name in names):
            faults.append(f"missing: extension module of {module}")
    if is_compiled and not any(re.match(r"mqfast/cython_runtime\..*\.so$", name) for name in names):
        faults.append("missing: mqfast/cython_runtime, which every extension imports")
    compiled = () if is_compiled else (".so", ".pyd", ".dylib", ".pxd")
    strangers = (".c", ".h", ".pyx", ".o", *compiled)
    faults += [f"does not belong here: {name}" for name in sorted(names) if name.endswith(strangers)]
    faults += [f"a test: {name}" for name in sorted(names) if re.search(r"(^|/)(tests?/|test_|conftest)", name)]
    for name in sorted(names):
        library = re.match(r"mqfast\.libs/lib([a-z]+\d?)", name)
        if library is not None and not any(known.endswith(f"/licenses/{library[1]}.txt") for known in names):
            faults.append(f"missing: the licence of {name} (wheels/licences)")
    # pyspark_mqfast: Spark finds its data sources by the names of top-level modules.
    # mqfast.libs: what auditwheel bundles, the library of HTTP/2.
    ours = re.compile(r"(mqfast(-[^/]+\.dist-info)?|pyspark_mqfast)/|mqfast\.libs/libnghttp2-[^/]*\.so[^/]*$")
    faults += [f"does not belong here: {name}" for name in sorted(names) if not ours.match(name)]
    if "pyspark_mqfast/__init__.py" not in names:
        faults.append("missing: pyspark_mqfast/__init__.py")
    if not any(name.endswith("/LICENSE") for name in names):
        faults.append("missing: LICENSE")
    if not any(name.endswith(".dist-info/sboms/mqfast.cdx.json") for name in names):
        faults.append("missing: the bill of materials (wheels/finish.py)")
    if path.stat().st_size > WHEEL_BYTES_MAX:
        faults.append(f"{path.stat().st_size} bytes; expected at most {WHEEL_BYTES_MAX}")
    if is_compiled and sys.platform == "linux" and "musllinux" not in path.name:
        tags = [(int(major), int(minor)) for major, minor in re.findall(r"manylinux_(\d+)_(\d+)", path.name)]
        if not tags:
            faults.append("not repaired: its name says neither manylinux nor musllinux")
        elif min(tags) > GLIBC:
            faults.append(f"needs glibc {min(tags)[0]}.{min(tags)[1]}; expected at most {GLIBC[0]}.{GLIBC[1]}")
    return [f"{path.name}: {fault}" for fault in faults]


def check_sdist(path: Path) -> list[str]:
    """Return the faults of one sdist."""
    with tarfile.open(path) as sdist:
        names = {member.name.partition("/")[2] for member in sdist.getmembers()}
    wanted = tree(
        "mqfast/**/*.py", "mqfast/**/*.pyi", "mqfast/**/*.pyx", "mqfast/**/*.pxd", "csrc/*.c", "csrc/*.h", "setup.py"
    )
    wanted |= {"pyproject.toml", "LICENSE", "README.md"}
    faults = [f"missing: {name}" for name in sorted(wanted - names)]
    faults += [
        f"does not belong here: {name}"
        for name in sorted(names)
        if name.endswith((".so", ".o")) or (name.endswith(".c") and name.removesuffix(".c") + ".pyx" in names)
    ]
    return [f"{path.name}: {fault}" for fault in faults]


def main() -> int:
    """Check every file of the folder given on the command line."""
    folder = Path(sys.argv[1])
    wheels, sdists = sorted(folder.glob("*.whl")), sorted(folder.glob("*.tar.gz"))
    faults = [] if wheels and sdists else [f"{folder}: expected a wheel and an sdist, found {sorted(folder.iterdir())}"]
    for wheel in wheels:
        faults += check_wheel(wheel)
    for sdist in sdists:
        faults += check_sdist(sdist)
    print("\n".join(faults) or f"{len(wheels)} wheel and {len(sdists)} sdist checked", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
