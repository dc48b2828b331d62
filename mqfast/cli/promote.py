"""``mqfast broker --promote``: the plan of a promotion, the confirmation, and the steps before the broker starts.

Nothing is written before the plan was shown and confirmed. The broker is imported when the command runs.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from mqfast.cli.exit_codes import ExitCode
from mqfast.errors import UsageError

if TYPE_CHECKING:
    from mqfast.broker.config.broker_config import BrokerConfig

__all__ = ["add_options", "promoted"]


def add_options(sub: argparse.ArgumentParser) -> None:
    """Add the options of a promotion."""
    sub.add_argument("--promote", action="store_true", help="make a master of a slave's store, then run it as master")
    how = sub.add_mutually_exclusive_group()
    how.add_argument("--yes", action="store_true", help="with --promote: do not ask")
    how.add_argument("--dry-run", action="store_true", help="with --promote: only say what would be done, and end")
    sub.add_argument(
        "--accept-loss", action="store_true",
        help="with --promote: also if the log lacks bytes of its master, or is of another history; they are lost",
    )  # fmt: skip


def promoted(arguments: argparse.Namespace, config: BrokerConfig) -> ExitCode | None:
    """Show the plan, ask for confirmation, and apply the plan; the settings are those of a master then.

    Returns: the exit code; None if the broker shall start. Raises: UsageError without a terminal, or if etcd decides;
        as ``carry_out``.
    """
    if config["haEtcdEndpoints"]:
        raise UsageError("broker --promote: haEtcdEndpoints is set, so etcd says which broker is the master")
    from mqfast.broker.replication.epoch_check import living_masters
    from mqfast.cli.output import Output
    from mqfast.ha.promotion import carry_out, plan_promotion

    store_config = config.store_config()
    with Output(False).progress("checking") as progress:
        plan = plan_promotion(config.store_path, store_config, accept_loss=arguments.accept_loss, progress=progress)
    plan.refusals.extend(
        f"the master at {address} answers; end that broker first" for address in living_masters(config)
    )
    if not config.name_servers:
        plan.warnings.append("no name server is given: see yourself that the old master does not run")
    print(plan, file=sys.stderr, flush=True)
    if plan.refusals:
        return ExitCode.DAMAGE
    if arguments.dry_run:
        return ExitCode.OK
    if not arguments.yes and not _is_agreed():
        print("nothing was changed", file=sys.stderr)
        return ExitCode.OK
    carry_out(plan, store_config)
    config.become_master()
    print(
        f"promoted: epoch {plan.new_epoch}. Write brokerRole={config.store_keys['brokerRole']} and brokerId=0 into the "
        "settings of this broker before its next start",
        file=sys.stderr,
        flush=True,
    )
    return None


def _is_agreed() -> bool:
    if not sys.stdin.isatty():
        raise UsageError("broker --promote: expected --yes or --dry-run where nobody can be asked, found neither")
    print("carry this out? [y/N]", end=" ", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")
