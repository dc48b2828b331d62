"""The file ``failoverState.json``: the newest etcd record that the broker has seen, and the brokers of its name.

With this file a broker detects that etcd has lost its record or was restored to an older record, and knows the other
brokers. A broker is never removed from the file automatically. Source: own design.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from mqfast.errors import CorruptFile, StoreNotFound
from mqfast.ha.failover.etcd import Value
from mqfast.ha.failover.etcd_state import State

if TYPE_CHECKING:
    from mqfast.store.base.paths import OsFiles

__all__ = ["KnownRecord"]

_NAME: Final = "failoverState.json"


class KnownRecord:
    """The file ``failoverState.json`` of one store.

    Attributes: ``state``: the newest record, None without a record; ``members``: ids of brokers of the name.
    Thread: no concurrent calls. Durability: every change is on the disk when the call returns.
    """

    def __init__(self, os_api: OsFiles, root: str) -> None:
        """Load the file. Raises: CorruptFile, StorageError."""
        self.path: Final = os.path.join(root, _NAME)
        self._os_api: Final = os_api
        self.state: State | None = None
        self.members: frozenset[int] = frozenset()
        try:
            data = os_api.read_file(self.path)
        except StoreNotFound:
            return
        try:
            fields = json.loads(data)
            if fields["state"] is not None:
                self.state = State.decoded(Value(json.dumps(fields["state"]).encode(), 0, int(fields["revision"]), 0))
            self.members = frozenset(int(member) for member in fields["members"])
        except (KeyError, TypeError, ValueError, CorruptFile):
            raise CorruptFile(
                "what this store knows of its brokers is damaged; without the file an operator decides who leads",
                path=self.path, expected="state, revision, members", found=repr(data[:60]),
            ) from None  # fmt: skip

    def note(self, state: State | None = None, members: Iterable[int] = ()) -> None:
        """Store a record that is in force, and more brokers. Raises: StorageError."""
        new_state = self.state if state is None else state
        new_members = self.members.union(members)
        if (new_state, new_members) == (self.state, self.members):
            return
        value = {
            "state": None if new_state is None else json.loads(new_state.encoded()),
            "revision": 0 if new_state is None else new_state.revision,
            "members": sorted(new_members),
        }
        self._os_api.replace_file(self.path, json.dumps(value).encode())
        self.state, self.members = new_state, new_members
