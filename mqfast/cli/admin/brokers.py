"""``mqfast admin broker``: state and settings of a broker, cleaning, and the drain before a restart.

A change of settings shows the value before and after, and is made with ``--yes`` only.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin.commands import AdminCommands, print_changes, print_table, say_outcome
from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["add_commands", "rate_text"]

_PUTS: Final = "msgPutTotalTodayNow"
_STEP_S: Final = 0.5
_FIRST: Final = (
    "brokerVersionDesc", "brokerActive", "runtime", "putTps", "getTransferredTps", "msgPutTotalTodayNow",
    "msgGetTotalTodayNow", "commitLogDiskRatio", "consumeQueueDiskRatio", "dispatchBehindBytes",
    "remainHowManyDataToFlush", "putLatency99", "putLatency999", "pageCacheLockTimeMills", "earliestMessageTimeStamp",
)  # fmt: skip
_WHAT: Final = {
    "queues": "queue files whose messages are no longer in the log",
    "topics": "queues of topics that were deleted",
    "log": "log files older than fileReservedTime",
}


def add_commands(commands: AdminCommands) -> None:
    """Add the commands of the noun."""
    commands.add("show", show, "show what matters of a broker's measurements", _broker, example="broker-a")
    commands.add("runtime", runtime, "show all that a broker measures of itself", _broker, example="broker-a")
    commands.group("config", "settings of a broker", _add_config, first_word=_first_word)
    commands.add(
        "drain", drain, "take a broker out of the sends, and wait until nothing is written to it", _fill_drain,
        example="broker-a --wait 120 --yes", changes=True,
        more="Removes the write permission in the name servers; producers notice within 30 s. 'undrain' restores it.",
    )  # fmt: skip
    commands.add(
        "undrain", undrain, "let producers send to a broker again", _broker, example="broker-a --yes", changes=True
    )
    commands.add(
        "clean", clean, "make a broker remove what has expired, by its own rules", _fill_clean,
        example="broker-a queues --yes", changes=True,
    )  # fmt: skip


def _broker(sub: Parser) -> None:
    sub.add_argument("broker", metavar="BROKER", help="its name, or host:port")


def _first_word(words: list[str]) -> str:
    """Return the command of a former line ``broker config BROKER [NAME=VALUE ...]``."""
    return "set" if any("=" in word and not word.startswith("-") for word in words) else "get"


def _add_config(commands: AdminCommands) -> None:
    commands.add("get", config_get, "show the settings of a broker", _fill_get, example="broker-a flushDiskType")
    commands.add(
        "set", config_set, "change settings of a running broker; some act at the next start only", _fill_set,
        example="broker-a autoCreateTopicEnable=false --yes", changes=True,
    )  # fmt: skip
    commands.add(
        "diff", config_diff, "show the settings that differ between two brokers, or from RocketMQ's defaults",
        _fill_diff, example="broker-a broker-b",
    )  # fmt: skip


def _fill_get(sub: Parser) -> None:
    _broker(sub)
    sub.add_argument("names", metavar="NAME", nargs="*", help="only these (default: all)")


def _fill_set(sub: Parser) -> None:
    _broker(sub)
    sub.add_argument("changes", nargs="+", type=name_value, metavar="NAME=VALUE")


def _fill_diff(sub: Parser) -> None:
    _broker(sub)
    sub.add_argument("other", metavar="OTHER", nargs="?", help="(default: RocketMQ's defaults)")


def _fill_drain(sub: Parser) -> None:
    _broker(sub)
    sub.add_argument(
        "--quiet", type=float, metavar="SECONDS", default=35.0,
        help="so long nothing may be written (default: 35, a period of producers and 5 s)",
    )  # fmt: skip
    sub.add_argument("--wait", type=float, metavar="SECONDS", default=180.0, help="give up after (default: 180)")


def _fill_clean(sub: Parser) -> None:
    _broker(sub)
    sub.add_argument("what", choices=tuple(_WHAT))


# --- state ---


def rate_text(text: str | None) -> str:
    """Return the first of RocketMQ's three rates with a digit; ``?`` where the broker does not report them."""
    try:
        return f"{float(str(text).split(' ')[0]):.1f}"
    except ValueError:
        return "?"


