"""The timing wheel: messages that are delivered at a time set by their producer.

Reading order: ``settings.py``; ``accept.py`` the decision about a sent message; ``service.py`` from the timer's queue
into wheel and timer log, and back to their topics when they are due; ``slot.py`` one due slot; ``wheel.pyx`` and
``timer_log.pyx`` the files; ``flush.py``, ``checkpoint.py``, ``metrics.py``, ``recovery.py``.

Depends on the store only. Source: RocketMQ's TimerMessageStore. Format: ``mqfast/store/FORMAT.md``.
"""
