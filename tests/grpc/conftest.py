"""A broker for tests of gRPC, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from mqfast.grpc import IS_BUILT
from mqfast.testing import Broker

if TYPE_CHECKING:
    from grpc_client import GrpcClient

collect_ignore_glob = [] if IS_BUILT else ["test_*.py"]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"plain": 4, "one": 1}, groups=["readers"], config={"recallMessageEnable": "true"}) as broker:
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[GrpcClient]:
    from grpc_client import GrpcClient

    with GrpcClient(broker.addresses["broker-a"]) as client:
        yield client
