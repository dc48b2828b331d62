"""gRPC clients through kills of the broker with calls under way: no message is lost, none comes again after its end.

Producers send. Simple consumers receive, ack, change invisible times, give messages up, cancel calls, and leave some
messages alone. The broker is killed after a number of events that a seed decides. ``History`` judges.
"""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from grpc_client import GrpcClient, GrpcFailure
from grpc_consumers import begin_receive, handle_of
from pop_history import Delivery, History
from running import BrokerProcess
from sampling import Sample

from mqfast import AdminClient, StoreReader
from mqfast.broker.grpc.codes import Code
from mqfast.grpc import messages as m
from mqfast.util.fastjson import loads

ROUNDS, SHORT = 200, 3
PLAIN, ORDERED = "plain", "ordered"
FIRST, SECOND, ORDERLY = "first", "second", "orderly"
GROUPS = {FIRST: PLAIN, SECOND: PLAIN, ORDERLY: ORDERED}
SENDS_AHEAD = 60
INVISIBLE_MS = 10_000  # the shortest that the broker takes
LONGEST_MS = 12_000
PATIENCE_S = 300
GONE = (OSError, GrpcFailure)


class Workers:
    """The threads of the clients."""

    def __init__(self, broker: BrokerProcess, history: History, seed: int) -> None:
        self.history = history
        self._address = broker.broker
        self._seed = seed
        self.is_draining = False
        self.is_over = False
        self.failures: list[BaseException] = []
        self.dead: dict[str, set[str]] = {group: set() for group in GROUPS}
        works = [partial(self._send, topic) for topic in (PLAIN, ORDERED)]
        works += [partial(self._consume, group) for group in (FIRST, FIRST, SECOND, SECOND, ORDERLY)]
        self.threads = [
            threading.Thread(target=self._run, args=(work, number), daemon=True) for number, work in enumerate(works)
        ]

    def _run(self, work: Callable[[GrpcClient, random.Random], None], number: int) -> None:
        """Work until the end, with a new connection after the loss of one."""
        rng = random.Random(self._seed * 100 + number)
        try:
            while not self.is_over:
                try:
                    with GrpcClient(self._address, f"client-{number}") as client:
                        work(client, rng)
                        return
                except GONE:
                    time.sleep(0.01)
        except BaseException as error:
            self.failures.append(error)
            with self.history.changed:
                self.history.changed.notify_all()

    # --- producers ---

    def _send(self, topic: str, client: GrpcClient, rng: random.Random) -> None:
        while not self.is_draining:
            if self._is_wanted(topic):
                chain = rng.randrange(4)
                self._send_one(client, topic, self._next_of_chain(topic, chain), chain)

    def _is_wanted(self, topic: str) -> bool:
        """Wait until the consumers have come closer. Returns: False at times, so that the caller sees the end."""
        history = self.history
        groups = [group for group, of in GROUPS.items() if of == topic]
        with history.changed:
            return history.changed.wait_for(
                lambda: self.is_draining or all(len(history.open_messages(group)) < SENDS_AHEAD for group in groups),
                timeout=1,
            )

    def _next_of_chain(self, topic: str, chain: int) -> str:
        prefix, history = f"{topic}-{chain}", self.history
        known = {*history.sent[topic], *history.unanswered[topic]}
        return f"{prefix}-{sum(body.startswith(prefix + '-') for body in known)}"

    def _send_one(self, client: GrpcClient, topic: str, body: str, chain: int) -> None:
        system = m.SystemProperties(message_id=f"0102FC00000001{body}", message_type=1 if topic == PLAIN else 2)
        if topic == ORDERED:
            system.message_group = f"chain-{chain}"
        request = m.SendMessageRequest([m.GrpcMessage(m.Resource("", topic), {}, system, body.encode())])
        asked, is_answered = time.monotonic(), False
        try:
            answer = client.call("SendMessage", request, m.SendMessageResponse)
            assert answer.status is not None
            is_answered = answer.status.code == Code.OK
        finally:
            self.history.note_send(topic, body, asked, is_answered=is_answered)

    # --- consumers ---

    def _consume(self, group: str, client: GrpcClient, rng: random.Random) -> None:
        while not self.is_over:
            for delivery, handle in self._receive(client, group, rng):
                self._settle(client, group, delivery, handle, rng)

    def _receive(self, client: GrpcClient, group: str, rng: random.Random) -> list[tuple[Delivery, str]]:
        topic, asked, life = GROUPS[group], time.monotonic(), self.history.life
        size = rng.choice((1, 4, 16))
        is_cancelled = not self.is_draining and rng.random() < 0.03
        messages = []
        try:
            call = begin_receive(
                client, topic, group, batch_size=size, invisible_duration=INVISIBLE_MS, long_polling_timeout=500,
                attempt_id=f"{group}-{rng.random()}",
            )  # fmt: skip
            if is_cancelled:
                call.cancel()
                client.call("QueryRoute", m.QueryRouteRequest(m.Resource("", topic)), m.QueryRouteResponse)
            while not is_cancelled and (answer := call.next(m.ReceiveMessageResponse)) is not None:
                if answer.message is not None:
                    messages.append(answer.message)
        except GONE:
            self.history.note_lost(group, asked, time.monotonic())
            raise
        if is_cancelled:
            self.history.note_lost(group, asked, time.monotonic())
        times = asked, time.monotonic()
        together = frozenset(message.body.decode() for message in messages)
        made = [
            (Delivery.of(message.body.decode(), handle_of(message), times, life, together), handle_of(message))
            for message in messages
        ]
        if made:
            self.history.note_delivery(group, *(delivery for delivery, _ in made))
        return made

    def _settle(self, client: GrpcClient, group: str, delivery: Delivery, handle: str, rng: random.Random) -> None:
        """Do with a message what chance decides; at the end of the history: ack."""
        draw = 0.0 if self.is_draining else rng.random()
        if draw < 0.7:
            self._ack(client, group, delivery, handle)
        elif draw < 0.9:
            changed = self._change(client, group, delivery, handle, rng.choice((50, 300, LONGEST_MS)))
            if changed is not None and rng.random() < 0.4:
                self._ack(client, group, delivery, changed)
        elif draw < 0.93:
            self._give_up(client, group, delivery, handle)

    def _ack(self, client: GrpcClient, group: str, delivery: Delivery, handle: str) -> None:
        topic = m.Resource("", GROUPS[group])
        request = m.AckMessageRequest(m.Resource("", group), topic, [m.AckMessageEntry("id", handle)])
        delivery.ends = time.monotonic()
        answer = client.call("AckMessage", request, m.AckMessageResponse)
        assert answer.status is not None
        self._note_end(group, delivery, answer.status.code)

    def _give_up(self, client: GrpcClient, group: str, delivery: Delivery, handle: str) -> None:
        request = m.ForwardMessageToDeadLetterQueueRequest(
            m.Resource("", group), m.Resource("", GROUPS[group]), handle, "id", 1, 1
        )
        delivery.ends = time.monotonic()
        answer = client.call("ForwardMessageToDeadLetterQueue", request, m.StatusResponse)
        assert answer.status is not None
        if answer.status.code == Code.OK:
            self.dead[group].add(delivery.body)
        self._note_end(group, delivery, answer.status.code)

    def _note_end(self, group: str, delivery: Delivery, code: int) -> None:
        if code == Code.OK:
            self.history.note_end(delivery, time.monotonic())
        else:
            assert code == Code.INVALID_RECEIPT_HANDLE, code  # too late
            delivery.ends = None

    def _change(self, client: GrpcClient, group: str, delivery: Delivery, handle: str, invisible_ms: int) -> str | None:
        request = m.ChangeInvisibleDurationRequest(
            m.Resource("", group), m.Resource("", GROUPS[group]), handle, invisible_ms, "id"
        )
        due_ms, delivery.due_ms = delivery.due_ms, None
        answer = client.call("ChangeInvisibleDuration", request, m.ChangeInvisibleDurationResponse)
        assert answer.status is not None
        if answer.status.code != Code.OK:
            assert answer.status.code == Code.INVALID_RECEIPT_HANDLE, answer
            delivery.due_ms = due_ms
            return None
        fields = answer.receipt_handle.split(" ")
        delivery.due_ms = int(fields[1]) + int(fields[2])
        return answer.receipt_handle


