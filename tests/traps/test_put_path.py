"""Traps 38 to 43: the put path.

Room: tests/traps. Where a trap is a bug of RocketMQ the test says what we do instead. Formats:
``mqfast/store/FORMAT.md``.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from laboratory import bodies, lab
from traps.common import (
    SMALL,
    T0,
    age,
    clean,
    fill,
    log_bytes,
)

import mqfast
from mqfast import Message
from mqfast.errors import ConfigError, MessageTooLarge, NotMaster
from mqfast.store.base.os_api import OsApi


def test_trap_38_a_free_put_lock_is_never_busy(tmp_path: Path) -> None:
    with mqfast.open(tmp_path / "store", osPageCacheBusyTimeOutMills=1, **SMALL) as store:
        for _ in range(50):
            store.put("T", b"x")
            stats = store.stats()
            assert (stats["put_lock_held_ms"], stats["page_cache_busy"]) == (0, False)


def test_trap_39_a_synchronous_master_waits_for_no_slave(tmp_path: Path) -> None:
    """With RocketMQ's default of one replica in sync, which is the master itself; old releases waited."""
    os_api = OsApi()
    os_api.fix_clock(T0)
    conf = tmp_path / "broker.conf"
    for role in ("ASYNC_MASTER", "SYNC_MASTER"):
        conf.write_text(f"brokerRole={role}\ninSyncReplicas=1\nslaveTimeout=3000\n")
        with mqfast.open(tmp_path / role, broker_conf=conf, os_api=os_api, **SMALL) as store:
            assert store.config.broker_role == role
            assert set(store.config.without_effect) == {"inSyncReplicas", "slaveTimeout"}
            for i in range(20):
                assert store.put("T", b"%d" % i * 100, keys="k").status.name == "PUT_OK"
            assert len(bodies(store, "T")) == 20
    assert log_bytes(tmp_path / "SYNC_MASTER") == log_bytes(tmp_path / "ASYNC_MASTER")
    with pytest.raises(ConfigError, match="broker_role: expected ASYNC_MASTER or SYNC_MASTER or SLAVE"):
        mqfast.open(tmp_path / "none", brokerRole="MASTER")


