"""The text of metrics, by the rules of Prometheus's format."""

from __future__ import annotations

import math

from mqfast.broker.admin.exposition import Exposition


def test_gauge_counter_and_labels() -> None:
    out = Exposition({"cluster": "C"})
    out.family("a_total", "counter", "What it is", [({"topic": 'q"\\\n', "is_system": True}, 3), ({"topic": "t"}, 0.5)])
    out.one("b", "gauge", "Another", 2.0)
    assert out.text().decode() == (
        "# HELP a_total What it is\n# TYPE a_total counter\n"
        'a_total{cluster="C",topic="q\\"\\\\\\n",is_system="true"} 3\n'
        'a_total{cluster="C",topic="t"} 0.5\n'
        '# HELP b Another\n# TYPE b gauge\nb{cluster="C"} 2\n'
    )
    assert out.names == ["a_total", "b"]


def test_a_histogram_adds_up_and_ends_with_infinity() -> None:
    out = Exposition({})
    out.histogram("h", "Sizes", (10, 20), [({"topic": "t"}, [1, 2, 3], 99)])
    assert out.text().decode().splitlines()[2:] == [
        'h_bucket{topic="t",le="10"} 1',
        'h_bucket{topic="t",le="20"} 3',
        'h_bucket{topic="t",le="+Inf"} 6',
        'h_sum{topic="t"} 99',
        'h_count{topic="t"} 6',
    ]


def test_numbers() -> None:
    out = Exposition({})
    out.family("n", "gauge", "N", [({}, value) for value in (1e300, -1, True, math.inf, 0.1, 2**60)])
    assert [line.split()[1] for line in out.text().decode().splitlines()[2:]] == [
        "1e+300",
        "-1",
        "1",
        "+Inf",
        "0.1",
        str(2**60),
    ]
