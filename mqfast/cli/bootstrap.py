"""``mqfast ha bootstrap``: an operator chooses the master where etcd's record of the name cannot.

Nothing is written before the plan was shown and ``--yes`` was given. The client of etcd is imported when the command
runs.
"""

from __future__ import annotations

import argparse
import sys

from mqfast.cli.arguments import Parser, add_confirmation, name_value
from mqfast.cli.broker import config_of
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.errors import ConfigError

__all__ = ["add_bootstrap"]


def add_bootstrap(commands: argparse._SubParsersAction[Parser]) -> None:
    """Add ``ha bootstrap``."""
    sub = commands.add_parser(
        "bootstrap",
        help="say which broker leads, where etcd has no record",
        description="Say which broker of a name leads, where etcd has lost its record, or the brokers in sync are gone "
        "for good. Takes the settings of a broker of that name. Shows the plan; --yes carries it out.",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("-c", "--conf", metavar="FILE", help="settings of a broker of that name, as broker.conf")
    sub.add_argument("--leader", type=int, metavar="ID", help="its brokerId (default: the newest copy)")
    sub.add_argument(
        "--accept-loss", action="store_true", help="also where other brokers have, or may have, more messages"
    )
    add_confirmation(sub)
    sub.add_argument(
        "settings", nargs="*", type=name_value, metavar="NAME=VALUE", help="settings; they go before those of -c"
    )
    sub.places_anywhere = True
    sub.set_defaults(run=run, command="ha bootstrap", namesrv=None)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Show the plan, and apply the plan. Raises: ConfigError, EtcdUnreachable."""
    from mqfast.ha.failover.bootstrap import carry_out_bootstrap, plan_bootstrap
    from mqfast.ha.failover.etcd import Etcd, endpoints_of, tls_context
    from mqfast.ha.failover.etcd_state import Keys
    from mqfast.ha.failover.leader_election import read_view

    config = config_of(arguments)
    if not config["haEtcdEndpoints"]:
        raise ConfigError("haEtcdEndpoints: expected members of etcd, found none; -c FILE names a broker's settings")
    keys = Keys.of(config["haEtcdPrefix"], config["brokerClusterName"], config["brokerName"])
    context = tls_context(config["haEtcdCaFile"], config["haEtcdCertFile"], config["haEtcdKeyFile"])
    etcd = Etcd(endpoints_of(config["haEtcdEndpoints"]), 3.0, context)
    try:
        plan = plan_bootstrap(
            config["brokerName"], read_view(etcd, keys), leader=arguments.leader, named=config.broker_ids(),
            accept_loss=arguments.accept_loss,
        )  # fmt: skip
        print(plan, flush=True)
        if plan.refusals:
            return ExitCode.DAMAGE
        if not arguments.yes:
            print("nothing was changed; --yes does it", file=sys.stderr)
            return ExitCode.OK
        carry_out_bootstrap(etcd, keys, plan)
    finally:
        etcd.close()
    print(f"done: broker {plan.leader} leads once it has seen the record")
    return ExitCode.OK
