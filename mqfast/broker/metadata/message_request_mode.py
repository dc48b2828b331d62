"""The message request modes of groups (401, 402). Source: MessageRequestModeManager."""

from __future__ import annotations

from msgspec import Struct

from mqfast.remoting.bodies import build_tables

__all__ = ["RequestMode", "RequestModes"]


class RequestMode(Struct, rename="camel"):
    """The mode by which a group consumes a topic."""

    consumer_group: str
    mode: str
    topic: str
    pop_share_queue_num: int = 0


RequestModes = dict[str, dict[str, RequestMode]]
"""Modes by topic and group."""

build_tables(__name__)
