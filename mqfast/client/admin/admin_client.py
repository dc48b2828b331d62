"""All calls of administration, and AdminClient, their face for threads.

Room: client. It must never be used by the thread that serves sync clients. What each call does: the files of the
subjects beside this one.
"""

from __future__ import annotations

import ssl
import threading
from typing import Self, TypeVar

from mqfast.client.admin.brokers import BrokerCalls
from mqfast.client.admin.call import SyncFace
from mqfast.client.admin.groups import GroupCalls
from mqfast.client.admin.messages import MessageCalls
from mqfast.client.admin.offsets import OffsetCalls
from mqfast.client.admin.topics import TopicCalls
from mqfast.client.net import io_thread
from mqfast.client.net.instance import ClientInstance, InstanceSettings
from mqfast.client.net.steps import Steps
from mqfast.client.route.name_servers import parse_addresses
from mqfast.client.values import Address, Credentials
from mqfast.errors import ClientClosed, ConfigError

__all__ = ["AdminCalls", "AdminClient"]

T = TypeVar("T")
_START_S = 15.0
_CLOSE_S = 5.0
_LOOK_S = 1.0


class AdminCalls(TopicCalls, GroupCalls, OffsetCalls, MessageCalls, BrokerCalls):
    """Administration of one or several clusters by their name servers.

    Args:
        namesrv_addr: ``"a:9876;b:9876"`` or a list; None: the variable NAMESRV_ADDR.
        credentials: of an administrator, where the brokers check who asks.
        tls: True, or a context of the caller's.
        timeout_s: for each request.
    Raises: ConfigError.
    """

    def __init__(
        self,
        namesrv_addr: Address | None = None,
        *,
        credentials: Credentials | None = None,
        tls: bool | ssl.SSLContext = False,
        timeout_s: float = 5.0,
    ) -> None:
        seconds: object = timeout_s
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds <= 3600:
            raise ConfigError(f"timeout_s: expected more than 0 and at most 3600 seconds, found {timeout_s!r}")
        self._timeout_s = float(timeout_s)
        self._settings = InstanceSettings(parse_addresses(namesrv_addr), credentials, tls)


class AdminClient(AdminCalls, SyncFace):
    """Administration of one or several clusters by their name servers; the first call connects.

        with AdminClient("127.0.0.1:9876") as admin:
            admin.create_topic("orders")

    Args: see ``AdminCalls``.
    Thread: any, also several at once.
    """

    _closed = False
    _thread: io_thread.IoThread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; calls after that raise ClientClosed. The second call does nothing."""
        with _lock:
            thread, self._thread, self._closed = self._thread, None, True
        if thread is not None and thread.is_alive:
            thread.call(self._instance.release(), _CLOSE_S)

    def _run(self, steps: Steps[T]) -> T:
        with _lock:
            if self._closed:
                raise ClientClosed("the AdminClient is closed")
            if self._thread is None or not self._thread.is_alive:  # the first call, or the first one of a child process
                thread = io_thread.shared()
                self._instance = ClientInstance.shared(self._settings, thread.loop)
                thread.call(self._instance.acquire(), _START_S)
                self._thread = thread
            thread = self._thread
        future = thread.submit(self._instance.shell.run(steps))
        while True:  # each step has its deadline; the thread may end meanwhile
            try:
                return future.result(_LOOK_S)
            except TimeoutError:
                if future.done():
                    return future.result(0)
                if not thread.is_alive:
                    raise ClientClosed("the thread that serves sync clients has ended") from None


_lock = threading.Lock()
