"""Plans of changes: made by a call, kept for minutes, and done at most once by a second call with the id.

Must never run a plan twice, or after its time, or where changes are not allowed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from mqfast.console.page import Page
from mqfast.errors import Refused, UnknownName

__all__ = ["Plan", "Plans"]

_PLANS_MAX: Final = 100
_PLAN_S: Final = 600.0


@dataclass
class Plan:
    """A change that waits for its confirmation. Attributes: text: what the change does; run: does the change."""

    plan_id: str
    text: str
    effect: Any
    run: Callable[[], Awaitable[Page]]
    ends_s: float

    def row(self) -> dict[str, Any]:
        """Return the plan for a caller."""
        return {
            "plan_id": self.plan_id,
            "change": self.text,
            "effect": self.effect,
            "valid_s": round(self.ends_s - time.monotonic()),
            "next": "show the plan to a person; after the person has agreed, call confirm with plan_id",
        }


class Plans:
    """The plans of a server. Args: allow_changes: else every plan is refused. Thread: that of the event loop."""

    def __init__(self, allow_changes: bool) -> None:
        self._allow_changes = allow_changes
        self._plans: dict[str, Plan] = {}

    def check_allowed(self) -> None:
        """Raise Refused where changes are not allowed."""
        if not self._allow_changes:
            raise Refused("this server is read-only; mqfast mcp --allow-changes allows plans and changes")

    def add(self, text: str, effect: Any, run: Callable[[], Awaitable[Page]]) -> Plan:
        """Keep a change. Raises: Refused."""
        self.check_allowed()
        now = time.monotonic()
        self._plans = {name: plan for name, plan in self._plans.items() if plan.ends_s > now}
        if len(self._plans) >= _PLANS_MAX:
            del self._plans[next(iter(self._plans))]
        plan = Plan(secrets.token_hex(8), text, effect, run, now + _PLAN_S)
        self._plans[plan.plan_id] = plan
        return plan

    def claim(self, plan_id: str) -> Plan:
        """Return a plan and forget the plan. Raises: Refused, UnknownName for an unknown, used or old plan."""
        self.check_allowed()
        plan = self._plans.pop(plan_id, None)
        if plan is None or plan.ends_s <= time.monotonic():
            raise UnknownName(f"plan_id: expected a plan that waits, found {plan_id[:40]!r}: used, too old, or unknown")
        return plan