def show(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the first measurements of a list."""
    values = admin.runtime(arguments.broker)
    return print_table(out, ("name", "value"), [(name, values[name]) for name in _FIRST if name in values])


def runtime(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show all measurements."""
    return print_table(out, ("name", "value"), list(admin.runtime(arguments.broker).items()))


# --- settings ---


def config_get(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show settings."""
    settings = admin.broker_config(arguments.broker)
    wanted = getattr(arguments, "names", None) or list(settings)
    missing = [name for name in wanted if name not in settings]
    if missing:
        from mqfast.util.near_names import did_you_mean

        raise ConfigError(f"broker {arguments.broker} has no setting {missing[0]}{did_you_mean(missing[0], settings)}")
    return print_table(out, ("name", "value"), [(name, settings[name]) for name in wanted])


def config_set(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change settings, or show the change; afterwards the broker is asked again."""
    settings = admin.broker_config(arguments.broker)
    changes = dict(arguments.changes)
    rows = [(name, settings.get(name, "-"), value) for name, value in changes.items()]
    print_table(out, ("name", "now", "then"), rows)
    if arguments.yes:
        admin.set_broker_config(arguments.broker, changes)
        after = admin.broker_config(arguments.broker)
        for name, value in changes.items():
            if after.get(name) != value:
                out.note(f"{name}: the broker took {value} and shows {after.get(name, '-')}")
    say_outcome(out, arguments)
    return ExitCode.OK


def config_diff(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show settings that differ. Exit code 1 where some differ between two brokers."""
    settings = dict(admin.broker_config(arguments.broker))
    if arguments.other is not None:
        count = print_changes(out, settings, dict(admin.broker_config(arguments.other)))
        return ExitCode.DAMAGE if count else ExitCode.OK
    from mqfast.broker.config.rocketmq_keys import ROCKETMQ_KEYS

    defaults = {name: str(ROCKETMQ_KEYS[name].default) for name in settings if name in ROCKETMQ_KEYS}
    rows = [
        (name, default, settings[name])
        for name, default in sorted(defaults.items())
        if settings[name].lower() != default.lower()
    ]
    return print_table(out, ("name", "default", "value"), rows) if rows else ExitCode.OK


# --- drain and cleaning ---


def drain(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Remove the write permission, and wait until the count of puts stands still."""
    name = _name(admin, arguments.broker)
    topics = [topic for topic, settings in admin.topic_configs(name).items() if int(settings.get("perm") or 0) & 2]
    out.note(
        f"broker {name}: write permission of {len(topics)} topics; {admin.runtime(name).get(_PUTS, '?')} puts today"
    )
    if not arguments.yes:
        say_outcome(out, arguments)
        return ExitCode.OK
    admin.wipe_write_perm(name)
    last, since = admin.runtime(name).get(_PUTS), time.monotonic()
    end = since + arguments.wait
    while time.monotonic() - since < arguments.quiet:
        if time.monotonic() > end:
            out.note(f"broker {name}: still written to after {arguments.wait:g} s; the permission stays removed")
            return ExitCode.DAMAGE
        time.sleep(min(_STEP_S, arguments.quiet))
        puts = admin.runtime(name).get(_PUTS)
        if puts != last:
            last, since = puts, time.monotonic()
    out.note(f"broker {name}: nothing was written for {arguments.quiet:g} s; it may be stopped")
    return ExitCode.OK


def undrain(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Restore the write permission."""
    name = _name(admin, arguments.broker)
    if arguments.yes:
        out.note(f"broker {name}: {admin.add_write_perm(name)} topics may be written")
    say_outcome(out, arguments)
    return ExitCode.OK


def _name(admin: AdminClient, broker: str) -> str:
    """Return the name of a broker that is given by name or address."""
    for brokers in admin.clusters().values():
        for name, addresses in brokers.items():
            if broker == name or broker in addresses.values():
                return name
    return broker  # the next request says which names there are


def clean(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Start the cleaning of a broker, or say what would be removed."""
    out.note(f"broker {arguments.broker}: {_WHAT[arguments.what]}")
    if arguments.yes:
        admin.clean(arguments.broker, arguments.what)
    say_outcome(out, arguments, "removed")
    return ExitCode.OK


def ha(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show replication, as ``mqfast ha status``."""
    from mqfast.cli.ha import status

    return status(admin, arguments, out)


def consume_stats(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the progress of all groups of a broker."""
    rows: list[tuple[Any, ...]] = []
    for group, queues in admin.all_progress(arguments.broker).items():
        for queue, row in queues.items():
            behind = max(0, row.end - row.committed)
            if behind >= getattr(arguments, "level", 0):
                rows.append((queue.topic, group, queue.queue_id, row.end, row.committed, behind, row.last_ms))
    return print_table(out, ("topic", "group", "queue", "end", "committed", "behind", "last consumed"), rows)
