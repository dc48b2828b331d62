"""May a record stand where its unit puts it? The one rule for get, the reader and recovery.

A record says its queue offset. A queue that once lost units has all later ones too low, in the order of the log, but
never its first one. RocketMQ takes a record of queue offset 0 wherever the queue ends. It must never read a file: who
asks hands over what stands beside the unit.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["ANY_PLACE", "UnitPositions", "is_plausible", "may_stand"]

ANY_PLACE = -1
"""What a record claims that belongs to the queue and does not say where."""


class UnitPositions(Protocol):
    """The units of one queue; a place is a queue offset."""

    @property
    def first(self) -> int:
        """Place of the first unit there is."""

    @property
    def end(self) -> int:
        """Place behind the last unit."""

    def physical_at(self, place: int) -> int:
        """Physical offset that the unit of a place has."""

    def claim_at(self, place: int) -> int | None:
        """What the record of the unit of a place claims; None when there is no record of the queue."""

    def first_is_gone(self) -> bool:
        """Has the first unit no record any more?"""


def is_plausible(place: int, claimed: int | None) -> bool:
    """Do the two numbers allow the record to stand there? ``claimed``: None for a record of another queue."""
    return claimed is not None and (claimed >= place or claimed in (ANY_PLACE, 0))


def may_stand(place: int, claimed: int, physical: int, places: UnitPositions) -> bool:
    """May a record of this physical offset, which claims a place, stand at another one?

    Where the unit of the claimed place is not later in the log, one of the two is damaged.
    """
    if claimed in (place, ANY_PLACE):
        return True
    if not is_plausible(place, claimed):
        return False
    if claimed < place:
        return place > places.first and places.physical_at(place - 1) < physical
    if claimed < places.end:
        if places.physical_at(claimed) <= physical:
            return False
        further = places.claim_at(claimed)
        if further is None or ANY_PLACE < further <= claimed:
            return False
    return places.first > 0 or places.first_is_gone() or places.claim_at(0) in (0, ANY_PLACE)
