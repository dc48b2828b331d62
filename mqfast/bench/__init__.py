"""Measurements of mqfast on this machine: ``python -m mqfast.bench`` and ``mqfast bench store``.

The engine does not import this folder, and only stores of the measurement are used. Every figure says whether it is
page-cache speed or durable speed. Definitions: docs/performance.md.
"""
