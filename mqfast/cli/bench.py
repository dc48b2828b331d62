"""``mqfast bench``: prints what ``mqfast.bench.load`` measures. It must never measure anything itself."""

from __future__ import annotations

import argparse

from mqfast.cli.main import ExitCode
from mqfast.cli.output import Output

__all__ = ["bench"]


def _bytes(rate: float) -> str:
    return f"{rate / 2**20:,.1f} MiB/s"


def _ns(ns: int) -> str:
    return f"{ns / 1e6:,.2f} ms" if ns >= 1_000_000 else f"{ns / 1e3:,.2f} us"


def bench(arguments: argparse.Namespace) -> ExitCode:
    """Put into a new store for some seconds and tell rates and percentiles."""
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
