"""SQL92 filters: compiles a text to a test of a message's properties, by RocketMQ's grammar.

Java's parser reads the longest expression at the beginning of the text, with one token of look-ahead; the rest of the
text is ignored (``a = 01`` is ``a = 0``). This parser does the same, so that both brokers select the same messages.

Recursion does not depend on length or depth of the text. Everything that Java refuses is refused; texts above
``SQL_CHARS_MAX`` and conditions deeper than DEPTH_MAX as well. ``lark`` is imported with the first expression. Source:
SelectorParser.jj.
"""

from __future__ import annotations

import functools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from mqfast import properties as _properties
from mqfast.broker.filter import sql92_ast as nodes
from mqfast.broker.filter.java_numbers import EvaluationFailed
from mqfast.broker.filter.sql92_ast import Node, SqlError

if TYPE_CHECKING:
    from lark import Lark

__all__ = ["SQL_CHARS_MAX", "SqlError", "SqlExpression", "compile_sql", "uncompiled"]

SQL_CHARS_MAX: Final = 32_768
KEPT_CHARS_MAX: Final = 512 * 1024

# Terminals with an underscore leave no child. Each rule has a callback in _RULES.
_GRAMMAR: Final = """
start: or_expr                                  -> start
?or_expr: and_expr
    | or_expr _OR and_expr                      -> either
?and_expr: equality
    | and_expr _AND equality                    -> both
?equality: comparison
    | equality _EQUAL comparison                -> equal
    | equality _UNEQUAL comparison              -> unequal
    | equality _IS _NULL                        -> is_null
    | equality _IS _NOT _NULL                   -> is_not_null
?comparison: unary
    | comparison ORDER unary                    -> ordered
    | comparison _BETWEEN unary _AND unary      -> between
    | comparison _NOT _BETWEEN unary _AND unary -> not_between
    | comparison _IN texts                      -> one_of
    | comparison _NOT _IN texts                 -> none_of
    | comparison TEXT_TEST STRING               -> text_test
    | comparison _NOT TEXT_TEST STRING          -> not_text_test
texts: _OPEN texts_open _CLOSE                  -> texts
texts_open: STRING                              -> first_text
    | texts_open _COMMA STRING                  -> next_text
?unary: primary
    | _PLUS unary                               -> same
    | _MINUS unary                              -> negated
    | _NOT unary                                -> opposite
?primary: STRING                                -> string
    | WHOLE                                     -> whole
    | FLOATING                                  -> floating
    | _TRUE                                     -> true
    | _FALSE                                    -> false
    | _NULL                                     -> null
    | ID                                        -> property_of
    | _OPEN or_expr _CLOSE                      -> closed
%declare _OR _AND _EQUAL _UNEQUAL _IS _NULL _NOT ORDER _BETWEEN _IN TEXT_TEST STRING _OPEN _CLOSE _COMMA _PLUS _MINUS
%declare WHOLE FLOATING _TRUE _FALSE ID
"""

