"""The console and the command line with 900 topics and groups, and with 10,000 in the long form; lists in a browser.

Room: tests of the console.
"""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest
from browsing import Visitor, browser, skip_without_browser
from console_asking import data
from console_cluster import Console, console, many
from other_thread import in_another_thread
from running import BrokerProcess
from waiting import until

from mqfast.cli.main import main

pytestmark = pytest.mark.slow
WHOLE = os.environ.get("MQFAST_WHOLE", "") not in ("", "0")


def test_lists_are_cut_into_pages_on_the_server(tmp_path: Path) -> None:
    skip_without_browser()
    with BrokerProcess(tmp_path) as cluster, console(cluster.namesrv) as served:
        with browser() as chromium:
            visitor = Visitor(chromium, served.url)
            visitor.log_in()
            for count in [0, *([1] if WHOLE else []), 900, *([10_000] if WHOLE else [])]:
                in_another_thread(partial(many, cluster.broker, count))
                look_at_lists(visitor, count)
            for path in ("/", "/flow", "/brokers", "/dlq", "/delayed"):
                visitor.open(path)
                assert visitor.page.locator("h1").count() == 1
            visitor.close()


def test_lists_searches_and_commands_are_whole_for_many_topics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    count = 10_000 if WHOLE else 900
    with BrokerProcess(tmp_path) as cluster, console(cluster.namesrv) as served:
        in_another_thread(partial(many, cluster.broker, count))
        for kind in ("topics", "groups"):
            until(partial(is_whole, served, kind, count), f"all {kind}", 60)
            pages = -(-count // 50)
            last = data(served, f"/{kind}?sort=name&page={pages}")
            assert (last["pages"], len(last[kind])) == (pages, count - 50 * (pages - 1))
            matching = data(served, f"/{kind}?q={kind[:-1]}-{count - 1}")
            assert [row["name"] for row in matching[kind]] == [f"{kind[:-1]}-{count - 1}"]
        assert data(served, "/")["topics"] == count
        for words, lines in ((["topicList"], count), (["group", "ls"], count), (["top", "--rounds", "1"], 3)):
            assert main(["admin", *words, "-n", cluster.namesrv, "--timeout", "60"]) == 0
            assert len(capsys.readouterr().out.splitlines()) >= lines, words


def is_whole(served: Console, kind: str, count: int) -> bool:
    """Return whether the collector has seen all topics or groups."""
    return bool(data(served, f"/{kind}")["total"] == count)


def look_at_lists(visitor: Visitor, count: int) -> None:
    """Lists of topics and groups: 50 rows, the next page, a search by the keyboard."""
    page = visitor.page
    for kind, last in (("topics", f"topic-{count - 1}"), ("groups", f"group-{count - 1}")):
        visitor.open(f"/{kind}?sort=name")
        visitor.reload_until(f".count:has-text('{count} {kind}')")
        assert page.locator("tbody tr").count() == min(count, 50)
        if count == 0:
            assert page.locator(".empty").count() == 1
            continue
        if count > 50:
            page.get_by_role("link", name="Next").click()
            page.wait_for_url("**page=2**")
            assert page.locator(".pager").inner_text().split()[1:4] == ["2", "of", str(-(-count // 50))]
        page.keyboard.press("/")
        page.keyboard.press("Control+a")
        page.keyboard.type(last)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"td a:has-text('{last}')")
