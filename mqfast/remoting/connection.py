"""One connection without I/O: what ``_connection.pyx`` offers, under one public name.

Room: remoting. It must never do I/O.
"""

from __future__ import annotations

from mqfast.remoting._connection import Answered, Broken, Call, Connection, Event, Request, Unmatched

__all__ = ["Answered", "Broken", "Call", "Connection", "Event", "Request", "Unmatched"]
