"""ACL 2.0: the rules of each user, and the check of a request against them.

Without a matching rule a request is denied. Of two rules that match equally well, the denying rule counts (also
RocketMQ's documented order, but its code sorts in the opposite order). RocketMQ stores rules in RocksDB; here they are
in ``config/authAcls.json``. Source: AuthorizationMetadataManagerImpl, AclAuthorizationHandler, Resource, PolicyEntry.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from msgspec import Struct

from mqfast.broker.acl.addresses import is_in_network, is_network
from mqfast.broker.acl.required_permissions import NAME_MAX, Need
from mqfast.broker.acl.terms import Action, Decision, Kind, PolicyType, word
from mqfast.broker.acl.users import denied
from mqfast.errors import CallRefused, CorruptFile, FieldError
from mqfast.remoting.bodies import build_tables, decode_body, encode_body
from mqfast.util.atomic_file import replace_file

__all__ = ["Acl", "PolicyEntry", "Policies", "Policy", "subject_of"]

_USER: Final = "User:"
_PERMITTED_MAX: Final = 10_000


class PolicyEntry(Struct, rename="camel", omit_defaults=True, frozen=True):
    """A rule in the wire format."""

    resource: str | None = None
    actions: list[str] | None = None
    source_ips: list[str] | None = None
    decision: str | None = None


class Policy(Struct, rename="camel", omit_defaults=True, frozen=True):
    """Rules of the same type."""

    policy_type: str | None = None
    entries: list[PolicyEntry] | None = None


class Acl(Struct, rename="camel", omit_defaults=True, frozen=True):
    """Body of 3006 and 3007, and of the responses to 3009 and 3010: AclInfo."""

    subject: str | None = None
    policies: list[Policy] | None = None


class _File(Struct):
    acls: dict[str, Acl] = {}


class _Resource(NamedTuple):
    kind: Kind
    name: str | None  # None: every name
    is_prefix: bool = False

    def __str__(self) -> str:
        if self.kind is Kind.ANY:
            return "*"
        return f"{self.kind}:{'*' if self.name is None else self.name + '*' * self.is_prefix}"

    def fits(self, kind: Kind, name: str) -> bool:
        """Return True if the rule names this resource."""
        if self.kind is Kind.ANY:
            return True
        if self.kind is not kind:
            return False
        return self.name is None or (name.startswith(self.name) if self.is_prefix else name == self.name)

    @property
    def closeness(self) -> tuple[bool, int, int]:
        """Return the order: a kind before any, a name before a prefix before all, a longer prefix first."""
        return self.kind is Kind.ANY, 2 if self.name is None else int(self.is_prefix), -len(self.name or "")


def _resource(text: str | None) -> _Resource:
    if not (text or "").strip():
        raise denied("The resource is null.")
    if text == "*":
        return _Resource(Kind.ANY, None)
    kind, colon, name = str(text).partition(":")
    resource_kind = word(Kind, kind)
    if resource_kind is None or not colon:
        raise denied("The resource is null.")
    if name == "*":
        return _Resource(resource_kind, None)
    return _Resource(resource_kind, name.partition("*")[0] if name.endswith("*") else name, name.endswith("*"))


class _Rule(NamedTuple):
    resource: _Resource
    actions: frozenset[Action]
    source_ips: tuple[str, ...]
    decision: Decision

    def fits(self, need: Need, name: str, address: str) -> bool:
        return (
            self.resource.fits(need.kind, name)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(need.actions))
            and (not self.source_ips or any(is_in_network(address, network) for network in self.source_ips))
        )

    def shown(self) -> PolicyEntry:
        actions = [action.value for action in Action if action in self.actions]
        return PolicyEntry(str(self.resource), actions, list(self.source_ips) or None, self.decision.value)


def _rule(entry: PolicyEntry) -> _Rule:
    resource = _resource(entry.resource)
    actions = frozenset(action for text in entry.actions or () if (action := word(Action, text)) is not None)
    if not actions:
        raise denied("The actions is empty.")
    if Action.ANY in actions:
        raise denied("The actions can not be Any.")
    for address in entry.source_ips or ():
        if not address.strip():
            raise denied("The source ip is empty.")
        if not is_network(address):
            raise denied("The source ip is invalid.")
    decision = word(Decision, entry.decision)
    if decision is None:
        raise denied("The decision is null or illegal.")
    return _Rule(resource, actions, tuple(entry.source_ips or ()), decision)


_Rules = dict[PolicyType, dict[_Resource, _Rule]]


def _rules(acl: Acl) -> _Rules:
    if not acl.policies:
        raise denied("The policies is empty.")
    rules: _Rules = {}
    for policy in acl.policies:
        if not policy.entries:
            raise denied("The policy entries is empty.")
        kind = word(PolicyType, policy.policy_type) or PolicyType.CUSTOM
        for entry in policy.entries:
            rule = _rule(entry)
            rules.setdefault(kind, {})[rule.resource] = rule
    return rules


def subject_of(text: str | None) -> str | None:
    """Return ``User:name`` in the table's form; None for a text without a user."""
    kind, colon, name = (text or "").partition(":")
    return _USER + name if colon and kind.lower() == "user" and name else None


