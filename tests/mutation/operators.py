"""Operators that break a function of the engine: the change of a mutant, addressed by function and place.

A place is counted among the tokens of the body: comments, blanks and line breaks do not count, so that a reformatted
line keeps its mutant. Python, Cython and C are read by the same small tokenizer. ``nth`` counts from 1; -1 is the last.
"""

from __future__ import annotations

import functools
import keyword
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

__all__ = ["Function", "Operator", "argument", "before", "call", "condition", "drop", "function", "instead", "replace"]
__all__ += ["result", "words", "without"]

_PYTHON: Final = re.compile(
    r"(?P<skip>[ \t\r\f]+|\\\n|\#[^\n]*)|(?P<string>[rbfuRBFU]{0,2}(?:'''(?:\\.|[^\\])*?'''|\"\"\"(?:\\.|[^\\])*?\"\"\""
    r"|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))|(?P<word>\w+(?:\.\d+)?)|\n"
    r"|(?P<sign>\*\*=|//=|>>=|<<=|->|:=|\.\.\.|[-+*/%&|^=!<>]=|\*\*|//|<<|>>|.)",
    re.DOTALL,
)
_C: Final = re.compile(
    r"(?P<skip>\s+|\\\n|//[^\n]*|/\*.*?\*/)|(?P<string>'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\")"
    r"|(?P<word>\w+(?:\.\d+)?)|(?P<sign>>>=|<<=|->|\+\+|--|&&|\|\||[-+*/%&|^=!<>]=|<<|>>|.)",
    re.DOTALL,
)
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_COMPOUND: Final = frozenset(
    ("if", "elif", "else", "while", "for", "with", "try", "except", "finally", "def", "return")
)
_LANGUAGE: Final = frozenset((*keyword.kwlist, "int64_t", "self"))


class Token(NamedTuple):
    """A token with its place in the source. In Python the end of a statement is a token too: a line break."""

    text: str
    start: int
    end: int


def _tokens(text: str, c: bool) -> Iterator[Token]:
    depth = 0
    last = "\n"
    for match in (_C if c else _PYTHON).finditer(text):
        token = match.group()
        if match.lastgroup == "skip" or (token == "\n" and (depth > 0 or last == "\n")):
            continue
        depth += (token in _CLOSING) - (token in _CLOSING.values())
        last = token
        yield Token(token, *match.span())


