"""A fleet of simulated machines on one server: what the server takes, how fast gangs start, what faults cost, logs.

Owns: what is timed, and the figures. Must not know: how the server does it, how machines are played.

Real: the server, the agents' and the runners' protocols, the log upload (``docs/operate/dev-fleet.md``). One other
process plays the machines; on a small machine it takes part of the same cores, so that times are longer than the
server's own. Each simulated host has 8 GPUs; runners hold leases of 18 s, as with a standby: each asks every 3 s, and
every machine with members sends samples every 10 s.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks.bench_memory import use_of
from benchmarks.bench_queue import percentile
from benchmarks.figures import verdict
from benchmarks.fleet_yard import FleetYard, Meter, Peak, fleet_yard, moment_s, until
from benchmarks.yards import bare_environment, scratch

HOSTS, TRIALS, GANG, GANGS, KILLED, WRITERS, LOG_MIB = 1_000, 1_500, 64, 20, 20, 8, 128
QUICK = (30, 40, 8, 3, 4, 2, 4)
MEASURED_S, SETTLE_S = 30.0, 10.0
CORES_LIMIT, MEMORY_LIMIT_MB = 1.0, 1_000.0
STARTED_LIMIT_S, AGAIN_LIMIT_S, FENCED_LIMIT_S = 1.0, 10.0, 30.0
EXCHANGES = 3
"""A member's start takes three requests at least: its orders, READY, STARTED (GO comes by the poll that waits)."""


def load_of_many(one: FleetYard, hosts: int, seconds: float) -> None:
    """Print the server's cores and memory with idle machines, and with one running member on each."""
    print(f"{hosts} machines joined in {one.joined_s:.1f} s")
    time.sleep(min(SETTLE_S, seconds))
    meter = Meter(one)
    time.sleep(seconds)
    _load("idle", one, meter)
    burst = one.submit("sleep 100000", count=hosts)
    print(f"  {hosts} submits in {burst.seconds:.1f} s, p99 {percentile(burst.ms, 0.99):.0f} ms")
    one.wait_running(burst.ids)
    time.sleep(min(SETTLE_S, seconds))
    meter = Meter(one)
    time.sleep(seconds)
    _load(f"{hosts} running members", one, meter)
    cancel(one, burst.ids)


def _load(name: str, one: FleetYard, meter: Meter) -> None:
    server, fleet = meter.end()
    memory_mb = use_of(one.server_pid).pss_mb
    print(f"  {name}: server {verdict(server, CORES_LIMIT, ' cores')}; the machines' process {fleet:.2f}")
    print(f"  {name}: server, PSS {verdict(memory_mb, MEMORY_LIMIT_MB, ' MB', digits=0)}", flush=True)


def burst_of_trials(one: FleetYard, trials: int) -> None:
    """Submit many short trials at once; every one must be accepted, run once, and have its whole log."""
    begun_s = time.time()
    with Peak(one.server_pid) as peak:
        burst = one.submit("sleep 10", count=trials, gpu="GPU_1xH100")
        until(lambda: sum(one.client.status()["counts"].values()) == 0, 600, "the end of the trials")
        ids = set(burst.ids)

        def listed() -> list[Mapping[str, Any]]:
            return [run for run in one.client.list(state="ended", limit=None) if run["run_id"] in ids]

        until(lambda: all(run["logs_complete"] for run in listed()), 120, "the logs of the trials")
        runs = listed()
    spent_s = max(moment_s(run["ended_at"]) for run in runs) - begun_s
    ends = Counter(run["outcome"] for run in runs)
    attempts = Counter(len(run["attempts"]) for run in runs)
    waits = [moment_s(run["started_at"]) - moment_s(run["submitted_at"]) for run in runs]
    print(f"{trials} trials of 10 s in one burst: {len(ids)} accepted in {burst.seconds:.1f} s", end=", ")
    print(f"{trials / burst.seconds:.0f} a second, p99 {percentile(burst.ms, 0.99):.0f} ms")
    print(
        f"  submit to started p50 {percentile(waits, 0.5):.1f} s, p95 {percentile(waits, 0.95):.1f} s",
        end="; ",
    )
    print(f"all ended after {spent_s:.1f} s")
    kept = "kept" if ends == {"SUCCEEDED": trials} and attempts == {1: trials} else "MISSED"
    print(f"  outcomes {dict(ends)}, attempts each {dict(attempts)}: none lost or doubled {kept}")
    for cause, count in Counter(_why(run) for run in runs if len(run["attempts"]) > 1).items():
        print(f"    {count} placed again: {cause}")
    print(f"  server, largest PSS {verdict(peak.mb, MEMORY_LIMIT_MB, ' MB', digits=0)}", flush=True)


