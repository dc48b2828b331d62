"""The console in a real browser, by what a person does: find the late group, reset it, find a message, resend letters.

Room: tests of the console. The long form writes the screenshots of the documentation.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visitor, axe_script, barriers, browser, skip_without_browser
from console_cluster import LETTERS, Console, console, seeded, stuck_member
from members import until
from running import BrokerProcess

from mqfast.client.admin.admin_client import AdminClient

pytestmark = pytest.mark.slow
WHOLE = os.environ.get("MQFAST_WHOLE", "") not in ("", "0")
PICTURES = Path(__file__).resolve().parents[2] / "docs" / "pictures"
PAGES = {
    "login": "/login",
    "now": "/",
    "groups": "/groups",
    "group": "/groups/billing",
    "reset": "/groups/billing/reset?topic=orders&to=earliest",
    "topics": "/topics",
    "topic": "/topics/orders",
    "messages": "/messages?topic=orders&q=order-17",
    "message": f"/messages/orders/AB{17:030d}",
    "dead-letters": "/dlq",
    "letters": "/dlq/audit",
    "brokers": "/brokers",
    "clients": "/clients?group=billing",
    "flow": "/flow",
    "delayed": "/delayed",
    "error": "/topics/nowhere",
}


# In docs/console.md.
SHOWN = {("now", "dark"), *((name, "light") for name in ("now", "group", "topic", "reset", "message", "letters"))}


@pytest.fixture(scope="module")
def chromium(served: Console) -> Iterator[Any]:
    # The last of all: playwright has an event loop in this thread from here on.
    with browser() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    skip_without_browser()
    with seeded(tmp_path_factory.mktemp("console")) as running:
        yield running


@pytest.fixture(scope="module")
def member(cluster: BrokerProcess) -> Iterator[str]:
    with stuck_member(cluster) as client_id:
        yield client_id


@pytest.fixture(scope="module")
def served(cluster: BrokerProcess, member: str) -> Iterator[Console]:
    with console(cluster.namesrv, "--allow-changes") as running:
        yield running


@pytest.fixture(scope="module")
def session(chromium: Any, served: Console) -> Any:
    """The cookie of one login."""
    one = Visitor(chromium, served.url)
    one.log_in()
    state = one.context.storage_state()
    one.close()
    return state


@pytest.fixture
def visitor(chromium: Any, served: Console, session: Any) -> Iterator[Visitor]:
    one = Visitor(chromium, served.url, session=session)
    one.open("/")
    yield one
    one.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_without_barriers_and_without_complaints(chromium: Any, served: Console, scheme: str) -> None:
    script = axe_script()
    one = Visitor(chromium, served.url, scheme)
    one.log_in()
    one.reload_until(".findings .bad")
    names = PAGES if WHOLE else {"light": ["now", "letters"], "dark": ["group"]}[scheme]
    for name in names:
        one.open(PAGES[name])
        assert barriers(one.page, script) == [], name
        if WHOLE and (name, scheme) in SHOWN:
            PICTURES.mkdir(exist_ok=True)
            one.page.screenshot(path=PICTURES / f"console-{name}-{scheme}.png")
    one.complaints = [line for line in one.complaints if "404" not in line]  # the page of an unknown topic
    one.close()


def test_a_person_finds_the_late_group_and_its_stuck_member(visitor: Visitor, member: str) -> None:
    visitor.reload_until(".findings a:has-text('stuck')")
    page = visitor.page
    page.locator(".findings a", has_text="billing").click()
    page.wait_for_url("**/groups/billing")
    assert member in page.locator("#sentence").inner_text()
    row = page.locator("#members tr.stuck")
    assert member in row.inner_text()
    assert "stuck for" in row.inner_text()
    # Four bars, and in each the place of the group.
    assert page.locator("svg.queues .tick").count() >= 4


def test_a_message_is_found_by_its_key_with_the_keyboard_alone(visitor: Visitor) -> None:
    page = visitor.page
    page.keyboard.press("m")
    page.wait_for_url("**/messages")
    page.keyboard.press("/")
    page.keyboard.type("orders")
    page.keyboard.press("Tab")
    page.keyboard.type("order-42")
    page.keyboard.press("Enter")
    page.wait_for_selector("#found")
    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector("svg.life")
    assert '"order": 42' in page.locator("pre.body").inner_text()
    assert "billing" in page.locator(".readers").inner_text()


def test_ten_dead_letters_are_sent_again(visitor: Visitor, cluster: BrokerProcess) -> None:
    visitor.open("/dlq")
    visitor.reload_until("td a:has-text('audit')")
    page = visitor.page
    page.locator("td a", has_text="audit").click()
    boxes = page.locator("input[name=letter]")
    assert boxes.count() == LETTERS
    for number in range(10):
        boxes.nth(number).check()
    assert page.locator("[data-count]").inner_text() == "10 chosen"
    button = page.get_by_role("button", name="Resend the letters")
    assert button.is_disabled()
    with AdminClient(cluster.namesrv) as admin:
        before = sum(stats.max_offset for stats in admin.topic_stats("orders").values())
        page.get_by_label("Type audit").fill("audit")
        button.click()
        page.wait_for_selector("#outcome")
        assert page.locator("#outcome").inner_text().startswith("10 of 10 letters were sent")
        until(lambda: sum(row.max_offset for row in admin.topic_stats("orders").values()) == before + 10, "the letters")


def test_the_plan_of_a_reset_is_drawn_and_done_after_the_name_was_typed(
    visitor: Visitor, cluster: BrokerProcess
) -> None:
    visitor.open("/groups/mailing")
    page = visitor.page
    page.get_by_role("link", name="Reset offsets").click()
    page.locator("select[name=to]").select_option("earliest")
    page.get_by_role("button", name="Show the plan").click()
    page.wait_for_selector("#plan")
    assert page.locator("#plan").inner_text() == "8 messages are delivered again, 0 are skipped."
    assert page.locator(".tick.to").count() == 2
    with AdminClient(cluster.namesrv) as admin:
        assert sum(lag.behind for lag in admin.lag("mailing").values()) == 0  # a plan changes nothing
        page.get_by_label("Type mailing").fill("mailing")
        page.get_by_role("button", name="Reset the group").click()
        page.wait_for_selector("#outcome.good")
        assert sum(lag.behind for lag in admin.lag("mailing").values()) == 8


def test_a_page_refreshes_by_itself_until_it_is_paused(visitor: Visitor) -> None:
    page = visitor.page
    visitor.open("/groups")
    if not page.evaluate("Boolean(window.htmx)"):
        pytest.skip("htmx was not fetched")
    with page.expect_response(lambda answer: answer.url.endswith("/groups")):
        page.evaluate("htmx.trigger(document.getElementById('live'), 'refresh')")
    page.wait_for_selector("#live table")
    page.keyboard.press("p")
    assert page.locator("[data-do=pause]").get_attribute("aria-pressed") == "true"


def test_dark_and_light_can_be_chosen(visitor: Visitor) -> None:
    page = visitor.page
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark or light").click()
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert light != dark
    page.reload()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark
