"""Prints csrc/crc32_tables.h: the numbers of the CRC, computed from the polynomial and from nothing else.

Run ``python csrc/crc32_consts.py > csrc/crc32_tables.h``; a test compares the file with this output.
What each number is for stands in the theory block of crc32.c. A polynomial over GF(2) is an int here, bit k the
coefficient of x^k; "reflected" turns it round, because the CRC of zip reads each byte with its lowest bit first.
"""

from __future__ import annotations

P = 0x104C11DB7  # x^32 + x^26 + ... + 1, the polynomial of zip, gzip, PNG and Ethernet

# Distances in bits over which a 128-bit lane is folded: one lane, two (AVX2), three and four lanes (AVX-512),
# and the strides of the loops: 64, 128 and 256 bytes.
DISTANCES = (128, 256, 384, 512, 1024, 2048)


def mod(a: int) -> int:
    """Return the remainder of a divided by P."""
    while a.bit_length() > 32:
        a ^= P << (a.bit_length() - 33)
    return a


def div(a: int) -> int:
    """Return the quotient of a divided by P."""
    q = 0
    while a.bit_length() > 32:
        shift = a.bit_length() - 33
        q |= 1 << shift
        a ^= P << shift
    return q


def reflect(a: int, width: int) -> int:
    """Return the lowest `width` bits of a in reverse order."""
    return int(f"{a:0{width}b}"[::-1], 2)


def slices() -> list[list[int]]:
    """Return the eight tables: entry [k][b] is what byte b does to the remainder with k zero bytes behind it."""
    polynomial = reflect(P & 0xFFFFFFFF, 32)
    first = []
    for byte in range(256):
        c = byte
        for _ in range(8):
            c = (c >> 1) ^ (polynomial if c & 1 else 0)
        first.append(c)
    tables = [first]
    for _ in range(7):
        tables.append([(c >> 8) ^ first[c & 255] for c in tables[-1]])
    return tables


def render() -> str:
    """Return the text of crc32_tables.h."""
    out = [
        "/* Made by crc32_consts.py from the polynomial: do not edit. Used by crc32*.c only; explained in crc32.c. */",
        "#ifndef MQ_CRC32_TABLES_H",
        "#define MQ_CRC32_TABLES_H",
        "",
        "#include <stdint.h>",
        "",
        "/* clang-format off */",
    ]
    for d in DISTANCES:
        out.append(f"#define MQ_FOLD_{d}_LO 0x{reflect(mod(1 << (d + 63)), 64):016x}ULL")
        out.append(f"#define MQ_FOLD_{d}_HI 0x{reflect(mod(1 << (d - 1)), 64):016x}ULL")
    out.append(f"#define MQ_REDUCE_K 0x{reflect(mod(1 << 95), 64):016x}ULL")
    out.append(f"#define MQ_REDUCE_NU 0x{reflect(div(1 << 96) >> 1, 64):016x}ULL")
    out.append(f"#define MQ_REDUCE_RHO 0x{reflect(P >> 1, 64):016x}ULL")
    out += ["", "static const uint32_t mq_crc32_slices[8][256] = {"]
    for table in slices():
        out.append("    {")
        for i in range(0, 256, 8):
            out.append("        " + " ".join(f"0x{c:08x}," for c in table[i : i + 8]))
        out.append("    },")
    out += ["};", "/* clang-format on */", "", "#endif"]
    return "\n".join(out)


if __name__ == "__main__":
    print(render())
