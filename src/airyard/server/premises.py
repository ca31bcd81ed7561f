"""The server's data folder: one server at a time, a stable port, a token, keys.

Owns: the lock, port choice, token and key files, ``endpoint.json``. Must not know: what is served.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import stat
from pathlib import Path
from typing import Any

from airyard.core.errors import Conflict, Fix, Unavailable, UserError

KEY_BYTES = 32
TOKEN_CHARACTERS = 16


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file durably: temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    try:
        os.write(descriptor, data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class Premises:
    """The folder ``<home>/server`` and what makes it this server's alone. Held until the process ends.

    With ``shared`` the tokens, keys and all else that outlives a take-over lie in ``<shared>/server`` (``data``);
    ``folder`` then holds only what is this one server's: its lock, ports and address.
    """

    def __init__(self, home: Path, shared: Path | None = None) -> None:
        self.home = home
        self.folder = home / "server"
        self.shared = shared
        self.data = (shared or home) / "server"
        self._lock: int | None = None
        self._shared_lock: int | None = None

    def open(self) -> None:
        """Make the folders (0700) and take the lock. Raises: Conflict naming the server that has it; UserError."""
        try:
            self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
            if stat.S_IMODE(self.folder.stat().st_mode) & 0o077:
                self.folder.chmod(0o700)  # the token and the keys lie here
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(
                f"the data folder {self.home} cannot be used: {error.strerror}",
                code="BAD_HOME",
                fix="set AIRYARD_HOME to a folder that you own",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise Conflict(
                f"another server has the data folder {self.home}: {_describe(holder)}",
                code="ALREADY_SERVED",
                fix=Fix(
                    text=f"use that server, or stop it first{_by_signal(holder)}",
                    command=f"airyard --home {self.home} down",
                ),
            ) from None
        self._lock = descriptor
        if self.shared is not None:
            self._open_shared(self.shared)

    def _open_shared(self, shared: Path) -> None:
        """Join the servers of a shared folder: they hold its lock together, a server without a standby holds it alone.

        Raises: UserError for one that cannot be used; Conflict while a server has it for itself.
        """
        if shared.resolve() == self.home.resolve():
            raise UserError(
                f"[standby] shared is {shared}, the server's own data folder",
                code="BAD_HOME",
                fix="give each server a --home of its own, on its machine, beside the shared folder",
            )
        try:
            self.data.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self.data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UserError(
                f"the shared data folder {shared} cannot be used: {error.strerror}",
                code="BAD_HOME",
                fix="[standby] shared names a folder that all servers can write, as the same user",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 4096, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise Conflict(
                f"a server without a standby has the shared data folder {shared}: {_describe(holder)}",
                code="ALREADY_SERVED",
                fix=Fix(text=f"stop it first{_by_signal(holder)}", command=f"airyard --home {shared} down"),
            ) from None
        self._shared_lock = descriptor
        # The command line of this machine finds server and token by the server's own folder.
        write_atomically(self.folder / "token", self.token().encode())

    def close(self) -> None:
        """Give the lock up; a server keeps it until its process ends."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self._shared_lock is not None:
            os.close(self._shared_lock)
            self._shared_lock = None

    def is_gone(self) -> bool:
        """Return whether the folder was removed or replaced under this server: its lock is no longer the one held."""
        assert self._lock is not None
        try:
            return not os.path.samestat(os.fstat(self._lock), os.stat(self.folder / "lock"))
        except OSError:
            return True

    def note_holder(self, started_ms: int, host: str, port: int) -> None:
        """Write into the lock file who holds it."""
        assert self._lock is not None
        text = json.dumps({"pid": os.getpid(), "started_ms": started_ms, "host": host, "port": port})
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, text.encode(), 0)

    def token(self) -> str:
        """Return the owner's token, made at the first call. Raises: UserError for one that can be guessed.

        An empty file, which a crash of the machine may leave, is no token: it would let in who sends none.
        """
        token = self._kept("token", f"ayt_{secrets.token_urlsafe(32)}".encode()).decode().strip()
        if len(token) < TOKEN_CHARACTERS:
            raise UserError(
                f"the token in {self.data / 'token'} has {len(token)} characters; "
                f"it must have at least {TOKEN_CHARACTERS}",
                code="WEAK_TOKEN",
                fix="remove that file: the next start makes a new token",
            )
        return token

    def attempt_key(self) -> bytes:
        """Return the key under which attempt tokens are made; a damaged one is replaced."""
        return self._kept("attempt.key", secrets.token_bytes(KEY_BYTES), least_bytes=KEY_BYTES)

    def server_id(self) -> str:
        """Return what this server is called among those of a shared folder; it stays."""
        fresh = f"{socket.gethostname()}-{secrets.token_hex(4)}"
        return self._kept("server.id", fresh.encode(), folder=self.folder).decode().strip()

    def yard_id(self) -> str:
        """Return a short name of this yard that stays: it keeps keys on a shared tracking store apart."""
        return self._kept("yard.id", f"yard-{secrets.token_hex(4)}".encode()).decode().strip()

    def _kept(self, name: str, fresh: bytes, *, least_bytes: int = 1, folder: Path | None = None) -> bytes:
        """Return what a file (0600) holds; write ``fresh`` into one that is missing, or holds less than it must."""
        path = (folder or self.data) / name
        if self.shared is None:
            return self._read_or_make(path, fresh, least_bytes)
        with (self.data / "keys.lock").open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)  # of two servers that start at once, one makes it
            return self._read_or_make(path, fresh, least_bytes)

    def _read_or_make(self, path: Path, fresh: bytes, least_bytes: int) -> bytes:
        try:
            found = path.read_bytes()
        except FileNotFoundError:
            found = b""
        if len(found.strip() if least_bytes == 1 else found) < least_bytes:
            found = fresh
            write_atomically(path, found)
        elif stat.S_IMODE(path.stat().st_mode) & 0o077:
            path.chmod(0o600)  # it was copied or restored without its mode
        return found

    def listen(self, host: str, port: int | None, *, name: str = "http") -> socket.socket:
        """Bind the configured port, else the one chosen before, else a free one that is then kept as ``name``.

        Raises: Unavailable (``PORT_TAKEN``) naming the port and, where it can be found, its holder;
        UserError for a host that is not this machine's.
        """
        kept = self._kept_ports().get(name)
        wanted = port or kept or 0
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # Named, because asyncio sets TCP_NODELAY only on sockets that say they are TCP: else answers wait 40 ms.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, wanted))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise UserError(
                    f"the server cannot listen on {host!r}: {error.strerror}",
                    code="BAD_HOST",
                    fix="set [server] host to an address of this machine; 127.0.0.1 serves this machine alone",
                ) from error
            raise Unavailable(
                f"port {wanted} of {host} cannot be bound: {error.strerror}{_holder_of(wanted)}",
                code="PORT_TAKEN",
                fix=f"end what uses it, or remove {self.folder / 'ports.json'} to choose another port",
            ) from error
        listener.listen(1024)
        listener.setblocking(False)
        if port is None and kept is None:
            chosen = {**self._kept_ports(), name: listener.getsockname()[1]}
            write_atomically(self.folder / "ports.json", json.dumps(chosen).encode())
        return listener

    def _kept_ports(self) -> dict[str, int]:
        try:
            found = json.loads((self.folder / "ports.json").read_text())
            return {str(name): int(port) for name, port in found.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}

    def announce(self, endpoint: dict[str, Any]) -> None:
        """Write ``endpoint.json``: from now on clients find the server."""
        write_atomically(self.folder / "endpoint.json", json.dumps(endpoint).encode())

    def withdraw(self) -> None:
        """Remove ``endpoint.json`` at a clean stop."""
        (self.folder / "endpoint.json").unlink(missing_ok=True)

    def forget_arguments(self) -> None:
        """Forget with what this server was started: nothing is live that the next one must have the same for."""
        (self.folder / "arguments.json").unlink(missing_ok=True)


def _describe(holder: str) -> str:
    try:
        data = json.loads(holder)
        return f"pid {data['pid']} at http://{data['host']}:{data['port']}"
    except (ValueError, KeyError, TypeError):
        return "it is just starting"


def _by_signal(holder: str) -> str:
    """Return the way that needs neither token nor ``endpoint.json``."""
    try:
        return f"; where `down` does not find it, `kill {int(json.loads(holder)['pid'])}` ends it, runs go on"
    except (ValueError, KeyError, TypeError):
        return ""


def _holder_of(port: int) -> str:
    """Return `` (held by pid N, NAME)`` when that can be seen, else nothing."""
    import psutil

    try:
        for connection in psutil.net_connections("tcp"):
            if connection.laddr and connection.laddr.port == port and connection.status == "LISTEN":
                if connection.pid is None:
                    return ""
                return f" (held by pid {connection.pid}, {psutil.Process(connection.pid).name()})"
    except psutil.Error:
        pass
    return ""
