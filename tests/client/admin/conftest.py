"""A broker and an administrator for each module of tests that has none of its own.

Room: tests of administration.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path_factory.mktemp("admin")) as process:
        yield process


@pytest.fixture(scope="module")
def admin(cluster: BrokerProcess) -> Iterator[AdminClient]:
    with AdminClient(cluster.namesrv) as client:
        yield client
