"""Runs of existing tests with reactors: ``MQFAST_TEST_SELECTOR_THREADS=2`` gives each broker of the process so many.

Room: tests. A broker that a test starts as another process keeps its own settings. A test that sets
serverSelectorThreads keeps that number.
"""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "give_reactors"]

VARIABLE = "MQFAST_TEST_SELECTOR_THREADS"


def give_reactors() -> None:
    """Let every new BrokerConfig have the number of reactors that the environment names."""
    number = os.environ.get(VARIABLE, "")
    if not number:
        return
    from mqfast.broker.config.broker_config import BrokerConfig

    made = BrokerConfig.__init__

    def init(self: BrokerConfig) -> None:
        made(self)
        self.update({"serverSelectorThreads": number}, VARIABLE)

    BrokerConfig.__init__ = init  # type: ignore[method-assign]
