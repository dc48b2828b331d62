"""Types of marked.pyx."""

from mqfast.message import Body

def marked_records(
    block: Body, name: bytes, physical_offset: int
) -> tuple[list[tuple[int, int, int, str, int, int, bytes]], int]: ...
