"""Bodies that a producer compressed: zlib, lz4 and zstd, each up to a number of bytes that holds while they grow.

Room: client. A few bytes may stand for gigabytes, and the sizes in the heads of lz4 and zstd frames may lie. It must
never take much more memory than the limit allows, whatever the body is. Source: CompressionType, Compressor.
"""

from __future__ import annotations

import zlib
from typing import Final

from mqfast.errors import ConfigError, FieldError
from mqfast.message import SysFlag

__all__ = ["BODY_BYTES_MAX", "MissingPackage", "decompressed"]

BODY_BYTES_MAX: Final = 32 << 20
"""Bytes of a decompressed body, where a client says nothing else; brokers take bodies of 4 MiB by default."""
_ZLIB_OR_GZIP: Final = 32 + zlib.MAX_WBITS  # clients of the gRPC proxy send gzip under the flag of zlib
_LEAST_PIECE: Final = 64 << 10
# Four bytes of zstd may stand for a block of 128 KiB, so a piece of input stands for at most so many times its size.
_ZSTD_RATIO: Final = 32 << 10


class MissingPackage(ConfigError):
    """The package that decompresses a body is not installed here; the body itself may be whole."""


class _TooLarge(Exception):
    """The body has more bytes than the limit."""


def decompressed(body: memoryview, sys_flag: int, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The body that the producer gave.

    Args: bytes_max: of a body that is compressed; any other has as many bytes as it came with.
    Raises: FieldError for a body that is damaged or has more bytes; ConfigError where a package is missing.
    """
    kind = SysFlag.compression(sys_flag)
    if kind is None:
        return bytes(body)
    try:
        if kind == "zlib":
            found = _inflated(body, bytes_max)
        elif kind == "lz4":
            found = _lz4(body, bytes_max)
        elif kind == "zstd":
            found = _zstd(body, bytes_max)
        else:
            raise FieldError("sysFlag", "compression zlib, lz4 or zstd", "another type")
    except ConfigError:  # a ValueError too, but not of the body
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
    if found is None:
        raise FieldError("body", f"{kind}, to its end", f"{len(body)} bytes: {bytes(body[:16])!r}")
    return found


def _inflated(body: memoryview, bytes_max: int) -> bytes | None:
    stream = zlib.decompressobj(_ZLIB_OR_GZIP)
    found = stream.decompress(body, bytes_max + 1)
    if len(found) > bytes_max:
        raise _TooLarge
    return found if stream.eof else None


def _lz4(body: memoryview, bytes_max: int) -> bytes | None:
    try:
        from lz4.frame import LZ4FrameDecompressor
    except ImportError:
        raise _missing("lz4", "lz4") from None
    stream = LZ4FrameDecompressor()
    left, piece = bytes_max + 1, min(bytes_max + 1, max(_LEAST_PIECE, 4 * len(body)))
    found: list[bytes] = []
    given: memoryview | bytes = body
    while not stream.eof:
        if stream.needs_input and given is not body:
            return None
        found.append(stream.decompress(given, piece))  # memory for a whole piece is taken
        given = b""
        left -= len(found[-1])
        if left <= 0:
            raise _TooLarge
        piece = min(left, 2 * piece)
    return found[0] if len(found) == 1 else b"".join(found)


def _zstd(body: memoryview, bytes_max: int) -> bytes | None:
    try:
        from zstandard import CONTENTSIZE_UNKNOWN, ZstdDecompressor, ZstdError, get_frame_parameters
    except ImportError:
        raise _missing("zstd", "zstandard") from None
    step = max(16, bytes_max // _ZSTD_RATIO)
    found: list[bytes] = []
    left = bytes_max
    try:
        size = get_frame_parameters(body).content_size
        if 0 < size != CONTENTSIZE_UNKNOWN:
            if size > bytes_max:
                raise _TooLarge
            return ZstdDecompressor().decompress(body)  # into room for so many bytes: more are an error
        stream = ZstdDecompressor().decompressobj()
        for at in range(0, len(body), step):
            found.append(stream.decompress(body[at : at + step]))
            left -= len(found[-1])
            if left < 0:
                raise _TooLarge
            if stream.eof:
                return found[0] if len(found) == 1 else b"".join(found)
    except ZstdError as error:
        raise ValueError(str(error)) from None
    return None


def _missing(kind: str, package: str) -> MissingPackage:
    return MissingPackage(
        f"body compressed by {kind}: expected the package {package}, found none: pip install {package}"
    )
