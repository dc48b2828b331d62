"""A thread that puts lends the GIL to the threads of its store; nobody else is kept from anything by it.

Room: tests/store. It must never count on one loan: on a busy machine it may not come about. The hand-over
itself, in C: ``tests/csrc/gil_loan_check.c``.
"""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from laboratory import open_still

import mqfast
from mqfast.store.base._os import let_puts
from mqfast.store.base.service import Service
from mqfast.store.log._commit_log import Bell

WANTED = 32  # LOG_GIL_WANTED


@pytest.fixture
def seldom_by_force() -> Iterator[None]:
    """Who is not given the GIL gets it a second later: on a busy machine an offer may come too late now and then."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1)
    yield
    sys.setswitchinterval(before)


def puts_until(done: Callable[[], bool], put: Callable[[bytes], object]) -> bool:
    """Put without a pause that would let anybody in, for a minute at most."""
    end = time.perf_counter() + 60
    while not done():
        put(b"x")
        if time.perf_counter() > end:
            return False
    return True


ram = "/dev/shm"
one_processor = not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2


@pytest.mark.skipif(one_processor, reason="nothing is lent")
@pytest.mark.skipif(not hasattr(time, "pthread_getcpuclockid"), reason="no clock of another thread")
@pytest.mark.skipif(not os.access(ram, os.W_OK), reason="a disk would hold up what is measured")
def test_prefault_keeps_away_while_the_gil_is_lent() -> None:
    """The borrower may want its processor, and a put waits awake for the borrower."""
    file_bytes = 512 << 20
    sleep_with_gil = ctypes.PyDLL(None).usleep
    with (
        tempfile.TemporaryDirectory(dir=ram) as place,
        open_still(place, mapped_file_bytes_commit_log=file_bytes, prefault_window_bytes=0) as store,
    ):
        turns: list[None] = []
        shares: list[float] = []
        producer = store.producer("Topic")
        producer.put(b"the first one makes the log file, without the GIL")
        store.log.prefault_window = file_bytes  # to do from its start on: for one loan or more, if nothing held it up
        prefault_bell = Bell()
        prefault = threading.Thread(target=store.log.keep_prefaulted, args=(prefault_bell,))

        def put(body: bytes) -> None:
            producer.put(body)
            sum(range(200))  # fast enough to be asked, and the log does not roll so soon

        def turn(bell: Bell) -> None:
            bell.sleep(0.0001)
            if not prefault.is_alive():
                turns.append(None)
                return
            clock = time.pthread_getcpuclockid(prefault.ident or 0)
            used, began = time.clock_gettime_ns(clock), time.perf_counter_ns()
            sleep_with_gil(3000)  # the other may have this processor
            taken, now = time.perf_counter_ns() - began, time.clock_gettime_ns(clock)
            puts = store.put_count
            let_puts()
            if store.put_count > puts and now > 1_000_000:  # it was lent, not taken by force, and the other is at work
                shares.append((now - used) / taken)

        service = Service("borrower", turn, log=store.log)
        service.start()
        try:
            assert puts_until(lambda: len(turns) > 20, put)
            prefault.start()
            assert puts_until(lambda: len(shares) >= 3, put)
        finally:
            service.stop()
            prefault_bell.ring()
            prefault.join()
        assert max(shares[:3]) < 0.7, [f"{share:.2f}" for share in shares]


@pytest.mark.usefixtures("seldom_by_force")
def test_with_sync_flush_nobody_asks_for_the_gil(tmp_path: Path) -> None:
    """Those who put give it away to wait for the disk, and who waits awake has the processor of one of them.

    A busy machine can only add turns: one round of ten with few of them shows that nothing is lent.
    """
    with open_still(tmp_path, flush_disk_type="SYNC_FLUSH") as store:
        sys.setswitchinterval(0.1)  # the first turn comes by force, before anybody knows that puts come fast
        store.put("Topic", b"the first one makes the log file, without the GIL")
        rounds = [turns_beside_puts(store) for _ in range(3)]
        while min(rounds) >= 20 and len(rounds) < 10:
            rounds.append(turns_beside_puts(store))
        assert min(rounds) < 20, f"six by force; loans would be hundreds: {rounds}"


def turns_beside_puts(store: mqfast.MessageStore) -> int:
    """Turns of a service in half a second of puts without a pause."""
    turns: list[None] = []

    def turn(bell: Bell) -> None:
        bell.sleep(0.0001)
        turns.append(None)

    service = Service("no-borrower", turn, log=store.log)
    service.start()
    try:
        end = time.perf_counter() + 0.5
        while time.perf_counter() < end:
            store.put_nowait("Topic", b"x")
    finally:
        service.stop()
    return len(turns)


def test_a_question_that_nobody_asks_keeps_nothing_out(tmp_path: Path) -> None:
    with mqfast.open(tmp_path) as store:
        producer = store.producer("Topic")
        for number, put in enumerate(
            (
                lambda: producer.put(b"1"),
                lambda: store.put("Topic", b"2", properties={"a": "b"}),
                lambda: producer.put_many([b"3"]),
                lambda: store.put_batch([mqfast.Message("Topic", b"4")]),
            ),
            1,
        ):
            store.log.set_flag(WANTED)
            assert store.log.flags == 0, "no state of the log"
            put()
            assert store.put_count == number
