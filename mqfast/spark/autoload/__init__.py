"""Installed as the top-level module ``pyspark_mqfast``, so that ``format("mqfast")`` works without a call.

Spark imports modules with such names and registers their ``DefaultSource``. The import never raises: Spark imports this
module in every session.
"""

from __future__ import annotations

try:
    from mqfast.spark.source import MqFastSource as DefaultSource
except ImportError:  # another pyspark, or no pyarrow: nothing to register
    pass
else:
    __all__ = ["DefaultSource"]