@dataclass(frozen=True)
class Function:
    """The body of a function: the tokens, and the source that contains them."""

    source: str
    tokens: tuple[Token, ...]
    c: bool

    def find(self, text: str, nth: int) -> tuple[int, int]:
        """Return the tokens [first, end) of the ``nth`` occurrence of ``text``. Raises: ValueError."""
        wanted = [token.text for token in _tokens(text, self.c)]
        texts = [token.text for token in self.tokens]
        starts = [at for at in range(len(texts)) if texts[at : at + len(wanted)] == wanted]
        at = _nth(starts, nth, f"`{text}`")
        return at, at + len(wanted)

    def close(self, first: int) -> int:
        """Return the bracket that closes the bracket ``first``."""
        depth = 0
        for at in range(first, len(self.tokens)):
            text = self.tokens[at].text
            depth += (text in _CLOSING) - (text in _CLOSING.values())
            if depth == 0:
                return at
        raise ValueError("a bracket without end")

    def until(self, first: int, *ends: str) -> int:
        """Return the first token of ``ends`` from ``first`` on that is inside no bracket."""
        at = first
        while self.tokens[at].text not in ends:
            at = self.close(at) + 1 if self.tokens[at].text in _CLOSING else at + 1
        return at

    def call(self, name: str, nth: int) -> tuple[int, int, int]:
        """Return (first token, opening bracket, end) of the ``nth`` call of ``name``. The objects before a method may
        be left out: ``flush`` is also ``self._store.flush``. Raises: ValueError.
        """
        first, end = self.find(f"{name}(", nth)
        while self.tokens[first - 1].text in (".", "->"):
            first -= 2
        return first, end - 1, self.close(end - 1) + 1

    def statement(self, name: str, nth: int) -> tuple[int, int]:
        """Return the tokens [first, end) of the statement with the ``nth`` call of ``name``. Raises: ValueError when a
        block begins there.
        """
        first, _, end = self.call(name, nth)
        marks = (";", "{", "}") if self.c else ("\n",)
        while first > 0 and self.tokens[first - 1].text not in marks:
            first -= 1
        if self.tokens[first].text in _COMPOUND:
            raise ValueError(f"`{name}` is called by `{self.tokens[first].text}`")
        return first, self.until(end, ";") + 1 if self.c else self.until(end, "\n")

    def condition(self, nth: int) -> tuple[int, int]:
        """Return the tokens [first, end) of the condition of the ``nth`` if, elif or while. Raises: ValueError."""
        heads = [
            at
            for at, token in enumerate(self.tokens)
            if token.text in ("if", "elif", "while") and (self.c or at == 0 or self.tokens[at - 1].text == "\n")
        ]
        at = _nth(heads, nth, "condition")
        return (at + 2, self.close(at + 1)) if self.c else (at + 1, self.until(at + 1, ":"))

    def result(self, nth: int) -> tuple[int, int]:
        """Return the tokens [first, end) of the value of the ``nth`` return. Raises: ValueError."""
        at = _nth([at for at, token in enumerate(self.tokens) if token.text == "return"], nth, "return") + 1
        return at, self.until(at, ";" if self.c else "\n")

    def change(self, first: int, end: int, new: str) -> str:
        """Return the source with ``new`` in the place of the tokens [first, end), each line with the same indent."""
        start, stop = self.tokens[first].start, self.tokens[end - 1].end
        line = self.source[self.source.rfind("\n", 0, start) + 1 : start]
        indent = line[: len(line) - len(line.lstrip())]
        return self.source[:start] + new.replace("\n", "\n" + indent) + self.source[stop:]

    def text(self, first: int, end: int) -> str:
        """Return the source of the tokens [first, end)."""
        return self.source[self.tokens[first].start : self.tokens[end - 1].end]


Operator = Callable[[Function], str]


def _nth(places: list[int], nth: int, what: str) -> int:
    if not 1 <= abs(nth) <= len(places):
        raise ValueError(f"expected {what} number {nth}, found {len(places)}")
    return places[nth - 1 if nth > 0 else nth]


def function(source: str, name: str, c: bool) -> Function:
    """Return the function with the qualified name, ``Class.method``; with no name the whole file. Raises: ValueError
    when the file does not define the function exactly once.
    """
    bodies = [body for own, body in _bodies(source, c) if own == name]
    if len(bodies) != 1:
        raise ValueError(f"expected one definition of {name}, found {len(bodies)}")
    return bodies[0]


@functools.lru_cache(maxsize=4)
def _bodies(source: str, c: bool) -> tuple[tuple[str, Function], ...]:
    tokens = tuple(_tokens(source, c))
    return ("", Function(source, tokens, c)), *(_c_bodies if c else _python_bodies)(source, tokens)


def words(text: str) -> set[str]:
    """Return the names in ``text`` that may be local: no attributes, called functions, constants and keywords."""
    return set(re.findall(r"(?<![\w.>\"'])(?![A-Z\d_]+\b)[a-zA-Z]\w*\b(?!\(|[\"'])", text)) - _LANGUAGE


def _python_bodies(source: str, tokens: tuple[Token, ...]) -> Iterator[tuple[str, Function]]:
    whole = Function(source, (*tokens, Token("\n", len(source), len(source))), c=False)
    heads = [at for at in range(len(tokens)) if at == 0 or tokens[at - 1].text == "\n"]
    indents = [tokens[at].start - source.rfind("\n", 0, tokens[at].start) - 1 for at in heads]
    outer: list[tuple[int, str]] = []
    for number, (head, indent) in enumerate(zip(heads, indents, strict=True)):
        while outer and outer[-1][0] >= indent:
            outer.pop()
        body = whole.until(head, ":", "\n") + 1
        header = [token.text for token in tokens[head:body]]
        if not {"class", "def", "cdef", "cpdef"} & set(header[:2]) or header[-1] != ":":
            continue
        own = header[header.index("(") - 1 if "(" in header else -2]
        outer.append((indent, own))
        later = (at for at, other in zip(heads[number + 1 :], indents[number + 1 :], strict=True) if other <= indent)
        end = next(later, len(tokens))
        body += tokens[body : body + 1] != () and tokens[body].text == "\n"
        yield ".".join(part for _, part in outer), Function(source, whole.tokens[body:end], c=False)


