"""Results of the modules that have two forms, one a line, for the same inputs: ``python results.py SEED COUNT``.

Room: tests. Both forms must print the same; ``test_python_forms.py`` compares them. ``MQFAST_PURE`` chooses the form.
"""

from __future__ import annotations

import random
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mqfast.client.producer.fast_encode import HeaderTemplate, PreparedMessage, encode_batch, plain
from mqfast.errors import MqfastError
from mqfast.message import Message
from mqfast.remoting.command import (
    FrameDecoder,
    RemotingCommand,
    encode,
    offset_header,
    pull_header,
    repeated_name,
    send_answer,
    send_header,
)
from mqfast.remoting.connection import Connection
from mqfast.remoting.signature import is_signed_with, signer_of
from mqfast.remoting.unique_ids import UniqueIds
from mqfast.store.record.record import decode_record, java_hash, load_message

CORPUS = Path(__file__).resolve().parents[1] / "fuzz" / "corpus"
TEXTS = (
    "",
    "a",
    "orders",
    "TAGS\x01new\x02",
    'quo"te\\',
    "\x00\x1f\x7f\t\n",
    "Größe",
    "\U0001f600",
    "\ud800",
    "null",
    "é" * 50,
)
NAMES = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp", "flag"),
    *("properties", "queueOffset", "maxMsgNums", "commitOffset", "suspendTimeoutMillis", "subVersion", "consumerGroup"),
    *(
        "msgId",
        "transactionId",
        "subscription",
        "bname",
        "batch",
        "maxReconsumeTimes",
        *"abcdefghijklmn",
        "x\u00e9",
        "",
    ),
)
NUMBERS = (
    "0",
    "-1",
    "+7",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "1.0",
    "1e3",
    "true",
)


def outcome(call: Callable[[], Any]) -> str:
    """The result of a call, or its error."""
    try:
        return repr(call())
    except (MqfastError, ValueError, OverflowError) as error:
        return f"{type(error).__name__}: {error}"


def fields_of(header: object, names: str) -> list[Any]:
    return [getattr(header, name, None) for name in names.split()]


def of_headers(command: RemotingCommand) -> list[str]:
    """Of every typed header, and of the whole command."""
    return [
        outcome(lambda: command.__reduce__()[1]),
        outcome(lambda: repeated_name(command)),
        outcome(lambda: (signer_of(command), is_signed_with(command, "secret"))),
        outcome(
            lambda: fields_of(
                send_header(command),
                "producer_group topic default_topic default_topic_queue_nums queue_id sys_flag born_timestamp flag "
                "properties reconsume_times unit_mode max_reconsume_times batch broker_name",
            )
        ),
        outcome(
            lambda: fields_of(
                pull_header(command),
                "consumer_group topic queue_id queue_offset max_msg_nums sys_flag commit_offset suspend_timeout_ms "
                "subscription sub_version expression_type max_msg_bytes broker_name request_source",
            )
        ),
        outcome(lambda: fields_of(offset_header(command), "consumer_group topic queue_id commit_offset")),
        outcome(
            lambda: fields_of(send_answer(command), "msg_id queue_id queue_offset transaction_id recall_handle region")
        ),
    ]


def of_stream(rng: random.Random, data: bytes) -> list[str]:
    """Of a stream of frames, fed in pieces."""
    decoder = FrameDecoder(1 << 20, 1 << 16)
    lines = []
    at = 0
    while at < len(data):
        size = rng.choice((1, 3, 8, 40, len(data)))
        for command in decoder.feed(data[at : at + size]):
            lines += of_headers(command)
        at += size
    return [*lines, f"{decoder.buffered} {outcome(lambda: str(decoder.error))}"]


def value_of(rng: random.Random) -> Any:
    return rng.choice((rng.choice(TEXTS), rng.choice(NUMBERS), rng.randrange(-(1 << 40), 1 << 40), None, True, False))


def command_of(rng: random.Random) -> RemotingCommand:
    names = rng.sample(NAMES, rng.randrange(12))
    fields = {name: value_of(rng) for name in names} if rng.random() < 0.9 else None
    body: Any = rng.choice((b"", b"x" * rng.randrange(300), [b"ab", bytearray(b"cd"), memoryview(b"ef")]))
    return RemotingCommand(
        rng.choice((10, 310, 320, 11, 15, -1, 40_000)),
        fields,
        body,
        opaque=rng.randrange(-(1 << 31), 1 << 31),
        flag=rng.randrange(4),
        remark=rng.choice((None, *TEXTS)),
        language=rng.randrange(14),
        version=rng.choice((479, 0, 70_000)),
        serialize=rng.randrange(2),
    )


