"""Expressions and messages for tests of the SQL92 filter: chosen ones, and random ones from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

NAMES = ["a", "b", "C", "missing", "_x1", "$d"]
NUMBERS = [
    "0", "1", "2", "10", "3L", "5l", "0L", "01", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "1.5", "5.", ".5", "1E2", "1e-3", "1.5E+2", "0.0", "1E400", "1e-400", "2.0", "10.0",
]  # fmt: skip
TEXTS = ["''", "'x'", "'it''s'", "'10'", "'1'", "'abc'", "'true'", "'ü€'", "' 1 '", "'a b'", "''''"]
WORDS = [
    "AND", "OR", "NOT", "IN", "BETWEEN", "IS", "NULL", "TRUE", "FALSE", "CONTAINS", "STARTSWITH", "ENDSWITH",
    "=", "<>", ">", ">=", "<", "<=", "(", ")", ",", "+", "-", "--", "/*", "*/", "#", "'", "-- c\n", "/* c */",
    "!=", "==",
]  # fmt: skip
VALUES = [
    "1", "2", "10", "3", "5", "x", "abc", "it's", "true", "TRUE", "false", "-1", "+1", " 1 ", "1.0", "1.5", "1e2", "5d",
    "5f",
    "NaN", "Infinity", "-Infinity", "0x1p3", "0x.8P+1D", "0x1", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "-0.0", "0", "0.0", "1_000", "\u0661", "\uff11", "ü€", "a b", "1e999", "-1e999", ".", "1.",
    ".5",
    "-", "", "'", "\t7\n", "0.5", "100", "\U0001d7d9", "nan", "inf", "1L", "--1", "0x1p99999", "1 2",
]  # fmt: skip


def message(chosen: random.Random) -> str:
    """A property string."""
    pairs = [(name, chosen.choice(VALUES)) for name in NAMES if name != "missing" and chosen.random() < 0.8]
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs)


def number(chosen: random.Random) -> str:
    return chosen.choice(["", "", "", "-", "+", "- "]) + chosen.choice(NUMBERS)


def value(chosen: random.Random, depth: int) -> str:
    kind = chosen.random()
    if kind < 0.5:
        return chosen.choice(NAMES)
    if kind < 0.75:
        return number(chosen)
    if kind < 0.88:
        return chosen.choice(TEXTS)
    if kind < 0.93:
        return chosen.choice(["TRUE", "false", "NULL"])
    if kind < 0.96 and depth > 0:
        return f"({condition(chosen, depth - 1)})"
    return chosen.choice(["-", "+", "NOT "]) + chosen.choice(NAMES)


def condition(chosen: random.Random, depth: int) -> str:
    """Mostly right by the grammar, not always by the rules for kinds."""
    kind = chosen.random()
    if depth > 0 and kind < 0.4:
        word = chosen.choice([" AND ", " OR ", " and ", " or "])
        return word.join(condition(chosen, depth - 1) for _ in range(chosen.randint(2, 3)))
    if depth > 0 and kind < 0.55:
        return chosen.choice(["NOT ({})", "({})", "not({})"]).format(condition(chosen, depth - 1))
    left = value(chosen, depth)
    negative = chosen.choice(["", "", "NOT "])
    kind = chosen.random()
    if kind < 0.45:
        return f"{left} {chosen.choice(['=', '<>', '>', '>=', '<', '<='])} {value(chosen, depth)}"
    if kind < 0.6:
        return f"{left} {negative}BETWEEN {number(chosen)} AND {number(chosen)}"
    if kind < 0.7:
        texts = ", ".join(chosen.choice(TEXTS) for _ in range(chosen.randint(1, 6)))
        return f"{chosen.choice([left, *NAMES])} {negative}IN ({texts})"
    if kind < 0.82:
        return f"{left} {negative}{chosen.choice(['CONTAINS', 'StartsWith', 'ENDSWITH'])} {chosen.choice(TEXTS)}"
    if kind < 0.95:
        return f"{left} IS {negative}NULL"
    return left


def tokens(chosen: random.Random) -> str:
    """Words in any order: most of it is refused, or read up to some place."""
    some = [chosen.choice(WORDS + NAMES + NUMBERS[:8] + TEXTS[:4]) for _ in range(chosen.randint(1, 8))]
    return chosen.choice(["", " "]).join(some)


def broken(chosen: random.Random) -> str:
    """A condition with a part cut out or put in."""
    text = condition(chosen, 2)
    at, end = sorted((chosen.randrange(len(text) + 1), chosen.randrange(len(text) + 1)))
    return text[:at] + chosen.choice(["", "", *WORDS]) + text[end if chosen.random() < 0.5 else at :]


def expressions(seed: int, count: int) -> Iterator[tuple[str, list[str]]]:
    """Random expressions, each with six messages."""
    chosen = random.Random(seed)
    for _ in range(count):
        kind = chosen.random()
        text = condition(chosen, 3) if kind < 0.7 else tokens(chosen) if kind < 0.85 else broken(chosen)
        yield text, [message(chosen) for _ in range(6)]
