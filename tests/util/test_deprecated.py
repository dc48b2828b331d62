"""Former public names keep working and name their replacement."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqfast
from mqfast.store.base.os_api import OsApi
from mqfast.testing import Broker
from mqfast.util.deprecated import former_argument, former_name


def test_a_former_argument_reaches_the_current_one_with_a_warning(tmp_path: Path) -> None:
    calls = OsApi()
    with pytest.warns(DeprecationWarning, match="door is os_api now"):
        store = mqfast.open(tmp_path / "store", door=calls)  # type: ignore[call-arg]
    with store:
        assert store.os_api is calls
        offset = store.put("T", b"x").physical_offset
        with pytest.warns(DeprecationWarning, match="get_by_offset"):
            assert bytes(store.look(offset).body) == b"x"
    for function in (mqfast.verify, mqfast.repair, mqfast.StoreReader):
        with pytest.warns(DeprecationWarning, match="door is os_api now"):
            function(tmp_path / "store", door=calls)  # type: ignore[call-arg]


def test_a_former_setting_is_the_current_one_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="maps_max is max_mapped_files now"):
        config = mqfast.StoreConfig.from_kwargs(maps_max=40)  # type: ignore[call-arg]
    assert config.max_mapped_files == 40


def test_names_of_the_test_kit_keep_working() -> None:
    with Broker() as broker:
        with pytest.warns(DeprecationWarning, match="describe"):
            assert "topics:" in broker.picture()
        with pytest.warns(DeprecationWarning, match="trigger_rebalance"):
            broker.faults.shuffle_members()


def test_an_unknown_name_is_the_error_of_python() -> None:
    with pytest.raises(AttributeError, match="module 'm' has no attribute 'other'"):
        former_name("m", "other", {"former": object()})


def test_other_arguments_pass_without_a_warning() -> None:
    @former_argument("former", "current")
    def function(first: int, *, current: int = 0) -> tuple[int, int]:
        return first, current

    assert function(1, current=2) == (1, 2)
    with pytest.raises(TypeError, match="former"):
        function(1, current=2, former=3)  # type: ignore[call-arg]
