"""A rolling restart: each of two brokers stops in order and comes back while a producer sends, and no send fails.

Room: tests.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from mqfast.client import SendResult
from mqfast.testing import Broker


def test_a_rolling_restart_of_two_brokers_loses_no_send(tmp_path: Path) -> None:
    sent: list[SendResult] = []
    failures: list[Exception] = []
    stop = threading.Event()
    with Broker(topics={"orders": 2}, brokers=2, store=tmp_path / "stores") as cluster:
        producer = cluster.producer("restarted", send_timeout_s=30)

        def send() -> None:
            while not stop.is_set():
                try:
                    sent.append(producer.send("orders", b"%d" % len(sent)))
                except Exception as error:
                    failures.append(error)

        def further(count: int) -> None:
            """Wait for sends that begin after this call."""
            target = len(sent) + count
            cluster.wait_until(lambda: failures or len(sent) >= target, timeout_s=120)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            further(50)
            names = {result.message_queue.broker_name for result in sent}
            assert len(names) == 2
            for name in sorted(names):
                cluster.stop(name)
                stopped_s = time.monotonic()
                further(20)
                cluster.restart(name)
                # The client asks for a route after a failure once a second at most.
                cluster.wait_until(lambda: time.monotonic() - stopped_s > 1.5, timeout_s=60)  # noqa: B023
                further(20)
        finally:
            stop.set()
            thread.join(120)
        assert failures == []
        stored = {message.msg_id for message in cluster.messages("orders")}
        assert {result.msg_id for result in sent} <= stored