SLOW_SYNC = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
#include <stdlib.h>
#include <errno.h>
#include <stddef.h>
#include <sys/mman.h>
int msync(void *address, size_t bytes, int flags)
{
    int (*real)(void *, size_t, int) = (int (*)(void *, size_t, int)) dlsym(RTLD_NEXT, "msync");
    if (access(getenv("SLOW_SYNC_WHEN"), F_OK) == 0)
        usleep(600000);
    return real(address, bytes, flags);
}
"""

TIMED_OUT = """
import sys, threading
import mqfast
path, gate = sys.argv[1:]
settings = {"mappedFileSizeCommitLog": 1 << 16, "flushDiskType": "SYNC_FLUSH", "syncFlushTimeout": 50}
with mqfast.open(path, **settings) as store:
    store.put("T", b"warm")
    open(gate, "w").close()
    results = []
    def put(body):
        results.append(store.put("T", body))
    threads = [threading.Thread(target=put, args=(b"%d" % i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.flush()
    names = sorted(result.status.name for result in results)
    found = sorted(bytes(message.body) for message in store.get("T", 0, 1))
    print(names.count("FLUSH_DISK_TIMEOUT") >= 1, set(names) <= {"PUT_OK", "FLUSH_DISK_TIMEOUT"},
          found == [b"0", b"1", b"2", b"3"], all(result.status.is_stored for result in results))
"""


def test_trap_40_a_message_whose_flush_timed_out_is_stored(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a slow msync with")
    (tmp_path / "slow.c").write_text(SLOW_SYNC)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", tmp_path / "slow.so", tmp_path / "slow.c", "-ldl"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(tmp_path / "slow.so"), "SLOW_SYNC_WHEN": str(tmp_path / "gate")}
    command = [sys.executable, "-c", TIMED_OUT, str(tmp_path / "store"), str(tmp_path / "gate")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.stdout.split() == ["True"] * 4, done
    with mqfast.open(tmp_path / "store") as store:
        assert store.max_offset("T", 0) == 5


def test_trap_41_with_sync_flush_readers_stop_at_the_flushed_position(tmp_path: Path) -> None:
    settings = SMALL | {"flushDiskType": "SYNC_FLUSH", "flushIntervalCommitLog": 60000}
    with mqfast.open(tmp_path / "store", **settings) as store:
        first = store.put("T", b"0")
        end = first.physical_offset + first.size
        ticket = store.put_nowait("T", b"1", keys="k")
        assert store.max_physical_offset == end
        assert store.max_offset("T", 0) == 1
        assert store.get("T", 0, 1).status.name == "OFFSET_OVERFLOW_ONE"
        assert store.query("T", "k") == []
        assert not ticket.done()
        assert ticket.wait(60)
        assert bodies(store, "T") == [b"0", b"1"]
        assert len(store.query("T", "k")) == 1


def test_trap_41_with_the_pool_readers_stop_at_the_committed_position(tmp_path: Path) -> None:
    settings = SMALL | {
        "transientStorePoolEnable": True,
        "transientStorePoolSize": 2,
        "commitIntervalCommitLog": 60000,
        "dispatch": "background",
    }
    with mqfast.open(tmp_path / "store", **settings) as store:
        results = [store.put("T", b"%d" % i * 200) for i in range(3)]
        assert store.stats()["written_offset"] == results[-1].physical_offset + results[-1].size
        committed = store.stats()["committed_offset"]
        assert store.max_physical_offset == committed
        assert store.stats()["dispatched_offset"] <= committed
        store.log.commit()
        assert store.max_physical_offset == results[-1].physical_offset + results[-1].size
        lab(store).step_dispatch()
        assert [body[:1] for body in bodies(store, "T")] == [b"0", b"1", b"2"]


def test_trap_42_a_slave_takes_no_puts(tmp_path: Path) -> None:
    """Its log must stay equal to its master's; only replication, which writes ready bytes, goes past that."""
    path = tmp_path / "store"
    with mqfast.open(path, **SMALL) as store:
        fill(store, 30)
    before = log_bytes(path)
    with mqfast.open(path, brokerRole="SLAVE", **SMALL) as store:
        for put in (
            lambda: store.put("T", b"x"),
            lambda: store.put("T", b"x", properties={"a": "b"}),
            lambda: store.put("T", b"x", sys_flag=0x80),
            lambda: store.put_many("T", [b"x", b"y"]),
            lambda: store.put_batch([Message("T", b"x"), Message("New", b"y")]),
            lambda: store.put_message(Message("T", b"x")),
            lambda: store.put_nowait("T", b"x"),
            lambda: store.producer("T"),
            lambda: asyncio.run(store.aput("T", b"x")),
        ):
            with pytest.raises(NotMaster, match="found SLAVE"):
                put()
        assert store.stats()["puts"] == 0
        assert store.topics() == ["T"]
        assert len(bodies(store, "T")) == 30
        assert [m.queue_offset for m in store.query("T", "k7")] == [7]
        consumer = store.consumer("g", "T")
        assert [m.queue_offset for m in consumer.poll()] == list(range(30))
        consumer.commit()
        assert store.flush()
        age(path, 100, only=2)
        assert clean(store) == 2  # retention goes on, here too
    end = len(before.rstrip(b"\0")) + 2 * -4096
    assert log_bytes(path)[:end] == before[2 * 4096 :][:end]
    with mqfast.open(path, **SMALL) as store:  # made a master
        assert store.put("T", b"x").queue_offset == 30
        assert store.consumer_offsets.get("g", "T", 0) == 30


def test_trap_43_a_light_queue_message_may_be_as_large_as_any_other(tmp_path: Path) -> None:
    """RocketMQ limits these by the whole record, others by the body. Ours is the body for both; Java reads either."""
    settings = SMALL | {"enableLmq": True, "enableMultiDispatch": True, "maxMessageSize": 1000}
    with mqfast.open(tmp_path / "store", **settings) as store:
        for properties in ({}, {"INNER_MULTI_DISPATCH": "%LMQ%a"}):
            with pytest.raises(MessageTooLarge):
                store.put("T", bytes(1001), properties=properties)
            store.put("T", bytes(1000), properties=properties)
        assert [len(body) for body in bodies(store, "T")] == [1000, 1000]
        assert [len(body) for body in bodies(store, "%LMQ%a")] == [1000]
