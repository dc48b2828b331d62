"""The SQL92 filter: answers that RocketMQ 5.5.0 gave, chosen rules, and bounds."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from mqfast import properties
from mqfast.broker.filter.sql92_ast import DEPTH_MAX
from mqfast.broker.filter.sql92_parser import SQL_CHARS_MAX, SqlError, compile_sql

HERE = Path(__file__).resolve().parent
RECORDED = json.loads((HERE / "sql_answers.json").read_text())  # [expression, property strings, T F N each or E]


def answer(expression: str, messages: list[str]) -> str:
    try:
        compiled = compile_sql(expression)
    except SqlError:
        return "E"
    return "".join(
        {True: "T", False: "F", None: "N"}[compiled.evaluate(properties.decode(text.encode()))] for text in messages
    )


def test_answers_that_rocketmq_gave() -> None:
    assert len(RECORDED) == 400
    for expression, messages, recorded in RECORDED:
        assert answer(expression, messages) == recorded, expression


@pytest.mark.parametrize(
    "expression, given, wanted",
    [
        ("a = 1 AND b = 'x'", {"a": "1", "b": "x"}, True),
        ("a BETWEEN 1 AND 3", {"a": "2"}, True),
        ("a NOT BETWEEN 1 AND 3", {"a": "2"}, False),
        ("a > 1.5", {"a": "2"}, True),
        ("a > 1", {"a": "1.5"}, None),  # an Integer is read from the text, which is none
        ("a > b", {"a": "10", "b": "9"}, True),  # two texts are compared as numbers
        ("a = 'x'", {}, None),
        ("a = b", {}, True),  # nothing is equal to nothing
        ("a <> 'x'", {}, None),
        ("a IS NULL OR b = 1", {"b": "2"}, True),
        ("a IN ('x', 'y')", {"a": "y"}, True),
        ("a NOT IN ('x')", {}, None),
        ("a", {"a": "true"}, False),  # a property alone is no truth
        ("a = TRUE", {"a": "True"}, True),
        ("a CONTAINS 'b' and a startswith 'a' AND a EndsWith 'c'", {"a": "abc"}, True),
        ("a NOT CONTAINS ''", {"a": "abc"}, False),
        ("a = 01", {"a": "0"}, True),  # what follows the expression is not read
        ("a = 'it''s' -- comment\n OR /* more */ FALSE", {"a": "it's"}, True),
        ("missing = 1 OR a = 1", {"a": "1"}, True),
        ("missing = 1 AND a = 2", {"a": "1"}, False),
    ],
)
def test_rules(expression: str, given: dict[str, str], wanted: bool | None) -> None:
    assert compile_sql(expression).evaluate(given) is wanted


@pytest.mark.parametrize(
    "expression",
    ["", " ", "1", "'x'", "a = NULL", "a > 'x'", "a > TRUE", "a = 0.0", "a = 9223372036854775808", "a BETWEEN 3 AND 1",
     "1 IN ('x')", "a IN (1)", "a NOT 1", "TRUE = 1", "a = 1 #", "(a = 1", "a = 'x"],
)  # fmt: skip
def test_what_is_refused(expression: str) -> None:
    with pytest.raises(SqlError):
        compile_sql(expression)


@pytest.mark.parametrize("expression", ["a LIKE 'x%'x #", "a + 1 = #", "a b #"])
def test_text_after_the_expression_is_ignored(expression: str) -> None:
    assert compile_sql(expression).evaluate({"a": "x"}) is False  # a property alone


def test_a_property_string_is_asked() -> None:
    wanted = compile_sql("tier = 'gold' AND amount >= 100")
    assert wanted.wants(b"tier\x01gold\x02amount\x01250\x02")
    assert wanted.wants(b"amount\x01100\x02tier\x01gold")  # the last separator may be missing
    assert not wanted.wants(b"tier\x01gold\x02amount\x01many\x02")
    assert not wanted.wants(b"")
    assert not wanted.wants(b"\xff\x01\x02\x01\x02\x02")


def test_long_chains_are_accepted_and_depth_is_bounded() -> None:
    chain = " OR ".join(f"a = {i}" for i in range(2000))
    assert compile_sql(chain).evaluate({"a": "1999"}) is True
    nested = "(" * 3000 + "a = 1" + ")" * 3000
    assert compile_sql(nested).evaluate({"a": "1"}) is True
    within = DEPTH_MAX - 6
    assert compile_sql("NOT (" * within + "a = 1" + ")" * within).evaluate({"a": "1"}) is True
    with pytest.raises(SqlError, match="within each other"):
        compile_sql("NOT " * (DEPTH_MAX + 1) + "a = 1")
    with pytest.raises(SqlError, match="within each other"):
        compile_sql(" OR ".join(f"a = {i} AND (b = {i}" for i in range(300)) + ")" * 300)
    with pytest.raises(SqlError, match="within each other"):
        compile_sql("a" + " = a" * (DEPTH_MAX + 1))


@pytest.mark.parametrize(
    "part", ["(", "NOT ", "a = 1 OR ", "-", "+", "'", "''", "= a,", "/*", "-- ", "a IN ('x','", "1"]
)
def test_no_text_is_slow_or_ends_in_another_error(part: str) -> None:
    began = time.process_time()
    with pytest.raises(SqlError):
        compile_sql(part * (SQL_CHARS_MAX // len(part)))
    assert time.process_time() - began < 5
    with pytest.raises(SqlError, match="characters"):
        compile_sql("a = 1 OR " * SQL_CHARS_MAX)


def test_lark_is_imported_with_the_first_expression_only() -> None:
    import subprocess

    code = (
        "import sys, mqfast.broker.filter.sql92_parser as sql; assert 'lark' not in sys.modules;"
        "sql.compile_sql('a = 1'); assert 'lark' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