def _c_bodies(source: str, tokens: tuple[Token, ...]) -> Iterator[tuple[str, Function]]:
    whole = Function(source, tokens, c=True)
    at = 0
    while at < len(tokens):
        if tokens[at].text not in _CLOSING:
            at += 1
            continue
        end = whole.close(at) + 1
        if tokens[at].text == "(" and end < len(tokens) and tokens[end].text == "{":
            close = whole.close(end)
            yield tokens[at - 1].text, Function(source, tokens[end + 1 : close], c=True)
            end = close + 1
        at = end


def replace(old: str, new: str, nth: int = 1) -> Operator:
    """Replace the ``nth`` occurrence of the tokens ``old``."""

    def broken(f: Function) -> str:
        return f.change(*f.find(old, nth), new)

    return broken


def condition(new: str, nth: int = 1) -> Operator:
    """Replace the condition of the ``nth`` if, elif or while."""
    return lambda f: f.change(*f.condition(nth), new)


def result(new: str, nth: int = 1) -> Operator:
    """Return another value at the ``nth`` return."""
    return lambda f: f.change(*f.result(nth), new)


def call(name: str, new: str, nth: int = 1) -> Operator:
    """Replace the ``nth`` call of ``name`` by a value."""

    def broken(f: Function) -> str:
        first, _, end = f.call(name, nth)
        return f.change(first, end, new)

    return broken


def argument(name: str, which: int, new: str, nth: int = 1) -> Operator:
    """Replace the argument number ``which`` of the ``nth`` call of ``name``."""

    def broken(f: Function) -> str:
        at = end = f.call(name, nth)[1]
        for _ in range(which):
            if f.tokens[end].text == ")":
                raise ValueError(f"`{name}` has no argument number {which}")
            at = end + 1
            end = f.until(at, ",", ")")
        return f.change(at, end, new)

    return broken


def drop(name: str, nth: int = 1) -> Operator:
    """Drop the statement with the ``nth`` call of ``name``."""
    return lambda f: f.change(*f.statement(name, nth), "" if f.c else "pass")


def instead(name: str, new: str, nth: int = 1) -> Operator:
    """Replace the statement with the ``nth`` call of ``name`` by another."""
    return lambda f: f.change(*f.statement(name, nth), new)


def before(name: str, new: str, nth: int = 1) -> Operator:
    """Put a statement before the statement with the ``nth`` call of ``name``."""

    def broken(f: Function) -> str:
        first, _ = f.statement(name, nth)
        return f.change(first, first + 1, f"{new}\n{f.text(first, first + 1)}")

    return broken


def without(term: int, nth: int = 1) -> Operator:
    """Leave the term number ``term`` out of the ``nth`` condition. Terms are what ``and`` and ``or`` join, counted from
    the left, also inside of brackets.
    """

    def broken(f: Function) -> str:
        first, end = f.condition(nth)
        joints = ("and", "or", "&&", "||")
        starts = [first, *(at + 1 for at in range(first, end) if f.tokens[at].text in joints)]
        at = _nth(starts, term, "term")
        while f.tokens[at].text == "(":
            at += 1
        stop = at
        while stop < end and f.tokens[stop].text not in (*joints, ")"):
            stop = f.close(stop) + 1 if f.tokens[stop].text in _CLOSING else stop + 1
        if f.tokens[at - 1].text in joints:
            return f.source[: f.tokens[at - 2].end] + f.source[f.tokens[stop - 1].end :]
        if f.tokens[stop].text in joints:
            return f.source[: f.tokens[at].start] + f.source[f.tokens[stop + 1].start :]
        raise ValueError(f"term {term} is the only one")

    return broken
