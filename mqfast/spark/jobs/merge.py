"""The rows of several Parquet files in log order again.

Room: the Spark adapter; runs in tasks. An archive has one file for each topic and day; put back side by side, by
physical offset, their rows are in the order in which they were stored. It must never hold more than a few batches of
each file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["merged"]

_ROWS_AT_ONCE: Final = 32768
_MOST_ROWS: Final = 4096
_LEAST_ROWS: Final = 16
_KEY: Final = "physicalOffset"


def merged(paths: Sequence[str], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Rows of all files by physical offset; each file is in that order. ``columns`` has ``physicalOffset``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    at_once = max(_LEAST_ROWS, min(_MOST_ROWS, _ROWS_AT_ONCE // max(1, len(paths))))
    sources = [pq.ParquetFile(path).iter_batches(at_once, columns=list(columns)) for path in paths]
    heads: dict[int, pa.RecordBatch] = {}
    while True:
        for i, source in enumerate(sources):
            while i not in heads or heads[i].num_rows == 0:
                following = next(source, None)
                if following is None:
                    heads.pop(i, None)
                    break
                heads[i] = following
        if not heads:
            return
        # Up to here no file has a row that has not been read yet.
        bound = min(head.column(_KEY)[-1].as_py() for head in heads.values())
        ready = []
        for i, head in heads.items():
            rows = int(head.column(_KEY).to_numpy().searchsorted(bound, side="right"))
            ready.append(head.slice(0, rows))
            heads[i] = head.slice(rows)
        if len(ready) == 1:
            yield ready[0]
        else:
            yield pa.Table.from_batches(ready).sort_by(_KEY).combine_chunks().to_batches()[0]
