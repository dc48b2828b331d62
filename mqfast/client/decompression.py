"""Decompression of bodies: zlib, lz4 and zstd, each with a limit of bytes that is checked during decompression.

A few bytes may expand to gigabytes, and the sizes in the headers of lz4 and zstd frames may be wrong. The memory stays
near the limit for every body. Source: CompressionType, Compressor.
"""

from __future__ import annotations

import zlib
from typing import Final

from mqfast.errors import ConfigError, FieldError
from mqfast.message import SysFlag

__all__ = ["BODY_BYTES_MAX", "MissingPackage", "decompressed"]

BODY_BYTES_MAX: Final = 32 << 20
"""Default limit of a decompressed body, bytes; brokers accept bodies of 4 MiB by default."""
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS  # clients of the gRPC proxy send gzip under the flag of zlib
_LEAST_PIECE: Final = 64 << 10
# Four bytes of zstd may encode a block of 128 KiB, so a piece of input expands by at most this factor.
_ZSTD_RATIO: Final = 32 << 10


class MissingPackage(ConfigError):
    """The package for the compression of a body is not installed; the body may be valid."""


class _TooLarge(Exception):
    """The body has more bytes than the limit."""


def decompressed(body: memoryview, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """Return the body of the producer.

    Args: bytes_max: limit of a decompressed body; without compression there is no limit.
    Raises: FieldError for a body that is damaged or has more bytes; ConfigError if a package is missing.
    """
    kind = SysFlag.compression(sys_flag)
    if kind is None:
        return bytes(body)
    try:
        if kind == "zlib":
            result = _inflated(body, bytes_max)
        elif kind == "lz4":
            result = _lz4(body, bytes_max)
        elif kind == "zstd":
            result = _zstd(body, bytes_max)
        else:
            raise FieldError("sysFlag", "compression zlib, lz4 or zstd", "another type")
    except ConfigError:  # also a ValueError, but not an error of the body
        raise
    except _TooLarge:
        raise FieldError(
            "body", f"at most {bytes_max} bytes when it is decompressed (max_body_bytes)",
            f"more, in {len(body)} bytes of {kind}",
        ) from None  # fmt: skip
    except FieldError:
        raise
    except (zlib.error, RuntimeError, EOFError, ValueError) as error:  # RuntimeError: lz4's own
        raise FieldError("body", f"whole {kind} ({error})", f"{len(body)} bytes: {bytes(body[:16])!r}") from None
    if result is None:
        raise FieldError("body", f"{kind}, to its end", f"{len(body)} bytes: {bytes(body[:16])!r}")
    return result


def _inflated(body: memoryview, bytes_max: int) -> bytes | None:
    stream = zlib.decompressobj(_ZLIB_OR_GZIP)
    result = stream.decompress(body, bytes_max + 1)
    if len(result) > bytes_max:
        raise _TooLarge
    return result if stream.eof else None


def _lz4(body: memoryview, bytes_max: int) -> bytes | None:
    try:
        from lz4.frame import LZ4FrameDecompressor
    except ImportError:
        raise _missing("lz4", "lz4") from None
    stream = LZ4FrameDecompressor()
    remaining_bytes, piece = bytes_max + 1, min(bytes_max + 1, max(_LEAST_PIECE, 4 * len(body)))
    pieces: list[bytes] = []
    given: memoryview | bytes = body
    while not stream.eof:
        if stream.needs_input and given is not body:
            return None
        pieces.append(stream.decompress(given, piece))  # allocates memory for a whole piece
        given = b""
        remaining_bytes -= len(pieces[-1])
        if remaining_bytes <= 0:
            raise _TooLarge
        piece = min(remaining_bytes, 2 * piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _zstd(body: memoryview, bytes_max: int) -> bytes | None:
    try:
        from zstandard import CONTENTSIZE_UNKNOWN, ZstdDecompressor, ZstdError, get_frame_parameters
    except ImportError:
        raise _missing("zstd", "zstandard") from None
    step = max(16, bytes_max // _ZSTD_RATIO)
    pieces: list[bytes] = []
    remaining_bytes = bytes_max
    try:
        size = get_frame_parameters(body).content_size
        if 0 < size != CONTENTSIZE_UNKNOWN:
            if size > bytes_max:
                raise _TooLarge
            return ZstdDecompressor().decompress(body)  # allocates exactly that size: more bytes are an error
        stream = ZstdDecompressor().decompressobj()
        for at in range(0, len(body), step):
            pieces.append(stream.decompress(body[at : at + step]))
            remaining_bytes -= len(pieces[-1])
            if remaining_bytes < 0:
                raise _TooLarge
            if stream.eof:
                return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    except ZstdError as error:
        raise ValueError(str(error)) from None
    return None


def _missing(kind: str, package: str) -> MissingPackage:
    return MissingPackage(
        f"body compressed by {kind}: expected the package {package}, found none: pip install {package}"
    )
