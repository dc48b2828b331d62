"""The plug-in for pytest: fixtures with brokers and clients, a marker, an option.

The only module of the package that imports pytest. Every run of pytest loads this file, so a broker is loaded and
started only for a test that requests a broker.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

if TYPE_CHECKING:
    from mqfast.testing.broker import Broker

__all__ = [
    "pytest_addoption", "pytest_configure", "rocketmq_broker", "rocketmq_broker_per_test", "rocketmq_cluster",
    "rocketmq_consumer", "rocketmq_namesrv_addr", "rocketmq_producer", "rocketmq_virtual_time",
]  # fmt: skip

_MARKER = "rocketmq(topics=..., groups=..., config=...): what a broker of mqfast.testing has at the start of the test"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for a real cluster."""
    parser.getgroup("rocketmq").addoption(
        "--rocketmq",
        metavar="HOST:PORT",
        help="name servers of a real cluster instead of mqfast.testing's own broker; tests of faults, time and ends "
        "are skipped",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", _MARKER)


def _marked(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the arguments of the test's marker. Raises: UsageError of pytest for invalid arguments."""
    marker = request.node.get_closest_marker("rocketmq")
    if marker is None:
        return {}
    unknown = marker.kwargs.keys() - {"topics", "groups", "config"}
    if marker.args or unknown:
        given = [*map(repr, marker.args), *sorted(unknown)]
        raise pytest.UsageError(f"marker rocketmq: expected topics=, groups= or config=, found {', '.join(given)}")
    return dict(marker.kwargs)


def _new(**arguments: Any) -> Broker:
    from mqfast.testing import Broker

    return Broker(**arguments)


def _refuse(name: str) -> NoReturn:
    pytest.skip(f"--rocketmq: a real cluster has no {name}")


def _own_only(request: pytest.FixtureRequest, what: str) -> None:
    """Skip the test with a real cluster."""
    if request.config.getoption("--rocketmq"):
        _refuse(what)


@pytest.fixture(scope="session")
def _rocketmq_session_broker(pytestconfig: pytest.Config) -> Iterator[Any]:
    real = pytestconfig.getoption("--rocketmq")
    if real:
        from mqfast.testing.remote import RemoteBroker

        cluster = RemoteBroker(real, _refuse)
        yield cluster
        cluster.close()
        return
    with _new() as broker:
        broker.prepare_reset()
        yield broker


@pytest.fixture
def rocketmq_broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a broker of the session, empty at the start of the test; of the test if the marker gives config."""
    marked = _marked(request)
    if marked.get("config"):
        _own_only(request, "settings of a test (config=)")
        with _new(**marked) as own:
            yield own
        return
    broker: Broker = request.getfixturevalue("_rocketmq_session_broker")
    broker.reset()
    broker.create_topics(topics=marked.get("topics", ()), groups=marked.get("groups", ()))
    yield broker
    broker.close_clients()
    broker.prepare_reset()


@pytest.fixture
def rocketmq_broker_per_test(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a broker of the test's own."""
    _own_only(request, "broker of one test")
    with _new(**_marked(request)) as broker:
        yield broker


@pytest.fixture
def rocketmq_virtual_time(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return a broker of the test's own with virtual time, which only its ``clock`` advances."""
    _own_only(request, "virtual time")
    with _new(virtual_time=True, **_marked(request)) as broker:
        yield broker


@pytest.fixture
def rocketmq_cluster(request: pytest.FixtureRequest) -> Iterator[Broker]:
    """Return two brokers and two name servers of the test's own."""
    _own_only(request, "cluster of one test")
    with _new(brokers=2, name_servers=2, **_marked(request)) as cluster:
        yield cluster


@pytest.fixture
def rocketmq_producer(rocketmq_broker: Broker) -> Callable[..., Any]:
    """Return a factory of producers, as ``Broker.producer``; the producers are closed at the end of the test."""
    return rocketmq_broker.producer


@pytest.fixture
def rocketmq_consumer(rocketmq_broker: Broker) -> Iterator[Callable[..., Any]]:
    """Return a factory of consumers, as ``Broker.consumer``; the consumers are closed at the end of the test, which
    fails if a handler raised an exception other than ``Retry``.
    """
    from mqfast.client import ClientHook, ConsumeContext, Retry

    raised: list[str] = []

    class Watch(ClientHook):
        def after_consume(self, context: ConsumeContext) -> None:
            if context.error is not None and not isinstance(context.error, Retry):
                raised.append(f"group {context.group}: {context.error!r}")

    def make(*arguments: Any, **settings: Any) -> Any:
        hooks = (*settings.pop("hooks", ()), Watch())
        return rocketmq_broker.consumer(*arguments, hooks=hooks, **settings)

    yield make
    rocketmq_broker.close_clients()
    if raised:
        pytest.fail(f"a handler raised, {len(raised)} times: {raised[0]}")


@pytest.fixture(scope="session")
def rocketmq_namesrv_addr(_rocketmq_session_broker: Broker) -> Iterator[str]:
    """Return the name server of the session's broker, which NAMESRV_ADDR names as well."""
    before = os.environ.get("NAMESRV_ADDR")
    address = os.environ["NAMESRV_ADDR"] = _rocketmq_session_broker.namesrv_addr
    yield address
    if before is None:
        os.environ.pop("NAMESRV_ADDR", None)  # a test may have removed the variable
    else:
        os.environ["NAMESRV_ADDR"] = before
