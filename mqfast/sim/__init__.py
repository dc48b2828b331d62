"""A cluster that can be replayed from a seed: name servers, brokers, fail-over and clients in one process.

The product's own code runs on virtual time, with a simulated network, disk, clock and etcd. A failure is a number that
repeats it. docs/simulation.md is the guide. The product must never import this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.sim.cluster import Cluster
    from mqfast.sim.faults import DEFAULT_KINDS, KINDS, Fault
    from mqfast.sim.history import Broken
    from mqfast.sim.runs import Failure, Outcome, SimulationFailed, explore, replay, run_seed, shrink
    from mqfast.sim.world import ProcessEnded

__all__ = [
    "DEFAULT_KINDS", "KINDS", "Broken", "Cluster", "Failure", "Fault", "Outcome", "ProcessEnded", "SimulationFailed",
    "explore", "replay", "run_seed", "shrink",
]  # fmt: skip

_PLACES = {
    "cluster": ("Cluster",),
    "world": ("ProcessEnded",),
    "runs": ("Failure", "Outcome", "SimulationFailed", "explore", "replay", "run_seed", "shrink"),
    "faults": ("DEFAULT_KINDS", "KINDS", "Fault"),
    "history": ("Broken",),
}


def __getattr__(name: str) -> Any:
    import importlib

    for module, names in _PLACES.items():
        if name in names:
            importlib.import_module("mqfast.sim.runs")  # sets Cluster.replay
            value = getattr(importlib.import_module(f"mqfast.sim.{module}"), name)
            globals()[name] = value
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
