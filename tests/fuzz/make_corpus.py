"""Makes the first inputs of every target from small stores: ``python -m tests.fuzz.make_corpus``. Room: tests."""

from __future__ import annotations

from mqfast.remoting.command import FrameDecoder
from tests.damage.stores import make_bases
from tests.remoting.captures import captures

from .fuzz import CORPUS


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
    for name in ("broker-4.9.7-registration", "broker-5.3.3-registration"):
        for row in captures(name):
            (command,) = FrameDecoder().feed(row.frame)
            if command.code == 103 and not command.is_response:
                packed = command.ext_fields["compressed"] == "true" or command.body[:1] != b"{"
                bodies.append((b"\0" if packed else b"\xff") + command.body)
    inputs["registration"] = sorted(set(bodies), key=len)
    for target, found in inputs.items():
        folder = CORPUS / target
        folder.mkdir(parents=True, exist_ok=True)
        for i, data in enumerate(dict.fromkeys(found[:4])):
            (folder / f"seed-{i}").write_bytes(data)


if __name__ == "__main__":
    main()
