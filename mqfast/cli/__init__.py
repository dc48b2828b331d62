"""The command ``mqfast``: looks into stores, puts into them, checks and repairs them; and at the machine.

It must never do what the library cannot: every command is a few calls of the public interface, and what it prints.
Nothing else imports this room.
"""
