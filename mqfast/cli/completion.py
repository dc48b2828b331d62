"""``mqfast completion``: completion scripts of shells, generated from the parser.

All commands and options come from the parser, and a script does not run the command.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from typing import Final, NamedTuple

from mqfast.cli.arguments import Parser, subcommands
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode

__all__ = ["add_command", "script"]

_HOW: Final = """bash:  source <(mqfast completion bash)               in ~/.bashrc
zsh:   source <(mqfast completion zsh)                in ~/.zshrc, behind compinit
fish:  mqfast completion fish | source                in ~/.config/fish/config.fish
"""


def add_command(rooms: argparse._SubParsersAction[Parser], parser: Parser) -> None:
    """Add ``completion``, for all commands that the parser has by then."""
    command = rooms.add_parser(
        "completion",
        help="print a script with which a shell completes this command",
        description=f"Print a script with which a shell completes this command.\n\n{_HOW}",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("shell", choices=("bash", "zsh", "fish"))

    def run(arguments: argparse.Namespace) -> ExitCode:
        print(script(arguments.shell, parser), end="")
        return ExitCode.OK

    command.set_defaults(run=run, command="completion")


class _Level(NamedTuple):
    """The possible next words after some words of the command: words, options, and values of options."""

    words: tuple[str, ...]
    further: tuple[str, ...]
    helps: dict[str, str]
    options: dict[str, argparse.Action]


def _levels(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[_Level]:
    options = {name: action for action in parser._actions for name in action.option_strings}
    helps: dict[str, str] = {}
    further: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            further += action.choices
            helps.update({choice.dest: choice.help or "" for choice in action._choices_actions})
        elif not action.option_strings and action.choices is not None:
            further += map(str, action.choices)
    yield _Level(words, tuple(further), helps, options)
    for name, sub in subcommands(parser).items():
        yield from _levels(sub, (*words, name))


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Return the script for ``bash``, ``zsh`` or ``fish``."""
    levels = list(_levels(parser))
    return _fish(levels) if shell == "fish" else _bash(levels, shell == "zsh")


def _bash(levels: list[_Level], zsh: bool) -> str:
    lines = ["# made by: mqfast completion " + ("zsh" if zsh else "bash")]
    if zsh:
        lines.append("autoload -U +X bashcompinit && bashcompinit")
    # The words of the command so far lead to a level; what follows an option that takes a value is that value.
    lines += [
        "_mqfast() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" last="" level="" known="" i',
        "    COMPREPLY=()",
        "    for ((i = 1; i < COMP_CWORD; i++)); do",
        '        last="${COMP_WORDS[i]}"',
        '        case "$level/$last" in',
    ]
    known = "|".join(shlex.quote(_path(level.words)) for level in levels if level.words)
    lines += [
        f'            {known}) level="$level/$last" ;;',
        "        esac",
        "    done",
        '    last="${COMP_WORDS[COMP_CWORD-1]}"',
    ]
    lines.append('    case "$level $last" in')
    lines += [f"        {'|'.join(patterns)}) {reply} return ;;" for reply, patterns in _replies(levels).items()]
    lines += ["    esac", '    case "$level" in']
    for level in levels:
        text = " ".join([*level.further, *level.options])
        lines.append(f"        {shlex.quote(_path(level.words))}) known={shlex.quote(text)} ;;")
    lines += [
        "    esac",
        '    COMPREPLY=($(compgen -W "$known" -- "$word"))',
        '    if [ "${#COMPREPLY[@]}" -eq 0 ]; then COMPREPLY=($(compgen -f -- "$word")); fi',
        "}",
        "complete -o filenames -F _mqfast mqfast",
    ]
    return "\n".join(lines) + "\n"


def _replies(levels: list[_Level]) -> dict[str, list[str]]:
    """Return reply -> patterns of ``level option``; an option with the same reply everywhere is a single pattern."""
    by_name: dict[str, dict[str, str]] = {}
    for level in levels:
        for name, action in level.options.items():
            by_name.setdefault(name, {})[_path(level.words)] = "-" if action.nargs == 0 else _reply(action)
    replies: dict[str, list[str]] = {}
    for name, places in by_name.items():
        if set(places.values()) == {"-"}:
            continue
        if len(set(places.values())) == 1:
            replies.setdefault(next(iter(places.values())), []).append(f"*{shlex.quote(' ' + name)}")
            continue
        for path, reply in places.items():
            if reply != "-":
                replies.setdefault(reply, []).append(shlex.quote(f"{path} {name}"))
    return replies


def _reply(action: argparse.Action) -> str:
    """Return the completion of an option's value: its choices, a file, or nothing."""
    if action.choices is not None:
        return f'COMPREPLY=($(compgen -W {shlex.quote(" ".join(map(str, action.choices)))} -- "$word"));'
    return 'COMPREPLY=($(compgen -f -- "$word"));' if action.metavar == "FILE" else ""


def _path(words: tuple[str, ...]) -> str:
    return "".join(f"/{word}" for word in words)


def _fish(levels: list[_Level]) -> str:
    lines = ["# made by: mqfast completion fish"]
    for level in levels:
        seen = [f"__fish_seen_subcommand_from {word}" for word in level.words]
        unseen = f"not __fish_seen_subcommand_from {' '.join(level.further)}" if level.further else ""
        where = "; and ".join(filter(None, [*seen, unseen])) or "true"
        start = f"complete -c mqfast -n {shlex.quote(where)}"
        for word in level.further:
            lines.append(f"{start} -f -a {word} -d {shlex.quote(level.helps.get(word, ''))}")
        done = set()
        for action in level.options.values():
            if id(action) in done:
                continue
            done.add(id(action))
            names = " ".join(f"-l {n[2:]}" if n.startswith("--") else f"-s {n[1:]}" for n in action.option_strings)
            value = "" if action.nargs == 0 else " -r"
            if action.choices is not None:
                value = f" -x -a {shlex.quote(' '.join(map(str, action.choices)))}"
            text = " ".join((action.help or "").replace("%%", "%").split())
            lines.append(f"{start} {names}{value} -d {shlex.quote(text)}")
    return "\n".join(lines) + "\n"
