"""``mqfast doctor``: prints what ``mqfast.doctor`` finds on this machine. It must never judge anything itself."""

from __future__ import annotations

import argparse

from mqfast.cli.main import ExitCode
from mqfast.cli.output import Output, visible

__all__ = ["doctor"]


def doctor(arguments: argparse.Namespace) -> ExitCode:
    """Look at the machine around a store."""
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
    return ExitCode.DAMAGE_OR_NOTHING if danger else ExitCode.OK
