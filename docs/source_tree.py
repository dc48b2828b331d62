"""Writes ``docs/source-tree.md``, the tree of all modules with their first sentences: ``python docs/source_tree.py``.

It must never hold a fact of its own: what a file is for stands in the file. A test compares the page with what this
writes.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "source-tree.md"
_DOCSTRING = re.compile(r'(?:#[^\n]*\n|\s)*[rR]?"""(.*?)"""', re.DOTALL)  # parsing all modules takes seconds
_HEAD = """# Source tree

Every module with the first sentence of its docstring. [Architecture](architecture.md) describes how the folders work
together. `docs/source_tree.py` writes this page.

"""


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring, without the final stop."""
    text = path.read_text(encoding="utf-8")
    match = _DOCSTRING.match(text)
    docstring = match[1] if match else ""
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0].rstrip(".")


def rows(folder: Path, depth: int) -> list[str]:
    """Return the list items of a folder, modules before folders."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.suffix in (".py", ".pyx") and path.stem not in ("__init__", "__main__"):
            lines.append(f"{'  ' * depth}- `{path.name}`: {first_sentence(path)}")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and (path / "__init__.py").exists():
            about = first_sentence(path / "__init__.py")
            lines.append(f"{'  ' * depth}- **{path.name}/**{': ' + about if about else ''}")
            lines += rows(path, depth + 1)
    return lines


def page() -> str:
    """Return the whole page."""
    return _HEAD + "\n".join(rows(ROOT / "mqfast", 0)) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"written: {PAGE.relative_to(ROOT)}")
