"""ConfigTables: the tables of ``config/``, owned by the opener of a store, such as a broker.

A store that is opened with ``tables=`` uses these objects and neither reads nor writes their files. The caller of
``load`` calls ``persist``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final, Self

from mqfast.config import StoreConfig
from mqfast.errors import MqfastError
from mqfast.store.base import paths as _paths
from mqfast.store.base.os_api import OsApi
from mqfast.store.meta.json_table import JsonTable
from mqfast.store.meta.metadata import ConsumerFilterTable, DelayOffsetTable, SubscriptionGroupTable, TopicConfigTable
from mqfast.store.meta.offsets import ConsumerOffsets

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ConfigTables"]


class ConfigTables:
    """Topics, consumer offsets, groups, delay offsets, filters, orderly POP and request modes of a store directory.

    Attributes: ``topics``, ``offsets``, ``groups``, ``delays``, ``filters``, ``orders``, ``modes``; each persists by
        itself, too.
    Thread: any.
    """

    def __init__(self, path: str | os.PathLike[str], config: StoreConfig, os_api: OsApi) -> None:
        self.path: Final = _paths.root_of(path, os_api)
        paths = _paths.StorePaths(self.path, config.commit_log_dirs)
        step = config.consumer_offset_update_version_step
        self.topics: Final = TopicConfigTable.load(os_api, paths.topics)
        self.offsets: Final = ConsumerOffsets.of_store(os_api, paths, lmq=config.enable_lmq, version_step=step)
        self.groups: Final = SubscriptionGroupTable.load(os_api, paths.subscription_group)
        self.delays: Final = DelayOffsetTable.load(os_api, paths.delay_offset)
        self.filters: Final = ConsumerFilterTable.load(os_api, paths.consumer_filter)
        self.orders: Final = JsonTable.load(os_api, paths.consumer_order_info)
        self.modes: Final = JsonTable.load(os_api, paths.message_request_mode)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], config: StoreConfig | None = None, *, os_api: OsApi | None = None
    ) -> Self:
        """Read the tables of the store at ``path``; missing tables are empty. Nothing is created on the disk.

        Args: config: the config of the store.
        Raises: CorruptFile if neither a file nor the backup can be read; StorageError.
        """
        return cls(path, config or StoreConfig(), os_api or OsApi())

    @property
    def warnings(self) -> list[str]:
        """Problems at load, one sentence each."""
        tables = (self.topics, self.offsets, self.groups, self.delays, self.filters, self.orders, self.modes)
        return [text for table in tables for text in table.warnings]

    def persist(self, before_offsets: Callable[[], object] | None = None) -> bool:
        """Put every changed table on disk. A table that cannot be written does not stop the other tables.

        Args: before_offsets: called when consumer offsets or batches of orderly POP are to be written; makes the
            messages durable that these pass (``store.log.flush``), so that a group never skips a message after a power
            cut.
        Returns: True if anything was written. Raises: StorageError of the first table that failed, after all were
        tried; exceptions of ``before_offsets``.
        Durability: when the call returns, the tables survive power loss.
        """
        persists: list[Callable[[], bool]] = [
            self.topics.persist,
            self.groups.persist,
            self.delays.persist,
            self.filters.persist,
            partial(self.orders.persist, before_offsets),
            self.modes.persist,
            partial(self.offsets.persist, before_offsets),
        ]
        written = False
        failures: list[MqfastError] = []
        for persist in persists:
            try:
                written = persist() or written
            except MqfastError as error:
                failures.append(error)
        if failures:
            raise failures[0]
        return written
