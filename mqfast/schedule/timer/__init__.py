"""The timing wheel: messages that are delivered at a time that their producer names.

Reading order: ``settings.py``; ``accept.py`` what becomes of a message that is sent; ``service.py`` from the timer's
queue into wheel and timer log, and back to their topics when they are due; ``slot.py`` one due slot; ``wheel.pyx``
and ``timer_log.pyx`` the files; ``flush.py``, ``checkpoint.py``, ``metrics.py``, ``recovery.py``.

This room knows the store only. Source: RocketMQ's TimerMessageStore. Format: ``mqfast/store/FORMAT.md``.
"""
