"""Four ranks that step together: ``gang_of_steps.py well|hang|slow|once``.

Rank 2 is the one that hangs or is slow; ``once``: in the first attempt only, and the next one ends.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from multiprocessing.synchronize import Barrier

import airyard

RANKS = 4
ODD = 2
SECONDS = 0.02


def stuck_in_the_loader() -> None:
    time.sleep(600)


def train(rank: int, barrier: Barrier, what: str) -> None:
    os.environ["RANK"] = str(rank)
    first = os.environ["AIRYARD_ATTEMPT"] == "0"
    hangs = what == "hang" or (what == "once" and first)
    for number in range(60 if what == "once" else 100_000):
        with airyard.compute():
            if hangs and rank == ODD and number == 30:
                stuck_in_the_loader()
            time.sleep(SECONDS * (2 if what == "slow" and rank == ODD else 1))
        barrier.wait()
        airyard.step(number)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    meeting = context.Barrier(RANKS)
    ranks = [context.Process(target=train, args=(rank, meeting, sys.argv[1])) for rank in range(RANKS)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join()