# The longest match wins in Java; here the order of the alternatives has the same effect.
_TOKEN: Final = re.compile(
    r"""
      (?P<SKIP>   [ \t\n\r\f]+ | /\*[^*]*\*(?:\*|[^*/][^*]*\*)*/ )
    | (?P<FLOATING> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<WHOLE>  0 | [1-9][0-9]*[lL]? )
    | (?P<STRING> '(?:''|[^'])*' )
    | (?P<ID>     [A-Za-z_$][A-Za-z0-9_$]* )
    | (?P<SIGN>   <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_WORDS: Final = {
    **{word: f"_{word}" for word in ("NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS")},
    **dict.fromkeys(("CONTAINS", "STARTSWITH", "ENDSWITH"), "TEXT_TEST"),
}
_SIGNS: Final = {
    **dict.fromkeys((">", ">=", "<", "<="), "ORDER"),
    **{"=": "_EQUAL", "<>": "_UNEQUAL", "(": "_OPEN", ")": "_CLOSE", ",": "_COMMA", "+": "_PLUS", "-": "_MINUS"},
}


class SqlExpression:
    """A compiled filter.

    Attributes: text: the source; tokens: number of tokens, the cost of the test of a message.
    Thread: any.
    """

    __slots__ = ("_evaluate", "text", "tokens")

    def __init__(self, text: str, node: Node, tokens: int) -> None:
        self.text = text
        self.tokens = tokens
        self._evaluate = node.evaluate

    def evaluate(self, properties: Mapping[str, str]) -> bool | None:
        """Return the value for a message; None: unknown, or the evaluation failed."""
        try:
            value = self._evaluate(properties)
        except EvaluationFailed:
            return None
        return value if type(value) is bool else None

    def wants(self, properties: bytes) -> bool:
        """Return True if a message with this property string matches."""
        return self.evaluate(_properties.decode(properties)) is True


_kept: OrderedDict[str, SqlExpression | SqlError] = OrderedDict()
_kept_chars = 0
_lock = threading.Lock()


def compile_sql(text: str) -> SqlExpression:
    """Compile an expression; the latest expressions are cached, up to ``KEPT_CHARS_MAX`` of text.

    Raises: SqlError for an expression that RocketMQ refuses, or that is too long or too deep. Thread: any.
    """
    global _kept_chars
    if len(text) > SQL_CHARS_MAX:
        raise SqlError(f"expected an expression of at most {SQL_CHARS_MAX} characters, found {len(text)}")
    with _lock:
        compiled = _kept.get(text)
        if compiled is not None:
            _kept.move_to_end(text)
    if compiled is None:
        try:
            compiled = _compiled(text)
        except SqlError as error:
            compiled = error
        with _lock:
            _kept_chars += 0 if text in _kept else len(text)
            _kept[text] = compiled
            while _kept_chars > KEPT_CHARS_MAX:
                _kept_chars -= len(_kept.popitem(last=False)[0])
    if isinstance(compiled, SqlError):
        raise SqlError(*compiled.args)
    return compiled


def uncompiled(texts: Iterable[str]) -> list[str]:
    """Return the expressions that are not cached, without those that are too long to compile. Thread: any."""
    with _lock:
        return [text for text in texts if len(text) <= SQL_CHARS_MAX and text not in _kept]


def _compiled(text: str) -> SqlExpression:
    from lark import Token, UnexpectedInput

    parser, count = _parser().parse_interactive(), 0
    try:
        for kind, value in _tokens(text):
            try:
                parser.feed_token(Token(kind, value))
            except UnexpectedInput:
                break  # the end of the expression, or an invalid expression
            count += 1
        return SqlExpression(text, parser.feed_eof(), count)  # type: ignore[no-untyped-call]
    except UnexpectedInput:
        raise SqlError(f"expected an SQL92 condition, found {text!r:.200}") from None


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at, last_line = 0, max(text.rfind("\n"), text.rfind("\r"))
    while at < len(text):
        if at < last_line and text.startswith("--", at):  # a comment only if the line has an end
            at = _LINE_END.search(text, at).end()  # type: ignore[union-attr]
            continue
        match = _TOKEN.match(text, at)
        if match is None:
            raise SqlError(f"expected a word, number, text or sign at character {at}, found {text[at : at + 20]!r}")
        at = match.end()
        kind, value = match.lastgroup or "", match[0]
        if kind == "SIGN":
            kind = _SIGNS[value]
        elif kind == "ID":
            kind = _WORDS.get(value.upper(), kind) if value.isascii() else kind
        if kind != "SKIP":
            yield kind, value


def _text_of(token: str) -> str:
    return token[1:-1].replace("''", "'")


def _next_text(texts: list[str], token: str) -> list[str]:
    texts.append(_text_of(token))
    return texts


_RULES: Final[dict[str, Callable[..., Any]]] = {
    "start": nodes.condition,
    "either": nodes.either,
    "both": nodes.both,
    "equal": nodes.equal,
    "unequal": nodes.unequal,
    "is_null": nodes.is_null,
    "is_not_null": nodes.is_not_null,
    "ordered": lambda lhs, word, rhs: nodes.ordered(lhs, rhs, str(word)),
    "between": nodes.between,
    "not_between": nodes.not_between,
    "one_of": lambda node, texts: nodes.one_of(node, texts, negative=False),
    "none_of": lambda node, texts: nodes.one_of(node, texts, negative=True),
    "text_test": lambda node, word, text: nodes.text_test(node, word.upper(), _text_of(text), negative=False),
    "not_text_test": lambda node, word, text: nodes.text_test(node, word.upper(), _text_of(text), negative=True),
    "texts": lambda texts: texts,
    "first_text": lambda token: [_text_of(token)],
    "next_text": _next_text,
    "same": lambda node: node,
    "negated": nodes.negated,
    "opposite": nodes.opposite,
    "string": lambda token: nodes.constant(_text_of(token)),
    "whole": lambda token: nodes.whole(str(token)),
    "floating": lambda token: nodes.floating(str(token)),
    "true": lambda: nodes.constant(True),
    "false": lambda: nodes.constant(False),
    "null": lambda: nodes.constant(None),
    "property_of": lambda token: nodes.property_of(str(token)),
    "closed": nodes.closed,
}


@functools.cache
def _parser() -> Lark:
    from lark import Lark

    def of_children(build: Callable[..., Any]) -> Callable[[list[Any]], Any]:
        return lambda children: build(*children)

    callbacks: Any = SimpleNamespace(**{name: of_children(build) for name, build in _RULES.items()})
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", transformer=callbacks)
