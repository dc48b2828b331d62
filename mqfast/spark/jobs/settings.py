"""The settings of the jobs that work on a store or on a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.spark.jobs.locations import Place

__all__ = ["ArchiveSettings", "AuditSettings", "DlqSettings", "ReplaySettings"]


@dataclass(frozen=True)
class ArchiveSettings:
    """The settings of ``archive``.

    ``topics``: only these, None for all; ``level``: of the compression, None for the codec's default; ``allow_loss``:
    continue although retention removed messages that no run archived.
    """

    store: Place
    archive: str
    topics: tuple[str, ...] | None = None
    properties: str = "raw"
    compression: str = "zstd"
    level: int | None = 3
    verify_crc: str = "fail"
    partition_bytes: int = 128 << 20
    allow_loss: bool = False


@dataclass(frozen=True)
class AuditSettings:
    """The settings of ``audit``.

    ``findings``: listed at most; ``queues`` and ``index``: compare them with the log as well; ``delay_levels``: of the
    broker, None for RocketMQ's default.
    """

    store: Place
    partition_bytes: int = 128 << 20
    findings: int = 100
    queues: bool = True
    index: bool = True
    delay_levels: str | None = None


@dataclass(frozen=True)
class DlqSettings:
    """The settings of ``dlq``.

    ``target``: None for the store itself; ``groups``: of consumers, None for all; ``since_ms``, ``until_ms``: store
    time of the letter; ``properties``: names and values that must all match; ``where``: a condition in SQL over the
    columns of messages; ``topic``: for all letters, None for the original topics; ``max_attempts``: letters sent back
    so often are not sent again; ``txn_id``: the name under which each letter counts once, None for a name from the
    store's path.
    """

    store: Place
    target: str | None = None
    groups: tuple[str, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: tuple[str, ...] | None = None
    properties: tuple[tuple[str, str], ...] = ()
    where: str | None = None
    topic: str | None = None
    max_attempts: int = 3
    txn_id: str | None = None
    staging: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class ReplaySettings:
    """The settings of ``replay``.

    ``txn_id``: the name under which a replay counts once, None for a name from the archive's path; ``batch_bytes``: of
    Parquet in a batch; ``new_times`` and ``new_ids``: as if produced now.
    """

    archive: str
    store: Place
    topics: tuple[str, ...] | None = None
    txn_id: str | None = None
    staging: str | None = None
    batch_bytes: int = 128 << 20
    new_times: bool = False
    new_ids: bool = False
