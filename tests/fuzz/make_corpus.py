"""Makes the first inputs of every target from small stores: ``python -m tests.fuzz.make_corpus``. Room: tests."""

from __future__ import annotations

from mqfast.remoting.command import FrameDecoder
from tests.damage.stores import make_bases
from tests.remoting.captures import captures

from .fuzz import CORPUS
from .targets import PREFACE


def _headers(frames: list[bytes], codes: tuple[int, ...]) -> list[bytes]:
    """Codec and header of each request with one of the codes."""
    headers = []
    for frame in frames:
        if FrameDecoder().feed(frame)[0].code in codes:
            headers.append(frame[4:5] + frame[8 : 8 + int.from_bytes(frame[5:8], "big")])
    return headers


def main() -> None:
    """Write ``corpus/<target>/seed-*``."""
    inputs: dict[str, list[bytes]] = {"conf": [b"mapedFileSizeCommitLog=4096\nflushDiskType = SYNC_FLUSH\n# x\n"]}
    for base in make_bases(("clean", "golden-batch-cq", "golden-cq-ext", "golden-lmq")):
        records = list(base.records.values())
        inputs.setdefault("record", []).extend(records[:2])
        for name, data in sorted(base.files.items()):
            room = name.split("/")[0]
            target = {"consumequeue": "queue", "batchconsumequeue": "batch_queue", "consumequeue_ext": "queue_ext"}.get(
                room
            )
            if target or (room == "index" and len(data) < 1000):
                inputs.setdefault(target or "index", []).append(data)
            if name.endswith(".json"):
                inputs.setdefault("json", []).append(data)
                inputs.setdefault("tables", []).append(data)
            if name == "checkpoint":
                inputs.setdefault("checkpoint", []).append(data)
        if base.name == "clean":
            log = base.files["commitlog/" + f"{0:020d}"].rstrip(b"\0")
            parts = [base.files[f"consumequeue/orders/0/{0:020d}"], base.files["index/20231114221332600"]]
            inputs["log"] = [log[:2000]]
            inputs["recovery"] = [
                mark + len(log).to_bytes(2, "big") + log + b"".join(parts) + base.files["checkpoint"][:40]
                for mark in (b"\0", b"\xff")
            ]
    bodies = []
    for name in ("5.3.3-json", "5.3.3-rocketmq", "ali-ons"):
        sends = [row.frame for row in captures(name) if row.direction == "client->server" and len(row.frame) < 1500]
        inputs.setdefault("frames", []).append(sends[0] + sends[len(sends) // 2])
        inputs.setdefault("fast_sends", []).extend(_headers(sends, (10, 310))[:1])
        inputs.setdefault("fast_pulls", []).extend(_headers(sends, (11, 361))[:1])
    for name in ("broker-4.9.7-registration", "broker-5.3.3-registration"):
        for row in captures(name):
            (command,) = FrameDecoder().feed(row.frame)
            if command.code == 103 and not command.is_response:
                packed = command.ext_fields["compressed"] == "true" or command.body[:1] != b"{"
                bodies.append((b"\0" if packed else b"\xff") + command.body)
    inputs["http2"], inputs["protobuf"] = grpc_inputs()
    inputs["registration"] = sorted(set(bodies), key=len)
    for target, found in inputs.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(dict.fromkeys(found[:4])):
            (folder / f"seed-{i}").write_bytes(data)


def grpc_inputs() -> tuple[list[bytes], list[bytes]]:
    """Connections of a gRPC client without their preface, and messages behind the number of their class."""
    from mqfast.grpc import http2
    from mqfast.grpc import messages as m

    system = m.SystemProperties(
        tag="t", keys=["k"], message_id="id", body_digest=m.Digest(1, "0"), message_type=1,
        born_timestamp=1_700_000_000_123, invisible_duration=-1500, priority=3,
    )  # fmt: skip
    message = m.GrpcMessage(m.Resource("n", "t"), {"a": "b"}, system, b"body")
    send = m.encode(m.SendMessageRequest([message]))
    backoff = m.RetryPolicy(3, m.ExponentialBackoff(10, 1000, 2.0), m.CustomizedBackoff([1, 2000]))
    subscription = m.Subscription(m.Resource("", "g"), [m.SubscriptionEntry(m.Resource("", "t"))], True, 32, 20_000)
    telemetry = m.encode(
        m.TelemetryCommand(m.Status(20000, "OK"), m.Settings(2, None, backoff, 3000, None, subscription))
    )
    session = http2.Http2Session(is_server=False)
    headers = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/a/B"), (b":authority", b"x")]
    for part in (send, telemetry):
        stream = session.request([*headers, (b"content-type", b"application/grpc"), (b"grpc-timeout", b"3S")])
        session.write(stream, part)
        session.end_request(stream)
    connection = b"".join(session.data_to_send(1 << 20))
    return [connection.removeprefix(PREFACE)], [b"\0" + send, b"\1" + telemetry]


if __name__ == "__main__":
    main()
