"""Arguments of several commands: the parser, the types, and the path of the store.

A command registers by ``Commands.add``; its work is in the file of the group. No store is opened.
"""

from __future__ import annotations

import argparse
import codecs
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NoReturn

from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.util.near_names import did_you_mean

__all__ = [
    "STORE_VARIABLE",
    "Commands",
    "LazyParser",
    "Parser",
    "add_confirmation",
    "add_ends",
    "name_value",
    "subcommands",
    "tag_expression",
    "time_ms",
    "whole",
    "within_calendar",
]

STORE_VARIABLE: Final = "MQFAST_STORE"
"""Environment variable with the path of the store, for a command line without a path."""


def _knows_ascii_only() -> bool:
    # The C locale, unless Python was set to UTF-8 or to another locale.
    return codecs.lookup(sys.getfilesystemencoding()).name == "ascii"


def decoded(argv: Sequence[str]) -> list[str]:
    """Return the command line as text: names in a store are UTF-8, in the C locale as well."""
    return (
        [os.fsencode(text).decode("utf-8", "surrogateescape") for text in argv] if _knows_ascii_only() else list(argv)
    )


def argument_bytes(text: str) -> bytes:
    """Return the bytes of the command line."""
    return text.encode("utf-8", "surrogateescape") if _knows_ascii_only() else os.fsencode(text)


def system_path(text: str) -> str:
    """Return a path for Python's own functions, which know the characters of the locale only."""
    return os.fsdecode(argument_bytes(text))


