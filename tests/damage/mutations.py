"""What can happen to a file: flipped bits, other bytes, cut, extended, zeroed, doubled, exchanged, gone.

Room: tests. It must never touch a disk, and the same seed must always give the same damage.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from .stores import Base

_WORDS: Final = (
    0,
    1,
    -1,
    2,
    19,
    20,
    91,
    4096,
    2**15 - 1,
    2**15,
    2**31 - 1,
    -(2**31),
    2**31,
    2**62,
    2**63 - 1,
    -(2**63),
)
_BLOCKS: Final = (20, 46, 64, 512, 4096)


@dataclass
class Damage:
    """What one seed does: name -> new bytes, or None where the file goes."""

    seed: int
    base: Base
    words: list[str] = field(default_factory=list)
    changed: dict[str, bytes | None] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)

    def __str__(self) -> str:
        return f"{self.base.name}: " + "; ".join(self.words)

    def data(self, name: str) -> bytes:
        """The present bytes of a file, none when it is gone."""
        if name in self.changed:
            return self.changed[name] or b""
        return self.base.files[name]


def room_of(name: str) -> str:
    """Which kind of file it is."""
    first = name.split("/", 1)[0]
    return f"{first}.bak" if first == "config" and name.endswith(".bak") else first


def _used(data: bytes) -> int:
    return len(data.rstrip(b"\0"))


def _place(rng: random.Random, data: bytes) -> int:
    """A byte of the file, mostly one that says something."""
    used = _used(data)
    return rng.randrange(used) if used and rng.random() < 0.9 else rng.randrange(len(data))


def _bits(rng: random.Random, data: bytearray) -> str:
    at = [_place(rng, data) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    for i in at:
        data[i] ^= 1 << rng.randrange(8)
    return f"bits at {at}"


def _bytes(rng: random.Random, data: bytearray) -> str:
    at = _place(rng, data)
    new = bytes(rng.choice((0, 0xFF, 0x7F, 0x80, rng.randrange(256))) for _ in range(rng.choice((1, 1, 2, 4, 20))))
    data[at : at + len(new)] = new[: len(data) - at]
    return f"{len(new)} bytes at {at}"


def _number(rng: random.Random, data: bytearray) -> str:
    size = rng.choice((2, 4, 4, 8, 8))
    at = _place(rng, data)
    if rng.random() < 0.5:
        at -= at % 4
    if at + size > len(data):
        return "nothing"
    value = rng.choice(_WORDS)
    if rng.random() < 0.5:
        value = int.from_bytes(data[at : at + size], "big") + rng.choice((-20, -1, 1, 20, 4096, 2**31))
    data[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "big")
    return f"number of {size} bytes at {at}: {value}"


def _cut(rng: random.Random, data: bytearray) -> str:
    keep = rng.choice((0, 1, len(data) // 2, max(0, len(data) - 1), rng.randrange(len(data)), _used(data)))
    del data[keep:]
    return f"cut to {keep}"


def _extend(rng: random.Random, data: bytearray) -> str:
    more = rng.choice((1, 20, 512, 4096, len(data)))
    data += bytes(more) if rng.random() < 0.5 else rng.randbytes(more)
    return f"{more} bytes more"


def _blocks(rng: random.Random, data: bytearray) -> tuple[int, int, int]:
    size = rng.choice(_BLOCKS)
    count = max(1, (_used(data) + size - 1) // size)
    return size, rng.randrange(count) * size, rng.randrange(count) * size


def _zero(rng: random.Random, data: bytearray) -> str:
    size, at, _ = _blocks(rng, data)
    n = len(data[at : at + size])
    data[at : at + n] = bytes(n)
    return f"{n} zeros at {at}"


def _double(rng: random.Random, data: bytearray) -> str:
    size, one, two = _blocks(rng, data)
    n = min(size, len(data) - one, len(data) - two)
    data[two : two + n] = data[one : one + n]
    return f"{n} bytes of {one} also at {two}"


def _exchange(rng: random.Random, data: bytearray) -> str:
    size, one, two = _blocks(rng, data)
    n = min(size, len(data) - one, len(data) - two, abs(one - two) or size)
    data[one : one + n], data[two : two + n] = data[two : two + n], data[one : one + n]
    return f"{n} bytes of {one} and {two} exchanged"


def _junk(rng: random.Random, data: bytearray) -> str:
    data[:] = rng.randbytes(len(data))
    return "junk"


_INSIDE: Final = (
    (_bits, 30),
    (_bytes, 15),
    (_number, 20),
    (_zero, 8),
    (_double, 6),
    (_exchange, 6),
    (_cut, 6),
    (_extend, 4),
    (_junk, 1),
)


def _whole(rng: random.Random, damage: Damage, name: str) -> str:
    """Damage to a file as such: gone, exchanged with another one, a copy, another name, a directory."""
    kind = rng.choice(("gone", "gone", "exchange", "exchange", "copy", "copy", "name", "directory"))
    same = [other for other in damage.base.files if other != name and room_of(other) == room_of(name)]
    other = rng.choice(same or [other for other in damage.base.files if other != name])
    if kind == "gone":
        damage.changed[name] = None
    elif kind == "exchange":
        damage.changed[name], damage.changed[other] = damage.data(other), damage.data(name)
    elif kind == "copy":
        damage.changed[name] = damage.data(other)
    elif kind == "directory":
        damage.changed[name] = None
        damage.directories.add(name)
    else:
        folder, _, last = name.rpartition("/")
        if last.isdigit():
            step = rng.choice((1, len(damage.data(name)) or 1, 4096, 10**15))
            other = f"{folder}/{int(last) + step:0{len(last)}d}"
        else:
            other = f"{name}{rng.choice(('.bak', '.tmp', '~'))}"
        damage.changed[other] = damage.data(name)
        damage.changed[name] = None
    return f"{kind} {other if kind not in ('gone', 'directory') else ''}"


def mutate(bases: list[Base], seed: int) -> Damage:
    """The damage of one seed."""
    rng = random.Random(seed)
    # The small ones are quicker by far; the others are there for the kinds of file that only they have.
    damage = Damage(seed, rng.choices(bases, [6 if len(base.records) < 50 else 1 for base in bases])[0])
    rooms: dict[str, list[str]] = {}
    for name in sorted(damage.base.files):
        rooms.setdefault(room_of(name), []).append(name)
    weights = {"commitlog": 6, "consumequeue": 5, "index": 4, "batchconsumequeue": 5, "consumequeue_ext": 5}
    names = list(rooms)
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        room = rng.choices(names, [weights.get(room, 1) for room in names])[0]
        name = rng.choice(rooms[room])
        data = bytearray(damage.data(name))
        if not data or rng.random() < 0.1:
            words = _whole(rng, damage, name)
        else:
            act = rng.choices([act for act, _ in _INSIDE], [weight for _, weight in _INSIDE])[0]
            words = act(rng, data)
            damage.changed[name] = bytes(data)
        damage.words.append(f"{name} {words}")
    return damage
