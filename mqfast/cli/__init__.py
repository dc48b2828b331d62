"""The command ``mqfast``: queries, changes, checks and repairs of stores; servers; checks of the machine.

Every command is a few calls of the public interface with printed results. No other folder imports this one.
"""
