"""What is fuzzed: each target takes bytes, gives them to one part of the engine, and lets only our own errors out.

Room: tests. It must never depend on how the inputs are made: ``fuzz.py`` makes them, ``test_corpus.py`` repeats them.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import mqfast
from mqfast.config import StoreConfig
from mqfast.errors import FieldError, FrameError, InternalError, MqfastError
from mqfast.grpc import IS_BUILT
from mqfast.grpc import messages as grpc_messages
from mqfast.remoting.command import FrameDecoder, RemotingCommand, encode, offset_header, pull_header, send_header
from mqfast.remoting.registrations import RegistrationLimits, at_once, registration_steps
from mqfast.store.base.os_api import OsApi
from mqfast.store.check.verify import verify
from mqfast.store.meta.checkpoint import StoreCheckpoint
from mqfast.store.meta.metadata import TopicConfigTable
from mqfast.store.meta.offsets import ConsumerOffsets
from mqfast.store.queues.batch_queue import BatchConsumeQueue
from mqfast.store.queues.queue_ext import QueueExt
from mqfast.store.record.record import decode_record
from mqfast.util import fastjson

sys.path.append(str(Path(__file__).resolve().parents[1] / "kit"))

from laboratory import open_still

from . import broker_requests

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
MESSAGES: Final = (
    grpc_messages.SendMessageRequest, grpc_messages.TelemetryCommand, grpc_messages.ReceiveMessageRequest,
    grpc_messages.AckMessageRequest, grpc_messages.QueryRouteResponse, grpc_messages.ReceiveMessageResponse,
)  # fmt: skip
_OS_API: Final = OsApi()
_NAME: Final = f"{0:020d}"
_INDEX: Final = "20231114221332600"


def _put(root: str, files: dict[str, bytes]) -> None:
    shutil.rmtree(root, ignore_errors=True)
    os.makedirs(os.path.join(root, "commitlog"))
    for name, data in files.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)


def _record(data: bytes, root: str) -> None:
    message = decode_record(data)
    repr((message.topic, message.keys, message.tags, message.properties, message.born_host, message.message_id))
    bytes(message.body)


def _read(root: str) -> None:
    with mqfast.StoreReader(root, max_hash_slot_num=8, max_index_num=20) as reader:
        for message in reader.scan():
            repr(message.properties)
        for row in reader.queues():
            reader.get(row.topic, row.queue_id, row.min_offset).bodies()
            reader.offset_by_time(row.topic, row.queue_id, 1_700_000_000_000)
        reader.query("orders", "k1")


def _log(data: bytes, root: str) -> None:
    _put(root, {f"commitlog/{_NAME}": data})
    _read(root)


def _recovery(data: bytes, root: str) -> None:
    # One byte says how the writer stopped, two how much of the rest is log; then queue, index and checkpoint.
    clean, size = data[:1] < b"\x80", int.from_bytes(data[1:3], "big")
    rest = data[3:]
    queue = rest[size : size + 200]
    index = rest[size + 200 : size + 672]
    files = {f"commitlog/{_NAME}": rest[:size].ljust(4096, b"\0")[:4096]}
    if queue:
        files[f"consumequeue/orders/0/{_NAME}"] = queue.ljust(200, b"\0")
    if index:
        files[f"index/{_INDEX}"] = index.ljust(472, b"\0")
    if rest[size + 672 :]:
        files["checkpoint"] = rest[size + 672 : size + 712].ljust(4096, b"\0")
    if not clean:
        files["abort"] = b""
    _put(root, files)
    verify(root, threads=1)
    settings = {"max_hash_slot_num": 8, "max_index_num": 20, "prefault_window_bytes": 0, "preallocate_files": 0}
    with open_still(root, mapped_file_bytes_consume_queue=200, **settings) as store:
        for topic, queue_id, low, _ in store.queues():
            try:
                store.get(topic, queue_id, low).bodies()
            except MqfastError:
                pass
        store.query("orders", "k1")
        store.put("orders", b"new", keys="k1")


def _index(data: bytes, root: str) -> None:
    _put(root, {f"index/{_INDEX}": data, f"commitlog/{_NAME}": bytes(4096)})
    verify(root, threads=1)
    _read(root)


def _queue(data: bytes, root: str) -> None:
    _put(root, {f"consumequeue/T/0/{_NAME}": data, f"commitlog/{_NAME}": bytes(4096)})
    verify(root, threads=1)
    _read(root)


def _batch(data: bytes, root: str) -> None:
    _put(root, {f"batchconsumequeue/T/0/{_NAME}": data, f"commitlog/{_NAME}": bytes(4096)})
    _read(root)
    queue = BatchConsumeQueue(_OS_API, os.path.join(root, "batchconsumequeue"), "T", 0, max(46, len(data)))
    try:
        queue.load()
        queue.recover()
        queue.find(queue.min_offset)
        list(zip(queue.iterate(queue.min_offset), range(50), strict=False))
        queue.offset_by_time(1_700_000_000_000)
        queue.truncate(1000)
    finally:
        queue.close()


def _ext(data: bytes, root: str) -> None:
    _put(root, {f"consumequeue_ext/T/0/{_NAME}": data})
    ext = QueueExt(_OS_API, os.path.join(root, "consumequeue_ext"), "T", 0, max(24, len(data)))
    try:
        ext.load()
        ext.recover()
        for address, _ in ext.units():
            ext.get(address)
    finally:
        ext.close()


def _checkpoint(data: bytes, root: str) -> None:
    _put(root, {"checkpoint": data})
    StoreCheckpoint.load(_OS_API, os.path.join(root, "checkpoint"))


def _json(data: bytes, root: str) -> None:
    fastjson.dumps(fastjson.loads(data, "x.json"))


def _tables(data: bytes, root: str) -> None:
    _put(root, {"config/topics.json": data, "config/consumerOffset.json": data})
    TopicConfigTable.load(_OS_API, os.path.join(root, "config/topics.json"))
    ConsumerOffsets.load(_OS_API, os.path.join(root, "config/consumerOffset.json"))


def _frames(data: bytes, root: str) -> None:
    """A stream in two pieces, and everything that a command can be asked."""
    decoder = FrameDecoder(frame_bytes_max=1 << 20)
    half = len(data) // 2
    for command in decoder.feed(data[:half]) + decoder.feed(data[half:]):
        repr(command)
        FrameDecoder(1 << 24).feed(encode(command))
        for ask in (send_header, pull_header, offset_header):
            try:
                ask(command)
            except FieldError:
                pass
    if decoder.error is not None:
        raise decoder.error


def _http2(data: bytes, root: str) -> None:
    """A connection of a gRPC client in two pieces; each call is answered."""
    if not IS_BUILT:
        return
    from mqfast.grpc import http2

    session = http2.Http2Session(message_bytes_max=1 << 16, held_bytes_max=1 << 18, header_bytes_max=4096)
    half = len(data) // 2
    for piece in (PREFACE + data[:half], data[half:]):
        for kind, stream, value in session.receive(piece):
            if kind == http2.MESSAGE:
                session.start(stream)
                session.write(stream, value)
            elif kind == http2.REFUSED:
                session.finish(stream, *value)
            elif kind == http2.ENDED:
                session.finish(stream)
        while session.data_to_send(1 << 16):
            pass
        session.take_events()
    if session.error:
        raise FrameError(session.error)


def _protobuf(data: bytes, root: str) -> None:
    """A message of the gRPC API, of the class that the first byte selects; decoded values can be encoded again."""
    kind = MESSAGES[(data[0] if data else 0) % len(MESSAGES)]
    written = grpc_messages.encode(grpc_messages.decode(kind, data[1:]))
    assert grpc_messages.encode(grpc_messages.decode(kind, written)) == written


def _command(codec: int, header: bytes) -> RemotingCommand:
    frame = (4 + len(header)).to_bytes(4, "big") + bytes([codec]) + len(header).to_bytes(3, "big") + header
    (command,) = FrameDecoder().feed(frame)
    return command


def _fast_sends(data: bytes, root: str) -> str:
    """A header as reactors read it: the same as the codec reads, or left to Python. The first byte is the codec."""
    from mqfast.broker.fast.send_request import parsed

    codec, header = data[0] & 1 if data else 0, data[1:]
    fields = parsed(header, codec)
    if fields is None:
        return "left to Python"
    command = _command(codec, header)
    seen = send_header(command)
    same = command.opaque, seen.queue_id, seen.sys_flag, seen.born_timestamp, seen.flag, seen.properties
    if (fields[0], *fields[2:7]) != same or fields[1].decode("utf-8", "replace") != seen.topic:
        raise InternalError(f"reactors read {fields!r}, the codec {same!r}")
    return ""


def _fast_pulls(data: bytes, root: str) -> str:
    """The header of a pull, as ``_fast_sends``."""
    from mqfast.broker.fast.pull_request import parsed

    codec, header = data[0] & 1 if data else 0, data[1:]
    fields = parsed(header, codec)
    if fields is None:
        return "left to Python"
    command = _command(codec, header)
    seen = pull_header(command)
    numbers = seen.queue_id, seen.queue_offset, seen.max_msg_nums, seen.sys_flag, seen.commit_offset, seen.sub_version
    texts = seen.consumer_group, seen.topic, seen.subscription, seen.expression_type
    read = [text if text is None else text.decode("utf-8", "replace") for text in (*fields[1:3], *fields[9:11])]
    same = fields[0] == command.opaque and fields[3:9] == numbers and fields[11] == (seen.max_msg_bytes or 0)
    if not same or tuple(read) != texts:
        raise InternalError(f"reactors read {fields!r}, the codec {(command.opaque, *texts, *numbers)!r}")
    return ""


def _registration(data: bytes, root: str) -> None:
    # The first byte says whether it is packed, and how old its sender is.
    steps = registration_steps(
        data[1:], compressed=data[:1] < b"\x80", version=data[0] if data else 0, limits=RegistrationLimits()
    )
    at_once(steps)


def _conf(data: bytes, root: str) -> None:
    _put(root, {"broker.conf": data})
    StoreConfig.from_broker_conf(os.path.join(root, "broker.conf"), os_api=_OS_API)


_brokers: Final[dict[str, broker_requests.FuzzedBroker]] = {}


def _requests(data: bytes, root: str) -> str:
    """One broker takes many inputs. Returns: the codes of the answers to a single request that was not served."""
    broker = _brokers.get(root)
    if broker is None or broker.is_worn:
        end()
        broker = _brokers[root] = broker_requests.FuzzedBroker(root)
    requests = broker_requests.unpack(data, broker.served)
    codes = broker.take(requests)
    return f"{requests[0].code}: {codes[0]}" if len(requests) == len(codes) == 1 and codes[0] else ""


def end() -> None:
    """Stop what a target keeps between its inputs."""
    while _brokers:
        _brokers.popitem()[1].end()


TARGETS: Final[dict[str, Callable[[bytes, str], str | None]]] = {
    "record": _record,
    "log": _log,
    "queue": _queue,
    "batch_queue": _batch,
    "queue_ext": _ext,
    "index": _index,
    "checkpoint": _checkpoint,
    "json": _json,
    "tables": _tables,
    "conf": _conf,
    "frames": _frames,
    "http2": _http2,
    "protobuf": _protobuf,
    "registration": _registration,
    "fast_sends": _fast_sends,
    "fast_pulls": _fast_pulls,
    "requests": _requests,
    "recovery": _recovery,
}
# How a target's inputs are made, besides the usual way.
OWN_WAYS: Final[dict[str, Callable[[random.Random, list[bytes]], bytes]]] = {"requests": broker_requests.vary}


def run(target: str, data: bytes, root: str) -> str:
    """Give one input to a target. Returns: ``""`` or the kind of error it met; anything but our errors goes up."""
    try:
        return TARGETS[target](data, root) or ""
    except InternalError:
        raise
    except MqfastError as error:
        return type(error).__name__
