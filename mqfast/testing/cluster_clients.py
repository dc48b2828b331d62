"""The clients of a test, for the test's own cluster and for a real one; created on request, closed with the cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from mqfast.client import AdminClient, Producer, PullConsumer, PushConsumer, SimpleConsumer

__all__ = ["ClusterClients"]

_C = TypeVar("_C")


class ClusterClients(ABC):
    """Creates clients of a cluster, and closes these clients. Thread: one at a time."""

    _clients: list[Any]

    @property
    @abstractmethod
    def namesrv_addr(self) -> str:
        """Return the addresses of the name servers, for clients."""

    def close_clients(self) -> None:
        """Close the clients of this object, the newest first."""
        clients, self._clients = self._clients, []
        for client in reversed(clients):
            client.close()

    def producer(self, group: str = "test-producer", **arguments: Any) -> Producer:
        """Return a producer of this cluster. Args: those of ``mqfast.client.Producer``."""
        from mqfast.client import Producer

        return self._keep(Producer(group, self.namesrv_addr, **arguments))

    def consumer(self, group: str = "test-consumer", **arguments: Any) -> PushConsumer:
        """Return a consumer of this cluster that begins with the first message.

        Args: those of ``mqfast.client.PushConsumer``.
        """
        from mqfast.client import PushConsumer

        return self._keep(PushConsumer(group, self.namesrv_addr, **{"from_where": "earliest", **arguments}))

    def puller(self, group: str = "test-puller", **arguments: Any) -> PullConsumer:
        """Return a pull consumer of this cluster that begins with the first message.

        Args: those of ``mqfast.client.PullConsumer``.
        """
        from mqfast.client import PullConsumer

        return self._keep(PullConsumer(group, self.namesrv_addr, **{"from_where": "earliest", **arguments}))

    def simple_consumer(self, group: str = "test-simple-consumer", **arguments: Any) -> SimpleConsumer:
        """Return a consumer by POP of this cluster that begins with the first message.

        Args: those of ``mqfast.client.SimpleConsumer``.
        """
        from mqfast.client import SimpleConsumer

        return self._keep(SimpleConsumer(group, self.namesrv_addr, **{"from_where": "earliest", **arguments}))

    def admin(self, **arguments: Any) -> AdminClient:
        """Return an admin client of this cluster. Args: those of ``mqfast.client.AdminClient``."""
        from mqfast.client import AdminClient

        return self._keep(AdminClient(self.namesrv_addr, **arguments))

    def _keep(self, client: _C) -> _C:
        self._clients.append(client)
        return client
