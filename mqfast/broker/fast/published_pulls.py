"""The pulls that reactors serve for a broker: publishes what Python has checked, and withdraws it before it changes.

No request is served here. A pull that Python has answered with messages is published: its group, queue and filter.
Later pulls of the same kind depend on nothing but the tables and settings that are watched here.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from mqfast.broker.fast.pull_table import PullTable
from mqfast.errors import StorageError
from mqfast.store.engine import GetLimits, UnitFilter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqfast.broker.context import BrokerContext
    from mqfast.broker.filter.queue_unit_filter import WantedUnits
    from mqfast.remoting.command import PullHeader
    from mqfast.remoting.reactor.reactor import Reactors
    from mqfast.store.meta.metadata import TopicConfig

__all__ = ["PublishedPulls"]

_SUBSCRIPTION: Final = 4
_EVERY_VERSION: Final = 2**63 - 1
_TEXT_MAX: Final = 4096
_IDLE_SCANS: Final = 10


class PublishedPulls:
    """The routes of the pulls of a broker.

    Args: publish_to: tells the pulls of Python where to publish; None: nowhere.
    Thread: that of the event loop, but for commits, which any thread takes.
    """

    def __init__(
        self, reactors: Reactors, context: BrokerContext, publish_to: Callable[[PublishedPulls | None], None]
    ) -> None:
        self._context: Final = context
        self._publish_to: Final = publish_to
        self._scans = 0
        self.table: Final = PullTable(reactors, context.engine)

    def start(self) -> None:
        """Watch all that routes depend on, and publish the pulls of Python from now on."""
        context = self._context
        context.config.listeners.append(self._withdraw_all)
        context.topics.on_change.append(self._topics_changed)
        context.groups.before_change = context.consumers.on_change = self._group_changes
        context.reset_offsets.before_assign = self._withdraw_queue
        context.offsets.waiting = self._commits
        context.pull_offsets.waiting = self.table.take_pulled
        context.stats.before_reading.append(self.add_counts)
        # A slave's log may be truncated, and with rejectPullConsumerEnable a pull depends on its connection.
        if self.table.is_possible and not context.config.is_slave:
            self._publish_to(self)

    def withdraw(self) -> None:
        """Leave all pulls to Python from now on."""
        self._publish_to(None)
        self._withdraw_all()

    def stop(self) -> None:
        """Leave all pulls to Python, and take what reactors have done."""
        context = self._context
        self.withdraw()
        self.table.close()
        self.add_counts()
        context.offsets.take_waiting()
        context.offsets.waiting = context.pull_offsets.waiting = None
        context.groups.before_change = context.consumers.on_change = lambda _group: None
        context.reset_offsets.before_assign = lambda _group, _topic: None
        context.stats.before_reading.remove(self.add_counts)
        context.topics.on_change.remove(self._topics_changed)
        context.config.listeners.remove(self._withdraw_all)

    def scan(self) -> None:
        """Let go removed files; of every tenth call, the routes that were not used since the one before."""
        self._scans += 1
        self.table.release_files(self._scans % _IDLE_SCANS == 0)

    def offer(
        self,
        header: PullHeader,
        topic: TopicConfig,
        group: dict[str, Any],
        wanted: WantedUnits,
        limits: GetLimits,
        next_offset: int,
    ) -> None:
        """Publish a pull that Python has answered with messages, unless it depends on more than is watched.

        Args: topic, group: their rules; wanted, limits: of the get; next_offset: of the next pull.
        """
        context, name = self._context, header.consumer_group
        config, members = context.config, context.consumers.group(name)
        if config["rejectPullConsumerEnable"] or (members is not None and members.message_model == "BROADCASTING"):
            return
        if not (wanted is None or isinstance(wanted, UnitFilter)) or "@" in name or "@" in header.topic:
            return
        is_own = bool(header.sys_flag & _SUBSCRIPTION)
        if is_own:
            version = _EVERY_VERSION
        else:
            subscription = None if members is None else members.subscriptions.get(header.topic)
            if subscription is None:
                return
            version = subscription.sub_version
        texts = name, header.topic, header.expression_type or "", header.subscription or ""
        near = group.get("brokerId", 0) if config["slaveReadEnable"] else 0
        far = group.get("whichBrokerWhenConsumeSlowly", 0) if config["slaveReadEnable"] else 0
        numbers = near, far, topic.sys_flag, group.get("groupSysFlag", 0), version
        if any(len(text) > _TEXT_MAX for text in texts) or not all(_is_plain(number) for number in numbers):
            return
        with contextlib.suppress(StorageError):  # Python goes on to serve what cannot be mapped twice
            self.table.publish(
                name, header.topic, header.queue_id, header.expression_type, header.subscription, is_own,
                offset=next_offset, sub_version=version, wanted=wanted, limits=limits,
                is_for_lite=bool(config["litePullMessageEnable"]), broker_id=near, far_broker_id=far,
                topic_sys_flag=topic.sys_flag, group_sys_flag=numbers[3],
            )  # fmt: skip

    # --- changes ---

    def _withdraw_all(self) -> None:
        self.table.withdraw()

    def _topics_changed(self, topics: list[str]) -> None:
        if not topics:
            self.table.withdraw()
        for topic in topics:
            self.table.withdraw(topic=topic)

    def _group_changes(self, group: str) -> None:
        self.table.withdraw(group)
        self._context.offsets.take_waiting()  # before a removal of the group: later, its commits would be left out

    def _withdraw_queue(self, group: str, topic: str) -> None:
        self.table.withdraw(group, topic)

    # --- what reactors have done ---

    def _commits(self) -> Iterable[tuple[str, str, int, int]]:
        """Return the commits that reactors have taken, by the rules of Python's pulls."""
        context = self._context
        return [
            commit
            for commit in self.table.take_commits()
            if context.reset_offsets.get(*commit[:3]) is None and commit[0] in context.groups.table
        ]

    def add_counts(self) -> None:
        """Count what reactors have sent."""
        for topic, group, calls, count, size in self.table.take_counts():
            self._context.stats.got_many(topic, group, calls, count, size)


def _is_plain(number: object) -> bool:
    """Return whether a number is written as digits, by Python and by reactors."""
    return type(number) is int and abs(number) < 2**63
