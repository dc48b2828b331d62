from collections.abc import Callable

def month_of(seconds: float) -> tuple[int, int]: ...

class UniqueIds:
    def __init__(
        self,
        host: bytes,
        clock: Callable[[], float] = ...,
        month: Callable[[float], tuple[int, int]] = ...,
    ) -> None: ...
    def next(self) -> str: ...
