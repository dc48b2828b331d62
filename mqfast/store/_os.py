"""The former module of the table of OS calls: ``OsDoor`` is now ``mqfast.store.base.os_api.OsApi``."""

import warnings

from mqfast.store.base.os_api import REAL, OsApi

__all__ = ["REAL", "OsApi", "OsDoor"]

OsDoor = OsApi
warnings.warn("mqfast.store._os.OsDoor is mqfast.store.base.os_api.OsApi now", DeprecationWarning, stacklevel=2)
