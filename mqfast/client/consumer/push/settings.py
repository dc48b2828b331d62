"""The settings of a push consumer, checked before. Source: DefaultMQPushConsumer."""

from __future__ import annotations

from dataclasses import dataclass

from mqfast.client.consumer.queue_bounds import FromWhere
from mqfast.client.decompression import BODY_BYTES_MAX

__all__ = ["PushSettings"]


@dataclass(frozen=True, slots=True)
class PushSettings:
    """The settings of one push consumer, with the names and units of ``PushConsumer``; ``group`` as on the wire."""

    group: str
    is_broadcasting: bool = False
    orderly: bool = False
    from_where: FromWhere = "latest"
    threads: int = 20
    pull_batch: int = 32
    pull_interval_s: float = 0.0
    max_cached_messages: int = 1000
    max_cached_bytes: int = 100 << 20
    max_span: int = 2000
    consume_timeout_s: float = 900.0
    max_reconsume_times: int = -1
    suspend_s: float = 1.0
    close_timeout_s: float = 5.0
    max_body_bytes: int = BODY_BYTES_MAX
    start_timeout_s: float | None = 0.0
