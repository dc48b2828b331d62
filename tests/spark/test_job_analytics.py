"""The job ``analytics``: its figures against plain Python over what Java says is in the store."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyspark")
from conftest import copy_of, golden_cases
from golden_rows import expected_rows

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import UsageError
from mqfast.spark.jobs.analytics import AnalyticsSettings, run
from mqfast.spark.jobs.charts import page
from mqfast.spark.jobs.report import JobReport

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def tables(report: JobReport) -> dict[str, list[dict[str, Any]]]:
    return {t.title: [dict(zip(t.heads, row, strict=True)) for row in t.rows] for t in report.tables}


class Page(HTMLParser):
    """Texts and tags of a page; refuses what is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        assert tag not in ("script", "link", "img"), "a page that needs nothing else"
        if tag not in ("meta", "rect"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag != "rect":
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@pytest.mark.sampled(1, group="the tests of the figures of the job analytics")
def test_figures_of_a_golden_store(spark: SparkSession, tmp_path: Path) -> None:
    (case,) = golden_cases("5.3.3", ("normal-clean",))
    store = copy_of(case, tmp_path)
    report = run(spark, AnalyticsSettings(str(store), str(tmp_path / "page.html"), top=100))
    rows = expected_rows(case.expected, light=False)
    found = tables(report)
    assert report.facts["messages"] == len(rows)
    assert report.facts["bodyBytes"] == sum(row["bodySize"] for row in rows)
    assert {row["topic"]: row["messages"] for row in found["topics"]} == Counter(row["topic"] for row in rows)
    expected_tags = Counter((row["topic"], row["tags"]) for row in rows if row["tags"] is not None)
    assert {(row["topic"], row["tag"]): row["messages"] for row in found["tags"]} == expected_tags
    expected_keys = Counter((row["topic"], key) for row in rows for key in (row["keys"] or "").split(" ") if key)
    assert all(expected_keys[row["topic"], row["key"]] == row["messages"] for row in found["keys"])
    assert len(found["keys"]) == min(100, len(expected_keys))
    assert found["keys"][0]["messages"] == max(expected_keys.values())
    latency = sorted(row["storeTimestamp"] - row["bornTimestamp"] for row in rows)
    measured = {row["what"]: row for row in found["percentiles"]}["born to stored, ms"]
    assert (measured["least"], measured["most"]) == (latency[0], latency[-1])
    assert measured["p50"] in latency[len(latency) // 2 - 2 : len(latency) // 2 + 2]
    assert measured["mean"] == pytest.approx(sum(latency) / len(latency), abs=0.06)
    minutes = Counter(row["storeTimestamp"] // 60_000 for row in rows)
    assert report.facts["minutes"] == len(minutes)
    assert report.facts["most per minute"] == max(minutes.values())
    with mqfast.StoreReader(store) as reader:
        ends = {(q.topic, q.queue_id): q.max_offset for q in reader.queues()}
        lag = {
            (group, topic, i): max(0, ends[topic, i] - offset)
            for group in reader.consumer_groups()
            for topic, queues in reader.consumer_offsets(group).items()
            for i, offset in queues.items()
            if (topic, i) in ends
        }
    assert {(row["group"], row["topic"], row["queueId"]): row["lag"] for row in found["backlog"]} == lag
    assert report.facts["backlog"] == sum(lag.values())
    parser = Page()
    parser.feed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert parser.open == []
    assert parser.tags["svg"] == 4 + bool(sum(lag.values()) or lag)
    assert found["topics"][0]["topic"] in parser.texts


@pytest.mark.sampled(1, group="the tests of the figures of the job analytics")
def test_only_some_topics_since_some_time(spark: SparkSession, tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", config=StoreConfig(mapped_file_bytes_commit_log=1 << 16)) as store:
        for i in range(60):
            store.put("A" if i % 3 else "B", b"x" * i, queue_id=0 if i < 50 else 1)
    report = run(spark, AnalyticsSettings(str(tmp_path / "store"), topics=("A",)))
    (row,) = tables(report)["topics"]
    assert (row["topic"], row["messages"], row["queues"]) == ("A", 40, 2)
    in_queue_0 = sum(1 for i in range(50) if i % 3)
    assert row["queueSkew"] == pytest.approx(in_queue_0 * 2 / 40, abs=0.001)
    later = run(spark, AnalyticsSettings(str(tmp_path / "store"), since="2100-01-01"))
    assert later.facts["messages"] == 0
    with pytest.raises(UsageError, match=r"ends in \.html"):
        run(spark, AnalyticsSettings(str(tmp_path / "store"), html=str(tmp_path / "page.txt")))


def test_texts_of_producers_are_escaped_in_the_page() -> None:
    report = JobReport("analytics", {"<b>": "<script>alert(1)</script>"})
    report.table("t", ("<i>",), [("</td>\x1b[31m",)])
    text = page(report, {"names": [("<script>", 3.0), ("&", 0.0)]}, {"times": [(f"m{i}", 1.0) for i in range(5000)]})
    parser = Page()
    parser.feed(text)
    assert parser.open == []
    assert parser.tags["rect"] <= 2 + 300
    assert "<script>" in parser.texts
    assert "\x1b" not in text
