"""``mqfast store put``: messages into a store.

It must never write into a store that another process writes, nor change a message on the way.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from mqfast.cli.arguments import Commands, name_value, whole
from mqfast.cli.exit_codes import ExitCode
from mqfast.cli.output import Output, visible
from mqfast.cli.stores import near, ranges

if TYPE_CHECKING:
    from mqfast.store.message_store import MessageStore

__all__ = ["add_commands"]


def add_commands(commands: Commands) -> None:
    """``put``."""
    one = commands.add(
        put,
        "store one message",
        more="Opens the store for writing, and recovers it first when its last writer did not close it.",
    )
    one.add_argument("topic", metavar="TOPIC")
    one.add_argument(
        "body", metavar="BODY", nargs="?", help="text of the message (default: all of standard input, as it is)"
    )
    one.add_argument("--queue", type=whole, default=0, metavar="N", help="queue of the topic (default: 0)")
    one.add_argument("--tags", metavar="TAG")
    one.add_argument("--keys", metavar="KEYS", help="keys, separated by blanks")
    one.add_argument(
        "--property",
        type=name_value,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property; may be given several times",
    )
    one.add_argument("--create", action="store_true", help="make the store if there is none")


def put(arguments: argparse.Namespace) -> ExitCode:
    """Store one message."""
    import mqfast

    out = Output(arguments.json)
    body = sys.stdin.buffer.read() if arguments.body is None else os.fsencode(arguments.body)
    with out.progress("recovering") as progress:
        store = mqfast.open(arguments.path, broker_conf=arguments.conf, create=arguments.create, progress=progress)
    with store:
        new = _what_is_new(store, arguments.topic, arguments.queue)
        if new:
            out.note(new)
        result = store.put(
            arguments.topic,
            body,
            arguments.queue,
            tags=arguments.tags,
            keys=arguments.keys,
            properties=dict(arguments.property) or None,
        )
        row = {
            "topic": arguments.topic,
            "queueId": arguments.queue,
            "queueOffset": result.queue_offset,
            "physicalOffset": result.physical_offset,
            "size": result.size,
            "storeTimestamp": result.store_timestamp,
            "msgId": result.message_id,
            "status": result.status.name,
        }
    if out.as_json:
        out.json(row)
    else:
        out.line(
            f"{visible(arguments.topic)}/{arguments.queue}@{result.queue_offset}  "
            f"physical offset {result.physical_offset}  id {result.message_id}"
        )
    return ExitCode.OK


def _what_is_new(store: MessageStore, topic: str, queue_id: int) -> str | None:
    """What to say of a topic or a queue that the first message makes."""
    topics = store.topics()
    if topic not in topics:
        return f"topic {topic} is new{near(topic, topics, others=False)}" if topics else None
    ids = store.queue_ids(topic)
    return None if queue_id in ids else f"queue {queue_id} of topic {topic} is new; there are {ranges(ids)}"
