"""Installed as the top-level module ``pyspark_mqfast``: Spark looks for modules of such names and takes their
``DefaultSource``, so that ``format("mqfast")`` works without a call.

Room: the Spark adapter. It must never raise on import: Spark imports it in every session, wanted or not.
"""

from __future__ import annotations

try:
    from mqfast.spark.source import MqFastSource as DefaultSource
except ImportError:  # another pyspark, no pyarrow: then there is nothing to register
    pass
else:
    __all__ = ["DefaultSource"]
