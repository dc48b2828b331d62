"""The text of metrics, by the rules of Prometheus's format."""

from __future__ import annotations

import asyncio
import math

from mqfast.broker.metrics.prometheus_text import Exposition


def test_gauge_counter_and_labels() -> None:
    async def write() -> str:
        out = Exposition({"cluster": "C"})
        first = out.labels({"topic": 'q"\\\n', "is_system": True})
        await out.family("a_total", "counter", "What it is", [(first, 3), (out.labels({"topic": "t"}), 0.5)])
        await out.metric("b", "gauge", "Another", 2.0)
        return out.text().decode()

    assert asyncio.run(write()) == (
        "# HELP a_total What it is\n# TYPE a_total counter\n"
        'a_total{cluster="C",topic="q\\"\\\\\\n",is_system="true"} 3\n'
        'a_total{cluster="C",topic="t"} 0.5\n'
        '# HELP b Another\n# TYPE b gauge\nb{cluster="C"} 2\n'
    )


def test_a_histogram_adds_up_and_ends_with_infinity() -> None:
    async def write() -> list[str]:
        out = Exposition({})
        await out.histogram("h", "Sizes", (10, 20), [(out.labels({"topic": "t"}), [1, 2, 3], 99), ("", [0, 0, 0], 0)])
        return out.text().decode().splitlines()[2:]

    assert asyncio.run(write()) == [
        'h_bucket{topic="t",le="10"} 1',
        'h_bucket{topic="t",le="20"} 3',
        'h_bucket{topic="t",le="+Inf"} 6',
        'h_sum{topic="t"} 99',
        'h_count{topic="t"} 6',
        'h_bucket{le="10"} 0',
        'h_bucket{le="20"} 0',
        'h_bucket{le="+Inf"} 0',
        "h_sum{} 0",
        "h_count{} 0",
    ]


def test_numbers() -> None:
    async def write() -> list[str]:
        out = Exposition({})
        await out.family("n", "gauge", "N", [("", value) for value in (1e300, -1, True, math.inf, 0.1, 2**60)])
        return [line.split()[1] for line in out.text().decode().splitlines()[2:]]

    assert asyncio.run(write()) == ["1e+300", "-1", "1", "+Inf", "0.1", str(2**60)]


def test_many_lines_let_others_run() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def write() -> None:
        other = asyncio.ensure_future(count())
        out = Exposition({})
        await out.family("n", "gauge", "N", (("", number) for number in range(10_000)))
        other.cancel()

    asyncio.run(write())
    assert turns > 20
