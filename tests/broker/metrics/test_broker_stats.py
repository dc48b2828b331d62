"""The counters of a broker and their rates, on a clock of the test's own."""

from __future__ import annotations

import pytest

from mqfast.broker.metrics.broker_stats import BrokerStats, Rate, Rates


class Clock:
    def __init__(self) -> None:
        self.ms = 1_000_000
        self.day = 7

    def stats(self) -> BrokerStats:
        return BrokerStats("Cluster", lambda topic: topic == "SYS", clock_ms=lambda: self.ms, today=lambda: self.day)

    def pass_seconds(self, stats: BrokerStats, seconds: int) -> None:
        for _ in range(seconds):
            self.ms += 1000
            stats.tick()


def test_puts_of_a_topic_have_sum_rate_and_average_of_the_last_minute() -> None:
    clock = Clock()
    stats = clock.stats()
    stats.put("T", 10, 1000)
    stats.put("T", 20, 3000)
    assert stats.rates("TOPIC_PUT_NUMS", "T") == Rates(Rate(0, 0.0, 0.0), Rate(0, 0.0, 0.0), Rate(0, 0.0, 0.0))
    clock.pass_seconds(stats, 10)
    rates = stats.rates("TOPIC_PUT_NUMS", "T")
    assert rates is not None
    assert rates.minute == Rate(30, 3.0, 15.0)
    sizes = stats.rates("TOPIC_PUT_SIZE", "T")
    assert sizes is not None
    assert sizes.minute == Rate(4000, 400.0, 2000.0)
    assert stats.put_tps("T") == 3.0
    clock.pass_seconds(stats, 80)
    assert stats.put_tps("T") == 0.0, "the minute is over"


def test_hour_and_day_follow_their_own_samples() -> None:
    clock = Clock()
    stats = clock.stats()
    stats.got("T", "g", 3600, 7200)
    clock.pass_seconds(stats, 599)
    rates = stats.rates("GROUP_GET_NUMS", "T@g")
    assert rates is not None
    assert rates.hour.sum == 0
    clock.pass_seconds(stats, 20)
    rates = stats.rates("GROUP_GET_NUMS", "T@g")
    assert rates is not None
    assert rates.hour == Rate(3600, 6.0, 3600.0)
    assert rates.day.sum == 0
    clock.pass_seconds(stats, 3000)
    rates = stats.rates("GROUP_GET_SIZE", "T@g")
    assert rates is not None
    assert rates.day == Rate(7200, 2.0, 7200.0)


def test_every_counter_has_its_turn_in_ten_seconds() -> None:
    clock = Clock()
    stats = clock.stats()
    for number in range(57):
        stats.put(f"T{number}", number, 1)
    stats.topic_deleted("T0")
    clock.pass_seconds(stats, 10)
    rates = [stats.rates("TOPIC_PUT_NUMS", f"T{number}") for number in range(1, 57)]
    assert [one.minute.sum for one in rates if one is not None] == list(range(1, 57))


def test_what_was_never_counted_is_unknown() -> None:
    stats = Clock().stats()
    assert stats.rates("TOPIC_PUT_NUMS", "T") is None
    assert stats.rates("NO_SUCH_NAME", "T") is None
    stats.add("SNDBCK_PUT_NUMS", "T@g", 2)
    assert stats.rates("SNDBCK_PUT_NUMS", "T@g") is not None
    assert stats.named("SNDBCK_PUT_NUMS")["T@g"].count == 2


def test_sums_of_the_broker_with_and_without_system_topics() -> None:
    stats = Clock().stats()
    stats.put("T", 1, 100)
    stats.put("SYS", 5, 500)
    stats.got("SYS", "g", 7, 700)
    assert stats.put_totals_all.count == 6
    assert stats.put_totals.count == 1
    assert (stats.get_totals_all.count, stats.get_totals.count) == (7, 0)
    found = stats.series("BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC", "Cluster")
    assert found is not None
    assert found[0].count == 1


def test_a_new_day_keeps_the_totals_of_its_morning() -> None:
    clock = Clock()
    stats = clock.stats()
    stats.put("T", 5, 5)
    clock.day += 1
    clock.pass_seconds(stats, 1)
    stats.got("T", "g", 2, 2)
    clock.day += 1
    clock.pass_seconds(stats, 1)
    assert (stats.yesterday, stats.morning) == ((5, 0), (5, 2))


def test_rates_of_the_broker_over_seconds() -> None:
    clock = Clock()
    stats = clock.stats()
    for _ in range(20):
        stats.put("T", 3, 3)
        stats.got("T", "g", 4, 4)
        stats.missed()
        clock.pass_seconds(stats, 1)
    assert stats.tps("put", 10) == 1.0
    assert stats.tps("transferred", 60) == 4.0, "since the start, where that is shorter"
    assert stats.tps("miss", 10) == stats.tps("found", 10) == 1.0
    clock.pass_seconds(stats, 700)
    assert stats.tps("put", 600) == 0.0


@pytest.mark.parametrize(("took_ms", "step"), [(0.4, 0), (1, 1), (9.9, 1), (10, 2), (9999, 11), (10_000, 12)])
def test_times_of_puts_fall_into_their_steps(took_ms: float, step: int) -> None:
    stats = Clock().stats()
    stats.put("T", 1, 1)
    stats.put_took(took_ms)
    counts = [int(text.rpartition(":")[2]) for text in stats.put_times_text().split()[: step + 1]]
    assert counts == [0] * step + [1]
    assert stats.put_latency_ms(0.99) >= took_ms - 1


def test_sizes_fall_into_their_steps() -> None:
    stats = Clock().stats()
    for size in (1, 1024, 1025, 5 * 1024**2):
        stats.put("T", 1, size)
    stats.put("T", 2, 2048)  # a batch: 1024 each
    assert stats.puts["T"].sizes == [4, 1, 0, 0, 0, 0, 1]


def test_a_deleted_topic_or_group_is_forgotten() -> None:
    stats = Clock().stats()
    for topic in ("T", "U"):
        stats.put(topic, 1, 1)
        for group in ("g", "h"):
            stats.got(topic, group, 1, 1)
            stats.add("SNDBCK_PUT_NUMS", f"{topic}@{group}")
    stats.topic_deleted("T")
    stats.group_deleted("h")
    assert list(stats.puts) == ["U"]
    assert list(stats.gets) == [("U", "g")]
    assert list(stats.named("SNDBCK_PUT_NUMS")) == ["U@g"]
    assert stats.put_totals.count == 2, "the broker's own sums stay"
