"""Settings: their declaration, from which checks, hints, documentation and types follow, and their readers.

``declaration`` describes one setting; ``broker_conf`` and ``property_settings`` read the property files of servers;
``store_settings`` has the types of the keywords of ``mqfast.open``, which only type checkers load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mqfast.settings.store_settings import StoreSettings

__all__ = ["StoreSettings"]


def __getattr__(name: str) -> Any:
    if name != "StoreSettings":
        raise AttributeError(f"module 'mqfast.settings' has no attribute {name!r}", name=name)
    from mqfast.settings.store_settings import StoreSettings

    return StoreSettings
