"""What a broker counts: messages and bytes in and out by topic and group, with their rates of a minute, hour and day.

The parts of the broker count by ``put``, ``got``, ``missed`` and ``add``; nothing here is computed at a put but sums.
Samples are taken by ``tick``, once a second: of each counter in its turn, so that no second has much to do.

Room: broker. It must never do I/O, nor read a clock that it was not given. Source: BrokerStatsManager, StatsItem,
StoreStatsService, BrokerStats.
"""

from __future__ import annotations

import time
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

__all__ = ["SIZE_BOUNDS", "BrokerStats", "PutSeries", "Rate", "Rates", "Series"]

SIZE_BOUNDS: Final = (1024, 4096, 512 * 1024, 1024**2, 2 * 1024**2, 4 * 1024**2)
"""Upper bounds of the histogram of message sizes, bytes; what is beyond is counted behind them."""

_PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
_PUT_TIME_NAMES: Final = (
    "[<=0ms]", "[0~10ms]", "[10~50ms]", "[50~100ms]", "[100~200ms]", "[200~500ms]", "[500ms~1s]", "[1~2s]", "[2~3s]",
    "[3~4s]", "[4~5s]", "[5~10s]", "[10s~]",
)  # fmt: skip
_SECONDS_KEPT: Final = 600
# A window: a sample every so many seconds, and so many samples.
_MINUTE: Final = (10, 7)
_HOUR: Final = (600, 7)
_DAY: Final = (3600, 25)
_WINDOWS: Final = (_MINUTE, _HOUR, _DAY)


class Rate(NamedTuple):
    """What was counted in a window, a second of it, and a call of it."""

    sum: int
    tps: float
    avgpt: float


class Rates(NamedTuple):
    """One counter in its three windows (315)."""

    minute: Rate
    hour: Rate
    day: Rate


class Series:
    """One counter: how much, how many bytes, in how many calls; and its samples.

    Attributes: ``count``, ``size``, ``times``: sums since the start; ``is_system``: does it count for a topic of
        RocketMQ's own?
    """

    __slots__ = ("_samples", "count", "is_system", "size", "times")

    def __init__(self, is_system: bool = False) -> None:
        self.count = 0
        self.size = 0
        self.times = 0
        self.is_system = is_system
        self._samples: tuple[array[int] | None, ...] = (None, None, None)

    def sample(self, window: int, clock_ms: int) -> None:
        """Note the sums of this moment."""
        every_s, most = _WINDOWS[window]
        samples = self._samples[window]
        if samples is None:
            # As in RocketMQ, what is there at the first sample was counted in the time between two of them.
            samples = array("q", (clock_ms - every_s * 1000, 0, 0, 0))
            self._samples = (*self._samples[:window], samples, *self._samples[window + 1 :])
        samples.extend((clock_ms, self.count, self.size, self.times))
        if len(samples) > 4 * most:
            del samples[:4]

    def rate(self, window: int, *, sizes: bool = False) -> Rate:
        """What the samples of a window say."""
        samples = self._samples[window]
        if samples is None:
            return Rate(0, 0.0, 0.0)
        column = 2 if sizes else 1
        total = samples[column - 4] - samples[column]
        calls = samples[-1] - samples[3]
        took_ms = samples[-4] - samples[0]
        return Rate(total, total * 1000 / took_ms if took_ms > 0 else 0.0, total / calls if calls > 0 else 0.0)


class PutSeries(Series):
    """The counter of one topic, with a histogram of message sizes."""

    __slots__ = ("sizes",)

    def __init__(self, is_system: bool = False) -> None:
        super().__init__(is_system)
        self.sizes = [0] * (len(SIZE_BOUNDS) + 1)


