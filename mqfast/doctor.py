"""Checks of this machine: what endangers the store's promises or latency, each with a line of advice.

No setting is changed, and the checks need no more rights than the store. A value that cannot be read is reported as
such.
"""

from __future__ import annotations

import os
import resource
import statistics
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from mqfast.errors import MqfastError
from mqfast.store.base.memory_room import mount_of
from mqfast.store.base.os_api import OsApi
from mqfast.store.base.paths import absolute

__all__ = ["MachineFinding", "examine"]

Verdict = Literal["ok", "advice", "danger", "unknown"]

_MIB: Final = 1 << 20
# Filesystems whose fsync is known to reach the disk, and whose mappings work as the store needs.
_GOOD_FILESYSTEMS: Final = frozenset({"ext4", "xfs"})
_NETWORK_FILESYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "virtiofs"})


@dataclass(frozen=True)
class MachineFinding:
    """A finding about the machine."""

    name: str
    found: str
    verdict: Verdict
    advice: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return asdict(self)


def _read(os_api: OsApi, path: str) -> str | None:
    try:
        return os_api.read_file(path, 1 << 20).decode("utf-8", "replace").strip()
    except MqfastError:
        return None


def _number(os_api: OsApi, path: str) -> int | None:
    text = _read(os_api, path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None


def examine(
    path: str | os.PathLike[str], *, os_api: OsApi | None = None, sync_rounds: int = 64
) -> list[MachineFinding]:
    """Check the machine for a store at ``path``, which need not exist yet.

    Writes a small file there for the sync latency, and removes the file. Returns: findings, dangers first.
    Raises: StorageError when nothing can be written there.
    """
    real = os_api or OsApi()
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


def _filesystem(os_api: OsApi, place: str) -> MachineFinding:
    mount = mount_of(os_api, place)
    if mount is None:
        return MachineFinding("filesystem", "not known", "unknown", "put the store on ext4 or xfs")
    device, kind, options = mount
    description = f"{kind} on {device}"
    if kind in ("tmpfs", "ramfs"):
        return MachineFinding(
            "filesystem", description, "danger", "nothing here survives a power cut: put the store on a disk"
        )
    if kind in _NETWORK_FILESYSTEMS:
        return MachineFinding(
            "filesystem", description, "danger", "locks, mappings and syncs over a network are not reliable"
        )
    if "nobarrier" in options or "barrier=0" in options:
        return MachineFinding(
            "filesystem", f"{description} ({options})", "danger", "mount with barriers: syncs do not reach the disk"
        )
    if kind not in _GOOD_FILESYSTEMS:
        return MachineFinding("filesystem", description, "advice", "ext4 and xfs are what the store is tested on")
    return MachineFinding("filesystem", description, "ok", "")


def _space(os_api: OsApi, place: str) -> MachineFinding:
    total, available = os_api.statvfs(place)
    used = -(-(total - available) * 100 // total) if total else 0
    usage = f"{available // _MIB:,} MiB free, {used} % used"
    if used > 90:
        return MachineFinding(
            "free space", usage, "danger", "puts are refused above 90 %: free space or set retention_bytes"
        )
    if used > 75 or available < 3 << 30:
        return MachineFinding(
            "free space", usage, "advice", "above 75 % expired files go at once; a log file takes 1 GiB"
        )
    return MachineFinding("free space", usage, "ok", "")


def _sync(os_api: OsApi, place: str, rounds: int) -> MachineFinding:
    took = sorted(os_api.sync_latencies_ns(os.path.join(place, f".mqfast-doctor-{os.getpid()}"), rounds))
    median, worst = statistics.median(took) / 1000, took[-1] / 1000
    times = f"fdatasync of 1 KiB: median {median:,.0f} us, worst of {rounds} {worst:,.0f} us"
    if median < 20:
        return MachineFinding("sync latency", times, "danger", "no real flush: a power cut may lose synced messages")
    if median > 5000:
        return MachineFinding(
            "sync latency", times, "advice", "a slow disk: batch puts or let several threads share a sync"
        )
    return MachineFinding("sync latency", times, "ok", "")


def _write_cache(os_api: OsApi, place: str) -> MachineFinding:
    mount = mount_of(os_api, place)
    device = os.path.basename(mount[0]) if mount is not None and mount[0].startswith("/dev/") else ""
    for name in (device, device.rstrip("0123456789"), device.rstrip("0123456789").removesuffix("p")):
        text = _read(os_api, f"/sys/block/{name}/queue/write_cache") if name else None
        if text == "write back":
            return MachineFinding("write cache", f"{name}: write back", "ok", "")
        if text is not None:
            advice = "the kernel sends no flush to this disk: make sure that it has no volatile cache"
            return MachineFinding("write cache", f"{name}: {text}", "advice", advice)
    return MachineFinding("write cache", "not known", "unknown", "make sure that the disk honours flushes")


def _memlock() -> MachineFinding:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return MachineFinding("memlock limit", "unlimited", "ok", "")
    limit = f"{soft // 1024:,} KiB"
    return MachineFinding(
        "memlock limit", limit, "advice", "raise it (ulimit -l) to use warmed files or the transient pool"
    )


def _maps(os_api: OsApi) -> MachineFinding:
    limit = _number(os_api, "/proc/sys/vm/max_map_count")
    if limit is None:
        return MachineFinding("vm.max_map_count", "not known", "unknown", "many queues need many mappings")
    if limit < 65530:
        return MachineFinding(
            "vm.max_map_count", f"{limit:,}", "danger", "set it to 262144: every queue file is a mapping"
        )
    if limit < 262144:
        return MachineFinding(
            "vm.max_map_count", f"{limit:,}", "advice", "set it to 262144 for more than 30,000 queues"
        )
    return MachineFinding("vm.max_map_count", f"{limit:,}", "ok", "")


def _open_files() -> MachineFinding:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1024:
        return MachineFinding("open files limit", f"{soft:,}", "advice", "raise it (ulimit -n) to at least 1024")
    return MachineFinding("open files limit", f"{soft:,}", "ok", "")


def _dirty(os_api: OsApi) -> MachineFinding:
    ratio = _number(os_api, "/proc/sys/vm/dirty_ratio")
    background = _number(os_api, "/proc/sys/vm/dirty_background_ratio")
    if ratio is None or background is None:
        return MachineFinding("dirty page ratios", "not known", "unknown", "")
    limits = f"background {background} %, limit {ratio} %"
    if background >= ratio > 0 or ratio < 5:
        advice = "writers are stopped before the kernel writes back: lower dirty_background_ratio, raise dirty_ratio"
        return MachineFinding("dirty page ratios", limits, "advice", advice)
    return MachineFinding("dirty page ratios", limits, "ok", "")


def _huge_pages(os_api: OsApi) -> MachineFinding:
    text = _read(os_api, "/sys/kernel/mm/transparent_hugepage/enabled")
    if text is None:
        return MachineFinding("transparent huge pages", "not known", "unknown", "")
    chosen = text.partition("[")[2].partition("]")[0] or text
    if chosen == "always":
        return MachineFinding(
            "transparent huge pages", chosen, "advice", "madvise avoids stalls while pages are collapsed"
        )
    return MachineFinding("transparent huge pages", chosen, "ok", "")


def _swap(os_api: OsApi) -> MachineFinding:
    text = _read(os_api, "/proc/meminfo") or ""
    for line in text.splitlines():
        if line.startswith("SwapTotal:"):
            kib = int(line.split()[1])
            if kib == 0:
                return MachineFinding("swap", "none", "ok", "")
            advice = "a swapped page stalls a put: turn swap off or set vm.swappiness to 1"
            return MachineFinding("swap", f"{kib // 1024:,} MiB", "advice", advice)
    return MachineFinding("swap", "not known", "unknown", "")
