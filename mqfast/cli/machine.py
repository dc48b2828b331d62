"""``mqfast doctor`` and ``mqfast bench``: print the results of ``mqfast.doctor`` and ``mqfast.bench.load``."""

from __future__ import annotations

import argparse

from mqfast.cli.arguments import Parser, system_path, whole
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.output import Output, visible

__all__ = ["add_commands"]


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``doctor`` and ``bench``."""
    look = rooms.add_parser(
        "doctor",
        help="tell what on this machine endangers a store or slows it",
        description="Look at filesystem, disk, limits and memory settings as a store at PATH would meet them. Changes "
        "nothing; writes a small file at PATH for a moment to measure syncs. Exit code 1: there is a danger.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    look.add_argument(
        "path", metavar="PATH", type=system_path, help="directory of the store, which need not be there yet"
    )
    look.add_argument("--json", action="store_true", help="print one JSON object a line")
    look.set_defaults(run=doctor, command="doctor")

    measure = rooms.add_parser("bench", help="measure puts on this machine", description="Measure on this machine.")
    measured = measure.add_subparsers(title="commands", metavar="COMMAND", required=True)
    load = measured.add_parser(
        "store",
        help="put into a new store for some seconds and tell rates and percentiles",
        description="Put into a new store for some seconds: half of them count messages, half take the time of every "
        "put. Page-cache speed (the put returned) and durable speed (the disk has it) are separate columns. "
        "`python -m mqfast.bench` measures more kinds of work.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    load.add_argument(
        "path",
        metavar="PATH",
        type=system_path,
        help="directory on the disk to measure; the store is made below it and removed again",
    )
    load.add_argument("--threads", type=whole, default=1, metavar="N", help="putting threads (default: 1)")
    load.add_argument("--size", type=whole, default=1024, metavar="BYTES", help="body of a message (default: 1024)")
    load.add_argument("--queues", type=whole, default=1, metavar="N", help="queues, in turn (default: 1)")
    load.add_argument(
        "--flush", choices=("async", "sync"), default="async", help="sync: a put ends when the disk has it"
    )
    load.add_argument("--seconds", type=float, default=5.0, metavar="S", help="so long altogether (default: 5)")
    load.add_argument(
        "--max-bytes",
        type=whole,
        metavar="BYTES",
        help="end earlier at so much log (default: 8 GiB, or a third of the disk)",
    )
    load.add_argument("--json", action="store_true", help="print one JSON object")
    load.set_defaults(run=bench, command="bench")


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Check the machine of a store."""
    from mqfast.doctor import examine

    out = Output(arguments.json)
    findings = examine(arguments.path)
    for finding in findings:
        if out.as_json:
            out.json(finding.to_json())
            continue
        style = {"danger": "bold red", "advice": "yellow", "ok": "green"}.get(finding.verdict)
        out.line(visible(f"{finding.verdict:8} {finding.name}: {finding.found}"), style)
        if finding.verdict != "ok" and finding.advice:
            out.line(f"         {visible(finding.advice)}")
    danger = any(finding.verdict == "danger" for finding in findings)
    return ExitCode.DAMAGE if danger else ExitCode.OK


def _bytes(rate: float) -> str:
    return f"{rate / 2**20:,.1f} MiB/s"


def _ns(ns: int) -> str:
    return f"{ns / 1e6:,.2f} ms" if ns >= 1_000_000 else f"{ns / 1e3:,.2f} us"


def bench(arguments: argparse.Namespace) -> ExitCode:
    """Put into a new store for some seconds, and print rates and percentiles."""
    from mqfast.bench.load import Load, run

    out = Output(arguments.json)
    load = Load(
        threads=arguments.threads,
        size=arguments.size,
        queues=arguments.queues,
        flush=arguments.flush,
        seconds=arguments.seconds,
        max_bytes=arguments.max_bytes,
    )
    with out.progress("measuring") as bar:
        result = run(arguments.path, load, None if bar is None else lambda done: bar(round(done * 1000), 1000))
    if out.as_json:
        out.json(result.to_json())
        return ExitCode.OK
    threads, queues = f"{load.threads} thread{'s'[: load.threads > 1]}", f"{load.queues} queue{'s'[: load.queues > 1]}"
    out.line(f"{load.size} bytes, {threads}, {queues}, {load.flush} flush, {result.messages:,} messages", "bold")
    cached, cached_bytes = result.page_cache_messages_per_s, result.page_cache_bytes_per_s
    rows: list[tuple[str, ...]] = [
        (
            "messages/s",
            "-" if cached is None else f"{cached:,.0f}",
            f"{result.durable_messages_per_s:,.0f}",
        ),
        (
            "body bytes/s",
            "-" if cached_bytes is None else _bytes(cached_bytes),
            _bytes(result.durable_bytes_per_s),
        ),
    ]
    for name in result.latency_ns or result.durable_latency_ns or {}:
        columns = (result.latency_ns, result.durable_latency_ns)
        rows.append((f"put {name}", *("-" if column is None else _ns(column[name]) for column in columns)))
    out.table(("", "page cache", "durable"), rows)
    for note in result.notes:
        out.note(note)
    return ExitCode.OK
