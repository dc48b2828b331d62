"""The epochs of a broker's log: told to others (1007), taken from the master, compared with a rival's.

A master that comes back while another broker of its name has a newer epoch was replaced: it takes no messages, and its
log says what to do. Where no name server knows the other one, nobody can tell.

Each start of a master begins a term of its epoch; a promotion or a fail-over begins an epoch.

Room: broker/replica. It must never let a message be stored before its term is on the disk. Source:
AdminBrokerProcessor.getBrokerEpochCache, ReplicasManager.
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
    mqfast_session: str = ""  # RocketMQ ignores it


class _Broker(Struct, rename="camel"):
    broker_addrs: dict[str, str] = {}


class _Cluster(Struct, rename="camel"):
    broker_addr_table: dict[str, _Broker] = {}


class Rival(NamedTuple):
    """Another broker that is the master of this broker's name. ``epoch``: its newest one, NO_EPOCH without epochs."""

    address: str
    epoch: int


class Told(NamedTuple):
    """What another broker tells of its epochs. ``session``: of a master of mqfast, empty of every other broker."""

    entries: list[EpochEntry]
    session: str = ""


async def brokers_of(client: RemotingClient, config: BrokerConfig) -> list[dict[str, str]]:
    """Broker id -> address of this broker's name, as each name server that answers gives them."""

    async def ask(name_server: str) -> dict[str, str]:
        try:
            answer = await client.call(name_server, RequestCode.GET_BROKER_CLUSTER_INFO, timeout_ms=_TIMEOUT_MS)
            if answer.code != ResponseCode.SUCCESS:
                return {}
            table = decode_body(bytes(answer.body), _Cluster, "cluster").broker_addr_table
        except (RemotingError, FieldError, ValueError):
            return {}
        broker = table.get(config["brokerName"])
        return {} if broker is None else broker.broker_addrs

    return list(await asyncio.gather(*(ask(one) for one in config.name_servers)))


async def masters_of(client: RemotingClient, config: BrokerConfig) -> list[str]:
    """The addresses that the name servers give for the master of this broker's name; none where nobody answers."""
    found = await brokers_of(client, config)
    return sorted({address for one in found if (address := one.get(_MASTER))})


async def slave_hosts_of(client: RemotingClient, config: BrokerConfig) -> set[str]:
    """The addresses of machines with slaves of this broker's name, as the name servers give them."""
    found: set[str] = set()
    for addresses in await brokers_of(client, config):
        for number, address in addresses.items():
            if number != _MASTER:
                host = address.rpartition(":")[0].strip("[]")
                with contextlib.suppress(OSError):  # a name that nobody resolves
                    known = await asyncio.get_running_loop().getaddrinfo(host, None)
                    found |= {str(one[4][0]) for one in known}
    return found


async def epochs_of(client: RemotingClient, address: str) -> Told | None:
    """The epochs of another broker; none where the broker has no epochs. Returns: None where nobody answers there."""
    try:
        answer = await client.call(address, RequestCode.GET_BROKER_EPOCH_CACHE, timeout_ms=_TIMEOUT_MS)
        if answer.code != ResponseCode.SUCCESS:
            return Told([])  # RocketMQ without a controller
        found = decode_body(bytes(answer.body), _EpochCache, f"epochs of {address}")
    except (RemotingError, FieldError, ValueError):
        return None
    return Told([EpochEntry(one.epoch, one.start_offset) for one in found.epoch_list], found.mqfast_session)


async def newer_master(client: RemotingClient, config: BrokerConfig, epoch: int, own: str = "") -> Rival | None:
    """A master of this broker's name whose epoch is newer.

    Args: own: the address of this broker, which is not asked.
    """
    for address in await masters_of(client, config):
        if address == own:
            continue
        told = await epochs_of(client, address)
        if told is not None and told.entries and told.entries[-1].epoch > epoch:
            return Rival(address, told.entries[-1].epoch)
    return None


def living_masters(config: BrokerConfig) -> list[str]:
    """The addresses of masters of this broker's name that answer. Starts an event loop of its own."""

    async def ask() -> list[str]:
        encrypted = config["tls.enable"] or config["useTLS"]
        client = RemotingClient(context=client_context(config.tls("client")) if encrypted else None)
        try:
            found = await masters_of(client, config)
            return [address for address in found if await epochs_of(client, address) is not None]
        finally:
            await client.close()

    return asyncio.run(ask())


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
        """The newest epoch."""
        return self.file.last_epoch

    def begin(self, epoch: int | None = None) -> None:
        """This broker stores messages from now on: in an epoch, without one in the newest. Raises: StorageError."""
        raw, own = self._store.engine.raw, self._config["brokerId"]
        start, low = max(0, raw.end), max(0, raw.min_offset)
        if epoch is None:
            self.file.begin_term(start, own, low=low)
        else:
            self.file.begin(epoch, start, own, low=low)

    def answer(self, channel: Channel, request: RemotingCommand) -> RemotingCommand:
        """1007: all epochs."""
        entries, config = self.file.entries, self._config
        if not entries and not self.session:
            return request.response(ResponseCode.SYSTEM_ERROR, remark="this broker has no epochs")
        ends = [*(entry.start for entry in entries[1:]), _FOR_EVER]
        body = _EpochCache(
            config["brokerId"],
            config["brokerName"],
            config["brokerClusterName"],
            [_Epoch(one.epoch, one.start, end) for one, end in zip(entries, ends, strict=False)],
            self._store.engine.raw.end,
            self.session,
        )
        return request.response(body=encode_body(body))

    def is_replaced(self, theirs: Sequence[EpochEntry]) -> bool:
        """Is the master's epoch older than this slave's? A broker of RocketMQ tells no epochs: the records say.

        Raises: FieldError for epochs that no file can hold.
        """
        if (wrong := first_wrong(theirs)) is not None:
            raise FieldError("epochs of the master", "numbers that grow", f"{wrong}")
        return bool(theirs) and theirs[-1].epoch < self.last


build_tables(__name__)
