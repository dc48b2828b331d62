"""Mutants of mapped files, locks, and the code in C."""

from __future__ import annotations

from typing import Final

from mutant import Mutant
from operators import argument, before, call, replace, result

__all__ = ["MUTANTS"]

MUTANTS: Final = (
    Mutant(
        "descriptor-closed-behind-the-unmapping",
        "mqfast/store/base/mapped_file.pyx",
        "MappedFile.unmap_idle",
        replace("self.close_fd()\nself.unmap()", "self.unmap()\nself.close_fd()"),
        "blocks would be allocated in whatever file has the number by then",
        ("test_a_file_that_is_used_again_while_it_is_unmapped",),
    ),
    Mutant(
        "held-file-unmapped",
        "mqfast/store/base/mapped_file.pyx",
        "MappedFile.drop",
        before("release", "self.unmap()"),
        "a removed file keeps its bytes as long as somebody reads them",
        ("test_views_outlive_the_store_and_the_file",),
    ),
    Mutant(
        "name-of-a-new-file-not-synced",
        "mqfast/store/base/mapped_file.pyx",
        "_make",
        call("sync_directory", "0"),
        "a synced message in a file without a name is lost",
        ("test_a_log_file_is_on_the_disk_with_its_name_before_it_is_used",),
    ),
    Mutant(
        "written-in-place",
        "mqfast/store/base/os_api.pyx",
        "_replace",
        call("rename", "_write_whole(os, target, data, n, step)", 2),
        "a crash in the middle must leave the old or the new file",
        ("test_a_table_is_written_synced_renamed_and_its_directory_synced",),
    ),
    Mutant(
        "rename-not-synced",
        "mqfast/store/base/os_api.pyx",
        "_replace",
        result("0", -1),
        "what persist wrote survives a power cut only with its name",
        ("test_a_saved_table_survives_with_its_name",),
    ),
    Mutant(
        "lock-not-taken",
        "csrc/os_api.c",
        "set_byte_lock",
        replace("F_OFD_SETLK,", "F_OFD_GETLK,"),
        "two processes that write one store destroy it",
        ("test_the_lock_keeps_other_processes_out",),
    ),
    Mutant(
        "own-process-not-excluded",
        "mqfast/store/base/lock.py",
        "StoreLock.acquire",
        replace("_registry.held", "()"),
        "record locks do not exclude the own process",
        ("test_the_process_cannot_open_a_store_twice",),
    ),
    Mutant(
        "sync-not-awaited",
        "csrc/os_api.c",
        "real_msync",
        replace("MS_SYNC", "MS_ASYNC"),
        "MS_ASYNC only says that somebody would like it",
        ("test_a_put_that_is_acknowledged_has_waited_for_the_disk",),
    ),
    Mutant(
        "file-sync-skipped",
        "csrc/os_api.c",
        "real_fsync",
        call("fsync", "fcntl(fd, F_GETFD)"),
        "files that are written must be on the disk before they get their name",
        ("test_a_log_file_is_on_the_disk_with_its_name_before_it_is_used",),
    ),
    Mutant(
        "directory-sync-skipped",
        "csrc/os_api.c",
        "real_sync_directory",
        call("RESULT", "0"),
        "a name is durable with its directory only",
        ("test_a_table_is_written_synced_renamed_and_its_directory_synced",),
    ),
    Mutant(
        "short-write-from-the-start",
        "csrc/os_api.c",
        "mq_os_write_all",
        replace("at += n,", ""),
        "the kernel may write less than was asked",
        ("test_a_write_that_the_system_cuts_short_is_carried_on",),
    ),
    Mutant(
        "crc-of-the-last-bytes",
        "csrc/crc32.c",
        "portable_crc",
        replace("mq_crc32_slices[0]", "mq_crc32_slices[1]"),
        "processors without the fast instructions",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-source-read-twice",
        "csrc/crc32.c",
        "portable_copy",
        argument("portable_crc", 2, "src"),
        "record and checksum must agree although the body changes meanwhile",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-fold-of-the-rest",
        "csrc/crc32_x86.c",
        "finish",
        replace(
            ">= 16; at += 16) x = fold(x, k, take(dst, src, at, copy)); size_t odd = n - at",
            "> 16; at += 16) x = fold(x, k, take(dst, src, at, copy)); size_t odd = n - at - (n - at == 16 ? 16 : 0)",
        ),
        "lengths of whole 16 bytes",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
    Mutant(
        "crc-few-bytes-read-twice",
        "csrc/crc32_x86.c",
        "run_few",
        replace("src = dst;", ""),
        "record and checksum must agree although the body changes meanwhile",
        ("test_variant_agrees_with_zlib_and_stays_inside_its_buffers",),
    ),
)
