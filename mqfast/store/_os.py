"""The former place of OsDoor, for programs that pass a door to ``mqfast.open``. It must never define anything."""

from mqfast.store.base._os import REAL, OsDoor

__all__ = ["REAL", "OsDoor"]
