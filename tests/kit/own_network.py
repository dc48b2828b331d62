"""A network of its own for a process: every port of its 127.0.0.1 is free, so that printed addresses can be used.

Room: tests. It must never change the network of the machine.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
import sys

_NEW_USER, _NEW_NETWORK = 0x1000_0000, 0x4000_0000
_SET_FLAGS, _UP = 0x8914, 0x41  # SIOCSIFFLAGS; IFF_UP | IFF_RUNNING


def enter() -> bool:
    """Give this process and its children a network with nothing but a loopback. Returns: was it allowed?"""
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEW_NETWORK if os.geteuid() == 0 else _NEW_NETWORK | _NEW_USER) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, _SET_FLAGS, struct.pack("16sH14x", b"lo", _UP))
    return True
