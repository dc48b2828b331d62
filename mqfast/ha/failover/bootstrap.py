"""The choice of a leader by an operator, for stores that do not determine a leader, or whose better copies are lost.

A plan is made without a write. The written record begins a new sequence, with a newer epoch than any store has: the
chosen broker leads by this record, and the others follow. Nothing is written beside a master, or over a record that
changed since the plan was made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mqfast.errors import MqfastError, UsageError
from mqfast.ha.failover.etcd import Compare, Etcd
from mqfast.ha.failover.etcd_state import Keys, State
from mqfast.ha.failover.leader_election import View, contradiction, decide, ids_text

__all__ = ["BootstrapPlan", "carry_out_bootstrap", "plan_bootstrap"]


@dataclass(frozen=True)
class BootstrapPlan:
    """The brokers found, and the record that would be written.

    Attributes: view: of etcd; leader: the broker that is to lead, 0 without a leader; epoch: of the new record;
        refusals: reasons against the bootstrap; warnings.
    """

    name: str
    view: View
    leader: int = 0
    epoch: int = 0
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        state = self.view.state
        lines = [f"brokers of {self.name}, as etcd has them"]
        if state is None:
            lines.append("  record: none")
        else:
            lines.append(
                f"  record: epoch {state.epoch} of broker {state.master}, in sync: broker {ids_text(state.in_sync)}"
            )
        for copy in sorted(self.view.copies.values(), key=lambda copy: copy.id):
            lines.append(f"  broker {copy.id}: epoch {copy.epoch}, log to {copy.end}")
        lines += [f"  note: {text}" for text in self.warnings]
        if self.refusals:
            return "\n".join([*lines, *(f"  refused: {text}" for text in self.refusals)])
        return "\n".join([*lines, f"  broker {self.leader} leads, with a record that begins at epoch {self.epoch}"])


def plan_bootstrap(
    name: str,
    view: View,
    *,
    leader: int | None = None,
    named: frozenset[int] = frozenset(),
    accept_loss: bool = False,
) -> BootstrapPlan:
    """Plan a record that begins a new sequence.

    Args: leader: broker id, None for the newest copy; named: the brokers of the name by the settings; accept_loss: do
        not refuse because of messages that only the other brokers have or may have.
    """
    copies = view.copies
    if view.leader is not None:
        text = f"broker {view.leader.member.id} is the master of epoch {view.leader.epoch}; end that broker first"
        return BootstrapPlan(name, view, refusals=[text])
    if not copies:
        text = "no broker of this name is there; start the brokers first, with the settings that this command was given"
        return BootstrapPlan(name, view, refusals=[text])
    newest = max(copies.values(), key=lambda copy: (copy.epoch, copy.end, -copy.id))
    chosen = newest.id if leader is None else leader
    if chosen not in copies:
        text = f"broker {chosen} is not there, or has a master; there is broker {ids_text(copies)}"
        return BootstrapPlan(name, view, refusals=[text])
    epoch = max([0 if view.state is None else view.state.epoch, *(copy.epoch for copy in copies.values())]) + 1
    plan = BootstrapPlan(name, view, chosen, epoch)
    state = view.state
    if state is not None and all(contradiction(state, copy) is None for copy in copies.values()):
        if state.may_lead(chosen, copies[chosen].epoch):
            plan.refusals.append(f"the record is in force, and broker {chosen} is in sync: that broker leads by itself")
            return plan
        loss = f"the record is in force: what broker {ids_text(state.in_sync)} alone has is lost"
    else:
        decision = decide(copies, named)
        if decision.leader == chosen:
            plan.refusals.append(f"{decision.why}: broker {chosen} leads by itself")
            return plan
        loss = f"{decision.why}; what the other brokers alone have is cut there, and kept in a folder repair-<time>"
        if decision.leader is None and not decision.waits_for and len(copies) == 1 and not named:
            plan.warnings.append(loss)  # no store or setting names another broker
            return plan
    if accept_loss:
        plan.warnings.append(f"{loss} (--accept-loss)")
    else:
        plan.refusals.append(f"{loss}; --accept-loss does it all the same")
    return plan


def carry_out_bootstrap(etcd: Etcd, keys: Keys, plan: BootstrapPlan) -> None:
    """Write the record.

    Raises: UsageError for a plan with refusals, EtcdUnreachable, MqfastError if etcd changed since the plan was made;
        nothing is written then.
    """
    if plan.refusals:
        raise UsageError(f"bootstrap of {plan.name}: refused: {'; '.join(plan.refusals)}")
    view, leader = plan.view, plan.leader
    revision = 0 if view.state is None else view.state.revision
    compares = [Compare(keys.leader, 0), Compare(keys.state, revision, revision > 0)]
    compares += [Compare(f"{keys.copies}{copy.id}", copy.revision, True) for copy in view.copies.values()]
    state = State(plan.epoch, leader, frozenset({leader}), view.copies[leader].epoch, since=plan.epoch)
    if etcd.write(compares, [(keys.state, state.encoded(), 0)]) is None:
        raise MqfastError(f"bootstrap of {plan.name}: something has changed since the plan was made; look again")
