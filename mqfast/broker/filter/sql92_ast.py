"""The parts of an SQL92 expression as closures over the properties of a message, with RocketMQ's rules of types.

The value of a condition is True, False or None (unknown). The rules need the kind of a node when the expression is
built: a constant, a property, a condition, or a negated value. No text is parsed here, and nodes are nested at most
``DEPTH_MAX`` deep. Source: the package org.apache.rocketmq.filter.expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mqfast.broker.filter.java_numbers import EvaluationFailed, JavaLong, Value, compare, double_of

__all__ = ["DEPTH_MAX", "Node", "SqlError"]

DEPTH_MAX: Final = 200
"""Limit of nested conditions. A chain of AND or OR of any length counts once."""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]

CONSTANT: Final = 0
PROPERTY: Final = 1
CONDITION: Final = 2
OTHER: Final = 3

_DOUBLE_MAX: Final = 1.7976931348623157e308
_DOUBLE_MIN: Final = 5e-324


class SqlError(ValueError):
    """The expression is refused, as by RocketMQ."""


class Node:
    """A part of an expression.

    Attributes: evaluate: properties -> value; kind; value: of a constant; name: of a property; depth.
    """

    __slots__ = ("depth", "evaluate", "is_condition", "kind", "name", "parts", "value", "word")

    depth: int

    def __init__(
        self, kind: int, evaluate: Evaluate, *below: Node, value: Value = None, name: str = "", word: str = ""
    ) -> None:
        self.kind = kind
        self.evaluate = evaluate
        self.value = value
        self.name = name
        self.is_condition = kind == CONDITION or (kind == CONSTANT and (value is None or type(value) is bool))
        self.depth = 1 + max((node.depth for node in below), default=0)
        self.word = word  # of a chain that the next AND or OR may continue
        self.parts: list[Evaluate] = []
        if self.depth > DEPTH_MAX:
            raise SqlError(f"expected at most {DEPTH_MAX} conditions within each other, found more")


def constant(value: Value) -> Node:
    return Node(CONSTANT, lambda _: value, value=value)


def property_of(name: str) -> Node:
    return Node(PROPERTY, lambda properties: properties.get(name), name=name)


def whole(text: str) -> Node:
    """Return a whole number: Integer if in range, else Long."""
    digits = text.rstrip("lL")
    if len(digits) > 19 or (number := int(digits)) > 2**63 - 1:
        raise SqlError(f"expected at most {2**63 - 1}, found {text:.80}")
    return constant(number if number <= 2**31 - 1 else JavaLong(number))


def floating(text: str) -> Node:
    number = float(text)
    if number > _DOUBLE_MAX or number < _DOUBLE_MIN:
        raise SqlError(f"expected a number from {_DOUBLE_MIN} to {_DOUBLE_MAX}, found {text:.80}")
    return constant(number)


def condition(node: Node) -> Node:
    """Return a node as a condition: a property is unknown if missing, else false. Raises: SqlError for a value."""
    if node.is_condition:
        return node
    if node.kind != PROPERTY:
        raise SqlError("expected a condition, found a value")
    name = node.name
    return Node(CONDITION, lambda properties: None if properties.get(name) is None else False, node)


def both(lhs: Node, rhs: Node) -> Node:
    return _chain("AND", lhs, rhs)


def either(lhs: Node, rhs: Node) -> Node:
    return _chain("OR", lhs, rhs)


def _chain(word: str, lhs: Node, rhs: Node) -> Node:
    lhs, rhs = condition(lhs), condition(rhs)
    if lhs.word == word:
        lhs.parts.append(rhs.evaluate)
        if rhs.depth >= lhs.depth:
            lhs.depth = rhs.depth + 1
            if lhs.depth > DEPTH_MAX:
                raise SqlError(f"expected at most {DEPTH_MAX} conditions within each other, found more")
        return lhs
    parts: list[Evaluate] = [lhs.evaluate, rhs.evaluate]
    ends = word == "OR"

    def evaluate(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            value = part(properties)
            if value is ends:
                return bool(value)
            if value is None:
                unknown = True
        return None if unknown else not ends

    node = Node(CONDITION, evaluate, lhs, rhs, word=word)
    node.parts = parts
    return node


def closed(node: Node) -> Node:
    """Close parentheses: a following AND or OR does not extend this chain."""
    node.word = ""
    return node


def negated(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        value: Value = inner(properties)
        if value is None or isinstance(value, (bool, str)):
            return None
        return JavaLong(-value) if type(value) is JavaLong else -value

    return Node(OTHER, evaluate, node)


def opposite(node: Node) -> Node:
    node = condition(node)
    inner = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value = inner(properties)
        return None if value is None else not value

    return Node(CONDITION, evaluate, node)


# --- equality ---------------------------------------------------------------------------------------------------------


def equal(lhs: Node, rhs: Node) -> Node:
    for operand in (lhs, rhs):
        if operand.kind == CONSTANT and operand.value is None:
            raise SqlError("NULL cannot be compared; IS NULL is meant")
    if lhs.kind == rhs.kind == CONSTANT and lhs.is_condition and not rhs.is_condition:
        raise SqlError(f"{lhs.value!r} cannot be compared with {rhs.value!r}")
    first, second = lhs.evaluate, rhs.evaluate

    def evaluate(properties: Properties) -> bool | None:
        value, wanted = first(properties), second(properties)
        if value is None:
            return True if wanted is None else None
        if wanted is None:
            return False
        if type(value) is str and type(wanted) is str:
            return bool(value == wanted)
        return compare(value, wanted) == 0

    return Node(CONDITION, evaluate, lhs, rhs)


def unequal(lhs: Node, rhs: Node) -> Node:
    return opposite(equal(lhs, rhs))


def is_null(node: Node) -> Node:
    inner = node.evaluate
    return Node(CONDITION, lambda properties: inner(properties) is None, node)


def is_not_null(node: Node) -> Node:
    return opposite(is_null(node))


# --- order ------------------------------------------------------------------------------------------------------------


def ordered(lhs: Node, rhs: Node, word: str) -> Node:
    """Return a comparison. Args: word: > >= < or <=."""
    for operand in (lhs, rhs):
        if operand.is_condition or (operand.kind == CONSTANT and type(operand.value) is str):
            operand_kind = "a condition" if operand.is_condition else "text"
            raise SqlError(f"{word}: expected a number or a property, found {operand_kind}")
    first, second = lhs.evaluate, rhs.evaluate
    test = _TESTS[word]

    def evaluate(properties: Properties) -> bool | None:
        value = first(properties)
        if value is None:
            return None
        limit = second(properties)
        if limit is None:
            return None
        if type(value) is str and type(limit) is str:
            value, limit = double_of(value), double_of(limit)
        return test(compare(value, limit))

    return Node(CONDITION, evaluate, lhs, rhs)


_TESTS: Final[dict[str, Callable[[int], bool]]] = {
    ">": lambda order: order > 0,
    ">=": lambda order: order >= 0,
    "<": lambda order: order < 0,
    "<=": lambda order: order <= 0,
}


def between(value: Node, low: Node, high: Node) -> Node:
    if low.kind == high.kind == CONSTANT:
        if low.value is None or high.value is None:
            raise SqlError("BETWEEN: expected two values, found NULL")
        try:
            falls = compare(high.value, low.value) < 0
        except EvaluationFailed as error:
            raise SqlError(f"BETWEEN: {error}") from None
        if falls:
            raise SqlError(f"BETWEEN: expected the lower value first, found {low.value!r:.80} and {high.value!r:.80}")
    return both(ordered(value, low, ">="), ordered(value, high, "<="))


def not_between(value: Node, low: Node, high: Node) -> Node:
    return either(ordered(value, low, "<"), ordered(value, high, ">"))


# --- text -------------------------------------------------------------------------------------------------------------


def one_of(node: Node, texts: list[str], *, negative: bool) -> Node:
    if node.kind != PROPERTY:
        raise SqlError("IN: expected a property")
    name, wanted = node.name, frozenset(texts)

    def evaluate(properties: Properties) -> bool | None:
        value = properties.get(name)
        return None if value is None else (value in wanted) is not negative

    return Node(CONDITION, evaluate, node)


def text_test(node: Node, word: str, text: str, *, negative: bool) -> Node:
    """Return a test of text; False for a value that is no text, or an empty ``text``. Args: word: CONTAINS, STARTSWITH
    or ENDSWITH.
    """
    if not text:
        return Node(CONDITION, lambda _: False, node)  # the value is not evaluated
    inner, test = node.evaluate, _TEXT_TESTS[word]

    def evaluate(properties: Properties) -> bool:
        value = inner(properties)
        return type(value) is str and test(value, text) is not negative

    return Node(CONDITION, evaluate, node)


_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": lambda value, text: value.startswith(text),
    "ENDSWITH": lambda value, text: value.endswith(text),
}
