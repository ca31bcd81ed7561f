"""How soon a rank that hangs is named: gangs of four members that step together, one of which stops in one of two ways.

Owns: the program of the ranks, and the time from the stop to the server's verdict. Must not know: the rules of hangs.
The rule's own wait (60 s without a step) is in the figures; the limits beside them are the aim of three minutes and the
ten minutes after which torch's watchdog gives up by default.
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airyard.sdk import Client
from benchmarks.figures import spread, verdict
from benchmarks.yards import BenchYard, scratch, yard

RANKS = 4
ODD = 2
MOST_S = 180.0
WATCHDOG_S = 600.0
WAYS = ("sleeps", "stopped")
"""In a data loader, where Python can still be asked for its stack; and by SIGSTOP, where nothing can."""
_GIVE_UP_S = 400.0

RANK = """
import os, signal, sys, time
from pathlib import Path
import airyard

folder, way, odd, world = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
rank = int(os.environ["NODE_RANK"])
os.environ["RANK"] = str(rank)

def wait_for_all(number):
    (folder / f"{rank}").write_text(str(number))
    for other in range(world):
        while True:
            try:
                if int((folder / f"{other}").read_text() or -1) >= number:
                    break
            except (OSError, ValueError):
                pass
            time.sleep(0.005)

for number in range(100_000):
    with airyard.compute():
        time.sleep(0.05)
        if rank == odd and number == 60:
            (folder / "stopped").write_text(str(time.time()))
            if way == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(3600)
    wait_for_all(number)
    airyard.step(number)
"""


@dataclass(slots=True, kw_only=True)
class Gang:
    """One run and what was seen of it."""

    way: str
    run_id: int
    folder: Path
    named: list[int] = field(default_factory=list)
    case: str = ""
    after_s: float | None = None


def submit(one: BenchYard, way: str, number: int) -> Gang:
    """Start one gang."""
    folder = one.home / f"meet-{way}-{number}"
    folder.mkdir()
    program = one.home / "rank.py"
    program.write_text(RANK)
    command = shlex.join(["python", str(program), str(folder), way, str(ODD), str(RANKS)])
    file = one.workload(command, accelerator="GPU_1xA10", nodes=RANKS)
    told = json.loads(one.call("run", str(file), "-o", "json"))
    return Gang(way=way, run_id=int(told["data"]["run_id"]), folder=folder)


def look(client: Client, gang: Gang) -> None:
    """Take the verdict in once it is there."""
    run: dict[str, Any] = client.get(gang.run_id)
    stall = run["attempts"][0].get("stall")
    if run["outcome"] is not None:
        raise RuntimeError(f"run {gang.run_id} ended: {run['outcome']}")
    if stall and stall["ranks"]:
        gang.after_s = time.time() - float((gang.folder / "stopped").read_text())
        gang.named, gang.case = list(stall["ranks"]), str(stall["case"])


def measured(folder: Path, gangs_each: int) -> list[Gang]:
    """Let all gangs hang at once, on simulated nodes, and wait for the verdicts."""
    count = gangs_each * len(WAYS) * RANKS
    with yard(folder / "yard", up=("--simulate", f"GPU_1xA10={count}")) as one, one.client() as client:
        gangs = [submit(one, way, number) for number in range(gangs_each) for way in WAYS]
        until = time.monotonic() + _GIVE_UP_S
        while time.monotonic() < until and any(gang.after_s is None for gang in gangs):
            for gang in gangs:
                if gang.after_s is None:
                    look(client, gang)
            time.sleep(0.2)
        for gang in gangs:
            client.cancel(gang.run_id)
    return gangs


def main(arguments: Sequence[str]) -> int:
    """Measure and print; 1 when a rank was not named, a wrong one was, or it took too long."""
    parser = argparse.ArgumentParser(prog="bench_hang", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one gang of each kind")
    options = parser.parse_args(arguments)
    with scratch() as folder:
        gangs = measured(folder, 1 if options.quick else 4)
    good = True
    for way in WAYS:
        mine = [gang for gang in gangs if gang.way == way]
        times = [gang.after_s for gang in mine if gang.after_s is not None]
        right = sum(gang.named == [ODD] for gang in mine)
        print(
            f"rank {way}: {right} of {len(mine)} named rightly ({', '.join(sorted({g.case for g in mine}))})"
        )
        good = good and right == len(mine)
        if times:
            print(f"  from the stop to the verdict: {spread(times, 's', 1)}")
            print(f"  slowest {verdict(max(times), MOST_S, ' s', digits=1)}")
            print(f"  of the {WATCHDOG_S:.0f} s of torch's watchdog: {max(times) / WATCHDOG_S:.2f}")
            good = good and max(times) <= MOST_S
    return 0 if good else 1
