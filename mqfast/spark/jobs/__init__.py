"""Jobs over stores: each module runs with ``python -m``, or as the file of ``spark-submit``.

Room: the Spark adapter. Each job is one module with ``Settings``, ``run(spark, settings) -> Report`` and ``main``; what
they share is in ``arguments.py``, ``report.py``, ``tasks.py`` and ``files.py``. A job must never change the store that
it reads. See ``docs/spark/start.md``.
"""
