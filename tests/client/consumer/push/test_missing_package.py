"""A consumer without the package that decompresses a body: its messages wait, none is given back or dropped."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest
from waiting import until

from mqfast import Producer, PushConsumer
from mqfast.client.consumer.push import dispatcher
from mqfast.client.delivery import Delivery
from mqfast.testing import Broker

LIMIT_S = 60.0
PACKAGES = {"lz4": "lz4", "zstd": "zstandard"}


@pytest.mark.parametrize("how", ["concurrent", "orderly", "broadcasting"])
@pytest.mark.parametrize("kind", PACKAGES)
def test_messages_wait_for_the_package(kind: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = PACKAGES[kind]
    pytest.importorskip(package)
    monkeypatch.setenv("rocketmq.client.localOffsetStoreDir", str(tmp_path))
    monkeypatch.setattr(dispatcher, "AGAIN_S", 0.05)
    body = b"compressed " * 1000
    found: list[tuple[bytes, int]] = []
    tries = threading.Semaphore(0)

    def handler(message: Delivery) -> None:
        tries.release()
        found.append((message.body, message.attempt))

    with Broker() as broker, Producer("sender", broker.namesrv_addr, compression=kind) as producer:
        result = producer.send("orders", body)
        consumer = PushConsumer(
            "readers",
            broker.namesrv_addr,
            from_where="first",
            model="broadcasting" if how == "broadcasting" else "clustering",
            orderly=how == "orderly",
        )
        consumer.subscribe("orders", handler)
        try:
            with pytest.MonkeyPatch.context() as lacking:
                for name in (package, f"{package}.frame"):
                    lacking.setitem(sys.modules, name, None)
                consumer.start()
                for _ in range(20):  # more often than a message comes that is given back
                    assert tries.acquire(timeout=LIMIT_S)
                assert found == []
                [why] = [one for one in consumer.stats()["why_nothing"] if result.msg_id in one]
                assert why.endswith(f"pip install {package}")
                assert consumer.stats()["given_back"] == 0
            until(lambda: found)
            assert found == [(body, 1)]
            until(lambda: not consumer.stats()["why_nothing"])
        finally:
            consumer.close()
