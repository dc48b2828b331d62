"""Decompression of bodies that a client compressed.

RocketMQ's clients compress bodies above 4 KiB by default and mark the record's sysFlag. Consumers decompress them, and
so does a read. The lz4 and zstd of RocketMQ are the frame formats, which pyarrow reads. A body that does not match its
sysFlag stays as stored, with the sysFlag, or is an error, as ``verifyCrc`` says.
Source: MessageSysFlag, CompressionType, Compressor.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mqfast.errors import ConfigError, CorruptFile
from mqfast.message import SysFlag
from mqfast.spark.schema import Column

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["NEEDED", "decompressed"]

_log = logging.getLogger("mqfast.spark")

NEEDED: Final = ("sys_flag", "physical_offset")
"""What the scanner is asked for before the columns of the read."""
_CLEAR: Final = ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK)
# Decompressed bytes of the bodies in a batch.
_BATCH_BYTES: Final = 64 << 20
# A stream is read in pieces: pyarrow allocates the requested number of bytes.
_LEAST_PIECE: Final = 64 << 10
_MOST_PIECE: Final = 4 << 20

_Codec = Callable[[bytes, int], bytes]
"""Decompresses a body of at most so many bytes. Raises: _Damaged."""


class _Damaged(Exception):
    """A body does not match the sysFlag, or is too large."""


def _too_large(bytes_max: int) -> _Damaged:
    return _Damaged(f"more than {bytes_max} bytes when it is decompressed (option maxBodyBytes)")


def _inflate(data: bytes, bytes_max: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        body = stream.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _Damaged(str(error)) from None
    if len(body) > bytes_max:
        raise _too_large(bytes_max)
    if not stream.eof:
        raise _Damaged("it is cut short")
    return body


def _stream(codec: str) -> _Codec:
    import pyarrow as pa

    if not pa.Codec.is_available(codec):
        raise ConfigError(
            f"option decompress: a body is compressed by {codec}, and this pyarrow has no such codec: install one that "
            "has (pip install 'mqfast[spark]'), or set decompress=false to read bodies as they are stored"
        )

    def read(data: bytes, bytes_max: int) -> bytes:
        pieces: list[bytes] = []
        size, max_piece = 0, min(max(_LEAST_PIECE, 4 * len(data)), _MOST_PIECE)
        try:
            stream = pa.CompressedInputStream(pa.BufferReader(data), codec)
            while piece := stream.read(max_piece):
                pieces.append(piece)
                size += len(piece)
                if size > bytes_max:
                    raise _too_large(bytes_max)
        except OSError as error:
            raise _Damaged(str(error)) from None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    return read


def _codec(name: str | None, known: dict[str, _Codec]) -> _Codec:
    if name is None or name == "unknown":
        raise _Damaged("its sysFlag names no compression that RocketMQ has")
    if name not in known:
        known[name] = _inflate if name == "zlib" else _stream(name)
    return known[name]


def decompressed(
    batches: Iterator[pa.RecordBatch], columns: Sequence[Column], verify_crc: str, root: str, bytes_max: int
) -> Iterator[pa.RecordBatch]:
    """Yield batches without the leading NEEDED columns and with decompressed bodies; ``sysFlag`` of such a row has no
    bits of compression.

    Args: bytes_max: of a decompressed body.
    Raises: CorruptFile with verifyCrc=fail for a body that does not match the sysFlag, or is larger (skip leaves the
        row out, mark clears ``crcOk``, off leaves the stored body); ConfigError for a missing codec.
    """
    import pyarrow.compute as pc

    known: dict[str, _Codec] = {}
    for batch in batches:
        flags = batch.column(0)
        rows = batch.select(range(len(NEEDED), batch.num_columns))
        if pc.any(pc.not_equal(pc.bit_wise_and(flags, SysFlag.COMPRESSED), 0)).as_py():
            yield from _opened(rows, flags.to_pylist(), batch.column(1), columns, verify_crc, root, known, bytes_max)
        else:
            yield rows


def _opened(
    rows: pa.RecordBatch,
    flags: list[int],
    places: pa.Array,
    columns: Sequence[Column],
    verify_crc: str,
    root: str,
    known: dict[str, _Codec],
    bytes_max: int,
) -> Iterator[pa.RecordBatch]:
    names = [column.name for column in columns]
    body = rows.column(names.index("body"))
    bodies: list[bytes] = []
    kept: list[int] = []
    good: list[bool] = []
    size = begin = 0

    def cut(end: int) -> pa.RecordBatch:
        return _replaced(rows.slice(begin, end - begin), names, flags[begin:end], bodies, kept, good, begin)

    for i, flag in enumerate(flags):
        data: bytes = body[i].as_py()
        fine = True
        if flag & SysFlag.COMPRESSED:
            try:
                data = _codec(SysFlag.compression(flag), known)(data, bytes_max)
                flags[i] = flag & _CLEAR
            except _Damaged as error:
                what = f"the body of the record at physical offset {places[i].as_py()} is not what its sysFlag says"
                if verify_crc == "fail":
                    raise CorruptFile(
                        f"{what}; decompress=false reads bodies as they are stored",
                        path=root, expected=SysFlag.compression(flag), found=str(error),
                    ) from None  # fmt: skip
                _log.warning("%s: %s (%s): %s", root, what, error, "left out" if verify_crc == "skip" else "as stored")
                fine = False
        if fine or verify_crc != "skip":
            bodies.append(data)
            kept.append(i)
            good.append(fine)
            size += len(data)
        if size >= _BATCH_BYTES:
            yield cut(i + 1)
            bodies, kept, good, size, begin = [], [], [], 0, i + 1
    if kept:
        yield cut(len(flags))


def _replaced(
    rows: pa.RecordBatch,
    names: list[str],
    flags: list[int],
    bodies: list[bytes],
    kept: list[int],
    good: list[bool],
    begin: int,
) -> pa.RecordBatch:
    """Return the rows with other bodies."""
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = rows.schema
    arrays = dict(zip(names, rows.columns, strict=True))
    if "sysFlag" in arrays:
        arrays["sysFlag"] = pa.array(flags, pa.int32())
    if len(kept) < rows.num_rows:
        wanted = pa.array([i - begin for i in kept], pa.int64())
        arrays = {name: array.take(wanted) for name, array in arrays.items()}
    arrays["body"] = pa.array(bodies, pa.binary())
    if "crcOk" in arrays:
        arrays["crcOk"] = pc.and_(arrays["crcOk"], pa.array(good))
    return pa.RecordBatch.from_arrays([arrays[name] for name in names], schema=schema)
