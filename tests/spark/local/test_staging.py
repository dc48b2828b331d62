"""The commit protocol: a batch is in the store once, whatever crashed when. Real stores, real processes, no Spark."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import mqfast
from mqfast.errors import ConfigError, CorruptFile, StoreLocked, UsageError
from mqfast.message import parse_host
from mqfast.spark.local.commit import SinkTransaction, check_target
from mqfast.spark.local.staging import StagedFile, clean_staging
from mqfast.spark.row_encoder import RowEncoder, merge_properties
from mqfast.store.put.staged import append_records, count_records

FILE_BYTES = 1 << 18
HOST = parse_host("10.0.0.1:10911")
PARTITIONS = 3
ROWS = 700


def encoder(stamp: bytes = b"", most: int = 4 << 20) -> RowEncoder:
    return RowEncoder(HOST, HOST, stamp, most, FILE_BYTES - 8)


def encode(bodies: list[bytes], stamp: bytes = b"", queues: int = 4, *, into: RowEncoder | None = None) -> bytes:
    n = len(bodies)
    zeros = np.zeros(n, np.int32)
    made = (into or encoder(stamp)).encode(
        [b"t"],
        zeros,
        np.arange(n, dtype=np.int32) % queues,
        np.cumsum([0, *map(len, bodies)], dtype=np.int32),
        b"".join(bodies),
        [b"KEYS\x01k%d\x02" % i for i in range(n)],
        zeros,
        zeros,
        np.full(n, 1_700_000_000_000, np.int64),
        zeros,
        None,
    )
    return bytes(made)


def body(batch: int, partition: int, row: int) -> bytes:
    return b"%d/%d/%d " % (batch, partition, row) + b"x" * (row * 7 % 900)


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is some: a commit waits for the disk a dozen times."""
    if not os.path.isdir("/dev/shm"):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="mqfast-") as path:
        yield Path(path)


def make_store(path: Path) -> str:
    small = {"mapped_file_bytes_consume_queue": 20_000, "max_hash_slot_num": 1000, "max_index_num": 4000}
    with mqfast.open(path, mapped_file_bytes_commit_log=FILE_BYTES, **small) as store:
        store.put("first", b"so that files of each kind have their size", keys="first")
    return str(path)


def stage(transaction: SinkTransaction, batch: int, partitions: int = PARTITIONS, rows: int = ROWS) -> list[StagedFile]:
    files = []
    for partition in range(partitions):
        with transaction.writer(batch, partition, 0) as writer:
            made = encoder(transaction.stamp(batch, partition))
            for first in range(0, rows, 250):
                bodies = [body(batch, partition, row) for row in range(first, min(rows, first + 250))]
                writer.write(encode(bodies, into=made))
            file = writer.close(rows)
            assert file is not None
            files.append(file)
    return files


def stored(path: str) -> list[bytes]:
    with mqfast.StoreReader(path) as reader:
        return [bytes(message.body) for message in reader.scan() if message.topic != "first"]


def expected(*batches: int, partitions: int = PARTITIONS, rows: int = ROWS) -> list[bytes]:
    return [body(b, p, row) for b in batches for p in range(partitions) for row in range(rows)]


def left_behind(transaction: SinkTransaction) -> list[str]:
    return sorted(name for name in os.listdir(transaction.directory) if not name.endswith(".done"))


# --- records ---------------------------------------------------------------------------------------------------------


def test_encoded_rows_are_the_messages_that_a_put_stores(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "a", mapped_file_bytes_commit_log=FILE_BYTES) as store:
        block = bytearray(encode([b"one", b"", b"three" * 100], b"SPK\x01me:0:"))
        assert count_records(block) == (3, len(block))
        assert append_records(store, block) == 3
        [one, two, three] = [store.get("t", queue, 0)[0] for queue in range(3)]
        assert [bytes(m.body) for m in (one, two, three)] == [b"one", b"", b"three" * 100]
        assert three.properties == {"KEYS": "k2", "SPK": "me:0:2"}
        assert (one.queue_id, one.queue_offset, one.born_timestamp, one.born_host) == (
            0,
            0,
            1_700_000_000_000,
            "10.0.0.1:10911",
        )
        assert all(message.check_crc() for message in (one, two, three))
        store.put("t", b"one", 0, keys="k0", properties={"SPK": "me:0:0"}, born_timestamp=1_700_000_000_000)
        assert store.get("t", 0, 1)[0].size == one.size
    mqfast.verify(str(tmp_path / "a"))
    assert stored(str(tmp_path / "a"))[:3] == [b"one", b"", b"three" * 100]


