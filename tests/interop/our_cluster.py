"""Our name server and broker in a thread of the test, for stock clients and tools beside.

Room: tests/interop. The store is a directory of the test; everything ends with ``stop``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from mqfast.broker.config.broker_config import BrokerConfig
from mqfast.broker.server import Broker
from mqfast.namesrv.namesrv_config import NamesrvConfig
from mqfast.namesrv.server import NameServer

WAIT_S = 60


class OurCluster:
    """One name server and one broker, ``brk`` of the cluster ``golden``.

    Attributes: ``namesrv``, ``address``: ``host:port`` of both.
    """

    def __init__(self, work: Path, port: int, **settings: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        names = NamesrvConfig()
        names.update({"listenPort": "0", "kvConfigPath": str(work / "kv.json")}, "test")
        self._namesrv = NameServer(names)
        self._run(self._namesrv.start())
        self.namesrv = "{}:{}".format(*self._namesrv.address)
        given = {
            "brokerClusterName": "golden", "brokerName": "brk", "brokerIP1": "127.0.0.1", "listenPort": port,
            "namesrvAddr": self.namesrv, "storePathRootDir": str(work / "store"), **settings,
        }  # fmt: skip
        config = BrokerConfig()
        config.update({name: str(value) for name, value in given.items()}, "test")
        self.broker = Broker(config)
        self._run(self.broker.start())
        self.address = "{}:{}".format(*self.broker.address)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)

    def stop(self) -> None:
        """End both, and the thread."""
        self._run(self.broker.stop())
        self._run(self._namesrv.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()
