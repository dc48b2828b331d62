"""The permissions of callers for handlers, which find out the resources behind a request.

No overhead without access control: ``Rights`` itself permits everything; a broker with access control uses the subclass
``AclFilter``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from mqfast.broker.acl.required_permissions import Need
    from mqfast.remoting.channel import Channel
    from mqfast.remoting.command import RemotingCommand

__all__ = ["Caller", "Rights"]


class Caller(NamedTuple):
    """The sender of a request, proved by the signature; ``name`` is empty without a signature."""

    name: str = ""
    address: str = ""


class Rights:
    """Permits everything to every caller.

    Attributes: ``compares``: False here, so that hot paths can skip the checks.
    Thread: that of the event loop.
    """

    compares = False

    def caller(self, channel: Channel, request: RemotingCommand) -> Caller:
        """Return the sender of an admitted request."""
        return Caller()

    def may(self, caller: Caller, *needs: Need) -> bool:
        """Return True if a caller may do all of this now: accounts and rules may have changed since the request."""
        return True

    def admit(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Check signature and permissions of a request whose code does not tell its needs. Raises: CallRefused."""

    def secret_of(self, access_key: str) -> str | None:
        """Return the secret with which an account signs; None for an unknown account."""
        return None

    def demand(self, channel: Channel, request: RemotingCommand, *needs: Need) -> None:
        """Check the permissions for resources behind a request. Raises: CallRefused, as the filter does."""
