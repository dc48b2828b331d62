"""``mqfast admin top``: rates of brokers and lag of groups, again and again until control-C.

Costs two requests a broker and round. On a terminal with rich (the extra mqfast[cli]) the picture is redrawn; else each
round is printed.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mqfast.cli.admin.brokers import rate_text
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, visible
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.client.admin.admin_client import AdminClient

__all__ = ["top"]

_BROKER_HEADS = ("broker", "in per s", "out per s", "puts today", "disk", "flush behind", "put p99 ms")
_GROUP_HEADS = ("group", "behind", "change per s", "topics")


def top(admin: AdminClient, arguments: argparse.Namespace, out: Output) -> ExitCode:
    """Show pictures until control-C, or ``--rounds`` of them."""
    if not 0.05 <= arguments.interval <= 3600:
        raise ConfigError(f"--interval: expected 0.05 to 3600 seconds, found {arguments.interval}")
    rounds = itertools.islice(_pictures(admin, arguments), arguments.rounds)
    if out.as_json:
        for brokers, groups in rounds:
            out.json({"brokers": [dict(zip(_BROKER_HEADS, row, strict=True)) for row in brokers],
                      "groups": [dict(zip(_GROUP_HEADS, row, strict=True)) for row in groups]})  # fmt: skip
            sys.stdout.flush()
        return ExitCode.OK
    if sys.stdout.isatty():
        try:
            from rich.console import Group
            from rich.live import Live
        except ImportError:
            out.note("without rich (pip install 'mqfast[cli]') each round is printed")
        else:
            with Live(auto_refresh=False, screen=arguments.rounds is None) as live:
                for brokers, groups in rounds:
                    live.update(Group(_rich(_BROKER_HEADS, brokers), "", _rich(_GROUP_HEADS, groups)), refresh=True)
            return ExitCode.OK
    for brokers, groups in rounds:
        out.table(_BROKER_HEADS, brokers)
        out.line("")
        out.table(_GROUP_HEADS, groups)
        out.line("")
        sys.stdout.flush()
    return ExitCode.OK


def _pictures(
    admin: AdminClient, arguments: argparse.Namespace
) -> Iterator[tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]]:
    """Yield (rows of brokers, rows of groups), one each interval."""
    before: dict[str, int] = {}
    before_s = 0.0
    for number in itertools.count():
        if number:
            time.sleep(arguments.interval)
        now_s = time.monotonic()
        brokers, behind, topics = _round(admin)
        groups = []
        for group, count in sorted(behind.items(), key=lambda pair: (-pair[1], pair[0]))[: arguments.rows]:
            rate = round((count - before[group]) / (now_s - before_s), 1) if group in before else "-"
            groups.append((group, count, rate, len(topics[group])))
        yield brokers, groups
        before, before_s = behind, now_s


def _round(admin: AdminClient) -> tuple[list[tuple[Any, ...]], dict[str, int], dict[str, set[str]]]:
    brokers: list[tuple[Any, ...]] = []
    behind: dict[str, int] = {}
    topics: dict[str, set[str]] = {}
    for table in admin.clusters().values():
        for broker in table:
            values = admin.runtime(broker)
            rates = [rate_text(values.get(name)) for name in ("putTps", "getTransferredTps")]
            names = ("msgPutTotalTodayNow", "commitLogDiskRatio", "remainHowManyDataToFlush", "putLatency99")
            brokers.append((broker, *rates, *(values.get(name, "?") for name in names)))
            for group, queues in admin.all_progress(broker).items():
                if queues:
                    lag = sum(max(0, row.end - row.committed) for row in queues.values())
                    behind[group] = behind.get(group, 0) + lag
                    topics.setdefault(group, set()).update(queue.topic for queue in queues)
    return brokers, behind, topics


def _rich(heads: tuple[str, ...], rows: list[tuple[Any, ...]]) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold", pad_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*(Text(visible(str(cell))) for cell in row))
    return table
