"""All calls of administration, and AdminClient, the blocking client.

The files of the subjects describe the calls. The I/O thread of sync clients cannot use AdminClient: a call would wait
for its own thread.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Self, TypeVar

from mqfast.client.admin.access import AccessCalls
from mqfast.client.admin.broker_tables import BrokerTableCalls
from mqfast.client.admin.brokers import BrokerCalls
from mqfast.client.admin.call import SyncFace
from mqfast.client.admin.explain import ExplainCalls
from mqfast.client.admin.groups import GroupCalls
from mqfast.client.admin.messages import MessageCalls
from mqfast.client.admin.name_server_values import NameServerValueCalls
from mqfast.client.admin.offsets import OffsetCalls
from mqfast.client.admin.topics import TopicCalls
from mqfast.client.net import io_thread
from mqfast.client.net.connection_pool import BlockingConnectionPool, connection_pool_of
from mqfast.client.net.exit import close_at_exit
from mqfast.client.net.fork import watch
from mqfast.client.net.guard import Guard, check_may_wait
from mqfast.client.net.instance import ClientInstance
from mqfast.client.net.request_steps import RequestSteps
from mqfast.client.settings import NamedArguments, instance_settings
from mqfast.client.values import Address, Credentials
from mqfast.errors import ClientClosed, ClientConfigError

__all__ = ["AdminCalls", "AdminClient"]

T = TypeVar("T")
_START_S = 15.0
_CLOSE_S = 5.0


class AdminCalls(
    NamedArguments,
    TopicCalls,
    GroupCalls,
    OffsetCalls,
    MessageCalls,
    BrokerCalls,
    BrokerTableCalls,
    NameServerValueCalls,
    AccessCalls,
    ExplainCalls,
):
    """Administration of clusters, by the addresses of name servers.

    Args:
        namesrv_addr: ``"a:9876;b:9876"`` or a list; None: the variable NAMESRV_ADDR.
        credentials: of an administrator, where the brokers check accounts; None: ROCKETMQ_ACCESS_KEY and
            ROCKETMQ_SECRET_KEY, where both are set.
        tls: True: TLS with the system's certificates; or a context of the caller's.
        namespace_v2: a field of every request has it, as with a producer; address_map: as a producer's.
        timeout_s: for each request.
    Raises: ConfigError.
    """

    def __init__(
        self,
        namesrv_addr: Address | None = None,
        *,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace_v2: str | None = None,
        address_map: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        seconds: object = timeout_s
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 3600:
            raise ClientConfigError(f"timeout_s: expected more than 0 and at most 3600 seconds, found {timeout_s!r}")
        self._timeout_s = float(timeout_s)
        self._settings = instance_settings(
            namesrv_addr, credentials=credentials, tls=tls, namespace_v2=namespace_v2, address_map=address_map
        )


class AdminClient(AdminCalls, SyncFace):
    """Administration of clusters, by the addresses of name servers; the first call connects.

        with AdminClient("127.0.0.1:9876") as admin:
            admin.create_topic("orders")

    Args: see ``AdminCalls``.
    Thread: any, also several at once.
    """

    def __init__(
        self,
        namesrv_addr: Address | None = None,
        *,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        namespace_v2: str | None = None,
        address_map: Mapping[str, str] | None = None,
        timeout_s: float = 5.0,
    ) -> None:
        super().__init__(
            namesrv_addr,
            credentials=credentials,
            tls=tls,
            namespace_v2=namespace_v2,
            address_map=address_map,
            timeout_s=timeout_s,
        )
        self._closed = False
        self._starting = Guard(brief=False)
        self._io: io_thread.IoThread | None = None
        self._connection_pool: BlockingConnectionPool | None = None
        watch(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self, timeout_s: float | None = None) -> None:
        """Close the client; later calls raise ClientClosed. A second call does nothing. Args: timeout_s: at most."""
        check_may_wait()
        self._closed = True
        if self._connection_pool is not None and self._io is not None and self._io.is_alive:
            self._io.call(self._release(), _CLOSE_S if timeout_s is None else timeout_s)

    async def _release(self) -> None:
        connection_pool, self._connection_pool = self._connection_pool, None
        if connection_pool is not None:
            await self._instance.release()

    def after_fork(self) -> None:
        """Reset the state in a child process; the next call starts again."""
        self._starting = Guard(brief=False)
        self._io = self._connection_pool = None

    def _run(self, steps: RequestSteps[T]) -> T:
        connection_pool = self._connection_pool
        if connection_pool is None:
            connection_pool = self._begun()
        return connection_pool.run(steps)

    def _begun(self) -> BlockingConnectionPool:
        with self._starting:
            if self._closed:
                raise ClientClosed("the AdminClient is closed")
            if self._connection_pool is None:
                self._io = io_thread.shared()
                connection_pool = self._io.call(self._begin(self._io), _START_S)
                close_at_exit(self)
                return connection_pool
            return self._connection_pool

    async def _begin(self, io: io_thread.IoThread) -> BlockingConnectionPool:
        self._instance = ClientInstance.shared(self._settings, io.loop)
        await self._instance.acquire()
        if self._closed:  # meanwhile, by a signal handler or another thread
            await self._instance.release()
            raise ClientClosed("the AdminClient is closed")
        self._connection_pool = connection_pool_of(self._instance)
        return self._connection_pool