def json_of(rng: random.Random, depth: int = 0) -> str:
    """Valid JSON, or nearly so."""
    blank = rng.choice(("", "", "", " ", "\n\t"))
    kind = rng.randrange(8 if depth < 4 else 6)
    if kind < 3:
        inside = rng.choice(
            ("", "a", "topic", "\\u00e9", "\\ud83d\\ude00", "\\ud800x", "\\n\\\\\\/", "\\x", "\\u12", "é")
        )
        return f'{blank}"{inside}"{blank}'
    if kind < 6:
        return (
            blank
            + rng.choice((*NUMBERS, "null", "true", "false", "nul", "-", "[" * 34 + "]" * 34, "{}", "[ ]"))
            + blank
        )
    if kind == 6:
        return f"{blank}[{','.join(json_of(rng, depth + 1) for _ in range(rng.randrange(3)))}]{blank}"
    return blank + object_of(rng, depth + 1, NAMES) + blank


def object_of(rng: random.Random, depth: int, names: tuple[str, ...]) -> str:
    pairs = [f'"{rng.choice(names)}":{json_of(rng, depth)}' for _ in range(rng.randrange(5))]
    return f"{{{','.join(pairs)}}}"


def header_of(rng: random.Random) -> bytes:
    """A header of JSON as other programs may write it."""
    names = ("code", "flag", "opaque", "version", "language", "remark", "other")
    parts = [f'"{name}":{json_of(rng)}' for name in rng.sample(names, rng.randrange(4))]
    parts.insert(rng.randrange(len(parts) + 1), f'"extFields":{object_of(rng, 1, NAMES)}')
    return f"{{{','.join(parts)}}}".encode("utf-8", "replace")


def framed(header: bytes, serialize: int = 0, body: bytes = b"") -> bytes:
    return struct.pack(">IB", 4 + len(header) + len(body), serialize) + len(header).to_bytes(3, "big") + header + body


