"""Uses an installed wheel without compiled code: every client against a broker of another environment.

Run by wheels/try_wheel.py as ``python -P clients.py ADDRESS``, with the extra ``client`` installed. ADDRESS is the
address of a name server. What needs compiled code must say so.
"""

from __future__ import annotations

import sys
from importlib.machinery import ExtensionFileLoader
from pathlib import Path

import mqfast


def send_and_receive(address: str) -> None:
    """Send messages, and receive them by each consumer."""
    bodies = [b"clients %d" % number for number in range(20)]
    with mqfast.Producer("clients", address) as producer:
        for body in bodies:
            producer.send("Clients", body, tags="a", keys="k")
    with mqfast.PullConsumer("clients-pull", address, topics="Clients", from_where="earliest") as consumer:
        pulled: list[bytes] = []
        while len(pulled) < len(bodies):
            pulled += [message.body for message in consumer.poll(timeout_s=10)]
    with mqfast.PushConsumer("clients-push", address, topics="Clients", from_where="earliest") as pushing:
        pushed = [message.body for _, message in zip(bodies, pushing, strict=False)]
    popped: list[bytes] = []
    with mqfast.SimpleConsumer("clients-pop", address, topics="Clients", from_where="earliest") as popping:
        while len(popped) < len(bodies):
            for message in popping.receive(invisible_s=60):
                popped.append(message.body)
                popping.ack(message)
    for received in (pulled, pushed, popped):
        if sorted(received) != sorted(bodies):
            sys.exit(f"expected {len(bodies)} messages, found {received}")
    with mqfast.AdminClient(address) as admin:
        if "Clients" not in admin.topics():
            sys.exit("the topic of the messages is missing")


def main() -> None:
    """Run all checks and say what was used."""
    where = Path(mqfast.__file__).resolve().parent
    if where.parent.name != "site-packages":
        sys.exit(f"not the installed package: {where}")
    send_and_receive(sys.argv[1])
    compiled = [
        name
        for name, module in sys.modules.items()
        if name.startswith("mqfast") and isinstance(getattr(module, "__loader__", None), ExtensionFileLoader)
    ]
    if compiled:
        sys.exit(f"expected no compiled code, found {compiled}")
    try:
        mqfast.open("store")
        sys.exit("expected no store without compiled code, found one")
    except ImportError as error:
        if "is compiled code" not in str(error):
            raise
    print(f"mqfast {mqfast.__version__}, no compiled code: producer, three consumers and AdminClient work; no store")


if __name__ == "__main__":
    main()