def _why(run: Mapping[str, Any]) -> str:
    first = run["attempts"][0]
    return f"{first['outcome']} {first['cause']}: {(first['failure'] or {}).get('message', '')}"[:120]


def check_journal(one: FleetYard) -> None:
    """Raise RuntimeError unless replaying the journal gives what the server has."""
    found = one.client.verify()
    if found["differences"]:
        raise RuntimeError(f"the journal differs: {found['differences'][:3]}")
    print(f"  journal replayed: {found['events']} events, no difference", flush=True)


def gangs(one: FleetYard, size: int, rounds: int) -> None:
    """Print how long a gang over all hosts takes from its placement, and from its submit, until all members started."""
    placed, submitted, floors = [], [], []
    for _ in range(rounds):
        floors.append(bare_exchanges(one, size))
        (run_id,) = one.submit("sleep 1", nodes=size).ids
        until(lambda run_id=run_id: one.client.get(run_id)["state"] == "ENDED", 120, "the end of a gang")  # type: ignore[misc]  # bound at once
        (run,) = one.runs([run_id])
        started_s = moment_s(run["attempts"][0]["started_at"])
        placed.append(started_s - moment_s(run["attempts"][0]["placed_at"]))
        submitted.append(started_s - moment_s(run["submitted_at"]))
    p95 = percentile(placed, 0.95)
    print(f"{rounds} gangs of {size} hosts, one after the other")
    print(
        f"  placed to all started, p95 {verdict(p95, STARTED_LIMIT_S, ' s')}; p50 {percentile(placed, 0.5):.2f} s"
    )
    print(
        f"  submit to started p50 {percentile(submitted, 0.5):.2f} s, p95 {percentile(submitted, 0.95):.2f} s"
    )
    floor = percentile(floors, 0.5)
    ratio = percentile(placed, 0.5) / floor
    print(
        f"  {EXCHANGES} bare requests on each of {size} connections {floor:.3f} s; a start / these, p50: {ratio:.1f}"
    )


def bare_exchanges(one: FleetYard, connections: int) -> float:
    """Return the seconds that as many bare requests take as a gang's start needs, over as many connections."""
    netloc = urlsplit(one.yard_endpoint().url).netloc
    host, port = netloc.rsplit(":", 1)
    request = f"GET /api/v1/identify?nonce=0123456789abcdef HTTP/1.1\r\nHost: {netloc}\r\n\r\n".encode()

    async def exchange() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(EXCHANGES):
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length:")[2].partition("\r\n")[0]))
        writer.close()

    async def all_at_once() -> None:
        await asyncio.gather(*(exchange() for _ in range(connections)))

    begun = time.perf_counter()
    asyncio.run(all_at_once())
    return time.perf_counter() - begun


def faults(one: FleetYard, killed: int) -> None:
    """Print how soon runs are placed again whose runner, agent and runner, or machine ended."""
    with running(one, killed):
        _again("runner killed", one, one.strike("kill-runner", killed), AGAIN_LIMIT_S)
    with running(one, killed) as ids:
        struck = one.strike("kill-agent", killed)
        names = [str(event["machine"]) for event in struck]
        until(lambda: sum(e["what"] == "agent-back" for e in one.struck) >= killed, 30, "the agents")
        until(lambda: all(node["alive"] for node in one.client.nodes()), 60, "the machines")
        back_s = max(0.0, time.time() - struck[0]["time_ms"] / 1000)
        again = sum(len(run["attempts"]) > 1 for run in one.runs(ids))
        print(
            f"  agent killed, {killed}: all back in the yard within {back_s:.1f} s, {again} runs placed again"
        )
        one.strike("kill-agent", killed, names)
        _again("agent and runner killed", one, one.strike("kill-runner", killed, names), AGAIN_LIMIT_S)
    with running(one, killed):
        struck = one.strike("power-off", killed, back_after="10m")
        _again("power-off, the lease of 18 s included", one, struck, FENCED_LIMIT_S)


@contextmanager
def running(one: FleetYard, count: int) -> Iterator[list[int]]:
    """Give runs of one host each that run, and cancel them afterwards."""
    ids = one.submit("sleep 100000", count=count).ids
    one.wait_running(ids)
    yield ids
    cancel(one, ids)


def cancel(one: FleetYard, ids: Sequence[int]) -> None:
    """Cancel runs and wait for their ends."""
    for run_id in ids:
        one.client.cancel(run_id)
    until(lambda: one.client.status()["counts"]["active"] == 0, 300, "the end of the cancelled runs")


