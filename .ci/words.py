#!/usr/bin/env python3
"""Checks the words of the package: docstrings, names of locals, lines of Cython and C; and counts both for a table.

    python .ci/words.py [FILE ...]   list what breaks a rule, and end with 1 if there is anything (``make lint``)
    python .ci/words.py --table      a table by package: files, functions, docstrings, pronouns

The rules: a docstring of a function begins with a verb; fewer than 3 % of the words of a module's docstrings are
pronouns; no word of the list below; no local variable with a name that says nothing; no line of Cython or C above 120.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parents[1]
PRONOUNS: Final = frozenset(
    [
        "it",
        "its",
        "they",
        "them",
        "their",
        "he",
        "she",
        "him",
        "her",
        "his",
        "who",
        "whom",
        "whose",
        "whoever",
        "nobody",
        "somebody",
        "anybody",
        "everybody",
        "one",
        "ones",
    ]
)
PRONOUN_SHARE: Final = 0.03
_WORDS_MIN: Final = 60
"""A module with fewer words in docstrings has no share that means anything."""
QUESTIONS: Final = frozenset(["What", "Who", "Whose", "Where", "Whether", "Is", "Does", "How"])
EMPTY_NAMES: Final = frozenset(["one", "found", "most", "least", "began", "left"])
WORDS: Final = {
    "turn about": "interleaved",
    "by the calls alone": "service time",
    "gil loan": "GIL handoff",
    "loan of the gil": "GIL handoff",
    "errand": "deferred work",
    "in vain": "without success",
    "whoever": "a noun: the thread, the process, the reader",
    "nobody": "no thread, no process, no user",
    "somebody": "a thread, a process, a user",
    "walks through the house": "passes through the code",
    "meets python": "takes the GIL",
    "let go of": "released",
    "letting go": "releasing",
    "made anew": "rebuilt, created again",
    "hold of the gil": "the GIL",
    "says aloud": "states",
    "taken for whole": "accepted as valid",
}
LINE_CHARS: Final = 120
_TEXT: Final = re.compile(r'"""(.*?)"""', re.DOTALL)
_DEFINED: Final = re.compile(
    r"^[ \t]*(?:async )?(?:def|cp?def)\b[^\n]*(?:\n[^\n]*?)*?:[ \t]*(?:#[^\n]*)?\n[ \t]*\"\"\"(.*?)\"\"\"",
    re.MULTILINE | re.DOTALL,
)


class Docstring(NamedTuple):
    """One docstring. Attributes: line: of its begin; of_function: whether a function has the docstring."""

    line: int
    text: str
    of_function: bool


def modules(paths: list[Path] | None = None) -> list[Path]:
    """Return the sources of the package and of csrc that git tracks."""
    if paths:
        return paths
    listed = subprocess.run(["git", "ls-files", "mqfast", "csrc"], cwd=ROOT, check=True, capture_output=True, text=True)
    return [ROOT / name for name in listed.stdout.split() if name.endswith((".py", ".pyi", ".pyx", ".pxd", ".c", ".h"))]


def docstrings(path: Path, text: str) -> list[Docstring]:
    """Return the docstrings of a module, its classes and functions."""
    if path.suffix in (".py", ".pyi"):
        result = []
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                docstring = ast.get_docstring(node)
                if docstring:
                    line = getattr(node, "lineno", 1)
                    result.append(Docstring(line, docstring, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)))
        return result
    if path.suffix in (".pyx", ".pxd"):
        of_functions = {match.start(1) for match in _DEFINED.finditer(text)}
        return [
            Docstring(text.count("\n", 0, match.start()) + 1, match.group(1).strip(), match.start(1) in of_functions)
            for match in _TEXT.finditer(text)
        ]
    return []


def prose(text: str) -> str:
    """Return a text without code, options and examples."""
    return re.sub(r"`+[^`]*`+", "", re.sub(r"(?m)^    .*$", "", text))


def pronouns(texts: list[str]) -> tuple[int, int]:
    """Return the number of pronouns and of words."""
    words = [word.lower() for text in texts for word in re.findall(r"[A-Za-z]+", prose(text))]
    return sum(word in PRONOUNS for word in words), len(words)


def complaints(path: Path) -> Iterator[str]:
    """Yield each place of a file that breaks a rule."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
    if path.suffix in (".pyx", ".pxd", ".c", ".h"):
        for number, line in enumerate(text.splitlines(), 1):
            if len(line) > LINE_CHARS:
                yield f"{name}:{number}: a line of {len(line)} characters, the limit is {LINE_CHARS}"
    found = docstrings(path, text)
    for docstring in found:
        first = re.match(r"[A-Za-z]+", docstring.text)
        if docstring.of_function and first and first.group() in QUESTIONS:
            yield f"{name}:{docstring.line}: a docstring begins with {first.group()}, expected a verb"
        low = prose(docstring.text).lower()
        for word, term in WORDS.items():
            if re.search(rf"\b{word}\b", low):
                yield f"{name}:{docstring.line}: {word!r} in a docstring, expected {term}"
    count, words = pronouns([docstring.text for docstring in found])
    if words >= _WORDS_MIN and count / words >= PRONOUN_SHARE:
        yield f"{name}: {count} pronouns in {words} words of docstrings, expected fewer than {PRONOUN_SHARE:.0%}"
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.search(r"(?:^|\s)#\s(.*)$", line) if path.suffix not in (".c", ".h") else None
        for word, term in WORDS.items() if comment else ():
            if re.search(rf"\b{word}\b", comment.group(1).lower()):  # type: ignore[union-attr]
                yield f"{name}:{number}: {word!r} in a comment, expected {term}"
    if path.suffix == ".py":
        tree = ast.parse(text)
        classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = {id(item.target) for cls in classes for item in cls.body if isinstance(item, ast.AnnAssign)}
        groups = [[*node.args, *node.kwonlyargs] for node in ast.walk(tree) if isinstance(node, ast.arguments)]
        # ``expected`` and ``found`` are the two fields of every error.
        pairs = {id(arg) for args in groups if any(arg.arg == "expected" for arg in args) for arg in args}
        for node in ast.walk(tree):
            if id(node) in fields or id(node) in pairs:
                continue
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in EMPTY_NAMES:
                yield f"{name}:{node.lineno}: a variable named {node.id}, expected the noun"
            elif isinstance(node, ast.arg) and node.arg in EMPTY_NAMES:
                yield f"{name}:{node.lineno}: an argument named {node.arg}, expected the noun"


