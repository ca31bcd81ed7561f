"""Many trivial runs at once on simulated nodes, beside as many bare ``bash -c`` through ``xargs -P2``.

Owns: the comparison. Must not know: the planner. From the first submit until every run has ended and its log is
complete; then every log is read back and compared.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from airyard.sdk import Client
from airyard.sdk.submission import prepare
from benchmarks.figures import ratios, spread
from benchmarks.yards import BenchYard, bare_environment, environment_cache, scratch, wait_ended, yard

RUNS = 200
NODES = 100
SUBMITTERS = 8
PARALLEL = 2
LIMIT_S = 600.0


def ours(one: BenchYard, client: Client, runs: int) -> tuple[float, float]:
    """Return runs per second, to the end of all and of the submits alone."""
    prepared = [
        prepare(one.workload(f"echo this is $AIRYARD_RUN_ID number {number}", accelerator="GPU_1xA10"))
        for number in range(runs)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        answers = list(pool.map(client.submit_prepared, prepared))
    submitted_s = time.perf_counter() - started
    ids = [int(answer["run"]["run_id"]) for answer in answers]
    client.wait(ids, timeout_s=LIMIT_S)
    documents = [wait_ended(client, run_id, LIMIT_S) for run_id in ids]
    spent_s = time.perf_counter() - started
    for number, (run_id, run) in enumerate(zip(ids, documents, strict=True)):
        check(client, run, f"this is {run_id} number {number}\n".encode())
    return runs / spent_s, runs / submitted_s


def check(client: Client, run: Any, wanted: bytes) -> None:
    """Raise RuntimeError unless the run succeeded, and its log is complete and right."""
    log = io.BytesIO()
    client.download_log(run["run_id"], log, node=0)
    if run["outcome"] != "SUCCEEDED" or run["logs_complete"] is not True or log.getvalue() != wanted:
        raise RuntimeError(
            f"run {run['run_id']}: {run['outcome']}, {run['failure']}, {log.getvalue()[:200]!r}"
        )


def bare(folder: Path, runs: int) -> float:
    """Return processes per second of bare bash, each with a log file of its own."""
    numbers = "\n".join(map(str, range(runs)))
    command = ["xargs", f"-P{PARALLEL}", "-I{}", "bash", "-c", "echo this is {} > log-{}"]
    started = time.perf_counter()
    subprocess.run(command, input=numbers, text=True, check=True, cwd=folder, env=bare_environment())
    return runs / (time.perf_counter() - started)


def main(argv: Sequence[str] = ()) -> int:
    """Print runs per second of both ways, with tracking off and on, and the ratio."""
    parser = argparse.ArgumentParser(prog="bench_throughput", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="20 runs on 10 nodes, to see that it works")
    quick = parser.parse_args(argv).quick
    runs, nodes, rounds = (20, 10, 1) if quick else (RUNS, NODES, 3)
    print(
        f"{runs} runs at once, {nodes} simulated nodes, {os.cpu_count()} cores, {SUBMITTERS} submitting threads"
    )
    with scratch() as folder:
        for name, tracking in (("off", "off"), ("on", "embedded")):
            home = folder / f"tracking-{name}"
            up = ("--simulate", f"GPU_1xA10={nodes}")
            with yard(home, cache=environment_cache(folder), tracking=tracking, up=up) as one:
                one.warm()
                with one.client() as client:
                    pairs = [(ours(one, client, runs), bare(folder, runs)) for _ in range(rounds)]
            rates = [both for (both, _), _ in pairs]
            peers = [peer for _, peer in pairs]
            print(f"tracking {name}")
            print(f"  airyard, submit to end of logs {spread(rates, 'runs/s', 1)}")
            print(f"  airyard, submits alone         {spread([one for (_, one), _ in pairs], 'runs/s', 1)}")
            print(f"  bash -c by xargs -P{PARALLEL}           {spread(peers, 'runs/s', 1)}")
            print(f"  airyard / bash: {ratios(rates, peers, 4)}; all succeeded, all logs complete and right")
    return 0
