"""Breaks chosen lines of the engine one by one and shows that a test catches each.

Room: tests. It must never change the tree that it is started in: every mutant lives in a copy of its own of the last
commit (what is not committed is not tried), and goes with it. What the broken lines are there for:
``docs/durability.md`` and ``mqfast/store/FORMAT.md``.

    make mutants                    all of them: 14 minutes on two cores, 23 while others use them too
    make mutants ONLY=room          those with this in their name or file
    python tests/mutation/mutants.py --list

A mutant is a file, the exact old text, the text in its place, why the line matters, and the tests that should catch it:
few, and fast. First all of these tests must pass on the unbroken copy. Then each mutant is applied, the one extension
that it belongs to is built (without optimisation: that is half of the time), and its tests run until the first failure.
A crash of the interpreter or a run that does not end counts as caught. The last line gives the counts; the exit status
is 1 when a mutant survives, and 2 when one cannot be tried. A survivor wants a new test, not a new mutant.

Every old text must stand in its file exactly once, and every test somewhere: ``test_mutants_apply.py`` (in
``make test``) holds the list to that.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["MUTANTS", "ROOT", "Mutant", "broken", "places"]

ROOT: Final = Path(__file__).resolve().parents[2]
_SECONDS: Final = 150
_SCRATCH_BYTES: Final = 4 << 30


@dataclass(frozen=True)
class Mutant:
    """One line to break. ``tests`` are names of test functions, wherever they stand, with parameters or without;
    ``seconds`` end a run that hangs.
    """

    name: str
    file: str
    old: str
    new: str
    why: str
    tests: tuple[str, ...]
    seconds: int = _SECONDS


def broken(mutant: Mutant, text: str) -> str:
    """The source with its line broken. Raises: ValueError when the old text does not stand there exactly once."""
    found = text.count(mutant.old)
    if found != 1:
        raise ValueError(f"{mutant.name}: expected its old text once in {mutant.file}, found it {found} times")
    return text.replace(mutant.old, mutant.new)


def places(tree: Path) -> dict[str, str]:
    """The file of every test function."""
    found: dict[str, str] = {}
    for path in sorted(tree.glob("tests/**/test_*.py")):
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE):
            found[name] = str(path.relative_to(tree))
    return found


_APPEND: Final = "mqfast/store/log/append.pyx"
_APPEND_ONE: Final = "mqfast/store/log/append.pxd"
_DISPATCH: Final = "mqfast/store/dispatch/dispatch.pyx"
_INDEX: Final = "mqfast/store/index/index_file.pyx"
_LOG: Final = "mqfast/store/log/commit_log.pyx"
_GROUP: Final = "mqfast/store/log/group_commit.pyx"
_MAPPED: Final = "mqfast/store/base/mapped_file.pyx"
_POOL: Final = "mqfast/store/log/transient_pool.pyx"
_PUT: Final = "mqfast/store/put/put_message.pyx"
_MESSAGE: Final = "mqfast/store/put/put_record.pyx"
_QUERY: Final = "mqfast/store/get/query.pyx"
_QUEUE: Final = "mqfast/store/queues/consume_queue.pyx"
_QUEUE_FLUSH: Final = "mqfast/store/queues/queue_flush.pyx"
_UNIT: Final = "mqfast/store/queues/consume_queue.pxd"
_READ: Final = "mqfast/store/get/get_message.pyx"
_UNIT_WALK: Final = "mqfast/store/get/unit_walk.pyx"
_FILTER: Final = "mqfast/store/record/filter.pyx"
_RECORD: Final = "mqfast/store/record/record.pyx"
_PLAIN_RECORD: Final = "mqfast/store/record/record.pxd"
_CHECKPOINT: Final = "mqfast/store/meta/checkpoint.py"
_FLUSH: Final = "mqfast/store/log/flush.py"
_LOCK: Final = "mqfast/store/base/lock.py"
_METADATA: Final = "mqfast/store/meta/metadata.py"
_OS: Final = "mqfast/store/base/os_api.pyx"
_QUEUES: Final = "mqfast/store/queues/queue_store.py"
_BY_TIME: Final = "mqfast/store/queues/by_time.py"
_RECOVERY: Final = "mqfast/store/check/recovery.py"
_RETENTION: Final = "mqfast/store/log/retention.py"
_STORE: Final = "mqfast/store/message_store.py"
_OPENING: Final = "mqfast/store/opening.py"
_CRC: Final = "csrc/crc32.c"
_CRC_X86: Final = "csrc/crc32_x86.c"
_OS_API: Final = "csrc/os_api.c"
_IDLE: Final = "mqfast/store/log/idle.pyx"
_LOOPS: Final = "mqfast/store/log/service_loops.pyx"

MUTANTS: Final = (
    # --- records
    Mutant(
        "body-crc-unchecked",
        _RECORD,
        "return crc31(r.body, r.body_bytes) == <uint32_t> r.body_crc",
        "return 1",
        "recovery would keep a record with a torn or flipped body",
        ("test_trap_34_the_cut_removes_every_file_above_it",),
    ),
    Mutant(
        "property-crc-unchecked",
        _RECORD,
        "return value == crc31(p, r.total - CRC_PROPERTY_BYTES)",
        "return value >= 0",
        "where the whole record has a checksum, damage outside of the body would pass",
        ("test_the_checksum_of_the_whole_record_covers_topic_and_properties",),
    ),
    Mutant(
        "record-length-not-compared",
        _RECORD,
        "return REC_OK if at == total else REC_MISMATCH",
        "return REC_OK",
        "a size word that contradicts the parts would send the walk to a wrong place",
        ("test_trap_05_a_size_that_disagrees_with_the_parts_is_damage",),
    ),
    Mutant(
        "body-length-unbounded",
        _RECORD,
        "    at += r.body_bytes\n    if at + 2 > available:\n        return REC_BAD\n",
        "    at += r.body_bytes\n",
        "a damaged body length would make the parser read memory that is not the record's",
        (
            "test_a_body_that_would_reach_out_of_its_file_ends_recovery",
            "test_a_body_that_would_reach_out_of_its_file_is_not_read",
        ),
    ),
    Mutant(
        "plain-record-of-any-length",
        _PLAIN_RECORD,
        "    return at + 2 + mq_get16(p + at) == size\n",
        "    return True\n",
        "a record whose lengths do not agree with its parts would be shown to readers",
        ("test_a_get_checks_the_place_and_the_lengths_of_a_record",),
    ),
    Mutant(
        "plain-record-of-any-queue",
        _PLAIN_RECORD,
        " or mq_get32(p + 12) != queue_id\n        or ",
        " or ",
        "a unit that leads to a record of another queue would be believed",
        ("test_a_get_checks_the_place_and_the_lengths_of_a_record",),
    ),
    Mutant(
        "plain-record-body-unbounded",
        _PLAIN_RECORD,
        "    if at < 0 or at > size - HEADER_BYTES - 3 - topic_bytes:\n        return False\n",
        "",
        "a damaged body length would have a get look beyond the record, and beyond its file",
        ("test_a_body_that_would_reach_out_of_its_file_is_not_read",),
    ),
    Mutant(
        "properties-length-unbounded",
        _RECORD,
        "    if r.properties_bytes < 0:\n        r.properties_bytes = 0\n",
        "",
        "a negative length of the properties would be walked over backwards",
        ("test_a_negative_length_of_properties_is_not_walked_over_backwards",),
    ),
    Mutant(
        "host-width-of-the-other",
        _RECORD,
        "r.store_host_bytes = 20 if r.sys_flag & STORE_HOST_V6 else 8",
        "r.store_host_bytes = 20 if r.sys_flag & BORN_HOST_V6 else 8",
        "everything behind an IPv6 host would be read at a wrong place",
        ("test_trap_01_ports_have_four_bytes_and_hosts_move_everything_behind_them",),
    ),
    # --- the log
    Mutant(
        "room-one-byte-short",
        _APPEND_ONE,
        "    if position + total + BLANK_BYTES > s.file_bytes:\n        return APPEND_NO_ROOM\n    mq_assert(position",
        "    if position + total + BLANK_BYTES - 1 > s.file_bytes:\n"
        "        return APPEND_NO_ROOM\n    mq_assert(position",
        "a record would leave 7 bytes in its file, too few for the end mark",
        ("test_a_record_leaves_eight_bytes_in_its_file_or_goes_to_the_next",),
    ),
    Mutant(
        "batch-room-one-byte-short",
        _APPEND,
        "        if physical + total > last:\n",
        "        if physical + total > last + 1:\n",
        "the same, for a record of a batch",
        ("test_a_batch_ends_eight_bytes_before_the_end_of_a_file",),
    ),
    Mutant(
        "batch-units-before-what-waits",
        _APPEND,
        "not t.dispatch_later and mq_load64(&s.dispatched) == physical\n    check_owner(s)\n    mq_assert(start",
        "not t.dispatch_later\n    check_owner(s)\n    mq_assert(start",
        "the units of older records, which the dispatcher still has to put, would come behind",
        ("test_batches_leave_what_single_puts_leave",),
    ),
    Mutant(
        "batch-units-without-room",
        _APPEND,
        "        end = min(end, start + <Py_ssize_t> ((q.room_end - unit_end) // UNIT_BYTES))\n",
        "        end = min(end, start + <Py_ssize_t> ((q.room_end - unit_end) // UNIT_BYTES) + 1)\n",
        "a unit would be written where the file has no block",
        ("test_batches_leave_what_single_puts_leave",),
    ),
    Mutant(
        "batch-units-at-the-offset",
        _APPEND,
        "        if number * UNIT_BYTES != unit_end or q.max_physical > physical:\n            return start\n",
        "",
        "a queue's units have no gaps: where its next offset is not its end, a unit goes to the end",
        ("test_a_batch_into_a_queue_whose_next_offset_is_not_its_end",),
    ),
    Mutant(
        "batch-store-time-does-not-fall",
        _APPEND,
        "        note_clock_fall(s, now)\n    mq_store64(&s.lock_since_ms, now)\n    while",
        "        now = s.last_store_timestamp\n    mq_store64(&s.lock_since_ms, now)\n    while",
        "the same, for a record of a batch",
        ("test_a_store_time_is_the_clock_s_also_where_that_falls",),
    ),
    Mutant(
        "general-room-one-byte-short",
        _APPEND,
        "    if s.written - s.file_start + total + BLANK_BYTES > s.file_bytes:\n",
        "    if s.written - s.file_start + total + BLANK_BYTES - 1 > s.file_bytes:\n",
        "the same, for a record of any kind",
        ("test_a_record_leaves_eight_bytes_in_its_file_or_goes_to_the_next",),
    ),
    Mutant(
        "blank-skipped",
        _LOG,
        "                mq_put32(p + 4, MAGIC_BLANK)\n                mq_publish32(p, <int32_t> rest)\n",
        "                mq_put32(p + 4, 0)\n",
        "without its end mark a full file looks as if the log ended there",
        (
            "test_trap_06_eight_bytes_must_remain_behind_a_record",
            "test_every_golden_store[4.9.7-killed]",
        ),
    ),
    Mutant(
        "size-word-before-record",
        _APPEND_ONE,
        "    cdef uint8_t *at\n    memcpy(p + 4, t.header + 4, 84)\n",
        "    cdef uint8_t *at\n    mq_publish32(p, total)\n    memcpy(p + 4, t.header + 4, 84)\n",
        "another process that sees the size word must see the record",
        ("test_another_process_sees_the_whole_record_with_its_size_word",),
    ),
    Mutant(
        "written-before-record",
        _APPEND,
        "        p = s.base + (physical - s.file_start)\n        write_record(",
        "        p = s.base + (physical - s.file_start)\n        mq_store64(&s.written, physical + total)\n"
        "        write_record(",
        "a reader that sees the written position must see the record",
        ("test_a_reader_sees_the_whole_record_with_the_written_position",),
    ),
    Mutant(
        "store-time-does-not-fall",
        _APPEND_ONE,
        "        note_clock_fall(s, now)\n    mq_store64(&s.lock_since_ms, now)\n    p = s.base + position\n",
        "        now = s.last_store_timestamp\n    mq_store64(&s.lock_since_ms, now)\n    p = s.base + position\n",
        "a clock that was wrong once would stay in the store",
        ("test_a_store_time_is_the_clock_s_also_where_that_falls",),
    ),
    Mutant(
        "general-store-time-does-not-fall",
        _APPEND,
        "        note_clock_fall(s, now[0])\n",
        "        now[0] = s.last_store_timestamp\n",
        "the same, for a record of any kind",
        ("test_a_store_time_is_the_clock_s_also_where_that_falls",),
    ),
    Mutant(
        "keys-before-tags",
        _APPEND_ONE,
        "        at += t.tail_bytes          # TAGS precede KEYS in the order of Java's map\n",
        "        memcpy(at + t.topic_bytes + 8 + key_bytes, at + t.topic_bytes + 2, t.properties_bytes)\n"
        "        at += t.topic_bytes + 2\n",
        "equal messages must give the bytes that Java gives",
        ("test_equal_messages_have_equal_properties",),
    ),
    Mutant(
        "failed-sync-not-latched",
        _GROUP,
        "            mq_store64(&s.sync_calls, s.sync_calls + 1)\n"
        "            if rc < 0:\n                latch(s, rc)\n",
        "            mq_store64(&s.sync_calls, s.sync_calls + 1)\n            if rc < 0:\n",
        "after a failed sync nothing may be promised any more",
        ("test_a_failed_sync_is_not_flushed",),
        seconds=60,
    ),
    Mutant(
        "page-of-a-put-synced-by-the-clock",
        _GROUP,
        "    end = _behind_puts(s, written) if by_clock else written\n",
        "    end = written\n",
        "a put would be a fault that may wait for the filesystem's journal",
        ("test_an_interval_flush_skips_the_page_of_the_puts_while_the_log_is_busy",),
    ),
    Mutant(
        "huge-page-left-whatever-it-is",
        _GROUP,
        "    if rest * LEFT_PART > flushes:\n        rest &= PAGE - 1\n",
        "",
        "a power cut would lose much more than what an interval brings",
        ("test_an_interval_flush_skips_the_page_of_the_puts_while_the_log_is_busy",),
    ),
    Mutant(
        "page-left-for-those-who-wait",
        _GROUP,
        "            failed = _lead_and_release(s, target, False)\n",
        "            failed = _lead_and_release(s, target, True)\n",
        "whoever waits would wait for two syncs",
        ("test_a_flush_with_waiters_covers_the_page_of_the_puts",),
        seconds=60,
    ),
    Mutant(
        "time-of-a-record-that-was-left",
        _GROUP,
        "        if end == written:\n            mq_store64(&s.flushed_timestamp, timestamp)\n",
        "        if end <= written:\n            mq_store64(&s.flushed_timestamp, timestamp)\n",
        "the checkpoint would claim what the disk does not have",
        ("test_the_time_that_is_flushed_is_not_that_of_a_record_that_was_left",),
    ),
    Mutant(
        "page-left-for-ever",
        _LOOPS,
        "or mq_load64(&s.flushed) < mq_load64(&s.led_end)):\n",
        "or mq_load64(&s.flushed) < 0):\n",
        "what was left goes with the next flush, however little it is",
        ("test_an_interval_flush_skips_the_page_of_the_puts_while_the_log_is_busy",),
    ),
    Mutant(
        "failed-sync-retried",
        _GROUP,
        "            mq_store64(&s.sync_calls, s.sync_calls + 1)\n            if rc < 0:\n",
        "            mq_store64(&s.sync_calls, s.sync_calls + 1)\n"
        "            if rc < 0:\n"
        "                rc = s.os.msync(s.os, f.base + first, to - f.start - first)\n"
        "            if rc < 0:\n",
        "the second sync of the same pages may succeed without having written them",
        ("test_a_failed_sync_is_not_flushed",),
    ),
    Mutant(
        "queues-synced-after-a-failure",
        _FLUSH,
        "                return\n            covered = self.loop.cover()\n",
        "                pass\n            covered = self.loop.cover()\n",
        "a store whose sync failed promises nothing any more, and must not go on as if it could",
        ("test_every_waiting_ticket_fails_with_the_flush_and_nothing_is_synced_again",),
    ),
    Mutant(
        "clock-keeps-full-files",
        _LOOPS,
        "\n                        or mq_load64(&s.pending_head) != mq_load64(&self.log.reap_head)):",
        "):",
        "the buffer of a file that is durable would come back to its pool a second later",
        ("test_a_file_that_is_durable_whole_ends_the_flushes_of_the_clock",),
    ),
    Mutant(
        "clock-without-end",
        _LOOPS,
        "if (rc_queues != 1 or crowded or now >= until or mq",
        "if (rc_queues != 1 or crowded or mq",
        "where each flush takes longer than the interval the queues would never be flushed",
        ("test_flushes_that_are_always_due_still_end_with_their_time",),
    ),
    Mutant(
        "flushed-before-sync",
        _GROUP,
        "            first = (from_ - f.start) & ~(PAGE - 1)\n            rc = s.os.msync(",
        "            first = (from_ - f.start) & ~(PAGE - 1)\n"
        "            mq_store64(&s.flushed, to)\n"
        "            rc = s.os.msync(",
        "a waiter would be told of durability before the disk was asked",
        ("test_a_failed_sync_is_not_flushed",),
    ),
    Mutant(
        "log-sync-dropped",
        _GROUP,
        "            rc = s.os.msync(s.os, f.base + first, to - f.start - first)\n            mq_store64(&s.sync_calls",
        "            rc = 0\n            mq_store64(&s.sync_calls",
        "the promise of every flush",
        (
            "test_flush_covers_what_the_killed_writer_left_in_the_page_cache",
            "test_one_flush_covers_several_files",
        ),
    ),
    Mutant(
        "waiters-not-woken",
        _GROUP,
        "    futex_wake_all(&s.group_done[group & 1])\n",
        "",
        "who waits for the sync of another must hear of its end",
        ("test_a_waiter_for_a_concurrent_sync_is_woken",),
    ),
    Mutant(
        "late-leader-not-called",
        _GROUP,
        "        futex_wake_one(&s.group_done[(group + 1) & 1])\n",
        "        pass\n",
        "who came too late for a sync must lead the next one",
        ("test_group_commit_a_late_waiter_leads_the_next_sync",),
    ),
    Mutant(
        "outcome-ahead-not-awaited",
        _GROUP,
        "    while mq_load32(&s.ahead):\n",
        "    while False:\n",
        "the sync ahead of the log may have been told of the failure of this one",
        ("test_a_sync_waits_for_the_result_of_a_concurrent_prefault_sync",),
    ),
    Mutant(
        "failure-ahead-ignored",
        _APPEND,
        "            latch(s, rc)        # the failed page",
        "            pass        # the failed page",
        "a failed write is told once: it may have been that of a record",
        ("test_a_failure_ahead_of_the_records_latches_the_store",),
    ),
    Mutant(
        "cut-file-believed",
        _GROUP,
        "    if rc >= 0 and (st.bytes < f.bytes or st.unlinked):\n",
        "    if rc >= 0 and st.unlinked:\n",
        "a sync of a file that another process cut short covers nothing",
        ("test_bytes_that_are_gone_are_not_called_durable_though_nobody_touched_them",),
    ),
    Mutant(
        "end-mark-not-committed",
        _LOG,
        ".used, s.written - s.file_start + BLANK_BYTES)\n",
        ".used, s.written - s.file_start)\n",
        "with the pool a full file would lack its end mark on the disk",
        (
            "test_no_byte_of_an_older_file_reaches_the_disk",
            "test_the_whole_matrix_rolls_closes_and_reopens",
        ),
    ),
    Mutant(
        "cleared-tail-not-synced",
        _LOG,
        "rc = os.msync(os, file.base + first, n)",
        "rc = 0",
        "a stale record behind the cut could come back at the next recovery",
        ("test_what_recovery_cut_stays_cut",),
    ),
    Mutant(
        "tail-not-cleared",
        _LOG,
        "                if file.zero_tail(end - file.start_offset):\n",
        "                if file.file_bytes <= 0:\n",
        "a whole record behind a torn one could come back once new records fill the gap",
        ("test_what_recovery_cut_stays_cut",),
    ),
    Mutant(
        "recovered-bytes-not-synced",
        _LOG,
        "                    rc = os.msync(os, file.base + at, n - at)",
        "                    rc = 0",
        "what a killed writer left in the page cache counts as durable after the open",
        ("test_flush_covers_what_the_killed_writer_left_in_the_page_cache",),
    ),
    Mutant(
        "recovered-pages-not-dirtied",
        _LOG,
        "                rc = populate(os, file.base + at, end - at)",
        "                rc = 0",
        "the kernel takes pages of a failed sync for clean and would not write them",
        ("test_pages_of_a_failed_flush_are_written_by_the_next_open",),
    ),
    Mutant(
        "unflushed-is-readable",
        _GROUP,
        "end = mq_load64(&s.flushed) if sync else",
        "end = mq_load64(&s.written) if sync else",
        "with sync flush a reader may only see what a power cut leaves",
        ("test_trap_41_with_sync_flush_readers_stop_at_the_flushed_position",),
    ),
    Mutant(
        "uncommitted-is-readable",
        _GROUP,
        "mq_load64(&s.committed) if s.pooled else mq_load64(&s.written)\n    return min(end",
        "mq_load64(&s.written) if s.pooled else mq_load64(&s.written)\n    return min(end",
        "bytes in a pool buffer are not in the file that readers look at",
        ("test_trap_41_with_the_pool_readers_stop_at_the_committed_position",),
    ),
    Mutant(
        "undispatched-file-removed",
        _LOG,
        "file.start_offset + self.file_bytes <= min(self.flushed, self.dispatched)",
        "file.start_offset + self.file_bytes <= self.flushed",
        "records that are removed before their units are put are missing in their queues for ever",
        ("test_a_log_file_goes_only_when_it_is_dispatched",),
    ),
    # --- put
    Mutant(
        "batch-offset-stands",
        _APPEND,
        "    _finish(s, q, p, total, counted, 1, dispatch_later,",
        "    _finish(s, q, p, total, counted, 0, dispatch_later,",
        "every message of a batch needs a queue offset of its own",
        (
            "test_a_batch_that_does_not_fit_leaves_an_early_blank",
            "test_eight_threads_leave_no_hole_and_no_repeat",
        ),
    ),
    Mutant(
        "batch-times-differ",
        _MESSAGE,
        "                       elements[i].tags_code, out[0].store_timestamp if i else -1, &out[i])",
        "                       elements[i].tags_code, -1, &out[i])",
        "a batch has one store time",
        ("test_all_elements_share_one_store_time",),
    ),
    Mutant(
        "body-length-unchecked",
        _PUT,
        "        if body_bytes > self.engine.max_body:\n",
        "        if body_bytes < 0:\n",
        "the limit of the settings is the limit of every way to put",
        ("test_what_is_refused_leaves_no_byte",),
    ),
    Mutant(
        "general-body-length-unchecked",
        _MESSAGE,
        "        if view.len > e.max_body:\n",
        "        if view.len < 0:\n",
        "the same, for a record of any kind",
        ("test_what_is_refused_leaves_no_byte",),
    ),
    Mutant(
        "properties-length-unchecked",
        _MESSAGE,
        "if d.properties_bytes + reserved > MAX_PROPERTIES:",
        "if d.properties_bytes > MAX_PROPERTIES:",
        "the length field has 15 bits, the checksum property included",
        ("test_properties_fill_their_length_field_and_no_more",),
    ),
    Mutant(
        "key-length-off-by-one",
        _PUT,
        "elif key_bytes + self.template.properties_bytes + 6 > MAX_PROPERTIES:",
        "elif key_bytes + self.template.properties_bytes + 5 > MAX_PROPERTIES:",
        "the length field has 15 bits",
        ("test_properties_fill_their_length_field_and_no_more",),
    ),
    Mutant(
        "crc-of-the-source",
        _RECORD,
        "(crc32_copy(to + at, d.body, d.body_bytes) & 0x7FFFFFFF)",
        "(crc32_copy(to + at, d.body, d.body_bytes) * 0 + crc31(d.body, d.body_bytes))",
        "a body that changes while it is put would get the checksum of another",
        ("test_a_body_that_another_process_changes_has_the_checksum_of_what_was_stored",),
    ),
    Mutant(
        "batch-goes-on-after-the-latch",
        _APPEND,
        "        if refused(s, q):\n            unlock_puts(s)\n            return start\n",
        "",
        "nothing may be appended to a store that is closed or latched",
        ("test_a_batch_ends_where_the_store_was_latched",),
    ),
    # --- sleep
    Mutant(
        "put-wakes-nobody",
        _IDLE,
        "    if mq_load32(&s.flags) & LOG_ASLEEP:\n        wake_services(s)\n",
        "",
        "service threads would sleep for ever",
        ("test_a_thread_that_sleeps_for_good_hears_of_the_first_put_and_of_its_event",),
    ),
    # --- queues
    Mutant(
        "unit-put-twice",
        _UNIT,
        "    if physical_offset + size <= q.max_physical:\n        return PUT_DONE\n",
        "",
        "recovery walks over records whose units are there",
        ("test_trap_19_dispatching_again_repeats_no_unit",),
    ),
    Mutant(
        "unit-outside-its-room",
        _UNIT,
        "    if q.end + UNIT_BYTES > q.room_end:\n",
        "    if q.end > q.room_end:\n",
        "a unit in a hole of the file is a SIGBUS on a full disk, behind the file worse",
        (
            "test_every_golden_store[4.9.7-killed]",
            "test_the_whole_matrix_rolls_closes_and_reopens",
        ),
    ),
    Mutant(
        "unit-of-a-cut-record-kept",
        _QUEUE,
        "(physical > physical_offset - size and not filler)",
        "(physical > physical_offset and not filler)",
        "a unit of the first record that is gone would lead to whatever comes there",
        ("test_a_last_record_without_the_end_of_its_properties_is_cut_off",),
    ),
    Mutant(
        "min-offset-one-too-far",
        _QUEUE,
        "return fillers if physical == 0 and size == FILLER_SIZE else physical < min_physical",
        "return fillers if physical == 0 and size == FILLER_SIZE else physical <= min_physical",
        "the first record that is left would be hidden",
        ("test_the_budget_takes_the_oldest_files_and_what_follows_them",),
    ),
    Mutant(
        "queue-sync-dropped",
        _QUEUE,
        "    return os.msync(os, base + first, to - first)",
        "    return 0",
        "the checkpoint vouches for units behind a sync",
        ("test_units_are_on_the_disk_before_the_checkpoint_is",),
    ),
    Mutant(
        "cut-units-not-synced",
        _QUEUE,
        "        return mq_load64(&self.state.end) > self.state.flushed or self.state.cut\n",
        "        return mq_load64(&self.state.end) > self.state.flushed\n",
        "units that were taken away could come back after a power cut and be believed",
        ("test_what_recovery_cut_stays_cut",),
    ),
    Mutant(
        "names-of-a-new-queue-not-synced",
        _QUEUE,
        "        if self.files and fresh:\n            self._sync_names()\n",
        "        if self.files and fresh:\n            pass\n",
        "units in files without a name are lost",
        ("test_a_new_queue_has_its_name_on_the_disk_before_the_checkpoint_counts_it",),
    ),
    Mutant(
        "queue-flush-goes-on-behind-a-failed-sync",
        _QUEUE_FLUSH,
        "        while rc >= 0 and self.tried < self.count:\n",
        "        while rc >= -1000 and self.tried < self.count:\n",
        "after a sync that failed nothing may be synced any more",
        ("test_a_sync_that_fails_is_the_last_one",),
    ),
    Mutant(
        "queue-with-a-bad-file-counts-as-flushed",
        _QUEUE_FLUSH,
        "            elif queue not in self.failed:\n",
        "            else:\n",
        "the checkpoint would vouch for units of a file that was cut short",
        ("test_a_file_that_was_cut_short_costs_the_other_queues_nothing",),
    ),
    Mutant(
        "names-made-during-a-flush-count-as-synced",
        _QUEUE_FLUSH,
        "                if fresh:           # else",
        "                if True:            # else",
        "units in files without a name are lost",
        ("test_a_first_file_that_comes_during_a_flush_has_its_name_on_the_disk_after_the_next_one",),
    ),
    Mutant(
        "queue-in-another-filesystem-believed",
        _QUEUE_FLUSH,
        "            if work.rc_stat < 0 or work.st.device != self.device:\n",
        "            if work.rc_stat < 0:\n",
        "the sync of one filesystem reaches no other one",
        ("test_a_queue_in_another_filesystem_is_synced_by_itself",),
    ),
    Mutant(
        "one-sync-for-all-not-made",
        _QUEUES,
        "        if len(dirty) < self.many or together is None or not together.sync_filesystem():\n",
        "        if len(dirty) < self.many or together is None:\n",
        "many queues count as durable behind one sync of the filesystem",
        ("test_units_are_on_the_disk_before_the_checkpoint_is",),
    ),
    Mutant(
        "unit-beyond-what-is-readable",
        _QUEUE,
        "            if physical + size <= limit or (physical == 0 and size == FILLER_SIZE):",
        "            if physical <= limit or (physical == 0 and size == FILLER_SIZE):",
        "the end of a queue counts only what a reader may see",
        ("test_a_message_that_waits_for_its_flush_is_not_counted",),
    ),
    # --- the index
    Mutant(
        "index-one-entry-too-many",
        _INDEX,
        "    if number >= s.room:\n        return 0\n",
        "    if number > s.room:\n        return 0\n",
        "the entry behind the last one is not in the file",
        ("test_file_equals_the_model",),
    ),
    Mutant(
        "index-hash-ignored",
        _INDEX,
        "            if mq_get32(p) == w.key_hash and begin_ms <= time <= end_ms:\n",
        "            if begin_ms <= time <= end_ms:\n",
        "keys that share only a slot are not hits",
        ("test_file_equals_the_model",),
    ),
    Mutant(
        "index-first-moment-left-out",
        _INDEX,
        "            if mq_get32(p) == w.key_hash and begin_ms <= time <= end_ms:\n",
        "            if mq_get32(p) == w.key_hash and begin_ms < time <= end_ms:\n",
        "the bounds of a query belong to it",
        ("test_the_bounds_of_a_query_belong_to_it",),
    ),
    Mutant(
        "index-chain-goes-round",
        _INDEX,
        "            if 0 < previous < number and time >= begin_ms:\n",
        "            if 0 < previous and time >= begin_ms:\n",
        "a damaged chain must not keep a query for ever",
        ("test_a_circle_of_entries_ends",),
        seconds=30,
    ),
    Mutant(
        "index-sync-dropped",
        _INDEX,
        "                    rc = self.os.msync(self.os, self.state.base, self.bytes)",
        "                    rc = 0",
        "the checkpoint vouches for full index files behind a sync",
        ("test_the_keys_of_a_full_index_file_survive_once_the_checkpoint_says_so",),
    ),
    Mutant(
        "index-hit-not-verified",
        _QUERY,
        "        if blank - at == key_bytes and memcmp(at, key, key_bytes) == 0:\n",
        "        if blank > at:\n",
        "keys with the same hash are told apart by the message only",
        ("test_trap_26_hash_twins_are_told_apart_by_the_message",),
    ),
    # --- dispatch
    Mutant(
        "recovery-without-crc",
        _DISPATCH,
        "            if not check_crc(p, r, w.property_crc):\n                return AT_BAD\n",
        "",
        "recovery must end before a record whose body is damaged",
        ("test_trap_34_the_cut_removes_every_file_above_it",),
    ),
    Mutant(
        "record-of-another-place",
        _DISPATCH,
        "        if r.physical_offset != w.at:\n            return AT_PLACE\n",
        "",
        "an old record that lies at a new place is no message",
        ("test_a_record_that_stands_elsewhere_ends_recovery",),
    ),
    Mutant(
        "dispatch-beyond-readable",
        _DISPATCH,
        "        return readable(&self.log.state, self.log.hide_unflushed)\n",
        "        return mq_load64(&self.log.state.written)\n",
        "queues and index may not name what readers may not see",
        ("test_nothing_is_dispatched_that_readers_may_not_see",),
    ),
    Mutant(
        "same-record-in-another-queue",
        _DISPATCH,
        "if n != w.same_bytes or r.queue_id != w.same_id or memcmp",
        "if n != w.same_bytes or memcmp",
        "a unit would go to the queue of the record before",
        ("test_a_walk_over_many_gives_what_a_walk_over_each_gives",),
    ),
    Mutant(
        "delay-remembered",
        _DISPATCH,
        "f.keys == NULL and f.delay == NULL\n                        and f.multi_dispatch == NULL):",
        "f.keys == NULL and f.multi_dispatch == NULL):",
        "a delayed message would be due when the one before it is",
        ("test_a_walk_over_many_gives_what_a_walk_over_each_gives",),
    ),
    Mutant(
        "walk-keeps-the-put-lock",
        _DISPATCH,
        "        w.holding = False\n        unlock_puts(w.follow)\n",
        "        w.holding = False\n",
        "nothing would ever be put again",
        ("test_the_end_of_a_busy_log_is_reached_with_the_put_lock",),
        seconds=30,
    ),
    Mutant(
        "walk-that-nobody-ends",
        _DISPATCH,
        "w.at >= w.last_limit or mq_load32(w.waiting):\n",
        "w.at >= w.last_limit:\n",
        "a deletion and a close would wait for as long as others put",
        ("test_a_waiter_for_the_dispatch_lock_gets_it_next",),
    ),
    Mutant(
        "pool-never-handed-over",
        _DISPATCH,
        "    pooled = s.pooled and plain and not w.keyed\n",
        "    pooled = False\n",
        "puts that do not rest would leave their units to the dispatcher for ever",
        ("test_puts_put_their_units_while_the_commit_lags",),
    ),
    Mutant(
        "pool-waits-for-the-commit",
        _GROUP,
        "mq_load64(&s.walked) < limit)\n            or (mq_load32(&s.needs_dispatch) != 0 and not sync))",
        "mq_load64(&s.walked) < limit))",
        "puts would leave their units to the dispatcher for a whole commit interval",
        ("test_a_put_without_room_for_its_unit_wakes_the_dispatcher_before_the_commit",),
    ),
    Mutant(
        "a-commit-in-one-write",
        _GROUP,
        "n = min(COMMIT_PIECE - at % COMMIT_PIECE, end - at)",
        "n = end - at",
        "a thread that was woken to have the GIL, and one that puts behind it, would wait for the whole commit",
        ("test_pieces_end_at_even_places_and_leave_nothing_out",),
    ),
    Mutant(
        "yields-to-a-thread-that-never-rests",
        _GROUP,
        "yields = s.os.monotonic_ns(s.os) - start_ns < LONG_YIELD_NS",
        "yields = s.os.monotonic_ns(s.os) - start_ns >= 0",
        "on a busy machine each piece of a commit would wait some milliseconds for its processor",
        ("test_beside_a_thread_that_never_rests_a_commit_does_not_yield_at_each_piece",),
    ),
    Mutant(
        "needs-dispatch-beyond-the-flush",
        _DISPATCH,
        "    w.round_needs_dispatch = limit < 0 and not w.hide_unflushed and mq_load32(",
        "    w.round_needs_dispatch = limit < 0 and mq_load32(",
        "with sync flush readers may not see what is not durable",
        ("test_with_sync_flush_a_put_without_room_does_not_bring_the_dispatcher_beyond_the_flush",),
    ),
    Mutant(
        "pool-committed-to-catch-up",
        _DISPATCH,
        "    if pooled and _borrow(w):\n        return True\n",
        "",
        "the dispatcher would be as far behind a fast thread as a commit takes, and never catch up",
        ("test_uncommitted_records_are_dispatched_from_the_buffer",),
    ),
    Mutant(
        "failed-log-keeps-the-dispatcher-awake",
        _DISPATCH,
        "    if w.round_needs_dispatch and w.records and not w.keyed",
        "    if w.round_needs_dispatch and not w.keyed",
        "a processor would be busy for nothing until the store is closed",
        ("test_a_log_that_failed_does_not_keep_the_dispatcher_awake",),
    ),
    Mutant(
        "commit-for-each-key",
        _DISPATCH,
        "    pooled = s.pooled and plain and not w.keyed\n",
        "    pooled = s.pooled and plain\n",
        "with keys the dispatcher would commit a few bytes at a time, in place of the clock",
        ("test_records_with_keys_are_dispatched_after_the_interval_commit",),
    ),
    Mutant(
        "failed-commit-dispatched",
        _DISPATCH,
        "        if readable(w.follow, False) < w.limit:     # latched\n",
        "        if False:\n",
        "what a failed commit left out would be read from the file, and be called damage of the log",
        ("test_a_commit_that_fails_in_between_latches_and_is_no_damage",),
    ),
    Mutant(
        "next-file-not-ready",
        "mqfast/store/log/allocate.py",
        "            ready=0 if others else self._config.prefault_window_bytes,\n",
        "",
        "the first put of each file would wait while the kernel makes 2 MiB of zeros",
        ("test_the_first_pages_of_the_next_file_are_ready_before_a_put_comes_there",),
    ),
    Mutant(
        "buffer-not-touched-ahead",
        "mqfast/store/log/append.pyx",
        "        touch(base + start, stop - file_start - start)\n",
        "        pass\n",
        "a put with the pool would wait, every 2 MiB, for memory that the host of a virtual machine took back",
        ("test_with_a_pool_the_memory_ahead_of_the_puts_is_touched",),
    ),
    Mutant(
        "no-zeros-ahead-with-a-pool",
        "mqfast/store/log/append.pyx",
        "        if not to_disk:\n            return 1\n",
        "        return 1\n",
        "each sync with a pool would wait until the filesystem has noted that its blocks are written",
        ("test_blocks_are_written_before_a_sync_needs_them",),
    ),
    Mutant(
        "page-of-a-unit-synced-by-the-clock",
        _QUEUE,
        "    return end - ((end - q.tail.start) & 4095)\n",
        "    return end\n",
        "a put would be a fault that may wait for the filesystem's journal",
        ("test_by_the_clock_a_busy_queue_keeps_the_page_that_its_units_come_to",),
    ),
    Mutant(
        "few-units-left-too",
        _QUEUE,
        "q.cut or end - q.flushed < BUSY_BYTES or end",
        "q.cut or end",
        "a queue that rests would have its last units on the disk only when it is closed",
        ("test_by_the_clock_a_busy_queue_keeps_the_page_that_its_units_come_to",),
    ),
    Mutant(
        "units-that-were-left-claimed",
        _LOOPS,
        "synced = self.covered_timestamp if left_page else timestamp\n",
        "synced = timestamp\n",
        "the checkpoint claims only what a sync has covered",
        ("test_the_checkpoint_does_not_claim_unflushed_units",),
    ),
    Mutant(
        "queue-sync-that-failed-does-not-latch",
        _LOOPS,
        "            latch(s, rc)            # the kernel",
        "            pass            # the kernel",
        "the log would take puts for a second after a sync of its store has failed",
        ("test_a_sync_that_fails_latches_the_log_and_is_the_last_one",),
    ),
    Mutant(
        "queues-synced-by-the-clock-after-a-failure",
        _LOOPS,
        "            return 1                # after a failed sync nothing is synced\n",
        "            pass\n",
        "a store whose sync failed promises nothing any more, and must not go on as if it could",
        ("test_nothing_is_synced_after_the_log_is_latched",),
    ),
    Mutant(
        "short-queue-file-believed",
        _QUEUE_FLUSH,
        " < 0 or st.bytes < q.file_bytes or mq_load32(f.lost):\n        return NEEDS_PYTHON",
        " < 0 or mq_load32(f.lost):\n        return NEEDS_PYTHON",
        "units in a file that was cut short would be called durable",
        ("test_a_truncated_queue_file_is_an_error_of_that_queue_only",),
    ),
    Mutant(
        "queue-unmapped-to-its-end",
        _QUEUE,
        "(min(to, end) & ~<int64_t> 4095) - first)",
        "to - first)",
        "the next unit would wait for its page",
        ("test_written_pages_of_a_queue",),
    ),
    Mutant(
        "room-whatever-the-rate",
        _QUEUE,
        "    cdef bint fast = q.end >= q.asked_end and elapsed <=",
        "    cdef bint fast = True or elapsed <=",
        "thousands of queues would take 16 times the blocks that they need",
        ("test_a_fast_filling_queue_grows_in_large_steps",),
    ),
    Mutant(
        "room-or-nothing",
        _QUEUE,
        "                self.tail.grow(self.tail.allocated + FIRST_ROOM)\n",
        "                raise\n",
        "a queue would stand still on a disk that has room for it",
        ("test_a_nearly_full_disk_gives_a_queue_a_small_step",),
    ),
    Mutant(
        "dispatch-lock-taken-again-at-once",
        _DISPATCH,
        "                handoff(self.mutex) ",
        "                release(self.mutex) ",
        "the thread that follows the log would have it before the one that was woken, time after time",
        ("test_handoff_lets_a_waiter_own_the_dispatch_lock_first",),
    ),
    Mutant(
        "look-ahead-takes-the-first-file-for-all",
        "mqfast/store/queues/consume_queue.pyx",
        "list_starts(look.path, starts, 2) != 1 or",
        "list_starts(look.path, starts, 2) < 1 or",
        "of a queue with several files one would be there",
        ("test_many_queues_are_opened_as_few_are",),
    ),
    Mutant(
        "hash-of-another-topic",
        _DISPATCH,
        "                    w.queue = NULL\n                    w.hashed = False\n",
        "                    w.queue = NULL\n",
        "the keys of a topic would be found under the topic of the record before",
        ("test_keys_and_queues_of_records_whose_topics_take_turns",),
    ),
    Mutant(
        "queue-of-another-topic",
        _DISPATCH,
        "                    w.known_id = r.queue_id\n                    w.queue = NULL\n",
        "                    w.known_id = r.queue_id\n",
        "units would go to the queue of the record before",
        ("test_keys_and_queues_of_records_whose_topics_take_turns",),
    ),
    Mutant(
        "known-topic-without-its-queue-number",
        _DISPATCH,
        "or r.queue_id != w.known_id\n                        or memcmp",
        "or memcmp",
        "units would go to the queue of the record before, of the same topic",
        ("test_keys_and_queues_of_records_whose_topics_take_turns",),
    ),
    Mutant(
        "prepared-gets-a-unit",
        _DISPATCH,
        "            if (w.key_done == 0 and transaction != TRANSACTION_PREPARED and transaction != "
        "TRANSACTION_ROLLBACK\n",
        "            if (w.key_done == 0 and transaction != TRANSACTION_ROLLBACK\n",
        "a prepared message is not to be consumed",
        ("test_trap_09_prepared_and_rollback_records_have_no_queue_offset",),
    ),
    Mutant(
        "indexed-again-at-reopen",
        _DISPATCH,
        "                elif (r.physical_offset >= x.end_offset and r.physical_offset >= w.index_from) or w.key_done:",
        "                elif r.physical_offset >= x.end_offset or w.key_done:",
        "a reopen must change nothing",
        ("test_the_index_stays_as_it_is",),
    ),
    Mutant(
        "same-millisecond-taken-for-durable",
        _DISPATCH,
        "        mq_assert(w.at + r.total <= w.file_end, w.at + r.total, w.file_end)\n"
        "        w.records += 1\n"
        "        w.last_start = w.at\n"
        "        w.last_timestamp = r.store_timestamp\n"
        "        if w.unflushed_from < 0 and r.store_timestamp >= w.flushed_time:",
        "        mq_assert(w.at + r.total <= w.file_end, w.at + r.total, w.file_end)\n"
        "        w.records += 1\n"
        "        w.last_start = w.at\n"
        "        w.last_timestamp = r.store_timestamp\n"
        "        if w.unflushed_from < 0 and r.store_timestamp > w.flushed_time:",
        "of two records of one millisecond the sync may have covered only the first",
        ("test_of_two_messages_of_one_millisecond_only_the_first_is_known_durable",),
    ),
    # --- get
    Mutant(
        "tag-by-hash-only",
        _FILTER,
        "    return has_tag(<const TagTexts *> context, f.tags, f.tags_bytes)",
        "    return f.tags != NULL and may_have_tag(<const TagTexts *> context, jhash(f.tags, f.tags_bytes, 0))",
        "tags that only share a hash are not the same tag",
        ("test_trap_15_tags_are_hashed_as_java_does_and_compared_by_their_text",),
    ),
    Mutant(
        "next-offset-one-too-far",
        _READ,
        "    check_pins(g.pins)\n    g.next_offset = next_offset\n",
        "    check_pins(g.pins)\n    g.next_offset = next_offset + 1\n",
        "a consumer would pass over one message",
        ("test_every_queue_in_order_and_nothing_twice",),
    ),
    Mutant(
        "max-bytes-without-the-next",
        _UNIT_WALK,
        "total_bytes + size > limits.bytes:\n        return True\n",
        "total_bytes > limits.bytes:\n        return True\n",
        "a message that does not fit any more belongs to the next get",
        ("test_a_get_ends_at_its_byte_limit",),
    ),
    Mutant(
        "unit-believed",
        _UNIT_WALK,
        "    if outcome != REC_OK or r.total != w.size or r.physical_offset != w.physical:",
        "    if outcome != REC_OK:",
        "a damaged unit leads to another record",
        ("test_a_unit_that_leads_elsewhere_is_an_error",),
    ),
    Mutant(
        "record-of-another-queue",
        _READ,
        "    if claimed == NOT_IN_QUEUE:\n        return False\n",
        "    if claimed == NOT_IN_QUEUE:\n        return True\n",
        "a get must never return a message of another queue",
        ("test_a_unit_that_leads_elsewhere_is_an_error",),
    ),
    # --- the pool and mappings
    Mutant(
        "buffer-lent-twice",
        _POOL,
        "            file.buffer = self.spare[self.available]\n",
        "            file.buffer = self.spare[0]\n",
        "two files in one buffer overwrite each other",
        ("test_files_that_wait_for_a_commit_have_a_buffer_each",),
    ),
    Mutant(
        "mlock-budget-ignored",
        _POOL,
        "        if self.locked_bytes + others + n > budget_bytes:\n",
        "        if n > budget_bytes:\n",
        "locked memory starves the rest of the machine",
        ("test_mlock_stays_within_the_budget",),
    ),
    Mutant(
        "descriptor-closed-behind-the-unmapping",
        _MAPPED,
        "            self.close_fd()         # first: another thread may map and open the file again during the unmap\n"
        "            self.unmap()\n",
        "            self.unmap()\n            self.close_fd()\n",
        "blocks would be allocated in whatever file has the number by then",
        ("test_a_file_that_is_used_again_while_it_is_unmapped",),
    ),
    Mutant(
        "held-file-unmapped",
        _MAPPED,
        "            self.owned = False\n            self.release()\n",
        "            self.owned = False\n            self.unmap()\n            self.release()\n",
        "a removed file keeps its bytes as long as somebody reads them",
        ("test_views_outlive_the_store_and_the_file",),
    ),
    Mutant(
        "name-of-a-new-file-not-synced",
        _MAPPED,
        "    return os.sync_directory(os, directory)\n",
        "    return 0\n",
        "a synced message in a file without a name is lost",
        ("test_a_log_file_is_on_the_disk_with_its_name_before_it_is_used",),
    ),
    # --- recovery
    Mutant(
        "checkpoint-ignored",
        _RECOVERY,
        "        if 0 < timestamp <= limit:\n",
        "        if 0 < timestamp:\n",
        "what the checkpoint does not vouch for must be walked again",
        ("test_trap_33_recovery_starts_three_seconds_before_the_checkpoint",),
    ),
    Mutant(
        "clean-start-one-file-later",
        _RECOVERY,
        "            if file.start_offset <= largest:\n",
        "            if file.start_offset <= largest + file.file_bytes:\n",
        "a record whose unit is missing would be passed over",
        ("test_after_a_clean_stop_the_walk_begins_where_the_units_end",),
    ),
    Mutant(
        "torn-properties-kept",
        _RECOVERY,
        "        torn = doubtful and last_start >= 0 and _is_torn(log, last_start)\n",
        "        torn = False\n",
        "no checksum covers the properties of the last record",
        ("test_a_last_record_without_the_end_of_its_properties_is_cut_off",),
    ),
    Mutant(
        "doubtful-units-kept",
        _RECOVERY,
        "            queues.truncate(start, doubtful=True, dropped=self.dropped)\n",
        "",
        "pages of units may be lost where the power went",
        ("test_after_a_kill_a_unit_with_a_torn_end_is_put_again",),
    ),
    Mutant(
        "whole-records-cut-and-not-kept",
        _RECOVERY,
        "        if not behind.stretches and not behind.doubtful:\n            return None\n",
        "        return None\n",
        "whole records behind damage are acknowledged messages",
        ("test_whole_records_behind_damage_are_kept",),
    ),
    Mutant(
        "deleted-records-get-units",
        _RECOVERY,
        "        self.memory.left_over += self.queues.exclude_deleted(floors)\n",
        "",
        "a deletion holds when queues are made anew from the log",
        ("test_the_new_topic_is_whole_after_a_kill",),
    ),
    Mutant(
        "deletion-of-another-log-believed",
        "mqfast/store/meta/notes.py",
        "                and message.store_timestamp == deletion.store_timestamp\n",
        "",
        "a note of another log would hide messages",
        ("test_a_note_of_another_log_hides_nothing",),
    ),
    Mutant(
        "scan-without-a-chain",
        "mqfast/store/check/boundaries.py",
        "            proven = known < 0 and _is_end(file, walk, stop)\n",
        "            proven = True\n",
        "a body may hold what looks like a record at its own place",
        ("test_without_units_what_a_body_holds_is_no_record",),
    ),
    Mutant(
        "salvage-begins-again",
        "mqfast/store/check/salvage.py",
        "            there = self._put_before(began_at)\n",
        "            pass\n",
        "a salvage that was cut off has put some messages already",
        ("test_a_salvage_that_was_cut_off_goes_on",),
    ),
    Mutant(
        "queues-not-cut-at-the-end",
        _RECOVERY,
        "        queues.truncate(end)\n        queues.cut_gaps()\n",
        "        queues.cut_gaps()\n",
        "a unit behind the end of the log points at whatever comes there",
        ("test_units_of_a_cut_log_go_with_it",),
    ),
    Mutant(
        "lost-keys-not-put-again",
        _RECOVERY,
        "    if keys_from is not None and keys_from < start:\n",
        "    if keys_from is not None and keys_from < 0:\n",
        "keys of an index file that recovery drops lie before the start file too",
        (
            "test_trap_27_no_key_is_lost_by_a_crash",
            "test_the_keys_of_a_full_index_file_survive_once_the_checkpoint_says_so",
        ),
    ),
    Mutant(
        "names-of-a-killed-writer-not-synced",
        _RECOVERY,
        "    for directory in (paths.root, *paths.commit_logs, paths.index, os.path.dirname(paths.topics), "
        "*queues):\n"
        "        if os_api.is_dir(directory):\n",
        "    for directory in (paths.root, *paths.commit_logs, paths.index, os.path.dirname(paths.topics), "
        "*queues):\n"
        "        if not directory:\n",
        "a name that only the page cache has is lost with the power, and the file with it",
        ("test_names_that_a_killed_writer_left_are_durable_at_the_next_open",),
    ),
    # --- retention
    Mutant(
        "watermark-one-percent-early",
        _RETENTION,
        "        if use.percent > c.disk_space_warning_level_percent:\n",
        "        if use.percent >= c.disk_space_warning_level_percent:\n",
        "puts are refused above the level, not at it",
        ("test_puts_are_refused_above_the_warning_level_and_not_at_it",),
    ),
    Mutant(
        "forcible-level-one-percent-early",
        _RETENTION,
        "        elif use.percent > c.disk_space_clean_forcibly_percent:\n",
        "        elif use.percent >= c.disk_space_clean_forcibly_percent:\n",
        "files that are not expired go above the level, not at it",
        ("test_the_oldest_go_above_the_forcible_level_and_not_at_it",),
    ),
    Mutant(
        "byte-budget-one-short",
        _RETENTION,
        "log.written - file.start_offset > rules.log_bytes",
        "log.written - file.start_offset >= rules.log_bytes",
        "a log that fits into its budget exactly keeps all its files",
        ("test_a_log_that_fills_its_budget_exactly_keeps_all_its_files",),
    ),
    Mutant(
        "one-file-too-many-in-a-pass",
        _RETENTION,
        "        while removed < c.delete_file_batch_max and log.first_is_flushed():\n",
        "        while removed <= c.delete_file_batch_max and log.first_is_flushed():\n",
        "a pass removes so many files and no more",
        ("test_retention_removes_at_most_its_limit_of_files",),
    ),
    Mutant(
        "removal-not-synced",
        _RETENTION,
        "            self._os_api.fsync_dir(log.path)  # each synced: a power cut in between must not leave a gap\n",
        "",
        "a power cut may bring back a later name and not an earlier one",
        ("test_a_removed_log_file_stays_removed",),
    ),
    Mutant(
        "deleted-at-any-hour",
        _RETENTION,
        "        expired_due = time.localtime(now_ms // 1000).tm_hour in c.delete_hours\n",
        "        expired_due = True\n",
        "deletion has its hour",
        ("test_a_file_whose_time_is_over_goes_at_the_hour_or_when_space_is_short",),
    ),
    # --- checkpoint
    Mutant(
        "checkpoint-without-allowance",
        _CHECKPOINT,
        "_ALLOWANCE_MS: Final = 3000\n",
        "_ALLOWANCE_MS: Final = 0\n",
        "flushes are behind the times in the checkpoint",
        ("test_minimum_rules",),
    ),
    Mutant(
        "checkpoint-takes-the-later",
        _CHECKPOINT,
        "        return max(0, min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _ALLOWANCE_MS)\n",
        "        return max(0, max(self.physic_msg_timestamp, self.logics_msg_timestamp) - _ALLOWANCE_MS)\n",
        "both the log and the queues must be on the disk",
        ("test_minimum_rules",),
    ),
    Mutant(
        "index-checkpoint-ignored",
        _CHECKPOINT,
        "        return min(self.get_min_timestamp(), self.index_msg_timestamp)\n",
        "        return self.get_min_timestamp()\n",
        "with messageIndexSafe the index must be on the disk too",
        ("test_minimum_rules",),
    ),
    # --- a full disk
    Mutant(
        "waiting-keys-forgotten-at-close",
        _DISPATCH,
        "    if w.published != NULL and w.shown < w.at and w.waits_units < 0 and w.waits_keys < 0:",
        "    if w.published != NULL and w.shown < w.at:",
        "the store would count as dispatched, and nobody would put the keys that wait",
        ("test_keys_that_waited_are_not_forgotten_by_close_or_kill",),
    ),
    Mutant(
        "waiting-queues-settled",
        _OPENING,
        "    if dispatcher.hold_back(log.written):\n",
        "    if dispatcher.hold_back(log.written) and False:\n",
        "a put would get a queue offset that a waiting message has",
        ("test_after_an_open_puts_wait_until_every_queue_has_its_units",),
    ),
    Mutant(
        "keys-of-a-record-twice",
        _DISPATCH,
        "        w.key_had = w.key_done\n    _note_wait",
        "        w.key_had = 0\n    _note_wait",
        "an entry for each try",
        ("test_each_key_of_a_record_is_put_once_when_the_index_fills_up_inside_the_record",),
    ),
    Mutant(
        "log-file-with-holes",
        _LOG,
        "        mq_store64(&s.file_bytes, max(<int64_t> 1, file.allocated))",
        "        mq_store64(&s.file_bytes, file.file_bytes)",
        "a put into a hole of a full disk loses a page, and latches the store",
        ("test_a_log_file_with_holes_gets_its_blocks_ahead_of_the_puts",),
    ),
    # --- metadata
    Mutant(
        "written-in-place",
        _OS,
        "        rc = os.rename(os, temporary, target)\n",
        "        rc = _write_whole(os, target, data, n, step)\n",
        "a crash in the middle must leave the old or the new file",
        ("test_a_table_is_written_synced_renamed_and_its_directory_synced",),
    ),
    Mutant(
        "no-backup",
        _METADATA,
        '        keep = backup if self._main_is_good else self.path + ".damaged"\n',
        "        keep = None\n",
        "RocketMQ and load fall back to the copy",
        (
            "test_a_crash_at_any_step_leaves_the_old_or_the_new_state",
            "test_new_tables_look_like_a_brokers",
        ),
    ),
    Mutant(
        "rename-not-synced",
        _OS,
        "    return min(os.sync_directory(os, directory), 0)\n",
        "    return 0\n",
        "what persist wrote survives a power cut only with its name",
        ("test_a_saved_table_survives_with_its_name",),
    ),
    # --- flush
    Mutant(
        "queue-failure-not-latched",
        _FLUSH,
        "            self._log.fail(error.errno or EIO)\n",
        "",
        "a second sync of the same units may succeed without having written them",
        ("test_a_failed_sync_of_a_queue_latches_the_store",),
    ),
    Mutant(
        "checkpoint-ahead-of-the-queues",
        _LOOPS,
        "        timestamp[0] = s.dispatched_timestamp\n",
        "        pass\n",
        "the checkpoint claims only what a sync has covered",
        ("test_the_checkpoint_knows_nothing_of_what_was_not_dispatched",),
    ),
    Mutant(
        "checkpoint-ahead-of-the-log",
        _LOOPS,
        "        offset[0] = min(mq_load64(&s.dispatched), mq_load64(&s.flushed))\n",
        "        offset[0] = mq_load64(&s.dispatched)\n",
        "a recovery of RocketMQ's would begin behind the end of the log after a power cut",
        ("test_the_checkpoint_names_no_offset_that_is_not_flushed",),
    ),
    Mutant(
        "tags-that-are-not-indexed",
        _DISPATCH,
        "    if f.tags != NULL and number >= w.key_done:\n",
        "    if False:\n",
        "since 5.5 the index has an entry for the tags of a record",
        ("test_every_way_to_put_indexes_the_tags_behind_the_keys",),
    ),
    Mutant(
        "tags-left-behind-by-the-put",
        _PUT,
        "(bool(self.tags) and self.engine.dispatcher.index is not None)",
        "False",
        "a put that puts its unit itself leaves no entry for its tags",
        ("test_every_way_to_put_indexes_the_tags_behind_the_keys",),
    ),
    Mutant(
        "checkpoint-before-the-sync",
        _LOOPS,
        "        rc = flush_tails(self.queues, self.many, &left_page, &done, &self.failed)\n",
        "        self._see_synced(timestamp, offset, False)\n        self.checkpoint.write()\n"
        "        rc = flush_tails(self.queues, self.many, &left_page, &done, &self.failed)\n",
        "a power cut between the two would leave a claim that nothing covers",
        ("test_queues_are_synced_and_then_the_checkpoint_tells_of_it",),
    ),
    Mutant(
        "log-checkpoint-ahead",
        _FLUSH,
        "checkpoint.physic_msg_timestamp = self._log.flushed_timestamp\n",
        "checkpoint.physic_msg_timestamp = self._log.last_store_timestamp\n",
        "a message that is put during the sync is not covered by it",
        ("test_a_message_that_comes_during_a_sync_is_not_in_the_checkpoint",),
    ),
    Mutant(
        "least-pages-off-by-one",
        _LOG,
        "        if mq_load64(&s.written) // PAGE - mq_load64(&s.flushed) // PAGE >= least_pages:\n",
        "        if mq_load64(&s.written) // PAGE - mq_load64(&s.flushed) // PAGE > least_pages:\n",
        "four dirty pages are flushed by the next interval",
        ("test_four_dirty_pages_are_flushed_and_three_are_not",),
    ),
    Mutant(
        "ticket-told-of-nothing",
        "mqfast/store/log/watermarks.py",
        "        while self._tickets and (failed or self._tickets[0][0] <= flushed):\n",
        "        while self._tickets and self._tickets[0][0] <= flushed:\n",
        "who waits by callback hears of a failed flush",
        ("test_every_waiting_ticket_fails_with_the_flush_and_nothing_is_synced_again",),
    ),
    # --- the row of queues
    Mutant(
        "lower-bound-excludes",
        _BY_TIME,
        "        if at < timestamp or (boundary is BoundaryType.UPPER and at == timestamp):\n",
        "        if at <= timestamp:\n",
        "LOWER is the first message at or after the time",
        ("test_trap_22_lower_and_upper_are_not_symmetric",),
    ),
    Mutant(
        "gaps-not-cut",
        _QUEUES,
        "                queue.cut_to(queue.misplaced_from)\n",
        "                pass\n",
        "units that were put too low stay so for ever",
        ("test_after_a_kill_units_lost_below_the_start_of_the_walk_are_put_again",),
    ),
    Mutant(
        "damaged-end-kept",
        _QUEUES,
        "                    if _is_sound(log, min_physical, topic, queue.queue_id, at - 1, plain, exact=at < end):\n",
        "                    if plain[1] > 0:\n",
        "a wrong end of a queue keeps out everything that comes after",
        (
            "test_the_queue_of_another_topic_is_made_anew_from_the_log",
            "test_units_lost_from_a_queue_come_back_and_new_messages_are_seen",
        ),
    ),
    # --- who writes
    Mutant(
        "lock-not-taken",
        _OS_API,
        "    rc = fcntl(fd, F_OFD_SETLK, &range);\n",
        "    rc = fcntl(fd, F_OFD_GETLK, &range);\n",
        "two processes that write one store destroy it",
        ("test_the_lock_keeps_other_processes_out",),
    ),
    Mutant(
        "own-process-not-excluded",
        _LOCK,
        "            if key in _registry.held:\n",
        "            if key in ():\n",
        "record locks do not exclude the own process",
        ("test_the_process_cannot_open_a_store_twice",),
    ),
    Mutant(
        "abort-not-written",
        _OPENING,
        "    if clean and not log.files:\n        deferred.run_or_defer(create_abort_file)",
        "    if False:\n        deferred.run_or_defer(create_abort_file)",
        "after a kill nothing would say that the store has to be recovered",
        (
            "test_trap_29_the_abort_file_alone_decides",
            "test_a_kill_keeps_what_was_promised",
        ),
    ),
    Mutant(
        "abort-removed-after-a-failure",
        _STORE,
        "        if self._close_failure is None and not log.error_number and log.dispatched >= log.written:\n",
        "        if True:\n",
        "a store that could not be closed in order must be recovered",
        ("test_a_store_whose_last_flush_failed_is_recovered_at_the_next_open",),
    ),
    # --- the system
    Mutant(
        "sync-not-awaited",
        _OS_API,
        "    return RESULT(msync(address, (size_t)bytes, MS_SYNC));\n",
        "    return RESULT(msync(address, (size_t)bytes, MS_ASYNC));\n",
        "MS_ASYNC only says that somebody would like it",
        ("test_a_put_that_is_acknowledged_has_waited_for_the_disk",),
    ),
    Mutant(
        "file-sync-skipped",
        _OS_API,
        "#else\n    return RESULT(fsync(fd));\n",
        "#else\n    return RESULT(fcntl(fd, F_GETFD));\n",
        "files that are written must be on the disk before they get their name",
        ("test_a_log_file_is_on_the_disk_with_its_name_before_it_is_used",),
    ),
    Mutant(
        "directory-sync-skipped",
        _OS_API,
        "    int rc = RESULT(fsync(fd));\n    close(fd);\n",
        "    int rc = 0;\n    close(fd);\n",
        "a name is durable with its directory only",
        ("test_a_table_is_written_synced_renamed_and_its_directory_synced",),
    ),
    Mutant(
        "short-write-from-the-start",
        _OS_API,
        "        at += n, offset += n, bytes -= n;\n",
        "        offset += n, bytes -= n;\n",
        "the kernel may write less than was asked",
        ("test_a_write_that_the_system_cuts_short_is_carried_on",),
    ),
    # --- checksums
    Mutant(
        "crc-of-the-last-bytes",
        _CRC,
        "    while (n--) state = mq_crc32_slices[0][(state ^ *p++) & 255] ^ state >> 8;\n"
        "    return state;\n"
        "}\n"
        "\n"
        "static uint32_t portable_copy",
        "    while (n--) state = mq_crc32_slices[1][(state ^ *p++) & 255] ^ state >> 8;\n"
        "    return state;\n"
        "}\n"
        "\n"
        "static uint32_t portable_copy",
        "processors without the fast instructions",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-source-read-twice",
        _CRC,
        "    MQ_READ_ONCE();\n    return portable_crc(state, dst, n);\n",
        "    MQ_READ_ONCE();\n    return portable_crc(state, src, n);\n",
        "record and checksum must agree although the body changes meanwhile",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-fold-of-the-rest",
        _CRC_X86,
        "    for (; n - at >= 16; at += 16) x = fold(x, k, take(dst, src, at, copy));\n    size_t odd = n - at;\n",
        "    for (; n - at > 16; at += 16) x = fold(x, k, take(dst, src, at, copy));\n"
        "    size_t odd = n - at - (n - at == 16 ? 16 : 0);\n",
        "lengths of whole 16 bytes",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-few-bytes-read-twice",
        _CRC_X86,
        "        mq_crc32_copy_few(dst, src, n);\n        MQ_READ_ONCE();\n        src = dst;\n",
        "        mq_crc32_copy_few(dst, src, n);\n        MQ_READ_ONCE();\n",
        "record and checksum must agree although the body changes meanwhile",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    # --- the timer
    Mutant(
        "timer-ignores-a-fall",
        "mqfast/schedule/timer/service.py",
        "if step < self._read or (step == self._read and self._slot is not None):",
        "if False:",
        "after a fall of the clock new messages would be delivered early, or never",
        ("test_after_a_fall_of_the_clock_nothing_is_early_and_nothing_comes_twice",),
    ),
    Mutant(
        "timer-checkpoint-before-the-log",
        "mqfast/schedule/timer/flush.py",
        "self._store.flush()",
        "pass",
        "the checkpoint would claim deliveries that a power cut takes from the log",
        ("test_a_crash_at_any_call_loses_nothing_that_was_flushed",),
    ),
    Mutant(
        "timer-unit-without-record",
        "mqfast/schedule/timer/recovery.py",
        "                if physical + size > log_end:\n                    return position",
        "                if False:\n                    return position",
        "units of records that are gone would stay, and be taken for those of new messages",
        ("test_records_that_a_power_cut_took_from_the_log_leave_no_unit",),
    ),
    Mutant(
        "timer-chain-unchecked",
        "mqfast/schedule/timer/timer_log.pyx",
        "if due // precision != time:",
        "if False:",
        "a damaged chain would deliver the messages of another time",
        ("test_a_broken_chain_is_searched_for",),
    ),
    Mutant(
        "timer-unit-counted-twice",
        "mqfast/schedule/timer/wheel.pyx",
        "elif position > mq_get64(slot + LAST):",
        "elif True:",
        "recovery would count messages twice, and refuse others for it",
        ("test_a_kill_between_the_flush_of_the_wheel_and_that_of_the_checkpoint",),
    ),
)


# --- the runner -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant; ``word`` is caught, SURVIVED or BROKEN (it cannot be tried)."""

    word: str
    by: str
    seconds: float


