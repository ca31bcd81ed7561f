"""A training that leaves marks: who was alive when, and that nobody of an earlier attempt was alive beside it.

``python stamped_training.py FOLDER``: trains until FOLDER/go appears. Three processes a member: the training itself,
a child beside it, and one that left its session. Each writes CLOCK_BOOTTIME, which all hosts of one kernel share, into
FOLDER/stamps.ATTEMPT.MEMBER.ROLE every 20 ms, holds FOLDER/alive.ATTEMPT.MEMBER.ROLE locked for its life, and notes in
FOLDER/overlaps each process of an earlier attempt that still holds its lock. A step takes 0.2 s and ends in a
checkpoint.
"""

from __future__ import annotations

import fcntl
import glob
import os
import signal
import sys
import time

from airyard import checkpoint

BEAT_S = 0.02
BEATS_A_STEP = 10

folder = sys.argv[1]
attempt, member = int(os.environ["AIRYARD_ATTEMPT"]), os.environ["NODE_RANK"]


class Life:
    """One process that shows that it lives. The lock belongs to it alone: made after the fork."""

    def __init__(self, role: str) -> None:
        self._name = f"{attempt}.{member}.{role}"
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._stamps = os.open(f"{folder}/stamps.{self._name}", flags, 0o600)
        self._alive = os.open(f"{folder}/alive.{self._name}", flags, 0o600)
        fcntl.flock(self._alive, fcntl.LOCK_EX)

    def beat(self) -> None:
        """Leave a stamp, and look for the living of earlier attempts."""
        os.write(self._stamps, b"%d\n" % time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        for number in range(attempt):
            for path in glob.glob(f"{folder}/alive.{number}.*"):
                if is_held(path):
                    with open(f"{folder}/overlaps", "a", encoding="ascii") as file:
                        file.write(f"{self._name} beside {os.path.basename(path)}\n")
        time.sleep(BEAT_S)


def is_held(path: str) -> bool:
    """Return whether a process lives that holds this lock."""
    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def child(role: str, *, apart: bool) -> int:
    """Fork a process that beats for ever."""
    pid = os.fork()
    if pid == 0:
        if apart:
            os.setsid()
        life = Life(role)
        while True:
            life.beat()
    return pid


def train(life: Life) -> None:
    """Go on from the newest checkpoint, step by step."""
    newest = checkpoint.latest()
    step = 0 if newest is None else newest[0] + 1
    print(f"attempt {attempt} begins at step {step}", flush=True)
    while not os.path.exists(f"{folder}/go"):
        for _ in range(BEATS_A_STEP):
            life.beat()
        if member == "0":
            name = f"step-{step}"
            with open(
                os.path.join(os.environ["AIRYARD_CHECKPOINT_DIR"], name), "w", encoding="ascii"
            ) as file:
                file.write(f"{step}\n")
            checkpoint.saved(step, name)
        print(f"step {step}", flush=True)
        step += 1
    print(f"done at step {step}", flush=True)


def main() -> None:
    children = [child("beside", apart=False), child("apart", apart=True)]
    train(Life("training"))
    for pid in children:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
