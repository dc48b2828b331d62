"""The work of mqadmin's names that no noun form does in one step: several brokers, a choice of forms, send times.

Each function fits its arguments to those of a noun form, and calls it.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.admin import access, brokers, cluster, groups, messages, name_servers, offsets
from mqfast.cli.admin import topics as topic_commands
from mqfast.cli.admin.commands import client_arguments, print_table, say_outcome
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = [
    "account", "change_name_servers", "change_setting", "clean", "configs", "export", "find", "group", "ha", "progress",
    "reset", "round_trips", "runtimes", "stats_all", "topics", "wipe",
]  # fmt: skip

_AMOUNT_MAX: Final = 1_000_000
_SIZE_MAX: Final = 4 << 20


def topics(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """List topics: names, or with ``-c`` a table."""
    return (topic_commands.ls if arguments.more else topic_commands.names)(admin, arguments, out)


def _one_or_all(admin: AdminClient, arguments: argparse.Namespace) -> list[str]:
    """Return the broker of ``-b``, or the masters of ``-c``. Raises: ConfigError without both."""
    if arguments.broker is None and arguments.cluster is None:
        raise ConfigError("expected -b BROKER or -c CLUSTER, found none")
    return access.masters(admin, arguments)


def runtimes(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the measurements of brokers."""
    names = _one_or_all(admin, arguments)
    rows = [(broker, *pair) for broker in names for pair in admin.runtime(broker).items()]
    return print_table(out, ("broker", "name", "value"), rows)


def configs(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the settings of brokers."""
    names = _one_or_all(admin, arguments)
    rows = [(broker, *pair) for broker in names for pair in admin.broker_config(broker).items()]
    return print_table(out, ("broker", "name", "value"), rows)


def change_setting(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change a setting of brokers."""
    arguments.changes = [(arguments.key, arguments.value)]
    for broker in _one_or_all(admin, arguments):
        arguments.broker = broker
        brokers.config_set(admin, arguments, out)
    return ExitCode.OK


def change_name_servers(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Change a setting of all name servers."""
    arguments.changes = [(arguments.key, arguments.value)]
    return name_servers.config_set(admin, arguments, out)


def wipe(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Remove the write permission of a broker without a wait."""
    if arguments.yes:
        out.note(f"broker {arguments.broker}: {admin.wipe_write_perm(arguments.broker)} topics are not written now")
    say_outcome(out, arguments)
    return ExitCode.OK


def ha(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show replication."""
    return brokers.ha(admin, arguments, out)


def clean(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Start a cleaning at a broker, or at all masters."""
    for broker in access.masters(admin, arguments):
        arguments.broker = broker
        brokers.clean(admin, arguments, out)
    return ExitCode.OK


def progress(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the progress of a group, or of all groups without ``-g``."""
    return (groups.show if arguments.group else groups.ls)(admin, arguments, out)


def group(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create or change a group by the given flags."""
    given = {
        name.removeprefix("set_"): value for name, value in vars(arguments).items()
        if name.startswith("set_") and value is not None
    }  # fmt: skip
    arguments.orderly = given.pop("consumeMessageOrderly", False)
    arguments.retry_max = given.pop("retryMaxTimes", 16)
    arguments.settings = given
    return groups.create(admin, arguments, out)


def reset(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Reset a group by time, or to an offset of a queue."""
    arguments.to_time = arguments.to_offset = None
    if arguments.offset is not None:
        arguments.to = ("offset", arguments.offset)
    if arguments.queue is None:
        arguments.broker = None
    return offsets.reset(admin, arguments, out)


def find(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Print a message by id; with a group and a client the client consumes it now."""
    code = messages.find(admin, arguments, out)
    if arguments.group and arguments.client and code == ExitCode.OK:
        message = admin.find(arguments.topic, msg_id=arguments.id)[0]
        result = admin.consume_directly(message, arguments.group, arguments.client)
        print_table(out, ("result", "spent ms", "remark"), [(result["result"], result["spent_ms"], result["remark"])])
    return code


def account(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Create or change an account of ACL 1.0 by the given flags."""
    arguments.changes = [
        (name.removeprefix("set_"), value) for name, value in vars(arguments).items()
        if name.startswith("set_") and value is not None
    ]  # fmt: skip
    return access.account_set(admin, arguments, out)


def export(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Write the picture of the cluster into a folder."""
    os.makedirs(arguments.directory, exist_ok=True)
    arguments.file = os.path.join(arguments.directory, "cluster.json")
    return cluster.export(admin, arguments, out)


def stats_all(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show the counters of topics and groups: rate of the last minute, sum of a day."""
    rows: list[tuple[Any, ...]] = []
    for topic in [arguments.topic] if arguments.topic else admin.topics():
        names = list(admin.topic_config(topic))
        puts = [rates for name in names if (rates := admin.counter(name, "TOPIC_PUT_NUMS", topic)) is not None]
        in_rate, in_day = sum(rates["minute"].tps for rates in puts), _day(puts)
        if arguments.active and not in_rate:
            continue
        for consumer_group in admin.topic_groups(topic) or [""]:
            key = f"{topic}@{consumer_group}"
            gets = [rates for name in names if (rates := admin.counter(name, "GROUP_GET_NUMS", key)) is not None]
            out_rate = sum(rates["minute"].tps for rates in gets)
            rows.append((topic, consumer_group or "-", round(in_rate, 2), round(out_rate, 2), in_day, _day(gets)))
    return print_table(out, ("topic", "group", "in per s", "out per s", "in a day", "out a day"), rows)


def _day(counters: list[Any]) -> int:
    """Return the sum of a day; of an hour or a minute for a broker that runs for a shorter time."""
    return sum(next((rates[w].sum for w in ("day", "hour", "minute") if rates[w].sum), 0) for rates in counters)


def round_trips(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Send messages, and show how long the sends took. Without a topic: to the topic of each broker's name."""
    from mqfast.client.producer.producer import Producer

    for what, number, limit in (("amount", arguments.amount, _AMOUNT_MAX), ("size", arguments.size, _SIZE_MAX)):
        if not 1 <= number <= limit:
            raise ConfigError(f"--{what}: expected 1 to {limit}, found {number}")
    rows = []
    with Producer("CLI_PRODUCER", **client_arguments(arguments)) as producer:
        for topic in [arguments.topic] if arguments.topic else access.masters(admin, arguments):
            admin.topic_config(topic)
            times = []
            for _ in range(arguments.amount):
                start = time.perf_counter()
                producer.send(topic, b"a" * arguments.size)
                times.append((time.perf_counter() - start) * 1000)
            times.sort()
            at = [times[min(len(times) - 1, int(len(times) * part))] for part in (0.5, 0.99)]
            rows.append((topic, len(times), *(round(ms, 3) for ms in (times[0], *at, times[-1]))))
    return print_table(out, ("topic", "sends", "least ms", "p50 ms", "p99 ms", "most ms"), rows)
