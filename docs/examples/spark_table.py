"""Read a store as a table of Spark (needs Java 17 and the extra ``spark``).

Prints: [('new', 2), ('paid', 1)]
"""

import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

import mqfast
from mqfast.spark import conf, register

path = Path(tempfile.mkdtemp()) / "store"
with mqfast.open(path) as store:
    for body, tags in ((b"42", "new"), (b"43", "new"), (b"42", "paid")):
        store.put("orders", body, tags=tags)

spark = conf(SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")).getOrCreate()
register(spark)
orders = spark.read.format("mqfast").option("subscribe", "orders").load(str(path))
print(sorted(tuple(row) for row in orders.groupBy("tags").count().collect()))
spark.stop()
