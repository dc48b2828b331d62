#!/usr/bin/env python3
"""Renames modules and identifiers of the whole tree by one table, so that other work can be renamed the same way.

    python .ci/renames.py            rename in the working tree (files move by ``git mv``)
    python .ci/renames.py --check    list the rows of the table that no longer match anything

The table is ``.ci/renames.toml``. A module row moves a file with its stub and declarations, and rewrites imports,
dotted names and paths in sources and documents. A name row rewrites identifiers: in code always, in comments,
docstrings and documents only where the old name stands between backquotes or is marked as unmistakable. A second run
changes nothing.

This script must never change a string of code: such strings are wire names, file names or texts for users.
"""

from __future__ import annotations

import argparse
import fnmatch
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_suffix(".toml")
QUOTES = "tests/mutation/mutants*.py"
"""Strings of this file are source lines."""
SOURCES = (".py", ".pyi", ".pyx", ".pxd")
TEXTS = (*SOURCES, ".md", ".toml", ".c", ".h", ".sh", ".yml", ".allow", "Makefile", ".ci/run")
_PYX_TOKEN = re.compile(
    r"(?P<text>[rbuf]{0,2}(?:\"\"\".*?\"\"\"|'''.*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))|(?P<comment>#[^\n]*)"
    r"|(?P<name>[A-Za-z_]\w*)",
    re.DOTALL | re.IGNORECASE,
)


class Name(NamedTuple):
    """A row of the table: an identifier.

    Attributes: files: patterns of paths; empty for all. member: only after a dot, ``def`` or ``class``. prose: in
    comments and documents without backquotes as well.
    """

    old: str
    new: str
    files: tuple[str, ...]
    member: bool
    prose: bool

    def applies_to(self, path: str) -> bool:
        """Return whether the row holds for a file."""
        return not self.files or any(fnmatch.fnmatch(path, pattern) for pattern in self.files)


class Pattern(NamedTuple):
    """A row of the table: a regular expression for what a single identifier cannot tell apart."""

    old: str
    new: str
    files: tuple[str, ...]

    def rewrite(self, path: str, text: str) -> str:
        """Return the text with each match replaced, where the row holds for the file."""
        if not any(fnmatch.fnmatch(path, pattern) for pattern in self.files):
            return text
        return re.sub(self.old, self.new, text, flags=re.MULTILINE)