def _scratch() -> str | None:
    """Memory where there is enough of it: most of a test's time goes to syncs."""
    shm = "/dev/shm"
    return shm if os.access(shm, os.W_OK) and shutil.disk_usage(shm).free >= _SCRATCH_BYTES else None


def _environment(tree: Path) -> dict[str, str]:
    scratch = tree.parent / "tmp"
    scratch.mkdir(exist_ok=True)
    ours = {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch), "MQFAST_DEBUG": "1"}
    return {**os.environ, **ours, "MQFAST_WHOLE": "1"}  # the test that must fail is in no sample left out


def _build(tree: Path) -> str:
    """Build what is out of date; the end of the compiler's words where that fails, else nothing."""
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=tree, env=_environment(tree), capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stdout + done.stderr)[-2000:]


def _run_tests(tree: Path, tests: tuple[str, ...], seconds: float) -> tuple[str, str, str]:
    """(passed, caught or BROKEN; the test that failed, crashed or hung; the output)."""
    base, log = tree.parent / "pytest", tree.parent / "output"
    options = ["-x", "-v", "-rfE", "--tb=short", "--no-header", "--hypothesis-seed=0", "-p", "no:cacheprovider"]
    where = places(tree)
    chosen = [f"{where[name.partition('[')[0]]}::{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", *options, f"--basetemp={base}", *chosen]
    ended: int | None = None
    with log.open("wb") as out:
        child = subprocess.Popen(
            command, cwd=tree, env=_environment(tree), stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            ended = child.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)  # its children too
            except ProcessLookupError:
                pass
            child.wait()
    shutil.rmtree(base, ignore_errors=True)
    text = log.read_text(errors="replace")
    if ended == 0:
        return "passed", "", text
    if ended is None or ended < 0:
        running = re.findall(r"^(tests/\S+)", text, re.MULTILINE)
        how = f"hung for {seconds:.0f} s" if ended is None else signal.Signals(-ended).name
        return "caught", f"{running[-1] if running else '?'} ({how})", text
    failed = re.search(r"^(?:FAILED|ERROR) (tests/\S+)", text, re.MULTILINE)
    if ended != 1 or failed is None:
        return "BROKEN", f"pytest ended with {ended}", text
    return "caught", failed.group(1), text


