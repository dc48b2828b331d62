"""The bits of a consumer's filter in RocketMQ's Bloom filter, which ``consumerFilter.json`` contains.

This broker writes no bit maps, and evaluates no Bloom filter. A Java broker that opens the store drops all filters of
the file if these bits are missing or of another size. So the bits are written as by Java. Source: BloomFilter;
MurmurHash3, x64, 128 bits (public domain, Austin Appleby).
"""

from __future__ import annotations

import math
from typing import Any, Final

__all__ = ["BloomFilter"]

_M: Final = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class BloomFilter:
    """The size of a Bloom filter, and the bits of a text.

    Args: error_rate: percent, 1 to 99 (maxErrorRateOfBloomFilter); expected: texts (expectConsumerNumUseFilter).
    """

    def __init__(self, error_rate: int, expected: int) -> None:
        rate = min(max(error_rate, 1), 99) / 100
        self._hashes = max(1, math.ceil(math.log(rate) / math.log(0.5)))
        bits = math.ceil(max(1, expected) * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self._bits = 8 * math.ceil(bits / 8)

    def data_of(self, text: str) -> dict[str, Any]:
        """Return the bits of a text, in the format of the file."""
        hashes = murmur3(text.encode("utf-8", "replace"))
        low, high = _signed(hashes), _signed(hashes >> 32)
        positions = []
        for i in range(1, self._hashes + 1):
            combined = _signed(low + i * high)
            positions.append((~combined if combined < 0 else combined) % self._bits)
        return {"bitNum": self._bits, "bitPos": positions}


def _signed(number: int) -> int:
    number &= 0xFFFFFFFF
    return number - (1 << 32) if number & 1 << 31 else number


def murmur3(data: bytes) -> int:
    """Return the first 64 bits of the 128-bit hash with seed 0."""
    h1 = h2 = 0
    whole = len(data) // 16 * 16
    for at in range(0, whole, 16):
        k1, k2 = int.from_bytes(data[at : at + 8], "little"), int.from_bytes(data[at + 8 : at + 16], "little")
        h1 = ((_left(h1 ^ _mixed1(k1), 27) + h2) * 5 + 0x52DCE729) & _M
        h2 = ((_left(h2 ^ _mixed2(k2), 31) + h1) * 5 + 0x38495AB5) & _M
    tail = data[whole:]
    h2 ^= _mixed2(int.from_bytes(tail[8:], "little"))
    h1 ^= _mixed1(int.from_bytes(tail[:8], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _M
    h2 = (h2 + h1) & _M
    return (_final(h1) + _final(h2)) & _M


def _left(number: int, bits: int) -> int:
    return (number << bits | number >> 64 - bits) & _M


def _mixed1(key: int) -> int:
    return _left(key * _C1 & _M, 31) * _C2 & _M


def _mixed2(key: int) -> int:
    return _left(key * _C2 & _M, 33) * _C1 & _M


def _final(h: int) -> int:
    h = (h ^ h >> 33) * 0xFF51AFD7ED558CCD & _M
    h = (h ^ h >> 33) * 0xC4CEB9FE1A85EC53 & _M
    return h ^ h >> 33