def tracked() -> list[str]:
    """Return the paths of all text files that git tracks."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [path for path in listed.splitlines() if path.endswith(TEXTS) and not path.startswith(".ci/renames")]


def read_table() -> tuple[dict[str, str], list[Name], list[Pattern]]:
    """Return moved modules (paths without suffix), names and patterns."""
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    names = [
        Name(old, new, tuple(group.get("files", ())), group.get("member", False), group.get("prose", False))
        for group in table["names"]
        for old, new in group["table"].items()
    ]
    names += [
        Name(old, new, tuple(files_of(module, old)), False, False)
        for row, new in table["classes"].items()
        for module, _, old in (row.partition(":"),)
    ]
    patterns = [
        Pattern(old, new, tuple(group["files"])) for group in table["patterns"] for old, new in group["table"].items()
    ]
    return table["modules"], names, patterns


def files_of(module: str, name: str) -> Iterator[str]:
    """Yield the files that define a name, or import it from its module."""
    dotted = module.replace("/", ".")
    line = re.compile(rf"from {re.escape(dotted)} c?import (\([^)]*\)|[^\n(]+)")
    for path in tracked():
        if path.rpartition(".")[0] == module:
            yield path
        elif path.endswith(SOURCES):
            text = (ROOT / path).read_text(encoding="utf-8")
            for match in line.finditer(text):
                if re.search(rf"\b{name}\b(?! as)", match.group(1)):
                    yield path
                    break


def move_files(modules: dict[str, str]) -> Counter[str]:
    """Move the files of each module. Returns: files moved by old path."""
    moved: Counter[str] = Counter()
    for old, new in modules.items():
        for suffix in SOURCES:
            source, target = ROOT / (old + suffix), ROOT / (new + suffix)
            if not source.exists():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            init = target.parent / "__init__.py"
            if old.startswith("mqfast/") and not init.exists():
                init.write_text(f'"""{target.parent.name}: see docs/architecture.md."""\n', encoding="utf-8")
                subprocess.run(["git", "add", str(init)], cwd=ROOT, check=True)
            subprocess.run(["git", "mv", str(source), str(target)], cwd=ROOT, check=True)
            moved[old] += 1
    return moved


class ModuleNames:
    """Rewrites dotted names, paths and imports of moved modules."""

    def __init__(self, modules: dict[str, str]) -> None:
        self._paths = modules
        self._dotted = {old.replace("/", "."): new.replace("/", ".") for old, new in modules.items()}
        self._files: dict[str, str] = {}
        for old, new in modules.items():
            for head in ("", "mqfast/", "tests/"):
                if old.startswith(head):
                    self._files[old.removeprefix(head)] = new.removeprefix(head)
        last = Counter(old.rpartition("/")[2] for old in modules)
        # A bare file name is rewritten only where the name is one of its kind and cannot be a word.
        self._bare = {
            old.rpartition("/")[2]: new.rpartition("/")[2]
            for old, new in modules.items()
            if last[old.rpartition("/")[2]] == 1 and old.rpartition("/")[2].startswith("_")
        }
        self.hits: Counter[str] = Counter()

    def dotted(self, name: str) -> str:
        """Return the new name of a module or of something in a module."""
        parts = name.split(".")
        for count in range(len(parts), 1, -1):
            head = ".".join(parts[:count])
            if head in self._dotted:
                self.hits[head.replace(".", "/")] += 1
                return ".".join([self._dotted[head], *parts[count:]])
        return name

    def _imported(self, match: re.Match[str]) -> str:
        """Rewrite ``from package import module``."""
        indent, package, verb, names = match.groups()
        out, kept = [], []
        for item in (part.strip() for part in names.strip("()\n ").split(",")):
            name, _, alias = item.partition(" as ")
            full = f"{package}.{name}"
            if full not in self._dotted:
                kept.append(item)
                continue
            home, _, new = self._dotted[full].rpartition(".")
            self.hits[full.replace(".", "/")] += 1
            alias = alias or (name if name != new else "")
            out.append(f"{indent}from {home} {verb} {new}{f' as {alias}' if alias and alias != new else ''}")
        if not out:
            return match.group(0)
        if kept:
            out.insert(0, f"{indent}from {self.dotted(package)} {verb} {', '.join(kept)}")
        return "\n".join(out)

    def rewrite(self, path: str, text: str) -> str:
        """Return the text with every moved module under its new name."""
        if path.endswith(SOURCES):
            text = re.sub(
                r"^([ \t]*)from (mqfast(?:\.\w+)*) (c?import) (\([^)#]*\)|[^(\n#]+)(?=$|\n)",
                self._imported,
                text,
                flags=re.MULTILINE,
            )
        text = re.sub(r"\bmqfast(?:\.\w+)+", lambda match: self.dotted(match.group(0)), text)

        def file_name(match: re.Match[str]) -> str:
            old = match.group(1)
            new = self._files.get(old) or self._bare.get(old)
            return f"{new}{match.group(2)}" if new else match.group(0)

        return re.sub(r"(?<![\w/.-])([\w/]+)(\.(?:py|pyx|pxd|pyi)\b)", file_name, text)


def _code_names(path: str, text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield identifiers of code and whole comments and strings, as (start, end, kind, text)."""
    if path.endswith((".py", ".pyi")):
        starts = [0]
        for line in text.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        kinds = {tokenize.NAME: "name", tokenize.STRING: "text", tokenize.COMMENT: "comment"}
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in kinds:
                start = starts[token.start[0] - 1] + token.start[1]
                end = starts[token.end[0] - 1] + token.end[1]
                if token.type == tokenize.STRING and re.match(r"(?i)r?f", token.string):
                    yield from _names_of_f_string(start, token.string)
                yield start, end, kinds[token.type], token.string
        return
    for match in _PYX_TOKEN.finditer(text):
        kind = str(match.lastgroup)
        if kind == "text" and re.match(r"(?i)r?f", match.group()):
            yield from _names_of_f_string(match.start(), match.group())
        yield match.start(), match.end(), kind, match.group()


