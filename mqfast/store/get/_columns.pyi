"""Types of _columns.pyx; what each part does is described there."""

from typing import Any, Final

import numpy
from numpy.typing import NDArray

from mqfast.store.get._read import GetResult

FIXED_FIELDS: Final[tuple[tuple[str, str], ...]]

def fixed_fields(result: GetResult) -> NDArray[numpy.void]: ...

# Capsules have no type of their own.
def arrow_schema() -> Any: ...
def arrow_array(result: GetResult, requested_schema: Any = None) -> tuple[Any, Any]: ...
def arrow_stream(result: GetResult, requested_schema: Any = None) -> Any: ...
def record_batch(result: GetResult) -> Any: ...
