"""Jobs over stores: each module runs with ``python -m``, or as the file of ``spark-submit``.

Each job is a module with a class of settings, ``run(spark, settings) -> JobReport`` and ``main``. ``arguments.py``,
``report.py``, ``tasks.py`` and ``files.py`` hold the shared parts.
A job never changes the store that is read. See ``docs/spark/start.md``.
"""
