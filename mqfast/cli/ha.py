"""``mqfast ha``: lag of slaves behind their masters, as text and as JSON; ``bootstrap`` is in a separate file.

Nothing is changed. The client is imported when a command runs.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.commands import AdminCommands, print_table
from mqfast.cli.arguments import LazyParser, Parser
from mqfast.cli.bootstrap import add_bootstrap
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode, exit_code_of
from mqfast.cli.output import Output
from mqfast.errors import BrokerError, CallTimeout, ConfigError, ConnectionLost

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient
    from mqfast.client.admin.brokers import HaStatus, SlaveStatus

__all__ = ["add_commands"]

_WORDS: Final = {
    "IN_SYNC": "in sync",
    "BEHIND": "far behind",
    "TRANSFER": "follows",
    "READY": "not connected",
    "DIVERGED": "has another log",
    "SHUTDOWN": "stopped",
}
_HEADS: Final = ("broker", "told by", "slave", "state", "offset", "behind", "lag", "last contact", "error")


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``ha``."""
    room = rooms.add_parser(
        "ha",
        help="replication of a running cluster",
        description="Replication of a running cluster. 'status' needs the extra mqfast[client].",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    both: argparse._SubParsersAction[Any] = room.add_subparsers(
        title="commands", metavar="COMMAND", required=True, parser_class=LazyParser
    )
    add_bootstrap(both)
    commands = AdminCommands(both, "ha ")
    commands.add(
        "status",
        status,
        "show how far slaves are",
        lambda sub: sub.add_argument("broker", metavar="BROKER", nargs="?", help="its name, or host:port"),
        example="broker-a",
        more="A master says how far each connected slave is, a slave how it follows. Brokers of RocketMQ 4.9 say "
        "nothing of it, those of 5.x no lag in time.",
    )


def status(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the slaves of every broker."""
    rows: list[tuple[Any, ...]] = []
    code = ExitCode.OK
    for name, address in list(_wanted(admin, arguments.broker)):
        try:
            master = admin.ha_status(address)
        except (BrokerError, CallTimeout, ConnectionLost) as error:
            out.note(f"broker {name}, {address}: {error}")
            code = exit_code_of(error)
            continue
        rows += [_row(out, name, master, slave) for slave in master.slaves]
        if master.is_master and not master.slaves:
            out.note(f"broker {name}, {address}: no slave is connected")
    shown = print_table(out, _HEADS, rows) if rows else ExitCode.NOTHING_FOUND
    return code if code is not ExitCode.OK else shown


def _wanted(admin: AdminClient, broker: str | None) -> Iterator[tuple[str, str]]:
    """Return (name, address) of the selected brokers. Raises: ConfigError without such a broker."""
    known = [
        (name, address)
        for brokers in admin.clusters().values()
        for name, addresses in brokers.items()
        for _, address in sorted(addresses.items())
    ]
    wanted = [pair for pair in known if broker is None or broker in pair]
    if not wanted:
        names = ", ".join(sorted({name for name, _ in known})) or "none"
        raise ConfigError(f"broker: expected one of {names}, or an address of one, found {broker}")
    yield from wanted


def _row(out: Output, name: str, master: HaStatus, slave: SlaveStatus) -> tuple[Any, ...]:
    told_by = "master" if master.is_master else "slave"
    if out.as_json:
        times = (_seconds(slave.behind), _seconds(slave.last_contact))
        return (name, told_by, slave.address, slave.state, slave.offset, slave.behind_bytes, *times, slave.error)
    contact = "never" if slave.last_contact is None and not master.is_master else f"{_age(slave.last_contact)} ago"
    state = _WORDS.get(slave.state, slave.state)
    if slave.state == "IN_SYNC" and slave.behind_bytes:
        state = "near"
    return (
        name, told_by, slave.address, state, slave.offset, _size(slave.behind_bytes), _age(slave.behind), contact,
        slave.error or "-",
    )  # fmt: skip


def _seconds(age: timedelta | None) -> float | None:
    return None if age is None else age.total_seconds()


def _age(age: timedelta | None) -> str:
    """Return an age to the second, or to the millisecond below ten seconds."""
    if age is None:
        return "-"
    seconds = age.total_seconds()
    return f"{seconds:.3f} s" if seconds < 10 else str(timedelta(seconds=int(seconds)))


def _size(count: int) -> str:
    if count < 1024:
        return f"{count} B"
    power = min(4, (count.bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {'KMGT'[power - 1]}iB"
