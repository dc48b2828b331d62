"""``mqfast up``: a name server and a broker in one process, for development.

asyncio and the servers are imported when the command runs, so that other commands start fast.
"""

from __future__ import annotations

import argparse
import errno
from typing import TYPE_CHECKING, Any, Final

from mqfast.cli.arguments import Parser, name_value
from mqfast.cli.broker import add_log_options, broker_banner, config_of, print_warnings, with_extra
from mqfast.cli.exit_codes import EXIT_CODES, ExitCode

if TYPE_CHECKING:
    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.broker.server import Broker
    from mqfast.namesrv.namesrv_config import NamesrvConfig
    from mqfast.namesrv.server import NameServer

__all__ = ["add_commands"]

# A broker's log files are a gigabyte each, and two are preallocated.
_SMALL: Final = {"mappedFileSizeCommitLog": str(64 << 20)}


def add_commands(rooms: argparse._SubParsersAction[Parser]) -> None:
    """Add ``up``."""
    sub = rooms.add_parser(
        "up",
        help="run a name server and a broker in one process, for development",
        description="Run a name server and a broker in one process until SIGTERM or control-C. Topics and groups are "
        "made when they are used. Both listen on 127.0.0.1 unless --host says otherwise. Needs the extra "
        "mqfast[broker].",
        epilog=EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sub.add_argument("--namesrv-port", metavar="PORT", default="9876", help="(default: 9876; 0: a free one)")
    sub.add_argument("--broker-port", metavar="PORT", default="10911", help="(default: 10911; 0: a free one)")
    sub.add_argument("--store", metavar="DIR", default="mqfast-store", help="(default: mqfast-store, here)")
    sub.add_argument("--host", metavar="ADDRESS", default="127.0.0.1", help="bindAddress of both (default: 127.0.0.1)")
    add_log_options(sub)
    sub.add_argument(
        "settings", nargs="*", type=name_value, metavar="NAME=VALUE", help="settings of the broker, by RocketMQ's names"
    )
    sub.places_anywhere = True
    sub.set_defaults(run=run, command="up", conf=None, namesrv=None)


# Settings of the broker that the name server shares, besides those of TLS.
_SHARED: Final = frozenset({"proxyProtocolEnable", "connectionsMax"})


def _encrypt(config: BrokerConfig, names: NamesrvConfig) -> None:
    """Set the broker's TLS for a name server that accepts TLS only."""
    if names["tls.server.mode"].strip().lower() != "enforcing":
        return
    given = config.given()
    wanted = {"tls.enable": "true"}
    if names["tls.server.need.client.auth"].strip().lower() == "require":
        for word in ("certPath", "keyPath", "keyPassword"):
            wanted[f"tls.client.{word}"] = names[f"tls.server.{word}"]
    of_file = config.tls("client")
    config.update(
        {name: text for name, text in wanted.items() if text and name not in given and name not in of_file}, "mqfast up"
    )


class _Both:
    """The name server first, since the broker registers there."""

    def __init__(self, namesrv: NameServer, make_broker: Any) -> None:
        self._namesrv = namesrv
        self._make_broker = make_broker
        self.broker: Broker | None = None

    async def start(self) -> None:
        """Start to serve."""
        await self._namesrv.start()
        self.broker = self._make_broker(*self._namesrv.address)
        assert self.broker is not None
        await self.broker.start()

    async def stop(self) -> None:
        """Stop."""
        if self.broker is not None:
            await self.broker.stop()
        await self._namesrv.stop()

    def banner(self) -> str:
        """Return the address to use, and a summary of the broker."""
        from mqfast.broker.config.broker_address import with_port
        from mqfast.grpc import IS_BUILT

        assert self.broker is not None
        host, port = self._namesrv.address
        shown = self.broker.announced.host if host in ("0.0.0.0", "::") else host
        tls = "" if self._namesrv.tls == "off" else f" (TLS: {self._namesrv.tls})"
        grpc = f"ENDPOINTS={self.broker.context.address}\n" if IS_BUILT else ""
        return f"NAMESRV_ADDR={with_port(shown, port)}{tls}\n{grpc}{broker_banner(self.broker)}"


def run(arguments: argparse.Namespace) -> ExitCode:
    """Serve."""
    try:
        from mqfast.broker.config.broker_logs import start_logging
        from mqfast.broker.server import Broker
        from mqfast.namesrv.server import NameServer
    except ModuleNotFoundError as error:
        raise with_extra("up", error) from None
    from mqfast.broker.config.broker_address import with_port
    from mqfast.cli.serving import other_store, serve
    from mqfast.namesrv.namesrv_config import NamesrvConfig
    from mqfast.remoting.loop import runner

    given = {"listenPort": arguments.broker_port, "bindAddress": arguments.host, "storePathRootDir": arguments.store}
    arguments.settings = [*_SMALL.items(), *given.items(), *arguments.settings]
    config = config_of(arguments)
    print_warnings(config, strict=False)
    names = NamesrvConfig()
    names.update({name: str(text).lower() for name, text in config.given().items() if name in _SHARED}, "mqfast up")
    names.update(config.tls("server"), "mqfast up")
    _encrypt(config, names)
    names.update(
        {
            "listenPort": arguments.namesrv_port,
            "bindAddress": arguments.host,
            "kvConfigPath": f"{config.store_path}/namesrv/kvConfig.json",
            "configStorePath": f"{config.store_path}/namesrv/namesrv.properties",
        },
        "command line",
    )

    def make_broker(host: str, port: int) -> Broker:
        local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        config.update({"namesrvAddr": with_port(local, port)}, "mqfast up")
        return Broker(config)

    start_logging(json_lines=arguments.log_json, level=arguments.log_level)
    both = _Both(NameServer(names), make_broker)
    try:
        with runner() as loop, other_store("--store DIR"):
            loop.run(serve(both, both.banner))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        hint = "another server runs there, a second mqfast up perhaps; --namesrv-port and --broker-port choose others"
        said = error.strerror or ""
        said = said if "VIP port" in said else f"{said}; {hint} (0: a free one)"
        raise OSError(errno.EADDRINUSE, said.replace("another listenPort", "another --broker-port")) from None
    return ExitCode.OK
