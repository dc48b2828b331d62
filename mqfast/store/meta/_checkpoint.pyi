"""Types of _checkpoint.pyx; what each part does is described there."""

from mqfast.store.base.paths import Door

class CheckpointFile:
    physic_msg_timestamp: int
    logics_msg_timestamp: int
    index_msg_timestamp: int
    master_flushed_offset: int
    confirm_phy_offset: int
    logics_physical_offset: int
    def __init__(self, door: Door, path: str) -> None: ...
    @property
    def path(self) -> str: ...
    def flush(self) -> bool: ...
    def assume_written(self, numbers: bytes) -> None: ...
