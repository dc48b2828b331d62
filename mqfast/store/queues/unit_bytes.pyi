"""Types of unit_bytes.pyx; the docstrings are there."""

from mqfast.store.base.mapped_file import MappedFile

BATCH_UNIT_BYTES: int

def read_bytes(file: MappedFile, position: int, n: int) -> bytes: ...
def read_batch_unit(file: MappedFile, position: int) -> tuple[int, int, int, int, int, int, int]: ...
def write_batch_unit(
    file: MappedFile,
    position: int,
    physical_offset: int,
    size: int,
    tags_code: int,
    store_timestamp: int,
    base_offset: int,
    batch_size: int,
) -> None: ...
def valid_batch_units(file: MappedFile, max_units: int, below_physical: int) -> tuple[int, int]: ...
def sync(file: MappedFile, start: int, end: int) -> int: ...