class Parser(argparse.ArgumentParser):
    """A parser with errors of one line, whose options may stand between the positional arguments."""

    may_leave_out_path = False
    places_anywhere = False

    def error(self, message: str) -> NoReturn:
        """End with the exit code of wrong arguments."""
        # argparse would print the usage as well; every error of this command is one line.
        print(f"mqfast: {message} (see {self.prog} --help)", file=sys.stderr)
        raise SystemExit(ExitCode.USAGE)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse, with the positional arguments moved behind the options, and with PATH from the
        environment.
        """
        given = list(sys.argv[1:] if args is None else args)
        if self.may_leave_out_path:
            options, places, divider = self._divided(given)
            store = os.environ.get(STORE_VARIABLE)
            if store and not self._begins_with_path(places):
                places[:0] = decoded([store])
            given = [*options, *divider, *places]
        elif self.places_anywhere:
            options, places, divider = self._divided(given)
            given = [*options, *divider, *places]
        return super().parse_known_args(given, namespace)

    def _divided(self, given: list[str]) -> tuple[list[str], list[str], list[str]]:
        """Split arguments into options with their values, positional arguments, and ``--`` if given."""
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
                value = next(rest, None)
                if value is not None and _NEGATIVE.match(value):  # argparse would take the value for an option
                    options[-1] = f"{text}={value}"
                elif value is not None:
                    options.append(value)
        return options, places, []

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Check as argparse; an unknown command is an error with the nearest command."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            meant = did_you_mean(str(value), action.choices, cutoff=0.5)
            shown = [choice.dest for choice in action._choices_actions] or list(action.choices)
            raise argparse.ArgumentError(
                None, f"{self.prog}: expected a command of {', '.join(shown)}, found {value!r}{meant}"
            )
        super()._check_value(action, value)

    def _takes_value(self, text: str) -> bool:
        known = {name: action for action in self._actions for name in action.option_strings}
        if text in known:
            return known[text].nargs != 0
        meant = {id(action): action for name, action in known.items() if name.startswith(text)}
        return len(meant) == 1 and next(iter(meant.values())).nargs != 0

    def _begins_with_path(self, places: list[str]) -> bool:
        others = [action for action in self._actions if not action.option_strings][1:]
        min_values = sum(action.nargs not in ("?", "*") for action in others)
        if len(places) <= min_values:
            return False
        if all(action.nargs is None for action in others):
            return True
        first = places[0]
        typed = argument_bytes(first)
        if len(places) > len(others) and not any(action.nargs in ("*", "+") for action in others):
            return True
        if any(action.metavar == "FILE" for action in others):
            return os.path.isdir(typed) or (len(places) > 1 and not os.path.exists(typed))
        return "/" in first or first.startswith(".") or os.path.isdir(typed)  # a topic has no slash


class LazyParser(Parser):
    """A parser whose options and commands are made when a line or a help needs them.

    Args: fill: adds them, and may be None; first_word: returns the command of a line that names none; former: former
        commands, each with the words that replace it; takes_anything: arguments are not read.
    """

    def __init__(
        self,
        *,
        fill: Callable[[LazyParser], None] | None = None,
        first_word: Callable[[list[str]], str] | None = None,
        former: Mapping[str, Sequence[str]] | None = None,
        takes_anything: bool = False,
        **given: Any,
    ) -> None:
        self.__dict__["_waiting"] = (fill, given)
        self.first_word = first_word
        self.former = former or {}
        self.takes_anything = takes_anything

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_waiting" not in self.__dict__:
            raise AttributeError(name)
        self._build()
        return getattr(self, name)

    def _build(self) -> None:
        if "_waiting" in self.__dict__:
            fill, given = self.__dict__.pop("_waiting")
            super().__init__(**given)
            if fill is not None:
                fill(self)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse; a line without a word of a command gets the first word."""
        self._build()
        given = list(sys.argv[1:] if args is None else args)
        if self.takes_anything and given[:1] not in (["-h"], ["--help"]):
            given = []
        if given and given[0] in self.former:
            given[:1] = self.former[given[0]]
        if self.first_word is not None and given[:1] not in (["-h"], ["--help"]):
            words = next(action.choices for action in self._actions if isinstance(action, argparse._SubParsersAction))
            if not given or given[0] not in words:
                given.insert(0, self.first_word(given))
        return super().parse_known_args(given, namespace)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, Parser]:
    """Return name -> parser of the commands of a parser; empty without commands."""
    parsers: dict[str, Parser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parsers.update(action.choices)
    return parsers


def add_confirmation(parser: argparse.ArgumentParser, *others: str) -> None:
    """Add ``--yes`` and ``--dry-run``: a change is shown, and made with ``--yes`` only. Args: others: old options."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--yes", *others, dest="yes", action="store_true", help="do it; without, nothing is changed")
    how.add_argument("--dry-run", action="store_true", help="only say what would be done (the default)")


def add_ends(group: argparse._MutuallyExclusiveGroup) -> None:
    """Add ``--to-earliest`` and ``--to-latest``."""
    group.add_argument("--to-earliest", "--to-first", action="store_true", help="the first message that is there")
    group.add_argument("--to-latest", "--to-last", action="store_true", help="behind the last message")


def whole(text: str) -> int:
    """Parse a number of at least 0 that has 63 bits."""
    number = int(text)
    if not 0 <= number < 1 << 63:
        raise ValueError("expected at least 0 and 63 bits")
    return number


_NEGATIVE: Final = re.compile(r"-\d")
_AGO: Final = re.compile(r"-(\d{1,9})([smhd])")
_LAST_MS: Final = 253_402_128_000_000  # 9999-12-30, a datetime in every zone
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def time_ms(text: str) -> int:
    """Parse milliseconds since the epoch, from a number, an ISO 8601 text (local time without a zone), an age or
    ``now``; see ``within_calendar``.
    """
    return within_calendar(_any_time_ms(text))


def within_calendar(time_ms: int) -> int:
    """Return the time, or the end of the calendar that is nearest: programs write the largest number for no limit."""
    return min(max(time_ms, 0), _LAST_MS)


def _any_time_ms(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    if text == "now":
        return round(time.time() * 1000)
    if ago := _AGO.fullmatch(text):
        return round(time.time() * 1000) - int(ago[1]) * _UNITS_MS[ago[2]]
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise argparse.ArgumentTypeError(
            f"expected milliseconds since the epoch, or ISO 8601 as 2026-01-31T12:00 (local time) or "
            f"2026-01-31T12:00+00:00, or an age as -2h (units s, m, h, d), or now, found {text!r}"
        ) from None


def name_value(text: str) -> tuple[str, str]:
    """Parse ``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError("expected NAME=VALUE")
    return name, value


def regex(text: str) -> re.Pattern[bytes]:
    """Parse a regular expression over the bytes of a body; a text of letters and digits matches literally."""
    try:
        return re.compile(argument_bytes(text))
    except re.error as error:
        raise argparse.ArgumentTypeError(
            f"expected a regular expression, found {text!r} ({error}); give a text as it is by --grep-text"
        ) from None


def plain_text(text: str) -> re.Pattern[bytes]:
    """Parse a literal text to search for in the bytes of a body."""
    return re.compile(re.escape(argument_bytes(text)))


def tag_expression(text: str) -> str:
    """Parse ``A || B``: a message matches if its tag is in the list, as in RocketMQ."""
    if "&&" in text:
        raise argparse.ArgumentTypeError(
            f"expected tags joined by || ('A || B'), found {text!r}: a message has one tag, so none has both"
        )
    if re.search(r"(?<!\|)\|(?!\|)", text):
        raise argparse.ArgumentTypeError(f"expected tags joined by || ('A || B'), found {text!r}")
    return text


_ESCAPES: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


def separator(text: str) -> bytes:
    r"""Return the bytes of a text with the escapes ``\n``, ``\r``, ``\t``, ``\0``, ``\\`` and ``\xNN``."""

    def escape(match: re.Match[bytes]) -> bytes:
        if match[1]:
            return bytes.fromhex(match[1].decode())
        if match[2] not in _ESCAPES:
            raise argparse.ArgumentTypeError(rf"expected \n, \r, \t, \0, \\ or \xNN as escapes, found {text!r}")
        return _ESCAPES[match[2]]

    return re.sub(rb"\\(?:x([0-9a-fA-F]{2})|(.|$))", escape, argument_bytes(text), flags=re.DOTALL)


# argparse names the function in its message.
whole.__name__ = "number"
time_ms.__name__ = "time"
name_value.__name__ = "NAME=VALUE"


class Commands:
    """The commands of ``mqfast store``, each with PATH, ``--json`` and ``--conf``.

    Args: ``action``: result of argparse for the group.
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
            type=separator,
            metavar="TEXT",
            help=r"what follows each body of --body raw: text with \n, \t, \0, \xNN (default: \n, and nothing for get)",
        )
        self.body.add_argument("--sha256", action="store_true", help="tell the SHA-256 of each body as well")
        self.times = Parser(add_help=False)
        zone = time.strftime("%Z")
        self.times.add_argument(
            "--begin",
            type=time_ms,
            metavar="TIME",
            help="earliest store time: ms since the epoch, or ISO 8601 as 2026-01-31T12:00, which is local time "
            f"({zone}) unless it ends with a zone as +00:00",
        )
        self.times.add_argument("--end", type=time_ms, metavar="TIME", help="latest store time, itself included")
        self.grep = Parser(add_help=False)
        what = self.grep.add_mutually_exclusive_group()
        what.add_argument(
            "--grep", type=regex, metavar="REGEX", help="only messages in whose body, unpacked, this matches"
        )
        what.add_argument(
            "--grep-text", dest="grep", type=plain_text, metavar="TEXT", help="the same for a text as it is"
        )

    def add(
        self,
        run: Callable[[argparse.Namespace], ExitCode],
        text: str,
        *parents: Parser,
        more: str = "",
        name: str | None = None,
    ) -> argparse.ArgumentParser:
        """Add a command with the name of its function.

        Args: text: one line of description; parents: further parsers with arguments; more: text of the help.
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
