"""Makes a release: ``make release VERSION=0.2.0``. Everything is left under wheels/dist/; nothing is pushed.

Checks the version, the tree and the changelog, runs the gates, writes the version and the date, builds the sdist and a
wheel for each Python of this machine, uses every wheel in empty environments, adds the documentation to that of earlier
releases (the branch gh-pages) under wheels/dist/site, and reports what was proved where in wheels/dist/REPORT.md. The
commit, the tag and the push are left to a person: the last lines are the commands.
Must never push, tag or commit.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "wheels" / "dist"
GATES = ("lint", "docs", "perf-check", "test")
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15", "3.14t", "3.15t")
# A line of a file that holds the version: (file, the text before it, the text behind it).
VERSION_LINES = (("pyproject.toml", 'version = "', '"'), ("mqfast/__init__.py", '__version__ = "', '"'))
# What the release workflow builds and uses: (name, what the name of such a wheel contains).
PLATFORMS = (
    ("Linux x86_64, manylinux", r"manylinux\S*_x86_64"),
    ("Linux x86_64, musllinux", r"musllinux\S*_x86_64"),
    ("Linux aarch64, manylinux", r"manylinux\S*_aarch64"),
    ("Linux aarch64, musllinux", r"musllinux\S*_aarch64"),
    ("macOS arm64", r"macosx\S*_arm64"),
    ("macOS x86_64", r"macosx\S*_x86_64"),
)
# The branch that has the documentation of all releases; on a machine of its own, the branch of the remote.
SITE_BRANCHES = ("gh-pages", "origin/gh-pages")
NAME_OF_PYTHON = (
    "import sys, sysconfig; musl = '-musl' if 'musl' in (sysconfig.get_config_var('SOABI') or '') else ''; "
    "print('%d.%d%s%s' % (*sys.version_info[:2], sys.abiflags, musl))"
)


class Built(NamedTuple):
    """A wheel of this machine, and what was proved of it."""

    python: str
    wheel: Path
    proofs: list[str]


def stop(text: str) -> None:
    """End the program with a fault of the release."""
    sys.exit(f"release: {text}")


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version. Ends the program for another form than 1.2.3 or 1.2.3rc1."""
    match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?", version)
    if match is None:
        sys.exit(f"release: VERSION: expected 1.2.3 or 1.2.3rc1, found {version!r}")
    before_release = ("a", "b", "rc").index(match[4]) if match[4] else 3
    return (*map(int, match.groups()[:3]), before_release, int(match[5] or 0))


