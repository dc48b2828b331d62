"""Metadata of a cluster as request steps: name servers in turn, routes, brokers, and attempts until servers answer.

No I/O: the asyncio and the blocking driver run the steps, for clients, administration and Spark. Source:
MQClientInstance (updateTopicRouteInfoFromNameServer), NettyRemotingClient (getAndCreateNameserverChannel).
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from mqfast.client.net.request_steps import Blocking, Request, RequestSteps, broker_error, checked, read_answer
from mqfast.client.route.name_servers import NameServers, fetch_addresses
from mqfast.client.route.route_table import RouteTable, TopicRoute, decode_route
from mqfast.errors import (
    BrokerBusy,
    BrokerError,
    CallTimeout,
    ConnectError,
    ConnectionLost,
    FieldError,
    MqfastError,
    NoRoute,
)
from mqfast.remoting.bodies import ClusterBody, TopicListBody, decode_body
from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.command import RemotingCommand

__all__ = ["Cached", "ClusterMetadata", "NameServerAnswer", "addresses_of", "is_unavailable", "retry"]

T = TypeVar("T")
_NAME_SERVER_TIMEOUT_S: Final = 3.0


def is_unavailable(error: Exception) -> bool:
    """Return whether a later attempt may succeed: the server did not answer, is busy, or is not ready yet."""
    if isinstance(error, BrokerError):
        return isinstance(error, BrokerBusy) or error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, (ConnectError, ConnectionLost, CallTimeout))


def retry(
    attempt: Callable[[], RequestSteps[T]],
    recover: Callable[[Exception, float], RequestSteps[None]],
    pauses_s: tuple[float, float],
) -> RequestSteps[T]:
    """Run the steps of an attempt until success. Returns: the result.

    Args: recover: steps after a failed attempt, with the error and the planned pause; these sleep, or raise to end the
        attempts. pauses_s: first and longest pause; each is twice the pause before.
    """
    pause_s, longest_s = pauses_s
    while True:
        try:
            return (yield from attempt())
        except Exception as error:
            yield from recover(error, pause_s)
        pause_s = min(2 * pause_s, longest_s)


class NameServerAnswer(NamedTuple):
    """A response, and the name server that sent it."""

    address: str
    response: RemotingCommand


class Cached(Generic[T]):
    """A value of the name servers with the time of the fetch. Thread: any; value and time change together.

    Attributes: is_known: whether the value may stay while no name server answers: it was fetched and is not empty.
    """

    def __init__(self, value: T) -> None:
        self._entry = (-math.inf, value)
        self.is_known = False

    @property
    def value(self) -> T:
        """The value of the last fetch."""
        return self._entry[1]

    def is_fresh(self, max_age_s: float) -> bool:
        """Return whether the value was fetched within the last ``max_age_s`` seconds."""
        return time.monotonic() - self._entry[0] <= max_age_s

    def store(self, value: T) -> None:
        """Store the value of a fetch."""
        self.is_known = value is None or bool(value)
        self._entry = (time.monotonic(), value)

    def expire(self) -> None:
        """Make the next use fetch again; the value stays for the case that no name server answers."""
        self._entry = (-math.inf, self._entry[1])


class ClusterMetadata:
    """Name servers and routes of a cluster.

    Attributes: name_servers; routes: the routes of ``route`` and ``publish_route``.
    Thread: any.
    """

    def __init__(self, name_servers: tuple[str, ...], logger: logging.Logger) -> None:
        self.name_servers: Final = NameServers(name_servers)
        self.routes: Final = RouteTable()
        self._log: Final = logger
        self._outage_logged = False  # one line of the log for each outage: a stream polls a hundred times a second

    # --- name servers ---

    def fetch_addresses(self) -> RequestSteps[None]:
        """Fetch the addresses of the name servers from the address server. Raises: ConnectError."""
        url = self.name_servers.url
        assert url is not None
        try:
            addresses = yield Blocking(partial(fetch_addresses, url))
        except (OSError, MqfastError) as error:
            text = f"{url}: no addresses of name servers: {error}"
            raise ConnectError(f"{text} (http:// means a server of addresses; a name server is host:port)") from None
        self.name_servers.update(addresses)

    def ensure_addresses(self) -> RequestSteps[None]:
        """Fetch the addresses where an address server is configured and none are known. Raises: ConnectError."""
        if self.name_servers.url is not None and not self.name_servers.addresses:
            yield from self.fetch_addresses()

    def first_answer(
        self,
        code: int,
        fields: dict[str, Any] | None = None,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        about: str,
    ) -> RequestSteps[NameServerAnswer]:
        """Return the response of the first name server that answers, with any code.

        Args: timeout_s: for all name servers together; None: only a limit for each.
        Raises: ConnectError.
        """
        begin_s = time.monotonic()
        answers, reasons = yield from self._request_in_turn(code, fields, body, timeout_s, answers_max=1)
        if answers:
            return answers[0]
        took = "" if timeout_s is None else f" in {time.monotonic() - begin_s:.1f} s"
        raise ConnectError(f"{about}: no name server answered{took}: {'; '.join(reasons)}")

    def all_answers(self, code: int, fields: dict[str, Any], about: str) -> RequestSteps[list[NameServerAnswer]]:
        """Return the responses of all name servers that answer: those may know different brokers and topics.

        Responses with code 17 (unknown topic) are left out. Raises: BrokerError for any other code but 0.
        """
        answers, _ = yield from self._request_in_turn(code, fields, b"", None)
        for address, response in answers:
            if response.code not in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                raise broker_error(response, address, about)
        return [answer for answer in answers if answer.response.code == ResponseCode.SUCCESS]

    def _request_in_turn(
        self,
        code: int,
        fields: dict[str, Any] | None,
        body: bytes,
        timeout_s: float | None,
        answers_max: float = math.inf,
    ) -> RequestSteps[tuple[list[NameServerAnswer], list[str]]]:
        """Send a request to the name servers in turn. Returns: the responses, and the reasons of failures."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        answers: list[NameServerAnswer] = []
        reasons: list[str] = []
        for address in self.name_servers.addresses:
            remaining_s = deadline_s - time.monotonic()
            if remaining_s <= 0:
                reasons.append(f"{address} was not asked, the time is over")
                break
            try:
                response = yield Request(address, code, fields, body, min(remaining_s, _NAME_SERVER_TIMEOUT_S))
            except (ConnectError, ConnectionLost, CallTimeout) as error:
                self.name_servers.failed(address)
                reasons.append(str(error) if address in str(error) else f"{address}: {error}")
                continue
            self._outage_logged = False
            answers.append(NameServerAnswer(address, response))
            if len(answers) >= answers_max:
                break
        if not (answers or reasons):
            reasons.append(f"{self.name_servers.url} named none")
        return answers, reasons

    def query(
        self,
        code: RequestCode,
        kind: type[T],
        fields: dict[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        about: str,
    ) -> RequestSteps[T]:
        """Return the JSON body of the first response as a type. Raises: ConnectError, NoRoute, BrokerError."""
        address, response = yield from self.first_answer(code, fields, timeout_s=timeout_s, about=about)
        checked(response, address, about)
        return read_answer(response, address, lambda data: decode_body(data, kind, "body"))

    # --- brokers and topics ---

    def cluster_info(self, *, timeout_s: float | None = None, about: str) -> RequestSteps[ClusterBody]:
        """Return all brokers that a name server knows. Raises: ConnectError, BrokerError."""
        code = RequestCode.GET_BROKER_CLUSTER_INFO
        return (yield from self.query(code, ClusterBody, timeout_s=timeout_s, about=about))

    def topic_list(self, *, timeout_s: float | None = None) -> RequestSteps[list[str]]:
        """Return all topics that a name server knows, in the order of the name server. Raises: ConnectError,
        BrokerError.
        """
        code, about = RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, "list of topics"
        return (yield from self.query(code, TopicListBody, timeout_s=timeout_s, about=about)).topic_list

    def brokers_of_all(self, *, about: str) -> RequestSteps[dict[str, Mapping[int, str]]]:
        """Return broker name -> broker id -> address, from all name servers that answer. Raises: BrokerError."""
        brokers: dict[str, Mapping[int, str]] = {}
        for address, response in (yield from self.all_answers(RequestCode.GET_BROKER_CLUSTER_INFO, {}, about)):
            body = read_answer(response, address, lambda data: decode_body(data, ClusterBody, "body"))
            brokers = {**addresses_of(body), **brokers}
        return brokers

    # --- routes ---

    def fetch_route(
        self, topic: str, *, wire: str | None = None, timeout_s: float | None = None
    ) -> RequestSteps[TopicRoute]:
        """Return a topic's route from a name server. Args: wire: the topic with its namespace, where that differs.

        Raises: NoRoute, ConnectError, BrokerError.
        """
        code, fields, about = _route_request(topic, wire)
        _, response = yield from self.first_answer(code, fields, timeout_s=timeout_s, about=about)
        asked = ", ".join(self.name_servers.addresses)
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            text = f"topic {topic}: name server {asked} knows no broker with it: {response.remark or ''}"
            raise NoRoute(text.strip())
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            about = f"expected the address of a name server (its usual port is 9876), found a broker's: {about}"
        if response.code != ResponseCode.SUCCESS:
            raise broker_error(response, asked, about)
        try:
            return decode_route(topic, bytes(response.body))
        except FieldError as error:
            remark = f"the answer cannot be read: {error}"
            raise BrokerError(f"{about}: {asked}: {remark}", code=response.code, remark=remark, broker=asked) from None

    def routes_of_all(self, topic: str, wire: str) -> RequestSteps[list[TopicRoute]]:
        """Return a topic's route from each name server that answers and knows the topic. Raises: BrokerError."""
        answers = yield from self.all_answers(*_route_request(topic, wire))
        return [decode_route(topic, bytes(response.body)) for _, response in answers]

    def route(self, topic: str, *, timeout_s: float = 3.0, refresh: bool = False) -> RequestSteps[TopicRoute]:
        """Return a topic's route, from the table or a name server. Raises: NoRoute, ConnectError, BrokerError."""
        known = self.routes.get(topic)
        if known is not None and not refresh:
            return known
        route = yield from self.fetch_route(topic, timeout_s=timeout_s)
        self.routes.update(topic, route)
        return route

    def publish_route(
        self, topic: str, *, copied_topic: str, queues: int, timeout_s: float = 3.0, refresh: bool = False
    ) -> RequestSteps[TopicRoute]:
        """Return the route of a topic to send to; of an unknown topic, that of the topic that brokers copy (TBW102)."""
        try:
            return (yield from self.route(topic, timeout_s=timeout_s, refresh=refresh))
        except NoRoute as error:
            try:
                copied = yield from self.route(copied_topic, timeout_s=timeout_s, refresh=True)
            except NoRoute:
                text = f"{error}; nor has a broker topic {copied_topic}, so no broker makes topics by itself"
                raise NoRoute(text) from None
        route = copied.as_default(topic, queues)
        self.routes.update(topic, route)
        return route

    # --- values with an age ---

    def cached(self, entry: Cached[T], max_age_s: float, fetch: Callable[[], RequestSteps[T]]) -> RequestSteps[T]:
        """Return a value, fetched again if older than ``max_age_s``; a known value stays while no name server answers.

        Raises: ConnectError where nothing is known, and the errors of ``fetch``.
        """
        if entry.is_fresh(max_age_s):
            return entry.value
        yield from self.ensure_addresses()
        try:
            value = yield from fetch()
        except ConnectError as error:
            if not entry.is_known:
                raise
            if not self._outage_logged:
                self._log.warning("%s; what was known stays true", error)
            self._outage_logged = True
            return entry.value
        entry.store(value)
        return value


def addresses_of(body: ClusterBody) -> dict[str, Mapping[int, str]]:
    """Return broker name -> broker id -> address of all brokers with an address."""
    return {name: dict(data.broker_addrs) for name, data in body.broker_addr_table.items() if data.broker_addrs}


def _route_request(topic: str, wire: str | None) -> tuple[RequestCode, dict[str, Any], str]:
    fields = {"topic": topic if wire is None else wire, "acceptStandardJsonOnly": "true"}
    return RequestCode.GET_ROUTEINFO_BY_TOPIC, fields, f"route of topic {topic}"
