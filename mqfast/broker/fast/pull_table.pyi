"""Types of pull_table.pyx."""

from typing import Self

from mqfast.remoting.reactor.reactor import Reactors
from mqfast.store.core import Core
from mqfast.store.get.get_records import GetLimits
from mqfast.store.record.filter import UnitFilter

class PullTable:
    def __new__(cls, reactors: Reactors, core: Core) -> Self: ...
    def __len__(self) -> int: ...
    @property
    def is_possible(self) -> bool: ...
    def publish(
        self,
        group: str,
        topic: str,
        queue_id: int,
        expression_type: str | None,
        subscription: str | None,
        is_own: bool,
        *,
        offset: int,
        sub_version: int,
        wanted: UnitFilter | None,
        limits: GetLimits,
        is_for_lite: bool,
        broker_id: int,
        far_broker_id: int,
        topic_sys_flag: int,
        group_sys_flag: int,
    ) -> None: ...
    def withdraw(self, group: str | None = None, topic: str | None = None) -> None: ...
    def release_files(self, idle: bool) -> None: ...
    def close(self) -> None: ...
    def take_commits(self) -> list[tuple[str, str, int, int]]: ...
    def take_pulled(self) -> list[tuple[str, str, int, int]]: ...
    def take_counts(self) -> list[tuple[str, str, int, int, int]]: ...
