"""A gate before the disk: holds a wait of a broker, as a busy disk does."""

from __future__ import annotations

import asyncio
import threading

import pytest
from running import Running

from mqfast.broker.send.message_writer import Stored

__all__ = ["Gate"]


class Gate:
    """Makes a broker wait for the disk before each answer, and holds one of the waits.

    Attributes: ``held``: set while the wait is held.
    """

    def __init__(self, running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held = threading.Event()
        self._number = 0
        self._loop = running.context.loop
        self._open = asyncio.Event()
        self._wait = running.context.writer.durable_to
        monkeypatch.setattr(running.context.writer, "must_wait", lambda _: True)
        monkeypatch.setattr(running.context.writer, "durable_to", self._durable_to)

    async def _durable_to(self, end: int) -> Stored:
        self._number -= 1
        if self._number == 0:
            self.held.set()
            await self._open.wait()
        return await self._wait(end)

    def hold(self, number: int) -> None:
        """Hold the wait of this number, from now on; the others pass."""
        self._number = number

    def open(self) -> None:
        """Let the held wait end. From any thread."""
        self._loop.call_soon_threadsafe(self._open.set)
