"""A call of the class of a message or of a result ended the process with the first look at the object.

Room: tests/issues. Such objects hold pointers into mapped files, which only a store or a reader can give them.
"""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

import mqfast
from mqfast.store.get.get_records import GetMessageResult


@pytest.mark.parametrize("made", [mqfast.StoredMessage, GetMessageResult])
def test_a_class_whose_objects_come_from_a_store_refuses_a_call(made: type) -> None:
    with pytest.raises(TypeError, match="comes from a store"):
        made()


def test_copies_of_a_message_are_made_all_the_same(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as store:
        store.put("T", b"x")
        (message,) = store.get("T", 0, 0)
        for copied in (copy.copy(message), copy.deepcopy(message), pickle.loads(pickle.dumps(message))):
            assert bytes(copied.body) == b"x"
