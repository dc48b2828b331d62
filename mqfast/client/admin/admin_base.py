"""The base of all subjects of administration: the server of a request, and checks of the response.

Nothing about a cluster is cached: a cluster may have changed since the last call. A response that cannot be decoded is
an error with code, remark and address, as a refusal is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from mqfast.client.admin.checks import checked_text, known_name, nearest
from mqfast.client.net.request_steps import Request, RequestSteps, checked, read_answer
from mqfast.errors import (
    CallTimeout,
    ClientConfigError,
    ClientError,
    ConnectionLost,
    FieldError,
    NoRoute,
)
from mqfast.remoting.bodies import decode_body
from mqfast.remoting.codes import RequestCode
from mqfast.util.java_text import java_number

if TYPE_CHECKING:
    from mqfast.client.net.instance import ClientInstance
    from mqfast.client.route.route_table import TopicRoute
    from mqfast.remoting.command import RemotingCommand

__all__ = ["MASTER", "AdminBase", "BrokerInfo", "Clusters", "read_field"]

T = TypeVar("T")
MASTER: Final = 0


class BrokerInfo(NamedTuple):
    """A broker name with the cluster, and an address for each broker id."""

    name: str
    cluster: str
    addresses: Mapping[int, str]

    @property
    def master(self) -> str:
        """Return the address for changes. Raises: ClientError where there is no master."""
        if MASTER not in self.addresses:
            raise ClientError(
                f"broker {self.name}: expected a master, the name servers know only {dict(self.addresses)}"
            )
        return self.addresses[MASTER]

    @property
    def any(self) -> str:
        """Return the address for reads: the master, else the slave with the lowest id."""
        return self.addresses[min(self.addresses)]


class Clusters(NamedTuple):
    """All brokers that the name servers know, by name."""

    brokers: Mapping[str, BrokerInfo]

    @property
    def names(self) -> list[str]:
        """Return the names of the clusters."""
        return sorted({broker.cluster for broker in self.brokers.values()})

    def of(self, cluster: str | None) -> list[BrokerInfo]:
        """Return the brokers of a cluster, or all. Raises: ConfigError for an unknown cluster."""
        if cluster is not None:
            known_name("cluster", cluster, self.names)
        return [broker for _, broker in sorted(self.brokers.items()) if cluster in (None, broker.cluster)]

    def of_the_one(self, cluster: str | None) -> list[BrokerInfo]:
        """Return the brokers for a change without a cluster's name: those of the only cluster.

        Raises: ConfigError where there are several; NoRoute where no broker is registered.
        """
        if cluster is None and not self.names:
            raise NoRoute("expected a broker, the name servers know none: it may not have started yet")
        if cluster is None and len(self.names) != 1:
            names = ", ".join(self.names)
            raise ClientConfigError(f"cluster: expected the name of one, because there are {len(self.names)}: {names}")
        return self.of(cluster)

    def master_of(self, broker: str) -> BrokerInfo:
        """Return the broker with a name, or whose master has an address. Raises: UnknownName."""
        masters = {info.addresses[MASTER]: info for info in self.brokers.values() if MASTER in info.addresses}
        if broker in masters:
            return masters[broker]
        return self.brokers[known_name("broker", broker, self.brokers.keys() or masters.keys())]

    def address_of(self, broker: str) -> str:
        """Return the address of a broker name, or the address itself where a broker has it. Raises: ConfigError."""
        addresses = {address for info in self.brokers.values() for address in info.addresses.values()}
        if broker in addresses:
            return broker
        return self.brokers[known_name("broker", broker, self.brokers.keys() or addresses)].any


class AdminBase:
    """The base of all subjects. Thread: that of the client."""

    _instance: ClientInstance
    _timeout_s: float

    # --- one server ---

    def _call(
        self,
        address: str,
        code: RequestCode,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        also: Collection[int] = (),
        about: str = "",
        timeout_s: float | None = None,
    ) -> RequestSteps[RemotingCommand]:
        """Send a request. Args: also: codes besides 0 that are no error. Raises: ClientError, RemotingError."""
        try:
            answer = yield Request(address, code, _texts(fields), body, timeout_s or self._timeout_s)
        except (CallTimeout, ConnectionLost) as error:
            what = f"{about}: " if about else ""
            raise type(error)(f"{what}{address}, request {code} {code.name}: {error}; it may be done") from None
        return checked(answer, address, about, *also)

    def _query(
        self,
        address: str,
        code: RequestCode,
        kind: type[T],
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        about: str = "",
    ) -> RequestSteps[T]:
        """Send a request, and return the JSON body of the response. Raises: ClientError, RemotingError."""
        answer = yield from self._call(address, code, fields, body, about=about)
        return read_answer(answer, address, lambda data: decode_body(data, kind, "body"))

    # --- name servers ---

    def _query_name_server(
        self, code: RequestCode, kind: type[T], fields: Mapping[str, Any] | None = None, *, about: str
    ) -> RequestSteps[T]:
        """Return the body of the first name server that answers."""
        cluster = self._instance.cluster
        return (yield from cluster.query(code, kind, _texts(fields), timeout_s=self._timeout_s, about=about))

    def _each_name_server(
        self,
        code: RequestCode,
        fields: Mapping[str, Any] | None = None,
        body: bytes = b"",
        *,
        also: Collection[int] = (),
        about: str,
    ) -> RequestSteps[dict[str, RemotingCommand]]:
        """Send a request to every name server: name servers do not share state. Returns: the responses by address."""
        answers = {}
        for address in sorted(self._instance.name_servers.addresses):
            answers[address] = yield from self._call(address, code, fields, body, also=also, about=about)
        return answers

    def _clusters(self) -> RequestSteps[Clusters]:
        info = yield from self._instance.cluster.cluster_info(timeout_s=self._timeout_s, about="clusters")
        cluster_of = {name: cluster for cluster, names in info.cluster_addr_table.items() for name in names}
        table = {
            name: BrokerInfo(name, data.cluster or cluster_of.get(name, ""), data.broker_addrs)
            for name, data in sorted(info.broker_addr_table.items())
            if data.broker_addrs
        }
        return Clusters(table)

    def _address_of(self, broker: str) -> RequestSteps[str]:
        """Return the address of a broker name or address. Raises: ConfigError, for an empty text before any request."""
        checked_text("broker", broker)
        return (yield from self._clusters()).address_of(broker)

    def _all_topics(self) -> RequestSteps[list[str]]:
        return sorted(set((yield from self._instance.cluster.topic_list(timeout_s=self._timeout_s))))

    # --- the brokers of a topic ---

    def _route(self, topic: str) -> RequestSteps[TopicRoute]:
        """Return the current route of a topic. Raises: NoRoute, with the nearest topic."""
        try:
            return (yield from self._instance.route(topic, timeout_s=self._timeout_s, refresh=True))
        except NoRoute as error:
            self._instance.routes.forget(topic)
            known = yield from self._all_topics()
            raise NoRoute(f"{error}{nearest(topic, known)}") from None

    def _brokers_of(self, topic: str) -> RequestSteps[list[BrokerInfo]]:
        """Return the brokers of a topic. Raises: NoRoute, with the nearest topic."""
        route = yield from self._route(topic)
        names = {data.broker_name for data in route.queue_datas}
        brokers = [
            BrokerInfo(*place) for name, place in sorted(route.brokers.items()) if name in names and place.addresses
        ]
        if not brokers:
            raise NoRoute(f"topic {topic}: expected brokers with an address, the name servers know none")
        return brokers


def read_field(answer: RemotingCommand, address: str, name: str) -> int:
    """Return a whole number of a response's header. Raises: BrokerError where there is none."""

    def read(_: bytes) -> int:
        text = str(answer.ext_fields.get(name, ""))
        number = java_number(text, 2**63 - 1)
        if number is None:
            raise FieldError(name, "a whole number", repr(text))
        return number

    return read_answer(answer, address, read)


def _texts(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields as text for the wire; None leaves a field out."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in (fields or {}).items()
        if value is not None
    }
