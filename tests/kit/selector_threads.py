"""Runs of existing tests with reactors: ``MQFAST_TEST_SELECTOR_THREADS=2`` gives each broker of the process so many.

Room: tests. Helpers that start a broker as another process give ``reactor_settings`` to that broker. A test that sets
serverSelectorThreads keeps that number.
"""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "give_reactors", "reactor_settings"]

VARIABLE = "MQFAST_TEST_SELECTOR_THREADS"


def reactor_settings() -> dict[str, str]:
    """The setting of a broker that is another process; nothing without the variable."""
    number = os.environ.get(VARIABLE, "")
    return {"serverSelectorThreads": number} if number else {}


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
