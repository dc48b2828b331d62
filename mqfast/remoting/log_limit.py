"""LogLimit, where the rooms of the network look for it."""

from __future__ import annotations

from mqfast.log_limit import LogLimit

__all__ = ["LogLimit"]
