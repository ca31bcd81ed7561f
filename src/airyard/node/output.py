"""Reads a command's output as it comes, masks it, stores it, and notices the command's end.

Owns: the pipes' reading ends, one masker a stream, the end of stderr kept as evidence, reaping.
Must not know: the server, the stop rules, what the command is.

The end of the shell that a stop's signal killed is no end yet: what it was waiting for in the foreground got the same
signal, and has the rest of its grace to save and leave. So it is told once the process group is empty.

The reading never waits for the network. A process that escaped and still holds a pipe cannot delay the end:
after ``finish`` what is in the pipes is read, and no more.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable, Iterable

from airyard.core.log_frames import LogStream
from airyard.node.masking import Masker
from airyard.node.spool import LogSpool

READ_BYTES = 64 * 1024
_PIPE_BYTES = 1024 * 1024
_TAIL_BYTES = 64 * 1024
_REAP_EVERY_S = 1.0
_LOOK_EVERY_S = 0.05


class OutputPump:
    """One thread between a command's pipes and the spool; tells its end by ``on_exit(code, signal)``."""

    def __init__(
        self,
        *,
        pid: int,
        stdout: int,
        stderr: int,
        secrets: Iterable[bytes],
        spool: LogSpool,
        now_ns: Callable[[], int],
        on_exit: Callable[[int | None, int | None], None],
        has_grace: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take over the descriptors of the reading ends, and the duty to reap ``pid``, which leads its process group.

        While ``has_grace()`` is true, death by a signal is told only when the group is empty.
        """
        self._pid = pid
        self._spool = spool
        self._now_ns = now_ns
        self._on_exit = on_exit
        self._has_grace = has_grace
        self._ending: tuple[int | None, int | None] | None = None
        """How the command ended, until that is told."""
        self._selector = selectors.DefaultSelector()
        self._streams = {stdout: LogStream.STDOUT, stderr: LogStream.STDERR}
        known = tuple(secrets)
        self._maskers = {stream: Masker(known) for stream in self._streams.values()}
        for fd in self._streams:
            os.set_blocking(fd, False)
            _widen(fd)
            self._selector.register(fd, selectors.EVENT_READ)
        self._pidfd = os.pidfd_open(pid)
        self._selector.register(self._pidfd, selectors.EVENT_READ)
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._read_bytes = 0
        self._finishing = False
        self._exited = False
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._thread = threading.Thread(target=self._run, name="output", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def finish(self) -> str:
        """Read what is in the pipes, release what the maskers hold back, end; return the end of stderr.

        Call it when the tree is gone.
        """
        # In this order: once the flag is up, the thread may close the pipe.
        os.write(self._wake_write, b"x")
        self._finishing = True
        self._thread.join()
        return b"".join(self._tail)[-_TAIL_BYTES:].decode("utf-8", "replace")

    def _run(self) -> None:
        while not self._finishing:
            for key, _ in self._selector.select(_LOOK_EVERY_S if self._ending else _REAP_EVERY_S):
                fd = key.fd
                if fd in self._streams:
                    self._read(fd)
                elif fd == self._pidfd:
                    self._reap_main()
            if self._exited:
                reap_orphans()
                self._tell_end()
        for fd in list(self._streams):
            self._drain(fd)
        if not self._exited:
            self._reap_main()
        self._close()

    def _read(self, fd: int) -> bool:
        """Store one read; False when nothing is there, now or ever. Closes the pipe at its end."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        self._read_bytes += len(data)
        stream = self._streams[fd]
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            del self._streams[fd]
            self._store(stream, self._maskers[stream].flush())
            return False
        self._store(stream, self._maskers[stream].feed(data))
        return True

    def _drain(self, fd: int) -> None:
        """Read what the pipe holds now; a stranger that goes on writing is not waited for."""
        left = _readable_bytes(fd)
        before = self._read_bytes
        while self._read(fd) and self._read_bytes - before < left:
            pass

    def _store(self, stream: LogStream, data: bytes) -> None:
        if not data:
            return
        self._spool.append(stream, data, self._now_ns())
        if stream is LogStream.STDERR:
            self._tail.append(data)
            self._tail_bytes += len(data)
            while self._tail_bytes - len(self._tail[0]) >= _TAIL_BYTES:
                self._tail_bytes -= len(self._tail.popleft())

    def _reap_main(self) -> None:
        """Collect the command's exit status, once."""
        if self._pidfd < 0:
            return
        self._selector.unregister(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1
        _, status = os.waitpid(self._pid, 0)
        self._exited = True
        if os.WIFSIGNALED(status):
            self._ending = (None, os.WTERMSIG(status))
        else:
            self._ending = (os.WEXITSTATUS(status), None)
        self._tell_end()

    def _tell_end(self) -> None:
        """Tell how the command ended, once, unless others of its group still have their grace."""
        if self._ending is None:
            return
        code, number = self._ending
        if number is not None and self._has_grace() and _group_is_alive(self._pid):
            return
        self._ending = None
        self._on_exit(code, number)

    def _close(self) -> None:
        for fd, stream in list(self._streams.items()):
            os.close(fd)
            self._store(stream, self._maskers[stream].flush())
        self._selector.close()
        os.close(self._wake_read)
        os.close(self._wake_write)


def reap_orphans() -> None:
    """Collect dead processes that this process inherited as their subreaper.

    Only for when no other thread waits for a child of its own.
    """
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return


def _group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # somebody of another user is in it
    return True


def _readable_bytes(fd: int) -> int:
    (count,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"\0\0\0\0"))
    return int(count)


def _widen(fd: int) -> None:
    """Ask for a bigger pipe, so that a fast writer and this reader switch less often."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
    except OSError:
        pass  # beyond the user's share of pipe memory; the default works too
