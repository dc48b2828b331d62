"""The transport of kombu with kombu and Celery themselves, over a real broker."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

kombu = pytest.importorskip("kombu", reason="needs kombu: pip install mqfast[test]")

from kombu import pools  # noqa: E402

from mqfast.contrib.kombu import name_of  # noqa: E402
from mqfast.message import broker_accepts_topic  # noqa: E402
from mqfast.testing import Broker  # noqa: E402


@pytest.fixture(scope="module")
def module_broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker


@pytest.fixture
def broker(module_broker: Broker) -> Broker:
    module_broker.reset()
    return module_broker


def connection_to(broker: Broker, **options: Any) -> Any:
    return kombu.Connection(f"mqfast://{broker.namesrv_addr}//", transport_options={"topic_queues": 1, **options})


def drained(connection: Any, bodies: list[Any], count: int, timeout_s: float = 20.0) -> list[Any]:
    deadline = time.monotonic() + timeout_s
    while len(bodies) < count and time.monotonic() < deadline:
        try:
            connection.drain_events(timeout=1)
        except TimeoutError:
            continue
    return bodies


def tasks(key: str = "k.1") -> Any:
    return kombu.Queue("tasks", kombu.Exchange("work"), routing_key=key)


def test_names_are_mapped_one_to_one() -> None:
    assert name_of("celery") == "kombu-celery"
    assert name_of("w@host.celery.pidbox") == "kombu-w%40host%2Ecelery%2Epidbox"
    assert name_of("a%2E") != name_of("a.")
    assert all(broker_accepts_topic(name_of(one)) for one in ("zoë", "a b", "a/b", "%"))


def test_direct_and_anonymous_exchanges(broker: Broker) -> None:
    got: list[Any] = []
    with connection_to(broker) as connection:
        producer = connection.Producer()
        producer.publish({"n": 1}, exchange=tasks().exchange, routing_key="k.1", declare=[tasks()])
        producer.publish({"n": 2}, exchange="", routing_key="tasks")
        producer.publish({"n": 3}, exchange=tasks().exchange, routing_key="other")
    broker.assert_sent("kombu-tasks", times=2)
    with connection_to(broker) as connection:
        with connection.Consumer([tasks()], callbacks=[lambda body, message: (got.append(body), message.ack())]):
            assert drained(connection, got, 2) == [{"n": 1}, {"n": 2}]
    broker.wait_until(lambda: sum(broker.offset("kombu-tasks", "kombu-tasks").values()) == 2)


def test_topic_exchanges_by_patterns(broker: Broker) -> None:
    exchange = kombu.Exchange("events", type="topic")
    orders = kombu.Queue("orders", exchange, routing_key="order.#")
    watch = kombu.Queue("watch", exchange, routing_key="*.failed", auto_delete=True)
    got: list[tuple[str, str]] = []
    with connection_to(broker) as worker, connection_to(broker) as other, connection_to(broker) as sender:
        with worker.Consumer([orders], callbacks=[lambda body, message: (got.append(("orders", body)), message.ack())]):
            with other.Consumer([watch], callbacks=[lambda body, message: got.append(("watch", body))], no_ack=True):
                producer = sender.Producer()
                producer.publish("new", exchange=exchange, routing_key="order.new", declare=[orders])
                producer.publish("failed", exchange=exchange, routing_key="job.failed")
                producer.publish("nobody's", exchange=exchange, routing_key="job.done")
                drained(worker, got, 1)
                drained(other, got, 2)
    assert sorted(got) == [("orders", "new"), ("watch", "failed")]


def test_fanout_goes_to_every_connection_from_its_binding_on(broker: Broker) -> None:
    exchange = kombu.Exchange("all", type="fanout")
    got: list[tuple[int, str]] = []
    with connection_to(broker) as sender, connection_to(broker) as one, connection_to(broker) as two:
        producer = sender.Producer()
        producer.publish("before", exchange=exchange, declare=[exchange])
        consumers = [
            connection.Consumer(
                [kombu.Queue(f"all-{number}", exchange, auto_delete=True)],
                callbacks=[lambda body, message, number=number: got.append((number, body))],
                no_ack=True,
            )
            for number, connection in enumerate((one, two))
        ]
        with consumers[0], consumers[1]:
            producer.publish("now", exchange=exchange, declare=[exchange])
            drained(one, got, 1)
            drained(two, got, 2)
        with pytest.raises(TimeoutError):
            one.drain_events(timeout=0.1)
    assert sorted(got) == [(0, "now"), (1, "now")]


def test_unacknowledged_messages_are_redelivered_and_acknowledged_ones_are_not(broker: Broker) -> None:
    messages: list[Any] = []
    with connection_to(broker) as connection:
        producer = connection.Producer()
        for number in range(4):
            producer.publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        with connection.Consumer([tasks()], callbacks=[lambda body, message: messages.append(message)]):
            drained(connection, messages, 4)
            for number in (3, 1):  # out of order: 0 and 2 are not done
                messages[number].ack()
            broker.wait_until(lambda: sum(broker.offset("kombu-tasks", "kombu-tasks").values()) == 0)
    again: list[Any] = []
    with connection_to(broker) as connection:
        with connection.Consumer([tasks()], callbacks=[lambda body, message: (again.append(message), message.ack())]):
            drained(connection, again, 2)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.5)
    assert sorted(message.payload for message in again) == [0, 2]
    assert all(message.delivery_info["redelivered"] for message in again)


def test_rejected_messages(broker: Broker) -> None:
    seen: list[tuple[str, bool]] = []

    def on_message(body: str, message: Any) -> None:
        redelivered = message.delivery_info.get("redelivered", False)
        seen.append((body, redelivered))
        if redelivered:
            message.ack()
        else:
            message.reject(requeue=body == "again")

    with connection_to(broker) as connection:
        producer = connection.Producer()
        for body in ("again", "never"):
            producer.publish(body, exchange="", routing_key="tasks", declare=[tasks()])
        with connection.Consumer([tasks()], callbacks=[on_message]):
            drained(connection, seen, 3)
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=0.5)
    assert sorted(seen) == [("again", False), ("again", True), ("never", False)]


def test_size_purge_and_passive_declaration(broker: Broker) -> None:
    with connection_to(broker) as connection:
        with pytest.raises(connection.channel_errors):
            tasks()(connection.channel()).queue_declare(passive=True)
        producer = connection.Producer()
        for number in range(5):
            producer.publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        bound = tasks()(connection.channel())
        assert bound.queue_declare(passive=True).message_count == 5
        assert bound.purge() == 5
        assert bound.queue_declare(passive=True).message_count == 0
        assert bound.get(no_ack=True) is None


def test_a_message_with_an_eta_waits_in_the_broker(broker: Broker) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    with connection_to(broker) as connection:
        connection.Producer().publish(
            "later", exchange="", routing_key="tasks", declare=[tasks()], headers={"eta": due.isoformat()}
        )
        connection.Producer().publish(
            "now", exchange="", routing_key="tasks", headers={"eta": (due - timedelta(hours=2)).isoformat()}
        )
    [stored] = broker.messages("kombu-tasks")
    assert stored.json()["headers"]["eta"] < due.isoformat()
    [(moment, waiting)] = broker.scheduled()
    assert abs(moment.timestamp() - due.timestamp()) < 2
    assert waiting.properties["REAL_TOPIC"] == "kombu-tasks"


def test_a_message_of_another_client_comes_as_bytes(broker: Broker) -> None:
    messages: list[Any] = []
    with connection_to(broker) as connection:
        connection.Producer().publish("x", exchange="", routing_key="tasks", declare=[tasks()])
        broker.send("kombu-tasks", b"\x00 no message of kombu")
        with connection.Consumer([tasks()], on_message=lambda message: (messages.append(message), message.ack())):
            drained(connection, messages, 2)
    [foreign] = [message for message in messages if message.content_type == "application/data"]
    assert foreign.body == b"\x00 no message of kombu"


def test_a_message_of_another_client_in_an_exchange_ends_no_reader(broker: Broker) -> None:
    exchange = kombu.Exchange("all", type="fanout")
    messages: list[Any] = []
    with connection_to(broker) as connection:
        producer = connection.Producer()
        queue = kombu.Queue("mine", exchange, auto_delete=True)
        with connection.Consumer([queue], on_message=messages.append, no_ack=True):
            broker.send("kombu-x-all", b"\xff no text", "[1]")
            producer.publish("behind them", exchange=exchange, declare=[exchange])
            drained(connection, messages, 3)
    assert [message.body for message in messages if message.content_type == "application/data"] == [
        b"\xff no text",
        b"[1]",
    ]
    assert messages[-1].payload == "behind them"


def test_a_stored_message_is_returned_by_the_first_get(broker: Broker) -> None:
    with connection_to(broker, topic_queues=4) as connection:
        for number in range(3):
            connection.Producer().publish(number, exchange="", routing_key="tasks", declare=[tasks()])
    with connection_to(broker, topic_queues=4) as connection:
        bound = tasks()(connection.channel())
        got = [bound.get(no_ack=True).payload for _ in range(3)]
        assert bound.get() is None
    assert sorted(got) == [0, 1, 2]
    with connection_to(broker, topic_queues=4) as connection:  # what needs no acknowledgement does not come again
        assert tasks()(connection.channel()).get() is None
    with connection_to(broker) as connection:
        queue = connection.SimpleQueue("simple")
        queue.put("now")
        message = queue.get_nowait()
        assert message.payload == "now"
        message.ack()
        queue.close()


def test_an_acknowledgement_in_another_thread_makes_room_at_once(broker: Broker) -> None:
    messages: list[Any] = []
    with connection_to(broker) as connection:
        for number in range(2):
            connection.Producer().publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        with connection.Consumer([tasks()], callbacks=[lambda body, message: messages.append(message)]) as consumer:
            consumer.qos(prefetch_count=1)
            drained(connection, messages, 1)
            transport = connection.transport
            transport.arrived.clear()
            thread = threading.Thread(target=messages[0].ack)
            thread.start()
            thread.join()
            assert transport.arrived.is_set()  # ends the wait of drain_events
            drained(connection, messages, 2)
            messages[1].ack()
    assert [message.payload for message in messages] == [0, 1]


def test_a_long_wait_without_room_for_a_message_ends_early(broker: Broker) -> None:
    messages: list[Any] = []
    with connection_to(broker) as connection:
        for number in range(2):
            connection.Producer().publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        with connection.Consumer([tasks()], callbacks=[lambda body, message: messages.append(message)]) as consumer:
            consumer.qos(prefetch_count=1)
            drained(connection, messages, 1)
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                connection.drain_events(timeout=600)
            assert time.monotonic() - began < 300
            messages[0].ack()
            drained(connection, messages, 2)
            messages[1].ack()


def test_a_new_member_alone_gets_messages_that_were_not_handed_out(broker: Broker) -> None:
    one_got: list[Any] = []
    two_got: list[Any] = []
    with connection_to(broker, topic_queues=2) as one, connection_to(broker, topic_queues=2) as two:
        producer = one.Producer()
        for number in range(20):
            producer.publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        first = one.Consumer([tasks()], callbacks=[lambda body, message: (one_got.append(body), message.ack())])
        second = two.Consumer([tasks()], callbacks=[lambda body, message: (two_got.append(body), message.ack())])
        with first:
            reader = one.transport.readers["tasks"]
            broker.wait_until(lambda: len(reader._inbox) == 20, timeout_s=30)
            with second:
                other = two.transport.readers["tasks"]
                broker.wait_until(lambda: len(other._inbox) == 10, timeout_s=30)
                mine = "kombu-tasks"
                broker.wait_until(
                    lambda: sum(queue.topic == mine for queue in reader._consumer.assignment()) == 1, timeout_s=30
                )
                drained(one, one_got, 10, timeout_s=30)
                drained(two, two_got, 10, timeout_s=30)
                with pytest.raises(TimeoutError):
                    one.drain_events(timeout=0.3)
                broker.wait_consumed("kombu-tasks", "kombu-tasks", timeout_s=30)
    assert sorted(one_got + two_got) == list(range(20))


def test_a_purge_removes_messages_that_were_not_handed_out(broker: Broker) -> None:
    got: list[Any] = []
    with connection_to(broker) as connection:
        for number in range(5):
            connection.Producer().publish(number, exchange="", routing_key="tasks", declare=[tasks()])
        with connection.Consumer([tasks()], callbacks=[lambda body, message: (got.append(body), message.ack())]):
            reader = connection.transport.readers["tasks"]
            broker.wait_until(lambda: len(reader._inbox) == 5, timeout_s=30)
            assert tasks()(connection.channel()).purge() == 5
            connection.Producer().publish("after", exchange="", routing_key="tasks")
            assert drained(connection, got, 1, timeout_s=30) == ["after"]


def test_deleting_a_queue_of_the_anonymous_exchange_skips_its_messages(broker: Broker) -> None:
    with connection_to(broker) as connection:
        connection.Producer().publish("old", exchange="", routing_key="plain", declare=[kombu.Queue("plain")])
        bound = kombu.Queue("plain")(connection.channel())
        bound.delete(if_empty=True)
        assert bound.queue_declare(passive=True).message_count == 1
        bound.delete()
        assert bound.queue_declare(passive=True).message_count == 0


def test_a_publish_while_there_is_no_broker_is_tried_again(rocketmq_broker_per_test: Broker) -> None:
    broker = rocketmq_broker_per_test
    began = threading.Event()
    errors: list[Any] = []
    policy = {"max_retries": 1000, "interval_start": 0.05, "interval_max": 0.05}
    with connection_to(broker) as connection:
        producer = connection.Producer()
        producer.publish("one", exchange=tasks().exchange, routing_key="k.1", declare=[tasks()])
        broker.kill()
        broker.wait_until(lambda: not broker.admin().clusters(), timeout_s=30)
        with pytest.raises(connection.connection_errors):
            connection_to(broker).connect()

        def errback(error: Exception, interval: float) -> None:
            errors.append(error)
            began.set()

        def publish() -> None:
            producer.publish(
                "two", exchange=tasks().exchange, routing_key="k.1", declare=[tasks()], retry=True,
                retry_policy={**policy, "errback": errback},
            )  # fmt: skip

        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(publish)
            assert began.wait(30)
            broker.restart()
            done.result(60)
    broker.wait_for("kombu-tasks", 2, timeout_s=30)
    assert errors


def test_a_missing_cluster_is_a_connection_error() -> None:
    connection = kombu.Connection("mqfast://127.0.0.1:1//")
    with pytest.raises(connection.connection_errors):
        connection.connect()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_publishes_and_the_parent_is_unaffected(broker: Broker) -> None:
    got: list[Any] = []
    with connection_to(broker) as connection:
        producer = connection.Producer()
        with connection.Consumer([tasks()], callbacks=[lambda body, message: (got.append(body), message.ack())]):
            producer.publish("parent", exchange="", routing_key="tasks", declare=[tasks()])
            drained(connection, got, 1)
            child = os.fork()
            if child == 0:
                try:
                    producer.publish("child", exchange="", routing_key="tasks")
                    connection.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            assert drained(connection, got, 2) == ["parent", "child"]


# --- Celery ---

APP = """
import sys
import mqfast.contrib.kombu
from celery import Celery

