"""Answers handlers that ask what a caller may do, where they find out what a request reaches.

Room: broker/acl. It must never be a cost where no access control is configured: ``Rights`` itself allows everything,
and the guard of a broker with access control is one that compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mqfast.broker.acl.required_permissions import Need
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand

__all__ = ["Caller", "Rights"]


class Caller(NamedTuple):
    """Names the sender of a request, as the signature proved; ``name`` is empty where there was no signature."""

    name: str = ""
    address: str = ""


class Rights:
    """Allows every caller everything.

    Attributes: ``compares``: False here, so that hot paths need not even ask.
    Thread: that of the event loop.
    """

    compares = False

    def caller(self, channel: Channel, request: RemotingCommand) -> Caller:
        """Name the sender of a request that the guard has let pass."""
        return Caller()

    def may(self, caller: Caller, *needs: Need) -> bool:
        """Say whether a caller may do all of this now: accounts and rules may have changed since the request."""
        return True

    def demand(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Compare what a request reaches with what its caller may. Raises: CallRefused, as the guard does."""
