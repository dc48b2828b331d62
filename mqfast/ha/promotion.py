"""Promotion of a slave's store to a master's store: checks, plan and execution.

A plan is made without a write. A store is promoted only if its log is whole, reaches the last known end of the
master's log, and was not found diverged. The new epoch is on the disk before the first message is stored, so that
the old master can be fenced. A promotion truncates nothing. Source: AutoSwitchHAService.changeToMaster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mqfast.errors import CorruptFile, DataLoss, StorageError, StoreLocked, StoreNotFound, UsageError
from mqfast.ha.divergence import forget_divergence, load_divergence
from mqfast.ha.epoch_file import EpochFile
from mqfast.ha.term_history import NO_EPOCH
from mqfast.store.base.lock import StoreLock
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.verify import Severity, verify
from mqfast.store.message_store import open_store
from mqfast.store.meta.checkpoint import StoreCheckpoint

if TYPE_CHECKING:
    from mqfast.config import StoreConfig

__all__ = ["PromotionPlan", "carry_out", "plan_promotion"]

_SHOWN = 5
_MASTER = 0  # broker id of every master without fail-over


@dataclass(frozen=True)
class PromotionPlan:
    """The findings and steps of a promotion.

    Attributes: end: physical offset where the log ends; master_end: last known end of the master's log, 0: none is
        known; old_epoch, new_epoch; refusals: reasons against the promotion; warnings.
    """

    path: str
    end: int = 0
    master_end: int = 0
    old_epoch: int = NO_EPOCH
    new_epoch: int = 1
    refusals: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def behind_bytes(self) -> int:
        """Return the number of bytes of the master's log that are known to be missing."""
        return max(0, self.master_end - self.end)

    def __str__(self) -> str:
        before = "none" if self.old_epoch == NO_EPOCH else str(self.old_epoch)
        of_master = f"was known to end at {self.master_end}" if self.master_end else "has no end that is known here"
        lines = [
            f"promotion of {self.path}",
            f"  log: ends at {self.end}; its master's {of_master}",
            f"  epoch: {before} so far, {self.new_epoch} from physical offset {self.end} on",
            *(f"  note: {text}" for text in self.warnings),
        ]
        if self.refusals:
            return "\n".join([*lines, *(f"  refused: {text}" for text in self.refusals)])
        steps = (
            "open the store as a slave, recover, dispatch to the end of the log, close",
            f"write epoch {self.new_epoch} into epochFileCheckpoint: a master with an older epoch refuses messages",
            "start as master, with broker id 0",
        )
        return "\n".join([*lines, *(f"  {number}. {text}" for number, text in enumerate(steps, 1))])


def plan_promotion(
    path: str,
    config: StoreConfig,
    *,
    accept_loss: bool = False,
    os_api: OsApi | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PromotionPlan:
    """Check a store that no process has open; writes nothing but the lock file.

    Args: accept_loss: do not refuse a log that ends before its master's or has diverged.
    Raises: StorageError.
    """
    os_api = os_api or OsApi()
    plan = PromotionPlan(path)
    try:
        lock = StoreLock.acquire(os_api, f"{path}/lock")
    except StoreLocked as error:
        return replace(plan, refusals=[f"{error}; end that process first"])
    except (StorageError, StoreNotFound) as error:
        return replace(plan, refusals=[f"there is no store: {error}"])
    try:
        return _checked(plan, config, accept_loss, os_api, progress)
    finally:
        lock.release()


def _checked(
    plan: PromotionPlan,
    config: StoreConfig,
    accept_loss: bool,
    os_api: OsApi,
    progress: Callable[[int, int], None] | None,
) -> PromotionPlan:
    path, refusals, warnings = plan.path, plan.refusals, plan.warnings
    try:
        report = verify(path, config=config, os_api=os_api, progress=progress)
    except StoreNotFound as error:
        return replace(plan, refusals=[f"there is no store: {error}"])
    damages = [damage for damage in report.damages if damage.severity is Severity.DAMAGE]
    if damages:
        refusals += [str(damage) for damage in damages[:_SHOWN]]
        refusals.append(f"{len(damages)} damages: see 'mqfast store verify {path}', and 'mqfast store repair'")
    elif report.state != "clean":
        warnings.append("the last broker was killed; the store is recovered first")
    end = report.log_range[1]
    known = max(0, StoreCheckpoint.load(os_api, f"{path}/checkpoint").master_flushed_offset)
    if known > end:
        text = f"the log ends {known - end} bytes before its master's, which was known to end at {known}"
        if accept_loss:
            warnings.append(f"{text}: what is missing is lost (--accept-loss)")
        else:
            refusals.append(f"{text}; start the master, or promote another slave, or lose them with --accept-loss")
    if not known:
        warnings.append(
            "no end of the master's log is noted: this store was no slave, or has not taken the master's tables yet; "
            "compare the end with the master and the other slaves yourself"
        )
    try:
        mark = load_divergence(os_api, path)
    except CorruptFile as error:
        refusals.append(f"{error}; the log may be of another history than its master's: compare the two yourself")
        mark = None
    if mark is not None:
        text = f"{mark}: a promotion loses the master's {mark.missing_bytes} bytes from {mark.common} on"
        if accept_loss:
            warnings.append(f"{text} (--accept-loss)")
        else:
            refusals.append(f"{text}; promote the master's store or another slave, or lose them with --accept-loss")
    old = newest = NO_EPOCH
    try:
        epochs = EpochFile.load(os_api, path)
        old, newest = epochs.last_epoch, epochs.newest
        if epochs.damage is not None:  # the .bak file may lack an epoch, whose number would be assigned twice
            raise epochs.damage
        if epochs.entries and epochs.entries[-1].start > end:
            last = epochs.entries[-1]
            refusals.append(f"epoch {last.epoch} begins at {last.start}, behind the end of the log at {end}")
    except CorruptFile as error:
        refusals.append(f"{error}; remove the file only if you know that no newer epoch began elsewhere")
    return replace(plan, end=end, master_end=known, old_epoch=old, new_epoch=max(0, newest) + 1)


def carry_out(plan: PromotionPlan, config: StoreConfig, *, os_api: OsApi | None = None) -> None:
    """Recover the store as a slave, check the end of its log against the plan, and write the new epoch.

    Raises: UsageError for a plan with refusals; DataLoss if the recovered log ends before the planned end; no epoch is
        written then; as ``open_store``. Durability: the epoch is on the disk when the call returns.
    """
    if plan.refusals:
        raise UsageError(f"promotion of {plan.path}: refused: {'; '.join(plan.refusals)}")
    os_api = os_api or OsApi()
    with open_store(plan.path, config=replace(config, broker_role="SLAVE"), os_api=os_api) as store:
        store.flush()
        end = store.engine.raw.end
    if end < plan.end:
        raise DataLoss(f"promotion of {plan.path}: expected a log up to {plan.end}, found {end}; no epoch was written")
    EpochFile.load(os_api, plan.path).begin(plan.new_epoch, end, _MASTER)
    forget_divergence(os_api, plan.path)
