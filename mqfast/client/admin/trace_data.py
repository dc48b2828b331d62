"""Records of the trace topic, decoded: sends and consumptions of messages, with their results.

A record with more or fewer fields is accepted: missing fields are left out. Source:
TraceDataEncoder.decoderFromTraceDataString.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

__all__ = ["TRACE_TOPIC", "trace_rows"]

TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
_FIELD, _RECORD = "\x01", "\x02"
_MESSAGE_KINDS: Final = ("NORMAL", "HALF", "COMMIT", "DELAY", "ORDER")
_CONSUMED: Final = ("SUCCESS", "TIME_OUT", "EXCEPTION", "RETURN_NULL", "FAILED")


def _text(text: str) -> str | None:
    return None if text in ("null", "") else text


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.lstrip("-").isdigit() else None


def _flag(text: str) -> bool:
    return text == "true"


def _one_of(names: tuple[str, ...]) -> Callable[[str], str]:
    def name(text: str) -> str:
        number = _number(text)
        return names[number] if number is not None and 0 <= number < len(names) else text

    return name


_Reader = Callable[[str], Any]
_COMMON: Final[tuple[tuple[str, _Reader], ...]] = (("timestamp", _number), ("region_id", _text), ("group", _text))
_TOPIC: Final[tuple[tuple[str, _Reader], ...]] = (("topic", _text), ("msg_id", _text))
_MESSAGE: Final[tuple[tuple[str, _Reader], ...]] = (*_TOPIC, ("tags", _text), ("keys", _text), ("store_host", _text))
# Fields of each kind of record after its name, in their order.
_FIELDS: Final[Mapping[str, tuple[tuple[str, _Reader], ...]]] = {
    "Pub": (
        *_COMMON, *_MESSAGE, ("body_bytes", _number), ("cost_ms", _number), ("message_kind", _one_of(_MESSAGE_KINDS)),
        ("offset_msg_id", _text), ("success", _flag), ("client_host", _text),
    ),
    "SubBefore": (*_COMMON, ("request_id", _text), ("msg_id", _text), ("retry_times", _number), ("keys", _text)),
    "SubAfter": (
        ("request_id", _text), ("msg_id", _text), ("cost_ms", _number), ("success", _flag), ("keys", _text),
        ("consumed", _one_of(_CONSUMED)), ("timestamp", _number), ("group", _text),
    ),
    "EndTransaction": (
        *_COMMON, *_MESSAGE, ("message_kind", _one_of(_MESSAGE_KINDS)), ("transaction_id", _text), ("state", _text),
        ("from_check", _flag),
    ),
    "Recall": (*_COMMON, *_TOPIC, ("success", _flag)),
}  # fmt: skip


def trace_rows(body: bytes) -> Iterator[dict[str, Any]]:
    """Return the records of one message of the trace topic; ``type`` is the kind of a record."""
    for record in body.decode("utf-8", "replace").split(_RECORD):
        kind, *texts = record.split(_FIELD)
        readers = _FIELDS.get(kind)
        if readers is None:
            continue
        if kind == "Pub" and len(texts) == 12:  # before the offset id was written
            texts.insert(11, "null")
        yield {"type": kind} | {name: read(text) for (name, read), text in zip(readers, texts, strict=False)}
