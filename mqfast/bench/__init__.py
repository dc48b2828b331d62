"""Measuring mqfast on the machine where it runs: ``python -m mqfast.bench`` and ``mqfast bench store``.

It must never be imported by the engine, never touch a store that it did not make, and never give a figure without
saying whether it is page-cache speed or durable speed. What the words mean is in docs/performance.md.
"""