def test_an_append_rolls_files_and_counts_queues(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "a", mapped_file_bytes_commit_log=FILE_BYTES) as store:
        bodies = [b"%d" % i + b"y" * 3000 for i in range(500)]
        append_records(store, bytearray(encode(bodies)))
        assert store.stats()["log_files"] > 5
        assert [store.max_offset("t", q) for q in range(4)] == [125] * 4
        assert store.get("t", 1, 3).bodies()[0] == bodies[13]


@pytest.mark.parametrize("at", [0, 4, 8, 84, 88, 100])
def test_damaged_records_are_found_before_they_are_appended(tmp_path: Path, at: int) -> None:
    block = bytearray(encode([b"a" * 50, b"b" * 50]))
    block[at] ^= 0x40
    if at == 0:
        assert count_records(block) == (0, 0)  # its length now reaches beyond the block
    else:
        with pytest.raises(CorruptFile, match="offset 0"):
            count_records(block)
    with mqfast.open(tmp_path / "a", mapped_file_bytes_commit_log=FILE_BYTES) as store:
        if at in (0, 4, 84):  # the append looks at lengths only: the CRC was checked when the records were counted
            with pytest.raises(CorruptFile):
                append_records(store, block)
            assert store.max_physical_offset == 0


def test_a_block_that_ends_inside_a_record_counts_the_whole_ones() -> None:
    block = encode([b"a" * 50, b"b" * 50])
    for end in range(len(block)):
        assert count_records(block[:end]) == ((1, len(block) // 2) if end >= len(block) // 2 else (0, 0))


def test_rows_that_no_store_takes_are_refused() -> None:
    with pytest.raises(mqfast.errors.MessageTooLarge, match="row 1: expected a body of at most 10 bytes, found 11"):
        encode([b"", b"x" * 11], into=encoder(most=10))
    with pytest.raises(mqfast.errors.MessageTooLarge, match="row 0: expected a record of at most"):
        encode([b"x" * FILE_BYTES])
    made = encoder()
    one = np.zeros(1, np.int32)
    born = np.zeros(1, np.int64)
    with pytest.raises(mqfast.errors.PropertiesTooLong, match="row 0"):
        made.encode([b"t"], one, one, np.zeros(2, np.int32), b"", [b"a" * 32768], one, one, born, one, None)
    with pytest.raises(mqfast.errors.MessageIllegal, match="inner batch"):
        made.encode([b"t"], one, one, np.zeros(2, np.int32), b"", None, one, one + 0x80, born, one, None)
    with pytest.raises(mqfast.errors.MessageIllegal, match="queue id"):
        made.encode([b"t"], one, one - 1, np.zeros(2, np.int32), b"", None, one, one, born, one, None)
    with pytest.raises(mqfast.errors.MessageIllegal, match="inside its column"):
        made.encode([b"t"], one, one, np.array([0, 5], np.int32), b"", None, one, one, born, one, None)
    with pytest.raises(mqfast.errors.MessageIllegal, match="same number"):
        made.encode([b"t"], one, one, np.zeros(3, np.int32), b"", None, one, one, born, one, None)


def test_columns_of_another_length_are_refused() -> None:
    none: frozenset[str] = frozenset()
    good = merge_properties(2, ["a", "b"], ["1", None], [0, 1, 2], [("K", ["k", ""])], none)
    assert good == [{"a": "1", "K": "k"}, {}]
    assert merge_properties(1, None, None, None, [("K", ["k"])], none) == [{"K": "k"}]
    for names, values, ends in (
        (["a"], ["1"], [0, 1]),
        (["a"], ["1", "2"], [0, 1, 1]),
        (["a"], ["1"], [0, 1, 2]),
        (["a"], ["1"], [1, 0, 1]),
        (["a"], ["1"], [-1, 0, 1]),
        (["a"], None, [0, 1, 1]),
    ):
        with pytest.raises(mqfast.errors.MessageIllegal, match="properties: expected"):
            merge_properties(2, names, values, ends, [], none)
    with pytest.raises(mqfast.errors.MessageIllegal, match="column for K: expected 2 values"):
        merge_properties(2, None, None, None, [("K", ["k"])], none)


# --- the protocol ----------------------------------------------------------------------------------------------------


def test_batches_are_appended_in_order_and_once(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    for batch in range(3):
        files = stage(transaction, batch)
        done = transaction.commit(batch, reversed(files))
        assert (done.rows, done.appended, done.resumed, done.repeated) == (2100, 2100, False, False)
    again = transaction.commit(1, stage(transaction, 1))
    assert (again.appended, again.repeated) == (0, True)
    assert stored(store) == expected(0, 1, 2)
    assert left_behind(transaction) == []
    assert transaction.is_done(2)
    assert not transaction.is_done(3)


def test_two_transactions_are_independent(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    one, two = (SinkTransaction(store, str(tmp_path / "staging"), name) for name in ("a/b", "a%2Fb"))
    assert one.directory != two.directory
    one.commit(0, stage(one, 0))
    assert not two.commit(0, stage(two, 0)).repeated
    assert stored(store) == expected(0, 0)


def test_nothing_staged_is_nothing_to_do(tmp_path: Path) -> None:
    transaction = SinkTransaction(str(tmp_path / "none"), str(tmp_path / "staging"), "job")
    with transaction.writer(0, 0, 0) as writer:
        assert writer.close(0) is None
    assert transaction.commit(0, []).rows == 0
    assert not (tmp_path / "none").exists()


def test_an_attempt_that_fails_leaves_no_file(tmp_path: Path) -> None:
    transaction = SinkTransaction(str(tmp_path / "none"), str(tmp_path / "staging"), "job")
    with pytest.raises(RuntimeError), transaction.writer(0, 0, 0) as writer:
        writer.write(b"x")
        raise RuntimeError
    assert left_behind(transaction) == []


def child(transaction: SinkTransaction, batch: int, files: list[StagedFile], crash_at: int = -1) -> int:
    """A process that commits, and dies at one step: status 7. Returns: its id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    steps = iter(range(1_000_000))
    try:
        transaction.commit(batch, files, lambda name: os._exit(7) if next(steps) == crash_at else None)
        status = 0
    finally:
        os._exit(status)


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def crash(transaction: SinkTransaction, batch: int, at: int) -> None:
    assert end_of(child(transaction, batch, stage(transaction, batch), at)) == 7


def steps_of_a_commit(tmp_path: Path) -> list[str]:
    store = make_store(tmp_path / "whole")
    transaction = SinkTransaction(store, str(tmp_path / "s"), "job", owner="q")
    names: list[str] = []
    transaction.commit(0, stage(transaction, 0), names.append)
    return names


def test_a_crash_at_any_step_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """Three crashes in a row at each step, each found by a new process with newly staged files, then an end."""
    names = steps_of_a_commit(tmp_path)
    assert names == ["open", "intend", "intended", *["append", "appended"] * 3, "flush", "mark", "marked", "close"]
    for at in range(len(names)):
        store = make_store(tmp_path / f"store{at}")
        staging = str(tmp_path / f"staging{at}")
        transaction = SinkTransaction(store, staging, "job", owner="q")
        transaction.commit(0, stage(transaction, 0, 1, 5))
        with mqfast.open(store) as other:  # somebody else's messages stand between
            other.put("u", b"foreign")
        crash(transaction, 1, at)
        done = transaction.commit(1, stage(transaction, 1))
        # Before the intent nothing was decided; from the intent on the first files count.
        assert done.resumed == (at >= names.index("intended") and at <= names.index("mark"))
        assert done.repeated == (at >= names.index("marked"))
        assert stored(store) == [*expected(0, partitions=1, rows=5), b"foreign", *expected(1)]
        assert left_behind(transaction) == []


def test_kills_at_random_moments_lose_and_repeat_nothing(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    chance = random.Random(6)
    kills = 0
    for batch in range(4):
        for attempt in range(20):
            pid = child(transaction, batch, stage(transaction, batch, rows=200))
            time.sleep(chance.uniform(0, 0.01 * 2**attempt))  # ever longer: a slow machine gets there as well
            os.kill(pid, signal.SIGKILL)
            if end_of(pid) == 0:
                break
            kills += 1
    assert stored(store) == expected(*range(4), rows=200)
    assert kills > 0


def test_a_resume_uses_the_files_of_the_intent_not_the_new_ones(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    crash(transaction, 0, 4)
    other = stage(transaction, 0, 1, 3)
    assert transaction.commit(0, other).resumed
    assert stored(store) == expected(0)
    assert left_behind(transaction) == []


def test_repeatable_staged_files_may_be_lost_in_a_power_cut(tmp_path: Path) -> None:
    """A power cut takes the staged files, not the intent."""
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q", repeatable=True)
    files = stage(transaction, 0)
    assert end_of(child(transaction, 0, files, 4)) == 7
    assert 0 < len(stored(store)) < len(expected(0))
    for file in files:
        os.truncate(os.path.join(transaction.directory, file.name), 0)
    with pytest.raises(UsageError, match="expected the rows of the run that was cut off"):
        transaction.commit(0, stage(transaction, 0, 1, 3))
    with pytest.raises(UsageError, match="expected the rows of the run that was cut off"):
        transaction.commit(0, [])
    assert transaction.commit(0, stage(transaction, 0)).resumed
    assert stored(store) == expected(0)
    assert left_behind(transaction) == []


@pytest.mark.parametrize("repeatable", [False, True])
def test_staged_files_are_synced_unless_they_can_be_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeatable: bool
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append(os.fstat(fd).st_size)
        real(fd)

    transaction = SinkTransaction(str(tmp_path / "store"), str(tmp_path / "staging"), "job", repeatable=repeatable)
    monkeypatch.setattr(os, "fsync", fsync)
    [file] = stage(transaction, 0, 1)
    assert (file.bytes in synced) == (not repeatable)


def test_an_abort_keeps_what_an_intent_names(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    files = stage(transaction, 0)
    assert end_of(child(transaction, 0, files, 4)) == 7
    transaction.abort(0, files)
    assert transaction.commit(0, files).resumed
    assert stored(store) == expected(0)
    files = stage(transaction, 1)
    transaction.abort(1, files)
    assert left_behind(transaction) == []


def test_a_failed_append_is_finished_by_the_next_call(tmp_path: Path) -> None:
    """The process lives on: the commit raised, Spark aborts, and the query is started again."""
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    files = stage(transaction, 0)
    calls: list[str] = []

    def fail(name: str) -> None:
        calls.append(name)
        if calls.count("appended") == 2:
            raise OSError("no luck")

    with pytest.raises(OSError, match="no luck"):
        transaction.commit(0, files, fail)
    transaction.abort(0, files)
    assert len(stored(store)) == 1400
    done = transaction.commit(0, stage(transaction, 0))
    assert (done.resumed, done.appended) == (True, 700)
    assert stored(store) == expected(0)


def test_the_log_is_durable_before_the_marker_says_so(tmp_path: Path) -> None:
    """With the machine's power gone at the marker, the records are on the disk: their bytes were synced."""
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    flushed = -1

    def look(name: str) -> None:
        nonlocal flushed
        if name == "mark":
            [opened] = [
                s for s in mqfast.store.message_store._stores if s.path == store and s.state == mqfast.StoreState.OPEN
            ]
            flushed = opened.log.flushed
            assert flushed == opened.log.written

    transaction.commit(0, stage(transaction, 0), look)
    assert flushed > 0


def test_a_log_that_lost_its_end_is_filled_again(tmp_path: Path) -> None:
    """An intent's start may be behind the log's end when durable bytes were lost; two resumes later all is there."""
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    with mqfast.open(store) as before:
        before.put("u", b"x" * 5000)
    at = steps_of_a_commit(tmp_path).index("appended")
    crash(transaction, 0, at - 1)
    for name in os.listdir(Path(store, "commitlog")):
        path = Path(store, "commitlog", name)
        path.write_bytes(bytes(path.stat().st_size))
    crash(transaction, 0, 3)
    assert transaction.commit(0, stage(transaction, 0)).resumed
    assert stored(store) == expected(0)


def test_a_batch_with_an_expired_beginning_resumes_after_its_last_record(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    at = len(steps_of_a_commit(tmp_path)) - 7
    crash(transaction, 0, at)
    [first, *_] = sorted(os.listdir(Path(store, "commitlog")))
    before = len(stored(store))
    assert before < 2100
    Path(store, "commitlog", first).unlink()
    kept = stored(store)
    done = transaction.commit(0, stage(transaction, 0))
    assert 0 < done.appended == 2100 - before
    assert stored(store) == kept + expected(0)[before:]


def test_a_batch_of_unknown_state_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    at = steps_of_a_commit(tmp_path).index("append") + 1
    crash(transaction, 0, at)
    with mqfast.open(store) as other:
        for _ in range(20):
            other.put("u", b"z" * 50_000)
    for name in sorted(os.listdir(Path(store, "commitlog")))[:-1]:
        Path(store, "commitlog", name).unlink()
    with pytest.raises(UsageError, match="nobody can tell"):
        transaction.commit(0, stage(transaction, 0))


def test_damaged_or_missing_staging_is_refused_before_anything_is_decided(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    files = stage(transaction, 0)
    path = Path(transaction.directory, files[1].name)
    good = path.read_bytes()
    for bad in (good[:-1], good + b"\0", b"\0" * len(good), good.replace(b"0/1/3 ", b"0/1/4 ")):
        path.write_bytes(bad)
        with pytest.raises(CorruptFile, match="staged file"):
            transaction.commit(0, files)
    path.unlink()
    with pytest.raises(UsageError, match="share"):
        transaction.commit(0, files)
    assert stored(store) == []
    path.write_bytes(good)
    transaction.commit(0, files)
    assert stored(store) == expected(0)


def test_a_damaged_note_is_an_error(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    files = stage(transaction, 0)
    for text in ("", "[]", '{"version": 9}', "{"):
        Path(transaction.directory, "0.intent").write_text(text)
        with pytest.raises(CorruptFile, match="note of the sink"):
            transaction.commit(0, files)
    assert stored(store) == []


def test_another_query_under_the_same_id_is_refused(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    one = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="query 1")
    one.commit(4, stage(one, 4))
    two = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="query 2")
    with pytest.raises(UsageError, match="an id of its own"):
        two.commit(0, stage(two, 0))


def test_a_store_open_for_writing_is_never_written_by_the_sink(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    script = f"import mqfast, sys; s = mqfast.open({store!r}); print('open', flush=True); sys.stdin.read(); s.close()"
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "open\n"
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q", wait_ms=200)
    files = stage(transaction, 0)
    for refused in (lambda: check_target(store), lambda: transaction.commit(0, files)):
        with pytest.raises(StoreLocked, match="by the option namesrv"):
            refused()
    owner.communicate("")
    check_target(store)
    assert transaction.commit(0, files).appended == 2100
    assert stored(store) == expected(0)


def test_a_directory_of_something_else_does_not_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "documents").mkdir()
    check_target(str(tmp_path / "documents"))
    check_target(str(tmp_path / "none"))
    (tmp_path / "documents" / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"expected a store or an empty directory, found 'letter\.txt'"):
        check_target(str(tmp_path / "documents"))
    assert os.listdir(tmp_path / "documents") == ["letter.txt"]
    check_target(make_store(tmp_path / "store"))
    (tmp_path / "stream" / "checkpoint").mkdir(parents=True)  # Spark's, in the place of the store's own
    with pytest.raises(ConfigError, match="put Spark's checkpointLocation elsewhere"):
        check_target(str(tmp_path / "stream"))


def test_the_sink_waits_for_another_sink(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    opened = mqfast.open(store)
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q", wait_ms=20_000)
    files = stage(transaction, 0)
    with pytest.raises(StoreLocked):
        SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q", wait_ms=1).commit(0, files)
    waiting = child(transaction, 0, files)
    time.sleep(0.2)
    opened.close()
    assert end_of(waiting) == 0
    assert stored(store) == expected(0)


def test_at_least_once_repeats_and_leaves_no_stamp_to_find(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    for _ in range(2):
        transaction.append_at_least_once(0, stage(transaction, 0, 1, 10))
    assert stored(store) == expected(0, 0, partitions=1, rows=10)
    assert not os.path.exists(transaction.directory)


def test_only_the_last_markers_are_kept(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    transaction = SinkTransaction(store, str(tmp_path / "staging"), "job", owner="q")
    for batch in range(104):
        Path(transaction.directory).mkdir(parents=True, exist_ok=True)
        transaction._note(batch, "done", {})
    transaction.commit(104, stage(transaction, 104, 1, 1))
    kept = sorted(int(name.removesuffix(".done")) for name in os.listdir(transaction.directory))
    assert kept == list(range(5, 105))
    assert transaction.commit(2, stage(transaction, 2, 1, 1)).repeated


def test_clean_up_removes_old_files_that_no_intent_names(tmp_path: Path) -> None:
    store = make_store(tmp_path / "store")
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "job", owner="q")
    named = stage(transaction, 0)
    assert end_of(child(transaction, 0, named, 4)) == 7
    orphans = [file.name for file in stage(transaction, 0)]
    abandoned = SinkTransaction(store, staging, "gone", owner="q")
    stage(abandoned, 0)
    day = 86_400_000
    assert clean_staging(staging, day) == 0  # too young
    assert clean_staging(staging, day, now=time.time() + 600) == 0  # looked at a moment ago
    fresh = stage(SinkTransaction(store, staging, "new"), 0)
    later = time.time() + 2 * 86_400
    for file in fresh:
        os.utime(Path(SinkTransaction(store, staging, "new").directory, file.name), (later, later))
    assert clean_staging(staging, day, now=later) == 2 * PARTITIONS
    assert not set(orphans) & set(os.listdir(transaction.directory))
    assert not os.path.exists(abandoned.directory)
    assert len(os.listdir(SinkTransaction(store, staging, "new").directory)) == PARTITIONS
    assert transaction.commit(0, []).resumed
    assert stored(store) == expected(0)
    assert clean_staging(str(tmp_path / "nowhere"), day) == 0


def test_clean_up_keeps_a_recent_empty_directory(tmp_path: Path) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "staging")
    transaction = SinkTransaction(store, staging, "slow")
    with transaction.writer(0, 0, 0) as writer:  # nothing is written yet
        clean_staging(staging, 86_400_000)
        assert os.path.isdir(transaction.directory)
        clean_staging(staging, 0, now=time.time() + 7200)  # one for whom it is old takes it
        assert not os.path.exists(transaction.directory)
        writer.write(encode([body(0, 0, 0)], transaction.stamp(0, 0)))
        file = writer.close(1)
    assert file is not None
    assert transaction.commit(0, [file]).appended == 1


def test_forget_removes_unrepeatable_transactions_and_accepts_missing_ones(tmp_path: Path) -> None:
    transaction = SinkTransaction(make_store(tmp_path / "store"), str(tmp_path / "staging"), "job-1")
    transaction.forget()  # no task had a row
    with transaction.writer(0, 0, 0):
        pass
    clean_staging(str(tmp_path / "staging"), 0, now=time.time() + 7200)
    transaction.forget()
    assert os.listdir(tmp_path / "staging") == [".cleaned"]


def test_clean_up_keeps_a_transaction_with_a_damaged_note(tmp_path: Path) -> None:
    staging = str(tmp_path / "staging")
    transaction = SinkTransaction(str(tmp_path / "none"), staging, "job")
    stage(transaction, 0, 2, 1)
    Path(transaction.directory, "0.intent").write_text("{")
    assert clean_staging(staging, 0, now=time.time() + 7200) == 0
    assert len(left_behind(transaction)) == 3


# --- names -----------------------------------------------------------------------------------------------------------


def test_named_writes_leave_a_line_each_and_no_directory(tmp_path: Path) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "store" / "spark-staging")
    for n in range(5):
        transaction = SinkTransaction(store, staging, f"day {n}", owner="batch write", single=True)
        for repeated in (False, True, True):
            done = transaction.commit(0, stage(transaction, 0, 1, 3))
            assert done.repeated == repeated
        assert transaction.is_done(0)
    assert os.listdir(staging) == ["done.txt"]
    assert stored(store) == expected(0, partitions=1, rows=3) * 5
    assert len((tmp_path / "store" / "spark-staging" / "done.txt").read_bytes().splitlines()) == 5


def test_a_crash_at_any_step_of_a_named_write_loses_and_repeats_nothing(tmp_path: Path) -> None:
    names: list[str] = []
    whole = SinkTransaction(make_store(tmp_path / "whole"), str(tmp_path / "s"), "job", owner="q", single=True)
    whole.commit(0, stage(whole, 0), names.append)
    assert names[-4:] == ["marked", "ledger", "noted", "close"]
    for at in range(len(names)):
        store = make_store(tmp_path / f"store{at}")
        transaction = SinkTransaction(store, str(tmp_path / f"staging{at}"), "job", owner="q", single=True)
        crash(transaction, 0, at)
        done = transaction.commit(0, stage(transaction, 0))
        assert done.repeated == (at >= names.index("marked"))
        assert stored(store) == expected(0)
        assert not os.path.exists(transaction.directory)
        assert transaction.commit(0, stage(transaction, 0)).repeated


@pytest.mark.parametrize("cut", [1, 20, 45])
def test_an_incomplete_ledger_line_is_ignored(tmp_path: Path, cut: int) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "staging")
    one, two = (SinkTransaction(store, staging, name, owner="q", single=True) for name in ("one", "two"))
    one.commit(0, stage(one, 0, 1, 3))
    two.commit(0, stage(two, 0, 1, 3))
    [ledger] = Path(staging).glob("done-*.txt")
    os.truncate(ledger, ledger.stat().st_size - cut)
    assert one.is_done(0)
    assert not two.is_done(0)  # here its marker would still be there: it goes when the line is durable
    two.commit(0, stage(two, 0, 1, 3))
    assert one.is_done(0)
    assert two.is_done(0)


def test_a_name_of_a_batch_write_is_not_taken_by_a_query(tmp_path: Path) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "staging")
    job = SinkTransaction(store, staging, "name", owner="batch write", single=True)
    job.commit(0, stage(job, 0))
    stream = SinkTransaction(store, staging, "name", owner="a query")
    with pytest.raises(UsageError, match="an id of its own"):
        stream.commit(0, stage(stream, 0))
    assert stored(store) == expected(0)


def test_the_same_name_in_two_queries_and_in_two_batches(tmp_path: Path) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "staging")
    for query in ("q1", "q2"):
        for batch in range(6):
            for repeated in (False, True):
                transaction = SinkTransaction(store, staging, "totals", owner=query, within=(query, batch))
                assert transaction.commit(0, stage(transaction, 0, 1, 2)).repeated == repeated
    assert stored(store) == expected(0, partitions=1, rows=2) * 12
    # Only what Spark may run again is still known.
    assert sorted(name[:10] for name in os.listdir(staging)) == ["query-q1-4", "query-q1-5", "query-q2-4", "query-q2-5"]


def test_an_append_that_was_cut_off_is_kept_until_it_is_finished(tmp_path: Path) -> None:
    store, staging = make_store(tmp_path / "store"), str(tmp_path / "staging")
    cut = SinkTransaction(store, staging, "totals", owner="q", within=("q", 0))
    crash(cut, 0, 4)
    for batch in range(1, 6):
        transaction = SinkTransaction(store, staging, "totals", owner="q", within=("q", batch))
        transaction.commit(0, stage(transaction, 0, 1, 2))
    assert os.path.isdir(cut.directory)
    assert cut.commit(0, stage(cut, 0)).resumed


def test_two_stores_that_share_a_staging_directory(tmp_path: Path) -> None:
    """A name that was written into one store says nothing of the other one."""
    staging = str(tmp_path / "staging")
    stores = [make_store(tmp_path / name) for name in ("a", "b")]
    for store in stores:
        job = SinkTransaction(store, staging, "name", owner="batch write", single=True)
        assert not job.commit(0, stage(job, 0)).repeated
        assert stored(store) == expected(0)
    first = SinkTransaction(stores[0], staging, "stream", owner="q")
    first.commit(0, stage(first, 0, 1, 1))
    second = SinkTransaction(stores[1], staging, "stream", owner="q")
    with pytest.raises(UsageError, match="give each store a staging directory of its own"):
        second.commit(0, stage(second, 0, 1, 1))
