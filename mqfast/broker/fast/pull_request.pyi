"""Types of pull_request.pyx."""

def parsed(
    header: bytes, codec: int
) -> tuple[int, bytes, bytes, int, int, int, int, int, int, bytes | None, bytes | None, int] | None: ...
