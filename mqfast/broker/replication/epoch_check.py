"""The epochs of a broker's log: served (1007), stored from the master, compared with those of another master.

A restarted master whose name has a master with a newer epoch was replaced: it refuses messages and logs the steps to
take. Without a name server that knows the other master this cannot be detected. Each start of a master begins a term of
its epoch; a promotion or a fail-over begins an epoch. A term is on the disk before its first message is stored.

Source: AdminBrokerProcessor.getBrokerEpochCache, ReplicasManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from mqfast.errors import FieldError, RemotingError
from mqfast.ha.epoch_file import EpochEntry, EpochFile, first_wrong
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.remoting.client import RemotingClient
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.tls import client_context

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mqfast.broker.config.broker_config import BrokerConfig
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand
    from mqfast.store.message_store import MessageStore

__all__ = ["EpochCheck", "Rival", "Told", "epochs_of", "living_masters", "newer_master"]

_log = logging.getLogger("mqfast.broker")
_TIMEOUT_MS: Final = 1000
_MASTER: Final = "0"
_FOR_EVER: Final = 2**63 - 1


class _Epoch(Struct, rename="camel"):
    epoch: int
    start_offset: int
    end_offset: int = _FOR_EVER


class _EpochCache(Struct, rename="camel"):
    broker_id: int = 0
    broker_name: str = ""
    cluster_name: str = ""
    epoch_list: list[_Epoch] = []
    max_offset: int = 0
    mqfast_session: str = ""  # ignored by RocketMQ


class _Broker(Struct, rename="camel"):
    broker_addrs: dict[str, str] = {}


class _Cluster(Struct, rename="camel"):
    broker_addr_table: dict[str, _Broker] = {}


class Rival(NamedTuple):
    """Another master of this broker's name. ``epoch``: the newest epoch, NO_EPOCH without epochs."""

    address: str
    epoch: int


class Told(NamedTuple):
    """The epochs of another broker. ``session``: of a master of mqfast, empty for every other broker."""

    entries: list[EpochEntry]
    session: str = ""


async def brokers_of(client: RemotingClient, config: BrokerConfig) -> list[dict[str, str]]:
    """Return the brokers of this broker's name, id -> address, from each name server that answers."""

    async def query(name_server: str) -> dict[str, str]:
        try:
            answer = await client.call(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                return {}
            table = decode_body(bytes(answer.body), _Cluster, "cluster").broker_addr_table
        except (RemotingError, FieldError, ValueError):
            return {}
        broker = table.get(config["brokerName"])
        return {} if broker is None else broker.broker_addrs

    return list(await asyncio.gather(*(query(address) for address in config.name_servers)))


async def masters_of(client: RemotingClient, config: BrokerConfig) -> list[str]:
    """Return the addresses of masters of this broker's name from the name servers; none without an answer."""
    brokers = await brokers_of(client, config)
    return sorted({address for addresses in brokers if (address := addresses.get(_MASTER))})


async def slave_hosts_of(client: RemotingClient, config: BrokerConfig) -> set[str]:
    """Return the hosts of slaves of this broker's name from the name servers."""
    hosts: set[str] = set()
    for addresses in await brokers_of(client, config):
        for number, address in addresses.items():
            if number != _MASTER:
                host = address.rpartition(":")[0].strip("[]")
                with contextlib.suppress(OSError):  # a host name that cannot be resolved
                    known = await asyncio.get_running_loop().getaddrinfo(host, None)
                    hosts |= {str(entry[4][0]) for entry in known}
    return hosts


async def epochs_of(client: RemotingClient, address: str) -> Told | None:
    """Return the epochs of another broker, empty for a broker without epochs. Returns: None without an answer."""
    try:
        answer = await client.call(address, RequestCode.GET_BROKER_EPOCH_CACHE, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return Told([])  # RocketMQ without a controller
        cache = decode_body(bytes(answer.body), _EpochCache, f"epochs of {address}")
    except (RemotingError, FieldError, ValueError):
        return None
    return Told([EpochEntry(epoch.epoch, epoch.start_offset) for epoch in cache.epoch_list], cache.mqfast_session)


async def newer_master(client: RemotingClient, config: BrokerConfig, epoch: int, own: str = "") -> Rival | None:
    """Return a master of this broker's name with a newer epoch, None without such a master.

    Args: own: the address of this broker, which is skipped.
    """
    for address in await masters_of(client, config):
        if address == own:
            continue
        epochs = await epochs_of(client, address)
        if epochs is not None and epochs.entries and epochs.entries[-1].epoch > epoch:
            return Rival(address, epochs.entries[-1].epoch)
    return None


def living_masters(config: BrokerConfig) -> list[str]:
    """Return the addresses of masters of this broker's name that answer. Runs an event loop of its own."""

    async def query() -> list[str]:
        encrypted = config["tls.enable"] or config["useTLS"]
        client = RemotingClient(context=client_context(config.tls("client")) if encrypted else None)
        try:
            masters = await masters_of(client, config)
            return [address for address in masters if await epochs_of(client, address) is not None]
        finally:
            await client.close()

    return asyncio.run(query())


class EpochCheck:
    """The epochs of an open store.

    Attributes: ``session``: random id of this start of a master that serves slaves, else empty.
    Thread: that of the event loop.
    Raises: CorruptFile, StorageError.
    """

    def __init__(self, config: BrokerConfig, store: MessageStore) -> None:
        self.file: Final = EpochFile.load(store.os_api, store.path)
        self.file.end_at(max(0, store.engine.raw.end))
        self.session = ""
        self._config: Final = config
        self._store: Final = store

    @property
    def last(self) -> int:
        """Return the newest epoch."""
        return self.file.last_epoch

    def begin(self, epoch: int | None = None) -> None:
        """Begin a term before messages are stored, in ``epoch`` or in the newest epoch. Raises: StorageError."""
        raw, own = self._store.engine.raw, self._config["brokerId"]
        start, low = max(0, raw.end), max(0, raw.min_offset)
        if epoch is None:
            self.file.begin_term(start, own, low=low)
        else:
            self.file.begin(epoch, start, own, low=low)

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """Serve 1007: all epochs."""
        entries, config = self.file.entries, self._config
        if not entries and not self.session:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="this broker has no epochs")
        ends = [*(entry.start for entry in entries[1:]), _FOR_EVER]
        body = _EpochCache(
            config["brokerId"],
            config["brokerName"],
            config["brokerClusterName"],
            [_Epoch(entry.epoch, entry.start, end) for entry, end in zip(entries, ends, strict=False)],
            self._store.engine.raw.end,
            self.session,
        )
        return request.response(body=encode_body(body))

    def is_replaced(self, theirs: Sequence[EpochEntry]) -> bool:
        """Return True if the master's epoch is older than this slave's. False for RocketMQ, whose epochs are unknown.

        The records decide then. Raises: FieldError for epochs that no file can have.
        """
        if (wrong := first_wrong(theirs)) is not None:
            raise FieldError("epochs of the master", "numbers that grow", f"{wrong}")
        return bool(theirs) and theirs[-1].epoch < self.last


build_tables(__name__)
