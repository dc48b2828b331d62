"""Delayed messages of a broker: delay levels, timers, recalls."""