def output(*command: str) -> str:
    """Return what a command prints, in the project's folder."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def read_version(name: str, before: str, behind: str) -> str:
    """Return the version in a line of a file."""
    text = (ROOT / name).read_text(encoding="utf-8")
    match = re.search(rf"^{re.escape(before)}([^{behind}]+){behind}", text, re.MULTILINE)
    if match is None:
        sys.exit(f"release: {name}: expected a line {before}...{behind}, found none")
    return match[1]


def check_changelog(text: str) -> re.Match[str]:
    """Return the heading of the unreleased changes. Ends the program without one, or where nothing stands below."""
    match = re.search(r"^## \[([^\]]+)\] - unreleased$", text, re.MULTILINE)
    if match is None:
        sys.exit("release: CHANGELOG.md: expected a heading '## [VERSION] - unreleased', found none")
    section = re.split(r"^## ", text[match.end() :], maxsplit=1, flags=re.MULTILINE)[0]
    if not re.search(r"^- \S", section, re.MULTILINE):
        stop(f"CHANGELOG.md: expected changes below {match[0]!r}, found none")
    return match


def check(version: str) -> None:
    """Check the version, the tree and the changelog before anything is changed."""
    new = numbers(version)
    known = {name: read_version(name, before, behind) for name, before, behind in VERSION_LINES}
    if len(set(known.values())) != 1:
        stop(f"expected one version in all files, found {known}")
    current = next(iter(known.values()))
    tags = output("git", "tag", "--list", "v*").split()
    if f"v{version}" in tags:
        stop(f"VERSION: {version} has a tag already")
    newest = max((numbers(tag[1:]) for tag in tags if re.fullmatch(r"v[0-9.abrc]+", tag)), default=(0, 0, 0, 0, 0))
    if new <= newest or new < numbers(current):
        stop(f"VERSION: expected a version above {current} and all tags, found {version}")
    changed = output("git", "status", "--porcelain")
    if changed:
        stop(f"expected a tree without changes, found\n{changed}")
    check_changelog((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def write_version(version: str) -> None:
    """Write the version into the files, and version and date into the changelog."""
    for name, before, behind in VERSION_LINES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        pattern = rf"^{re.escape(before)}[^{behind}]+{behind}"
        path.write_text(re.sub(pattern, f"{before}{version}{behind}", text, count=1, flags=re.MULTILINE), "utf-8")
    path = ROOT / "CHANGELOG.md"
    text = path.read_text(encoding="utf-8")
    heading = check_changelog(text)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    path.write_text(f"{text[: heading.start()]}## [{version}] - {today}{text[heading.end() :]}", "utf-8")


def interpreters() -> dict[str, str]:
    """Return the Pythons of this machine that a wheel is built for: of the variable PYTHONS, the path, and pyenv."""
    programs = {}
    for program in os.environ.get("PYTHONS", "").split():
        programs[output(program, "-c", NAME_OF_PYTHON)] = program
    if programs:
        return programs
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in PYTHONS:
        number = re.escape(version.rstrip("t"))
        suffix = "t" if version.endswith("t") else ""
        candidates = [shutil.which(f"python{version}") or ""]
        candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob("*"), reverse=True)
                     if re.fullmatch(rf"{number}\.\d+{suffix}", path.name)]  # fmt: skip
        for program in filter(None, candidates):
            done = subprocess.run([program, "-c", NAME_OF_PYTHON], capture_output=True, text=True, check=False)
            if done.stdout.strip() == version:
                programs[version] = program
                break
    return programs


def build(version: str, program: str, first: bool) -> Built:
    """Build the wheel of a Python, and use the wheel in empty environments."""
    folder = ROOT / "build" / f"release-{version}"
    subprocess.run([program, "-m", "venv", "--clear", folder], check=True)
    python = str(folder / "bin" / "python")
    tools = output(sys.executable, ".ci/extra.py", "wheel").split()
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *tools], check=True)
    before = set(DIST.glob("*.whl"))
    clients = "*-py3-none-any.whl"  # the clients without compiled code: built with the first wheel
    environment = {**os.environ, "PYTHON": python, "KEEP": "1", "SMOKE": "0"}
    subprocess.run(["bash", "wheels/build.sh"], cwd=ROOT, env=environment, check=True)
    (wheel,) = set(DIST.glob("*.whl")) - before - set(DIST.glob(clients))
    command = [python, "wheels/try_wheel.py", str(wheel), *(["--lowest"] if first else [])]
    command += ["--clients", str(next(DIST.glob(clients)))]
    proofs = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    print("\n".join(proofs), flush=True)
    return Built(platform_of(program), wheel, proofs)


def platform_of(program: str) -> str:
    """Return the full version of a Python with its build."""
    return output(program, "-c", "import platform; print(platform.python_version(), platform.python_compiler())")


def build_site(version: str) -> list[str]:
    """Build the documentation beside that of earlier releases; return what was proved."""
    site = DIST / "site"
    site.mkdir()
    for branch in SITE_BRANCHES:
        found = subprocess.run(["git", "rev-parse", "--verify", "--quiet", branch], cwd=ROOT, check=False)
        if found.returncode == 0:
            archive = subprocess.run(["git", "archive", branch], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
            subprocess.run(["tar", "-x", "-C", site], input=archive, check=True)
            break
    else:
        branch = "none"
    subprocess.run(["make", "--no-print-directory", "docs"], cwd=ROOT, check=True)
    added = output(sys.executable, "docs/site/versions.py", version, str(site))
    return [
        "built without a broken link (mkdocs --strict)",
        f"versions in the selector: {added.rpartition(': ')[2]}; earlier ones from the branch: {branch}",
        "search, API reference and examples are there",
    ]


def newcomers(roots: list[Path]) -> list[str]:
    """Run the first commands of a newcomer in each system; return what was proved."""
    proofs = []
    for root in roots:
        command = [sys.executable, "wheels/newcomer.py", str(root), str(DIST)]
        proofs.append(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip())
        print(proofs[-1], flush=True)
    return proofs


def unproved(built: list[Built]) -> list[str]:
    """Return what the release workflow builds and no wheel of this machine shows."""
    lines = []
    for name, pattern in PLATFORMS:
        here = {wheel.python.split()[0].rpartition(".")[0] for wheel in built if re.search(pattern, wheel.wheel.name)}
        lacking = [number for number in PYTHONS if number not in here and not number.endswith("t")]
        if lacking:
            lines.append(f"{name}, CPython {', '.join(lacking)}: built and used by the release workflow only")
    lines.append("macOS, Windows: the clients of the wheel without compiled code are imported by the release workflow")
    lines.append("free-threaded CPython: no wheel; an import of mqfast turns the GIL on")
    lines.append("attestations and trusted publishing: steps of the release workflow")
    return lines


def report(version: str, gates: list[str], built: list[Built], site: list[str], systems: list[str]) -> str:
    """Return what was made and what was proved, as Markdown."""
    lines = [f"# mqfast {version}: what was proved where", ""]
    lines += [f"- commit: `{output('git', 'rev-parse', 'HEAD')}` and the change of the version"]
    lines += [f"- machine: {platform.platform()}, glibc {platform.libc_ver()[1]}"]
    lines += [
        f"- gates passed at this commit, before the change of the version: {', '.join(gates) or 'none was run'}",
        "",
        "| File | Bytes | SHA-256 |",
        "|---|---|---|",
    ]
    for path in sorted([*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]):
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"| {path.name} | {path.stat().st_size:,} | `{digest}` |")
    checked = output(sys.executable, "wheels/check_files.py", str(DIST))
    lines += ["", f"Every wheel was built from the sdist, in an environment of its own. Files: {checked}.", ""]
    for wheel in built:
        lines += [f"## {wheel.wheel.name}", "", f"Built and used with Python {wheel.python}:", ""]
        lines += [*(f"- {proof}" for proof in wheel.proofs), ""]
    lines += ["## Documentation, in site/", "", *(f"- {line}" for line in site), ""]
    lines += ["## The first message on other systems", ""]
    lines += [*(f"- {line}" for line in systems or ["not tried: no system was named by --root"]), ""]
    lines += ["## Not proved on this machine", "", *(f"- {line}" for line in unproved(built)), ""]
    return "\n".join(lines)


def main() -> int:
    """Make the release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", help="as 0.2.0")
    parser.add_argument("--gates", default=" ".join(GATES), help="make targets that must pass (%(default)s)")
    parser.add_argument(
        "--root", action="append", default=[], type=Path, help="a system for wheels/newcomer.py; may be repeated"
    )
    parser.add_argument("--check", action="store_true", help="check only: change, run and build nothing")
    arguments = parser.parse_args()
    check(arguments.version)
    pythons = interpreters()
    if not pythons:
        stop(f"expected one of CPython {', '.join(PYTHONS)}, found none")
    print(f"mqfast {arguments.version}: {', '.join(f'{name} ({program})' for name, program in pythons.items())}")
    if arguments.check:
        return 0
    gates = arguments.gates.split()
    for gate in gates:
        subprocess.run(["make", "--no-print-directory", gate], cwd=ROOT, check=True)
    write_version(arguments.version)
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir(parents=True)
    built = [build(name, program, not number) for number, (name, program) in enumerate(pythons.items())]
    systems = newcomers(arguments.root)
    text = report(arguments.version, gates, built, build_site(arguments.version), systems)
    (DIST / "REPORT.md").write_text(text, "utf-8")
    print(f"{text}\nNothing is committed or pushed. The workflow of the tag publishes; for a release from this tree:")
    print(f"  git commit -am 'Version {arguments.version}' && git tag -a v{arguments.version} -m {arguments.version}")
    print(f"  git push origin HEAD v{arguments.version}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
