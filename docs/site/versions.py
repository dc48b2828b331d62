"""Puts the documentation of a version beside those of earlier versions, with a selector on every page.

Run as ``python docs/site/versions.py VERSION SITE [BUILT]`` after ``make docs``. SITE is the folder that a web server
shows, new or with earlier versions; BUILT has the pages, by default build/site. The result: ``SITE/VERSION/`` has the
pages, ``SITE/versions.json`` what the selector of the theme lists (the form of the program mike), ``SITE/latest/`` a
redirection for each page of the newest release, and ``SITE/index.html`` leads there. Must never change the pages of
another version.
"""

from __future__ import annotations

import html
import json
import re
import shutil
import sys
from pathlib import Path

BUILT = Path(__file__).resolve().parents[2] / "build" / "site"
LATEST = "latest"
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
# What each version must have: the first page, the search, the API reference and the examples.
REQUIRED = ("index.html", "search/search_index.json", "api/index.html", "examples/index.html")
REDIRECTION = """<!doctype html>
<html><head><meta charset="utf-8"><title>mqfast</title>
<meta http-equiv="refresh" content="0; url={0}"><link rel="canonical" href="{0}"></head>
<body><a href="{0}">{0}</a></body></html>
"""


def order(version: str) -> tuple[int, ...]:
    """Return the order of a version: 1.2.3rc1 comes before 1.2.3. Ends the program for another form."""
    match = VERSION.fullmatch(version)
    if match is None:
        sys.exit(f"VERSION: expected 1.2.3 or 1.2.3rc1, found {version!r}")
    stage = ("a", "b", "rc").index(match[4]) if match[4] else 3
    return (*map(int, match.groups()[:3]), stage, int(match[5] or 0))


def missing(pages: Path) -> list[str]:
    """Return which of the required files a version lacks."""
    return [name for name in REQUIRED if not (pages / name).is_file()]


def newest(versions: list[str]) -> str:
    """Return the newest release; the newest of all where no release is among them."""
    releases = [version for version in versions if version.rpartition(".")[2].isdigit()]
    return max(releases or versions, key=order)


def redirect(path: Path, target: str) -> None:
    """Write a page that leads to another page."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(REDIRECTION.format(html.escape(target)), encoding="utf-8")


def add(version: str, site: Path, built: Path) -> list[str]:
    """Add a version, or replace the version of this name.

    Args:
        version: the name of the folder, as 0.2.0.
        site: the folder with all versions.
        built: the pages of the version.

    Returns:
        All versions of the site, the newest first.
    """
    order(version)
    lacking = missing(built)
    if lacking:
        sys.exit(f"{built}: expected {', '.join(lacking)}, found none: run make docs")
    shutil.rmtree(site / version, ignore_errors=True)
    shutil.copytree(built, site / version)
    names = [path.name for path in site.iterdir() if (path / "index.html").is_file()]
    versions = sorted(filter(VERSION.fullmatch, names), key=order, reverse=True)
    current = newest(versions)
    listed = [{"version": name, "title": name, "aliases": [LATEST] if name == current else []} for name in versions]
    (site / "versions.json").write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    shutil.rmtree(site / LATEST, ignore_errors=True)
    for page in sorted((site / current).rglob("index.html")):
        name = page.parent.relative_to(site / current).as_posix()
        below = "" if name == "." else f"{name}/"
        upwards = "../" * (1 + below.count("/"))
        redirect(site / LATEST / below / "index.html", f"{upwards}{current}/{below}")
    redirect(site / "index.html", f"{LATEST}/")
    (site / ".nojekyll").touch()  # a host of pages must not leave out files whose names begin with an underscore
    return versions


def main() -> None:
    """Add the version of the command line."""
    if len(sys.argv) not in (3, 4):
        sys.exit("usage: python docs/site/versions.py VERSION SITE [BUILT]")
    site = Path(sys.argv[2])
    site.mkdir(parents=True, exist_ok=True)
    versions = add(sys.argv[1], site, Path(sys.argv[3]) if len(sys.argv) == 4 else BUILT)
    print(f"{site}: {', '.join(versions)}")


if __name__ == "__main__":
    main()