def table() -> None:
    """Print the counts by package."""
    rows: dict[str, list[Path]] = defaultdict(list)
    for path in modules():
        parts = path.relative_to(ROOT).parts
        if parts[0] == "mqfast" and path.suffix == ".py":
            rows[parts[1] if len(parts) > 2 else "(top level)"].append(path)
    heads = "package|files|median / largest file|functions|median / > 70 lines|with docstring|questions|pronouns"
    print("| " + heads.replace("|", " | ") + " |")
    print("|---" * heads.count("|") + "|---|")
    everything = [path for package in rows.values() for path in package]
    for package, paths in [*sorted(rows.items()), ("all", everything)]:
        sizes, lengths, texts, with_text, questions = [], [], [], 0, 0
        for path in paths:
            text = path.read_text(encoding="utf-8")
            sizes.append(text.count("\n"))
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    lengths.append((node.end_lineno or node.lineno) - node.lineno + 1)
            for docstring in docstrings(path, text):
                texts.append(docstring.text)
                with_text += docstring.of_function
                first = re.match(r"[A-Za-z]+", docstring.text)
                questions += bool(docstring.of_function and first and first.group() in QUESTIONS)
        count, words = pronouns(texts)
        long = sum(length > 70 for length in lengths)
        print(
            f"| {package} | {len(paths)} | {statistics.median(sizes):.0f} / {max(sizes)} | {len(lengths)} | "
            f"{statistics.median(lengths):.0f} / {long} | {with_text / len(lengths):.0%} | "
            f"{questions / max(1, with_text):.0%} | {count / max(1, words):.1%} |"
        )


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="check the words of the package")
    parser.add_argument("files", nargs="*", type=Path, help="only these files")
    parser.add_argument("--table", action="store_true", help="print counts by package")
    options = parser.parse_args()
    if options.table:
        table()
        return 0
    found = [line for path in modules([path.resolve() for path in options.files]) for line in complaints(path)]
    print("\n".join(found))
    print(f"{len(found)} places break a rule of words")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
