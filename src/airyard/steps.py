"""Steps of a training, told by user code, so that a hang or a slow rank is found: ``airyard.step(n)``.

Owns: the file of beats of one process, and its layout, which the node's reader knows too. Must not know: anything else
of Airyard. Each attempt gets a copy of this one file in its environment, so it imports the standard library only, and
runs on Python 3.8 and newer.

Outside of Airyard, and wherever the file cannot be made, every function does nothing.

    for n, batch in enumerate(batches):
        with airyard.compute():
            loss = forward_and_backward(batch)
        all_reduce()
        airyard.step(n)

The file is shared memory of a few hundred octets: a beat is a copy, not a system call. It is one a process; a forked
child that makes steps gets its own.
"""

from __future__ import annotations

import os
import struct
import time
from contextlib import contextmanager

# Read by type checkers alone: the module typing takes longer to import than everything here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterator

MAGIC = b"AIRYSTP1"
RING = 50
"""So many step times are kept."""
HEAD = struct.Struct("<8sIiiIqqddd24s")
"""Magic, pid, rank, computing (1 or 0), signal for a stack, step, count of steps, time of the last step and of the last
change of phase (CLOCK_MONOTONIC, s), own time-out in s (0: none), section."""
SLOT = struct.Struct("<fff")
"""Seconds of a step, of its compute and of its wait; compute is below 0 where nobody told it."""
SIZE = 4 + HEAD.size + 4 + RING * SLOT.size
"""The head stands between two equal counters: where they differ, it was being written."""
_COUNTER = struct.Struct("<I")
_BODY = 4 + HEAD.size + 4

_monotonic = time.monotonic
_beats: _Beats | None = None
_looked_for = False


class _Beats:
    """The file of this process."""

    __slots__ = (
        "computed",
        "count",
        "last",
        "memory",
        "pid",
        "rank",
        "section",
        "signal",
        "tell",
        "timeout",
        "waited",
    )

    def __init__(self, memory: mmap.mmap, rank: int, signal_number: int) -> None:
        self.memory = memory
        self.pid = os.getpid()
        self.rank = rank
        self.signal = signal_number
        self.count = 0
        self.last = _monotonic()
        self.computed = -1.0
        self.waited = 0.0
        self.timeout = 0.0
        self.section = b""
        self.tell = 0

    def head(self, step: int, now: float, *, computing: int = 0) -> None:
        number = self.tell = (self.tell + 1) & 0xFFFFFFFF
        memory = self.memory
        _COUNTER.pack_into(memory, 0, number)
        HEAD.pack_into(
            memory, 4, MAGIC, self.pid, self.rank, computing, self.signal, step, self.count, self.last, now,
            self.timeout, self.section,
        )  # fmt: skip
        _COUNTER.pack_into(memory, _BODY - 4, number)

    @property
    def step(self) -> int:
        return int(HEAD.unpack_from(self.memory, 4)[5])


def step(
    number: int,
    *,
    compute_s: float | None = None,
    wait_s: float | None = None,
    timeout_s: float | None = None,
) -> None:
    """Say that step ``number`` is done. Call it on every rank, once a step.

    ``compute_s``: what of it this rank spent on its own work; ``wait_s``: waiting for others. Without them, what
    ``compute()`` measured is taken. ``timeout_s``: from now on no step for so long is a hang; 0 goes back to the limit
    that follows from the step times. Cost: about a microsecond.
    """
    beats = _beats or _open()
    if beats is None:
        return
    now = _monotonic()
    if timeout_s is not None:
        beats.timeout = timeout_s
    took, beats.last = now - beats.last, now
    computed = beats.computed if compute_s is None else compute_s
    waited = beats.waited if wait_s is None else wait_s
    if computed < 0 and wait_s is not None:
        computed = max(0.0, took - wait_s)
    # The first one lasts since the process began to tell, which is no step.
    if beats.count:
        slot = _BODY + (beats.count - 1) % RING * SLOT.size
        SLOT.pack_into(beats.memory, slot, took, computed, waited)
    beats.count += 1
    beats.computed, beats.waited = -1.0, 0.0
    beats.head(int(number), now)


@contextmanager
def compute() -> Iterator[None]:
    """Measure this rank's own work of a step: everything but collectives and other waiting for ranks.

    On a GPU work goes on when the call returned: synchronise before the end, or measure with events and pass
    ``compute_s``.
    """
    beats = _beats or _open()
    if beats is None:
        yield
        return
    begun = _monotonic()
    beats.head(beats.step, begun, computing=1)
    try:
        yield
    finally:
        now = _monotonic()
        beats.computed = max(0.0, beats.computed) + now - begun
        beats.head(beats.step, now)


@contextmanager
def section(name: str, *, timeout_s: float = 1800.0) -> Iterator[None]:
    """Say that this rank does something other than steps, as a checkpoint or an evaluation, with a limit of its own."""
    beats = _beats or _open()
    if beats is None:
        yield
        return
    outer, before = beats.section, beats.timeout
    beats.section, beats.timeout, beats.last = str(name).encode()[:24], timeout_s, _monotonic()
    beats.head(beats.step, beats.last)
    try:
        yield
    finally:
        beats.section, beats.timeout, beats.last = outer, before, _monotonic()
        beats.head(beats.step, beats.last)


def _open() -> _Beats | None:
    """Make the file of this process, once; None outside of Airyard."""
    global _beats, _looked_for
    if _looked_for:
        return _beats
    _looked_for = True
    folder = os.environ.get("AIRYARD_PROGRESS_DIR")
    if not folder:
        return None
    import mmap

    rank = _rank()
    path = os.path.join(folder, f"beats-{rank}-{os.getpid()}")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Written, not only made longer: a full disk would else end the process at a beat.
            if os.write(fd, bytes(SIZE)) != SIZE:
                return None
            memory = mmap.mmap(fd, SIZE)
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None
    beats = _Beats(memory, rank, _listen_for_stacks(path))
    beats.head(0, beats.last)
    _beats = beats
    return beats


def _rank() -> int:
    """Return the launcher's rank, or one that follows from the node's: unique as long as launchers say theirs."""
    variables = os.environ
    try:
        if "RANK" in variables:
            return int(variables["RANK"])
        per_node = int(variables.get("LOCAL_WORLD_SIZE", "1")) if "LOCAL_RANK" in variables else 1
        return int(variables.get("NODE_RANK", "0")) * per_node + int(variables.get("LOCAL_RANK", "0"))
    except ValueError:
        return 0


def _listen_for_stacks(path: str) -> int:
    """Write the Python stacks of this process to ``path``.stack at a signal; return it, 0 where that cannot be.

    A real-time signal: SIGUSR1 belongs to user code, which may be told by it to stop.
    """
    try:
        import faulthandler
        import signal

        number = int(signal.SIGRTMAX) - 3
        if signal.getsignal(number) is not signal.SIG_DFL:
            return 0
        stacks = open(f"{path}.stack", "wb", buffering=0)  # noqa: SIM115  # open for the life of the process
        faulthandler.register(number, file=stacks, all_threads=True)
    except (OSError, ValueError, AttributeError, ImportError):
        return 0
    _kept.append(stacks)
    return number


_kept: list[object] = []


def _forget() -> None:
    """A forked child is another process: it has no file until it makes a step."""
    global _beats, _looked_for
    _beats, _looked_for = None, False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
