"""The exit codes of the command, and the exit code of each exception. Imported by all other files of the folder."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from mqfast.errors import (
    BrokerError,
    ClientError,
    CorruptFile,
    InternalError,
    NoRoute,
    OffsetError,
    RemotingError,
    StorageError,
    StoreBusy,
    StoreLocked,
    UnknownName,
    UsageError,
)

__all__ = ["EXIT_CODES", "ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """Exit code of the command."""

    OK = 0
    """Done; the requested data exists."""
    DAMAGE = 1
    """Damage was found (``doctor``: a danger; ``admin``: a limit is exceeded, or two things differ)."""
    USAGE = 2
    """Wrong arguments or settings, or no store at the path."""
    STORAGE = 3
    """The operating system refused a file operation: full or failing disk, missing rights."""
    LOCKED = 4
    """Another process is writing the store, or the store cannot accept a message right now."""
    INTERNAL = 5
    """A fault of mqfast itself; please report it."""
    NOTHING_FOUND = 6
    """Nothing is damaged, and no requested topic, group, queue, broker or message exists."""
    REFUSED = 7
    """A server of a cluster answered and refused: no permission, a wrong signature, an impossible request."""
    NO_ANSWER = 8
    """A server of a cluster did not answer; ``health``: or the server reported a problem."""
    NOT_HERE = 9
    """A command of RocketMQ's mqadmin that mqfast does not have."""
    INTERRUPTED = 130
    """Ended by the user (control-C)."""


EXIT_CODES: Final = """exit codes:
  0    done
  1    damage was found (doctor: a danger; admin: a limit is exceeded, or two things differ)
  2    wrong arguments or settings, or no store at the path
  3    the operating system refused a file operation (full or failing disk, missing rights)
  4    another process is writing the store, or it is busy
  5    a fault of mqfast itself
  6    nothing was found: no topic, group, queue, broker or message of what was asked for
  7    a server refused (permission, signature, or what it cannot do)
  8    a server did not answer (health: or is not well)
  9    a command of RocketMQ's mqadmin that is not here
  130  interrupted"""
"""The exit codes as text, for the end of every help."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of an exception."""
    # StoreLocked is a UsageError and StoreBusy an OSError: the narrow kinds come first.
    if isinstance(error, (StoreLocked, StoreBusy)):
        return ExitCode.LOCKED
    if isinstance(error, CorruptFile):
        return ExitCode.DAMAGE
    if isinstance(error, (OffsetError, NoRoute, UnknownName)):
        return ExitCode.NOTHING_FOUND
    if isinstance(error, UsageError):
        return ExitCode.USAGE
    if isinstance(error, BrokerError):
        return ExitCode.REFUSED
    if isinstance(error, (ClientError, RemotingError)):
        return ExitCode.NO_ANSWER
    if isinstance(error, InternalError):
        return ExitCode.INTERNAL
    if isinstance(error, (StorageError, OSError)):
        return ExitCode.STORAGE
    return ExitCode.INTERNAL
