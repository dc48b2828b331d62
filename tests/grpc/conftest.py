"""A broker for tests of gRPC, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from grpc_client import GrpcClient

from mqfast.grpc import IS_BUILT
from mqfast.testing import Broker

collect_ignore_glob = [] if IS_BUILT else ["test_*.py"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"plain": 4, "one": 1}, groups=["readers"], config={"recallMessageEnable": "true"}) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[GrpcClient]:
    with GrpcClient(broker.addresses["broker-a"]) as client:
        yield client
