"""Rows that are stored once, against a model: random sends, ends, deletions of the topic and restarts.

Room: tests. A restart finds the file of the memory, none, or an old one, as kills and take-overs leave it. The model is
a list of rows for each task and queue; the broker's queues must hold exactly these.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from once_rows import Task, how
from running import Running, serve

from mqfast.remoting.codes import RequestCode, ResponseCode
from mqfast.remoting.once import ASK_ONCE, END_ONCE, ONCE

QUEUES, TASKS, ROWS, STEPS = 2, 3, 40, 25
KEY = "k" * 16


class Model:
    """What the broker is to remember of the newest batch, and how long its queues are to be."""

    def __init__(self) -> None:
        self.batch = 0
        self.done = False
        self.rows: dict[tuple[int, int], int] = {}  # task, queue -> rows that are stored
        self.lengths = [0] * QUEUES

    def task(self, partition: int, queue_id: int) -> Task:
        bodies = [f"{self.batch} {partition} {queue_id} {n}".encode() for n in range(ROWS)]
        return Task(bodies, self.batch, partition, KEY)


async def send(one: Running, model: Model, dice: random.Random) -> None:
    place = _, queue_id = dice.randrange(TASKS), dice.randrange(QUEUES)
    task, known = model.task(*place), model.rows.get(place, 0)
    begin = dice.randrange(min(known + 2, ROWS))
    end = dice.randrange(begin, ROWS) + 1
    delayed = dice.random() < 0.2
    if delayed:
        end = begin + 1
        properties = task.properties(begin, f"DELAY\x0118\x02UNIQ_KEY\x01u{begin}\x02").decode()
        fields = {ONCE: task.span(begin, end)}
        answer = await one.send("t", task.bodies[begin], queue_id=queue_id, properties=properties, **fields)
    else:
        answer = await task.send(one, begin, end, queue_id)
    if end <= known:
        assert how(answer) == "before"
    elif model.done or begin > known:
        assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    else:
        assert how(answer) == ("rest" if begin < known else "stored")
        model.rows[place] = end
        model.lengths[queue_id] += 0 if delayed else end - known


async def step(one: Running, model: Model, dice: random.Random) -> None:
    what = dice.choices(("send", "end", "next", "delete", "other", "back"), (12, 1, 1, 1, 2, 1))[0]
    if what == "send":
        await send(one, model, dice)
    elif what == "end":
        assert (await one.call(END_ONCE, topic="t", key=KEY, batch=model.batch, rows=1)).code == 0
        model.done = True
    elif what == "next":
        model.batch, model.done, model.rows = model.batch + 1, False, {}
    elif what == "delete":
        assert (await one.call(RequestCode.DELETE_TOPIC_IN_BROKER, topic="t")).code == 0
        model.done, model.rows, model.lengths = False, {}, [0] * QUEUES
    elif what == "other":
        assert (await one.send("other", b"x" * dice.randrange(2000))).code == 0
    elif one.context.engine.raw.end > 0:
        await one.call(RequestCode.CONSUMER_SEND_MSG_BACK, group="g", offset=0, delayLevel=18)


async def check(one: Running, model: Model) -> None:
    asked = await one.call(ASK_ONCE, topic="t", key=KEY, batch=model.batch, tasks="true")
    said = json.loads(bytes(asked.body))
    found = {(partition, queue_id): row // 2 + 1 for partition, topic, queue_id, row, _ in said["rows"] if topic == "t"}
    assert (found, len(said["rows"])) == (model.rows, len(model.rows))
    assert (said["done"] == model.batch) == model.done
    for queue_id, length in enumerate(model.lengths):
        offset = await one.call(RequestCode.GET_MAX_OFFSET, topic="t", queueId=queue_id)
        assert int(offset.ext_fields["offset"]) == length


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(40))
def test_idempotent_writes_match_the_model_over_restarts(tmp_path: Path, seed: int) -> None:
    dice, model = random.Random(seed), Model()
    file = tmp_path / "config" / "mqfastWrites.json"
    old: list[bytes] = []

    async def flow(one: Running) -> None:
        for _ in range(dice.randrange(STEPS)):
            await step(one, model, dice)
        await check(one, model)

    for _ in range(6):
        serve(tmp_path, flow)
        old.append(file.read_bytes())
        left = dice.choice(("the file", "no file", "an old file"))
        if left != "the file":
            for one in file.parent.glob(f"{file.name}*"):
                one.unlink()
        if left == "an old file":
            file.write_bytes(dice.choice(old))
