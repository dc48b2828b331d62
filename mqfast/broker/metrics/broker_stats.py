"""The counters of a broker: messages and bytes in and out by topic and group, with rates of a minute, hour and day.

The parts of the broker count by ``put``, ``got``, ``missed`` and ``add``; a put only updates sums. ``tick`` takes
samples once a second, of a part of the counters each time, so that every second has little work.

No I/O and no clock except the given ones. Source: BrokerStatsManager, StatsItem, StoreStatsService, BrokerStats.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = ["PUT_TIME_BOUNDS_MS", "SIZE_BOUNDS", "BrokerStats", "PutSeries", "Rate", "Rates", "Series"]

SIZE_BOUNDS: Final = (1024, 4096, 512 * 1024, 1024**2, 2 * 1024**2, 4 * 1024**2)
"""Upper bounds of the histogram of message sizes, bytes; a last bucket counts larger messages."""

PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
"""Upper bounds of the steps of put times, ms."""
_PUT_TIME_NAMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_SECONDS_KEPT: Final = 600
# A window: seconds between samples, and number of samples.
_MINUTE: Final = (10, 7)
_HOUR: Final = (600, 7)
_DAY: Final = (3600, 25)
_WINDOWS: Final = (_MINUTE, _HOUR, _DAY)


class Rate(NamedTuple):
    """The sum of a window, per second, and per call."""

    sum: int
    tps: float
    avgpt: float


class Rates(NamedTuple):
    """A counter in its three windows (315)."""

    minute: Rate
    hour: Rate
    day: Rate


class Series:
    """A counter: count, bytes and calls, with samples.

    Attributes: ``count``, ``size``, ``times``: sums since the start; ``is_system``: whether the topic is a system topic
        of RocketMQ.
    """

    __slots__ = ("_samples", "count", "is_system", "size", "times")

    def __init__(self, is_system: bool = False) -> None:
        self.count = 0
        self.size = 0
        self.times = 0
        self.is_system = is_system
        self._samples: tuple[array[int] | None, ...] = (None, None, None)

    def sample(self, window: int, clock_ms: int) -> None:
        """Add the current sums to the samples of a window."""
        every_s, kept = _WINDOWS[window]
        samples = self._samples[window]
        if samples is None:
            # As in RocketMQ, the sums at the first sample count as those of one interval.
            samples = array("q", (clock_ms - every_s * 1000, 0, 0, 0))
            self._samples = (*self._samples[:window], samples, *self._samples[window + 1 :])
        samples.extend((clock_ms, self.count, self.size, self.times))
        if len(samples) > 4 * kept:
            del samples[:4]

    def rate(self, window: int, *, sizes: bool = False) -> Rate:
        """Return the rate by the samples of a window."""
        samples = self._samples[window]
        if samples is None:
            return Rate(0, 0.0, 0.0)
        column = 2 if sizes else 1
        total = samples[column - 4] - samples[column]
        calls = samples[-1] - samples[3]
        took_ms = samples[-4] - samples[0]
        return Rate(total, total * 1000 / took_ms if took_ms > 0 else 0.0, total / calls if calls > 0 else 0.0)


class PutSeries(Series):
    """The counter of a topic, with a histogram of message sizes."""

    __slots__ = ("sizes",)

    def __init__(self, is_system: bool = False) -> None:
        super().__init__(is_system)
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)


class BrokerStats:
    """All counters of a broker.

    Args:
        cluster: the key of the broker's own sums.
        is_system_topic: returns True for a system topic of RocketMQ. Called once per topic.
        clock_ms: monotonic ms.
        today: the number of the day; at the begin of a day the totals are stored as those of the morning.
    Attributes: ``before_reading``: called before counters are read: they add what other threads have counted.
    Thread: that of the event loop.
    """

    def __init__(
        self,
        cluster: str = "DefaultCluster",
        is_system_topic: Callable[[str], bool] = lambda _: False,
        *,
        clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 1_000_000,
        today: Callable[[], int] = lambda: time.localtime().tm_yday,
    ) -> None:
        self._is_system_topic = is_system_topic
        self._clock_ms = clock_ms
        self._today = today
        self._puts: dict[str, PutSeries] = {}
        self._gets: dict[tuple[str, str], Series] = {}
        self.before_reading: list[Callable[[], None]] = []
        self._put_totals = Series()
        self._get_totals = Series()
        self._put_totals_all = Series()
        self._get_totals_all = Series()
        self._named: dict[str, dict[str, Series]] = {
            "BROKER_PUT_NUMS": {cluster: self._put_totals_all},
            "BROKER_GET_NUMS": {cluster: self._get_totals_all},
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: self._put_totals},
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: self._get_totals},
        }
        self._misses = 0
        self._failures = 0
        self._put_times = [0] * len(_PUT_TIME_NAMES)
        self._put_time_max_ms = 0
        self._ticks = 0
        self._day = today()
        self.morning = (0, 0)
        """Messages put and got until the begin of this day."""
        self.yesterday = (0, 0)
        """Messages put and got until the begin of the day before."""
        self.started_ms = clock_ms()
        self._in_turn: list[Series] = list(self._all())
        self._seconds: deque[tuple[int, int, int, int, int]] = deque(maxlen=_SECONDS_KEPT + 1)
        self._second()

    # --- counting ---

    def put(self, topic: str, count: int, size: int) -> None:
        """Count stored messages; ``size``: their bytes in the log."""
        series = self._puts.get(topic)
        if series is None:
            series = self._puts[topic] = PutSeries(self._is_system_topic(topic))
            self._in_turn.append(series)
        series.count += count
        series.size += size
        series.times += 1
        each = size if count == 1 else size // max(1, count)
        series.sizes[bisect_left(SIZE_BOUNDS, each)] += count
        totals = self._put_totals_all
        totals.count += count
        totals.size += size
        totals.times += 1
        if not series.is_system:
            totals = self._put_totals
            totals.count += count
            totals.size += size
            totals.times += 1

    def put_many(self, topic: str, count: int, size: int, sizes: list[int]) -> None:
        """Count messages that were stored one by one. Args: sizes: their numbers by the steps of SIZE_BOUNDS."""
        self.put(topic, 0, 0)  # makes the counter of a new topic
        series = self._puts[topic]
        totals = [series, self._put_totals_all] + ([] if series.is_system else [self._put_totals])
        for each in totals:
            each.count += count
            each.size += size
            each.times += count - 1
        for step, number in enumerate(sizes):
            series.sizes[step] += number

    def got(self, topic: str, group: str, count: int, size: int) -> None:
        """Count messages sent to a group."""
        key = (topic, group)
        series = self._gets.get(key)
        if series is None:
            series = self._gets[key] = Series(self._is_system_topic(topic))
            self._in_turn.append(series)
        series.count += count
        series.size += size
        series.times += 1
        totals = self._get_totals_all
        totals.count += count
        totals.size += size
        totals.times += 1
        if not series.is_system:
            totals = self._get_totals
            totals.count += count
            totals.size += size
            totals.times += 1

    def got_many(self, topic: str, group: str, calls: int, count: int, size: int) -> None:
        """Count messages that were sent to a group by several gets."""
        self.got(topic, group, 0, 0)  # makes the counter of a new group
        series = self._gets[topic, group]
        for each in [series, self._get_totals_all] + ([] if series.is_system else [self._get_totals]):
            each.count += count
            each.size += size
            each.times += calls - 1

    def missed(self) -> None:
        """Count a get without a message."""
        self._misses += 1

    def put_failed(self) -> None:
        """Count a message that could not be stored."""
        self._failures += 1

    def put_took(self, took_ms: float) -> None:
        """Count the time of a put. Puts below a millisecond need no call: puts without a call count as such."""
        whole_ms = int(took_ms)
        if whole_ms > 0:
            self._put_times[bisect_right(PUT_TIME_BOUNDS_MS, whole_ms)] += 1
            self._put_time_max_ms = max(self._put_time_max_ms, whole_ms)

    def puts_took(self, steps: list[int], max_ms: int) -> None:
        """Count the times of several puts. Args: steps: their numbers by the steps of PUT_TIME_BOUNDS_MS."""
        for step, number in enumerate(steps):
            self._put_times[step] += number
        self._put_time_max_ms = max(self._put_time_max_ms, max_ms)

    def add(self, name: str, key: str, value: int = 1, size: int = 0) -> None:
        """Count any other event by RocketMQ's name, for example SNDBCK_PUT_NUMS of ``topic@group``."""
        keys = self._named.setdefault(name, {})
        series = keys.get(key)
        if series is None:
            series = keys[key] = Series()
            self._in_turn.append(series)
        series.count += value
        series.size += size
        series.times += 1

    def topic_deleted(self, topic: str) -> None:
        """Remove the counters of a topic."""
        self.refresh()
        self._puts.pop(topic, None)
        for key in [key for key in self._gets if key[0] == topic]:
            del self._gets[key]
        for name, keys in self._named.items():
            for text in [text for text in keys if not name.startswith("BROKER_") and topic in text.split("@")]:
                del keys[text]
        self._in_turn = list(self._all())

    def group_deleted(self, group: str) -> None:
        """Remove the counters of a group."""
        self.refresh()
        for key in [key for key in self._gets if key[1] == group]:
            del self._gets[key]
        for name, keys in self._named.items():
            for text in [text for text in keys if not name.startswith("BROKER_") and text.endswith("@" + group)]:
                del keys[text]
        self._in_turn = list(self._all())

    # --- samples ---

    def tick(self) -> None:
        """Take the samples that are due. Called once a second."""
        self.refresh()
        self._ticks += 1
        self._second()
        now_ms = self._clock_ms()
        for window, (every_s, _) in enumerate(_WINDOWS):
            if window and self._ticks < every_s:
                continue  # mqadmin shows the day if present, else the hour, else the minute
            for series in self._in_turn[self._ticks % every_s :: every_s]:
                series.sample(window, now_ms)
        day = self._today()
        if day != self._day:
            self._day = day
            self.yesterday = self.morning
            self.morning = (self._put_totals.count, self._get_totals.count)

    def _second(self) -> None:
        puts, gets = self._put_totals_all, self._get_totals_all
        self._seconds.append((self._clock_ms(), puts.times, gets.times, self._misses, gets.count))

    def _all(self) -> Iterator[Series]:
        yield from self._puts.values()
        yield from self._gets.values()
        for keys in self._named.values():
            yield from keys.values()

    # --- queries ---

    def refresh(self) -> None:
        """Add what other threads have counted."""
        for add in self.before_reading:
            add()

    @property
    def put_totals(self) -> Series:
        """Return the counter of the messages put to all topics except RocketMQ's own."""
        self.refresh()
        return self._put_totals

    @property
    def get_totals(self) -> Series:
        """Return the counter of the messages got from all topics except RocketMQ's own."""
        self.refresh()
        return self._get_totals

    @property
    def put_totals_all(self) -> Series:
        """Return the counter of the messages put to all topics."""
        self.refresh()
        return self._put_totals_all

    @property
    def get_totals_all(self) -> Series:
        """Return the counter of the messages got from all topics."""
        self.refresh()
        return self._get_totals_all

    @property
    def puts(self) -> dict[str, PutSeries]:
        """Return the counters by topic."""
        self.refresh()
        return self._puts

    @property
    def gets(self) -> dict[tuple[str, str], Series]:
        """Return the counters by (topic, group)."""
        self.refresh()
        return self._gets

    @property
    def failures(self) -> int:
        """Return the number of messages that could not be stored."""
        return self._failures

    @property
    def put_time_max_ms(self) -> int:
        """Return the longest put since the start."""
        self.refresh()
        return self._put_time_max_ms

    def named(self, name: str) -> dict[str, Series]:
        """Return the counters of ``add`` under a name, by key."""
        return self._named.get(name, {})

    def series(self, name: str, key: str) -> tuple[Series, bool] | None:
        """Return a counter by RocketMQ's names, and whether the name means its sizes; None: not counted (315)."""
        self.refresh()
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            series: Series | None = self._puts.get(key)
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            topic, _, group = key.partition("@")
            series = self._gets.get((topic, group))
        else:
            series = self._named.get(name, {}).get(key)
        return None if series is None else (series, name.endswith("_SIZE"))

    def rates(self, name: str, key: str) -> Rates | None:
        """Return the rates of a counter by RocketMQ's names; None: not counted (315)."""
        counter = self.series(name, key)
        if counter is None:
            return None
        series, sizes = counter
        return Rates(*(series.rate(window, sizes=sizes) for window in range(3)))

    def put_tps(self, topic: str) -> float:
        """Return the messages put to a topic per second, of the last minute."""
        series = self._puts.get(topic)
        return 0.0 if series is None else series.rate(0).tps

    def get_tps(self, topic: str, group: str) -> float:
        """Return the messages of a topic sent to a group per second, of the last minute."""
        series = self._gets.get((topic, group))
        return 0.0 if series is None else series.rate(0).tps

    def tps(self, column: str, seconds: int) -> float:
        """Return a rate of the broker over the last seconds (at most 600), or since the start if shorter.

        Args: column: ``put`` (calls), ``found``, ``miss`` (gets) or ``transferred`` (messages).
        """
        at = ("put", "found", "miss", "transferred").index(column) + 1
        last = self._seconds[-1]
        first = self._seconds[max(0, len(self._seconds) - 1 - seconds)]
        took_ms = last[0] - first[0]
        return (last[at] - first[at]) * 1000 / took_ms if took_ms > 0 else 0.0

    def put_times(self) -> list[int]:
        """Return the number of puts by duration, in RocketMQ's 13 steps."""
        self.refresh()
        reported = sum(self._put_times)
        return [max(0, self._put_totals_all.times - reported), *self._put_times[1:]]

    def put_times_text(self) -> str:
        """Return the puts by duration in the format of the runtime info."""
        return "".join(f"{name}:{count} " for name, count in zip(_PUT_TIME_NAMES, self.put_times(), strict=True))

    def put_latency_ms(self, part: float) -> float:
        """Return a quantile of the put latency: the upper bound of its step."""
        counts = self.put_times()
        wanted = sum(counts) * part
        so_far = 0
        for step, count in enumerate(counts):
            so_far += count
            if count and so_far >= wanted:
                return float((*PUT_TIME_BOUNDS_MS, self._put_time_max_ms)[step])
        return 0.0
