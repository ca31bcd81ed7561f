"""Work that may never come back, each piece in a process of its own: a file server that is dead never answers.

Owns: starting, deadlines, what becomes of those that do not answer. Must not know: what is done there.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from airyard.checks.children import die_with_parent

_KILL_S = 0.5
_CHUNK = 1 << 16
Answer = TypeVar("Answer")


def each(works: Sequence[Callable[[], Answer]], wait_s: float) -> list[Answer | None]:
    """Do all at once and return what each gave; None for what was not done within ``wait_s``, or died.

    Those are killed. One that waits in the kernel hears it once it is out of there, and nobody waits for that.
    Raises: RuntimeError where a piece of work raised.
    """
    until = time.monotonic() + wait_s
    answers: list[Answer | None] = [None] * len(works)
    said = [b""] * len(works)
    pids: set[int] = set()
    with selectors.DefaultSelector() as selector:
        try:
            for place, work in enumerate(works):
                pid, reading = _start(work)
                pids.add(pid)
                selector.register(reading, selectors.EVENT_READ, place)
            while selector.get_map() and (left := until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    part = os.read(key.fd, _CHUNK)
                    said[key.data] += part
                    if not part:
                        selector.unregister(key.fd)
                        os.close(key.fd)
                        answers[key.data] = _answer(said[key.data])
        finally:
            for key in list(selector.get_map().values()):
                os.close(key.fd)
            _end(pids)
    return answers


def _start(work: Callable[[], object]) -> tuple[int, int]:
    """Start one piece; what it gives comes by a pipe that ends with it."""
    reading, writing = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    try:
        die_with_parent(parent)
        try:
            told = pickle.dumps((True, work()))
        except Exception as error:  # whatever it is, the parent has to hear of it
            told = pickle.dumps((False, f"{type(error).__name__}: {error}"))
        with open(writing, "wb") as pipe:
            pipe.write(told)
    finally:
        os._exit(0)


def _answer(said: bytes) -> Answer | None:
    if not said:
        return None
    try:
        done, value = pickle.loads(said)
    except (EOFError, pickle.UnpicklingError):  # it died while it spoke
        return None
    if not done:
        raise RuntimeError(value)
    answer: Answer = value
    return answer


def _end(pids: set[int]) -> None:
    """Kill what is left, and wait for it only as long as a process takes that can be killed."""
    until = time.monotonic() + _KILL_S
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    left = set(pids)
    while left and time.monotonic() < until:
        left = {pid for pid in left if not _is_over(pid)}
        if left:
            time.sleep(0.01)


def _is_over(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
