"""The parts of an SQL92 expression as closures over the properties of a message, and RocketMQ's rules for their kinds.

True, False or None (unknown) is the value of a condition. A node knows what it is while the expression is built, since
the rules ask for it: a constant, a property, a condition, or a negated value.

Room: broker/pull/filter. It must never parse text, and never nest deeper than ``DEPTH_MAX``. Source: the package
org.apache.rocketmq.filter.expression.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from mqfast.broker.filter.java_numbers import EvaluationFailed, JavaLong, Value, compare, double_of

__all__ = ["DEPTH_MAX", "Node", "SqlError"]

DEPTH_MAX: Final = 200
"""Conditions within conditions. A chain of AND or OR counts as one, however long it is."""

Properties = Mapping[str, str]
Evaluate = Callable[[Properties], Any]

CONSTANT: Final = 0
PROPERTY: Final = 1
CONDITION: Final = 2
OTHER: Final = 3

_DOUBLE_MAX: Final = 1.7976931348623157e308
_DOUBLE_MIN: Final = 5e-324


class SqlError(ValueError):
    """The expression is not one that RocketMQ compiles."""


class Node:
    """One part of an expression.

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
        self.depth = 1 + max((one.depth for one in below), default=0)
        self.word = word  # of a chain that the next AND or OR may continue
        self.parts: list[Evaluate] = []
        if self.depth > DEPTH_MAX:
            raise SqlError(f"expected at most {DEPTH_MAX} conditions within each other, found more")


def constant(value: Value) -> Node:
    return Node(CONSTANT, lambda _: value, value=value)


def property_of(name: str) -> Node:
    return Node(PROPERTY, lambda properties: properties.get(name), name=name)


def whole(text: str) -> Node:
    """A whole number: Integer where it fits, else Long."""
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
    """Take a node as a condition: a property is one, false where it is there. Raises: SqlError for a value."""
    if node.is_condition:
        return node
    if node.kind != PROPERTY:
        raise SqlError("expected a condition, found a value")
    name = node.name
    return Node(CONDITION, lambda properties: None if properties.get(name) is None else False, node)


def both(left: Node, right: Node) -> Node:
    return _chain("AND", left, right)


def either(left: Node, right: Node) -> Node:
    return _chain("OR", left, right)


def _chain(word: str, left: Node, right: Node) -> Node:
    left, right = condition(left), condition(right)
    if left.word == word:
        left.parts.append(right.evaluate)
        if right.depth >= left.depth:
            left.depth = right.depth + 1
            if left.depth > DEPTH_MAX:
                raise SqlError(f"expected at most {DEPTH_MAX} conditions within each other, found more")
        return left
    parts: list[Evaluate] = [left.evaluate, right.evaluate]
    ends = word == "OR"

    def evaluate(properties: Properties) -> bool | None:
        unknown = False
        for part in parts:
            found = part(properties)
            if found is ends:
                return bool(found)
            if found is None:
                unknown = True
        return None if unknown else not ends

    node = Node(CONDITION, evaluate, left, right, word=word)
    node.parts = parts
    return node


def closed(node: Node) -> Node:
    """In parentheses: what follows does not continue its chain."""
    node.word = ""
    return node


def negated(node: Node) -> Node:
    inner = node.evaluate

    def evaluate(properties: Properties) -> Value:
        found: Value = inner(properties)
        if found is None or isinstance(found, (bool, str)):
            return None
        return JavaLong(-found) if type(found) is JavaLong else -found

    return Node(OTHER, evaluate, node)


def opposite(node: Node) -> Node:
    node = condition(node)
    inner = node.evaluate

    def evaluate(properties: Properties) -> bool | None:
        found = inner(properties)
        return None if found is None else not found

    return Node(CONDITION, evaluate, node)


# --- equality ---------------------------------------------------------------------------------------------------------


def equal(left: Node, right: Node) -> Node:
    for one in (left, right):
        if one.kind == CONSTANT and one.value is None:
            raise SqlError("NULL cannot be compared; IS NULL is meant")
    if left.kind == right.kind == CONSTANT and left.is_condition and not right.is_condition:
        raise SqlError(f"{left.value!r} cannot be compared with {right.value!r}")
    first, second = left.evaluate, right.evaluate

    def evaluate(properties: Properties) -> bool | None:
        found, wanted = first(properties), second(properties)
        if found is None:
            return True if wanted is None else None
        if wanted is None:
            return False
        if type(found) is str and type(wanted) is str:
            return bool(found == wanted)
        return compare(found, wanted) == 0

    return Node(CONDITION, evaluate, left, right)


def unequal(left: Node, right: Node) -> Node:
    return opposite(equal(left, right))


def is_null(node: Node) -> Node:
    inner = node.evaluate
    return Node(CONDITION, lambda properties: inner(properties) is None, node)


def is_not_null(node: Node) -> Node:
    return opposite(is_null(node))


# --- order ------------------------------------------------------------------------------------------------------------


def ordered(left: Node, right: Node, word: str) -> Node:
    """``word``: one of > >= < <=."""
    for one in (left, right):
        if one.is_condition or (one.kind == CONSTANT and type(one.value) is str):
            found = "a condition" if one.is_condition else "text"
            raise SqlError(f"{word}: expected a number or a property, found {found}")
    first, second = left.evaluate, right.evaluate
    test = _TESTS[word]

    def evaluate(properties: Properties) -> bool | None:
        found = first(properties)
        if found is None:
            return None
        limit = second(properties)
        if limit is None:
            return None
        if type(found) is str and type(limit) is str:
            found, limit = double_of(found), double_of(limit)
        return test(compare(found, limit))

    return Node(CONDITION, evaluate, left, right)


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
        found = properties.get(name)
        return None if found is None else (found in wanted) is not negative

    return Node(CONDITION, evaluate, node)


def text_test(node: Node, word: str, text: str, *, negative: bool) -> Node:
    """``word``: CONTAINS, STARTSWITH or ENDSWITH. False where the value is no text, or ``text`` is empty."""
    if not text:
        return Node(CONDITION, lambda _: False, node)  # the value is not even looked at
    inner, test = node.evaluate, _TEXT_TESTS[word]

    def evaluate(properties: Properties) -> bool:
        found = inner(properties)
        return type(found) is str and test(found, text) is not negative

    return Node(CONDITION, evaluate, node)


_TEXT_TESTS: Final[dict[str, Callable[[str, str], bool]]] = {
    "CONTAINS": str.__contains__,
    "STARTSWITH": lambda found, text: found.startswith(text),
    "ENDSWITH": lambda found, text: found.endswith(text),
}