app = Celery("app", broker=sys.argv[1], backend="cache+memory://")
app.conf.update(broker_transport_options={"topic_queues": 1}, worker_hijack_root_logger=False)

@app.task
def note(path, text):
    with open(path, "a") as file:
        file.write(text + chr(10))

def worker(name, pool):
    app.worker_main(["worker", "--pool", pool, "--concurrency", "2", "--hostname", name, "--loglevel", "WARNING"])
"""


@pytest.mark.parametrize("pool", ["solo", "prefork"])
def test_celery_workers_in_other_processes_do_tasks_and_obey_control(broker: Broker, tmp_path: Path, pool: str) -> None:
    celery = pytest.importorskip("celery", reason="needs celery: pip install mqfast[test]")
    url = f"mqfast://{broker.namesrv_addr}//"
    names = ["one@test"] if pool == "prefork" else ["one@test", "two@test"]
    program = tmp_path / "app.py"
    program.write_text(APP + f"\nworker(sys.argv[2], {pool!r})\n")
    workers = [
        subprocess.Popen(
            [sys.executable, str(program), url, name], stderr=subprocess.PIPE, env={**os.environ, "C_FORCE_ROOT": "1"}
        )
        for name in names
    ]
    try:
        with celery.Celery("app", broker=url) as app:
            app.conf.broker_transport_options = {"topic_queues": 1}
            inspect = app.control.inspect(timeout=2)
            broker.wait_until(lambda: set(inspect.ping() or {}) == set(names), timeout_s=90)
            out = tmp_path / "out"
            out.touch()
            for number in range(5):
                app.send_task("app.note", [str(out), f"task {number}"])
            app.send_task("app.note", [str(out), "later"], countdown=2)
            broker.wait_until(lambda: len(out.read_text().splitlines()) == 6, timeout_s=60)
            assert sorted(out.read_text().splitlines()) == ["later", *(f"task {number}" for number in range(5))]
            assert out.read_text().splitlines()[-1] == "later"
            app.control.broadcast("shutdown")
        for worker in workers:
            _, errors = worker.communicate(timeout=200)
            assert worker.returncode == 0, errors.decode()
        broker.wait_members("kombu-celery", 0, timeout_s=20)
    finally:
        pools.reset()  # Celery's connections live on, and know the topics of before the broker's next reset
        for worker in workers:
            if worker.poll() is None:
                worker.kill()
                worker.communicate()
