"""A process with our name server and one broker, for real clients: ``python broker_process.py STORE name=value ...``.

Settings of TLS are for both.

It prints ``NAMESRV_ADDR=host:port`` once both listen, and ends with SIGTERM.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.server import Broker
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer
from mqfast.remoting.loop import runner


async def main(store: str, *settings: str) -> None:
    changed = dict(one.split("=", 1) for one in settings)
    names = NamesrvConfig()
    names.update(
        {"kvConfigPath": f"{store}/kvConfig.json", "configStorePath": f"{store}/namesrv.properties", "listenPort": "0",
         **{name: value for name, value in changed.items() if name.startswith("tls.")}},
        "test",
    )  # fmt: skip
    server = NameServer(names)
    await server.start()
    host, port = server.address
    config = BrokerConfig()
    given = {
        "storePathRootDir": store, "namesrvAddr": f"{host}:{port}", "brokerName": "ours", "listenPort": "0",
        "brokerIP1": "127.0.0.1", "mappedFileSizeCommitLog": str(64 << 20),
    }  # fmt: skip
    given.update(changed)
    config.update(given, "test")
    broker = Broker(config)
    await broker.start()
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    print(f"NAMESRV_ADDR={host}:{port}", flush=True)
    await end.wait()
    await broker.stop()
    await server.stop()


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    with runner() as loop:
        loop.run(main(*sys.argv[1:]))