def _again(name: str, one: FleetYard, struck: Sequence[Mapping[str, Any]], limit_s: float) -> None:
    """Print how long after each fault the run's second attempt was placed, and had started."""
    keys = [(key, event) for event in struck for key in event.get("keys") or [event["key"]]]
    placed, started = [], []
    for key, event in keys:
        run_id = int(key.split(".")[0])
        until(lambda run_id=run_id: _started_again(one, run_id), 120, f"another attempt of run {run_id}")  # type: ignore[misc]  # bound at once
        earlier, later = one.client.get(run_id)["attempts"][:2]
        if earlier["ended_at"] > later["placed_at"]:
            raise RuntimeError(f"run {run_id}: attempt 1 was placed before attempt 0 had ended")
        struck_s = event["time_ms"] / 1000
        placed.append(moment_s(later["placed_at"]) - struck_s)
        started.append(moment_s(later["started_at"]) - struck_s)
    print(
        f"  {name}, {len(keys)}: placed again p95 {verdict(percentile(placed, 0.95), limit_s, ' s')}",
        end="; ",
    )
    print(
        f"p50 {percentile(placed, 0.5):.2f} s; started again p95 {percentile(started, 0.95):.2f} s",
        flush=True,
    )


def _started_again(one: FleetYard, run_id: int) -> bool:
    attempts = one.client.get(run_id)["attempts"]
    return len(attempts) > 1 and attempts[1]["started_at"] is not None


def logs(one: FleetYard, folder: Path, writers: int, mib: int) -> None:
    """Print MB/s of members that print at once, from their start until the server has all, beside dd of as much."""
    octets = writers * mib * (1 << 20)
    for count in (1, writers):
        synced = dd(folder, count * mib)
        meter = Meter(one)
        (run_id,) = one.submit(f"train\n# fleet: for=1 log={mib}MiB", nodes=count).ids
        begun = time.monotonic()
        until(lambda run_id=run_id: _complete(one, run_id), 600, "a complete log")  # type: ignore[misc]  # bound at once
        ended_s = time.time()
        server, fleet = meter.end()
        spent = time.monotonic() - begun
        (run,) = one.runs([run_id])
        rate = count * mib * (1 << 20) / 1e6 / (ended_s - moment_s(run["attempts"][0]["started_at"]))
        print(
            f"  {count} at once, {mib} MiB each: {rate:.0f} MB/s; dd conv=fsync {synced:.0f} MB/s", end="; "
        )
        print(
            f"ratio {rate / synced:.2f}; server {server * spent:.1f} s and machines {fleet * spent:.1f} s of a core"
        )
    print(f"  ({octets / 1e6:.0f} MB; every record's checksum and each log's hash are checked by the server)")


def _complete(one: FleetYard, run_id: int) -> bool:
    run = one.client.get(run_id)
    if run["state"] == "ENDED" and run["outcome"] != "SUCCEEDED":
        raise RuntimeError(f"run {run_id}: {run['outcome']} {run['failure']}")
    return bool(run["state"] == "ENDED" and run["logs_complete"])


def dd(folder: Path, mib: int) -> float:
    """Return MB/s of as much written by dd and synced."""
    file = folder / "peer.bin"
    started = time.perf_counter()
    subprocess.run(
        ["dd", "if=/dev/zero", f"of={file}", "bs=1M", f"count={mib}", "conv=fsync", "status=none"],
        check=True,
        env=bare_environment(),
    )
    spent = time.perf_counter() - started
    file.unlink()
    return mib * (1 << 20) / 1e6 / spent


def main(argv: Sequence[str] = ()) -> int:
    """Print the server's load with many machines, starts of gangs, times after faults, and MB/s of logs."""
    parser = argparse.ArgumentParser(prog="bench_fleet", description=main.__doc__)
    parser.add_argument("--quick", action="store_true", help="30 machines, to see that it works")
    given = parser.parse_args(list(argv))
    sizes = QUICK if given.quick else (HOSTS, TRIALS, GANG, GANGS, KILLED, WRITERS, LOG_MIB)
    hosts, trials, gang, rounds, killed, writers, mib = sizes
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with scratch() as folder:
        with fleet_yard(folder / "many", hosts) as one:
            load_of_many(one, hosts, 3.0 if given.quick else MEASURED_S)
            burst_of_trials(one, trials)
            check_journal(one)
        with fleet_yard(folder / "few", gang) as one:
            gangs(one, gang, rounds)
            print(f"faults on {gang} hosts")
            faults(one, killed)
            check_journal(one)
        with fleet_yard(folder / "logs", writers) as one:
            print("logs")
            logs(one, folder, writers, mib)
    return 0
