"""``airyard triage`` over the logs of 64 ranks, 1 GiB together, beside ``grep`` over the same files.

Owns: the logs and the comparison. Must not know: how triage reads. One rank has the error; the others have its effect.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.figures import Way, ratios, spread, take_turns, verdict
from benchmarks.yards import bare_environment, scratch

RANKS = 64
GUILTY = 37
LIMIT_S = 20.0
WORDS = "Error|Exception|NCCL WARN|ECC|Xid|Watchdog|out of memory|Segmentation fault"
TIMEOUT = (
    "[rank{0}]:[E1102 10:00:03.100 ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=912, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600000 milliseconds\n"
)


def write_logs(folder: Path, octets: int) -> None:
    """Write one log a rank: steps, warnings that mention errors, NCCL's lines, and an end."""
    chance = random.Random(20261202)
    for rank in range(RANKS):
        with (folder / f"rank{rank}.log").open("w") as log:
            written = step = 0
            while written < octets // RANKS:
                step += 1
                line = (
                    f"2025-03-04 10:{step // 60 % 60:02d}:{step % 60:02d},{step % 1000:03d} [rank{rank}] step {step} | "
                    f"loss {2 + chance.random():.4f} | grad_norm {chance.random():.3f} | tokens/s {step % 997}\n"
                )
                if step % 50 == 0:
                    line += f"x.py:{step % 90}: UserWarning: Failed to find a thing, error ignored, retry {step}\n"
                if step % 20 == 0:
                    line += f"n0:22:33 [{rank % 8}] NCCL INFO Channel 03/08 : 0 1 2 3 4 5 6 {step % 8}\n"
                written += log.write(line)
            if rank == GUILTY:
                log.write(f"[rank{rank}]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
            else:
                log.write(TIMEOUT.format(rank))


def triage_way(folder: Path) -> Way:
    """Return what judges the logs and says how many seconds that took; raises when the verdict is wrong."""

    def run() -> float:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "airyard.cli", "triage", str(folder), "-o", "json"],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=bare_environment(),
        )
        taken = time.perf_counter() - started
        found = json.loads(done.stdout)["data"]
        if (found["class"], found["first_rank"]) != ("hardware", GUILTY):
            raise RuntimeError(f"judged {found['class']} of rank {found['first_rank']}")
        return taken

    return run


def grep_way(folder: Path) -> Way:
    """Return what counts lines with some words, in one process a core, and says how many seconds that took."""
    files = [str(path) for path in sorted(folder.iterdir())]
    cores = len(os.sched_getaffinity(0))

    def run() -> float:
        started = time.perf_counter()
        subprocess.run(
            ["xargs", f"-P{cores}", "-n8", "grep", "-cE", WORDS],
            input="\n".join(files).encode(),
            check=False,
            stdout=subprocess.DEVNULL,
        )
        return time.perf_counter() - started

    return run


def main(argv: Sequence[str] = ()) -> int:
    """Print how long triage takes, its ratio to grep, and whether the limit is kept."""
    parser = argparse.ArgumentParser(prog="bench_triage", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the logs, to see that it works")
    quick = parser.parse_args(argv).quick
    octets = (64 << 20) if quick else (1 << 30)
    with scratch() as folder:
        logs = folder / "logs"
        logs.mkdir()
        write_logs(logs, octets)
        total = sum(path.stat().st_size for path in logs.iterdir())
        found = take_turns(
            {"airyard triage": triage_way(logs), "grep -cE": grep_way(logs)}, 1 if quick else 3
        )
    print(f"{RANKS} logs, {total / 1e6:,.0f} MB together")
    for name, values in found.items():
        print(f"  {name:16} {spread(values, 's', 2)}")
    ours = statistics.median(found["airyard triage"])
    print(
        f"  {total / 1e6 / ours:,.0f} MB/s; triage / grep: {ratios(found['airyard triage'], found['grep -cE'], 1)}"
    )
    if not quick:
        print(f"  {verdict(ours, LIMIT_S, ' s')}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
