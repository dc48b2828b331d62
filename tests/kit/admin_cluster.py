"""The one broker of a small cluster as tests of administration need it: its address, and topics with messages.

Room: tests.
"""

from __future__ import annotations

from members import send, until

from mqfast.client.admin.admin_client import AdminClient


def address_of(admin: AdminClient) -> str:
    """The address of the only broker."""
    (brokers,) = admin.clusters().values()
    (addresses,) = brokers.values()
    return addresses[0]


def filled(admin: AdminClient, topic: str, count: int, queues: int = 1, **properties: str) -> None:
    """A topic with messages ``0``, ``1`` ... in its first queue."""
    admin.create_topic(topic, queues=queues)
    send(address_of(admin), topic, *(b"%d" % n for n in range(count)), **properties)
    until(lambda: sum(stats.max_offset for stats in admin.topic_stats(topic).values()) == count, "the messages")
