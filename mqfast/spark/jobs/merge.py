"""The rows of several Parquet files in log order.

Runs in tasks. An archive has a file for each topic and day; merged by physical offset, the rows are in the order of
storing. At most a few batches of each file are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

__all__ = ["in_order", "merged"]

_ROWS_AT_ONCE: Final = 32768
_MOST_ROWS: Final = 4096
_LEAST_ROWS: Final = 16
_KEY: Final = "physicalOffset"


def merged(
    paths: Sequence[str], columns: Sequence[str]
) -> Iterator[tuple[list[pa.RecordBatch], np.ndarray[Any, np.dtype[np.int64]]]]:
    """Yield the rows of all files by physical offset; each file is in that order. ``columns`` includes
    ``physicalOffset``.

    Returns: batches as in the files, and the order of the rows as int64: number of the batch * 2^32 + number of the
        row. No body is moved for sorting.
    """
    import numpy as np
    import pyarrow.parquet as pq

    at_once = max(_LEAST_ROWS, min(_MOST_ROWS, _ROWS_AT_ONCE // max(1, len(paths))))
    # A task has one core.
    sources = [pq.ParquetFile(path).iter_batches(at_once, columns=list(columns), use_threads=False) for path in paths]
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
        # Every file has been read up to this physical offset.
        bound = min(head.column(_KEY)[-1].as_py() for head in heads.values())
        ready: list[pa.RecordBatch] = []
        keys, places = [], []
        for i, head in heads.items():
            key = head.column(_KEY).to_numpy()
            rows = int(key.searchsorted(bound, side="right"))
            if rows:
                keys.append(key[:rows])
                places.append(np.arange(rows, dtype=np.int64) + (len(ready) << 32))
                ready.append(head.slice(0, rows))
                heads[i] = head.slice(rows)
        order = places[0] if len(ready) == 1 else np.concatenate(places)[np.concatenate(keys).argsort(kind="stable")]
        yield ready, order


def in_order(batches: Sequence[pa.RecordBatch], order: np.ndarray[Any, np.dtype[np.int64]]) -> pa.RecordBatch:
    """Return rows of ``merged`` as a single sorted batch."""
    import numpy as np
    import pyarrow as pa

    first = np.cumsum([0, *(batch.num_rows for batch in batches)])
    places = first[order >> 32] + (order & 0xFFFFFFFF)
    return pa.Table.from_batches(batches).take(pa.array(places)).combine_chunks().to_batches()[0]
