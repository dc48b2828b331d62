"""Types of reactor.pyx."""

import asyncio
import socket

class ReactorService:
    pass

def parsed_host(host: str, port: int) -> bytes: ...

class Reactors:
    threads: int
    stopped: bool
    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        threads: int,
        *,
        frame_bytes_max: int,
        header_bytes_max: int,
        buffered_bytes_max: int,
        high: int,
        low: int,
    ) -> None: ...
    @property
    def buffered_bytes(self) -> int: ...
    def counts(self) -> dict[str, int]: ...
    def set_service(self, service: ReactorService | None) -> None: ...
    def adopt(self, sock: socket.socket, protocol: asyncio.Protocol) -> ReactorTransport: ...
    def stop(self) -> None: ...

class ReactorTransport(asyncio.Transport):
    def fileno(self) -> int: ...
    def idle_s(self) -> float: ...
    def requests_begun(self) -> None: ...
