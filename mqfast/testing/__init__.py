"""RocketMQ inside of a test: real name servers and brokers in the process of the test, on free ports, in milliseconds.

    with Broker(topics=["orders"]) as broker:
        place_order(broker.namesrv_addr)          # the application under test, with any client
        broker.assert_sent("orders", body=b"42")

Fixtures for pytest come with the plug-in ``mqfast.testing.plugin``, which pytest finds by itself; this package imports
no pytest. For programs in other languages: ``python -m mqfast.testing -- CMD``. Needs the extra mqfast[broker].
"""

from __future__ import annotations

import gc
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.testing.broker import Broker
    from mqfast.testing.fault_injection import Asked
    from mqfast.testing.faults import Faults
    from mqfast.testing.virtual_clock import Clock

__all__ = ["Asked", "Broker", "Clock", "Faults"]

# Where each name is; the imports above, which only type checkers read, say the same.
_HOMES = {"Asked": "fault_injection", "Broker": "broker", "Clock": "virtual_clock", "Faults": "faults"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'mqfast.testing' has no attribute {name!r}", name=name)
    globals()[name] = value = getattr(_loaded(_HOMES[name]), name)
    return value


def _loaded(module: str) -> ModuleType:
    """Load a module and all below; without collections of garbage, which find none and take a sixth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"mqfast.testing.{module}")
    except ModuleNotFoundError as error:
        if error.name != "msgspec":
            raise
        text = "mqfast.testing needs msgspec: pip install 'mqfast[broker]'"
        raise ModuleNotFoundError(text, name=error.name) from None
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
