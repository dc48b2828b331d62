"""Check of a record's queue offset against the position of its unit, shared by get, the reader and recovery.

A record states a queue offset. In a queue that once lost units, all later units are too low, in the order of the log,
but never the first unit. RocketMQ accepts a record of queue offset 0 at any end of a queue. This module reads no file:
the caller provides the adjacent units.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["ANY_PLACE", "UnitPositions", "is_plausible", "may_stand"]

ANY_PLACE = -1
"""Claim of a record that belongs to the queue without a stated queue offset."""


class UnitPositions(Protocol):
    """The units of a queue; a place is a queue offset."""

    @property
    def first(self) -> int:
        """Place of the first unit."""

    @property
    def end(self) -> int:
        """Place behind the last unit."""

    def physical_at(self, place: int) -> int:
        """Return the physical offset in the unit of a place."""

    def claim_at(self, place: int) -> int | None:
        """Return the claim of the record of a place's unit; None without a record of the queue."""

    def first_is_gone(self) -> bool:
        """Return true if the record of the first unit was deleted."""


def is_plausible(place: int, claimed: int | None) -> bool:
    """Return true if the claim allows this place. ``claimed``: None for a record of another queue."""
    return claimed is not None and (claimed >= place or claimed in (ANY_PLACE, 0))


def may_stand(place: int, claimed: int, physical: int, places: UnitPositions) -> bool:
    """Return true if a record at this physical offset, which claims a place, may have its unit at ``place``.

    Where the unit of the claimed place is not later in the log, either unit is damaged.
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
