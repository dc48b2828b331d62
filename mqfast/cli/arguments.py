"""The arguments that several commands share: their parser, their types, and where a store is looked for.

It must never open a store. A command adds itself by ``Commands.add``; what it does is in the file of its group.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from mqfast.cli.exit_codes import EXIT_CODES, ExitCode

__all__ = ["STORE_VARIABLE", "Commands", "Parser", "name_value", "subcommands", "text_or_regex", "time_ms", "whole"]

STORE_VARIABLE: Final = "MQFAST_STORE"
"""Environment variable that names the store where a command line does not."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and whose options may stand between the positional arguments."""

    may_leave_out_path = False

    def error(self, message: str) -> NoReturn:
        """End with the exit code of wrong arguments."""
        # argparse would print the usage as well; every error of this command is one line.
        print(f"mqfast: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """As argparse, after the positional arguments were put behind the options, and PATH before them where the
        environment names it.
        """
        given = list(sys.argv[1:] if args is None else args)
        if self.may_leave_out_path:
            options, places, divider = self._divided(given)
            store = os.environ.get(STORE_VARIABLE)
            if store and not self._begins_with_path(places):
                places.insert(0, store)
            given = [*options, *divider, *places]
        return super().parse_known_args(given, namespace)

    def _divided(self, given: list[str]) -> tuple[list[str], list[str], list[str]]:
        """Options with their values, positional arguments, and ``--`` where the user gave one."""
        options: list[str] = []
        places: list[str] = []
        rest = iter(given)
        for text in rest:
            if text == "--":
                return options, [*places, *rest], ["--"]
            if not text.startswith("-") or text == "-":
                places.append(text)
                continue
            options.append(text)
            if "=" not in text and self._takes_value(text):
                options.extend(value for value in [next(rest, None)] if value is not None)
        return options, places, []

    def _takes_value(self, text: str) -> bool:
        known = {name: action for action in self._actions for name in action.option_strings}
        if text in known:
            return known[text].nargs != 0
        meant = {id(action): action for name, action in known.items() if name.startswith(text)}
        return len(meant) == 1 and next(iter(meant.values())).nargs != 0

    def _begins_with_path(self, places: list[str]) -> bool:
        others = [action for action in self._actions if not action.option_strings][1:]
        least = sum(action.nargs not in ("?", "*") for action in others)
        if len(places) <= least:
            return False
        if all(action.nargs is None for action in others):
            return True
        first = places[0]  # a topic has no slash
        return "/" in first or first.startswith(".") or os.path.isdir(first)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Name -> parser of the commands of a parser; empty when it has none."""
    found: dict[str, Parser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found.update(action.choices)
    return found


def whole(text: str) -> int:
    """A number of at least 0."""
    number = int(text)
    if number < 0:
        raise ValueError("expected at least 0")
    return number


def time_ms(text: str) -> int:
    """Milliseconds since the epoch, of a number of them or of an ISO 8601 text; local time where it names no zone."""
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"expected milliseconds since the epoch, or ISO 8601 as 2026-01-31T12:00 (local time) or "
            f"2026-01-31T12:00+00:00, found {text!r}"
        ) from None


def name_value(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("expected NAME=VALUE")
    return name, value


def text_or_regex(text: str) -> re.Pattern[bytes]:
    """What ``--grep`` looks for: a text as it is, or a regular expression between slashes (``/.../``, ``/.../i``)."""
    pattern, flags = re.escape(text), 0
    found = re.fullmatch(r"/(.+)/(i?)", text, re.DOTALL)
    if found is not None:
        pattern, flags = found[1], re.IGNORECASE if found[2] else 0
    try:
        return re.compile(os.fsencode(pattern), flags)
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression between slashes, found {text!r} ({error})"
        ) from None


# argparse names the function in its message.
whole.__name__ = "number"
time_ms.__name__ = "time"
name_value.__name__ = "NAME=VALUE"


class Commands:
    """The commands of ``mqfast store``: each gets PATH, ``--json`` and ``--conf``.

    Args: ``action`` is what argparse gave for the group.
    """

    def __init__(self, action: argparse._SubParsersAction[Parser]) -> None:
        self._action = action
        common = self.common = Parser(add_help=False)
        path = os.environ.get(STORE_VARIABLE, "").replace("%", "%%")
        common.add_argument(
            "path",
            metavar="PATH",
            help=f"directory of the store (RocketMQ: storePathRootDir); may be left out where {STORE_VARIABLE} names it"
            + (f", as it does now: {path}" if path else ""),
        )
        common.add_argument("--json", action="store_true", help="print one JSON object a line")
        common.add_argument(
            "--conf", metavar="FILE", help="broker.conf of the store, where its files do not tell their sizes"
        )
        self.body = Parser(add_help=False)
        self.body.add_argument(
            "--body",
            choices=("auto", "text", "hex", "raw", "none"),
            default="auto",
            help="show bodies as text, as hex, or not (default: text where it is text); raw: nothing but the bytes of "
            "the bodies, as they are stored",
        )
        self.body.add_argument(
            "--separator",
            metavar="TEXT",
            default="\\n",
            help=r"with --body raw, what follows each body: text with \n, \t, \0, \xNN, or '' (default: \n)",
        )

    def add(
        self,
        run: Callable[[argparse.Namespace], ExitCode],
        text: str,
        *parents: Parser,
        more: str = "",
        name: str | None = None,
    ) -> argparse.ArgumentParser:
        """A command named like its function.

        Args: text: one line of what it does; parents: further parsers whose arguments it takes; more: for its help.
        """
        word = name or run.__name__
        sub = self._action.add_parser(
            word,
            help=text,
            description=f"{text[0].upper()}{text[1:]}. {more}".strip(),
            parents=[self.common, *parents],
            epilog=EXIT_CODES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.may_leave_out_path = True
        sub.set_defaults(run=run, command=word)
        return sub
