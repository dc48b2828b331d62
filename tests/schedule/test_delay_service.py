"""Delivery of delay levels: in time, in order, once, over restarts, clocks that jump and puts that fail.

Room: tests/schedule. The store is real, its clock stands until a test moves it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from clocked import START_MS, Clocked, golden_records
from conftest import copy_of, golden_cases
from laboratory import open_still, read_queue

from mqfast import properties as names
from mqfast.config import StoreConfig
from mqfast.errors import DiskFull
from mqfast.schedule.delay_levels import SCHEDULE_TOPIC, DelayLevels
from mqfast.schedule.delay_service import DelayService
from mqfast.store.meta.tables import ConfigTables


class Run(Clocked):
    """A store with its delay service."""

    def __init__(self, path: Path, **settings: Any) -> None:
        super().__init__(path, **settings)

    def open(self) -> None:
        super().open()
        self.levels = DelayLevels(self.config.delay_levels_ms)
        self.delivered: list[tuple[str, int, int]] = []
        self.service = DelayService(
            self.store, self.tables.delays, self.levels,
            on_delivered=lambda topic, queue, result: self.delivered.append((topic, queue, result.queue_offset)),
            clock=lambda: 0.0,
        )  # fmt: skip

    def send(self, level: int, body: bytes, topic: str = "T", queue_id: int = 0, **more: Any) -> None:
        place = self.levels.park(topic, queue_id, names.encode({"DELAY": level, **more}))
        assert place is not None
        self.store.engine.put_encoded(place.topic.encode(), place.queue_id, body, place.properties)

    def step(self, now_ms: int) -> int:
        self.at(now_ms)
        return self.service.run_once(now_ms)

    def bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        return [bytes(message.body) for message in read_queue(self.store, topic, queue_id, 0)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    running = Run(tmp_path / "s")
    yield running
    running.store.close()


def test_a_message_comes_when_its_time_has_come_and_not_before(run: Run) -> None:
    run.send(1, b"a")
    assert run.step(START_MS) == 1000
    assert run.step(START_MS + 999) == 1
    assert run.bodies() == []
    assert run.step(START_MS + 1000) > 0
    assert run.bodies() == [b"a"]
    assert run.step(START_MS + 5000) > 0
    assert run.bodies() == [b"a"]


def test_every_level_waits_for_its_own_delay(run: Run) -> None:
    for level in range(1, 19):
        run.send(level, b"%d" % level, queue_id=level % 4)
    for level in range(1, 19):
        due = START_MS + run.levels.delay_ms(level)
        run.step(due - 1)
        assert len(run.delivered) == level - 1
        run.step(due)
        assert len(run.delivered) == level
        assert run.delivered[-1][:2] == ("T", level % 4)


def test_a_level_delivers_in_the_order_of_its_queue(run: Run) -> None:
    for i in range(100):
        run.at(START_MS + i)
        run.send(1, b"%d" % i)
    for now in range(START_MS + 990, START_MS + 1120, 7):
        while run.step(now) == 0:
            pass
        assert len(run.bodies()) == max(0, min(100, now - START_MS - 999))
    assert run.bodies() == [b"%d" % i for i in range(100)]


def test_a_turn_is_short_however_much_is_due_and_no_level_waits_for_another(run: Run) -> None:
    for i in range(200):
        run.send(1, b"one %d" % i)
    for i in range(3):
        run.send(2, b"two %d" % i, "U")
    time_s = iter(range(10**6))
    run.service = DelayService(run.store, run.tables.delays, run.levels, turn_ms=1, clock=lambda: float(next(time_s)))
    turns = 0
    while run.step(START_MS + 10_000) == 0:
        turns += 1
        if turns == 2:
            assert len(run.bodies("U")) == 3
            assert len(run.bodies()) <= 32
    assert turns >= 12
    assert len(run.bodies()) == 200


@pytest.mark.parametrize("release", ["5.3.3", "5.5.0"])
def test_delivered_records_are_javas_but_for_times_and_places(tmp_path: Path, release: str) -> None:
    """Each golden parked record is parked here and delivered; what Java delivered of it is compared field by field."""
    (case,) = golden_cases(release, ("normal-clean",))
    records = list(golden_records(case))
    unique = names.UNIQ_KEY
    parked = [(topic, m) for topic, m in records if topic == SCHEDULE_TOPIC]
    theirs = {
        (m.properties[unique], m.reconsume_times): (topic, m)
        for topic, m in records
        if topic != SCHEDULE_TOPIC and names.REAL_TOPIC in m.properties and names.DELAY in m.properties
    }
    run = Run(tmp_path / "s")
    compared = 0
    for _, m in parked:
        run.store.engine.put_encoded(
            SCHEDULE_TOPIC.encode(), m.queue_id, bytes(m.body), m.properties_bytes, m.flag, m.sys_flag,
            m.born_timestamp, None, None, m.reconsume_times,
        )  # fmt: skip
        while run.step(run.now_ms + 7_200_000) == 0:
            pass
        if (m.properties[unique], m.reconsume_times) not in theirs:
            continue  # was still parked when the golden broker ended
        topic, their = theirs[m.properties[unique], m.reconsume_times]
        ours = next(x for x in reversed(list(read_queue(run.store, topic, their.queue_id, 0))))
        for field in ("properties_bytes", "flag", "sys_flag", "born_timestamp", "reconsume_times", "body_crc",
                      "prepared_transaction_offset", "magic", "size"):  # fmt: skip
            assert getattr(ours, field) == getattr(their, field), field
        assert bytes(ours.body) == bytes(their.body)
        compared += 1
    assert compared >= 4
    run.store.close()


def test_a_committed_delayed_message_is_delivered_without_its_prepared_offset(run: Run) -> None:
    place = run.levels.park("T", 0, names.encode({"DELAY": 1}), 8)
    assert place is not None
    run.store.engine.put_encoded(
        place.topic.encode(), place.queue_id, b"x", place.properties, sys_flag=8, prepared_transaction_offset=77
    )
    run.step(START_MS + 1000)
    (message,) = read_queue(run.store, "T", 0, 0)
    assert (message.sys_flag, message.prepared_transaction_offset) == (8, 0)


# --- progress ---------------------------------------------------------------------------------------------------------


def test_progress_is_on_disk_after_a_stop_and_nothing_comes_twice(run: Run) -> None:
    for i in range(5):
        run.send(1, b"%d" % i)
    run.send(2, b"later")
    run.step(START_MS + 1000)
    run.service.stop()
    run.tables.persist()
    assert ConfigTables.load(run.path, run.config).delays.offsets()[1] == 5
    run.reopen()
    run.step(START_MS + 2000)
    assert run.bodies() == [b"%d" % i for i in range(5)]
    run.step(START_MS + 5000)
    assert run.bodies()[5:] == [b"later"]


def test_progress_is_never_noted_ahead_of_the_disk(run: Run) -> None:
    run.send(1, b"a")
    run.step(START_MS + 1000)
    run.step(START_MS + 1001)
    assert run.service.offset(1) == 1
    assert run.tables.delays.get(1) == 0  # no thread flushes this store
    run.store.flush()
    run.step(START_MS + 1002)
    run.step(START_MS + 1003)
    assert run.tables.delays.get(1) == 1


def test_without_the_last_offsets_messages_are_redelivered_and_none_is_lost(run: Run) -> None:
    for i in range(4):
        run.send(1, b"%d" % i)
    run.step(START_MS + 1000)
    run.reopen()  # no stop of the service: as after a kill
    run.step(START_MS + 1001)
    assert run.bodies() == [b"0", b"1", b"2", b"3"] * 2


def test_an_offset_below_min_offset_is_moved_to_min_offset(tmp_path: Path) -> None:
    run = Run(tmp_path / "s", mapped_file_bytes_commit_log=4096, mapped_file_bytes_consume_queue=200)
    for i in range(60):
        run.send(1, b"x" * 400, KEYS=i)
    queue: Any = run.store.engine.queues.get(SCHEDULE_TOPIC, 0)
    first = run.store.engine.unit_at(SCHEDULE_TOPIC, 0, 30).physical_offset
    queue.delete_expired(first)
    least = run.store.min_offset(SCHEDULE_TOPIC, 0)
    assert 0 < least < 60
    while run.step(START_MS + 1000) == 0:
        pass
    assert len(run.bodies()) == 60 - least
    run.store.close()


def test_an_offset_behind_the_queue_goes_back_to_its_end(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    run.send(1, b"a")
    run.tables.delays.set(1, 40)
    service = DelayService(run.store, run.tables.delays, run.levels)
    assert service.offset(1) == 1
    assert "goes on at 1" in caplog.text
    run.send(1, b"b")
    service.run_once(START_MS + 1000)
    assert run.bodies() == [b"b"]


def test_the_store_of_a_java_broker_is_resumed_at_its_delay_offsets(tmp_path: Path) -> None:
    (case,) = golden_cases("5.5.0", ("normal-clean",))
    path = copy_of(case, tmp_path)
    config = StoreConfig.from_kwargs(**case.settings)
    tables = ConfigTables.load(path, config)
    with open_still(path, config=config, tables=tables) as store:
        service = DelayService(store, tables.delays, DelayLevels(config.delay_levels_ms))
        before = store.max_offset("DelayTopic", 0), store.max_offset("DelayTopic", 1)
        late = max(row[5] for row in case.expected["log"] if row[2] == SCHEDULE_TOPIC)
        assert service.run_once(late - 7_200_000) > 0
        assert (store.max_offset("DelayTopic", 0), store.max_offset("DelayTopic", 1)) == before
        service.run_once(late)
        # Level 18 and the level that was capped to it were still parked.
        assert store.max_offset("DelayTopic", 0) + store.max_offset("DelayTopic", 1) == sum(before) + 2


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("back_ms", [1, 500, 1000, 3000, 4999, 5000, 5001, 60_000, 86_400_000])
def test_a_clock_set_back_neither_delivers_early_nor_stalls(run: Run, back_ms: int) -> None:
    run.send(2, b"before")  # 5 s
    run.step(START_MS)
    now = START_MS + 1500 - back_ms  # 1.5 s have passed
    real_ms = 1500
    run.step(now)
    run.send(2, b"after")
    came: dict[bytes, int] = {}
    while len(came) < 2 and real_ms < 30_000:
        now += 100
        real_ms += 100
        run.step(now)
        for body in run.bodies():
            came.setdefault(body, real_ms)
    assert 5000 <= came[b"before"] <= 5000 + 5000 + 1600
    assert came[b"after"] - 1500 >= 5000
    assert came[b"after"] - 1500 <= 5000 + 5000 + 100


def test_a_unit_without_a_time_counts_from_its_store_time(tmp_path: Path) -> None:
    """4.9.7 rebuilds such units with the hash of their tags after a kill."""
    (case,) = golden_cases("4.9.7", ("killed-no-queues",))
    path = copy_of(case, tmp_path)
    parked = [row for row in case.expected["log"] if row[2] == SCHEDULE_TOPIC]
    config = StoreConfig.from_kwargs(**case.settings)
    tables = ConfigTables.load(path, config)
    with open_still(path, config=config, tables=tables) as store:
        service = DelayService(store, tables.delays, DelayLevels(config.delay_levels_ms))
        first = min(row[6] for row in parked)
        service.run_once(first + 999)
        assert service.offset(1) == 0
        service.run_once(first + 86_400_000)
        assert service.offset(1) == sum(1 for row in parked if row[3] == 0)


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_an_undeliverable_message_is_logged_and_skipped(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    engine = run.store.engine
    for text in (b"DELAY\x011\x02", names.encode({"DELAY": 1, "REAL_TOPIC": "RMQ_SYS_TRANS_HALF_TOPIC", "REAL_QID": 0}),
                 names.encode({"DELAY": 1, "REAL_TOPIC": "T", "REAL_QID": 2**40})):  # fmt: skip
        engine.put_encoded(SCHEDULE_TOPIC.encode(), 0, b"bad", text)
    run.send(1, b"good")
    run.step(START_MS + 1000)
    assert run.bodies() == [b"good"]
    assert caplog.text.count("cannot be delivered") == 3
    assert "offset 0 (physical offset 0)" in caplog.text


def test_a_failed_put_is_retried_until_success(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.send(1, b"a")
    run.send(1, b"b")
    engine = run.store.engine
    real = engine.put_stored
    fails = [True]

    class Engine:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine, name)

        def put_stored(self, *args: Any, **options: Any) -> Any:
            if fails[0]:
                raise DiskFull("no space")
            return real(*args, **options)

    class Store:
        def __getattr__(self, name: str) -> Any:
            return getattr(run.store, name)

        engine = Engine()

    service = DelayService(Store(), run.tables.delays, run.levels, clock=lambda: 0.0)  # type: ignore[arg-type]
    assert service.run_once(START_MS + 1000) == 100
    assert service.run_once(START_MS + 1050) == 50
    fails[0] = False
    assert service.run_once(START_MS + 1100) > 0
    assert run.bodies() == [b"a", b"b"]
