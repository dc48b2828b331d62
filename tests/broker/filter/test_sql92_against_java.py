"""The SQL92 filter beside RocketMQ's own: the same expressions are refused, and the same messages are wanted."""

from __future__ import annotations

import base64
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parent))
sys.path.append(str(Path(__file__).resolve().parents[2] / "golden" / "make"))

from java_oracle import NEWEST, JavaOracle
from make import jars
from sql_cases import expressions

from mqfast import properties
from mqfast.broker.filter.bloom_filter import BloomFilter
from mqfast.broker.filter.sql92_parser import SqlError, compile_sql

HERE = Path(__file__).resolve().parent
_there, _why = JavaOracle.available()
pytestmark = [pytest.mark.interop, pytest.mark.skipif(not _there, reason=_why or "Java is there")]


class Oracle:
    """One JVM that answers line by line."""

    def __init__(self) -> None:
        home = jars(NEWEST, HERE / "SqlOracle.java")
        command = ["java", "-Xmx200m", "-XX:TieredStopAtLevel=1", "-cp", f"{home / 'classes'}:{home / 'jars'}/*"]
        self.process = subprocess.Popen(
            [*command, "SqlOracle"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def ask(self, expression: str, messages: list[str]) -> str:
        return self._say(base64.b64encode(text.encode()).decode() for text in (expression, *messages))

    def bits(self, text: str) -> str:
        return self._say(("bloom", base64.b64encode(text.encode()).decode()))

    def _say(self, words: Iterable[str]) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(words) + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(200)
        self.process.stdout.close()


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    running = Oracle()
    yield running
    running.end()


def ours(expression: str, messages: list[str]) -> str:
    try:
        compiled = compile_sql(expression)
    except SqlError:
        return "E"
    values = [compiled.evaluate(properties.decode(text.encode())) for text in messages]
    return "".join({True: "T", False: "F", None: "N"}[value] for value in values)


@pytest.mark.parametrize("seed", range(4))
def test_random_expressions(oracle: Oracle, seed: int) -> None:
    accepted = wanted = 0
    for expression, messages in expressions(seed, 2500):
        theirs = oracle.ask(expression, messages)
        # An evaluation that fails and an unknown value both leave the message out.
        assert ours(expression, messages) == theirs.replace("X", "N"), (expression, messages, theirs)
        accepted += theirs != "E"
        wanted += "T" in theirs
    assert accepted > 500
    assert wanted > 200


def test_depth_and_length_that_java_accepts_too(oracle: Oracle) -> None:
    chain = " OR ".join(f"a = {i}" for i in range(1000))
    deep = "(" * 100 + "a = 1" + ")" * 100
    for expression in (chain, deep, "NOT " * 100 + "a = 1"):
        assert ours(expression, ["a\x01999\x02"]) == oracle.ask(expression, ["a\x01999\x02"])


def test_bits_of_filters_in_the_file(oracle: Oracle) -> None:
    for text in ("", "g#T", "group#Topic", *("x" * n for n in range(1, 40)), "ü€\U0001f600#тема"):
        data = BloomFilter(20, 32).data_of(text)
        assert f"{data['bitNum']}{data['bitPos']}" == oracle.bits(text)
