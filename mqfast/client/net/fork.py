"""What a child of a fork does with the clients that it inherits: it forgets their sockets and threads.

Room: client. It must never send a word over an inherited connection: that is the parent's.
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
    """Something that a child of a fork has to begin anew."""

    def after_fork(self) -> None:
        """In the child, whose only thread this is: close copies, replace locks."""


_kept: list[Any] = []
_watched: weakref.WeakSet[Inherited] = weakref.WeakSet()


def watch(inherited: Inherited) -> None:
    """Call ``after_fork`` of this one in every child, for as long as it lives."""
    _watched.add(inherited)


def _in_child() -> None:
    begin_anew()
    # Modules that were never loaded have nothing to forget. Their objects are kept: a loop that is deleted would tell
    # the kernel to watch the parent's sockets no more, since parent and child share one epoll instance.
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
    """Close this process's copies of sockets whose objects stay: their numbers then stand for /dev/null."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        for fileno in filenos:
            os.dup2(nothing, fileno, inheritable=False)
    finally:
        os.close(nothing)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
