"""Resets inherited clients in a child of a fork: sockets and threads belong to the parent.

No byte is sent over an inherited connection.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable
from typing import Any, Protocol

from mqfast.client.net.guard import begin_anew

__all__ = ["Inherited", "leave_sockets", "watch"]


class Inherited(Protocol):
    """An object that a child of a fork has to reset."""

    def after_fork(self) -> None:
        """Close copies of sockets and replace locks, in the child, whose only thread this is."""


_kept: list[Any] = []
_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(inherited: Inherited) -> None:
    """Call ``after_fork`` of the object in every child, while the object lives."""
    _watched.add(inherited)


def _in_child() -> None:
    begin_anew()
    # Modules that were never loaded have nothing to reset. Their objects are kept: a loop that is deleted would remove
    # the parent's sockets from the epoll instance, which parent and child share.
    instance, io_thread = (sys.modules.get(f"mqfast.client.net.{name}") for name in ("instance", "io_thread"))
    if instance is not None:
        _kept.extend(instance.forget())
    if io_thread is not None:
        _kept.append(io_thread.forget())
    encode = sys.modules.get("mqfast.client.producer.encode")
    if encode is not None:
        encode.forget_ids()
    for inherited in list(_watched):
        inherited.after_fork()


def leave_sockets(filenos: Iterable[int]) -> None:
    """Close this process's copies of sockets whose objects stay: the numbers then refer to /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for fileno in filenos:
            os.dup2(nothing, fileno, inheritable=False)
    finally:
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