def offsets_on_disk(store: Path) -> dict[str, dict[tuple[int, int], int]]:
    """Return the offsets of each group by kind of topic and queue, as the broker left these."""
    path = store / "config" / "consumerOffset.json"
    table = loads(path.read_bytes())["offsetTable"] if path.exists() else {}
    assert isinstance(table, dict)
    found: dict[str, dict[tuple[int, int], int]] = {}
    for group, topic in GROUPS.items():
        for kind, name in enumerate((topic, f"%RETRY%{group}_{topic}", f"%RETRY%{group}+{topic}")):
            for queue_id, offset in table.get(f"{name}@{group}", {}).items():
                found.setdefault(group, {})[kind, int(queue_id)] = offset
    return found


def wait_for_events(workers: Workers, count: int) -> None:
    """Wait until so many events more have come."""
    history = workers.history
    with history.changed:
        wanted = history.events + count
        came = history.changed.wait_for(lambda: workers.failures or history.events >= wanted, timeout=PATIENCE_S)
    assert not workers.failures, workers.failures
    assert came, "nothing happens any more"


def drain(workers: Workers) -> None:
    """Let the consumers ack all, and then receive for longer than a message may be invisible."""
    history, until_s = workers.history, time.monotonic() + PATIENCE_S
    workers.is_draining = True
    quiet_s = None
    while quiet_s is None or time.monotonic() < quiet_s:
        assert not workers.failures, workers.failures
        assert time.monotonic() < until_s, history.faults()
        with history.changed:
            events = history.events
            history.changed.wait_for(lambda events=events: history.events > events, timeout=1)
        if any(history.open_messages(group) for group in GROUPS):
            quiet_s = None
        elif quiet_s is None or history.events > events:
            quiet_s = time.monotonic() + LONGEST_MS / 1000 + 1


