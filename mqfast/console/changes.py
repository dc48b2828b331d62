"""Changes of a cluster from the console: reset of a group, resend of dead letters, a test message.

Each change needs the typed name of what changes, and a reset the plan that was shown. Must never run where changes are
not allowed, and never leave out a failure of a part: every letter has its own outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mqfast.client.producer.async_producer import AsyncProducer
from mqfast.client.values import MessageQueue
from mqfast.console.page import Console, Page, command, number_of
from mqfast.console.pages.groups import known_group
from mqfast.console.pages.letters import LETTERS_MAX
from mqfast.console.pages.resets import Wanted, check_holds, planned_rows, reset_target, reset_words
from mqfast.errors import ClientConfigError, MqfastError, Refused
from mqfast.message import DLQ_PREFIX
from mqfast.properties import origin_of

__all__ = ["check_confirmed", "resend", "reset", "send_test"]

_RATE_MAX: Final = 1000


def check_confirmed(console: Console, form: Mapping[str, str], name: str) -> None:
    """Check that changes are allowed and that the name was typed. Raises: Refused, ConfigError."""
    if not console.allow_changes:
        raise Refused("this console is read-only; mqfast console --allow-changes allows changes")
    typed = form.get("confirm", "").strip()
    if typed != name:
        raise ClientConfigError(f"confirm: expected the name {name!r}, found {typed[:120]!r}; nothing was changed")


async def reset(console: Console, form: Mapping[str, str], name: str) -> Page:
    """Set the offsets of a group to those of a confirmed plan, and read the offsets back.

    Raises: Refused where the cluster changed so much since that the plan means something else.
    """
    check_confirmed(console, form, name)
    known_group(console, name)
    wish, planned = Wanted(form), planned_rows(form.get("plan", ""))
    targets = {MessageQueue(wish.topic, row.broker, row.queue): row.to for row in planned}
    fresh = await console.admin.reset_offset(name, wish.topic, reset_target(wish), queue=wish.of_queue)
    check_holds(planned, await console.admin.set_offsets(name, targets), [step.queue for step in fresh])
    try:
        plan = await console.admin.set_offsets(name, targets, dry_run=False)
    except ClientConfigError:
        # A broker of 4.x moves a running group only as a whole and to a time: fine where that is the same.
        if wish.of_queue is not None or {step.queue: step.to for step in fresh} != targets:
            raise
        plan = await console.admin.reset_offset(name, wish.topic, reset_target(wish), dry_run=False)
    stored = await console.admin.lag(name, wish.topic)
    rows: list[dict[str, Any]] = [
        {
            "broker": step.queue.broker_name, "queue": step.queue.queue_id, "before": step.now, "to": step.to,
            "stored": stored[step.queue].committed if step.queue in stored else None,
            "skipped": step.skipped, "replayed": step.replayed,
        }
        for step in plan
    ]  # fmt: skip
    # A running member may have gone on since: behind the target is right as well.
    failed = [row for row in rows if row["stored"] is None or row["stored"] < row["to"]]
    await console.collector.collect()
    data = {"name": name, "topic": wish.topic, "rows": rows, "failed": len(failed)}
    return Page("reset_done.html", f"Reset of {name}", data, reset_words(name, wish), status=500 if failed else 200)


async def resend(console: Console, form: Mapping[str, str], name: str, ids: Sequence[str]) -> Page:
    """Send the chosen dead letters to the original topics. The stored letters stay."""
    check_confirmed(console, form, name)
    known_group(console, name)
    if not ids:
        raise ClientConfigError("letters: expected at least one chosen letter, found none")
    if len(ids) > LETTERS_MAX:
        raise ClientConfigError(f"letters: expected at most {LETTERS_MAX}, found {len(ids)}")
    rate = min(_RATE_MAX, max(1, number_of(form, "rate", 100)))
    rows: list[dict[str, Any]] = []
    for letter_id in dict.fromkeys(ids):
        rows.append(await _resend_one(console, name, letter_id))
        await asyncio.sleep(1 / rate)
    named = [word for letter_id in list(dict.fromkeys(ids))[:20] for word in ("--id", letter_id)]
    data = {"name": name, "rows": rows, "failed": sum(bool(row["error"]) for row in rows)}
    return Page("resent.html", f"Resend for {name}", data, command("dlq", "resend", name, *named))


async def _resend_one(console: Console, name: str, letter_id: str) -> dict[str, Any]:
    row: dict[str, Any] = {"id": letter_id, "topic": None, "queue": None, "offset": None, "error": None}
    try:
        stored = await console.admin.find(DLQ_PREFIX + name, msg_id=letter_id)
        letters = [letter for letter in stored if letter.offset_msg_id == letter_id]
        if not letters:
            row["error"] = "no dead letter has this id"
            return row
        row["topic"] = origin_of(letters[0].properties)
        sent = await console.admin.resend(letters[0])
        row |= {
            "topic": sent.message_queue.topic, "queue": sent.message_queue.queue_id, "offset": sent.queue_offset,
            "status": sent.status.name,
        }  # fmt: skip
    except MqfastError as error:
        row["error"] = str(error)
    return row


async def send_test(console: Console, form: Mapping[str, str], topic: str) -> Page:
    """Send a message to a topic."""
    check_confirmed(console, form, topic)
    keys = form.get("key", "").strip()
    async with AsyncProducer("mqfast-console", console.namesrv, **console.connection) as producer:
        body = form.get("body", "").encode()
        sent = await producer.send(topic, body, tags=form.get("tags", "").strip() or None, keys=keys or None)
    data = {
        "topic": topic, "msg_id": sent.msg_id, "status": sent.status.name, "broker": sent.message_queue.broker_name,
        "queue": sent.message_queue.queue_id, "offset": sent.queue_offset,
    }  # fmt: skip
    return Page("sent.html", f"Sent to {topic}", data, command("message", "find", topic, "--id", sent.msg_id))