def _try(mutant: Mutant, seed: Path, base: Path, show: bool) -> Outcome:
    began = time.monotonic()
    tree = base / "tree"
    shutil.copytree(seed, tree, symlinks=True)  # with its times: nothing is built again without need
    try:
        path = tree / mutant.file
        path.write_text(broken(mutant, path.read_text()))
        if not mutant.file.endswith(".py"):
            before = {so: so.read_bytes() for so in tree.rglob("mqfast/**/*.so")}
            words = _build(tree)
            if words:
                return Outcome("BROKEN", f"it does not build:\n{words}", time.monotonic() - began)
            if all(so.read_bytes() == data for so, data in before.items()):
                return Outcome("BROKEN", "the built code is the same", time.monotonic() - began)
        word, by, text = _run_tests(tree, mutant.tests, mutant.seconds)
        if word == "passed":
            skipped = re.search(r"\d+ skipped", text)
            word, by = "SURVIVED", mutant.why + (f" ({skipped.group()})" if skipped else "")
        if show or word == "BROKEN":
            print(text)
        return Outcome(word, by, time.monotonic() - began)
    finally:
        shutil.rmtree(tree)


def _seed(base: Path) -> Path:
    """A built copy of the last commit. Raises: SystemExit."""
    seed = base / "seed"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(seed)], check=True)
    shutil.rmtree(seed / ".git")
    words = _build(seed)
    if words:
        raise SystemExit(f"the last commit does not build:\n{words}")
    where = subprocess.run(
        [sys.executable, "-c", "import mqfast.store.base.os_api as m; print(m.__file__)"],
        cwd=seed,
        env=_environment(seed),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    if not where.startswith(str(seed)):
        raise SystemExit(f"the tests would import {where.strip()}: expected it below {seed}")
    return seed


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description="Break chosen lines of the engine; see the head of this file.")
    parser.add_argument("--only", action="append", default=[], help="a part of a name or of a file; may be repeated")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--show", action="store_true", help="print the tests' output as well")
    parser.add_argument("--no-baseline", action="store_true", help="trust that the tests pass on the unbroken tree")
    a = parser.parse_args()
    here = [m for m in MUTANTS if m.file != _CRC_X86 or platform.machine() == "x86_64"]
    chosen = [m for m in here if not a.only or any(part in m.name or part in m.file for part in a.only)]
    if not chosen:
        parser.error(f"no mutant has {a.only} in its name or file")
    if a.list:
        for m in chosen:
            print(f"{m.name}\n    {m.file}: {m.why}\n    {' '.join(m.tests)}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the copies go
    began = time.monotonic()
    counts = {"caught": 0, "SURVIVED": 0, "BROKEN": 0}
    with tempfile.TemporaryDirectory(prefix="mqfast-mutants-", dir=_scratch()) as name:
        base = Path(name)
        seed = _seed(base)
        print(f"built a copy in {time.monotonic() - began:.0f} s", flush=True)
        if not a.no_baseline:
            tests = tuple(dict.fromkeys(test for m in chosen for test in m.tests))
            word, by, text = _run_tests(seed, tests, 1800)
            if word != "passed":
                print(text, f"the tests do not pass on the unbroken tree: {by}", sep="\n")
                return 2
            print(f"{len(tests)} tests pass on the unbroken tree, {time.monotonic() - began:.0f} s", flush=True)
        for m in chosen:
            outcome = _try(m, seed, base, a.show)
            counts[outcome.word] += 1
            print(f"{outcome.word:8} {m.name} ({m.file}), {outcome.seconds:.0f} s: {outcome.by}", flush=True)
    print(
        f"mutants: {len(chosen)} tried, {counts['caught']} caught, {counts['SURVIVED']} survived, "
        f"{counts['BROKEN']} could not be tried, {time.monotonic() - began:.0f} s"
    )
    return 2 if counts["BROKEN"] else 1 if counts["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
