"""Logins of the console: one token for all users, sessions in memory, and the secret of forms.

Must never compare a secret in a time that depends on the secret, or keep more than ``_SESSIONS_MAX`` sessions.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

__all__ = ["Session", "Sessions"]

_SESSIONS_MAX: Final = 1000
_SESSION_S: Final = 12 * 3600.0
_FAILURES_MAX: Final = 10
_FAILURES_S: Final = 60.0


@dataclass
class Session:
    """A login. Attributes: form_secret: required in every form that changes something."""

    form_secret: str
    ends_s: float


class Sessions:
    """The sessions of a console. Args: token: for the login. Thread: that of the event loop."""

    def __init__(self, token: str) -> None:
        self._token = token.encode()
        self._sessions: dict[str, Session] = {}
        self._failures: deque[float] = deque(maxlen=_FAILURES_MAX)

    def is_token(self, text: str) -> bool:
        """Return whether a text is the token. A failure counts for ``is_blocked``."""
        if hmac.compare_digest(text.encode("utf-8", "surrogateescape"), self._token):
            return True
        self._failures.append(time.monotonic())
        return False

    @property
    def is_blocked(self) -> bool:
        """Return whether too many logins have failed in the last minute."""
        return len(self._failures) == _FAILURES_MAX and time.monotonic() - self._failures[0] < _FAILURES_S

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

    def end(self, number: str | None) -> None:
        """End a session."""
        self._sessions.pop(number or "", None)

    @staticmethod
    def is_form_of(session: Session, form_secret: str) -> bool:
        """Return whether a form was made for this session."""
        return hmac.compare_digest(form_secret.encode("utf-8", "surrogateescape"), session.form_secret.encode())
