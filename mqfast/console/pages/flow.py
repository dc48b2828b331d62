"""Pages of movement: Flow from topics to groups, and Delayed, what is due when.

Must never send more than a request to each broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from mqfast.client.admin.plan import QueueStats
from mqfast.client.values import MessageQueue
from mqfast.console.page import Console, Page, command
from mqfast.console.pages.topics import is_own
from mqfast.console.pictures import Band, flow, histogram
from mqfast.console.state import BrokerState, Unknown, known
from mqfast.errors import MqfastError, NoRoute

__all__ = ["delayed", "flows"]

_BANDS_MAX: Final = 40
_SCHEDULE: Final = "SCHEDULE_TOPIC_XXXX"
_LEVEL: Final = "scheduleMessageOffset_"
_USUAL: Final = (
    "1s", "5s", "10s", "30s", "1m", "2m", "3m", "4m", "5m", "6m", "7m", "8m", "9m", "10m", "20m", "30m", "1h", "2h",
)  # fmt: skip
_TIMER: Final = (
    "timerReadBehind", "timerOffsetBehind", "timerCongestNum", "timerEnqueueTps", "timerDequeueTps",
)  # fmt: skip


async def flows(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return the bands from topics to groups, the largest first."""
    state, words = console.collector.state, wanted.get("q", "").strip().lower()
    bands = []
    for group in state.groups.values():
        lags: dict[str, int] = {}
        for place in group.places:
            if is_own(place.topic, state):
                lags[place.topic] = lags.get(place.topic, 0) + place.behind
        for topic, lag in lags.items():
            if words in topic.lower() or words in group.name.lower():
                bands.append(Band(topic, group.name, known(group.rate) / len(lags), lag))
    bands.sort(key=lambda band: (-band.lag, -band.rate, band.topic, band.group))
    shown = bands[:_BANDS_MAX]
    shown.sort(key=lambda band: (band.topic, band.group))
    data = {
        "bands": [band._asdict() for band in shown],
        "total": len(bands),
        "q": wanted.get("q", ""),
    }
    return Page("flow.html", "Flow", data, command("group", "ls"), {"flow": flow(shown, "topics and their groups")})


async def delayed(console: Console, wanted: Mapping[str, str]) -> Page:
    """Return how many messages wait at each delay level, and the state of the timers."""
    levels: dict[int, int] = {}
    timers: dict[str, Any] = {}
    unknown: dict[str, str] = {}
    brokers = list(console.collector.state.brokers.values())
    answers = await asyncio.gather(*(_waiting(console, broker) for broker in brokers))
    for broker, queues in zip(brokers, answers, strict=True):
        runtime = broker.runtime
        if isinstance(queues, Unknown) or isinstance(runtime, Unknown):
            unknown[broker.name] = queues.cause if isinstance(queues, Unknown) else str(runtime)
            continue
        timers[broker.name] = {name: runtime[name] for name in _TIMER if name in runtime}
        for queue, stats in queues.items():
            level = queue.queue_id + 1
            done, _, _ = runtime.get(f"{_LEVEL}{level}", "0").partition(",")
            waiting = max(0, stats.max_offset - (int(done) if done.isdigit() else 0))
            levels[level] = levels.get(level, 0) + waiting
    labels = [*_USUAL, *(f"level {level}" for level in range(len(_USUAL) + 1, max(levels, default=0) + 1))]
    columns = [(label, None if unknown else levels.get(level, 0)) for level, label in enumerate(labels, 1)]
    data = {
        "levels": [
            {"level": level, "within": label, "waiting": count} for level, (label, count) in enumerate(columns, 1)
        ],
        "waiting": Unknown("; ".join(unknown.values())) if unknown else sum(levels.values()),
        "timers": timers,
        "unknown": unknown,
    }
    picture = histogram(columns, "waiting messages by delay level")
    return Page("delayed.html", "Delayed", data, command("broker", "show", "BROKER"), {"levels": picture})


async def _waiting(console: Console, broker: BrokerState) -> Mapping[MessageQueue, QueueStats] | Unknown:
    if isinstance(broker.runtime, Unknown):
        return broker.runtime
    try:
        return await console.admin.queues_at(broker.address, _SCHEDULE)
    except NoRoute:  # no delayed message was ever sent to this broker
        return {}
    except MqfastError as error:
        return Unknown(str(error))
