"""A way to PostgreSQL that can break at the worst moment: a socket in between that passes on what both sides say.

Owns: the socket, where it cuts. Must not know: what the tests keep there.
"""

from __future__ import annotations

import select
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from urllib.parse import quote


class Cut(Enum):
    """What happens to the next COMMIT; the client's connection ends in any case."""

    LOST = "it never reaches the server"
    UNANSWERED = "the server carries it out, its answer is lost"
    LATE = "it reaches the server long after the client has given up"


class Proxy:
    """Listens in a folder as PostgreSQL would; one thread a connection."""

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.next_commit: Cut | None = None
        self.messages_left: int | None = None
        """After so many more messages from the client everything is cut, once; None: never."""
        self.refusing = False
        self.cuts = 0
        self._target = str(target / ".s.PGSQL.5432")
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, url: str) -> str:
        """Return the URL of a database by this way."""
        return f"{url.partition('?')[0]}?host={quote(str(self.folder))}"

    def close(self) -> None:
        """Take no new connections."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.refusing:
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX) as server:
            try:
                server.connect(self._target)
                while self._pass_on(client, server):
                    pass
            except OSError:
                pass

    def _pass_on(self, client: socket.socket, server: socket.socket) -> bool:
        ready, _, _ = select.select([client, server], [], [], 30)
        if server in ready:
            data = server.recv(1 << 16)
            client.sendall(data)
            return bool(data)
        data = client.recv(1 << 16) if ready else b""
        if not data or self._cut(data, client, server):
            return False
        server.sendall(data)
        return True

    def _cut(self, data: bytes, client: socket.socket, server: socket.socket) -> bool:
        if self.messages_left is not None:
            self.messages_left -= 1
            if self.messages_left < 0:
                self.messages_left = None
                self.cuts += 1
                return True
        if self.next_commit is None or b"COMMIT" not in data:
            return False
        cut, self.next_commit = self.next_commit, None
        self.cuts += 1
        if cut is Cut.LATE:
            client.close()
            time.sleep(0.5)
        if cut is not Cut.LOST:
            server.sendall(data)
            server.recv(1 << 16)
        return True


@contextmanager
def proxied(target: Path) -> Iterator[Proxy]:
    """Serve beside a PostgreSQL whose socket lies in ``target``."""
    with tempfile.TemporaryDirectory(
        prefix="airyard-cut-", dir="/tmp"
    ) as folder:  # socket paths must be short
        proxy = Proxy(Path(folder), target)
        yield proxy
        proxy.close()
