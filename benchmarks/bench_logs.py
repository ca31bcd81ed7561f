"""A member printing at full speed: MB/s through to the server's disk, beside ``cat`` into a file that is then synced.

Owns: the comparison. Must not know: how records travel. The clock runs from the command's start until the server calls
the log complete; every octet is then read back and its hash compared with that of what was printed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO, cast

from airyard.sdk import Client
from airyard.sdk.submission import prepare
from benchmarks import log_source
from benchmarks.figures import ratios, spread
from benchmarks.yards import BenchYard, bare_environment, environment_cache, scratch, wait_ended, yard

MIB = 1024
QUICK_MIB = 32
ROUNDS = 3
LIMIT_S = 900.0


class Hashing:
    """A sink that keeps a hash and a size only."""

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        """Take some octets."""
        self.hash.update(data)
        self.size += len(data)
        return len(data)


def generator(mib: int) -> str:
    """Return the command that prints; the interpreter starts without site packages."""
    return shlex.join([sys.executable, "-I", "-S", str(Path(log_source.__file__).resolve()), str(mib)])


def through_pipe(mib: int, sink: str) -> float:
    """Return MB/s of the generator into a shell command."""
    started = time.perf_counter()
    subprocess.run(["bash", "-c", f"{generator(mib)} | {sink}"], check=True, env=bare_environment())
    return mib * log_source.BLOCK_BYTES / 1e6 / (time.perf_counter() - started)


def through_airyard(one: BenchYard, client: Client, mib: int, wanted: str) -> tuple[float, float]:
    """Return MB/s from the command's start to the complete log, and MB/s of reading it back."""
    prepared = prepare(one.workload(generator(mib)))
    run_id = client.submit_prepared(prepared)["run"]["run_id"]
    run = wait_ended(client, run_id, LIMIT_S)
    ended_s = time.time()
    if run["outcome"] != "SUCCEEDED" or run["logs_complete"] is not True:
        raise RuntimeError(f"run {run_id}: {run['outcome']}, logs complete: {run['logs_complete']}")
    started_s = datetime.fromisoformat(run["attempts"][-1]["started_at"]).timestamp()
    sink = Hashing()
    began = time.perf_counter()
    client.download_log(run_id, cast(BinaryIO, sink), node=0)
    read_s = time.perf_counter() - began
    if sink.hash.hexdigest() != wanted:
        raise RuntimeError(f"run {run_id}: the log of {sink.size} octets is not what was printed")
    client.delete(run_id)
    return sink.size / 1e6 / (ended_s - started_s), sink.size / 1e6 / read_s


def main(argv: Sequence[str] = ()) -> int:
    """Print MB/s of the generator alone, into a synced file, and through Airyard; hashes must be equal."""
    parser = argparse.ArgumentParser(prog="bench_logs", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_MIB} MiB once, to see that it works")
    parser.add_argument("--mib", type=int, help=f"how much is printed ({MIB})")
    given = parser.parse_args(argv)
    mib = given.mib or (QUICK_MIB if given.quick else MIB)
    wanted = hashlib.sha256()
    for block in log_source.blocks(mib):
        wanted.update(block)
    print(f"{mib} MiB of 128-byte lines, {os.cpu_count()} cores")
    alone: list[float] = []
    synced: list[float] = []
    ours: list[float] = []
    read: list[float] = []
    with scratch() as folder, yard(folder / "home", cache=environment_cache(folder)) as one:
        one.warm()
        file = folder / "peer.log"
        with one.client() as client:
            for _ in range(1 if given.quick else ROUNDS):
                alone.append(through_pipe(mib, "cat > /dev/null"))
                synced.append(through_pipe(mib, f"dd of={file} bs=1M conv=fsync status=none"))
                file.unlink()
                rate, back = through_airyard(one, client, mib, wanted.hexdigest())
                ours.append(rate)
                read.append(back)
    print(f"  generator | cat > /dev/null     {spread(alone, 'MB/s')}")
    print(f"  generator | dd conv=fsync       {spread(synced, 'MB/s')}")
    print(f"  airyard, to the complete log    {spread(ours, 'MB/s')}")
    print(f"  airyard, reading the log back   {spread(read, 'MB/s')}")
    print(f"  airyard / dd conv=fsync: {ratios(ours, synced, 3)}; hash equal every time")
    return 0
