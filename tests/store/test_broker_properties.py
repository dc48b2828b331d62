"""Properties and bits on which only a broker acts: the store keeps them as they are, and delivers at once.

Room: tests of the store.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import mqfast
from mqfast.message import SysFlag

PROPERTIES = {
    "DELAY": "3",
    "TIMER_DELAY_SEC": "3600",
    "TIMER_DELAY_MS": "3600000",
    "TIMER_DELIVER_MS": "4102444800000",
    "TRAN_MSG": "true",
    "PGROUP": "group",
    "CHECK_IMMUNITY_TIME_IN_SECONDS": "60",
    "RETRY_TOPIC": "%RETRY%group",
    "REAL_TOPIC": "elsewhere",
    "REAL_QID": "7",
    "MAX_RECONSUME_TIMES": "1",
    "DLQ_ORIGIN_TOPIC": "elsewhere",
    "__STARTDELIVERTIME": "4102444800000",
}


@pytest.mark.parametrize("name", [*PROPERTIES, "all"])
def test_what_only_a_broker_acts_on_is_stored_and_delivered_at_once(name: str, tmp_path: Path) -> None:
    given = PROPERTIES if name == "all" else {name: PROPERTIES[name]}
    store = tmp_path / "store"
    with mqfast.open(store) as writer:
        writer.put("T", b"body", 1, properties=given, sys_flag=SysFlag.TRANSACTION_COMMIT, reconsume_times=17)
        (message,) = writer.get("T", 1, 0)
        assert (message.topic, message.queue_id, message.properties) == ("T", 1, given)
        assert [m.queue_offset for m in writer.consumer("g", "T")] == [0]
        assert writer.topics() == ["T"]
        writer.flush()
        shutil.copytree(store, tmp_path / "copy")
    for path in (store, tmp_path / "copy"):
        with mqfast.open(path) as writer:
            (message,) = writer.get("T", 1, 0)
            assert (message.topic, message.properties, message.reconsume_times) == ("T", given, 17)
            assert message.sys_flag == SysFlag.TRANSACTION_COMMIT


def test_a_half_of_a_transaction_is_in_the_log_and_in_no_queue(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store") as writer:
        half = writer.put("T", b"half", sys_flag=SysFlag.TRANSACTION_PREPARED, properties={"TRAN_MSG": "true"})
        writer.put("T", b"whole")
        assert writer.get("T", 0, 0).bodies() == [b"whole"]
        assert writer.get_by_offset(half.physical_offset).body == b"half"
