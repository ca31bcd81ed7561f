"""Messages of a child over a pipe of multiprocessing, whole or not at all by a deadline.

Owns: reading such a message without waiting for who began it and hangs. Must not know: what it says.
"""

from __future__ import annotations

import os
import time
from multiprocessing.connection import Connection

_CHUNK = 1 << 16


def received(line: Connection, until: float, most: int) -> bytes | None:
    """Return the next message; None where not all of it was there by ``until`` (of the monotonic clock).

    ``Connection.recv_bytes`` waits for the rest of a message that has begun, for ever. Raises: EOFError, OSError;
    ValueError for what is longer than ``most``, or no message.
    """
    head = _octets(line, 4, until)
    if head is None:
        return None
    size = int.from_bytes(head, "big", signed=True)
    if size == -1:  # the length of a long one comes after it
        head = _octets(line, 8, until)
        if head is None:
            return None
        size = int.from_bytes(head, "big")
    if not 0 <= size <= most:
        raise ValueError("it is too long, or no message")
    return _octets(line, size, until)


def _octets(line: Connection, count: int, until: float) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        # At the deadline what is there still counts; who writes an octet at a time keeps nobody.
        late = bool(found) and time.monotonic() >= until
        if late or not line.poll(max(0.0, until - time.monotonic())):
            return None
        part = os.read(
            line.fileno(), min(count - len(found), _CHUNK)
        )  # has something, or has ended: never waits
        if not part:
            raise EOFError
        found += part
    return bytes(found)
