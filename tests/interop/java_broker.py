"""A Java name server and broker for tests of Spark's source: both ways of reading reach its store.

Room: tests/interop. A test that imports this module has the folders of interop and spark on the path.
"""

from __future__ import annotations

from pathlib import Path

from places import Place
from real_programs import NEWEST, Machine, free_port, wait_for

from mqfast.client import AdminClient, Producer
from mqfast.errors import MqfastError
from mqfast.message import Message

__all__ = ["Java", "admin_makes"]

SIZES = {
    "mappedFileSizeCommitLog": 1 << 20, "mappedFileSizeConsumeQueue": 6000, "registerNameServerPeriod": 10_000,
    "timerWheelEnable": "true",  # deleting a topic asks for it
}  # fmt: skip


class Java:
    """A Java name server and broker, whose store both ways of reading reach."""

    def __init__(self, work: Path) -> None:
        self.machine = Machine(NEWEST, work)
        self.machine.start_namesrv()
        self.store = work / "store"
        self.port = free_port()
        self.start()
        self.files = Place.of_cluster("")
        self.files.way, self.files.options = "files", {"path": str(self.store)}
        self.place = Place.of_cluster(self.machine.namesrv)
        self.place.options["brokerTimeout"] = "60s"

    def start(self) -> None:
        self.broker = self.machine.start_broker(self.store, SIZES, self.port)

    def kill(self) -> None:
        self.broker.kill()
        self.broker.wait(30)

    def fill(self, topic: str, first: int, end: int) -> None:
        with Producer("filler", self.machine.namesrv) as producer:
            for n in range(first, end):
                body = b"%06d" % n + (b"z" * 8000 if n % 20 == 0 else b"x" * (n % 50))
                producer.send(Message(topic, body, tags=f"tag{n % 3}", keys=f"k{n} both", properties={"n": str(n)}))


def admin_makes(java: Java, topic: str) -> None:
    def made() -> bool:
        try:
            with AdminClient(java.machine.namesrv) as admin:
                admin.create_topic(topic, queues=3)
        except MqfastError:  # the broker has not told the name server yet
            return False
        return True

    wait_for(made, f"topic {topic}")
