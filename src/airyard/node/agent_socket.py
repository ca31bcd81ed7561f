"""The agent's UNIX socket and its line protocol: JSON objects, one a line.

Owns: binding at any path length, connections with their buffers, one selector for everything the agent waits for.
Must not know: what the operations do.
"""

from __future__ import annotations

import json
import os
import selectors
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

MAX_LINE_BYTES = 16 * 1024 * 1024
_READ_BYTES = 256 * 1024


def bind_unix(path: Path) -> socket.socket:
    """Listen at ``path``, replacing what a dead process left there; mode 0600. Raises: OSError.

    The kernel takes 107 bytes of path at most, so the bind goes through ``/proc/self/fd``.
    """
    path.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
        os.chmod(path, 0o600)
        listener.listen(16)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    listener.setblocking(False)
    return listener


class Connection:
    """One client; reads whole lines, and writes without ever blocking the agent."""

    def __init__(self, hub: Hub, stream: socket.socket) -> None:
        self._hub = hub
        self._stream = stream
        self._incoming = bytearray()
        self._outgoing = bytearray()
        self.said_hello = False
        self.takes_health = False
        stream.setblocking(False)
        hub.watch(stream.fileno(), self._on_readable)

    def send(self, value: dict[str, Any]) -> None:
        """Send one object; to a client that is gone, nothing."""
        self._outgoing += json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._flush()

    @property
    def is_open(self) -> bool:
        """False once it was cut, from either side. Any thread."""
        return self._stream.fileno() >= 0

    def close(self) -> None:
        """Cut the connection."""
        if self._stream.fileno() >= 0:
            self._hub.unwatch(self._stream.fileno())
            self._stream.close()
            self._hub.closed(self)

    def _on_readable(self) -> None:
        self._flush()
        if self._stream.fileno() < 0:
            return
        try:
            data = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or len(self._incoming) > MAX_LINE_BYTES:
            self.close()
            return
        self._incoming += data
        while (end := self._incoming.find(b"\n")) >= 0:
            line = bytes(self._incoming[:end])
            del self._incoming[: end + 1]
            self._hub.received(self, line)

    def _flush(self) -> None:
        if self._stream.fileno() < 0:
            return
        try:
            while self._outgoing:
                sent = self._stream.send(self._outgoing)
                del self._outgoing[:sent]
        except BlockingIOError:
            if len(self._outgoing) > MAX_LINE_BYTES:
                self.close()  # it does not read; it will say hello again
                return
        except OSError:
            self.close()
            return
        self._hub.want_write(self._stream.fileno(), bool(self._outgoing))


class Hub:
    """One selector over the listener, its clients, and whatever else has a descriptor."""

    def __init__(self, listener: socket.socket, on_line: Callable[[Connection, bytes], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._listener = listener
        self._on_line = on_line
        self.connections: list[Connection] = []
        self.watch(listener.fileno(), self._accept)

    def watch(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` whenever ``fd`` is readable."""
        self._selector.register(fd, selectors.EVENT_READ, callback)

    def unwatch(self, fd: int) -> None:
        """Forget ``fd``."""
        self._selector.unregister(fd)

    def want_write(self, fd: int, wanted: bool) -> None:
        """Also call the callback when ``fd`` is writable, or no more."""
        key = self._selector.get_key(fd)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self._selector.modify(fd, events, key.data)

    def received(self, connection: Connection, line: bytes) -> None:
        """Hand a line on."""
        self._on_line(connection, line)

    def closed(self, connection: Connection) -> None:
        """Forget a client."""
        self.connections.remove(connection)

    def broadcast(self, value: dict[str, Any]) -> None:
        """Send to every client that has said hello."""
        for connection in list(self.connections):
            if connection.said_hello:
                connection.send(value)

    def wait(self, timeout_s: float) -> None:
        """Serve what is ready, after at most ``timeout_s``."""
        for key, _ in self._selector.select(timeout_s):
            if key.fd in self._selector.get_map():
                key.data()

    def close(self) -> None:
        """Close everything."""
        for connection in list(self.connections):
            connection.close()
        self._listener.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            stream, _ = self._listener.accept()
        except OSError:
            return
        self.connections.append(Connection(self, stream))