def mutated(rng: random.Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0 and at < len(out):
            out[at] = rng.choice((0, 1, 2, 0x7F, 0xFF, 0x22, 0x5C, rng.randrange(256)))
        elif kind == 1:
            del out[at : at + rng.randrange(4)]
        elif kind == 2:
            out[at:at] = rng.choice((b'"', b"\\", b",", b"}", b"\xff", b"\x00\x00\x00\x05"))
        else:
            del out[at:]
    return bytes(out)


RECORD_FIELDS = (
    "topic topic_bytes queue_id queue_offset record_queue_offset physical_offset size magic body_crc flag sys_flag "
    "born_timestamp store_timestamp born_host store_host reconsume_times prepared_transaction_offset properties "
    "properties_bytes tags keys message_id"
)


def of_record(data: bytes, at: int = 0) -> list[str]:
    """Of the record at a position."""

    def read() -> Any:
        record = decode_record(data, at)
        copy = load_message(record.to_bytes(), 7)
        places = [record.offset_in(name, queue) for name in (b"orders", b"a", b"", b"%LMQ%b") for queue in (0, 1)]
        values = [outcome(lambda name=name: getattr(record, name)) for name in RECORD_FIELDS.split()]  # type: ignore[misc]
        return values, bytes(record.body), record.check_crc(), repr(record), copy.queue_offset, copy.to_bytes(), places

    return [outcome(read)]


def with_properties(rng: random.Random) -> bytes:
    """A record with any properties."""
    names = ("TAGS", "KEYS", "UNIQ_KEY", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "", "x")
    values = ("", "a", "a b  c", "orders,%LMQ%b,a", "1,-2,x", "5", "é", ",", "a,")
    text = "\x02".join(f"{rng.choice(names)}\x01{rng.choice(values)}" for _ in range(rng.randrange(6))).encode()
    six, version = rng.randrange(4), rng.randrange(2)
    body, topic = rng.randbytes(rng.randrange(40)), rng.choice((b"orders", b"a", b"t" * 127))
    hosts = [rng.randbytes(20 if six & bit else 8) for bit in (1, 2)]
    inside = struct.pack(
        ">IIiiqqiq",
        0xDAA320AB if version else 0xDAA320A7,
        zlib.crc32(body) & 0x7FFFFFFF,
        1,
        9,
        42,
        1 << 33,
        six << 4,
        77,
    )
    inside += hosts[0] + struct.pack(">q", 88) + hosts[1] + struct.pack(">iqi", 3, 5, len(body)) + body
    inside += len(topic).to_bytes(1 + version, "big") + topic + struct.pack(">h", len(text)) + text
    return struct.pack(">i", 4 + len(inside)) + inside


def of_sends(rng: random.Random) -> list[str]:
    """Of the bytes of sends; unique ids have the same head in both forms."""
    clock = iter([1_700_000_000.0 + rng.choice((0, 0, 0.001, -0.5, 3e6)) for _ in range(9)])
    ids = UniqueIds(b"\x7f\x00\x00\x01", lambda: next(clock), lambda s: (int(s) * 1000 - 500, int(s) * 1000 + 999_000))
    lines = [ids.next()[20:] for _ in range(4)]
    template = HeaderTemplate(310, {"a": rng.choice(TEXTS[:8]), "b": "t", "e": rng.randrange(9)}, 479, "JAVA")
    many = []
    for _ in range(3):
        tags, keys = rng.choice((None, *TEXTS, ["k", "l"])), rng.choice((None, *TEXTS))
        message = outcome(lambda tags=tags, keys=keys: Message("t", b"x", tags=tags, keys=keys) and "")  # type: ignore[misc]
        if message != "''":
            lines.append(message)
            continue
        out = plain(Message("t", b"body", tags=tags, keys=keys), ids, "t", 100)
        lines.append(
            "none" if out is None else repr((out.properties[29:], out.size, out.msg_ids, out.code, out.flag)[:2])
        )
        prepared = PreparedMessage(
            Message("t", b"x", flag=rng.randrange(5)), "t", rng.randbytes(9), rng.choice(TEXTS[:8]).encode(), "id"
        )
        many.append(prepared)
        frame = template.frame(
            rng.randrange(1 << 31), 8, -5, prepared.flag, prepared.properties, prepared.body, rng.random() < 0.5
        )
        lines.append(repr(frame))
    return [*lines, outcome(lambda: encode_batch(many)), outcome(lambda: java_hash(rng.choice(TEXTS)))]


def of_connection(rng: random.Random) -> list[str]:
    """Of calls, answers and time on both sides of a connection."""
    now = [0.0]
    client = Connection(lambda: now[0], calls_max=5, frame_bytes_max=2000)
    server = Connection(lambda: now[0], requests_max=3, frame_bytes_max=2000)
    lines = []
    for _ in range(30):
        now[0] += rng.choice((0, 0.01, 0.4, 2.0))
        step = rng.randrange(5)
        if step == 0:
            lines.append(
                outcome(lambda: client.call(11, {"a": 1}, b"x", timeout_ms=rng.choice((10, 500, 3000))).opaque)
            )
        elif step == 1:
            client.oneway(12, {"b": None}, b"yy")
        elif step == 2:
            data = b"".join(client.data_to_send())
            events = server.receive(data)
            lines.append(repr([type(event).__name__ for event in events]))
            for event in events:
                request = getattr(event, "command", None)
                if request is not None and not request.is_oneway:
                    answer = request.response(0, None, b"z" * rng.choice((0, 5, 3000)))
                    server.answer(request, answer if rng.random() < 0.7 else None)
        elif step == 3:
            data = b"".join(server.data_to_send())
            data = mutated(rng, data) if data and rng.random() < 0.05 else data
            lines.append(
                repr([(type(event).__name__, repr(getattr(event, "command", ""))) for event in client.receive(data)])
            )
        else:
            lines.append(repr([call.opaque for call in client.expired()]))
        lines.append(
            repr((client.waits, client.out_bytes, client.buffered, client.next_deadline_s(), client.is_unresponsive))
            + repr((server.open_requests, server.open_bytes, server.wants_to_read, server.out_bytes, server.idle_s()))
        )
    return [*lines, repr(len(client.close()))]


def main(seed: int, count: int) -> None:
    """Print the results of the corpus, and of so many random inputs of each kind."""
    rng = random.Random(seed)
    frames = [path.read_bytes() for path in sorted((CORPUS / "frames").iterdir())]
    records = [path.read_bytes() for path in sorted((CORPUS / "record").iterdir())]
    lines = [line for data in frames for line in of_stream(rng, data)]
    lines += [line for data in records for line in of_record(data)]
    for _ in range(count):
        command = command_of(rng)
        lines += of_headers(command)
        frame = outcome(lambda command=command: encode(command).hex())  # type: ignore[misc]
        lines += [frame, outcome(lambda command=command: encode(command, with_body=False).hex())]  # type: ignore[misc]
        known = frames if frame[:1] != "'" else [*frames, bytes.fromhex(frame.strip("'"))]
        lines += of_stream(rng, known[-1])
        lines += of_stream(rng, mutated(rng, rng.choice(known)))
        lines += of_stream(rng, framed(header_of(rng), body=b"abc") + known[-1])
        lines += of_stream(rng, framed(mutated(rng, header_of(rng))))
        record = with_properties(rng)
        lines += of_record(record) + of_record(mutated(rng, record)) + of_record(mutated(rng, rng.choice(records)))
        lines += of_record(b"pad" + record, rng.choice((3, 0, -1, 10_000)))
        lines += of_sends(rng)
        lines += of_connection(rng)
    sys.stdout.write("\n".join(line.encode("ascii", "backslashreplace").decode() for line in lines) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
