"""What on this machine endangers the store's promises or its latency, each with one line of advice.

It must never change a setting, and never need more rights than the store itself: what cannot be read is said so.
"""

from __future__ import annotations

import os
import resource
import statistics
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from mqfast.errors import MqfastError
from mqfast.store.base._os import OsDoor
from mqfast.store.base.memory_room import mount_of
from mqfast.store.base.paths import absolute

__all__ = ["Finding", "examine"]

Verdict = Literal["ok", "advice", "danger", "unknown"]

_MIB: Final = 1 << 20
# Filesystems whose fsync is known to reach the disk and whose mappings work as the store needs them.
_GOOD_FILESYSTEMS: Final = frozenset({"ext4", "xfs"})
_NETWORK_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "virtiofs"})


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    name: str
    found: str
    verdict: Verdict
    advice: str

    def to_json(self) -> dict[str, Any]:
        """The finding as plain data."""
        return asdict(self)


def _read(door: OsDoor, path: str) -> str | None:
    try:
        return door.read_file(path, 1 << 20).decode("utf-8", "replace").strip()
    except MqfastError:
        return None


def _number(door: OsDoor, path: str) -> int | None:
    text = _read(door, path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def examine(path: str | os.PathLike[str], *, door: OsDoor | None = None, sync_rounds: int = 64) -> list[Finding]:
    """Look at the machine as a store at ``path`` (which need not exist yet) would meet it.

    Writes a small file there for the sync latency and removes it. Returns: findings, dangers first.
    Raises: StorageError when nothing can be written there.
    """
    real = door or OsDoor()
    place = absolute(path)
    while not real.is_dir(place):
        place = os.path.dirname(place)
    findings = [
        _filesystem(real, place),
        _space(real, place),
        _sync(real, place, sync_rounds),
        _write_cache(real, place),
        _memlock(),
        _maps(real),
        _open_files(),
        _dirty(real),
        _huge_pages(real),
        _swap(real),
    ]
    order = {"danger": 0, "advice": 1, "unknown": 2, "ok": 3}
    return sorted(findings, key=lambda finding: order[finding.verdict])


def _filesystem(door: OsDoor, place: str) -> Finding:
    mount = mount_of(door, place)
    if mount is None:
        return Finding("filesystem", "not known", "unknown", "put the store on ext4 or xfs")
    device, kind, options = mount
    found = f"{kind} on {device}"
    if kind in ("tmpfs", "ramfs"):
        return Finding("filesystem", found, "danger", "nothing here survives a power cut: put the store on a disk")
    if kind in _NETWORK_FILESYSTEMS:
        return Finding("filesystem", found, "danger", "locks, mappings and syncs over a network are not reliable")
    if "nobarrier" in options or "barrier=0" in options:
        return Finding(
            "filesystem", f"{found} ({options})", "danger", "mount with barriers: syncs do not reach the disk"
        )
    if kind not in _GOOD_FILESYSTEMS:
        return Finding("filesystem", found, "advice", "ext4 and xfs are what the store is tested on")
    return Finding("filesystem", found, "ok", "")


def _space(door: OsDoor, place: str) -> Finding:
    total, available = door.statvfs(place)
    used = -(-(total - available) * 100 // total) if total else 0
    found = f"{available // _MIB:,} MiB free, {used} % used"
    if used > 90:
        return Finding("free space", found, "danger", "puts are refused above 90 %: free space or set retention_bytes")
    if used > 75 or available < 3 << 30:
        return Finding("free space", found, "advice", "above 75 % expired files go at once; a log file takes 1 GiB")
    return Finding("free space", found, "ok", "")


def _sync(door: OsDoor, place: str, rounds: int) -> Finding:
    took = sorted(door.sync_latencies_ns(os.path.join(place, f".mqfast-doctor-{os.getpid()}"), rounds))
    median, worst = statistics.median(took) / 1000, took[-1] / 1000
    found = f"fdatasync of 1 KiB: median {median:,.0f} us, worst of {rounds} {worst:,.0f} us"
    if median < 20:
        return Finding("sync latency", found, "danger", "no real flush: a power cut may lose synced messages")
    if median > 5000:
        return Finding("sync latency", found, "advice", "a slow disk: batch puts or let several threads share a sync")
    return Finding("sync latency", found, "ok", "")


def _write_cache(door: OsDoor, place: str) -> Finding:
    mount = mount_of(door, place)
    device = os.path.basename(mount[0]) if mount is not None and mount[0].startswith("/dev/") else ""
    for name in (device, device.rstrip("0123456789"), device.rstrip("0123456789").removesuffix("p")):
        text = _read(door, f"/sys/block/{name}/queue/write_cache") if name else None
        if text == "write back":
            return Finding("write cache", f"{name}: write back", "ok", "")
        if text is not None:
            advice = "the kernel sends no flush to this disk: make sure that it has no volatile cache"
            return Finding("write cache", f"{name}: {text}", "advice", advice)
    return Finding("write cache", "not known", "unknown", "make sure that the disk honours flushes")


def _memlock() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Finding("memlock limit", "unlimited", "ok", "")
    found = f"{soft // 1024:,} KiB"
    return Finding("memlock limit", found, "advice", "raise it (ulimit -l) to use warmed files or the transient pool")


def _maps(door: OsDoor) -> Finding:
    limit = _number(door, "/proc/sys/vm/max_map_count")
    if limit is None:
        return Finding("vm.max_map_count", "not known", "unknown", "many queues need many mappings")
    if limit < 65530:
        return Finding("vm.max_map_count", f"{limit:,}", "danger", "set it to 262144: every queue file is a mapping")
    if limit < 262144:
        return Finding("vm.max_map_count", f"{limit:,}", "advice", "set it to 262144 for more than 30,000 queues")
    return Finding("vm.max_map_count", f"{limit:,}", "ok", "")


def _open_files() -> Finding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return Finding("open files limit", f"{soft:,}", "advice", "raise it (ulimit -n) to at least 1024")
    return Finding("open files limit", f"{soft:,}", "ok", "")


def _dirty(door: OsDoor) -> Finding:
    ratio = _number(door, "/proc/sys/vm/dirty_ratio")
    background = _number(door, "/proc/sys/vm/dirty_background_ratio")
    if ratio is None or background is None:
        return Finding("dirty page ratios", "not known", "unknown", "")
    found = f"background {background} %, limit {ratio} %"
    if background >= ratio > 0 or ratio < 5:
        advice = "writers are stopped before the kernel writes back: lower dirty_background_ratio, raise dirty_ratio"
        return Finding("dirty page ratios", found, "advice", advice)
    return Finding("dirty page ratios", found, "ok", "")


def _huge_pages(door: OsDoor) -> Finding:
    text = _read(door, "/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return Finding("transparent huge pages", "not known", "unknown", "")
    chosen = text.partition("[")[2].partition("]")[0] or text
    if chosen == "always":
        return Finding("transparent huge pages", chosen, "advice", "madvise avoids stalls while pages are collapsed")
    return Finding("transparent huge pages", chosen, "ok", "")


def _swap(door: OsDoor) -> Finding:
    text = _read(door, "/proc/meminfo") or ""
    for line in text.splitlines():
        if line.startswith("SwapTotal:"):
            kib = int(line.split()[1])
            if kib == 0:
                return Finding("swap", "none", "ok", "")
            advice = "a swapped page stalls a put: turn swap off or set vm.swappiness to 1"
            return Finding("swap", f"{kib // 1024:,} MiB", "advice", advice)
    return Finding("swap", "not known", "unknown", "")