class Policies:
    """All rules, by subject.

    Args: path: of the file. cluster: name of the broker's cluster.
    Raises: CorruptFile, OSError for an invalid or unreadable file.
    """

    def __init__(self, path: Path, cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        self._rules: dict[str, _Rules] = {}
        self._permitted: set[tuple[str, Need, str]] = set()  # by these rules
        if path.exists():
            try:
                acls = decode_body(path.read_bytes(), _File, "acls").acls
                self._rules = {subject: _rules(acl) for subject, acl in acls.items()}
            except (FieldError, CallRefused) as error:
                raise CorruptFile(f"the rules cannot be read ({error}); repair the file", path=str(path)) from None

    def authorize(self, user: str, need: Need, address: str) -> None:
        """Check whether this user may do any of the actions. Raises: CallRefused."""
        request = user, need, address
        if request in self._permitted:
            return
        self._compare(*request)
        if len(need.name) > NAME_MAX:
            return
        if len(self._permitted) >= _PERMITTED_MAX:
            self._permitted.clear()
        self._permitted.add(request)

    def _compare(self, user: str, need: Need, address: str) -> None:
        subject = _USER + user
        name = self._cluster if need.kind is Kind.CLUSTER else need.name
        fitting: list[_Rule] = []
        for kind in PolicyType:
            rules = self._rules.get(subject, {}).get(kind, {}).values()
            fitting = fitting or [rule for rule in rules if rule.fits(need, name, address)]
        best = min(
            fitting, key=lambda rule: (rule.resource.closeness, rule.decision is not Decision.DENY), default=None
        )
        if best is None or best.decision is Decision.DENY:
            why = "no matched policies." if best is None else "the decision is deny."
            raise denied(f"{subject} has no permission to access {need.kind}:{name} from {address}, {why}")

    # -- changes and queries of admins ---------------------------------------------------------------------------------

    def put(self, subject: str, acl: Acl) -> None:
        """Add rules; a rule for the same resource is replaced. Raises: CallRefused, OSError."""
        old, new = self._rules.get(subject, {}), _rules(acl)
        kinds = [kind for kind in PolicyType if kind in old or kind in new]
        merged = {kind: {**old.get(kind, {}), **new.get(kind, {})} for kind in kinds}
        self._write({**self._rules, subject: merged})

    def delete(self, subject: str, policy_type: str | None = None, resource: str | None = None) -> None:
        """Remove the rule for a resource, or all rules of the subject. Raises: CallRefused, OSError."""
        if subject not in self._rules:
            raise denied("The acl is not exist.")
        remaining: _Rules = {}
        if (resource or "").strip():
            removed, kind = _resource(resource), word(PolicyType, policy_type) or PolicyType.CUSTOM
            remaining = {
                other: kept
                for other, rules in self._rules[subject].items()
                if (kept := {name: rule for name, rule in rules.items() if other is not kind or name != removed})
            }
        self._write({**self._without(subject), **({subject: remaining} if remaining else {})})

    def forget(self, subject: str) -> None:
        """Remove the rules of a deleted subject. Raises: OSError."""
        if subject in self._rules:
            self._write(self._without(subject))

    def _without(self, subject: str) -> dict[str, _Rules]:
        return {other: rules for other, rules in self._rules.items() if other != subject}

    def get(self, subject: str) -> Acl | None:
        """Return the rules of a subject in the wire format."""
        rules = self._rules.get(subject)
        return None if rules is None else _shown(subject, rules)

    def listed(self, subject_part: str | None, resource_part: str | None) -> list[Acl]:
        """Return rules by parts of the names of subjects and resources."""
        return list(self._listed(subject_part or "", resource_part or ""))

    def _listed(self, subject_part: str, resource_part: str) -> Iterator[Acl]:
        for subject in sorted(self._rules):
            shown = {
                kind: kept
                for kind, rules in self._rules[subject].items()
                if (kept := {name: rule for name, rule in rules.items() if resource_part in str(name)})
            }
            if subject_part in subject and shown:
                yield _shown(subject, shown)

    def _write(self, rules: dict[str, _Rules]) -> None:
        replace_file(
            self._path,
            encode_body(_File({subject: _shown(subject, subject_rules) for subject, subject_rules in rules.items()})),
        )
        self._rules = rules
        self._permitted.clear()


def _shown(subject: str, rules: _Rules) -> Acl:
    return Acl(subject, [Policy(kind.value, _entries(kind_rules.values())) for kind, kind_rules in rules.items()])


def _entries(rules: Iterable[_Rule]) -> list[PolicyEntry]:
    return [rule.shown() for rule in rules]


build_tables(__name__)