def _names_of_f_string(start: int, text: str) -> Iterator[tuple[int, int, str, str]]:
    """Yield the identifiers within the fields of an f-string."""
    for field in re.finditer(r"(?<!\{)\{([^{}]+)\}", text):
        for match in re.finditer(r"[A-Za-z_]\w*", field.group(1)):
            begin = start + field.start(1) + match.start()
            yield begin, begin + len(match.group()), "name", match.group()


def rename(path: str, text: str, names: Iterable[Name], hits: Counter[str]) -> str:
    """Return the text with identifiers renamed."""
    rows = {row.old: row for row in names if row.applies_to(path)}
    if not rows or not re.search(r"\b(?:" + "|".join(map(re.escape, rows)) + r")\b", text):
        return text
    quoted = re.compile(r"(`+)([^`\n]+)(`+)")

    def in_prose(part: str) -> str:
        def word(match: re.Match[str]) -> str:
            row = rows.get(match.group())
            return row.new if row else match.group()

        part = quoted.sub(lambda m: m.group(1) + re.sub(r"[A-Za-z_]\w*", word, m.group(2)) + m.group(3), part)
        for row in rows.values():
            if row.prose:
                part = re.sub(rf"(?<![\w/]){re.escape(row.old)}(?![\w/])", row.new, part)
        return part

    if not path.endswith(SOURCES):
        return in_prose(text)
    changes: list[tuple[int, int, str]] = []
    for start, end, kind, token in _code_names(path, text):
        if kind == "name":
            row = rows.get(token)
            if row is None:
                continue
            before = text[:start][-200:].rstrip(" ")
            if row.member and not (before.endswith(".") or re.search(r"\b(?:def|class)$|\bcp?def\b[^\n(=]*$", before)):
                continue
            hits[row.old] += 1
            changes.append((start, end, row.new))
        elif kind == "text" and fnmatch.fnmatch(path, QUOTES):
            new = re.sub(
                r"[A-Za-z_]\w*",
                lambda match: (
                    rows[match.group()].new
                    if match.group() in rows and not rows[match.group()].files
                    else match.group()
                ),
                token,
            )
            if new != token:
                changes.append((start, end, new))
        elif kind == "comment" or token.lstrip("rRbBuU").startswith('"""'):
            new = in_prose(token)
            if new != token:
                changes.append((start, end, new))
        elif token[1:-1] in rows and not rows[token[1:-1]].member:  # in ``__all__``, getattr, forward references
            changes.append((start, end, token[0] + rows[token[1:-1]].new + token[-1]))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def main() -> int:
    """Run the command line."""
    arguments = argparse.ArgumentParser(description="rename modules and identifiers by .ci/renames.toml")
    arguments.add_argument("--check", action="store_true", help="only list rows that match nothing")
    options = arguments.parse_args()
    modules, names, patterns = read_table()
    if options.check:
        gone = [old for old in modules if not any((ROOT / (old + suffix)).exists() for suffix in SOURCES)]
        print("\n".join(gone) or "every module row matches")
        return 0
    rewriter = ModuleNames(modules)
    hits: Counter[str] = Counter()
    changed = 0
    for path in tracked():  # names first: rows give the paths of before
        file = ROOT / path
        if file.is_symlink() or not file.exists():
            continue
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
        new = text
        for row in patterns:
            new = row.rewrite(path, new)
        new = rewriter.rewrite(path, rename(path, new, names, hits))
        if new != text:
            file.write_text(new, encoding="utf-8", errors="surrogateescape")
            changed += 1
    for path in tomllib.loads(TABLE.read_text(encoding="utf-8"))["removed"]["files"]:
        if (ROOT / path).exists():
            subprocess.run(["git", "rm", "-qf", path], cwd=ROOT, check=True)
    moved = move_files(modules)
    print(f"{sum(moved.values())} files moved, {sum(hits.values())} identifiers in {changed} files")
    for row in names:
        if not hits[row.old]:
            print(f"no identifier matches: {row.old}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
