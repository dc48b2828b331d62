"""Types of _put_call.pyx; what each part does is described there."""

from collections.abc import Callable

from mqfast.store.put._put_result import PutResult

PUT: Callable[..., PutResult]