class BrokerStats:
    """All counters of a broker.

    Args:
        cluster: the name under which the broker's own sums are asked for.
        is_system_topic: is this a topic of RocketMQ's own? Asked once a topic.
        clock_ms: ms that only grow.
        today: the number of the day; when another one begins, the totals of its morning are kept.
    Attributes: ``put_totals``, ``get_totals``: of all topics but RocketMQ's own, as Series.
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
        self.put_totals = Series()
        self.get_totals = Series()
        self.put_totals_all = Series()
        self.get_totals_all = Series()
        self._named: dict[str, dict[str, Series]] = {
            "BROKER_PUT_NUMS": {cluster: self.put_totals_all},
            "BROKER_GET_NUMS": {cluster: self.get_totals_all},
            "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: self.put_totals},
            "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC": {cluster: self.get_totals},
        }
        self._misses = 0
        self._failures = 0
        self._put_times = [0] * len(_PUT_TIME_NAMES)
        self._put_time_max_ms = 0
        self._ticks = 0
        self._day = today()
        self.morning = (0, 0)
        """Messages put and got when this day began."""
        self.yesterday = (0, 0)
        """Messages put and got when the day before began."""
        self.started_ms = clock_ms()
        self._in_turn: list[Series] = list(self._all())
        self._seconds: deque[tuple[int, int, int, int, int]] = deque(maxlen=_SECONDS_KEPT + 1)
        self._second()

    # --- what the parts of the broker count ---

    def put(self, topic: str, count: int, size: int) -> None:
        """Messages were stored; ``size``: their bytes in the log."""
        series = self._puts.get(topic)
        if series is None:
            series = self._puts[topic] = PutSeries(self._is_system_topic(topic))
            self._in_turn.append(series)
        series.count += count
        series.size += size
        series.times += 1
        each = size if count == 1 else size // max(1, count)
        series.sizes[bisect_left(SIZE_BOUNDS, each)] += count
        totals = self.put_totals_all
        totals.count += count
        totals.size += size
        totals.times += 1
        if not series.is_system:
            totals = self.put_totals
            totals.count += count
            totals.size += size
            totals.times += 1

    def got(self, topic: str, group: str, count: int, size: int) -> None:
        """Messages were handed out."""
        key = (topic, group)
        series = self._gets.get(key)
        if series is None:
            series = self._gets[key] = Series(self._is_system_topic(topic))
            self._in_turn.append(series)
        series.count += count
        series.size += size
        series.times += 1
        totals = self.get_totals_all
        totals.count += count
        totals.size += size
        totals.times += 1
        if not series.is_system:
            totals = self.get_totals
            totals.count += count
            totals.size += size
            totals.times += 1

    def missed(self) -> None:
        """A get found nothing."""
        self._misses += 1

    def put_failed(self) -> None:
        """A message could not be stored."""
        self._failures += 1

    def put_took(self, took_ms: float) -> None:
        """One put took so long. Puts of less than a millisecond need not be told: all others are taken for such."""
        whole_ms = int(took_ms)
        if whole_ms > 0:
            self._put_times[bisect_right(_PUT_TIME_BOUNDS_MS, whole_ms)] += 1
            self._put_time_max_ms = max(self._put_time_max_ms, whole_ms)

    def add(self, name: str, key: str, value: int = 1, size: int = 0) -> None:
        """Count anything else by RocketMQ's name, for example SNDBCK_PUT_NUMS of ``topic@group``."""
        keys = self._named.setdefault(name, {})
        series = keys.get(key)
        if series is None:
            series = keys[key] = Series()
            self._in_turn.append(series)
        series.count += value
        series.size += size
        series.times += 1

    def topic_deleted(self, topic: str) -> None:
        """Forget what was counted for a topic."""
        self._puts.pop(topic, None)
        for key in [key for key in self._gets if key[0] == topic]:
            del self._gets[key]
        for name, keys in self._named.items():
            for text in [text for text in keys if not name.startswith("BROKER_") and topic in text.split("@")]:
                del keys[text]
        self._in_turn = list(self._all())

    def group_deleted(self, group: str) -> None:
        """Forget what was counted for a group."""
        for key in [key for key in self._gets if key[1] == group]:
            del self._gets[key]
        for name, keys in self._named.items():
            for text in [text for text in keys if not name.startswith("BROKER_") and text.endswith("@" + group)]:
                del keys[text]
        self._in_turn = list(self._all())

    # --- what the time brings ---

    def tick(self) -> None:
        """A second has passed: take the samples whose turn it is."""
        self._ticks += 1
        self._second()
        now_ms = self._clock_ms()
        for window, (every_s, _) in enumerate(_WINDOWS):
            if window and self._ticks < every_s:
                continue  # mqadmin shows the day where there is one, else the hour, else the minute
            for series in self._in_turn[self._ticks % every_s :: every_s]:
                series.sample(window, now_ms)
        day = self._today()
        if day != self._day:
            self._day = day
            self.yesterday = self.morning
            self.morning = (self.put_totals.count, self.get_totals.count)

    def _second(self) -> None:
        puts, gets = self.put_totals_all, self.get_totals_all
        self._seconds.append((self._clock_ms(), puts.times, gets.times, self._misses, gets.count))

    def _all(self) -> Iterator[Series]:
        yield from self._puts.values()
        yield from self._gets.values()
        for keys in self._named.values():
            yield from keys.values()

    # --- what is asked ---

    @property
    def puts(self) -> dict[str, PutSeries]:
        """Topic -> its counter."""
        return self._puts

    @property
    def gets(self) -> dict[tuple[str, str], Series]:
        """(topic, group) -> its counter."""
        return self._gets

    @property
    def failures(self) -> int:
        """Messages that could not be stored."""
        return self._failures

    @property
    def put_time_max_ms(self) -> int:
        """The longest put since the start."""
        return self._put_time_max_ms

    def named(self, name: str) -> dict[str, Series]:
        """Key -> counter of what ``add`` counted under a name."""
        return self._named.get(name, {})

    def series(self, name: str, key: str) -> tuple[Series, bool] | None:
        """A counter by RocketMQ's names, and whether its sizes are meant; None: nothing was counted (315)."""
        if name in ("TOPIC_PUT_NUMS", "TOPIC_PUT_SIZE"):
            found: Series | None = self._puts.get(key)
        elif name in ("GROUP_GET_NUMS", "GROUP_GET_SIZE"):
            topic, _, group = key.partition("@")
            found = self._gets.get((topic, group))
        else:
            found = self._named.get(name, {}).get(key)
        return None if found is None else (found, name.endswith("_SIZE"))

    def rates(self, name: str, key: str) -> Rates | None:
        """The rates of a counter by RocketMQ's names; None: nothing was counted (315)."""
        found = self.series(name, key)
        if found is None:
            return None
        series, sizes = found
        return Rates(*(series.rate(window, sizes=sizes) for window in range(3)))

    def put_tps(self, topic: str) -> float:
        """Messages a second that are put to a topic, of the last minute."""
        series = self._puts.get(topic)
        return 0.0 if series is None else series.rate(0).tps

    def get_tps(self, topic: str, group: str) -> float:
        """Messages a second of a topic that a group gets, of the last minute."""
        series = self._gets.get((topic, group))
        return 0.0 if series is None else series.rate(0).tps

    def tps(self, column: str, seconds: int) -> float:
        """A rate of the broker over the last seconds (at most 600), or since the start where that is shorter.

        Args: column: ``put`` (calls), ``found``, ``miss`` (gets) or ``transferred`` (messages).
        """
        at = ("put", "found", "miss", "transferred").index(column) + 1
        last = self._seconds[-1]
        first = self._seconds[max(0, len(self._seconds) - 1 - seconds)]
        took_ms = last[0] - first[0]
        return (last[at] - first[at]) * 1000 / took_ms if took_ms > 0 else 0.0

    def put_times(self) -> list[int]:
        """How many puts took how long, in RocketMQ's 13 steps."""
        told = sum(self._put_times)
        return [max(0, self.put_totals_all.times - told), *self._put_times[1:]]

    def put_times_text(self) -> str:
        """The same as the runtime info says it."""
        return "".join(f"{name}:{count} " for name, count in zip(_PUT_TIME_NAMES, self.put_times(), strict=True))

    def put_latency_ms(self, part: float) -> float:
        """So many of all puts took at most so long: the upper bound of their step."""
        counts = self.put_times()
        wanted = sum(counts) * part
        so_far = 0
        for step, count in enumerate(counts):
            so_far += count
            if count and so_far >= wanted:
                return float((*_PUT_TIME_BOUNDS_MS, self._put_time_max_ms)[step])
        return 0.0
