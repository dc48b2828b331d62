"""Why a row of the table may miss its target: the physical reason, and the floor that shows it.

Used by the closing table of ``make bench`` and by ``make bench-rivals``. A reason stands here only with a floor that
was measured, in the row itself or in one that it names. It must never excuse a row that merely had a bad day: what no
line here explains is printed as unexplained.
"""

from __future__ import annotations

import re

_REASONS = (
    (
        r"^sync flush, \d+ waiters, a group",
        "between two syncs the threads have to be woken and to come back with their next message, which a loop without "
        "waiters does not: as many threads of C that do nothing but share their syncs are printed in the row",
    ),
    (
        r"^put_many 1024 B without a rest",
        "a log that grows without a rest needs new pages as fast as it is written; what the kernel takes to make them "
        "is printed in the row",
    ),
)


def reason(what: str) -> str:
    """Why the row of this name may miss its target; empty when nothing explains it."""
    return next((text for pattern, text in _REASONS if re.search(pattern, what)), "")


def far_apart(floor_ratio: str) -> str:
    """Puts to many queues; for a run whose floor alone is beyond the target."""
    return (
        "queues and their files' pages are in no cache: a put to one queue, what it takes to call as many objects, "
        "and what a loop in C needs more to write an entry into the next of as many mapped pages between two records, "
        f"would make {floor_ratio} in this run"
    )


def ready_columns() -> str:
    """Arrow batches; for a batch whose floors alone are beyond the target."""
    return (
        "pyarrow takes its time for a batch of 18 columns whatever made them, also where it has their schema, and the "
        "bodies have to be copied: both are printed in the row, and get itself comes on top"
    )


# Of the comparison with other stores, where the floors are columns of their own. Who calls them has seen that the floor
# itself is beyond the target.


def new_pages(ready: str, new: str, pool: str) -> str:
    """Puts without a rest."""
    return (
        f"a log that grows without a rest needs new pages: the floor takes {ready} into pages that are ready and {new} "
        f"into new ones that a second thread makes, and a put into ready memory (the pool's) takes {pool}; a record of "
        "RocketMQ's format has more bytes than one of the other store"
    )


def noise_alone(alone: str, beside: str, bare: str) -> str:
    """The tail of paced puts; `beside` may be empty: it was not measured."""
    writer = f", and {beside} beside a process that appends as many bytes and syncs them every 500 ms" if beside else ""
    return (
        f"no log gets there in this run: a loop that only copies into hot memory had {alone}{writer}; a log in C that "
        f"only copies records into ready pages of a mapped file, which two threads make ready and sync, {bare}"
    )


def late_alone(limit: str, may: str, ours: str, alone: str, bare: str) -> str:
    """A tail that stands at the edge: how many puts are late says more than how late one of them is."""
    return (
        f"{may} may take more than {limit}, and {ours} did; a loop that only copies into hot memory made {alone} late, "
        f"the log in C {bare}, by interrupts and other work on its processor, and no log can be without those"
    )


def stood_between(alone: str, others: str, slept: int, lost: int) -> str:
    """A tail that the calls do not make; `others` says what somebody else's would."""
    return (
        f"its calls alone, each behind those before it at that pace, would make {alone} ({others}): the "
        f"loop stood still between two calls, where its thread runs no code of the store; it slept {slept:,} times and "
        f"lost its processor {lost:,} times in all turns and their leads"
    )


def noise_above(figures: str) -> str:
    """The tail of paced puts beside another store's, which had its turns at other moments."""
    return (
        "there a loop that stores nothing, or a log in C that only copies records and syncs, was slower than the other "
        f"store as well: {figures}"
    )


def sync_floor(rate: str) -> str:
    """Sync flush beside RocketMQ."""
    return (
        f"as many threads of C that only write, and wait for each other's fdatasync, make {rate} in this run, less "
        "than twice what RocketMQ does"
    )