@pytest.mark.slow
@pytest.mark.sampled
def test_messages_in_flight_survive_kills(tmp_path: Path, sample: Sample) -> None:
    rng = random.Random(47)
    history = History(GROUPS, frozenset({ORDERLY}))
    settings = {
        "flushConsumerOffsetInterval": 300,
        "enableTopicMessageTypeCheck": False,
        "mappedFileSizeCommitLog": 1 << 24,
    }
    with BrokerProcess(tmp_path, **settings) as broker:
        with AdminClient(broker.namesrv) as admin:
            admin.create_topic(PLAIN, queues=4)
            admin.create_topic(ORDERED, queues=4)
            for group in GROUPS:
                admin.create_group(group, orderly=group == ORDERLY)
        workers = Workers(broker, history, 47)
        for thread in workers.threads:
            thread.start()
        try:
            for _ in sample.of(range(ROUNDS), SHORT, "kills under gRPC calls"):
                wait_for_events(workers, rng.randrange(40, 250))
                broker.end(signal.SIGKILL)
                history.note_kill(offsets_on_disk(broker.store))
                broker.start()
            drain(workers)
        finally:
            workers.is_draining = workers.is_over = True
            for thread in workers.threads:
                thread.join(60)
        assert not workers.failures
        print("", *(f"{name}: {dict(figures)}" for name, figures in history.counts().items()), sep="\n")
        assert history.faults() == []
        broker.end()
        letters = {group: set() for group in GROUPS}
        with StoreReader(broker.store) as reader:
            for message in reader.scan():
                if message.topic.startswith("%DLQ%"):
                    letters[message.topic.removeprefix("%DLQ%")].add(bytes(message.body).decode())
        assert all(workers.dead[group] <= letters[group] for group in GROUPS)


def deliver(history: History, at: float, offset: int, body: str, ended: float | None = None) -> None:
    """Note a delivery at a second, for ten seconds, and its end."""
    handle = f"0 {int(at * 1000)} 10000 0 0 broker-a 0 {offset}"
    delivery = Delivery.of(body, handle, (at, at + 0.1), history.life, frozenset({body}))
    delivery.ends = None if ended is None else ended - 0.1
    history.note_delivery("g", delivery)
    if ended is not None:
        history.note_end(delivery, ended)


def one_group(*bodies: str, is_orderly: bool = False) -> History:
    """Return a history with sent messages."""
    history = History({"g": "T"}, frozenset({"g"} if is_orderly else ()))
    for body in bodies:
        history.note_send("T", body, 0.0, is_answered=True)
    return history


def test_the_history_finds_a_lost_message() -> None:
    history = one_group("a-0", "a-1")
    deliver(history, 1, 0, "a-0", 2)
    assert history.faults() == ["g: lost: a-1"]
    deliver(history, 3, 1, "a-1")
    assert history.faults() == ["g: lost: a-1"]  # delivered, and never ended
    deliver(history, 14, 1, "a-1", 15)
    assert history.faults() == []


@pytest.mark.parametrize(("offset_on_disk", "is_fault"), [(1, True), (0, False)])
def test_the_history_finds_a_message_after_its_end(offset_on_disk: int, is_fault: bool) -> None:
    history = one_group("a-0")
    deliver(history, 1, 0, "a-0", 2)
    history.note_kill({"g": {(0, 0): offset_on_disk}})
    deliver(history, 20, 0, "a-0", 21)
    assert ["delivered again" in fault for fault in history.faults()] == [True] * is_fault


def test_the_history_permits_a_message_of_a_lost_answer() -> None:
    history = one_group("a-0")
    deliver(history, 1, 0, "a-0", 2)
    history.note_lost("g", 0.5, 0.9)
    deliver(history, 20, 0, "a-0", 21)
    assert history.faults() == []


def test_the_history_finds_a_message_before_its_time() -> None:
    history = one_group("a-0")
    deliver(history, 1, 0, "a-0")
    deliver(history, 5, 0, "a-0", 6)
    assert ["before its time" in fault for fault in history.faults()] == [True]


def test_the_history_finds_a_wrong_order() -> None:
    history = one_group("a-0", "a-1", is_orderly=True)
    deliver(history, 1, 1, "a-1", 2)
    deliver(history, 3, 0, "a-0", 4)
    assert ["delivered before ['a-0']" in fault for fault in history.faults()] == [True]
