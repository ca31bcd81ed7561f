"""Searches lines in a process of its own: Python's ``re`` can take for ever, keeps the interpreter's lock and cannot
be stopped, so that an expression like ``(a+)+$`` would freeze the whole server.

Owns: that process, how long it may take. Must not know: logs, HTTP.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from airyard.core.errors import Fix, UserError

PATIENCE_S = 2.0
"""For one call: some hundred KiB of lines, which an expression without nested repeats searches in milliseconds."""
_START_S = 10.0
_SEARCHER = """
import json, re, sys
find = re.compile(json.loads(sys.stdin.buffer.readline())).search
sys.stdout.buffer.write(b"\\n")
sys.stdout.buffer.flush()
for line in sys.stdin.buffer:
    sys.stdout.buffer.write(b"".join([b"0" if find(text) is None else b"1" for text in json.loads(line)]) + b"\\n")
    sys.stdout.buffer.flush()
"""


class ProcessLineSearch:
    """An expression of Python's ``re``, searched by a child process that is killed when it takes too long.

    Raises: UserError (``BAD_PATTERN``) for what is no expression. Cost: a bare interpreter from the first search to
    ``close``.
    """

    def __init__(self, pattern: str, *, patience_s: float = PATIENCE_S) -> None:
        check_pattern(pattern)
        self._pattern = pattern
        self._patience_s = patience_s
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def found(self, texts: Sequence[str]) -> Sequence[bool]:
        """Return for each text whether the expression is found in it. Raises: UserError (``PATTERN_TOO_SLOW``)."""
        if not texts:
            return ()
        child = self._started()
        answer = self._ask(child, list(texts), self._patience_s)
        return [octet == ord("1") for octet in answer]

    def close(self) -> None:
        """End the process."""
        with self._lock:
            child, self._child, self._closed = self._child, None, True
        if child is not None:
            _end(child)

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._closed:
                raise self._too_slow()
            if self._child is not None:
                return self._child
            child = self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _SEARCHER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                env={},
            )
        assert child.stdin is not None
        assert child.stdout is not None
        os.set_blocking(child.stdin.fileno(), False)
        os.set_blocking(child.stdout.fileno(), False)
        self._ask(child, self._pattern, _START_S)
        return child

    def _ask(self, child: subprocess.Popen[bytes], question: object, patience_s: float) -> bytes:
        """Send one line and return the answer's line."""
        answer = _exchange(child, json.dumps(question).encode() + b"\n", time.monotonic() + patience_s)
        if answer is None:
            self.close()
            raise self._too_slow()
        return answer

    def _too_slow(self) -> UserError:
        return UserError(
            f"{self._pattern!r} takes over {self._patience_s:g} s on a part of the log; the search was stopped",
            code="PATTERN_TOO_SLOW",
            fix=Fix(
                text="write it without repeats within repeats, or search a copy: `logs ID --download-to DIR`"
            ),
        )


def check_pattern(pattern: str) -> None:
    """Raise UserError (``BAD_PATTERN``) unless this is a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        at = getattr(error, "pos", None)
        where = "" if at is None else f" at character {at + 1}"
        raise UserError(
            f"{pattern!r} is no regular expression: {getattr(error, 'msg', error)}{where}.",
            code="BAD_PATTERN",
            fix="Correct the expression, or put a backslash before characters that mean themselves.",
        ) from error


def _exchange(child: subprocess.Popen[bytes], question: bytes, deadline_s: float) -> bytes | None:
    """Write a line and read one, both without blocking; None when time is up or the child has ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    to_child, from_child = child.stdin.fileno(), child.stdout.fileno()
    left = memoryview(question)
    answer = b""
    while not answer.endswith(b"\n"):
        waited_s = deadline_s - time.monotonic()
        if waited_s <= 0:
            return None
        poll = select.poll()  # not select.select: a server has more than 1,024 files open
        poll.register(from_child, select.POLLIN)
        if left:
            poll.register(to_child, select.POLLOUT)
        try:
            for descriptor, _ in poll.poll(waited_s * 1000):
                if descriptor == to_child:
                    left = left[os.write(to_child, left[: 1 << 16]) :]
                    continue
                part = os.read(from_child, 1 << 16)
                if not part:
                    return None
                answer += part
        except (BlockingIOError, InterruptedError):
            continue
        except OSError:
            return None
    return answer[:-1]


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    child.wait()
