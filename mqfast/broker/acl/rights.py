"""May the caller do that? What handlers ask where they find out what a request reaches.

Room: broker/acl. It must never be a cost where no access control is configured: ``Rights`` itself allows everything,
and the guard of a broker with access control is one that compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mqfast.broker.acl.needs import Need
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand

__all__ = ["Caller", "Rights"]


class Caller(NamedTuple):
    """Who sent a request, as its signature proved; ``name`` is empty where none did."""

    name: str = ""
    address: str = ""


class Rights:
    """What callers may do: everything.

    Attributes: ``compares``: False here, so that hot paths need not even ask.
    Thread: that of the event loop.
    """

    compares = False

    def caller(self, channel: Channel, request: RemotingCommand) -> Caller:
        """Who sent a request that the guard has let pass."""
        return Caller()

    def may(self, caller: Caller, *needs: Need) -> bool:
        """May this caller do all of it now? Accounts and rules may have changed since its request."""
        return True

    def demand(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Compare what a request reaches with what its caller may. Raises: CallRefused, as the guard does."""
