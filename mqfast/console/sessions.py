"""Logins of the console: one token for all users, sessions in memory, the secret of forms, and forms that were used.

Must never compare a secret in a time that depends on the secret, keep more than ``_SESSIONS_MAX`` sessions, or let the
failed logins of an address close the door for another address.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

__all__ = ["Session", "Sessions"]

_SESSIONS_MAX: Final = 1000
_SESSION_S: Final = 12 * 3600.0
_FAILURES_MAX: Final = 10
_FAILURES_S: Final = 60.0
_ADDRESSES_MAX: Final = 1000
_USED_MAX: Final = 1000


@dataclass
class Session:
    """A login. Attributes: form_secret: required in every form that changes something; used: numbers of used forms."""

    form_secret: str
    ends_s: float
    used: dict[str, None] = field(default_factory=dict)

    def is_form_of(self, form_secret: str) -> bool:
        """Return whether a form was made for this session."""
        return hmac.compare_digest(form_secret.encode("utf-8", "surrogateescape"), self.form_secret.encode())

    def use(self, number: str) -> bool:
        """Note that a form is used. Returns: False for a form that was used before, or that has no number."""
        if not number or number in self.used or len(number) > 64:
            return False
        if len(self.used) >= _USED_MAX:
            del self.used[next(iter(self.used))]
        self.used[number] = None
        return True

    def give_back(self, number: str) -> None:
        """Forget the use of a form that changed nothing."""
        self.used.pop(number, None)


class Sessions:
    """The sessions of a console. Args: token: for the login. Thread: that of the event loop."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._sessions: dict[str, Session] = {}
        self._failures: dict[str, deque[float]] = {}

    def is_token(self, text: str, address: str) -> bool:
        """Return whether a text is the token. A failure counts for ``is_blocked`` of the address."""
        if hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._token):
            return True
        failures = self._failures.pop(address, None) or deque(maxlen=_FAILURES_MAX)
        failures.append(time.monotonic())
        if len(self._failures) >= _ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[address] = failures
        return False

    def is_blocked(self, address: str) -> bool:
        """Return whether too many logins from an address have failed in the last minute."""
        failures = self._failures.get(address)
        if failures is None or len(failures) < _FAILURES_MAX:
            return False
        return time.monotonic() - failures[0] < _FAILURES_S

    def begin(self) -> str:
        """Begin a session. Returns: its id, for a cookie."""
        now = time.monotonic()
        self._sessions = {key: session for key, session in self._sessions.items() if session.ends_s > now}
        if len(self._sessions) >= _SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
        number = secrets.token_urlsafe(32)
        self._sessions[number] = Session(secrets.token_urlsafe(32), now + _SESSION_S)
        return number

    def find(self, number: str | None) -> Session | None:
        """Return a session that has not ended."""
        session = self._sessions.get(number or "")
        return session if session is not None and session.ends_s > time.monotonic() else None

    def remove(self, number: str | None) -> None:
        """End a session."""
        self._sessions.pop(number or "", None)
