"""Hooks of MkDocs: pages that lie outside of docs/ join the site, and links between all pages are made relative to it.

The Markdown files keep links that work in a checkout. This file must never hold text of its own.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# File of the project -> page of the site.
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "LICENSE": "license.md",
    "mqfast/store/FORMAT.md": "format.md",
    "csrc/README.md": "dev/csrc.md",
    "tests/README.md": "dev/tests.md",
    "tests/golden/README.md": "dev/golden.md",
    "tests/golden/make/README.md": "dev/make-golden.md",
    "bench/README.md": "dev/bench.md",
    "wheels/README.md": "dev/wheels.md",
}
SOURCES = {page: name for name, page in PAGES.items()}
_LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?\)")


def page_of(name: str) -> str | None:
    """Return the page that shows a file of the project; None for a file that is not on the site."""
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return PAGES.get(name)


def relinked(text: str, page: str) -> str:
    """Return the text of a page with the links of the checkout replaced by those of the site."""
    source = SOURCES.get(page, f"docs/{page}")

    def replace(link: re.Match[str]) -> str:
        target = link[2]
        if "://" in target:
            return link[0]
        name = os.path.normpath(os.path.join(os.path.dirname(source), target))
        there = page_of(name)
        if there is None:
            return link[0]  # MkDocs reports it
        return f"{link[1]}{os.path.relpath(there, os.path.dirname(page) or '.')}{link[3] or ''})"

    return _LINK.sub(replace, text)


def on_config(config: Any) -> Any:
    """Name the version that the site describes."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    config.site_name = f"mqfast {project['version']}"
    return config


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from outside of docs/."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if not name.endswith(".md"):
            text = f"# Licence\n\n```text\n{text}\n```\n"
        files.append(File.generated(config, page, content=text))
    return files


def with_examples(text: str, folder: Path) -> str:
    """Replace each line that links a program in the folder by the text of the program."""

    def replace(link: re.Match[str]) -> str:
        program = (folder / link[1]).read_text(encoding="utf-8")
        return f'```python title="{link[1]}"\n{program}```'

    return re.sub(r"^\[(\w+\.py)\]\(\1\)$", replace, text, flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the examples into their page, and rewrite the links of every page."""
    if page.file.src_uri == "examples/README.md":
        markdown = with_examples(markdown, ROOT / "docs" / "examples")
    return relinked(markdown, page.file.src_uri)
