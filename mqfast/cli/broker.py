"""``mqfast broker``: a broker until SIGTERM or control-C.

asyncio and the broker are imported when the command runs, so that other commands start fast.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import TYPE_CHECKING

from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode
from mqfast.cli.promote import add_options, promoted
from mqfast.errors import ConfigError

if TYPE_CHECKING:
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.server import Broker

__all__ = ["add_commands", "broker_banner", "config_of", "print_warnings", "with_extra"]

_PRECEDENCE = """settings, the later counts: RocketMQ's defaults, the variables NAMESRV_ADDR and ROCKETMQ_HOME, the
file of -c, variables ROCKETMQ_<KEY> as ROCKETMQ_LISTEN_PORT, the command line"""


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``broker``."""
    sub = rooms.add_parser(
        "broker",
        help="run a broker",
        description="Run a broker for RocketMQ's producers and consumers until SIGTERM or control-C, on the store at "
        "storePathRootDir (default: ~/store). It listens on 127.0.0.1 unless bindAddress says otherwise. Needs the "
        "extra mqfast[broker].",
        epilog=f"{_PRECEDENCE}\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("-c", "--conf", metavar="FILE", help="property file with RocketMQ's names, as broker.conf")
    sub.add_argument("-n", "--namesrv", metavar="ADDRESS", help="namesrvAddr: name servers, between semicolons")
    sub.add_argument("-p", "--print-config", action="store_true", help="print the settings and end")
    sub.add_argument("--strict", action="store_true", help="do not start when a setting is unknown")
    sub.add_argument("--check-store", metavar="DIR", help="say what would differ for a Java broker's store, and end")
    add_options(sub)
    add_log_options(sub)
    sub.add_argument(
        "settings", nargs="*", type=name_value, metavar="NAME=VALUE", help="settings; they go before those of -c"
    )
    sub.places_anywhere = True
    sub.set_defaults(run=run, command="broker")


def add_log_options(sub: argparse.ArgumentParser) -> None:
    """Add the options of the log on stderr."""
    sub.add_argument("--log-json", action="store_true", help="log one JSON object a line")
    sub.add_argument(
        "--log-level", metavar="LEVEL", default="INFO", type=str.upper,
        choices=("DEBUG", "INFO", "WARNING", "ERROR"), help="DEBUG, INFO (default), WARNING or ERROR",
    )  # fmt: skip


def with_extra(what: str, error: ModuleNotFoundError) -> Exception:
    """Return the error for a missing module of an extra."""
    if error.name in ("msgspec", "lark", "yaml"):
        return ConfigError(f"mqfast {what} needs {error.name}: pip install 'mqfast[broker]'")
    return error


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve, or print the settings."""
    config = config_of(arguments)
    if arguments.print_config:
        print(config.text(), end="")
        return ExitCode.OK
    if arguments.check_store is not None:
        from mqfast.broker.config.migration_check import check_store

        findings = check_store(arguments.check_store, config)
        for finding in findings:
            print(finding)
        return ExitCode.DAMAGE if any(finding.refuses for finding in findings) else ExitCode.OK
    if not config.name_servers:
        config.warnings.append(
            "no name server: clients and other brokers find this broker by none; -n or namesrvAddr names one"
        )
    print_warnings(config, strict=arguments.strict)
    try:
        from mqfast.broker.config.broker_logs import start_logging
        from mqfast.broker.server import Broker
    except ModuleNotFoundError as error:
        raise with_extra("broker", error) from None
    if arguments.promote and (ended := promoted(arguments, config)) is not None:
        return ended
    from mqfast.cli.serving import other_store, serve
    from mqfast.remoting.loop import runner

    start_logging(json_lines=arguments.log_json, level=arguments.log_level)
    if config["haEtcdEndpoints"]:
        from mqfast.broker.replication.failover_broker import FailoverBroker

        async def serve_either() -> None:
            either = FailoverBroker(config)
            await serve(either, lambda: broker_banner(either.broker))
    else:
        broker = Broker(config)

        async def serve_either() -> None:
            await serve(broker, lambda: broker_banner(broker))

    with runner() as loop, other_store("storePathRootDir=DIR"):
        loop.run(serve_either())
    return ExitCode.OK


def config_of(arguments: argparse.Namespace) -> BrokerConfig:
    """Return the settings of all sources, in their order. Raises: ConfigError, OSError."""
    from mqfast.broker.config.broker_config import BrokerConfig

    config = BrokerConfig()
    config.update_defaults(os.environ)
    if arguments.conf:
        config.read_file(arguments.conf)
    config.update_environment(os.environ)
    config.update(dict(arguments.settings), "command line")
    if arguments.namesrv:
        config.update({"namesrvAddr": arguments.namesrv}, "command line")
    return config


def print_warnings(config: BrokerConfig, *, strict: bool) -> None:
    """Print warnings about settings without effect. Raises: ConfigError with ``strict`` for unknown settings."""
    for line in config.warnings:
        with contextlib.suppress(OSError):  # a full disk loses the lines, not the server
            print(f"mqfast: {line}", file=sys.stderr)
    if strict and config.unknown:
        raise ConfigError(f"unknown settings: {', '.join(config.unknown)}")


def broker_banner(broker: Broker) -> str:
    """Return the lines at the start: addresses, registration and retention."""
    from mqfast import __version__
    from mqfast.broker.config.broker_address import with_port

    config, context = broker.config, broker.context
    host, port = broker.address
    if host in ("127.0.0.1", "::1"):
        reach = "this machine only; bindAddress=0.0.0.0 opens it"
    else:
        reach = "every interface" if host in ("0.0.0.0", "::") else "that interface"
    registered = context.registration.registered
    servers = [f"{server}{'' if registered.get(server) else ' (not registered)'}" for server in config.name_servers]
    store = context.store.config
    if store.retention_rules.rocketmq:
        kept = (
            f"files of {store.file_reserved_time_hours} h are deleted at {store.delete_when} o'clock, and from "
            f"{store.disk_max_used_space_percent:g} % of the disk on"
        )
    else:
        kept = "kept for ever" if store.retention in (None, "never") else str(store.retention)
    on = {True: "on", False: "off"}
    return (
        f"mqfast broker {__version__}, {config['brokerName']} of {config['brokerClusterName']}, listens on "
        f"{with_port(host, port)} ({reach})\n"
        f"  announced: {context.address} ({broker.announced.why}); name servers: {', '.join(servers) or 'none'}\n"
        f"  store: {config.store_path}; {store.flush_disk_type}; messages: {kept}\n"
        f"  TLS: {broker.tls}; replication: {broker.parts.replicas.ha.policy}\n"
        f"  automatic topics: {on[config['autoCreateTopicEnable']]}, groups: "
        f"{on[config['autoCreateSubscriptionGroup']]}; access control: {broker.access.policy}"
    )
